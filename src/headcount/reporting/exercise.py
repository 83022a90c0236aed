"""The same material under the file names that the exercise asks for: what a student hands in.

problem1/results/   training_log.json, attention_patterns/, head_analysis/
problem2/results/   sinusoidal/, learned/, none/, extrapolation/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.files import claim_output, require_writable, write_outputs
from headcount.reporting.story import Material, Subject
from headcount.results import plain_json
from headcount.views.ablation import draw_ranking, ranking
from headcount.views.attention import draw_heads, draw_pages
from headcount.views.length_generalisation import draw_stretch
from headcount.views.positions import draw_encodings, draw_positions
from headcount.views.style import png
from headcount.views.training import draw_curves

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation

N_EXAMPLES = 4
"""Examples whose heads are drawn, beside the average."""
ENCODINGS = ("sinusoidal", "learned", "none")


RESULTS = ("problem1/results", "problem2/results")
"""Where the exercise wants its files."""


def claim_exercise(folder: Path, *, force: bool = False) -> None:
    """Refuse a folder whose results headcount did not write, before the measuring begins."""
    require_writable(folder)
    for path in (path for name in RESULTS for path in sorted((folder / name).rglob("[!.]*.*"))):
        if path.suffix in (".json", ".png"):
            claim_output(path, path.suffix, force=force)


def write_exercise(material: Material, folder: Path, *, force: bool = False) -> list[Path]:
    """Write the exercise's files for the first adder, and for the first sortedness model with each encoding."""
    found: dict[str, bytes] = {}
    for adder in material.of_task("addition")[:1]:
        found |= {f"{RESULTS[0]}/{name}": data for name, data in _addition(adder)}
    found |= {f"{RESULTS[1]}/{name}": data for name, data in _sortedness(material.of_task("sortedness"))}
    return write_outputs({folder / name: data for name, data in found.items()}, force=force)


def _addition(adder: Subject) -> Iterator[tuple[str, bytes]]:
    if adder.log:
        yield "training_log.json", _json(_log(adder))
    for i, patterns in enumerate(adder.patterns[: N_EXAMPLES + 1]):
        name = "average" if patterns.n != 1 else f"example-{i}"
        figures = {**draw_pages(patterns), **(draw_heads(patterns) if i == 0 else {})}
        for title, figure in figures.items():
            yield f"attention_patterns/{name}-{title}.png", png(figure)
    if adder.stats is not None:
        yield "head_analysis/head_analysis.json", _json(adder.stats.to_dict())
    if adder.ablation is not None:
        condition = adder.ablation.conditions[0]
        yield "head_analysis/ablation_results.json", _json(adder.ablation.to_dict())
        yield "head_analysis/head_importance.png", png(draw_ranking(adder.ablation, condition))
        yield "head_analysis/head_importance_ranking.txt", _ranking(adder.ablation).encode()


def _ranking(result: Ablation) -> str:
    """A line per head, the costliest first."""
    condition, replacement = result.conditions[0], result.replacements[0]
    mine = (each for each in result.heads if (each.length, each.replacement) == (condition.length, replacement))
    effects = {each.head: each for each in mine}
    again = f"; larger n: {condition.decided_on}" if condition.decided_on else ""
    lines = [f"drop by {replacement}, {result.unit}, 95 % interval, n; on {condition.data}{again}"]
    scale = 100 if result.unit == "points" else 1
    for i, head in enumerate(ranking(result, condition.length)):
        drop, low, high = (scale * each for each in (effects[head].drop, effects[head].low, effects[head].high))
        told = f"{i + 1:3d}. {head}: {drop:.2f} [{low:.2f}, {high:.2f}] n = {effects[head].n:,} "
        lines.append(f"{told}{effects[head].band or ''}".rstrip())
    return "\n".join(lines) + "\n"


def _sortedness(subjects: Sequence[Subject]) -> Iterator[tuple[str, bytes]]:
    by_encoding: dict[str, Subject] = {}
    for subject in subjects:
        by_encoding.setdefault(str(subject.settings.get("encoding", "")), subject)
    chosen = {name: by_encoding[name] for name in ENCODINGS if name in by_encoding}
    for name, subject in chosen.items():
        if subject.log:
            yield f"{name}/training_log.json", _json(_log(subject))
            yield f"{name}/training_curves.png", png(draw_curves(subject.log, f"Training of {subject.title}"))
    stretches = {name: each.stretch for name, each in chosen.items() if each.stretch is not None}
    if stretches:
        told = {name: each.to_dict() for name, each in stretches.items()}
        yield "extrapolation/extrapolation_results.json", _json(told)
        yield "extrapolation/extrapolation_curves.png", png(draw_stretch(list(stretches.values())))
    learned = chosen.get("learned")
    if learned is not None and learned.positions is not None:
        yield "extrapolation/learned_position_embeddings.png", png(draw_positions(learned.positions))
    beside = [each.encodings for each in (learned, *chosen.values()) if each is not None and each.encodings is not None]
    if beside:
        yield "extrapolation/encoding_comparison.png", png(draw_encodings(beside[0]))


def _log(subject: Subject) -> dict[str, Any]:
    """Settings and every logged step."""
    return {"settings": dict(subject.settings), "weights_sha256": subject.weights_sha256, "log": list(subject.log)}


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain_json(data), indent=1) + "\n").encode()
