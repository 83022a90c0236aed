"""Interventions on batches of examples, with the checks that make their results trustworthy.

experiment         a model on some examples of a dataset, scored by a metric
interventions      scores with heads ablated, for many ablations in one job; drops with confidence intervals
decoding_check     compare one forward pass with real decoding, and describe which answers an ablation breaks
models             the type that every verb works on: a run, or a bare PyTorch module
external_models    the same type for models that others wrote: a Hugging Face folder, or an adapter's model
task_attention     attention weights whose queries and keys are positions of a task
adapter_attention  such attention weights of an adapter's model
position_tables    find the position table in an adapter's model
removal            scores while heads are removed one after another
"""
