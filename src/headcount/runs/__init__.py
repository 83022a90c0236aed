"""One run, one folder: config, weights, log, results, figures, and a manifest that is written last."""
