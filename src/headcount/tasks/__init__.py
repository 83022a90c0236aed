"""Tasks whose right answer is known: one task, one file.

A task makes examples, turns them into tokens and back, and knows what each position means. Tasks know numpy, not torch.
"""

from headcount.registry import Registry

TASKS = Registry("headcount.tasks")
