"""Why do sinusoidal encodings extrapolate and learned tables not?

The section lists the mathematical identities behind attention and position encodings. Each identity has its numerical
error, or what the results of the models say about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headcount.describing.blocks import (
    Block,
    Brackets,
    Cell,
    Conclusions,
    DataTable,
    Formula,
    Fraction,
    Lines,
    Matrix,
    Paragraph,
    Root,
    Row,
    Script,
    Section,
    Sentence,
    Words,
)
from headcount.describing.extrapolation import HARDEST, extrapolation_of, hardest_kind, is_plain, kind_words
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import counted, interval, once, percent, rate
from headcount.figures.length_generalisation import given_structure
from headcount.stats import Proportion
from headcount.tasks import is_class_task

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import Stretch

Array = NDArray[np.float64]
PLACES, STEPS = 512, 64
"""Largest position p, and largest step k, for which the identities are computed."""
EXACT = 1e-9
"""Errors below this are rounding errors of double precision."""
SYMMETRIC = ("max", "min", "mean", "attention", "lse-max", "score-max", "top-score")
"""Names of poolings whose output does not depend on the order of the positions."""
SURELY = 0.999
"""Confidence level at which a result is said to contradict a theorem; at 95 %, one report in twenty would by chance."""

# --- formulas ---------------------------------------------------------------------------------------------------------

ATTENTION = Formula(
    "mathematics-attention",
    "A head compares each query with all keys. Its attention weights add up to 1 for each query, and its output is the "
    "weighted mean of the values.",
    ("Attention(Q, K, V) = softmax", Brackets(Fraction(("Q", Script("K", above="⊤")), Root("d"))), "V"),
)
GATE = Formula(
    "mathematics-gate",
    "A head's output before the output projection is a vector z. Ablation multiplies it with a gate g: for g = 1, z is "
    "kept; for g = 0, z is replaced by r, which is zero, the mean of z, or z on another example.",
    Lines(
        (
            (Script("z", above="′"), "= g z + (1 − g) r"),
            ("output =", Script("∑", below="h"), Script("z", below="h", above="′"), "W_h + b"),
        )
    ),
)
SINUSOIDAL = Formula(
    "mathematics-sinusoidal",
    "Sinusoidal encodings are computed from the position p alone, so they exist for every position.",
    Lines(
        (
            "PE(p, 2i) = sin(p ω_i)",
            "PE(p, 2i + 1) = cos(p ω_i)",
            ("ω_i =", Script("10000", above="−2i/d")),
        )
    ),
)
ROTATION = Formula(
    "mathematics-rotation",
    "A step of k positions is the same rotation of each pair of dimensions at every position p, trained or not.",
    Lines(
        (
            "PE(p + k) = R(k) PE(p)",
            ("R_i(k) =", Matrix((("cos(k ω_i)", "sin(k ω_i)"), ("−sin(k ω_i)", "cos(k ω_i)")))),
        )
    ),
)
KERNEL = Formula(
    "mathematics-kernel",
    "The similarity of two sinusoidal position vectors therefore depends on their distance t − s alone.",
    ("P_t · P_s =", Script("∑", below="i"), "cos(ω_i (t − s))"),
)
LEARNED = Formula(
    "mathematics-learned",
    "A learned encoding is a table with one row per position. A row that no training example uses gets no gradient and "
    "keeps its random initial direction.",
    Lines(("P_p = E_p", (Fraction("∂L", "∂E_q"), "= 0", Words("for every position q that no training example has")))),
)
MULTISET = Formula(
    "mathematics-multiset",
    "Without a position encoding, bidirectional attention treats all positions alike, and a symmetric pooling ignores "
    "their order. Such a model is a function of the multiset of its numbers (which numbers occur, and how often): it "
    "cannot tell a sequence from its sorted version.",
    (
        "f(x_1, …, x_n) = f(",
        Script("x", below="π(1)"),
        ", …,",
        Script("x", below="π(n)"),
        ")",
        Words("for every permutation π"),
    ),
)

# --- numerical errors -------------------------------------------------------------------------------------------------


def frequencies(d_model: int) -> Array:
    """Return the frequency ω_i of every pair of dimensions; an odd last dimension is left out, as it has no pair."""
    return 10000.0 ** (-2 * np.arange(d_model // 2) / d_model)


def sinusoids(places: Array, d_model: int) -> Array:
    """Return the sinusoidal encoding of the given positions as an array [position, dimension pair, (sine, cosine)]."""
    angles = places[:, None] * frequencies(d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1)


def rotation_error(d_model: int, places: int = PLACES, steps: int = STEPS) -> float:
    """Return the largest absolute entry of PE(p + k) - R(k) PE(p), over all p up to `places` and k up to `steps`."""
    table, w, largest = sinusoids(np.arange(places + steps + 1.0), d_model), frequencies(d_model), 0.0
    for k in range(steps + 1):
        cos, sin = np.cos(k * w), np.sin(k * w)
        here, there = table[: places + 1], table[k : places + 1 + k]
        rotated = np.stack([cos * here[..., 0] + sin * here[..., 1], cos * here[..., 1] - sin * here[..., 0]], axis=-1)
        largest = max(largest, float(np.abs(there - rotated).max(initial=0.0)))
    return largest


def kernel_error(d_model: int, places: int = PLACES) -> float:
    """Return the largest |PE(t) · PE(s) - ∑_i cos(ω_i (t - s))|, over all t and s up to `places`."""
    at = np.arange(places + 1.0)
    table = sinusoids(at, d_model).reshape(places + 1, -1)
    expected = np.cos(at[:, None] * frequencies(d_model)).sum(axis=1)
    distance = np.abs(at[:, None] - at[None, :]).astype(np.int64)
    return float(np.abs(table @ table.T - expected[distance]).max())


def identity_sentences(width: int, rotation: float, kernel: float) -> list[Sentence]:
    """Return sentences on whether the identities of sinusoidal encodings hold, given their numerical errors."""
    over = f"all p up to {PLACES} and k up to {STEPS} at d = {width}"
    if rotation < EXACT:
        text = f"Sinusoidal encodings satisfy PE(p + k) = R(k) PE(p) for {over}, to within {rotation:.1e}. A step of "
        text += "k positions is therefore the same rotation at trained and untrained positions; a learned table has no "
        text += "such rotation."
    else:
        text = f"Sinusoidal encodings do not satisfy PE(p + k) = R(k) PE(p) for {over}: the largest error is "
        text += f"{rotation:.1e}."
    bounds = f"(t and s up to {PLACES}, d = {width})"
    if kernel < EXACT:
        product = f"The similarity P_t · P_s of two positions depends on t - s alone, to within {kernel:.1e} {bounds}."
    else:
        product = "The similarity P_t · P_s of two positions does not depend on t - s alone: the largest error is "
        product += f"{kernel:.1e} {bounds}."
    return [Sentence(text, ROTATION.id), Sentence(product, KERNEL.id)]


# --- what results say about each formula ------------------------------------------------------------------------------


def formulas(models: Sequence[ModelResults], width: int, rotation: float, kernel: float) -> list[Formula]:
    """Return every formula of the section, with its numerical error or with what the models' results say about it.

    `rotation` and `kernel` are the numerical errors of two identities of sinusoidal encodings of the given width.
    """
    computed = f"Computed at d = {width} in double precision: the largest error is {{:.1e}} over all {{}}."
    errors = [
        (ATTENTION, _row_sums(models)),
        (GATE, _proofs(models)),
        (SINUSOIDAL, _table_errors(models)),
        (ROTATION, computed.format(rotation, f"p up to {PLACES} and k up to {STEPS}")),
        (KERNEL, computed.format(kernel, f"t and s up to {PLACES}")),
        (LEARNED, untrained_rows(models)),
    ]
    if any(is_class_task(each.task) for each in models):
        errors.append((MULTISET, _multiset_accuracies(models)))
    return [replace(formula, error=error) for formula, error in errors]


def _row_sums(models: Sequence[ModelResults]) -> str:
    """Return a sentence on how close the sum of attention weights of each query is to 1; empty without weights."""
    sites = [site for each in models for first in each.patterns[:1] for site in first.sites]
    sums = [head.array.sum(axis=-1).ravel() for site in sites for head in site.heads]
    if not sums:
        return ""
    rows = np.concatenate(sums)
    error = float(np.abs(rows - 1).max())
    text = f"The stored attention weights have {len(rows):,} rows, one per head and query. The "
    text += "weights of each row add up to 1, to "
    return f"{text}within {error:.1e}."


def _proofs(models: Sequence[ModelResults]) -> str:
    """Return sentences on what was verified at attention blocks before heads were ablated; empty without ablations."""
    sites = [proof for each in models if each.ablation for proof in each.ablation.proof]
    if not sites:
        return ""
    summed, shut = max(each.sum_error for each in sites), max(each.shut_error for each in sites)
    bias = f"to within {shut:.1e}" if shut else "exactly"
    text = f"Verified at {counted(len(sites), 'attention block')}: head contributions + bias = block output (max error "
    text += f"{summed:.1e} of the largest entry); with all heads off, only the bias remains, {bias}."
    if n_followed := sum(each.follows_attention for each in sites):
        text += f" At {n_followed} of {len(sites)}, each head's slice of z depends on its own attention pattern alone."
    return text


def _table_errors(models: Sequence[ModelResults]) -> str:
    """Return sentences on how closely the models' sinusoidal tables, in single precision, agree with the formula."""
    sentences = []
    for each in models:
        profile = each.positions.encoding if each.positions else None
        if profile is None or profile.name != "sinusoidal" or not profile.table:
            continue
        table = np.array(profile.table, dtype=float)
        pairs = sinusoids(np.arange(len(table), dtype=float), table.shape[1]).reshape(len(table), -1)
        error = float(np.abs(table[:, : pairs.shape[1]] - pairs).max())
        sentences.append(
            f"The encoding of {each.title} equals this formula at {len(table)} positions, to within {error:.1e}."
        )
    return " ".join(sentences)


