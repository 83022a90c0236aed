"""How important is each head alone? Rank heads by ablation; describe the method, and which answers become wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headcount.bands import BANDS, FEW, LIMITS, limit_text
from headcount.describing.blocks import (
    Block,
    Cell,
    Conclusions,
    DataTable,
    Notice,
    Paragraph,
    Picture,
    Row,
    Section,
    Sentence,
)
from headcount.describing.leader import Leader, leader
from headcount.describing.report import ModelResults, ReportResults, section_by_model
from headcount.describing.sections.reproduce import ablate_command
from headcount.describing.words import amount, amount_cell, amount_interval, counted, fraction, short, some
from headcount.figures.ablation import clean_text, draw_ranking, drop_label, is_remeasured, score_text

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, AblationCondition, Effect
    from headcount.experiments.decoding_check import FailureProfile

ACTIONS = {
    "zero": "removing {}",
    "resample": "replacing {}'s output with its output on another example",
    "mean": "replacing {}'s output with its mean",
}
"""Maps each kind of ablation to a phrase on what it does to a head."""
BAND_NOTE = "The band of a head says where the whole 95 % CI of its drop lies: "
BAND_NOTE += f"{'; '.join(f'{band}: {limit}' for band, limit in LIMITS.items())}."
MOST_FAULTS = 6
"""Largest number of kinds of error that a table lists about answers which become wrong without one head."""


def describe(result: Ablation) -> list[Block]:
    """Return report blocks on an ablation, for each sequence length: ranking, conclusions, method, broken answers."""
    blocks: list[Block] = []
    for i, condition in enumerate(result.conditions):
        name = "ablation" if condition.length is None else f"ablation-{condition.length}"
        blocks += [
            ranking_table(result, condition, f"{name}-ranking"),
            Conclusions(tuple(conclusions(result, condition))),
            *warnings(result, condition),
            *_band_tables(result, condition, f"{name}-bands"),
            *_gradient_tables(condition, f"{name}-gradients"),
            *(Paragraph(note) for note in _method_notes(result, condition, is_last=i + 1 == len(result.conditions))),
            *_failure_tables(result, condition, f"{name}-failures"),
        ]
    return blocks


def action(replacement: str, head: str = "a head") -> str:
    """Return a phrase on what a kind of ablation does to a head.

    >>> action("zero"), action("mean", "E0H1"), action("noise", "E0H1")
    ('removing a head', "replacing E0H1's output with its mean", "replacing E0H1's output (noise)")
    """
    return ACTIONS.get(replacement, f"replacing {{}}'s output ({replacement})").format(head)


# --- which head is most important -------------------------------------------------------------------------------------


def conclusions(result: Ablation, condition: AblationCondition, title: str = "", rests_on: str = "") -> list[Sentence]:
    """Return sentences on the most important head, on redundant heads, and on whether kinds of ablation agree."""
    leaders = {name: costliest(result, condition, name) for name in result.replacements}
    first = leaders[result.ranked_by]
    sentences = [Sentence(leader_text(result, result.ranked_by, first, title), is_decided=first.is_decided)]
    if "resample" in leaders and result.ranked_by != "resample":
        top = leaders["resample"]
        sentences.append(Sentence(leader_text(result, "resample", top), is_decided=top.is_decided))
    sentences += _redundant(result, condition) if first.top.band else []
    tops = {name: ranking.top.short for name, ranking in leaders.items() if ranking.is_shown}
    sentences += agreement_sentences("head", tops)
    return [Sentence(each.text, rests_on, each.is_decided) for each in sentences]


def costliest(result: Ablation, condition: AblationCondition, replacement: str) -> Leader[Effect]:
    """Return the head with the largest drop under one kind of ablation, and the heads that may cost as much."""
    effects = [effects[replacement] for effects in result.ranking(condition.length).values()]
    return leader(effects, lambda effect: (effect.drop, effect.low, effect.high), bound=0)


def leader_text(result: Ablation, replacement: str, ranking: Leader[Effect], title: str = "") -> str:
    """Return a sentence on which head is most important under one kind of ablation, or that this is undecided.

    `E1H2 is the most important head of the adder: removing it costs 33.0 points (95 % CI 32.5-33.5, n = 40,000).`
    """
    top, of = ranking.top, f" of {title}" if title else ""
    by = "" if replacement == "zero" else f" under {replacement} ablation"
    doubt = f"{amount_interval(top.low, top.high, result.unit)}, n = {top.n:,}"
    cost = f"{amount(top.drop, result.unit)} ({doubt})"
    removing = f"{'removing ' if replacement == 'zero' else ''}{top.short} costs {cost}"
    if not ranking.is_shown:
        return f"It is undecided whether any head{of} matters{by}: {removing}, which is the largest drop."
    if ranking.rivals:
        names = some([effect.short for effect in ranking.rivals], 4)
        return f"It is undecided which head{of} is most important{by}: {removing}, and {names} may cost as much."
    return f"{top.short} is the most important head{of}{by}: {'removing it' if not by else 'it'} costs {cost}."


def _redundant(result: Ablation, condition: AblationCondition) -> list[Sentence]:
    """Return a sentence on how many heads are redundant: under the kind of ablation that ranks heads, and under all."""
    effects = result.effects(result.ranked_by, condition.length)
    redundant, undecided = ([e.short for e in effects if e.band == band] for band in ("redundant", "undecided"))
    text = f"For {fraction(len(redundant), len(effects))}, the 95 % CI of the drop under {result.ranked_by} ablation "
    text += f"lies {LIMITS['redundant']}"
    text += f", so {'it is' if len(redundant) == 1 else 'they are'} redundant" if redundant else ""
    text += f"; for {some(undecided)}, this is undecided." if undecided else "."
    if len(result.replacements) > 1:
        heads = [short(head) for head in result.harmless(condition.length)]
        names = f": {some(heads, 24)}" if heads else ""
        verb = "is" if len(heads) == 1 else "are"
        text += f" {counted(len(heads), 'head')} {verb} redundant under every ablation ({some(result.replacements)})"
        text += f"{names}."
    return [Sentence(f"{text} How many heads can be removed together is a different question.")]


def agreement_sentences(noun: str, costliest_by: Mapping[str, str]) -> list[Sentence]:
    """Return a sentence on whether all kinds of ablation find the same costliest head or block; none for one kind.

    `costliest_by` maps each kind of ablation to the name of its costliest head or block.

    >>> [each.text for each in agreement_sentences("head", {"zero": "E0H0", "mean": "E0H0"})]
    ['E0H0 has the largest drop under every ablation (zero and mean).']
    """
    if len(costliest_by) < 2:
        return []
    if len(names := set(costliest_by.values())) == 1:
        return [Sentence(f"{names.pop()} has the largest drop under every ablation ({some(list(costliest_by))}).")]
    pairs = some([f"{name} under {replacement} ablation" for replacement, name in costliest_by.items()])
    return [Sentence(f"The {noun} with the largest drop depends on the ablation: {pairs}.", is_decided=False)]


def warnings(result: Ablation, condition: AblationCondition) -> list[Notice]:
    """Return warnings if the model is no better than guessing, or if a few examples make up most of a drop."""
    effects = [effect for by in result.replacements for effect in result.effects(by, condition.length)]
    clean, proves = clean_text(result, condition), "A head that costs nothing here proves nothing."
    baseline = score_text(result, *[condition.majority_baseline] * 3).partition(" [")[0]
    texts = []
    if result.unit == "points" and not any(effect.band for effect in effects):
        texts.append(
            f"No head gets a band of importance: the model scores {clean} with all heads, and the best constant "
            f"answer scores {baseline}. {proves}"
        )
    if result.unit == "nats" and condition.clean <= condition.majority_baseline:
        texts.append(
            f"The model is no better than guessing: its loss is {clean} nats with all heads, and equal probabilities "
            "for "
            f"all {math.exp(-condition.majority_baseline):,.0f} tokens or classes give {baseline}. {proves}"
        )
    few = [effect for effect in effects if effect.carried > 0.5 and effect.n > 2 * FEW]
    if result.unit != "points" and few:
        names = some([f"{effect.short} ({effect.replacement})" for effect in few], 8)
        least = min(effect.n for effect in few)
        texts.append(
            f"For {names}, ten of {least:,}{' or more' if condition.stopping else ''} examples make up over half of "
            "the total absolute difference. With more examples, the drop may change."
        )
    return [Notice("warn", text) for text in texts]


# --- tables -----------------------------------------------------------------------------------------------------------


def ranking_table(
    result: Ablation, condition: AblationCondition, name: str, command: str = "", title: str = ""
) -> DataTable:
    """Return a table of the drop of every head under every kind of ablation; the costliest head comes first."""
    gradients = {each.head: each.importance for each in condition.importances}
    rows = [
        (
            Cell(short(head)),
            Cell(effects[result.ranked_by].rank, i),
            *([Cell(f"{gradients[head]:.1e}", gradients[head])] if gradients else []),
            *(_drop_cell(result, condition, effects[by]) for by in result.replacements),
            *([_n_cell(effects.values())] if condition.stopping else []),
        )
        for i, (head, effects) in enumerate(result.ranking(condition.length).items())
    ]
    columns = ("head", f"rank ({result.ranked_by})", *(["gradient"] if gradients else []))
    about = f"{clean_text(result, condition)} with all heads, n = {condition.n:,} ({condition.data})"
    caption = f"{title or result.name or 'model'}: {drop_label(result)} without each head; {about}"
    note = _ranking_note(result, condition)
    columns = (*columns, *result.replacements, *(["n"] if condition.stopping else []))
    return DataTable(name, caption, columns, tuple(rows), note, command)


def _n_cell(effects: Iterable[Effect]) -> Cell:
    """Return a table cell with the number of examples on which a head was ablated, such as `540` or `540-6,241`."""
    numbers = sorted(effect.n for effect in effects)
    return Cell("-".join(f"{n:,}" for n in dict.fromkeys((numbers[0], numbers[-1]))), numbers[-1])


def stopping_sentence(result: Ablation, condition: AblationCondition) -> str:
    """Return sentences on how many examples each head was measured, and on the rule that decided it.

    A head is measured until its band (critical, important, redundant) is decided and its 95 % CI is narrow enough.
    """
    assert condition.stopping is not None, "the number of examples was not fixed"
    rule = condition.stopping
    band = "its band was decided and " if result.unit == "points" else ""
    width = f"{limit_text(rule.precision, result.unit or result.metric)} to either side"
    return (
        f"Each head was measured on as many examples (n) as it took until {band}its 95 % CI was at most {width}, but "
        f"on at most {rule.most:,}. The intervals and p-values allow for checking the results several times."
    )


def _drop_cell(result: Ablation, condition: AblationCondition, effect: Effect) -> Cell:
    """Return a table cell with the drop of a head, its 95 % CI and its band, such as `16.60 [14.99, 18.30] critical†`.

    A dagger marks a head that was measured again on other examples.
    """
    cell = amount_cell(effect.drop, effect.low, effect.high, result.unit)
    text = f"{cell.text} {effect.band or ''}".rstrip() + "†" * is_remeasured(condition, effect)
    return Cell(text, cell.value, "strong" if effect.p < 0.05 else "")


def _ranking_note(result: Ablation, condition: AblationCondition) -> str:
    """Return the note below the table of ranked heads: what intervals, bold type, ranks, daggers and columns mean."""
    n_heads = len(result.ranking(condition.length))
    test = "permutation test" if result.unit == "points" else "bootstrap-t"
    test = "exact McNemar test" if result.is_accuracy else test
    sentences = [
        "Each drop has its own 95 % CI in brackets.",
        f"Bold or starred: p < 0.05 ({test}, Holm correction over the {n_heads} heads of each ablation).",
        "A rank is a range where intervals overlap.",
    ]
    if condition.decided_on:
        sentences.append(
            f"†: removing this head changes an answer, so the head was measured again on {condition.decided_on}, and "
            "the table has this second measurement."
        )
    if condition.stopping:
        sentences.append(stopping_sentence(result, condition))
    sentences += [f"{name.capitalize()}: {action(name)}." for name in result.replacements]
    if condition.importances:
        sentences.append(
            "Gradient: the mean over examples of |dL/dg|, where L is the loss and g = 1 is a factor that multiplies "
            "the head's output."
        )
    return " ".join(sentences)


def _band_tables(result: Ablation, condition: AblationCondition, name: str) -> list[DataTable]:
    """Return a table of how many heads are critical, important, redundant or undecided, under each kind of ablation.

    For undecided heads, it has the number of examples that would decide.
    """
    rows = list[Row]()
    for replacement in sorted(result.replacements, key=lambda each: each != result.ranked_by):
        effects = result.effects(replacement, condition.length)
        counts = [sum(effect.band == band for effect in effects) for band in BANDS]
        undecided = [f"{effect.short} ({_examples_needed(effect)})" for effect in effects if effect.band == "undecided"]
        cells = (Cell(str(n), n) for n in counts)
        rows.append((replacement, *cells, some(undecided, 5) if undecided else ""))
    if not any(effect.band for effect in result.effects(result.ranked_by, condition.length)):
        return []
    columns = ("ablation", *BANDS, "number of examples that would decide")
    return [DataTable(name, "Heads in each band", columns, tuple(rows), BAND_NOTE)]


def _examples_needed(effect: Effect) -> str:
    """Return how many examples would decide whether a head is critical, important or redundant: `1,100 to 17,000`."""
    least, most = effect.examples_needed, effect.examples_needed_most
    if least is None:
        return "no number: the drop lies at a limit"
    return f"{_rounded(least)} or more" if most is None else f"{_rounded(least)} to {_rounded(most)}"


def _rounded(n: int) -> str:
    """Return a number, rounded to two significant digits, as text.

    >>> _rounded(98765)
    '99,000'
    """
    return f"{int(float(f'{n:.1e}')):,}"


def _gradient_tables(condition: AblationCondition, name: str) -> list[DataTable]:
    """Return a table of rank correlations between the importance of heads by gradient and by ablation."""
    rows = list[Row]()
    for each in condition.agreements:
        gradient = "divided by the norm over its block" if each.normalised else "not normalised"
        correlation = each.found
        if correlation is None:
            rows.append((each.replacement, gradient, Cell("all drops are equal"), Cell(""), Cell("")))
            continue
        rho = Cell(f"{correlation.rho:.2f} [{correlation.low:.2f}, {correlation.high:.2f}]", correlation.rho)
        ties = Cell(f"{correlation.tied} of {each.n_heads}", correlation.tied)
        rows.append((each.replacement, gradient, rho, Cell(f"{correlation.p:.4f}", correlation.p), ties))
    columns = ("ablation", "gradient", "rank correlation [95 % CI]", "p", "tied drops")
    caption = "Does gradient importance rank heads as ablation does? (Spearman)"
    return [DataTable(name, caption, columns, tuple(rows), is_folded=True)] if rows else []


# --- the method -------------------------------------------------------------------------------------------------------


def _method_notes(result: Ablation, condition: AblationCondition, *, is_last: bool) -> list[str]:
    """Return notes on how the replacements of head outputs were drawn, and on what was verified beforehand.

    A condition is one sequence length. For the last one (`is_last`), a note says what was verified at attention blocks.
    """
    notes = []
    if condition.n_mean:
        notes.append(
            f"Mean ablation uses the mean over {condition.n_mean:,} inputs. The intervals include the noise of this "
            "mean; the p-values take it as fixed."
        )
    if condition.donors:
        notes.append(
            f"Resample ablation takes the output from {counted(condition.donors, 'other example')}"
            f"{' in turn' if condition.donors > 1 else ''}. Such an output does not fit the rest of the example, so "
            "the drop also includes the errors that it causes in later layers."
        )
    if condition.is_plain:
        notes.append(
            "Modules of this model keep state between calls, so each ablation needed a whole forward pass, which is "
            "slower."
        )
    if condition.decoded:
        is_all = set(condition.decoded_replacements) >= set(result.replacements)
        which = "" if is_all else f" {' and '.join(condition.decoded_replacements)}"
        notes.append(
            f"{condition.decoded:,} answers under{which} ablation were also decoded token by token, with equal results."
        )
    return [*notes, *([_proof_sentence(result)] if is_last and result.proof else [])]


def _proof_sentence(result: Ablation) -> str:
    """Return a sentence on what was verified at the attention blocks before heads were ablated."""
    n, n_followed = len(result.proof), sum(each.follows_attention for each in result.proof)
    parts = [
        f"head contributions + bias = block output (max error {max(each.sum_error for each in result.proof):.0e})",
        "with all heads off, only the bias remains",
    ]
    own_pattern = "each head's output depends only on its own attention pattern"
    unchecked = "" if n_followed == n else f" At {n - n_followed} of them, it was not checked whether {own_pattern}."
    verified = "; ".join(parts if unchecked else [*parts, own_pattern])
    names = ", ".join(each.site for each in result.proof if not each.is_used)
    unused = f" Noise in place of the heads of {names} does not change the model's output." if names else ""
    return f"Verified at {counted(n, 'attention block')}: {verified}.{unchecked}{unused}"


# --- what broke -------------------------------------------------------------------------------------------------------


def _failure_tables(result: Ablation, condition: AblationCondition, name: str) -> list[DataTable]:
    """Return one table per head without which answers become wrong; the head with most such answers comes first."""
    broken = [each for each in condition.failures if each.n_broken]
    broken.sort(key=lambda each: (result.replacements.index(each.replacement), -each.n_broken))
    return [_failure_table(condition, each, f"{name}-{each.replacement}-{short(each.head)}") for each in broken]


def _failure_table(condition: AblationCondition, profile: FailureProfile, name: str) -> DataTable:
    """Return a table of how many answers in each group of examples become wrong without one head, with examples."""
    groups = (*profile.places, *profile.faults[:MOST_FAULTS], *profile.groups)
    rows = [(f"{each.facet}: {each.group}", f"{each.broken:,} of {each.n:,}") for each in groups if each.broken]
    rows += [
        (f"{each.example}: predicted {each.predicted}, should be {each.right}", each.explanation)
        for each in profile.examples
    ]
    is_one_of = profile.replacement == "resample" and condition.donors > 1
    donor = f", output of the first of {condition.donors} other examples" if is_one_of else ""
    caption = f"Without {profile.head} ({profile.replacement} ablation{donor}): {profile.n_broken:,} of {profile.n:,} "
    caption += "answers become wrong"
    return DataTable(
        name, caption, ("group or example", "become wrong, or what went wrong"), tuple(rows), is_folded=True
    )


# --- the section of a report ------------------------------------------------------------------------------------------

EXPLANATION = (
    "Zero ablation removes a head: it sets the head's output to zero where it enters the residual stream. Heads are "
    "ranked by how much accuracy that costs (or how far the loss rises). Resample ablation replaces the output with "
    "the head's output on another example. This misleads the model, so a head that can be removed at no cost may cost "
    "much here. Mean ablation replaces the output with the head's mean output. It was verified that every ablation "
    "changes what it should. Each drop compares the model with and without the head on the same examples."
)


def section(results: ReportResults) -> Section | None:
    """Return the section on every model whose heads were ablated one at a time; None without any."""
    models = results.with_result("ablation")
    return section_by_model(results, "ablation", "How important is each head alone?", EXPLANATION, models, _described)


def _described(model: ModelResults, name: str) -> tuple[list[Sentence], list[Block]]:
    """Return two lists about one model: sentences on its ablation, and blocks (warnings, figure and ranking)."""
    result = model.ablation
    assert result is not None, "only models with an ablation are described"
    condition, command = result.conditions[0], ablate_command(model)
    alt = leader_text(result, result.ranked_by, costliest(result, condition, result.ranked_by))
    caption = f"Drop without each head of {model.title}, one head at a time ({condition.data}, n = {condition.n:,})"
    return conclusions(result, condition, model.title, name), [
        *warnings(result, condition),
        Picture(name, caption, alt, lambda: draw_ranking(result, condition), command),
        ranking_table(result, condition, f"{name}-ranking", command, model.title),
    ]


PART = section
