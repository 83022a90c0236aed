"""Datasets for evaluation, from a task, a file, a user's adapter or tensors; all become an `EvalDataset`.

dataset       the type of every dataset: examples, batches, metrics
from_task     examples of a task, for a model that takes the task's own tokens
from_adapter  examples and single questions, encoded by a user's adapter
probing       find out which token of a task is at which position of the tensors that an adapter makes
alphabet      find out which character or word each token id of an adapter's model stands for
adapter_task  an adapter's model with the answers of a task
own_task      an adapter's own examples as a task
tables        rows of files, folders and Hugging Face datasets
from_file     texts, tables and single texts, for models with a tokenizer; formats/: one file per format
from_images   images as a vision transformer takes them
sequences     token sequences on which attention is shown
"""
