"""Interventions run on batches of examples, with the checks that make what comes out of them believable.

experiment      a model, batches to try it on, and a metric
interventions   scores with heads ablated, many interventions in one job, and what was lost, with intervals
decoding_check  one forward pass against real decoding; and what fails without a head
models          what every verb works on: a run, or a bare module
external_models the same of models that others wrote: a Hugging Face folder's, an adapter's
"""
