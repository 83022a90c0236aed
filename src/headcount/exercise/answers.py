"""Write `answers.md`: a short answer to each question of the exercise, in order, on at most two pages.

Each answer has its numbers with n and 95 % CIs, and names the file with the details.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from headcount.bands import LIMITS
from headcount.describing.evaluation import main_share, right_words
from headcount.describing.extrapolation import accuracy_cell, extrapolation_of, hardest_kind, kind_words
from headcount.describing.length_generalisation import LENGTHS, exercise_answer
from headcount.describing.report import ModelResults
from headcount.describing.sections.ablation import costliest, leader_text
from headcount.describing.sections.events import breaks_of, error_sentences, most_broken, responding_heads
from headcount.describing.sections.mathematics import (
    extrapolation_sentences,
    identity_sentences,
    kernel_error,
    rotation_error,
    untrained_rows,
    width_of,
)
from headcount.describing.sections.pruning import greedy_sentence, harmless_sentences, share_sentences
from headcount.describing.words import ONE_SEED, amount_cell, counted, interval, percent, sentence, some
from headcount.figures.length_generalisation import size_range
from headcount.figures.specialisation import sensitivities
from headcount.tasks.addition import WORDS

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.attention import Attention
    from headcount.analysis.length_generalisation import Stretch
    from headcount.analysis.specialisation import Specialisation

STATISTICS = ("operator", "diagonal", "aligned column", "carry column", "entropy share", "sparsity")
FIRST = 5
"""Number of heads that the answer on the ranking of heads names."""
NAMED = 4
"""Largest number of heads that the answer about carry propagation lists for each kind of error."""
SHOWN = 5
"""Number of heat maps per head that are handed in: the average over examples, and four examples."""


def answers_markdown(adders: Sequence[ModelResults], sorters: dict[str, ModelResults], files: Collection[str]) -> str:
    """Return the text of `answers.md`: answers about the first adder, and about one sortedness model per encoding.

    `files` are the names of files that exist; an answer names no others.
    """
    parts = [
        "# Answers",
        "All intervals are 95 % CIs. Each model is one training run; other seeds may differ.",
    ]
    if adders:
        parts += [f"## Problem 1: addition ({adders[0].title})"]
        parts += [_answer(question, text, paths, files) for question, text, paths in _addition(adders[0])]
    if sorters:
        parts += [f"## Problem 2: sortedness ({some(list(sorters))})"]
        parts += [_answer(question, text, paths, files) for question, text, paths in _sortedness(sorters)]
    return "\n\n".join(parts) + "\n"


Answer = tuple[str, str, Sequence[str]]
"""A question, its answer, and the files or folders with the details."""


def _answer(question: str, text: str, paths: Sequence[str], files: Collection[str]) -> str:
    known = [path for path in paths if any(name.startswith(path) for name in files)]
    see = f" See {', '.join(f'`{path}`' for path in known)}." if known else ""
    text = text.replace(f" {ONE_SEED}", "").replace("95 % CI", "CI")
    return f"**{question}** {text or 'Not measured.'}{see}"


# --- addition ---------------------------------------------------------------------------------------------------------


def _addition(adder: ModelResults) -> Iterator[Answer]:
    """Yield the questions of the first experiment (addition) with their answers, in the order of the exercise."""
    results = "problem1/results"
    yield "Training.", _training(adder), [f"{results}/training_log.json"]
    yield "Heat maps of every head.", _heat_maps(adder.patterns), [f"{results}/attention_patterns"]
    stats = "" if adder.stats is None else _statistics(adder.stats)
    yield "Head statistics.", stats, [f"{results}/head_analysis/head_analysis.json"]
    analysis = f"{results}/head_analysis"
    files = [f"{analysis}/head_importance_ranking.txt"]
    ablated = adder.ablation
    yield "Ablation and ranking.", "" if ablated is None else _ranking(ablated), files
    bands = "" if ablated is None else _bands(ablated)
    yield "Critical and redundant heads.", bands, [f"{analysis}/ablation_results.json"]
    yield "Carry propagation.", _carries(adder), []
    yield "Share of heads that can be pruned.", _pruning(adder), [f"{analysis}/pruning_results.json"]


def _heat_maps(patterns: Sequence[Attention]) -> str:
    """Return a sentence on what the heat maps of all heads show: the average over examples, and single examples."""
    if not patterns:
        return ""
    n_heads = sum(len(site.heads) for site in patterns[0].sites)
    shown = [f"the average over {pattern.n:,} examples" for pattern in patterns[:1] if pattern.example is None]
    shown += [pattern.example for pattern in patterns[:SHOWN] if pattern.example is not None]
    return f"There are heat maps of all {n_heads} heads for {some(shown)}."


def _training(model: ModelResults) -> str:
    """Return sentences on the accuracy of a model, the time of its training and its final losses."""
    evaluation, sentences = model.evaluation, list[str]()
    if evaluation is not None:
        sentences.append(f"On the {evaluation.split} set, {right_words(main_share(evaluation))}.")
    record = model.training
    if record is not None:
        took = f" in {record.seconds:,.0f} s" if record.seconds is not None else " (seconds not recorded)"
        losses = [
            f"{value:.2g} ({name})"
            for name, value in (("training", record.training_loss), ("validation", record.validation_loss))
            if value is not None
        ]
        steps = "" if record.steps is None else f" {record.steps:,} steps"
        sentences.append(f"Training took{steps}{took}; loss: {some(losses) if losses else 'not recorded'}.")
    return " ".join(sentences)


def _statistics(result: Specialisation) -> str:
    """Return a sentence that names the head with the largest mean of each statistic."""
    parts = []
    for name in STATISTICS:
        measured = [(head.short, each) for head in result.heads if (each := head.find(name))]
        if measured:
            head, most = max(measured, key=lambda pair: pair[1].mean)
            parts.append(f"{name} {head} {100 * most.mean:.1f} ± {100 * most.half():.1f}")
    text = f"The head with the largest mean of each statistic, in % ± half of its CI (n = {result.n:,} sums): "
    return f"{text}{'; '.join(parts)}."


def _ranking(result: Ablation) -> str:
    """Return sentences on the most important head under zero and resample ablation, and on the costliest heads."""
    condition = result.conditions[0]
    ways = dict.fromkeys((result.ranked_by, *(name for name in result.replacements if name == "resample")))
    texts = [leader_text(result, name, costliest(result, condition, name)) for name in ways]
    ranked = [effects[result.ranked_by] for effects in result.ranking(condition.length).values()]
    drops = [amount_cell(effect.drop, effect.low, effect.high, result.unit).text for effect in ranked[:FIRST]]
    names = [f"{effect.short} {drop}" for effect, drop in zip(ranked, drops, strict=False)]
    return f"{' '.join(texts)} The costliest of {len(ranked)} heads, with drops in {result.unit}: {some(names, FIRST)}."


def _bands(result: Ablation) -> str:
    """Return a sentence that lists the heads of each band of importance, such as critical or redundant."""
    effects = result.effects(result.ranked_by, result.conditions[0].length)
    if not any(each.band for each in effects):
        return "The model is no better than a constant answer, so heads cannot be called critical or redundant."
    parts = []
    for band, limit in LIMITS.items():
        names = [each.short for each in effects if each.band == band]
        parts.append(f"{len(names)} {band} ({limit}{f': {some(names, 8)}' if names else ''})")
    return f"By the 95 % CI of each drop: {'; '.join(parts)}."


def _carries(adder: ModelResults) -> str:
    """Return sentences on heads whose attention responds to a carry, and on which sums become wrong without a head."""
    texts = []
    if adder.stats is not None and sensitivities(adder.stats):
        texts.append(_carry_sentence(adder.stats))
    breaks = [] if adder.ablation is None else breaks_of(adder.ablation, WORDS)
    if breaks:
        errors = error_sentences(breaks, WORDS, "", NAMED)
        texts += [sentence(most_broken(breaks, WORDS)), *(each.text for each in errors)]
    return " ".join(texts)


def _carry_sentence(result: Specialisation) -> str:
    """Return a sentence on how many heads respond to a carry with their attention, and which head responds most."""
    top, *others = sensitivities(result)
    n = f"{len(responding_heads(result))} of {counted(1 + len(others), 'head')}"
    doubt = f"{interval(top.low, top.high)}; n = {top.shift.n:,}"
    most = f"a token that makes a carry moves {percent(top.shift.mean)} more of its attention; {doubt}"
    return f"{n} respond to a carry, {top.short} most ({most})."


def _pruning(adder: ModelResults) -> str:
    """Return sentences on how many heads can be removed for a drop of 1 and 5 points, one at a time and together."""
    result = adder.pruning
    if result is None:
        return ""
    shares = share_sentences(result) or [greedy_sentence("the model", result)]
    return " ".join(each.text for each in (*shares, harmless_sentences(result)[0]))


# --- sortedness -------------------------------------------------------------------------------------------------------


def _sortedness(sorters: dict[str, ModelResults]) -> Iterator[Answer]:
    """Yield the questions of the second experiment (sortedness) with their answers, in the order of the exercise."""
    results = "problem2/results"
    for name, model in sorters.items():
        yield f"Training, {name}.", _training(model), [f"{results}/{name}/training_curves.png"]
    stretches = {name: each.stretch for name, each in sorters.items() if each.stretch is not None}
    curves = [f"{results}/extrapolation/extrapolation_{name}" for name in ("results.json", "curves.png")]
    yield "Accuracy at every length.", _accuracies(stretches), curves
    extrapolation = f"{results}/extrapolation"
    learned = sorters.get("learned")
    rows = ""
    if learned is not None and learned.positions is not None:
        rows = f"The figure marks the last trained position. {untrained_rows([learned])}".rstrip()
    yield "Learned position embeddings.", rows, [f"{extrapolation}/learned_position_embeddings.png"]
    is_drawn = any(each.encodings is not None for each in sorters.values())
    beside = "The figure shows every encoding at the same positions." if is_drawn else ""
    yield "Encodings side by side.", beside, [f"{extrapolation}/encoding_comparison.png"]
    yield "Why sinusoidal can extrapolate and learned cannot.", _why(list(sorters.values())), []


def _accuracies(stretches: dict[str, Stretch]) -> str:
    """Return a sentence on which encodings extrapolate, and tables of accuracy at the lengths of the exercise."""
    if not stretches:
        return ""
    kind = hardest_kind(list(stretches.values()))
    reaches = [(name, reach) for name, each in stretches.items() if (reach := extrapolation_of(each, kind))]
    trained = {each.trained for each in stretches.values()}
    first = ""
    if reaches and len(trained) == 1 and (span := trained.pop()):
        first = exercise_answer(reaches, span, "").text
    kinds = dict.fromkeys(cell.negative for each in stretches.values() for cell in each.cells)
    shown = dict.fromkeys((*(each for each in ("shuffle", "transpositions") if each in kinds), kind))
    return "\n\n".join([first, *(_accuracy_table(stretches, each) for each in list(shown)[-2:])])


def _accuracy_table(stretches: dict[str, Stretch], kind: str) -> str:
    """Return a table, in Markdown, of accuracy by encoding and length for one kind of unsorted sequences."""
    by_place = {
        (name, cell.length): cell for name, each in stretches.items() for cell in each.cells if cell.negative == kind
    }
    n = [cell.n for (_, length), cell in by_place.items() if length in LENGTHS]
    lines = [f"| {kind_words(kind)} | {' | '.join(map(str, LENGTHS))} |", "|---" * (1 + len(LENGTHS)) + "|"]
    for name in stretches:
        texts = [accuracy_cell(by_place.get((name, length))).text for length in LENGTHS]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join([*lines, "", f"Accuracy in %, n = {size_range(n)} per cell."])


def _why(models: Sequence[ModelResults]) -> str:
    """Return sentences on why sinusoidal encodings can extrapolate and learned ones cannot, with measurements."""
    width = width_of(models)
    texts = [each.text for each in identity_sentences(width, rotation_error(width), kernel_error(width))]
    lookup = "A learned encoding is a table lookup: rows that training never uses stay random."
    return " ".join([*texts, lookup, *(each.text for each in extrapolation_sentences(models))])
