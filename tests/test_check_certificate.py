"""The independent program agrees with headcount's certificates, and confirms none that is false."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from edited_sorters import FAULTS, add_noise, edited, shift, with_a_wrong_context, with_settings
from tools import check_certificate
from tools.check_certificate import NotDecidable, check

from headcount.analysis import context_proof
from headcount.analysis.context_proof import prove
from headcount.experiments.models import RunModel
from headcount.runs.folder import digest
from headcount.runs.run import Run, load

pytestmark = pytest.mark.slow  # the models are proved, and checked again

Material = tuple[dict[str, Any], bytes, dict[str, Any]]
"""The settings and the weights of a run, and its certificate, as their files have them."""
Make = Callable[[Run], RunModel]


def noisy(seed: int, run: Run) -> RunModel:
    return edited(run, add_noise(0.5, seed))


def faulty(name: str, run: Run) -> RunModel:
    return with_a_wrong_context(run, FAULTS[name])[0]


PROVED: dict[str, Make] = {
    "as trained": lambda run: edited(run, shift(0.0)),
    "another threshold": lambda run: edited(run, shift(0.01)),
    "a little noise": lambda run: edited(run, add_noise(1e-3, 0)),
}
REFUTED: dict[str, Make] = {
    **{f"noise {seed}": partial(noisy, seed) for seed in range(3)},
    **{name: partial(faulty, name) for name in FAULTS},
    "always unsorted": lambda run: edited(run, shift(1e3)),
    "always sorted": lambda run: edited(run, shift(-1e3)),
}
OTHER_SHAPES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "causal, no encoding": {"causal": True, "encoding": "none"},
    "window of 2": {"window": 2, "clip_distance": 3},
    "post-norm": {"norm": "post"},
    "a table of numbers": {"numbers": "table"},
    "one head cut out": {"pruned": "L0H1"},
    "all heads cut out": {"pruned": "L0H0,L0H1"},
}


@pytest.fixture(autouse=True)
def _shorter_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests compare sequences of 4,096 numbers; these take most of the time."""
    monkeypatch.setattr(context_proof, "CHECKED_LENGTHS", (1, 2, 3))


def material(model: RunModel) -> Material:
    """Return the files of a model and its certificate, of the weights that the model has now."""
    weights = safetensors.torch.save({name: each.contiguous() for name, each in model.run.model.state_dict().items()})
    certificate = replace(prove(model), weights_sha256=digest(weights))
    return json.loads(model.run.config.to_json()), weights, json.loads(certificate.to_json())


@pytest.fixture(scope="session")
def proved(proved_sorter: Run) -> Material:
    return material(RunModel.of(proved_sorter))


def changed(proved: Material, **changes: Any) -> Material:
    config, weights, certificate = proved
    return config, weights, certificate | changes


# --- the same answer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROVED | REFUTED)
def test_both_programs_agree(proved_sorter: Run, name: str) -> None:
    model = (PROVED | REFUTED)[name](proved_sorter)
    files = material(model)
    result = check(*files)
    assert (result.differences, result.verdict) == ([], "proved" if name in PROVED else "refuted")
    assert result.verdict == files[2]["verdict"]
    if name in REFUTED:
        answer = model.predict(result.example)
        assert answer.predicted != answer.right, "the model itself answers this program's example wrong"


@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_both_programs_agree_on_models_of_other_shapes(proved_sorter: Run, name: str) -> None:
    """These have random weights, so all of them are wrong somewhere."""
    result = check(*material(with_settings(proved_sorter, **OTHER_SHAPES[name])))
    assert (result.differences, result.verdict) == ([], "refuted")


@pytest.mark.slow
def test_the_packaged_certificate_is_confirmed() -> None:
    """This takes half a minute of one core: 1,020,100 contexts."""
    folder = load("sample:sortedness").folder.path
    ended = subprocess.run(
        [sys.executable, check_certificate.__file__, str(folder), "--json"], capture_output=True, text=True, check=False
    )
    result = json.loads(ended.stdout)
    assert (ended.returncode, result["agrees"], result["verdict"]) == (0, True, "proved")
    assert result["n_contexts"] == 100**3 + 2 * 100**2 + 100
    assert result["rounding_bound"] < min(result["least_quiet"], result["least_firing"])


# --- certificates that are false --------------------------------------------------------------------------------------


