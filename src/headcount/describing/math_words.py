"""What results say of each identity: how far off it is, and whether models make use of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headcount.describing.blocks import Sentence
from headcount.describing.identities import EXACT, PLACES, STEPS, sinusoids
from headcount.describing.reaches import HARDEST, hardest, is_plain, named, reach_of, up_to
from headcount.describing.story import Subject
from headcount.describing.words import counted, once, percent, rate
from headcount.stats import Proportion

SYMMETRIC = ("max", "min", "mean", "attention", "lse-max", "score-max")
"""Poolings that know no order."""
SURELY = 0.999
"""Confidence at which a theorem would be contradicted: 95 % contradict it in one report of twenty."""


def identity_sentences(width: int, rotation: float, kernel: float) -> list[Sentence]:
    """Whether they hold, as computed."""
    over = f"for every p up to {PLACES} and k up to {STEPS} at d = {width}"
    if rotation < EXACT:
        text = (
            f"PE(p + k) is one rotation of PE(p), {over}, to within {rotation:.1e}: k further on means the same past "
        )
        text += "the trained positions as before them. A table has no such step."
    else:
        text = f"PE(p + k) is not one rotation of PE(p), {over}: it is {rotation:.1e} off."
    first = Sentence(text, "mathematics-rotation")
    if kernel < EXACT:
        text = f"P_t · P_s depends on t - s alone, to within {kernel:.1e} (t and s up to {PLACES}, d = {width})."
    else:
        text = f"P_t · P_s is {kernel:.1e} off what t - s alone would make it (t and s up to {PLACES}, d = {width})."
    return [first, Sentence(text, "mathematics-kernel")]


# --- what results say of each -----------------------------------------------------------------------------------------


def row_sums(subjects: Sequence[Subject]) -> str:
    """Of the weights that a report shows first."""
    sites = [site for each in subjects for first in each.patterns[:1] for site in first.sites]
    sums = [head.array.sum(axis=-1).ravel() for site in sites for head in site.heads]
    if not sums:
        return ""
    rows = np.concatenate(sums)
    off = float(np.abs(rows - 1).max())
    return f"In the weights that were kept, to 6 digits at most, {len(rows):,} rows sum to 1 to within {off:.1e}."


def proofs(subjects: Sequence[Subject]) -> str:
    """Say what was verified before heads were ablated."""
    found = [proof for each in subjects if each.ablation for proof in each.ablation.proof]
    if not found:
        return ""
    summed, shut = max(each.sum_error for each in found), max(each.shut_error for each in found)
    left = f"to within {shut:.1e}" if shut else "exactly"
    text = (
        f"At {counted(len(found), 'attention block')}, heads and bias add up to the output to within {summed:.1e} of "
        f"its largest entry, and with every g = 0 and r = 0 the bias alone is left, {left}."
    )
    n_followed = sum(each.follows_attention for each in found)
    if n_followed:
        text += f" At {n_followed} of them, each head's slice of z was seen to follow its own attention pattern alone."
    return text


def as_computed(subjects: Sequence[Subject]) -> str:
    """The sinusoids that models have, against these: they compute in single precision."""
    told = []
    for each in subjects:
        profile = each.positions.encoding if each.positions else None
        if profile is None or profile.name != "sinusoidal" or not profile.table:
            continue
        table = np.array(profile.table, dtype=float)
        pairs = sinusoids(np.arange(len(table), dtype=float), table.shape[1]).reshape(len(table), -1)
        off = float(np.abs(table[:, : pairs.shape[1]] - pairs).max())
        told.append(f"What {each.title} adds at {len(table)} positions is this to within {off:.1e} (single precision).")
    return " ".join(told)


def untouched(subjects: Sequence[Subject]) -> str:
    """Rows of learned tables that training never met: weight decay may shrink them, but nothing turns them."""
    told = []
    for each in subjects:
        rows = [] if each.positions is None else [row for row in each.positions.rows if row.state == "never trained"]
        cosines = [row.cosine for row in rows if row.cosine is not None]
        if cosines:
            off = f"{max(0.0, 1 - min(cosines)):.1e}"
            turned = f"cosines to what {'it was' if len(rows) == 1 else 'they were'} are 1 to within {off}"
            told.append(f"Of {counted(len(rows), 'row')} of {each.title} that training never met, {turned}.")
    return " ".join(told)


def pooled_accuracy(subject: Subject, kind: str = HARDEST) -> Proportion | None:
    """Over all lengths, of a model without positions that looks both ways and forgets places; else None."""
    result = subject.stretch
    if result is None or result.encoding != "none" or not is_plain(result) or result.pooling not in SYMMETRIC:
        return None
    cells = [cell for cell in result.cells if cell.negative == kind]
    if not cells:
        return None
    return Proportion.of(sum(round(cell.accuracy * cell.n) for cell in cells), sum(cell.n for cell in cells))


def as_multiset(subjects: Sequence[Subject]) -> str:
    """How often models without positions are right, of all lengths together."""
    found = [(each.title, share) for each in subjects if (share := pooled_accuracy(each)) is not None]
    told = "; ".join(f"{title} is right in {rate(share)}" for title, share in found)
    return f"Measured over all lengths, on sequences of numbers drawn alike: {told}." if told else ""


def multiset_sentences(subjects: Sequence[Subject]) -> list[Sentence]:
    """Whether models without positions keep to 50 %, as they must."""
    sentences = []
    for each in subjects:
        share = pooled_accuracy(each)
        if share is None:
            continue
        text = (
            f"Without positions and with a symmetric pooling, 50 % on {named(HARDEST)} is a theorem: {each.title} is "
        )
        text += f"right in {rate(share)}, "
        wide = Proportion.of(share.correct, share.n, SURELY)
        if share.low <= 0.5 <= share.high:
            text += "as it must be."
        elif wide.low <= 0.5 <= wide.high:
            text += f"which chance allows ({percent(SURELY)} interval {100 * wide.low:.1f} to {100 * wide.high:.1f})."
        else:
            text += "which it cannot be: sorted and unsorted sequences must differ in their numbers."
        sentences.append(Sentence(text, "mathematics-multiset"))
    return sentences


def reached(subjects: Sequence[Subject]) -> list[Sentence]:
    """That a model can is not that it does."""
    sentences = []
    for each in subjects:
        result = each.stretch
        if result is None or not result.trained or result.encoding != "sinusoidal" or not is_plain(result):
            continue
        reach, last = reach_of(result, hardest([result])), result.trained[1]
        if reach is None:
            continue
        if reach.length > last:
            text = "Sinusoidal positions do go on"
        elif reach.most > last:
            text = "Whether sinusoidal positions do go on is undecided"
        else:
            text = "That sinusoidal positions can go on is not that they do"
        text += (
            f": {each.title} ({once(each.settings)}), trained on lengths up to {last}, is right on {named(reach.kind)} "
        )
        text += f"{up_to(reach)} (n = {reach.cells[-1].n:,} per length, lengths up to {reach.cells[-1].length:,})."
        sentences.append(Sentence(text, "mathematics-measured", reach.length > last or reach.most <= last))
    return sentences
