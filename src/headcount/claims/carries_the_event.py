"""The claim that heads, patched together, move an event such as the carry into a place of the answer."""

from __future__ import annotations

from dataclasses import replace

import torch

from headcount import bands
from headcount.analysis import routes
from headcount.claims._ways import construction, way_into
from headcount.claims.base import ClaimCase, ClaimKind, Evidence, Judgement
from headcount.errors import InputError
from headcount.hooks.gates import eval_mode
from headcount.limits import MIN_N, N_VERDICT
from headcount.tasks.base import with_article

SETS = "sets of four examples"
"""What `n` counts: sets of four examples in which one token rises in equal steps; the middle step adds a carry."""
LEAST_UNCHANGED = 0.95
"""Smallest fraction of answers that must stay right when heads get outputs of examples with the same event (carry)."""


def measure(case: ClaimCase) -> Judgement:
    """Patch the heads of a claim together, from examples that differ in a carry alone and from random examples.

    The event need not be a carry. Return the shares of the logit gap that the patches move, as evidence and controls.
    """
    model, n = case.model, N_VERDICT if case.n is None else case.n
    quartets = way_into(case, n)
    with eval_mode(model.module), torch.no_grad():
        patches = routes.EventPatches(model, quartets)
        if patches.n < MIN_N:
            raise InputError(
                f"too few examples: the model is right on all four examples in {patches.n} of {len(quartets)} sets",
                "raise --n",
            )
        ((_, _, moved, placebo),) = patches.head_shares([case.heads], 1)
        donors = routes.donor_test(model, case.heads, quartets, case.seed, n_donors := max(n, routes.N_DONORS))
    if donors is None:
        raise InputError(
            f"the model answers too few random examples right to compare those with and without a {case.claim.event}",
            "raise --n",
        )
    event, kept, moves = case.claim.event, donors.unchanged, donors.followed
    way = f"from {with_article(quartets.source)} to {with_article(quartets.read)}"
    words = f"patching {case.claim.subject} moves {{}} of the logit gap that the {event} makes {way}"
    share = Evidence(words, *_bounds(moved), patches.n, SETS, "share")
    words = f"a placebo patch, which changes a token but not the {event}, moves {{}} of the gap"
    none = Evidence(words, *_bounds(placebo), patches.n, SETS, "share")
    words = f"with outputs of these heads from random examples with the same {event}, {{}} of the answers stay right"
    same = Evidence(words, kept.rate, kept.low, kept.high, kept.n, "donors", "share")
    words = f"with outputs from random examples with another {event}, {{}} of the answers change to fit that {event}"
    other = Evidence(words, moves.rate, moves.low, moves.high, moves.n, "donors", "share")
    by_construction, is_true, note = construction(case, quartets)
    if not is_true:
        none, same = none.within(bands.PART), same.at_least(LEAST_UNCHANGED)
        if same.n_needed is not None:  # --n counts all donors
            same = replace(same, n_needed=same.n_needed * n_donors // same.n)
    if patches.n < routes.N_RELIABLE:
        note += (
            f" With fewer than {routes.N_RELIABLE} sets of four, a verdict is wrong more often than its interval says."
        )
    return Judgement((share.at_least(bands.CARRIER),), (none, same, other), by_construction, note.strip())


def _bounds(share: routes.Share) -> tuple[float, float, float]:
    return round(share.share, 6), round(share.low, 6), round(share.high, 6)


PART = ClaimKind(
    grammar="SUBJECT carries-the-{event} PLACE",
    phrase="carries the {event} {way}",
    supported_if="patching the heads moves at least half of the logit gap between the answers with and without the "
    "event (whole 95 % CI)",
    refuted_if="patching the heads moves less than half of the logit gap between the answers with and without the "
    "event (whole 95 % CI)",
    controls="a patch that changes a token but not the event (placebo) moves less than 0.1 of the gap; with outputs of "
    "random examples that have the same event, 95 % of the answers stay right",
    measure=measure,
)
