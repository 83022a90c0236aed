"""The first screen of a report: one card per question, with the answer in a sentence and the one picture that shows it.

Each card belongs to a section of the report, which has the details. A card shows the answer of its section, or a
shorter answer if that one is long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headcount.describing.blocks import Card, Section, Sentence
from headcount.describing.evaluation import main_share
from headcount.describing.extrapolation import extrapolation_of, hardest_kind, kind_words
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.verification import n_wrong, proved_briefly
from headcount.describing.words import amount, counted, percent, short, some
from headcount.figures.ablation import drop_label, shown_score
from headcount.figures.cards import MOST_ROWS, Bar, draw_bars, draw_verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headcount.analysis.pruning import Pruning
    from headcount.analysis.routes import Routes
    from headcount.analysis.verification import Verification
    from headcount.describing.extrapolation import Extrapolation

QUESTIONS = {
    "audit": "Can these results be trusted?",
    "training": "What was trained?",
    "certificate": "Is every answer right?",
    "ablation": "Which heads matter?",
    "pruning": "What can be removed?",
    "reach": "How far does it extrapolate?",
    "roles": "What do the heads attend to?",
}
"""Maps a section's id to the question on its card; the card of any other section shows the section's title."""
MOST_CARDS = 6
Made = tuple[str, "Callable[[], Figure] | None", str]
"""The content of a card: answer (empty for the section's own answer), function that draws the picture, alt text."""

_DOUBT = re.compile(r"\s*\(((?:[^()]|\([^()]*\))*?(?:\bCI\b|\bn = )[^()]*)\)")
_SEED = re.compile(r"\s*\(one seed\)")


def cards(results: ReportResults, sections: Sequence[Section], importance: Sequence[str]) -> tuple[Card, ...]:
    """Return the cards of the most important sections that have an answer; a card about a faulty model comes first."""
    answered = [each for each in sections if each.answer is not None]
    if any(each.id == "routes" for each in answered):
        answered = [each for each in answered if each.id != "events"]  # patches answer the question of `events` better
    ranked = sorted(answered, key=lambda each: importance.index(each.id) if each.id in importance else len(importance))
    faulty = [each for each in results.models if each.audit is not None and not each.audit.is_sound]
    first = [_fault_card(faulty)] if faulty else []
    chosen = ranked[: MOST_CARDS - len(first)]
    return (*first, *(_card(results, each) for each in sections if each in chosen))


def _card(results: ReportResults, section: Section) -> Card:
    assert section.answer is not None, "only sections with an answer have a card"
    text, draw, alt = MAKERS[section.id](results) if section.id in MAKERS else ("", None, "")
    answer, note = split_doubt(text or section.answer.text)
    question = QUESTIONS.get(section.id, section.title)
    return Card(section.id, question, Sentence(answer, is_decided=section.answer.is_decided), note, draw, alt)


def split_doubt(text: str) -> tuple[str, str]:
    """Split a sentence into its statement and its doubt: confidence interval, number of examples and of seeds.

    >>> split_doubt("Removing it costs 6.3 points (95 % CI 6.1-6.5, n = 40,000) (one seed).")
    ('Removing it costs 6.3 points.', '95 % CI 6.1-6.5, n = 40,000; one seed')
    """
    doubts = [each.group(1) for each in _DOUBT.finditer(text)]
    doubts += ["one seed"] if _SEED.search(text) else []
    return _SEED.sub("", _DOUBT.sub("", text)), "; ".join(dict.fromkeys(doubts))


def _fault_card(faulty: Sequence[ModelResults]) -> Card:
    names = some([each.title for each in faulty])
    audit = faulty[0].audit
    assert audit is not None, "the audit found the fault"
    fault = f"The audit finds a fault in {names}: {audit.summary}." if len(faulty) == 1 else ""
    text = fault or f"The audit finds faults in {names}, so numbers about these models may be wrong."
    return Card("audit", QUESTIONS["audit"], Sentence(text), is_fault=True)


def _name(model: ModelResults) -> str:
    """Return a model's title without the task's name at its beginning, so that it fits beside a bar of a chart."""
    return model.title.removeprefix(f"{model.task}-")


# --- the cards --------------------------------------------------------------------------------------------------------


def _trained(results: ReportResults) -> Made:
    """Return the content of the card on training: what was trained, with a picture of the accuracy on the test set."""
    shares = [(each, main_share(each.evaluation)) for each in results.models if each.evaluation is not None]
    bars = [
        Bar(_name(each), 100 * share.rate, percent(share.rate), 100 * share.low, 100 * share.high)
        for each, share in shares
    ]
    alt = "; ".join(f"{bar.name} {bar.text}" for bar in bars)
    draw = partial(draw_bars, bars, "right answers on the test set (%)") if bars else None
    if len(shares) < 2:
        return "", draw, alt
    steps = [each.settings["steps"] for each, _ in shares if "steps" in each.settings]
    most = f" to {max(steps):,}" if steps and max(steps) > min(steps) else ""
    trained = f", trained for {min(steps):,}{most} steps" if steps else ""
    ns = sorted({share.n for _, share in shares})
    text = f"{counted(len(shares), 'model')}{trained}; each was tested on {' or '.join(f'{n:,}' for n in ns)} examples."
    return f"{text[0].upper()}{text[1:]}", draw, f"Accuracy on the test set: {alt}"


def _right(results: ReportResults) -> Made:
    """Return the content of the card on verification: a picture of which models are proved right on all examples."""
    outcomes = [(_name(each), each.certificate) for each in results.models if each.certificate is not None]
    verdicts = [
        Bar(name, 1.0, proved_briefly(each) or _not_proved(each), is_marked=bool(each.wrong)) for name, each in outcomes
    ]
    alt = "; ".join(f"{each.name}: {each.text}" for each in verdicts)
    return "", partial(draw_verdicts, verdicts) if len(verdicts) > 1 else None, alt


def _not_proved(outcome: Verification) -> str:
    if not outcome.wrong:
        return "no wrong answer found"
    # A search stops at some number of wrong answers; only a check of every example counts all of them.
    is_counted = type(outcome).__name__ == "Certificate"
    return f"{n_wrong(outcome):,} answers are wrong" if is_counted else "wrong answers found"


def _matter(results: ReportResults) -> Made:
    """Return the content of the card on ablation: a picture of the heads whose ablation costs most accuracy."""
    model = results.with_result("ablation")[0]
    result = model.ablation
    assert result is not None, "the model has this result"
    effects = sorted(result.effects(result.ranked_by, result.conditions[0].length), key=lambda each: -each.drop)
    scale = 100 if result.unit == "points" else 1
    bars = [
        Bar(
            short(each.head),
            scale * each.drop,
            amount(each.drop, result.unit).partition(" ")[0],
            scale * each.low,
            scale * each.high,
        )
        for each in effects[:MOST_ROWS]
    ]
    alt = f"Drop without each head of {model.title}: " + "; ".join(f"{bar.name} {bar.text}" for bar in bars)
    return "", partial(draw_bars, bars, drop_label(result)), alt


def _number(drop: float, unit: str) -> str:
    return amount(drop, unit).partition(" ")[0]


def _removed(results: ReportResults) -> Made:
    """Return the content of the card on pruning: how many heads can be removed together at almost no cost.

    It also shows the accuracy that is left without all heads that are harmless when each is removed alone.
    """
    model = results.with_result("pruning")[0]
    result = model.pruning
    assert result is not None, "the model has this result"
    points = [("all heads", result.clean, None, None), *_left(result)]
    bars = [
        Bar(name, shown_score(result, score), f"{shown_score(result, score):.1f}", low, high, is_marked=i == 2)
        for i, (name, score, low, high) in enumerate(points)
    ]
    alt = "Score that is left: " + "; ".join(f"{bar.name} {bar.text}" for bar in bars)
    unit = "right (%)" if result.is_accuracy else result.metric
    draw = partial(draw_bars, bars, f"left: {unit}") if result.is_accuracy else None
    n, alone = result.n_heads, len(result.by_zero)
    if not result.is_accuracy or alone < 2 or result.by_zero_left.drop is None:
        return "", draw, alt
    kept = f"{len(result.chosen)} of {counted(n, 'head')} of {model.title} can be removed together"
    left = f"{percent(result.kept.score)} right"
    text = f"{kept}, which leaves {left}. Removing all {alone} heads that are harmless alone leaves "
    return f"{text}{percent(result.by_zero_left.score)} (n = {result.n:,}).", draw, alt


def _left(result: Pruning) -> list[tuple[str, float, float | None, float | None]]:
    """Return (label, score, low, high) for the model without the chosen heads, and without all heads harmless alone.

    The chosen heads are those that greedy removal takes together. Single heads are harmless if removing each one alone
    costs almost nothing.
    """
    found: list[tuple[str, float, float | None, float | None]] = [
        (f"{len(result.chosen)} removed", result.kept.score, None, None)
    ]
    if len(result.by_zero) > 1 and result.by_zero_left.drop is not None:
        found.append((f"all {len(result.by_zero)} harmless", result.by_zero_left.score, None, None))
    return found


def _travels(results: ReportResults) -> Made:
    """Return the content of the card on routes, which show how an event such as a carry moves through the heads.

    For each route (such as 1s to 10s), the picture shows the head that moves the largest share of the event.
    """
    result: Routes | None = results.with_result("routes")[0].routes
    assert result is not None, "the model has this result"
    bars = []
    for way in result.ways:
        movers = result.movers(way.name)
        if movers:
            first = movers[0]
            bars.append(
                Bar(
                    way.name,
                    100 * first.moved.share,
                    f"{first.what} {100 * first.moved.share:.0f} %",
                    100 * first.moved.low,
                    100 * first.moved.high,
                )
            )
    alt = f"The head that moves most of the {result.event}: " + "; ".join(f"{bar.name} {bar.text}" for bar in bars)
    draw = partial(draw_bars, bars, f"share of {result.event} moved by head (%)") if bars else None
    return "", draw, alt


def _reach(results: ReportResults) -> Made:
    """Return the content of the card on lengths: which models are accurate beyond the training lengths, and how far."""
    models = [(each, each.stretch) for each in results.models if each.stretch is not None and each.stretch.cells]
    kind = hardest_kind([stretch for _, stretch in models])
    reaches = [(model, stretch, reach) for model, stretch in models if (reach := extrapolation_of(stretch, kind))]
    if not reaches:
        return "", None, ""
    bars = [
        Bar(_name(each), float(reach.length), _length_text(reach), is_marked=not reach.length)
        for each, _, reach in reaches
    ]
    alt = "Accurate up to length: " + "; ".join(f"{bar.name} {bar.text}" for bar in bars)
    draw = partial(draw_bars, bars, "accurate up to length", is_log=True)
    if len(reaches) < 2:
        return "", draw, alt
    far = [each.title for each, stretch, reach in reaches if stretch.trained and reach.length > stretch.trained[1]]
    trained = next((stretch.trained for _, stretch, _ in reaches if stretch.trained), None)
    lengths = f"the training lengths, {trained[0]} to {trained[1]}" if trained else "the training lengths"
    who = some(far) if far else "no model"
    n = min(cell.n for _, _, reach in reaches for cell in reach.cells)
    verb = "is" if len(far) < 2 else "are"
    text = f"Beyond {lengths}, {who} {verb} accurate on sorted against unsorted sequences ({kind_words(kind)}) "
    text += f"(n = {n:,} for each length) (one seed)."
    return text, draw, alt


def _length_text(reach: Extrapolation) -> str:
    return f"{reach.length:,}, all tested" if reach.is_complete else f"{reach.length:,}" if reach.length else "none"


MAKERS: dict[str, Callable[[ReportResults], Made]] = {
    "training": _trained,
    "certificate": _right,
    "ablation": _matter,
    "pruning": _removed,
    "routes": _travels,
    "reach": _reach,
}
"""Maps a section's id to the function that returns the answer, the picture and the alt text of its card."""
