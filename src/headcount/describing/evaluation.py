"""How accurate are models? Teacher-forced and free-running accuracy of answers in tokens, accuracy of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Row, Sentence
from headcount.describing.leader import leader
from headcount.describing.words import ONE_SEED, interval, interval_cell, percent, rate, sentence, some
from headcount.errors import HeadcountError
from headcount.stats import Proportion
from headcount.tasks import TASKS, words_of

if TYPE_CHECKING:
    from headcount.describing.leader import Estimate
    from headcount.training.evaluation import Claim, Classification, Evaluation

    AnyEvaluation = Evaluation | Classification

GROUPS = {"token": "at {}"} | {
    facet: phrase for task in TASKS.names() for facet, phrase in words_of(task).groups.items()
}
"""Maps each facet (a way of grouping examples, such as by carries) to the phrase that names one of its groups.

It lists only the facets for which a description names the group with the lowest accuracy.
"""
BY = {facet: facet for facet in GROUPS if facet != "kind"} | {"class": "right on"}
"""Maps each facet (a way of grouping examples) to the first words of its column headings in the table of models."""
EACH_SEED = "Each is one training run: other seeds may give other results."
INTERVALS = "Brackets: 95 % Wilson intervals."
BOTH_WAYS = (
    "Exact match: every token of an answer is right. Teacher-forced: the model is fed the right tokens of the answer "
    "so far. Free-running: it is fed the tokens that it predicted itself."
)


def describe(evaluation: AnyEvaluation, title: str) -> list[Block]:
    """Return report blocks on the accuracy of one model: sentences, and a table by group of examples."""
    return [
        Conclusions(tuple(conclusions(title, evaluation, "accuracy"))),
        accuracy_table("accuracy", title, evaluation),
    ]


def main_share(evaluation: AnyEvaluation) -> Proportion:
    """Return the main accuracy of a model: free-running, or a classifier's; teacher-forced if no other was measured."""
    share = _share(evaluation.rows[0])
    assert share is not None, "an evaluation has at least one accuracy"
    return share


def _share(row: Any) -> Proportion | None:
    """Return the main accuracy of a group (free-running if it was measured), or None if none was measured."""
    shares = (getattr(row, key, None) for key in ("free_running", "right", "teacher_forced"))
    return next((share for share in shares if share is not None), None)


def groups_of(evaluation: AnyEvaluation, facet: str) -> dict[str, Proportion]:
    """Return the accuracy of each group of a facet (a way of grouping examples), by the group's name."""
    return {row.group.strip(): share for row in evaluation.rows if row.facet == facet and (share := _share(row))}


def right_words(share: Proportion) -> str:
    """Return the number of right examples with the percentage, in words.

    >>> right_words(Proportion.of(1998, 2000))
    '1,998 of 2,000 right (99.9 %, 95 % CI 99.6-99.98)'
    """
    return rate(share).replace(" (", " right (", 1)


# --- one model --------------------------------------------------------------------------------------------------------


def conclusions(title: str, evaluation: AnyEvaluation, rests_on: str) -> list[Sentence]:
    """Return sentences on how accurate a model is, on which examples it is worst, and on its author's claim."""
    sentences = [
        *(_writer(title, evaluation) if hasattr(evaluation, "exact") else _classifier(title, evaluation)),
        *_worst(evaluation),
    ]
    if evaluation.common_error:
        sentences.append(Sentence(sentence(f"most common error: {evaluation.common_error}")))
    if given := getattr(evaluation, "given", ""):
        text = f"Its decoder is given “{given}” and never predicts it, so an answer that begins otherwise is wrong."
        sentences.append(Sentence(text))
    if (claim := evaluation.claim) is not None:
        sentences.append(Sentence(claim_words(claim), is_decided=claim.agrees is not None))
    return [Sentence(each.text, rests_on, each.is_decided) for each in sentences]


def _writer(title: str, evaluation: Any) -> list[Sentence]:
    """Return sentences on the accuracy of a model that writes its answers token by token."""
    forced, free = evaluation.exact.teacher_forced, evaluation.exact.free_running
    if free is None:
        text = f"On the {evaluation.split} set, {title} gets {right_words(forced)} when it is fed the right tokens "
        text += "(teacher-forced). The adapter has no generate(), so it is undecided how many answers are right when "
        text += "the model is fed its own tokens (free-running)."
        return [Sentence(text, is_decided=False)]
    text = f"On the {evaluation.split} set, {title} gets {right_words(free)} when it is fed its own tokens "
    text += f"(free-running). {ONE_SEED}"
    return [Sentence(text), *([_agreement(forced, free)] if forced is not None else [])]


