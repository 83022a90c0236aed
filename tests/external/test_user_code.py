"""Code of users: in a world of its own, ended by nobody, told when it is run, and run only when it was asked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import hub_models as hub
import pytest
import torch
from traced_cuts import ADAPTER

from headcount import ablate_heads, load, load_external, prune_heads, summarise_attention
from headcount.analysis.specialisation import specialise
from headcount.api import open_model, open_run, show_positions
from headcount.cli import main
from headcount.errors import CheckFailed, HeadcountError, InputError
from headcount.external.models import is_external
from headcount.external.user_code import isolated_imports
from headcount.runs.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp")]  # strangers' code is run in full


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.stats.N_RESAMPLES", 199)


MODEL = """
import torch
from torch import nn

SIZE = {size}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(SIZE)
        self.embed, self.attn = nn.Embedding(10, SIZE), nn.MultiheadAttention(SIZE, 2, batch_first=True)
        self.out, self.calls = nn.Linear(SIZE, 10), 0
    def forward(self, ids):
        x = self.embed(ids)
        return self.out((x + self.attn(x, x, x, need_weights=False)[0]).sum(1))
"""
MINE = """
from __future__ import annotations
import sys
from dataclasses import dataclass
import torch
from model import SIZE, Net
from headcount import Adapter

@dataclass
class Settings:
    size: int = SIZE

class Model(Adapter):
    def build(self):
        return Net()
    def data(self):
        return [(f"{{a}}{{b}}{{a}}", str(b)) for a in range(7) for b in range(7)]
    def encode(self, questions, answers):
        return torch.tensor([[*map(int, each)] for each in questions]), torch.tensor([*map(int, answers)])
    def forward(self, model, ids):
        import model as again  # late imports come from beside the adapter too
        assert again.SIZE == Settings().size
        return model(ids)
    {more}
"""


def written(folder: str, size: int = 8, more: str = "pass") -> str:
    """An adapter, and the model beside it."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "model.py").write_text(MODEL.format(size=size))
    Path(folder, "my_adapter.py").write_text(MINE.format(more=more))
    return f"{folder}/my_adapter.py:Model"


# --- two of one name --------------------------------------------------------------------------------------------------


def test_each_adapter_has_the_modules_beside_it() -> None:
    """Every student has a my_adapter.py and a model.py."""
    Path("own").mkdir()
    Path("own/model.py").write_text("MINE = True")
    sys.path.insert(0, "own")
    try:
        import model  # type: ignore[import-not-found]

        before = set(sys.path)
        one, other = load_external(written("one", 8)), load_external(written("other", 16))
        for each, size in ((one, 8), (other, 16), (one, 8)):
            assert each.model(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 10)
            assert type(each.inner).__module__ == "model"
            assert each.inner.embed.embedding_dim == size
        assert load_external("one/my_adapter.py:Model").weights_sha256 == one.weights_sha256 != other.weights_sha256
        assert sys.modules["model"] is model, "what a user imported stays"
        assert model.MINE
        assert set(sys.path) == before
    finally:
        sys.path.remove("own")
        sys.modules.pop("model", None)


