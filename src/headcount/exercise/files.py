"""Write the results of a report under the file names that the exercise asks for.

answers.md          an answer to each question, in the exercise's order
problem1/results/   training_log.json, attention_patterns/, head_analysis/
problem2/results/   sinusoidal/, learned/, none/, extrapolation/, pooling/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.describing.extrapolation import EXERCISE
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.sections.ablation import BAND_NOTE, action, stopping_sentence
from headcount.describing.sections.poolings import KIND, pooled_models
from headcount.describing.words import amount_cell
from headcount.exercise.answers import answers_markdown
from headcount.figures.ablation import draw_ranking
from headcount.figures.attention import draw_heads, draw_pages
from headcount.figures.length_generalisation import draw_poolings, draw_stretch
from headcount.figures.positions import draw_encodings, draw_positions
from headcount.figures.style import png
from headcount.figures.training import draw_curves
from headcount.files import claim_output, require_writable, write_outputs
from headcount.rendering.forms import Form
from headcount.results import plain_json

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, AblationCondition, Effect
    from headcount.analysis.pruning import Pruning

N_EXAMPLES = 4
"""Number of examples for which heat maps of the heads are drawn, in addition to the average over examples."""
RESULTS = ("problem1/results", "problem2/results")
"""Folders that the exercise asks for: for the addition experiment, and for the sortedness experiment."""
ANSWERS, RANKING = "answers.md", "head_importance_ranking.txt"


def claim_exercise(folder: Path, *, force: bool = False) -> None:
    """Raise an error if the folder holds result files that headcount did not write and would overwrite.

    Call this function before measuring anything. With `force`, such files may be overwritten.
    """
    require_writable(folder)
    results = (path for name in RESULTS for path in sorted((folder / name).rglob("[!.]*.*")))
    for path in (folder / ANSWERS, *results):
        if path.suffix in (".json", ".png") or path.name in (ANSWERS, RANKING):
            claim_output(path, path.suffix, force=force, flag="--exercise")


def write_exercise(report_results: ReportResults, folder: Path, *, force: bool = False) -> list[Path]:
    """Write the files that the exercise asks for, and return their paths.

    They are about the first adder of the report, and about its first sortedness model of each encoding.
    """
    files: dict[str, bytes] = {}
    for adder in report_results.of_task("addition")[:1]:
        files |= {f"{RESULTS[0]}/{name}": data for name, data in _addition(adder)}
    files |= {f"{RESULTS[1]}/{name}": data for name, data in _sortedness(report_results.of_task("sortedness"))}
    files |= {f"{RESULTS[1]}/pooling/{name}": data for name, data in _poolings(report_results)}
    if files:
        adders, sorters = report_results.of_task("addition"), _by_encoding(report_results.of_task("sortedness"))
        files = {ANSWERS: answers_markdown(adders, sorters, files.keys()).encode(), **files}
    return write_outputs({folder / name: data for name, data in files.items()}, force=force, flag="--exercise")


def _addition(adder: ModelResults) -> Iterator[tuple[str, bytes]]:
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
        yield "head_analysis/ablation_results.json", _json(_ablation(adder.ablation))
        yield "head_analysis/head_importance.png", png(draw_ranking(adder.ablation, condition))
        yield f"head_analysis/{RANKING}", _ranking(adder.ablation).encode()
    if adder.pruning is not None:
        yield "head_analysis/pruning_results.json", _json(_pruning(adder.pruning))


def _ablation(result: Ablation) -> dict[str, Any]:
    """Return an ablation as data for JSON, with the most important heads first and the ablation that ranks them."""
    heads = sorted(result.to_dict()["heads"], key=lambda row: (row["replacement"] != result.ranked_by, -row["drop"]))
    return {"ranked_by": result.ranked_by, **result.to_dict(), "heads": heads}


def _ranking(result: Ablation) -> str:
    """Return the ranking of heads as a text table: one line per head, one column per kind of ablation."""
    condition, by = result.conditions[0], result.ranked_by
    names = [by, *(name for name in result.replacements if name != by)]
    rows = [["rank", "head", f"band ({by})", *(f"{name}: drop [95 % CI] n" for name in names)]]
    for head, effects in result.ranking(condition.length).items():
        cells = [_drop(result, effects[name]) for name in names]
        rows.append([effects[by].rank, head, effects[by].band or "-", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*_ranking_notes(result, condition), "", *lines]) + "\n"


def _ranking_notes(result: Ablation, condition: AblationCondition) -> list[str]:
    """Return the lines above the ranking of heads: what heads are ranked by, and what the columns mean."""
    by, unit = result.ranked_by, result.unit or result.metric
    again = f"; heads with a larger n were measured on {condition.decided_on}" if condition.decided_on else ""
    return [
        f"Heads of {result.name or 'the model'}, ranked by the drop after {action(by)} ({by} ablation).",
        f"Drops are in {unit}, with 95 % CIs for each head alone, on {condition.data}{again}.",
        *([stopping_sentence(result, condition)] if condition.stopping else []),
        "A rank is a range where 95 % CIs overlap.",
        *([BAND_NOTE] if result.unit == "points" else []),
        *(f"{name}: {action(name)}." for name in result.replacements if name != by),
    ]


def _drop(result: Ablation, effect: Effect) -> str:
    """Return the drop of a head with its 95 % CI and n as text: `2.87 [2.71, 3.04] n = 40,000`."""
    return f"{amount_cell(effect.drop, effect.low, effect.high, result.unit).text} n = {effect.n:,}"


def _sortedness(models: Sequence[ModelResults]) -> Iterator[tuple[str, bytes]]:
    chosen = _by_encoding(models)
    for name, model in chosen.items():
        if model.log:
            yield f"{name}/training_log.json", _json(_log(model))
            yield f"{name}/training_curves.png", png(draw_curves(model.log, f"Training of {model.title}"))
    stretches = {name: model.stretch for name, model in chosen.items() if model.stretch is not None}
    if stretches:
        results = {name: stretch.to_dict() for name, stretch in stretches.items()}
        yield "extrapolation/extrapolation_results.json", _json(results)
        yield "extrapolation/extrapolation_curves.png", png(draw_stretch(list(stretches.values())))
    learned = chosen.get("learned")
    if learned is not None and learned.positions is not None:
        yield "extrapolation/learned_position_embeddings.png", png(draw_positions(learned.positions))
    encodings = [model.encodings for model in (learned, *chosen.values()) if model is not None and model.encodings]
    if encodings:
        yield "extrapolation/encoding_comparison.png", png(draw_encodings(encodings[0]))


def _by_encoding(models: Sequence[ModelResults]) -> dict[str, ModelResults]:
    """Return a mapping from each encoding of the exercise to the first model that has it."""
    by_encoding: dict[str, ModelResults] = {}
    for model in models:
        by_encoding.setdefault(str(model.settings.get("encoding", "")), model)
    return {name: by_encoding[name] for name in EXERCISE if name in by_encoding}


def _pruning(result: Pruning) -> dict[str, Any]:
    """Return a pruning as data for JSON, with the percentage of removable heads for each limit of the drop."""
    shares = [
        {
            "loss_points": 100 * each.loss,
            "one_by_one_percent": round(100 * each.n_alone / result.n_heads, 2),
            "together_percent": round(100 * each.n_together / result.n_heads, 2),
        }
        for each in result.prunable
    ]
    return {"prunable_percent": shares, **result.to_dict()}


def _poolings(report_results: ReportResults) -> Iterator[tuple[str, bytes]]:
    """Yield the files on the comparison of poolings (name and content), if the report has such a comparison."""
    if models := pooled_models(report_results):
        yield "pooling_comparison.json", _json({"models": [asdict(each) for each in models]})
        yield "pooling_comparison.png", png(draw_poolings(models, KIND))


def _log(model: ModelResults) -> dict[str, Any]:
    """Return the settings and the training log of a model, as data for the JSON file that the exercise asks for."""
    return {"settings": dict(model.settings), "weights_sha256": model.weights_sha256, "log": list(model.log)}


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain_json(data), indent=1) + "\n").encode()


PART = Form(
    lambda folder, force: claim_exercise(folder, force=force),
    lambda _, report_results, folder, force: write_exercise(report_results, folder, force=force),
)