def _agreement(forced: Proportion, free: Proportion) -> Sentence:
    """Return a sentence on whether teacher-forced and free-running accuracy agree, as they do in a sound pipeline.

    The first wrong token is the same either way, so the two must be equal.
    """
    if forced.correct == free.correct and forced.n == free.n:
        text = f"Fed the right tokens instead (teacher-forced), it also gets {forced.correct:,} right. In any sound "
        return Sentence(f"{text}pipeline, these two accuracies agree.")
    if _differ(forced, free):
        text = f"Fed the right tokens instead (teacher-forced), it gets {right_words(forced)}. The two accuracies do "
        text += "not agree. In a sound pipeline they are one number, so this gap is a fault of the pipeline, not "
        text += "“cascading errors”. Check that decoding uses the same start token and leading zeros as training."
        return Sentence(text)
    text = f"Fed the right tokens instead (teacher-forced), it gets {right_words(forced)}. It is undecided whether the "
    return Sentence(f"{text}two accuracies agree, because their intervals overlap.", is_decided=False)


def _differ(one: Proportion, other: Proportion) -> bool:
    """Return whether the intervals of two accuracies do not overlap."""
    return one.low > other.high or other.low > one.high


def _classifier(title: str, evaluation: Any) -> list[Sentence]:
    """Return sentences on the accuracy of a classifier, also by class, because a constant answer can be half right."""
    classes = groups_of(evaluation, "class")
    text = f"On the {evaluation.split} set, {title} gets {right_words(evaluation.accuracy.right)}"
    by_class = [f"{rate(share)} of the {name} ones" for name, share in classes.items()]
    text += f": {some(by_class)}." if by_class else "."
    if evaluation.constant:
        text += f" It answers “{evaluation.constant}” to (nearly) everything, so it has learned nothing useful."
    answers = [
        f"“{row.group}” to {percent(row.right.rate)} ({interval(row.right.low, row.right.high)})"
        for row in evaluation.answer_shares
    ]
    shares = [Sentence(f"It answers {some(answers)} of the examples.")] if answers else []
    return [Sentence(f"{text} {ONE_SEED}"), *shares]


def _worst(evaluation: AnyEvaluation) -> list[Sentence]:
    """Return sentences on the group with the lowest accuracy, one for each facet (way of grouping the examples)."""
    share = main_share(evaluation)
    by_facet = {facet: groups for facet in GROUPS if len(groups := groups_of(evaluation, facet)) > 1}
    if by_facet and share.correct == share.n:
        text = f"It is undecided on which examples the model is worst: it makes no error on these {share.n:,} examples."
        return [Sentence(text, is_decided=False)]
    return [_worst_group(facet, groups) for facet, groups in by_facet.items()]


def _worst_group(facet: str, groups: dict[str, Proportion]) -> Sentence:
    """Return a sentence on the group of a facet with the lowest accuracy; overlapping intervals leave it undecided."""
    worst = leader(groups, lambda name: _estimate(groups[name]), least=True)
    lowest = f"{GROUPS[facet].format(worst.top)}: {right_words(groups[worst.top])}"
    if worst.rivals:
        text = f"Grouped by {facet}, it is undecided where the model is worst: accuracy is lowest {lowest}, but the "
        text += f"interval overlaps that of {some(worst.rivals)}."
        return Sentence(text, is_decided=False)
    best = worst.others[-1]
    return Sentence(
        f"Grouped by {facet}, the model is worst {lowest}; it is best {GROUPS[facet].format(best)}: "
        f"{right_words(groups[best])}."
    )


def _estimate(share: Proportion) -> Estimate:
    return share.rate, share.low, share.high


def claim_words(claim: Claim) -> str:
    """Return sentences that compare the accuracy that a model's author claims with the accuracy measured here."""
    doubt = f"{interval(claim.low, claim.high, digits=2)}, n = {claim.n:,}"
    measured = f"Measured by {claim.scoring}: {percent(claim.measured, 2)} ({doubt})"
    if claim.claimed is None:
        return f"{measured}."
    verdict = "agrees" if claim.agrees else "does not agree"
    return f"{measured}. The author's figure of {percent(claim.claimed, 2)} {verdict} with this."


