"""Train and evaluate a model on a task: the loop, the scores, and checkpoints."""
