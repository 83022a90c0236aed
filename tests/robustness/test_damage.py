"""Run and model folders with every file damaged in every way: the same numbers as before, or a message."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import safetensors.torch
import torch
from worker import Prediction, Worker

pytestmark = pytest.mark.slow  # models of others, or many processes

SHORT, LONG = 40, 1600
MOST_TOLD = 30
READERS: dict[str, tuple[str, ...]] = {
    "run": ("predict {} 3+4", "predict {} 3+4", "heads {}", "evaluate {}"),
    "sorter": ("predict {} '3 5 4'", "heads {}", "stretch {} --lengths 4 --n 4 --negatives shuffle --quiet"),
    "unfinished": ("train addition -o {} --resume --quiet",),
    "bert": ("heads {}", "ablate {} --data data.tsv --n 4 --replacements zero --quiet"),
    "gpt2": ("heads {}", "heads {} --on 'the cat'"),
    "cut": ("heads {}", "ablate {} --data data.tsv --n 4 --replacements zero --quiet"),
    "adapted": ("heads {} --run-adapter", "ablate {} --run-adapter --n 4 --replacements zero --quiet"),
}
"""What reads each kind of folder."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**70,
    1e308,
    "",
    "x",
    [],
    [1, "a"],
    {},
    {"a": {}},
    [[["E0H0"]]],
    "../run",
)
Damage = Callable[[Path, Random], None]


# --- a file -----------------------------------------------------------------------------------------------------------


def truncate(file: Path, rng: Random) -> None:
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size or 1)])


def empty(file: Path, rng: Random) -> None:
    file.write_bytes(b"")


def flip(file: Path, rng: Random) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(bytes(data))


def remove(file: Path, rng: Random) -> None:
    file.unlink()


def folder(file: Path, rng: Random) -> None:
    file.unlink()
    file.mkdir()


def pipe(file: Path, rng: Random) -> None:
    file.unlink()
    os.mkfifo(file)


def device(file: Path, rng: Random) -> None:
    file.unlink()
    file.symlink_to(rng.choice(("/dev/zero", "/dev/null", "/dev/full")))


def loop(file: Path, rng: Random) -> None:
    file.unlink()
    file.symlink_to(file.name)


def other_json(file: Path, rng: Random) -> None:
    file.write_text(rng.choice(("[]", "7", "null", '"x"', "[1, 2]", "NaN", "[" * 100_000, '{"a":' * 100_000, "{}")))


def long_text(file: Path, rng: Random) -> None:
    file.write_text(json.dumps("x" * 10_000_000))


def change_json(file: Path, rng: Random) -> None:
    """One value of another type, or one key less, anywhere."""
    data = json.loads(file.read_bytes())
    owner, key = rng.choice(list(_places(data)))
    if rng.random() < 0.3:
        del owner[key]
    else:
        owner[key] = rng.choice(VALUES)
    file.write_text(json.dumps(data))


def change_header(file: Path, rng: Random) -> None:
    """The same in the header of a file of weights."""
    data = file.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    owner, key = rng.choice(list(_places(header)))
    owner[key] = rng.choice(VALUES)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n :])


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        yield data, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


ANY: tuple[Damage, ...] = (truncate, empty, flip, remove, folder, pipe, device, loop, other_json)


def damages_of(file: Path) -> tuple[Damage, ...]:
    """What can be done to a file of that kind."""
    if file.suffix == ".json":
        return (*ANY, long_text, *[change_json] * 8)
    return (*ANY, *[change_header] * 4) if file.suffix == ".safetensors" else ANY


def reseal(home: Path) -> None:
    """Give the manifest the digests of the files as they are now, so that what they say is reached."""
    manifest = json.loads((home / "manifest.json").read_bytes())
    for name in manifest["files"]:
        manifest["files"][name] = hashlib.sha256((home / name).read_bytes()).hexdigest()
    (home / "manifest.json").write_text(json.dumps(manifest))


# --- cases ------------------------------------------------------------------------------------------------------------


def cases(stock: Path, seed: int) -> Iterator[tuple[str, str, Damage, bool, str, Random]]:
    """Kind, file, damage, whether the digests are put right, the command, and what decides the rest."""
    for number in range(10**9):
        rng = Random(f"{seed}-{number}")
        kind = rng.choice(list(READERS))
        files = sorted(path for path in (stock / kind).rglob("*") if path.is_file() and path.stat().st_size)
        # JSON files twice: there is more to be wrong in them.
        file = rng.choice([*files, *(path for path in files if path.suffix == ".json")])
        damage = rng.choice(damages_of(file))
        resealed = kind in ("run", "sorter") and damage in (change_json, change_header) and file.stem != "manifest"
        command = rng.choice(READERS[kind])
        yield kind, str(file.relative_to(stock / kind)), damage, resealed, command, rng


