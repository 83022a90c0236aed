"""The report of a lab, as Markdown with pictures beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headcount.errors import argument
from headcount.views.ablation import ablation_markdown, markdown_table
from headcount.views.length_generalisation import accuracy_text, mark
from headcount.views.pruning import pruning_notes
from headcount.views.training import accuracy_rows

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.exhaustive import Certificate
    from headcount.analysis.length_generalisation import Stretch
    from headcount.analysis.pruning import Pruning
    from headcount.training.evaluation import Evaluation, WrongAnswer

ALONE = "What each head is worth alone"
SHOWN = 50
"""Wrong answers listed; all of them are in the result file."""


def write_report(parts: Sequence[str]) -> str:
    """One page of the parts that were run."""
    return "\n\n".join(["# headcount lab", *parts]) + "\n"


def addition_part(
    run: str,
    evaluation: Evaluation,
    certificate: Certificate,
    pruning: Pruning | None,
    pictures: Mapping[str, Sequence[Path]],
    folder: Path,
    *,
    ablation: Ablation,
    examples: tuple[str, str],
) -> str:
    """An adder; picture paths are relative to `folder`, and `examples` are sums that it can be asked."""
    parts = [
        "## Addition",
        f"Run `{run}`, weights `{certificate.weights_sha256[:16]}`.",
        "### Is it right?",
        *([f"**The audit found a fault:** {evaluation.audit}."] if evaluation.audit else []),
        verdict(certificate),
        f"On the {evaluation.split} set, which it never saw (95 % Wilson intervals):",
        markdown_table(["group", "n", *evaluation.COLUMNS.values()], accuracy_rows(evaluation)),
        "For a sound model the two columns agree on exact match: fed the right prefix, the first wrong digit is the "
        "same either way. A gap would be a fault in the pipeline.",
        *_wrong(certificate.wrong),
        "### Which heads count?",
        "\n".join(f"- {note.strip()}" for note in pruning_notes(pruning)) if pruning else "It is hardly ever right.",
        *_pictures(pictures, folder, {ALONE: ablation_markdown(ablation).rstrip()}),
        "### Go on",
        "\n".join(f"    {command}" for command in _commands(run, examples, can_prune=pruning is not None)),
    ]
    return "\n\n".join(parts)


def _commands(run: str, examples: tuple[str, str], *, can_prune: bool) -> list[str]:
    """What can be done with an adder next; a model that is hardly ever right cannot be pruned."""
    small = argument(f"{run}-small")
    run, one, other = map(argument, (run, *examples))
    asked = [f"predict {run} {one}", f"heads {run} --on {other}", f"verify {run}", f"ablate {run} --examples"]
    pruned = [f"prune {run} --loss 0.01 -o {small}"] if can_prune else []
    return [f"headcount {each}" for each in (*asked, *pruned)]


def sortedness_part(stretches: Mapping[str, Stretch], pictures: Mapping[str, Sequence[Path]], folder: Path) -> str:
    """How far each model reaches, on the easiest and on the hardest negatives."""
    far = next(iter(stretches.values()))
    lengths = list(dict.fromkeys(cell.length for cell in far.cells))
    trained = "-".join(map(str, far.trained or ()))
    parts = [
        "## Sortedness",
        f"Is a sequence non-decreasing? Every model was trained on lengths {trained} only. Half of the examples of "
        f"each cell are sorted (n = {far.cells[0].n:,}, draw {far.draw}, 95 % Wilson intervals); where a model says "
        "one thing to everything, that is said instead of a number. `generic` models were given nothing; the others "
        "were given what is named, so do not rank one kind against the other.",
    ]
    for kind, note in (
        ("shuffle", "Full shuffles, the easiest: broken nearly everywhere"),
        ("adjacent", "One adjacent swap, the hardest: a single broken pair"),
    ):
        rows = []
        for name, found in stretches.items():
            cells = {cell.length: accuracy_text(cell) for cell in found.cells if cell.negative == kind}
            rows.append([f"{name} ({mark(found)})", *(cells.get(length, "refused") for length in lengths)])
        parts += [f"### {note}", markdown_table(["model", *map(str, lengths)], rows)]
    run = argument(far.name)
    parts += [
        *_pictures(pictures, folder),
        "### Go on",
        "    headcount predict sample:sortedness '3 5 5 9'",
        f"    headcount stretch {run}\n    headcount positions {run}",
    ]
    return "\n\n".join(parts)


def _pictures(
    pictures: Mapping[str, Sequence[Path]], folder: Path, texts: Mapping[str, str] | None = None
) -> list[str]:
    """Under its title, what there is to read and then what there is to see."""
    shown, texts = [], texts or {}
    for title, files in pictures.items():
        text = [texts[title]] if title in texts else []
        shown += [f"### {title}", *text, *(f"![{f.stem}]({f.relative_to(folder).as_posix()})" for f in files)]
    return shown


def verdict(certificate: Certificate) -> str:
    """One paragraph: is every answer right, how do we know, and what does the precision of numbers do to it?"""
    found, made = certificate, certificate.environment
    right, narrowest = f"{found.errors:,} wrong", ""
    if not found.errors:
        right, narrowest = "every one right", " The narrowest win of a right digit over its best rival was "
        narrowest += f"{found.least_margin:.2f} logits, on {found.tightest}."
    return (
        f"{found.distinct:,} different sums checked, all there are: {right}. {found.decoded:,} of them were also "
        f"decoded for real, with the same verdict on each.{narrowest} {_rounding(found)} "
        f"Made on {made['hardware']} ({made['device']}, {made['dtype']}, threads: {made['threads']}, "
        f"torch {made['torch']})."
    )


def _rounding(found: Certificate) -> str:
    if found.float_error is None:
        return "It does not compute in double precision, so what rounding does to it is not known."
    rounding = "; no verdict hangs on that"
    if found.undecided:
        rounding = f": on another machine {found.undecided:,} sums, nearer than that, may come out otherwise"
    elif (times := found.times_error) is not None:
        rounding = f"; the narrowest win is about {float(f'{times:.2g}'):,.0f} times that"
    return (
        f"Double precision moved margins by at most {found.float_error:.1e} logits ({found.n_recomputed:,} sums: the "
        f"tightest, and those decoded){rounding}."
    )


def _wrong(wrong: Sequence[WrongAnswer]) -> list[str]:
    if not wrong:
        return []
    more = f"The first {SHOWN} of {len(wrong):,}." if len(wrong) > SHOWN else ""
    rows = [(w.example, w.predicted, w.right, w.explanation) for w in wrong[:SHOWN]]
    return ["#### What it gets wrong", markdown_table(["sum", "predicted", "right", "what went wrong"], rows), more]
