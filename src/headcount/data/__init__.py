"""Evaluation batches from a task, a file, an adapter or tensors: one type.

dataset       what every dataset is: examples, batches of them, metrics
from_task     examples of a task, for a model that takes the task's own tokens
from_adapter  examples of a task or of one's own, and single questions, as an adapter encodes them
tables        what files, folders and Hugging Face's datasets hold, row by row
from_file     texts, tables and single texts, for models with a tokenizer; formats/: one file per format
from_images   images as a vision transformer takes them
"""