def test_damaged_folders(
    stock: Path, worker: Worker, tmp_path: Path, seed: int, long: bool, count: Counter[str]
) -> None:
    """`pytest tests/robustness --long`: 1,600 of them; `--attack-seed N`: others."""
    whole: dict[tuple[str, str], Any] = {}
    faults = []
    for number, case in enumerate(islice(cases(stock, seed), LONG if long else SHORT)):
        kind, file, damage, resealed, command, rng = case
        if (kind, command) not in whole:
            whole[kind, command] = _numbers(_read(worker, _copy(stock, kind, tmp_path), command))
        home = _copy(stock, kind, tmp_path)
        damage(home / file, rng)
        if resealed:
            reseal(home)
        prediction = _read(worker, home, command)
        # Files of others and an unfinished run's settings have no digests; settings sealed anew may mean another model.
        theirs = kind not in ("run", "sorter", "unfinished") or (kind, file) == ("unfinished", "config.json")
        same = resealed or theirs or _numbers(prediction) == whole[kind, command]
        fault = prediction.fault or (
            "" if prediction.code or same else f"other numbers than before: {prediction.out[:500]}"
        )
        count["fault" if fault else f"exit {prediction.code}"] += 1
        if fault:
            what = f"{damage.__name__} {kind}/{file}{', resealed' * resealed}: {command}"
            faults.append(f"--attack-seed {seed}, case {number}, {what}\n" + "\n".join(fault.strip().splitlines()[-4:]))
    assert not faults, f"{len(faults)} of {count.total()}:\n" + "\n\n".join(each[:1500] for each in faults[:MOST_TOLD])
    unread = [key for key, numbers in whole.items() if numbers is None]
    assert not unread, "what is whole could not be read"


def _copy(stock: Path, kind: str, tmp_path: Path) -> Path:
    """A working folder with a model to damage, as `home`, and data beside it."""
    scratch = tmp_path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name in ("data.tsv", "own_model.py", "my_adapter.py"):
        shutil.copy(stock / name, scratch)
    shutil.copytree(stock / kind, scratch / kind)
    return scratch / kind


def _read(worker: Worker, home: Path, command: str) -> Prediction:
    return worker.run([*shlex.split(command.format(home.name)), "--json"], home.parent, seconds=60)


def _numbers(prediction: Prediction) -> Any:
    """What was found, without where it was written; None if nothing was."""
    if prediction.code != 0:
        return None
    data = json.loads(prediction.out)
    return {key: value for key, value in data.items() if key not in ("files", "figures", "data", "seconds")}


# --- weights that are no numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        ("run", ["predict {} 3+4", "evaluate {}", "heads {} --on 3+4"]),
        ("sorter", ["predict {} '3 5 4'"]),
        ("bert", ["ablate {} --data data.tsv --n 4 --replacements zero", "heads {} --on 'the cat'"]),
    ],
)
def test_weights_that_are_no_numbers_are_named(
    stock: Path, worker: Worker, tmp_path: Path, kind: str, commands: list[str], number: str
) -> None:
    home = _copy(stock, kind, tmp_path)
    weights = safetensors.torch.load((home / "model.safetensors").read_bytes())
    name = next(name for name in sorted(weights) if name.endswith(("key.bias", "out.bias", "bias")))
    weights[name].view(-1)[0] = float(number)
    (home / "model.safetensors").write_bytes(safetensors.torch.save(weights, {"format": "pt"}))
    if kind != "bert":
        reseal(home)
    for command in commands:
        prediction = _read(worker, home, command)
        assert prediction.code == 2, (prediction.code, prediction.raised or prediction.out)
        assert name in prediction.err


def test_a_settings_value_of_a_billion_is_refused_before_memory_is_asked_for(
    stock: Path, worker: Worker, tmp_path: Path
) -> None:
    for kind, setting in [
        ("run", "d_model"),
        ("run", "n_encoder_layers"),
        ("sorter", "n_values"),
        ("bert", "num_labels"),
    ]:
        home = _copy(stock, kind, tmp_path)
        data = json.loads((home / "config.json").read_bytes())
        for part in (data, data.get("task", {}), data.get("model", {})):
            if setting in part or kind == "bert":
                part[setting] = 10**9
        for name in ("id2label", "label2id"):
            data.pop(name, None)
        (home / "config.json").write_text(json.dumps(data))
        if kind != "bert":
            reseal(home)
        prediction = _read(worker, home, "heads {}")
        assert (prediction.code, prediction.raised) == (2, ""), (kind, setting)
        assert prediction.err.startswith("error:")


def test_the_changes_change_something(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    for damage in damages_of(file):
        file.write_bytes(safetensors.torch.save({"w": torch.arange(6.0)}))
        before = file.read_bytes()
        damage(file, Random(2))
        assert file.is_symlink() or not file.is_file() or file.read_bytes() != before, damage.__name__
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
