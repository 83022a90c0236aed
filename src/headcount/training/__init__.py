"""Train and evaluate a model on a task: the training loop, the scores, and the checkpoints."""