def test_a_claim_of_a_refuted_model_is_not_confirmed(proved: Material, proved_sorter: Run) -> None:
    """The certificate of one model with the weights of another one, whose digest somebody has put in."""
    for make in REFUTED.values():
        config, weights, _ = material(make(proved_sorter))
        result = check(*changed((config, weights, proved[2]), weights_sha256=digest(weights)))
        assert result.verdict == "refuted"
        assert result.differences[0].startswith("verdict is proved in the certificate, and refuted here, wrong on ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verdict", "undecided"),
        ("weights_sha256", "0" * 64),
        ("claim", "right on every sequence of numbers from 0 to 99, of every length"),
        ("settings", {"window": "2"}),
        ("trained", [3, 7]),
        ("buffers", {"biases": "0" * 64, "waves": "0" * 64}),
        ("n_contexts", 295),
        ("n_unbroken", 3),
        ("n_wrong_contexts", 1),
        ("n_wrong_paths", 1),
        ("least_quiet", 99.0),
        ("least_firing", 99.0),
        ("tightest_quiet", "0 0 0"),
        ("tightest_firing", "0 1 2"),
        ("double_error", -1.0),
        ("double_error", 99.0),
        ("wrong", [{"example": "0 1", "right": "sorted", "predicted": "unsorted"}]),
    ],
)
def test_an_edited_certificate_is_not_confirmed(proved: Material, name: str, value: Any) -> None:
    assert proved[2][name] != value
    assert check(*changed(proved, **{name: value})).differences


def test_a_listed_sequence_that_is_answered_right_is_named(proved_sorter: Run) -> None:
    files = material(REFUTED["always sorted"](proved_sorter))
    answer = {"example": "0 1 2", "right": "sorted", "predicted": "unsorted", "explanation": ""}
    assert any("0 1 2" in each for each in check(*changed(files, wrong=[answer])).differences)


# --- models that it does not know -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("model", "n_layers", 2),
        ("model", "pooling", "mean"),
        ("model", "pooling", "max"),
        ("model", "encoding", "rotary"),
        ("model", "softmax", "log-n"),
        ("model", "window", None),
        ("model", "window", 20),
        ("model", "random_positions", 64),
        ("model", "gating", True),
        ("model", "pruned", ["layer.3.self.0"]),
        ("model", "d_ff", 64),
        ("task", "padding_is_zero", True),
    ],
)
def test_other_settings_are_not_decidable_here(proved: Material, part: str, name: str, value: Any) -> None:
    config, weights, certificate = proved
    with pytest.raises(NotDecidable):
        check(config | {part: config[part] | {name: value}}, weights, certificate)


def test_other_files_are_not_decidable_here(proved: Material) -> None:
    config, weights, certificate = proved
    damaged = b"\xff" * 40
    for files in (
        (config | {"task_name": "addition"}, weights, certificate),
        (config, weights, certificate | {"type": "Certificate"}),
        (config, weights, certificate | {"schema": 2}),
        (config, damaged, certificate | {"weights_sha256": digest(damaged)}),
    ):
        with pytest.raises(NotDecidable):
            check(*files)


def test_weights_that_are_no_numbers_are_not_decidable_here(proved: Material) -> None:
    config, weights, certificate = proved
    tensors = safetensors.torch.load(weights)
    tensors["pooling.score.bias"] *= np.nan
    weights = safetensors.torch.save(tensors)
    with pytest.raises(NotDecidable, match="not finite"):
        check(config, weights, certificate | {"weights_sha256": digest(weights)})


# --- the program ------------------------------------------------------------------------------------------------------


def test_it_imports_the_standard_library_and_numpy_alone() -> None:
    tree = ast.parse(Path(check_certificate.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
        for node in imports
        for alias in node.names
    }
    assert names - set(sys.stdlib_module_names) == {"numpy"}


def test_the_command_line(proved: Material, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, weights, certificate = proved
    (tmp_path / "results").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(weights)
    (tmp_path / "results" / "certificate.json").write_text(json.dumps(certificate))
    assert check_certificate.main([str(tmp_path)]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == "confirmed: proved, right on every sequence of numbers from 0 to 5, of every length"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(certificate | {"n_unbroken": 7}))
    assert check_certificate.main([str(tmp_path), str(other)]) == 1
    assert capsys.readouterr().out.startswith("not confirmed: n_unbroken is 7 in the certificate, and 104 here")
    assert check_certificate.main([str(tmp_path), str(other), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["agrees"] is False
    other.write_text("{")
    assert check_certificate.main([str(tmp_path), str(other)]) == 2
    assert capsys.readouterr().out.startswith("not decidable here: ")
    assert check_certificate.main([str(tmp_path / "nowhere")]) == 2


def test_a_certificate_needs_whole_sequences_that_agree(proved_sorter: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is not the model's is noticed by whole sequences, here and in headcount alike."""
    original = check_certificate.table_of_leads
    monkeypatch.setattr(check_certificate, "table_of_leads", lambda network: original(network) + 1e-3)
    differences = check(*material(RunModel.of(proved_sorter))).differences
    assert any("whole sequences and the table differ" in each for each in differences)
