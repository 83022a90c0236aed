"""Interventions on batches of examples, with the checks that make their results trustworthy.

experiment         a model on some examples of a dataset, scored by a metric
interventions      scores with heads ablated, many interventions in one job, and drops with intervals
decoding_check     one forward pass against real decoding, and what breaks without a head
models             the type that every verb works on: a run, or a bare module
external_models    the same type for models that others wrote: of a Hugging Face folder, or of an adapter
task_attention     attention in the positions of a task; adapter_attention: of an adapter's model
position_tables    the table of positions in an adapter's model
removal            scores while heads are removed one after another
"""
