"""Tasks with known right answers, such as addition; each task is one file.

A task generates examples, converts them to tokens and back, and says what each position means. Tasks use numpy, not
torch.
"""

from headcount.registry import Registry
from headcount.tasks.base import TaskWords

TASKS = Registry("headcount.tasks")


def words_of(task: str | None) -> TaskWords:
    """Return the words that messages and reports use for a task, such as "sum"; general words for an unknown task."""
    words: TaskWords = TASKS.get(task).words if task in TASKS.names() else TaskWords()
    return words


def target_meanings() -> dict[str, str]:
    """Return the explanations of attention targets (kinds of tokens that heads attend to) of all tasks, by name."""
    return {target: meaning for task in TASKS.names() for target, meaning in words_of(task).targets.items()}


def is_class_task(task: str | None) -> bool:
    """Return whether the answers of the task called `task` are classes; False for an unknown task."""
    return task in TASKS.names() and TASKS.get(task).output_type == "class"
