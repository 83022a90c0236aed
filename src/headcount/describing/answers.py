"""What a student hands in first: an answer to each question of the exercise, in its order, on two pages at most.

Each answer has its figures with n and 95 % intervals, and names the file that holds the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from headcount.describing.accuracy import main_share, told
from headcount.describing.breaking import breaks_of, carry_error_sentences, most_broken
from headcount.describing.carry_words import sensitive
from headcount.describing.identities import kernel_error, rotation_error
from headcount.describing.math_words import identity_sentences, reached, untouched
from headcount.describing.pruning_words import greedy_sentence, harmless_sentences, share_sentences
from headcount.describing.reach_words import exercise_answer
from headcount.describing.reaches import hardest, named, reach_of
from headcount.describing.story import Subject
from headcount.describing.words import ONE_SEED, counted, interval, sentence, some
from headcount.figures.ablation import costliest, costliest_sentence, drop_texts, ranking
from headcount.figures.head_stats import sensitivities

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.attention import Attention
    from headcount.analysis.length_generalisation import Stretch
    from headcount.analysis.specialisation import Specialisation

LENGTHS = (32, 64, 128, 256)
"""Lengths that the exercise asks for."""
STATISTICS = ("operator", "diagonal", "aligned column", "carry column", "entropy share", "sparsity")
FIRST = 5
"""Heads of the ranking that are named."""
NAMED = 4
"""Heads of each kind of error that are named."""
SHOWN = 5
"""Heat maps that are handed in: the average and four examples."""
D_MODEL = 128
"""The exercise's width, for models that do not say theirs."""
NOT_MEASURED = "not measured"


def answers_markdown(adders: Sequence[Subject], sorters: dict[str, Subject], files: Collection[str]) -> str:
    """Answer the exercise for the first adder and for one sortedness model per encoding; point to files that exist."""
    parts = ["# Answers", "All intervals are 95 % intervals. Each model is one training run: another seed may differ."]
    if adders:
        parts += [f"## Problem 1: addition ({adders[0].title})"]
        parts += [_answer(question, text, paths, files) for question, text, paths in _addition(adders[0])]
    if sorters:
        parts += [f"## Problem 2: sortedness ({some(list(sorters))})"]
        parts += [_answer(question, text, paths, files) for question, text, paths in _sortedness(sorters)]
    return "\n\n".join(parts) + "\n"


Answer = tuple[str, str, Sequence[str]]
"""A question, its answer, and the files or folders that hold the rest."""


def _answer(question: str, text: str, paths: Sequence[str], files: Collection[str]) -> str:
    known = [path for path in paths if any(name.startswith(path) for name in files)]
    see = f" See {', '.join(f'`{path}`' for path in known)}." if known else ""
    text = text.replace(f" {ONE_SEED}", "").replace("95 % interval", "interval")
    return f"**{question}** {text or f'{NOT_MEASURED.capitalize()}.'}{see}"


# --- addition ---------------------------------------------------------------------------------------------------------


def _addition(adder: Subject) -> Iterator[Answer]:
    """Yield the questions of the first experiment, in its order."""
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
    """Say what the heat maps show: the average over many examples, and single examples."""
    if not patterns:
        return ""
    n_heads = sum(len(site.heads) for site in patterns[0].sites)
    shown = [f"the average over {each.n:,} examples" for each in patterns[:1] if each.example is None]
    shown += [each.example for each in patterns[:SHOWN] if each.example is not None]
    return f"All {n_heads} heads on {some(shown)}."


def _training(subject: Subject) -> str:
    """Say how often a model is right, how long its training took and with which losses it ended."""
    evaluation, sentences = subject.evaluation, list[str]()
    if evaluation is not None:
        sentences.append(f"On the {evaluation.split} set, {told(main_share(evaluation))}.")
    record = subject.training
    if record is not None:
        took = f" in {record.seconds:,.0f} s" if record.seconds is not None else " (seconds not recorded)"
        losses = [
            f"{value:.2g} ({name})"
            for name, value in (("training", record.training_loss), ("validation", record.validation_loss))
            if value is not None
        ]
        steps = "" if record.steps is None else f" {record.steps:,} steps"
        sentences.append(f"Training took{steps}{took}; final loss: {some(losses) if losses else 'not recorded'}.")
    return " ".join(sentences)


def _statistics(result: Specialisation) -> str:
    """Name the head with the largest mean of each statistic, with half of its 95 % interval."""
    parts = []
    for name in STATISTICS:
        measured = [(head.short, each) for head in result.heads if (each := head.find(name))]
        if measured:
            head, most = max(measured, key=lambda pair: pair[1].mean)
            parts.append(f"{name} {head} {100 * most.mean:.1f} ± {100 * most.half():.1f}")
    return f"The head with the most of each, mean in % ± half its interval (n = {result.n:,} sums): {'; '.join(parts)}."


def _ranking(result: Ablation) -> str:
    """Say what removing heads costs, then what swapping their outputs does."""
    condition = result.conditions[0]
    ways = dict.fromkeys((result.ranked_by, *(each for each in result.replacements if each == "resample")))
    texts = [costliest_sentence(result, costliest(result, condition, each)) for each in ways]
    effects = {each.head: each for each in result.effects(result.ranked_by, condition.length)}
    first = [effects[head] for head in ranking(result, condition.length)[:FIRST]]
    drops = [(each.short, drop_texts(result.unit, each.drop, each.low, each.high)) for each in first]
    names = [f"{name} {drop} [{low}, {high}]" for name, (drop, low, high) in drops]
    return f"{' '.join(texts)} The first of {len(effects)}, drop in {result.unit}: {some(names, FIRST)}."


