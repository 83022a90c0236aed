"""Interventions on batches of examples, with the checks that make their results trustworthy.

experiment         a model, some examples of a dataset, and a metric that scores the model's outputs
interventions      scores with heads ablated, for many ablations in one job
donors_and_means   the values that replace the outputs of ablated heads: of other examples (donors), or mean values
drops              scores with and without heads compared on the same examples, with confidence intervals
decoding_check     compare one forward pass with real decoding, and describe which answers an ablation breaks
models             the type of model that every command works on: a run (a trained model), or a bare PyTorch module
external_models    this type for models that headcount did not train: of Hugging Face, or with a user's adapter
task_attention     attention weights whose queries and keys are positions of a task
adapter_attention  attention weights of an adapter's model, mapped to the positions of a task
position_tables    find the table of position vectors in an adapter's model
removal            scores while heads are removed one after another
"""