def untrained_rows(models: Sequence[ModelResults]) -> str:
    """Return sentences on whether rows of learned position tables that training never used kept their direction.

    Weight decay makes such rows shorter but does not change their direction.
    """
    sentences = []
    for each in models:
        rows = [] if each.positions is None else [row for row in each.positions.rows if row.state == "never trained"]
        cosines = [row.cosine for row in rows if row.cosine is not None]
        if cosines:
            text = (
                f"The table of {each.title} has {counted(len(rows), 'row')} that no training example used; the cosine "
            )
            text += f"similarity to the initial value{'' if len(rows) == 1 else 's'} is 1, to within "
            text += f"{max(0.0, 1 - min(cosines)):.1e}."
            sentences.append(text)
    return " ".join(sentences)


def _accuracy_without_order(model: ModelResults, kind: str = HARDEST) -> Proportion | None:
    """Return the accuracy over all lengths of a model that cannot see the order of its numbers; None for others.

    Such a model has no position encoding and a symmetric pooling. `kind` is a kind of negative (unsorted sequence).
    """
    result = model.stretch
    if result is None or result.encoding != "none" or not is_plain(result) or result.pooling not in SYMMETRIC:
        return None
    cells = [cell for cell in result.cells if cell.negative == kind]
    if not cells:
        return None
    return Proportion.of(sum(round(cell.accuracy * cell.n) for cell in cells), sum(cell.n for cell in cells))


