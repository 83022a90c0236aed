"""From a task and a model to a trained model: the loop, evaluation, and the state that survives a crash."""
