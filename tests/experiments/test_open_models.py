"""A verb asks a model for what it needs; what a model lacks is an error that says which."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from own_models import NUMBERS, classifier
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.experiments.models import OpenModel, RunModel
from headcount.hooks.wrapping import wrap
from headcount.runs.run import Run


def first_logit(output: Tensor, rows: object) -> Tensor:
    return output[:, 0]


def test_what_a_bare_module_lacks_is_told(tmp_path: Path) -> None:
    bare = OpenModel.of_module(classifier())
    with pytest.raises(InputError, match="needs a metric"):
        bare.selection(None, None, None, length=None, at_once=8)
    with pytest.raises(InputError, match=r"cannot be saved in a folder.*\s+cut the heads out of a copy.*cut_heads"):
        bare.cut(["L0H0"], tmp_path / "cut", None)
    with pytest.raises(InputError, match="needs a metric"):
        bare.some_inputs(2)
    with pytest.raises(InputError, match="needs its input tensors"):
        bare.experiment(None, first_logit)
    with pytest.raises(InputError, match=r"Classifier is a PyTorch module.*takes no texts\s+give its tensors: inputs="):
        bare.text_input("3 5 5 9")
    with pytest.raises(InputError, match="has no task"):
        bare.predict("3 5 5 9")
    with pytest.raises(InputError, match="have no folder to be saved in"):
        _ = bare.output
    assert not bare.has_output
    assert not any(tmp_path.iterdir())


def test_a_bare_module_is_tried_on_tensors() -> None:
    experiment = OpenModel.of_module(classifier()).experiment([NUMBERS], first_logit, at_once=6)
    assert torch.equal(torch.cat([batch.inputs[0] for batch in experiment.batches]), NUMBERS)


def test_a_run_says_how_its_attention_is_seen(tiny_sorter: Run) -> None:
    with pytest.raises(
        InputError, match=r"on an example of its task, not on any text\s+use `headcount heads .*` with --on"
    ):
        RunModel.of(tiny_sorter).text_input("3 5 5 9")


def test_the_first_examples_of_a_run_are_those_of_its_test_set(tiny_sorter: Run) -> None:
    (source,) = RunModel.of(tiny_sorter).some_inputs(3)
    assert len(source) == 3


def test_a_wrapped_module_is_called_by_its_own_class() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    assert OpenModel.of_module(wrap(model)).label == OpenModel.of_module(model).label == "TransformerEncoder"