def _multiset_accuracies(models: Sequence[ModelResults]) -> str:
    """Return a sentence with the accuracy over all lengths of each model that cannot see order; empty without any."""
    shares = [(each.title, share) for each in models if (share := _accuracy_without_order(each)) is not None]
    texts = "; ".join(f"{title} {rate(share)}" for title, share in shares)
    return f"Measured accuracy over all lengths: {texts}." if texts else ""


def multiset_sentences(models: Sequence[ModelResults]) -> list[Sentence]:
    """Return sentences on whether each model that cannot see order has the 50 % accuracy that a theorem requires."""
    sentences = []
    for each in models:
        share = _accuracy_without_order(each)
        if share is None:
            continue
        wide = Proportion.of(share.correct, share.n, SURELY)
        if share.low <= 0.5 <= share.high:
            verdict = "as the theorem requires"
        elif wide.low <= 0.5 <= wide.high:
            ends = interval(wide.low, wide.high).replace("95 %", percent(SURELY), 1)
            verdict = f"which is within chance ({ends})"
        else:
            verdict = "which contradicts the theorem: sorted and unsorted sequences must differ in their numbers"
        text = "By a theorem, a model without a position encoding and with a symmetric pooling has 50 % accuracy on "
        text += f"{kind_words(HARDEST)}"
        sentences.append(Sentence(f"{text}: {each.title} gets {rate(share)}, {verdict}.", MULTISET.id))
    return sentences


