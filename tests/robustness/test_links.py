"""Links and precious things under every name that headcount writes: what they lead to stays as it was."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from worker import Prediction, Worker

pytestmark = pytest.mark.slow  # models of others, or many processes

TRAIN = "train addition --digits 1 --d-model 8 --n-heads 2 --d-ff 8 --n-validation 10 --n-test 10 --n-encoder-layers 1"
TRAIN += " --n-decoder-layers 1 --batch-size 4 --steps 2 --checkpoint-every 1 --device cpu --quiet"
VERBS = {
    "train": f"{TRAIN} -o small",
    "resume": "train addition -o unfinished --resume --quiet",
    "prune": "prune run --heads E0H1 -o small --quiet",
    "evaluate": "evaluate run",
    "verify": "verify run --quiet",
    "ablate": "ablate run --n 6 --replacements zero --quiet",
    "sample": "ablate sample:addition --n 6 --replacements zero --quiet",
    "stretch": "stretch sorter --lengths 4 --n 4 --negatives shuffle --quiet",
    "adapt": "adapt own_model.py:Net -o small.py",
    "bert": "ablate bert --data data.tsv --n 4 --replacements zero --quiet",
    "cut": "prune bert --data data.tsv --n 8 --heads L0H1 -o small --quiet",
    "heads": "heads run --on 3+4",
    "positions": "positions sorter --n 4",
}
ALWAYS = ("train", "resume", "prune", "evaluate", "adapt", "cut")
"""In the short form too."""
RANDOM = re.compile(r"[0-9a-f]{8,}|tfevents")
"""Names that are never the same again: nothing can be planted under them."""
NAMES: dict[str, tuple[list[str], list[str], list[str]]] = {}
"""What each verb writes: names that stay, names of drafts, locks."""
Plant = Callable[[Path, Path], None]


@pytest.fixture
def scratch(stock: Path, tmp_path: Path) -> Path:
    return _fresh(stock, tmp_path)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder with a file in it, elsewhere."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "diary.txt").write_text("dear diary")
    return folder


def link_to_file(path: Path, precious: Path) -> None:
    path.symlink_to(precious / "diary.txt")


def link_to_nothing(path: Path, precious: Path) -> None:
    path.symlink_to(precious / "not-there")


def link_to_folder(path: Path, precious: Path) -> None:
    path.symlink_to(precious)


def hard_link(path: Path, precious: Path) -> None:
    os.link(precious / "diary.txt", path)


PLANTS: tuple[Plant, ...] = (link_to_file, link_to_nothing, hard_link, link_to_folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every verb in the long form."""
    if "plant" in metafunc.fixturenames:
        long = metafunc.config.getoption("--long")
        metafunc.parametrize("plant", PLANTS if long else PLANTS[:2], ids=lambda plant: plant.__name__)
        metafunc.parametrize("verb", VERBS if long else ALWAYS)


def test_nothing_is_written_through_links(
    stock: Path,
    worker: Worker,
    tmp_path: Path,
    precious: Path,
    verb: str,
    plant: Plant,
    long: bool,
    count: Counter[str],
) -> None:
    """All names of drafts at once, then all final names and locks; in the long form each name by itself too."""
    argv = shlex.split(VERBS[verb])
    if verb not in NAMES:
        NAMES[verb] = _written(worker, argv, _fresh(stock, tmp_path))
    final, drafts, locks = NAMES[verb]
    groups = [each for each in (drafts, final, locks) if each]
    groups += [[name] for name in (*drafts, *final)] if long else []
    before = _state(precious)
    for group in groups:
        scratch = _fresh(stock, tmp_path)
        # A smaller model goes into no folder that holds anything at all.
        names = [name for name in group if verb == "train" or not name.startswith("small/")]
        planted = [name for name in names if _plant(plant, scratch, name, precious)]
        prediction = worker.run(argv, scratch, seconds=60)
        count["planted"] += len(planted)
        assert not prediction.fault, (names, prediction.fault)
        assert _state(precious) == before, (names, prediction.code, prediction.err)
        if group is drafts:
            expected = int(verb == "verify")  # of a model that is wrong
            assert prediction.code == expected, f"a link under a name that is nobody's business: {prediction.err}"
            gone = [name for name in planted if not (scratch / name).is_symlink() and not (scratch / name).exists()]
            assert not gone, "removed, though this call did not make them"


