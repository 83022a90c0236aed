"""Run folders: train, load and prune runs; each run has one folder with config, weights, log, results and figures."""