def extrapolation_sentences(models: Sequence[ModelResults]) -> list[Sentence]:
    """Return sentences on whether each model with sinusoidal positions, and no built-in structure, extrapolates."""
    sentences = []
    for each in models:
        result = each.stretch
        if result is None or not result.trained or result.encoding != "sinusoidal" or not is_plain(result):
            continue
        reach, last = extrapolation_of(result, hardest_kind([result])), result.trained[1]
        if reach is None:
            continue
        if reach.length > last:
            text = "Sinusoidal encodings do extrapolate"
        elif reach.longest_possible > last:
            text = "It is undecided whether sinusoidal encodings do extrapolate"
        else:
            text = "Sinusoidal encodings could extrapolate but do not"
        text += f": {each.title} ({once(each.settings)}), trained on lengths up to {last}, is accurate on "
        text += f"{kind_words(reach.kind)} {reach.words} (n = {reach.cells[-1].n:,} per length, lengths up to "
        text += f"{reach.cells[-1].length:,})."
        sentences.append(Sentence(text, "mathematics-measured", reach.length > last or reach.longest_possible <= last))
    return sentences


# --- the section of a report ------------------------------------------------------------------------------------------

D_MODEL = 128
"""The width (d_model) for which formulas are computed if no model's width is known."""
TITLE = "Why sinusoidal encodings extrapolate and learned tables do not"
PREDICTIONS = {
    "sinusoidal": "the same step at every position: can extrapolate",
    "learned": "untrained rows beyond the training lengths: cannot extrapolate",
    "none": "sees which numbers occur but not their order: cannot solve the task",
    "length-normalised": "a different step at every length",
}
"""Maps a position encoding to what the mathematics predicts about extrapolation."""


def section(results: ReportResults) -> Section | None:
    """Return the section on the mathematics of position encodings; None if no model has a task."""
    models = [each for each in results.models if each.task]
    if not models:
        return None
    width = width_of(models)
    errors = rotation_error(width), kernel_error(width)
    measured = _measured(models)
    sentences = [*identity_sentences(width, *errors), *multiset_sentences(models), *extrapolation_sentences(models)]
    words = "Mathematics says what an encoding makes possible. Only a measurement says whether a model uses it."
    blocks: list[Block] = [Paragraph(words), Conclusions(tuple(sentences)), *formulas(models, width, *errors)]
    return Section("mathematics", TITLE if measured else "The mathematics", (*blocks, *measured))


def width_of(models: Sequence[ModelResults]) -> int:
    """Return the width (d_model) of the first sinusoidal model, else of the first model whose width is known."""
    ordered = sorted(models, key=lambda each: each.settings.get("encoding") != "sinusoidal")
    for each in ordered:
        table = each.positions.encoding.table if each.positions else None
        width = each.settings.get("d_model") or (len(table[0]) if table else 0)
        if isinstance(width, int) and width > 1:
            return width
    return D_MODEL


def _measured(models: Sequence[ModelResults]) -> list[DataTable]:
    """Return a table that compares, for each model, the predicted extrapolation with the measured one; or no table."""
    rows = list[Row]()
    for each in models:
        result = each.stretch
        reach = extrapolation_of(result, hardest_kind([result])) if result else None
        if result is None or reach is None or result.encoding not in PREDICTIONS or not result.trained:
            continue
        rows.append(
            (
                each.title,
                f"{result.label} ({given_structure(result)})",
                _prediction(each, result),
                Cell(str(result.trained[1]), result.trained[1]),
                Cell(reach.words, reach.length),
            )
        )
    if not rows:
        return []
    columns = (
        "model",
        "configuration",
        "prediction for its encoding",
        "trained up to",
        "accurate on the hardest unsorted sequences",
    )
    note = "The section on length generalisation has the accuracies."
    return [DataTable("mathematics-measured", "Prediction and measurement", columns, tuple(rows), note)]


def _prediction(model: ModelResults, result: Stretch) -> str:
    """Return in words what the mathematics predicts about the extrapolation of a model.

    There is no prediction for a model without a position encoding that sees order in another way, as by a causal mask.
    """
    if result.encoding != "none" or is_plain(result):
        return PREDICTIONS[result.encoding]
    if model.settings.get("causal"):
        return "no prediction: its causal mask reveals order, because a number sees only the numbers before it"
    return "no prediction: order enters through another part of the model"


PART = section