@pytest.mark.parametrize("verb", ["train", "prune", "cut"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_folder_of_ones_own_that_looks_like_a_draft_is_left_alone(
    stock: Path, worker: Worker, scratch: Path, verb: str, fails: bool
) -> None:
    mine = scratch / ".small.draft"
    mine.mkdir()
    (mine / "config.json").write_text("mine")
    (mine / "model.safetensors").write_text("mine too")
    (scratch / "small").write_text("in the way") if fails else None
    before = _state(mine)
    prediction = worker.run(shlex.split(VERBS[verb]), scratch)
    assert not prediction.fault
    assert prediction.code == (2 if fails else 0), prediction.err
    assert _state(mine) == before
    assert fails or not (scratch / "small" / "notes.txt").exists()


def test_a_draft_that_a_killed_prune_left_is_not_adopted(stock: Path, worker: Worker, scratch: Path) -> None:
    """Two models in one folder, which opened without complaint."""
    left = scratch / ".small.draft"
    shutil.copytree(scratch / "sorter", left)
    (left / "manifest.json").unlink()
    (left / "odd.txt").write_text("of another model")
    assert worker.run(shlex.split(VERBS["prune"]), scratch).code == 0
    assert not (scratch / "small" / "odd.txt").exists()
    told = worker.run(["predict", "small", "3+4", "--json"], scratch)
    shutil.rmtree(left)
    assert worker.run([*shlex.split(VERBS["prune"])[:-2], "clean", "--quiet"], scratch).code == 0
    assert told.out == worker.run(["predict", "clean", "3+4", "--json"], scratch).out


@pytest.mark.parametrize("name", ["results", "figures"])
def test_a_linked_folder_of_results_keeps_what_else_is_in_it(
    worker: Worker, scratch: Path, precious: Path, name: str
) -> None:
    """Results may be kept on another disk; but nothing there is lost, and no draft stays behind."""
    (scratch / "run" / name).symlink_to(precious)
    before = (precious / "diary.txt").stat()
    prediction = worker.run(shlex.split(VERBS["evaluate"]), scratch)
    assert not prediction.fault
    after = (precious / "diary.txt").stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert not [path.name for path in precious.iterdir() if path.name.startswith(".")]


def _fresh(stock: Path, tmp_path: Path) -> Path:
    scratch = tmp_path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(stock, scratch)
    return scratch


def _written(worker: Worker, argv: list[str], scratch: Path) -> tuple[list[str], list[str], list[str]]:
    """Names that a clean run of a verb makes: those that stay, those of drafts as they are or once were, and locks."""
    before = {path: path.stat().st_mtime_ns for path in scratch.rglob("*")}
    prediction: Prediction = worker.run(argv, scratch, seconds=60)
    assert prediction.code in (0, 1), prediction.err or prediction.raised  # 1: the verdict on a model that is wrong
    now = [path for path in scratch.rglob("*") if path.is_file() and before.get(path) != path.stat().st_mtime_ns]
    now = [path for path in now if not RANDOM.search(path.name)]
    traced = [Path(path) for path in prediction.written if path.startswith(f"{scratch}/")]
    passing = {path for path in traced if not path.exists() and not RANDOM.search(path.name)}
    passing |= {path.with_name(f".{path.name}.draft") for path in now}
    if "-o" in argv:
        passing |= {scratch / f".{argv[argv.index('-o') + 1]}.draft"}
    locks = [path for path in now if path.name == ".lock"]
    kinds = (set(now) - set(locks), passing, locks)
    final, drafts, locked = (sorted(str(path.relative_to(scratch)) for path in kind) for kind in kinds)
    return final, drafts, locked


def _plant(plant: Plant, scratch: Path, name: str, precious: Path) -> bool:
    """Put it there, in place of a file; in a folder that is yet to be made only what does not make it a taken one."""
    path = scratch / name
    hidden = path.parent.name == "small" and path.name.startswith(".")
    if path.is_symlink() or path.is_dir() or (Path(name).parts[0] == "small" and not hidden):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    plant(path, precious)
    return True


def _state(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    kept = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        kept[path.name] = (stat.st_ino, stat.st_size, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return kept
