"""How to reproduce the report: the command for each result, rebuilt from the settings stored with the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from headcount.describing.blocks import Block, Commands, Paragraph, Section
from headcount.describing.evaluation import main_share
from headcount.describing.report import IN_MEMORY, ModelResults, ReportResults
from headcount.errors import argument
from headcount.hooks import REPLACEMENTS
from headcount.limits import LOSS
from headcount.runs.config import RunConfig

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import Stretch

SAMPLE = "sample:"
PER_LENGTH = 400
"""Default number of examples per length on which the heads of a classifier are ablated."""


def commands_of(model: ModelResults) -> list[str]:
    """Return the commands that reproduce the results of one model, except accuracy by length (`headcount stretch`)."""
    name = argument(model.name)
    commands = [train_command(model), _evaluate(model, name), *_heads(model, name), ablate_command(model)]
    commands += [prune_command(model), _positions(model, name)]
    commands.append(f"headcount audit {name}{_n_flag(model, model.audit.n)}" if model.audit else "")
    return [command for command in commands if command]


def report_command(models: Sequence[ModelResults], *, is_thorough: bool = False) -> str:
    """Return the command that makes a report on these models; for models in memory, return the Python call."""
    if any(each.name == IN_MEMORY for each in models):
        return f"headcount.report(...{', thorough=True' if is_thorough else ''})"
    names = [argument(each.name) for each in models]
    data = dict.fromkeys(each.data_flags for each in models if each.data_flags)
    texts = dict.fromkeys(on_flag(text) for each in models for text in each.texts)
    return " ".join(["headcount report", *names, *data, *texts, *(["--thorough"] if is_thorough else [])])


def train_command(model: ModelResults) -> str:
    """Return the command that trains a model with its settings; empty for samples, pruned and external models."""
    settings = model.settings
    if not settings or model.task is None or model.name.startswith(SAMPLE) or settings.get("pruned"):
        return ""
    config = RunConfig.build(model.task).to_dict()
    defaults = {name: value for part in ("task", "model", "training") for name, value in config[part].items()}
    flags = [_flag(name, settings[name]) for name in defaults if name in settings and settings[name] != defaults[name]]
    seed = [f"--seed {settings['seed']}"] if settings.get("seed") else []
    folder = model.name
    if (step := settings.get("snapshot")) is not None:
        folder, flags = model.name.rpartition("@")[0], [*flags, f"--snapshots {step}"]
    return " ".join(["headcount train", model.task, *seed, *flags, f"-o {argument(folder)}"])


def _flag(name: str, value: Any) -> str:
    """Return a setting of a training run as a command-line flag of `headcount train`.

    >>> _flag("n_heads", 2), _flag("start_token", False), _flag("window", None), _flag("negatives", "a:1,b:2")
    ('--n-heads 2', '--no-start-token', '--window none', '--negatives a:1,b:2')
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value))
    return f"--{flag} {argument('none' if value is None else value)}"


def _n_flag(model: ModelResults, n: int) -> str:
    """Return the flag `--n` with a number of examples; empty if n is the size of the test set."""
    tested = None if model.evaluation is None else main_share(model.evaluation)
    return f" --n {n}" if tested is not None and tested.n != n else ""


def _evaluate(model: ModelResults, name: str) -> str:
    if model.evaluation is None:
        return ""
    split = "" if model.evaluation.split == "test" else f" --split {argument(model.evaluation.split)}"
    return f"headcount evaluate {name}{split}"


def _heads(model: ModelResults, name: str) -> list[str]:
    """Return the commands that verify a model, show its attention patterns, and measure what its heads attend to."""
    commands = [f"headcount verify {name}"] if model.certificate else []
    if model.task is not None and any(each.example is None for each in model.patterns):
        commands.append(f"headcount heads {name} --all-test")
    shown = [*model.texts, *(each.example for each in model.patterns)]
    example = next((each for each in shown if each is not None), None)
    commands += [" ".join(("headcount heads", name, on_flag(example)))] if example is not None else []
    return commands + ([f"headcount heads {name} --stats"] if model.stats or model.roles else [])


def on_flag(example: str) -> str:
    """Return the flag `--on` with an example, quoted for a shell; `--on=` if the example begins with a dash."""
    return f"--on={quote(example)}" if example.startswith("-") else f"--on {quote(example)}"