def accuracy_table(name: str, title: str, evaluation: AnyEvaluation, command: str = "") -> DataTable:
    """Return a table of all accuracies of one model: over all examples, and in each group of examples."""
    rows = list[Row]()
    for scores in evaluation.rows:
        shares = [getattr(scores, key) for key in evaluation.COLUMNS]
        n = max(share.n for share in shares if share is not None)  # teacher forcing may leave examples out
        cells = [share_cell(share, n) for share in shares]
        rows.append((f"{scores.facet}: {scores.group.strip()}", Cell(f"{n:,}", n), *cells))
    caption = f"Accuracy (%) of {title} on the {evaluation.split} set"
    note = f"{INTERVALS} {BOTH_WAYS}" if hasattr(evaluation, "exact") else INTERVALS
    return DataTable(name, caption, ("group", "n", *evaluation.COLUMNS.values()), tuple(rows), note, command)


def share_cell(share: Proportion | None, n: int | None = None) -> Cell:
    """Return a table cell for an accuracy; it names the number of examples if that differs from the row's `n`."""
    if share is None:
        return Cell("not measured")
    cell = interval_cell(share.rate, share.low, share.high, digits=2)
    return cell if n in (None, share.n) else Cell(f"{cell.text} (n = {share.n:,})", cell.value)


# --- several models ---------------------------------------------------------------------------------------------------


def comparison(models: Sequence[tuple[str, AnyEvaluation]], rests_on: str) -> list[Sentence]:
    """Return sentences on which model is most accurate, which give one answer to everything, and which are faulty."""
    sentences = [Sentence(each.text, rests_on, each.is_decided) for each in _rankings(models)]
    constant = [f"{title} (“{answer}”)" for title, each in models if (answer := getattr(each, "constant", None))]
    if constant:
        sentences.append(
            Sentence(f"These models give (nearly) every example the same answer: {some(constant, 12)}.", rests_on)
        )
    faulty = [title for title, each in models if _accuracies_differ(each)]
    if faulty:
        text = "Teacher-forced and free-running accuracy differ, which shows a fault of the pipeline, for "
        text += f"{some(faulty, 12)}."
        sentences.append(Sentence(text, rests_on))
    return sentences


def _rankings(models: Sequence[tuple[str, AnyEvaluation]]) -> list[Sentence]:
    """Return sentences that rank the models that share a test set, and name the other models with their accuracy."""
    sets: dict[tuple[tuple[str, str, int], ...], list[tuple[str, Proportion]]] = {}
    for title, evaluation in models:
        sets.setdefault(_test_set(evaluation), []).append((title, main_share(evaluation)))
    groups = sorted(sets.values(), key=lambda pairs: -len(pairs))
    alone = [f"{title} {right_words(share)}" for pairs in groups if len(pairs) == 1 for title, share in pairs]
    sentences = [_ranking(pairs) for pairs in groups if len(pairs) > 1]
    if alone and sentences:
        sentences.append(Sentence(f"Other models have other test sets and are not ranked: {some(alone, 12)}."))
    elif alone:
        text = f"It is undecided which of {len(models)} models is right most often, because no two share a test set. "
        sentences = [Sentence(f"{text}They get: {some(alone, 12)}.", is_decided=False)]
    return [Sentence(f"{sentences[0].text} {EACH_SEED}", is_decided=sentences[0].is_decided), *sentences[1:]]


def _test_set(evaluation: AnyEvaluation) -> tuple[tuple[str, str, int], ...]:
    """Return the name and size of every group of examples; models for which these differ had different test sets."""
    return tuple((row.facet, row.group, share.n) for row in evaluation.rows if (share := _share(row)))


def _ranking(pairs: Sequence[tuple[str, Proportion]]) -> Sentence:
    """Return a sentence on the most accurate model; overlapping intervals leave that undecided."""
    best = leader(pairs, lambda pair: _estimate(pair[1]))
    (title, share), (last, lowest) = best.top, best.others[-1]
    names = some([name for name, _ in pairs], 12)
    least = "" if len(best.rivals) == len(best.others) else f"; least often {last}, {right_words(lowest)}"
    if not best.rivals:
        text = f"Of {names}, which were tested on the same examples, {title} is right most often: {right_words(share)}"
        return Sentence(f"{text}{least}.")
    rivals = some([name for name, _ in best.rivals], 4)
    overlap = f"interval of {rivals} overlaps" if len(best.rivals) == 1 else f"intervals of {rivals} overlap"
    text = f"It is undecided which of {names} is right most often, on the same test set: {title} gets "
    text += f"{right_words(share)}, and the {overlap}"
    return Sentence(f"{text}{least}.", is_decided=False)


