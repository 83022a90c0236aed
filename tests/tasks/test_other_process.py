"""Another process draws the same examples, however Python happens to order its sets there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headcount.tasks import TASKS

pytestmark = pytest.mark.slow  # seconds together

DRAW = """
import hashlib, sys
import numpy as np
from headcount.tasks import TASKS
task = TASKS.get(sys.argv[1])()
examples = [task.split("validation"), task.split("test"), task.sample(np.random.default_rng(0), 500)]
print(hashlib.sha256(b"".join(part.tobytes() for part in examples)).hexdigest())
"""


@pytest.mark.parametrize("name", TASKS.names())
def test_examples_do_not_depend_on_the_process(name: str) -> None:
    predicted = {
        subprocess.run(
            [sys.executable, "-c", DRAW, name],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(predicted) == 1