def ablate_command(model: ModelResults) -> str:
    """Return the command that repeats the ablation of a model with the same settings; empty without an ablation."""
    result = model.ablation
    if result is None:
        return ""
    lengths = [str(each.length) for each in result.conditions if each.length is not None]
    flags = {
        "replacements": "" if set(result.replacements) >= set(REPLACEMENTS.names()) else ",".join(result.replacements),
        "lengths": ",".join(lengths),
        "metric": "" if result.metric in ("free-running", "accuracy") or model.task is None else result.metric,
    }
    settings = "".join(f" --{flag} {argument(value)}" for flag, value in flags.items() if value)
    n = result.conditions[0].n
    settings += (f" --n {n}" if n != PER_LENGTH else "") if lengths else _n_flag(model, n)
    settings += " --examples" if any(each.failures for each in result.conditions) else ""
    return f"headcount ablate {argument(model.name)}{_data_flag(model)}{settings}"


def _data_flag(model: ModelResults) -> str:
    """Return the flags that name the data of a model without a task: ` --data FILE`; empty for a model with a task."""
    return "" if model.task is not None else f" {model.data_flags or '--data FILE'}"


def prune_command(model: ModelResults) -> str:
    """Return the command that repeats the pruning of a model with the same settings; empty without a pruning."""
    result = model.pruning
    if result is None:
        return ""
    loss = "" if result.loss == LOSS else f" --loss {result.loss:g}"
    loss += "" if result.share is None else f" --share {result.share:g}"
    budget = f" --budget {result.budget:g}s" if result.budget else ""
    return f"headcount prune {argument(model.name)}{_data_flag(model)}{loss}{_n_flag(model, result.n)}{budget}"


def _positions(model: ModelResults, name: str) -> str:
    """Return the command that shows a model's position encoding, with `--n` if the number of positions is unusual."""
    shown = model.positions
    if shown is None:
        return ""
    default = min(max(2 * shown.n_trained, 32), 128)
    return f"headcount positions {name}{'' if shown.n_positions == default else f' --n {shown.n_positions}'}"


def stretch_command(models: Sequence[ModelResults]) -> str:
    """Return one `headcount stretch` command for all models that were measured with the settings of the first model."""
    results = [(argument(each.name), each.stretch) for each in models if each.stretch is not None]
    settings = _stretch_settings(results[0][1])
    names = [name for name, result in results if _stretch_settings(result) == settings]
    flags = "".join(f" --{flag} {value}" for flag, value in settings.items() if value)
    return f"headcount stretch {' '.join(names)}{flags}"


def stretch_commands(models: Sequence[ModelResults]) -> list[str]:
    """Return `headcount stretch` commands, one for each group of models that were measured with equal settings."""
    groups: dict[str, list[ModelResults]] = {}
    for each in models:
        if each.stretch is not None:
            groups.setdefault(repr(_stretch_settings(each.stretch)), []).append(each)
    return [stretch_command(each) for each in groups.values()]


def _stretch_settings(result: Stretch) -> Mapping[str, str]:
    """Return the flags of `headcount stretch` and their values for a result; an empty value means the default."""
    lengths = sorted({cell.length for cell in result.cells} | set(result.refused_lengths))
    kinds, sizes = dict.fromkeys(cell.negative for cell in result.cells), {cell.n for cell in result.cells}
    return {
        "lengths": ",".join(map(str, lengths)),
        "negatives": "" if len(kinds) == 5 else ",".join(kinds),
        "n": str(sizes.pop()) if len(sizes) == 1 else "",
        "draw": str(result.draw) if result.draw else "",
    }


# --- the section of a report ------------------------------------------------------------------------------------------


def section(results: ReportResults) -> Section:
    """Return the section with the commands that reproduce the results of each model, and the whole report."""
    blocks: list[Block] = [
        Paragraph(
            "Results with a seed are reproducible on the same kind of machine. A report reads the results that are "
            "stored with a model and measures the others, so the last command does everything but the training."
        )
    ]
    for model in results.models:
        if commands := commands_of(model):
            blocks.append(Commands(tuple(commands), f"{model.title}{_origin(model)}:"))
    if commands := stretch_commands(results.models):
        blocks.append(Commands(tuple(commands), "Accuracy by length:"))
    blocks.append(Commands((report_command(results.models),), "This report:"))
    left_out = [(each.title, "; ".join(each.not_measured)) for each in results.models if each.not_measured]
    for title, words in left_out:
        blocks.append(Paragraph(f"To save time, these were not measured for {title}: {words}."))
    return Section("reproduce", "How to reproduce this report", tuple(blocks))


def _origin(model: ModelResults) -> str:
    """Return a clause on why the report has no training command for a model: it is a sample, pruned or external."""
    if train_command(model):
        return ""
    if model.name.startswith(SAMPLE):
        return ", which comes with the package"
    return ", which was cut from another run" if model.settings.get("pruned") else ", which was not trained here"


PART = section
