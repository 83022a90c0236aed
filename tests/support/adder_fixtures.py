"""A stranger's adder with its adapter, loaded; conftests of the rooms that cut it import these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import Tensor
from traced_cuts import ADAPTER

from headcount import ExternalModel, load_external


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adder")
    (folder / "my_adapter.py").write_text(ADAPTER)
    return folder


@pytest.fixture(scope="module")
def adder(home: Path) -> ExternalModel:
    return load_external(f"{home / 'my_adapter.py'}:Model")


@pytest.fixture(scope="module")
def sums(adder: ExternalModel) -> tuple[Tensor, ...]:
    return adder.dataset().encode(np.arange(12)).inputs


@pytest.fixture(autouse=True)
def _few_to_take_means_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.experiments.experiment.N_MEANS", 256)