@pytest.mark.parametrize("first", ["", "import nowhere_else\n"])
def test_an_adapter_in_a_package_imports_relative_to_itself(first: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two students' packages of one layout; an `__init__.py` that fails is told with its line."""
    for student, size in (("alice", 4), ("bob", 8)):
        inner = Path(student, "hand-in", "adapters")
        inner.mkdir(parents=True)
        Path(student, "hand-in", "__init__.py").write_text(first)
        Path(student, "hand-in", "model.py").write_text(MODEL.format(size=size))
        Path(inner, "sizes.py").write_text("from ..model import SIZE\n")
        text = MINE.format(more="pass").replace(
            "from model import SIZE, Net", "from ..model import Net\nfrom .sizes import SIZE"
        )
        Path(inner, "adapter.py").write_text(text.replace("import model as again", "from .. import model as again"))
    names = [f"{student}/hand-in/adapters/adapter.py:Model" for student in ("alice", "bob", "alice")]
    if first:
        with pytest.raises(InputError, match="No module named 'nowhere_else'"):
            load_external(names[0])
        return
    sizes = [load_external(name).inner.embed.embedding_dim for name in names]
    assert sizes == [4, 8, 4]
    assert "model" not in sys.modules


def test_a_working_directory_that_code_chose_holds_for_that_code() -> None:
    """Results go where the user is, and the code finds its files where it went."""
    text = "assert os.path.exists('model.py')"
    name = written(
        "alice", more=f"import os\n    os.chdir('alice')\n    def load(self, model):\n        import os; {text}"
    )
    before = Path.cwd()
    model = open_model(name)
    assert Path.cwd() == before
    ablate_heads(model, replacements=["zero"], n=8, save=True, quiet=True)
    assert list(before.glob("runs/*/results/*.json"))
    assert not Path("alice/runs").exists()


def test_what_an_adapter_imported_is_not_what_a_user_imports_next() -> None:
    """A notebook loads a submission, and then imports a model.py of its own."""
    load_external(written("one"))
    assert "model" not in sys.modules
    Path("own").mkdir()
    Path("own/model.py").write_text("MINE = True")
    sys.path.insert(0, "own")
    try:
        import model

        assert model.MINE
    finally:
        sys.path.remove("own")
        sys.modules.pop("model", None)


def test_a_folder_on_the_path_shares_its_modules_with_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script beside the adapter: one class, whoever imported it first."""
    name = written("one")
    monkeypatch.syspath_prepend("one")
    inner = load_external(name).inner
    try:
        from model import Net

        assert type(inner) is Net
    finally:
        sys.modules.pop("model", None)


def test_what_an_adapter_imports_from_elsewhere_is_its_own_too() -> None:
    """As `headcount adapt` writes it, for a model that is not beside the adapter."""
    for name, size in (("a", 8), ("b", 16)):
        written(f"{name}-code", size)
        Path(name).mkdir()
        code = f"import sys\nsys.path.insert(0, {str(Path(f'{name}-code').resolve())!r})\n"
        Path(name, "my_adapter.py").write_text(
            Path(f"{name}-code/my_adapter.py").read_text().replace("import sys\n", code)
        )
    models = [load_external(f"{name}/my_adapter.py:Model") for name in "ab"]
    assert [model.inner.embed.embedding_dim for model in models] == [8, 16]
    for model in models:
        model.model(torch.zeros(2, 3, dtype=torch.long))


def test_what_is_installed_is_never_put_away() -> None:
    for name in ("torch", "json", "headcount", "pytest"):
        Path(f"{name}.py").write_text("")
    with isolated_imports(Path()):
        assert sys.modules["torch"] is torch
        assert sys.modules["pytest"] is pytest
        assert sys.modules["headcount.cli"]


def test_results_of_two_adapters_of_one_name() -> None:
    one, other = (
        ablate_heads(written(name, size), replacements=["zero"], save=True, quiet=True)
        for name, size in (("one", 8), ("other", 16))
    )
    assert one.data == (Path("runs/my_adapter.py-Model/results/ablation-zero.json"),)
    assert len(other.data) == 1
    assert other.data != one.data
    digests = [json.loads(each.data[0].read_text())["weights_sha256"] for each in (one, other)]
    assert digests[0] != digests[1]
    again = ablate_heads("one/my_adapter.py:Model", replacements=["zero"], save=True, quiet=True)
    assert again.data == one.data


def test_nothing_is_claimed_before_something_is_written() -> None:
    load_external(written("one"))
    assert not Path("runs").exists()


# --- code that ends the program, or fails -----------------------------------------------------------------------------

EXIT = "sys.exit(0)"
METHODS = {
    "build": f"def build(self): {EXIT}",
    "load": f"def load(self, model): {EXIT}",
    "sites": f"def sites(self, model): {EXIT}",
    "data": f"def data(self): {EXIT}",
    "encode": f"def encode(self, questions, answers): {EXIT}",
    "forward": f"def forward(self, model, ids): {EXIT}",
    "__init__": f"def __init__(self): {EXIT}",
}


@pytest.mark.parametrize("method", METHODS)
def test_an_exit_is_no_success(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", written("one", more=METHODS[method]), "--quiet"]) == 2
    told = capsys.readouterr().err
    assert f"error: {method}() of the adapter Model ends the program: SystemExit: 0\n" in told
    assert "of my_adapter.py: " in told
    assert EXIT in told


def test_exits_in_other_places(capsys: pytest.CaptureFixture[str]) -> None:
    for method, question in (("tokens(self, question, answer)", "101"), ("generate(self, model, questions)", "101")):
        assert main(["heads", written("one", more=f"def {method}: {EXIT}"), "--on", question]) == 2
        assert f"{method.partition('(')[0]}() of the adapter Model ends the program" in capsys.readouterr().err
    assert main(["heads", written("one", more=f"def data(self): {EXIT}"), "--on", "101"]) == 2
    assert "data() of the adapter Model ends the program" in capsys.readouterr().err
    assert main(["prune", written("one", more=f"def cut(self, *a): {EXIT}"), "--heads", "L0H1", "-o", "small"]) == 2
    assert "cut() of the adapter Model ends the program" in capsys.readouterr().err
    Path("ends.py").write_text("import sys\nsys.exit(0)\n")
    assert main(["heads", "ends.py:Model"]) == 2
    assert "ends.py ends the program: SystemExit: 0\n  at line 2 of ends.py: sys.exit(0)" in capsys.readouterr().err
    Path("net.py").write_text(
        "import sys\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self): sys.exit(0)"
    )
    assert main(["adapt", "net.py:Net"]) == 0
    assert "SystemExit" in Path("my_adapter.py").read_text()


@pytest.mark.parametrize("method", METHODS)
def test_an_iteration_that_stops_is_a_fault_like_others(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Let through, it would end somebody's loop in silence."""
    assert main(["ablate", written("one", more=METHODS[method].replace(EXIT, "next(iter(()))")), "--quiet"]) == 2
    told = capsys.readouterr().err
    assert f"error: {method}() of the adapter Model fails: StopIteration\n" in told
    assert "next(iter(()))" in told


def test_an_interrupt_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        load_external(written("one", more="def build(self): raise KeyboardInterrupt"))


def test_a_forward_that_fails_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    name = written("one", more="def forward(self, model, ids): return model.out(ids.float())")
    for verb in (["ablate", name], ["heads", name, "--on", "101"]):
        assert main(verb) == 2
        told = capsys.readouterr().err
        assert "error: forward() of the adapter Model fails: RuntimeError: " in told
        assert "of my_adapter.py: " in told
    with pytest.raises(InputError, match=r"forward\(\) returned NoneType"):
        ablate_heads(written("one", more="def forward(self, model, ids): pass"), quiet=True)


# --- weights and state ------------------------------------------------------------------------------------------------


def test_weights_that_are_no_numbers() -> None:
    body = "def load(self, model):\n        model.attn.out_proj.bias.data[:3] = float('nan')"
    with pytest.raises(InputError, match=r"attn\.out_proj\.bias holds .* not finite \(3 of 8 NaN\)"):
        load_external(written("one", more=body))


CHANGES = {
    "weights that change": "model.calls += 1\n        if model.calls == 40: model.out.bias.data[0] += 3",
    "noise after a while": "model.calls += 1\n        if model.calls > 40: return model(ids) + torch.randn(10)",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_that_changes_while_it_runs(change: str) -> None:
    name = written("one", more=f"def forward(self, model, ids):\n        {change}\n        return model(ids)")
    with pytest.raises(CheckFailed, match=r"said something else|differ"):
        ablate_heads(name, replacements=["zero", "mean"], batch_size=8, quiet=True)


def test_guessing_among_the_classes_of_an_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", written("one"), "--metric", "loss", "--replacements", "zero", "--quiet"]) == 0
    assert "equal probabilities for all 10 tokens or classes" in " ".join(capsys.readouterr().out.split())
    assert main(["prune", "one/my_adapter.py:Model", "--metric", "loss", "--quiet"]) == 2
    assert "nats, and that of guessing is 2.303" in capsys.readouterr().err


# --- running only what was named or allowed ---------------------------------------------------------------------------


TRACE = "\nfrom pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that leaves a trace when it is run, and a folder that was pruned from its model."""
    home = tmp_path_factory.mktemp("pruned")
    (home / "my_adapter.py").write_text(ADAPTER + TRACE)
    prune_heads(f"{home / 'my_adapter.py'}:Model", home / "smaller", heads=["E0H1"], quiet=True)
    (home / "ran").unlink()
    return home


@pytest.fixture
def smaller(pruned: Path, in_tmp: Path) -> Path:
    shutil.copytree(pruned, in_tmp, dirs_exist_ok=True)
    return Path("smaller")


def test_a_folder_runs_its_adapter_only_when_told(smaller: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("my_adapter.py").resolve()
    calls: list[Any] = [
        lambda **more: load_external(smaller, **more),
        lambda **more: ablate_heads(smaller, n=8, replacements=["zero"], quiet=True, **more),
        lambda **more: summarise_attention(smaller, "37+81", **more),
        lambda **more: show_positions(smaller, **more),
        lambda **more: prune_heads(smaller, "least", heads=["E0H0"], quiet=True, **more),
    ]
    for call in calls:
        with pytest.raises(InputError, match=f"runs the Python file {file}[\\s\\S]*--run-adapter.*run_adapter=True"):
            call()
    for verb in (["heads"], ["heads", "--stats"], ["positions"], ["ablate", "--n", "8"], ["prune", "--n", "8"]):
        assert main([verb[0], str(smaller), *verb[1:]]) == 2
        assert f"runs the Python file {file}" in capsys.readouterr().err
    assert not Path("ran").exists()
    for call in calls:
        call(run_adapter=True)
    capsys.readouterr()
    assert main(["heads", str(smaller), "--run-adapter", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"running {file} to build the model\n"
    assert len(json.loads(printed.out)["heads"]) == 23


def test_code_that_is_named_is_run_and_that_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", written("one"), "--json"]) == 0
    assert capsys.readouterr().err == f"running {Path('one/my_adapter.py').resolve()} to build the model\n"
    open_model(load_external("one/my_adapter.py:Model"))
    assert capsys.readouterr().err == ""
    assert main(["adapt", "one/model.py:Net", "--json"]) == 0
    assert capsys.readouterr().err == f"running {Path('one/model.py').resolve()} to look at its class\n"


@pytest.mark.parametrize("what", ["a Hugging Face folder", "a run", "a damaged one"])
def test_a_folder_that_is_something_else_too(smaller: Path, what: str, tiny_run: Run) -> None:
    if what == "a run":
        shutil.copytree(tiny_run.folder.path, "both")
    elif what == "a damaged one":
        Path("both").mkdir()
        Path("both/config.json").write_text("{")
    else:
        hub.build("bert", torch.float32).save_pretrained("both")
    told = json.loads((smaller / "headcount.json").read_text()) | {"adapter": str(Path("my_adapter.py").resolve())}
    Path("both/headcount.json").write_text(json.dumps(told))
    assert is_external("both") is (what == "a Hugging Face folder")
    if what == "a damaged one":
        with pytest.raises(HeadcountError, match="damaged"):
            open_model("both")
    else:
        assert len(getattr(open_model("both"), "sites", None) or load("both").model.heads) > 0
    with pytest.raises(InputError, match=r"both can be loaded without headcount\.json"):
        open_model("both", run_adapter=True)
    assert not Path("ran").exists()


def test_what_is_left_after_a_cut_is_measured_beside_controls_that_were_cut_alike(smaller: Path) -> None:
    model = open_model(smaller, run_adapter=True).task_attention()
    found = specialise(model, controls=(2, 1))
    assert [head.short for head in found.heads[:3]] == ["E0H0", "E0H2", "E0H3"]
    assert (len(found.heads), found.calibration.controls) == (23, ("untrained", "shuffled"))


def test_an_adapter_that_is_not_there_cannot_be_run(tiny_run: Run) -> None:
    hub.build("bert", torch.float32).save_pretrained("model")
    for name in ("model", tiny_run.folder.path, "sample:addition", "nowhere"):
        with pytest.raises(InputError, match=r"has no headcount\.json"):
            open_model(name, run_adapter=True)


def test_what_only_runs_can_do_runs_no_code(smaller: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.build("bert", torch.float32).save_pretrained("model")
    Path("model/model.safetensors").write_bytes(b"not even looked at")
    capsys.readouterr()
    for verb in ("verify", "evaluate", "stretch"):
        assert main([verb, "model"]) == 2
        assert capsys.readouterr().err.startswith("error: model has no task, so the right answers are not known\n")
        assert main([verb, str(smaller)]) == 2
        assert "my_adapter.py, which needs your permission" in capsys.readouterr().err
        assert main([verb, "no_such_adapter.py:Model"]) == 2
        assert "no file no_such_adapter.py" in capsys.readouterr().err
    for name in (str(smaller), "my_adapter.py:Model", "no_such_adapter.py:Model", "model"):
        with pytest.raises(InputError, match="needs a run"):
            open_run(name)
    assert main(["predict", str(smaller), "1+1"]) == 2
    assert "my_adapter.py, which needs your permission" in capsys.readouterr().err
    assert not Path("ran").exists()


def test_what_a_task_gives_is_given_to_a_pruned_folder_too(smaller: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(smaller), "--run-adapter"]) == 0
    assert main(["verify", str(smaller), "--run-adapter", "--quiet"]) in (0, 1)
    assert "of all" in capsys.readouterr().out
    assert main(["audit", str(smaller), "--run-adapter", "--quiet", "--only", "HC106"]) == 0
    assert "HC106" in capsys.readouterr().out
    assert Path("ran").exists()


# --- manifests that are damaged ---------------------------------------------------------------------------------------


def cut(**changes: Any) -> Any:
    return lambda told: told | {"cuts": [told["cuts"][0] | changes]}


DAMAGE: dict[str, Any] = {
    "nested": lambda told: "[" * 100_000,
    "no object": lambda told: [1],
    "lists for names": lambda told: told | {"adapter": ["a"], "class": [1]},
    "a class that is no name": lambda told: told | {"class": "no name"},
    "a path that is none": lambda told: told | {"adapter": "a\0b"},
    "a long path": lambda told: told | {"adapter": "a" * 100_000},
    "no Python file": lambda told: told | {"adapter": "headcount.json"},
    "cuts that are none": lambda told: told | {"cuts": [5]},
    "many outputs": cut(layers={"encoder_layers.0.self_attn.W_q": 10**15}),
    "no outputs": cut(layers={"encoder_layers.0.self_attn.W_q": "x"}),
    "layers that are none": cut(layers=[5]),
    "negative heads": cut(heads=[-1, -2, -3, -4]),
    "heads twice": cut(heads=[1, 1, 2, 3]),
    "heads that are none": cut(heads=5),
    "places that are none": cut(keep=[0, 2, 9]),
    "places that are lists": cut(keep=[[0]]),
    "a large number": cut(numbers={"encoder_layers.0.self_attn.n_heads": 10**30}),
    "a site that is none": cut(site="x"),
    "a list for a site": cut(site=["encoder.0.self"]),
    "no such way": cut(way="by magic"),
    "a way of other models": cut(way="headless"),
    "a part of other models": cut(repeats={}),
    "places in another order": cut(keep=[3, 2, 0]),
    "no such projection": cut(projection="nowhere"),
    "more than there is": cut(more=5),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_manifest_is_told(smaller: Path, damage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = smaller / "headcount.json"
    made = damage(json.loads(file.read_text()))
    file.write_text(made if isinstance(made, str) else json.dumps(made))
    assert main(["heads", str(smaller), "--run-adapter"]) == 2
    told = capsys.readouterr().err
    assert re.search(
        r"damaged|not written by headcount|has no valid entry|is built by the Python code|no adapter|"
        r"no longer has the parts|do not fit",
        told,
    )


def test_pipes_are_not_opened(smaller: Path) -> None:
    (smaller / "model.safetensors").unlink()
    os.mkfifo(smaller / "model.safetensors")
    with pytest.raises(HeadcountError, match=r"not a file of weights|pipe"):
        load_external(smaller, run_adapter=True)
    os.mkfifo("pipe.pth")
    with pytest.raises(InputError, match="not a file of weights"):
        load_external(written("one", more="checkpoint = '../pipe.pth'"))
    for weights in ("pipe.pth", "one"):
        assert main(["adapt", "one/model.py:Net", "--checkpoint", weights]) == 2


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_a_forward_that_fails_later_is_told_with_its_line(n: int, capsys: pytest.CaptureFixture[str]) -> None:
    name = written("one")
    model, first = Path("one/model.py"), "x = self.embed(ids)"
    tired = f"self.calls += 1\n        assert self.calls < {n}, 'tired'\n        {first}"
    model.write_text(model.read_text().replace(first, tired))
    assert main(["ablate", name, "--replacements", "zero", "--quiet"]) in (1, 2)
    told = capsys.readouterr().err
    assert "tired" in told
    assert "Traceback" not in told


def test_an_adapter_in_a_folder_whose_name_is_no_text() -> None:
    name = written("one")
    Path("one").rename("d\udcff")
    assert main(["ablate", name.replace("one", "d\udcff", 1), "--replacements", "zero", "--quiet"]) == 0


def test_results_of_an_adapter_that_was_changed_are_kept_beside() -> None:
    """The same weights, but another question: what is asked of a model stands in its adapter."""
    one = ablate_heads(written("one"), replacements=["zero"], save=True, quiet=True)
    adapter = Path("one/my_adapter.py")
    adapter.write_text(f"{adapter.read_text()}\n# asked otherwise\n")
    other = ablate_heads("one/my_adapter.py:Model", replacements=["zero"], save=True, quiet=True)
    assert one.result.weights_sha256 == other.result.weights_sha256
    assert one.data != other.data