def _accuracies_differ(evaluation: Any) -> bool:
    """Return whether teacher-forced and free-running accuracy differ by their whole intervals, which shows a fault."""
    exact = getattr(evaluation, "exact", None)
    if exact is None or exact.free_running is None or exact.teacher_forced is None:
        return False
    return _differ(exact.teacher_forced, exact.free_running)


def models_table(
    name: str,
    outcomes: Sequence[tuple[str, AnyEvaluation | HeadcountError]],
    split: str,
    command: str = "",
    *,
    with_groups: bool = True,
) -> DataTable:
    """Return a table with a row per model: its accuracies, also by group, its author's claimed accuracy, and notes.

    `outcomes` are pairs of a model's title and its evaluation. An error in place of an evaluation becomes a note.
    """
    entries = [(title, _model_cells(outcome, with_groups=with_groups)) for title, outcome in outcomes]
    columns = list(dict.fromkeys(column for _, cells in entries for column in cells))
    columns.sort(key=lambda column: ("claimed", "note").index(column) if column in ("claimed", "note") else -1)
    rows: list[Row] = [(title, *(cells.get(column, Cell("")) for column in columns)) for title, cells in entries]
    caption = f"Accuracy (%) of each model on the {split} set"
    return DataTable(name, caption, ("model", *columns), tuple(rows), INTERVALS, command)


def _model_cells(outcome: AnyEvaluation | HeadcountError, *, with_groups: bool) -> dict[str, Cell]:
    """Return the row of one model in the table of several models, as cells by column heading."""
    if isinstance(outcome, HeadcountError):
        return {"note": Cell(f"broken: {outcome.what}")}
    n = main_share(outcome).n
    cells = {"n": Cell(f"{n:,}", n)}
    cells |= {words: share_cell(getattr(outcome.rows[0], key)) for key, words in outcome.COLUMNS.items()}
    if with_groups:
        for facet, words in BY.items():
            cells |= {f"{words} {group}": share_cell(share) for group, share in groups_of(outcome, facet).items()}
        answers = getattr(outcome, "answer_shares", ())[-1:]
        cells |= {f"answers “{row.group}”": share_cell(row.right) for row in answers}
    if outcome.claim is not None and outcome.claim.claimed is not None:
        cells["claimed"] = Cell(percent(outcome.claim.claimed, 2), 100 * outcome.claim.claimed)
    notes = _notes(outcome)
    return cells | ({"note": Cell("; ".join(notes))} if notes else {})


def _notes(evaluation: AnyEvaluation) -> list[str]:
    """Return remarks on one model for the last column of the table, such as that it was not decoded."""
    notes = []
    exact = getattr(evaluation, "exact", None)
    if exact is not None and exact.free_running is None:
        notes.append("not decoded: the adapter has no generate()")
    if _accuracies_differ(evaluation):
        notes.append("teacher-forced and free-running accuracy differ: a fault of the pipeline")
    if (claim := evaluation.claim) is not None and claim.agrees is False:
        notes.append(
            f"the claimed accuracy is not confirmed: measured by {claim.scoring}, it is {percent(claim.measured, 2)}"
        )
    if constant := getattr(evaluation, "constant", None):
        notes.append(f"answers “{constant}” to (nearly) everything")
    if given := getattr(evaluation, "given", ""):
        notes.append(f"“{given}” is given as the first token, not predicted")
    return [*notes, *([evaluation.common_error] if evaluation.common_error else [])]


def describe_several(outcomes: Sequence[tuple[str, AnyEvaluation | HeadcountError]], split: str) -> list[Block]:
    """Return the number of measured and of broken models as a sentence, and a table of all of them."""
    n_broken = sum(isinstance(each, HeadcountError) for _, each in outcomes)
    summary = (
        f"{len(outcomes):,} submissions: {len(outcomes) - n_broken:,} were measured, {n_broken:,} could not be run."
    )
    return [Paragraph(summary), models_table("accuracies", outcomes, split, with_groups=False)]
