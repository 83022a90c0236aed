"""The command line: one verb, one file.

A verb's module names its `PART`, a `Command`. It imports what computes only inside `run`, so that help is instant.
"""

from headcount.cli._main import main

__all__ = ["main"]
