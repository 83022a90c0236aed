"""The commands that make results again, read off what the results say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from headcount.errors import argument
from headcount.hooks import REPLACEMENTS
from headcount.limits import LOSS
from headcount.runs.config import RunConfig

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import Stretch
    from headcount.describing.story import Subject

SAMPLE = "sample:"
PER_LENGTH = 400
"""Examples of each length on which a classifier's heads are ablated unless more are asked for."""


def commands_of(subject: Subject) -> list[str]:
    """All that is known of one model, in the order in which it is made; measuring lengths is for several at once."""
    name = argument(subject.name)
    found = [train_command(subject), _evaluate(subject, name), *_heads(subject, name), ablate_command(subject)]
    found += [prune_command(subject), _positions(subject, name)]
    found.append(f"headcount audit {name}{_some(subject, subject.audit.n)}" if subject.audit else "")
    return [each for each in found if each]


def train_command(subject: Subject) -> str:
    """With every setting that is not the default; nothing for what comes with the package, was cut, or is others'."""
    settings = subject.settings
    if not settings or subject.task is None or subject.name.startswith(SAMPLE) or settings.get("pruned"):
        return ""
    default = RunConfig.build(subject.task).to_dict()
    usual = {name: value for part in ("task", "model", "training") for name, value in default[part].items()}
    flags = [_flag(name, settings[name]) for name in usual if name in settings and settings[name] != usual[name]]
    seed = [f"--seed {settings['seed']}"] if settings.get("seed") else []
    return " ".join(["headcount train", subject.task, *seed, *flags, f"-o {argument(subject.name)}"])


def _flag(name: str, value: Any) -> str:
    """`--n-heads 2`, `--no-start-token`, `--window none`.

    >>> _flag("n_heads", 2), _flag("start_token", False), _flag("window", None), _flag("negatives", "a:1,b:2")
    ('--n-heads 2', '--no-start-token', '--window none', '--negatives a:1,b:2')
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value))
    return f"--{flag} {argument('none' if value is None else value)}"


def _some(subject: Subject, n: int) -> str:
    """`--n`, where it is known that these are not all examples of the test set."""
    found = subject.evaluation
    whole = getattr(getattr(found, "exact", None), "teacher_forced", None) or getattr(
        getattr(found, "accuracy", None), "right", None
    )
    return f" --n {n}" if whole is not None and whole.n != n else ""


def _evaluate(subject: Subject, name: str) -> str:
    if subject.evaluation is None:
        return ""
    split = "" if subject.evaluation.split == "test" else f" --split {argument(subject.evaluation.split)}"
    return f"headcount evaluate {name}{split}"


def _heads(subject: Subject, name: str) -> list[str]:
    """Every example could be asked for; one shows how."""
    found = [f"headcount verify {name}"] if subject.certificate else []
    if subject.task is not None and any(each.example is None for each in subject.patterns):
        found.append(f"headcount heads {name} --all-test")
    shown = [*subject.texts, *(each.example for each in subject.patterns)]
    example = next((each for each in shown if each is not None), None)
    found += [" ".join(("headcount heads", name, on_flag(example)))] if example is not None else []
    return found + ([f"headcount heads {name} --stats"] if subject.stats or subject.roles else [])


def on_flag(example: str) -> str:
    """Also of a text that begins as a flag does."""
    return f"--on={quote(example)}" if example.startswith("-") else f"--on {quote(example)}"


def ablate_command(subject: Subject) -> str:
    """As its heads were ablated; nothing if they were not."""
    result = subject.ablation
    if result is None:
        return ""
    lengths = [str(each.length) for each in result.conditions if each.length is not None]
    flags = {
        "replacements": "" if set(result.replacements) >= set(REPLACEMENTS.names()) else ",".join(result.replacements),
        "lengths": ",".join(lengths),
        "metric": "" if result.metric in ("free-running", "accuracy") or subject.task is None else result.metric,
    }
    told = "".join(f" --{flag} {argument(value)}" for flag, value in flags.items() if value)
    n = result.conditions[0].n
    many = (f" --n {n}" if n != PER_LENGTH else "") if lengths else _some(subject, n)
    explained = " --examples" if any(each.failures for each in result.conditions) else ""
    return f"headcount ablate {argument(subject.name)}{_on_data(subject)}{told}{many}{explained}"


def _on_data(subject: Subject) -> str:
    """Nothing for models that have a task of their own."""
    return "" if subject.task is not None else f" {subject.data_flags or '--data FILE'}"


def prune_command(subject: Subject) -> str:
    """As its heads were removed together; nothing if they were not."""
    result = subject.pruning
    if result is None:
        return ""
    loss = "" if result.loss == LOSS else f" --loss {result.loss:g}"
    loss += "" if result.share is None else f" --share {result.share:g}"
    budget = f" --budget {result.budget:g}s" if result.budget else ""
    return f"headcount prune {argument(subject.name)}{_on_data(subject)}{loss}{_some(subject, result.n)}{budget}"


def _positions(subject: Subject, name: str) -> str:
    shown = subject.positions
    if shown is None:
        return ""
    usual = min(max(2 * shown.n_trained, 32), 128)
    return f"headcount positions {name}{'' if shown.n_positions == usual else f' --n {shown.n_positions}'}"


def stretch_command(subjects: Sequence[Subject]) -> str:
    """One for models that were measured alike; of others, those that were measured as the first was."""
    found = [(argument(each.name), each.stretch) for each in subjects if each.stretch is not None]
    names = [name for name, each in found if _asked(each) == _asked(found[0][1])]
    flags = "".join(f" --{flag} {value}" for flag, value in _asked(found[0][1]).items() if value)
    return f"headcount stretch {' '.join(names)}{flags}"


def stretch_commands(subjects: Sequence[Subject]) -> list[str]:
    """As many as there are ways in which models were measured."""
    groups: dict[str, list[Subject]] = {}
    for each in subjects:
        if each.stretch is not None:
            groups.setdefault(repr(_asked(each.stretch)), []).append(each)
    return [stretch_command(each) for each in groups.values()]


def _asked(result: Stretch) -> Mapping[str, str]:
    lengths = sorted({cell.length for cell in result.cells} | set(result.refused_lengths))
    kinds, sizes = dict.fromkeys(cell.negative for cell in result.cells), {cell.n for cell in result.cells}
    return {
        "lengths": ",".join(map(str, lengths)),
        "negatives": "" if len(kinds) == 4 else ",".join(kinds),
        "n": str(sizes.pop()) if len(sizes) == 1 else "",
        "draw": str(result.draw) if result.draw else "",
    }