def _bands(result: Ablation) -> str:
    """List the heads of each band by what their removal costs."""
    effects = result.effects(result.ranked_by, result.conditions[0].length)
    if not any(each.band for each in effects):
        return "The model has nothing to lose, so no head has a band."
    limits = {"critical": "over 10 points", "important": "1 to 10", "redundant": "under 1", "undecided": "on a border"}
    parts = []
    for band, cost in limits.items():
        names = [each.short for each in effects if each.band == band]
        parts.append(f"{len(names)} {band} ({cost}{f': {some(names, 8)}' if names else ''})")
    return f"By what removing each head costs, by the whole interval: {'; '.join(parts)}."


def _carries(adder: Subject) -> str:
    """Say what a carry does to attention, what breaks without heads, and whose broken answers are carry errors."""
    texts = []
    if adder.stats is not None and sensitivities(adder.stats):
        texts.append(_moved(adder.stats))
    breaks = [] if adder.ablation is None else breaks_of(adder.ablation)
    if breaks:
        texts += [sentence(most_broken(breaks)), *(each.text for each in carry_error_sentences(breaks, "", NAMED))]
    return " ".join(texts)


def _moved(result: Specialisation) -> str:
    """Say how many heads' attention a carry moves, and whose most."""
    top, *others = sensitivities(result)
    n = f"{len(sensitive(result))} of {counted(1 + len(others), 'head')}"
    most = f"{100 * top.shift.mean:.1f} % of it; {interval(top.low, top.high)}; n = {top.shift.n:,} contrasts"
    return f"A carry moves the attention of {n}, first {top.short} ({most})."


def _pruning(adder: Subject) -> str:
    """Say which share can be removed for 1 and 5 points, and what the heads that are harmless alone leave together."""
    result = adder.pruning
    if result is None:
        return ""
    shares = share_sentences(result) or [greedy_sentence("the model", result)]
    return " ".join(each.text for each in (*shares, harmless_sentences(result)[0]))


# --- sortedness -------------------------------------------------------------------------------------------------------


def _sortedness(sorters: dict[str, Subject]) -> Iterator[Answer]:
    """Yield the questions of the second experiment, in its order."""
    results = "problem2/results"
    for name, subject in sorters.items():
        yield f"Training, {name}.", _training(subject), [f"{results}/{name}/training_curves.png"]
    stretches = {name: each.stretch for name, each in sorters.items() if each.stretch is not None}
    curves = [f"{results}/extrapolation/extrapolation_{name}" for name in ("results.json", "curves.png")]
    yield "Accuracy at every length.", _accuracies(stretches), curves
    extrapolation = f"{results}/extrapolation"
    learned = sorters.get("learned")
    rows = ""
    if learned is not None and learned.positions is not None:
        rows = f"The picture marks the last trained position. {untouched([learned])}".rstrip()
    yield "Learned position embeddings.", rows, [f"{extrapolation}/learned_position_embeddings.png"]
    is_drawn = any(each.encodings is not None for each in sorters.values())
    beside = "Every encoding at the same positions." if is_drawn else ""
    yield "Encodings side by side.", beside, [f"{extrapolation}/encoding_comparison.png"]
    yield "Why sinusoidal can extrapolate and learned cannot.", _why(list(sorters.values())), []


def _accuracies(stretches: dict[str, Stretch]) -> str:
    """Say which encodings go beyond training, and tabulate the accuracy at every length that the exercise asks for."""
    if not stretches:
        return ""
    kind = hardest(list(stretches.values()))
    reaches = [(name, reach) for name, each in stretches.items() if (reach := reach_of(each, kind))]
    trained = {each.trained for each in stretches.values()}
    first = ""
    if reaches and len(trained) == 1 and (span := trained.pop()):
        first = exercise_answer(reaches, span, "").text
    kinds = dict.fromkeys(cell.negative for each in stretches.values() for cell in each.cells)
    shown = dict.fromkeys((*(each for each in ("shuffle", "transpositions") if each in kinds), kind))
    return "\n\n".join([first, *(_accuracy_table(stretches, each) for each in list(shown)[-2:])])


def _accuracy_table(stretches: dict[str, Stretch], kind: str) -> str:
    """Tabulate accuracy with its interval by encoding and length, for one kind of unsorted sequences."""
    by_place = {
        (name, cell.length): cell for name, each in stretches.items() for cell in each.cells if cell.negative == kind
    }
    n = sorted({cell.n for (_, length), cell in by_place.items() if length in LENGTHS})
    lines = [f"| {named(kind)} | {' | '.join(map(str, LENGTHS))} |", "|---" * (1 + len(LENGTHS)) + "|"]
    for name in stretches:
        cells = [by_place.get((name, length)) for length in LENGTHS]
        texts = [
            NOT_MEASURED
            if cell is None
            else f"one answer: {cell.constant_class}"
            if cell.constant
            else f"{100 * cell.accuracy:.1f} [{100 * cell.low:.1f}, {100 * cell.high:.1f}]"
            for cell in cells
        ]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    sizes = " to ".join(f"{each:,}" for each in dict.fromkeys((n[0], n[-1]))) if n else "0"
    return "\n".join([*lines, "", f"Right in %, n = {sizes} per cell."])


def _why(subjects: Sequence[Subject]) -> str:
    """Give the mathematics, with the errors computed for it, and what was measured."""
    width = next((each.settings["d_model"] for each in subjects if each.settings.get("d_model")), D_MODEL)
    texts = [each.text for each in identity_sentences(width, rotation_error(width), kernel_error(width))]
    lookup = (
        "A learned encoding is a table lookup: a row beyond the trained positions met no gradient and stays random."
    )
    return " ".join([*texts, lookup, *(each.text for each in reached(subjects))])
