"""The browser, for tests of pages, and a small lab that all tests of this folder read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from blank_figures import leave_figures_blank, paint_figures
from browsing import browser as browser
from little_work import work_little

from headcount.api.reporting import write_forms
from headcount.exercise.lab import Lab, run_lab

FOLDER = "a lab <img src=x onerror=alert(1)>"
"""Part of every model's name."""
SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "n_validation": 20, "n_test": 40}
SMALL |= {"n_values": 20, "steps": 6, "batch_size": 8, "eval_every": 6, "threads": 1, "device": "cpu"}


@dataclass(frozen=True)
class SmallLab:
    """A lab with an adder that learned one-digit sums, and with sortedness models that are hardly trained."""

    folder: Path
    settings: dict[str, dict[str, Any]]
    lengths: tuple[int, ...] = (8, 16, 32, 64)
    """The lab's own go on to 1,024."""

    def run(self, *, painted: bool = True) -> Lab:
        """Run the lab, or run it again: what is there already is not trained a second time.

        Pictures beside the report are blank, and those in it as well unless `painted`.
        """

        def write_painted(*given: Any) -> Any:
            with pytest.MonkeyPatch.context() as inner:
                paint_figures(inner)
                return write_forms(*given)

        with pytest.MonkeyPatch.context() as patch:
            work_little(patch)
            leave_figures_blank(patch)
            if painted:
                patch.setattr("headcount.exercise.lab.write_forms", write_painted)
            patch.setattr("headcount.exercise.lab.LENGTHS", self.lengths)
            patch.setattr("headcount.exercise.lab.POOLINGS", ("neighbour-difference",))
            return run_lab(self.folder, quiet=True, settings=self.settings, n=20, n_examples=3)


@pytest.fixture(scope="session")
def small_lab(
    good: dict[str, Any], good_copy: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory
) -> SmallLab:
    folder = tmp_path_factory.mktemp("labs") / FOLDER
    shutil.copytree(good_copy(), folder / "addition")
    return SmallLab(folder, {"addition": good, "sortedness": SMALL})


@pytest.fixture(scope="session")
def lab_results(small_lab: SmallLab, pytestconfig: pytest.Config) -> Lab:
    """Return the results of the small lab, which tests read and do not change.

    Pictures in its report, which take half of the time, are for `--long`: tests/rendering has a page with real ones.
    """
    return small_lab.run(painted=pytestconfig.getoption("--long"))
