"""Small models of every family are kept with the instruments' tests; a stranger's adder, with its adapter."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "instruments"))

import pytest
from foreign_cuts import ADAPTER

from headcount import load_guest


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adder")
    (folder / "my_adapter.py").write_text(ADAPTER)
    return folder


@pytest.fixture(scope="module")
def adder(home):
    return load_guest(f"{home / 'my_adapter.py'}:Model")


@pytest.fixture(scope="module")
def sums(adder):
    return adder.exam().ask(list(range(12))).inputs


@pytest.fixture(autouse=True)
def _few_to_take_means_over(monkeypatch):
    monkeypatch.setattr("headcount.guests.questions.N_REFERENCE", 256)
