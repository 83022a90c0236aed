"""Tasks with known right answers: one task, one file.

A task generates examples, converts them to tokens and back, and describes what each position means. Tasks use numpy,
not torch.
"""

from headcount.registry import Registry
from headcount.tasks.base import TaskWords

TASKS = Registry("headcount.tasks")


def words_of(task: str | None) -> TaskWords:
    """Return the task's words for its examples; general words for a model without a task or with an unknown task."""
    words: TaskWords = TASKS.get(task).words if task in TASKS.names() else TaskWords()
    return words


def target_meanings() -> dict[str, str]:
    """Return the explanation of each attention target of all tasks, by the name of the target."""
    return {target: meaning for task in TASKS.names() for target, meaning in words_of(task).targets.items()}


def is_class_task(task: str | None) -> bool:
    """Return whether the answers of a task are classes."""
    return task in TASKS.names() and TASKS.get(task).output_type == "class"
