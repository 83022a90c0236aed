"""Evaluation batches from a task, a file, an adapter or tensors: one type.

dataset       the type of every dataset: examples, batches, metrics
from_task     examples of a task, for a model that takes the task's own tokens
from_adapter  examples and single questions as an adapter encodes them
probing       which token of a task stands at which position of what an adapter encodes; alphabet: names of its ids
adapter_task  an adapter's model on a task; own_task: an adapter's own data as a task
tables        rows of files, folders and Hugging Face datasets
from_file     texts, tables and single texts, for models with a tokenizer; formats/: one file per format
from_images   images as a vision transformer takes them
sequences     token sequences to look at attention on
"""
