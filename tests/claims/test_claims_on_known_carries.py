"""Claims about the carry, judged on adders whose carries travel on known ways."""

from __future__ import annotations

from collections.abc import Callable

import known_carries as known
import pytest
from known_carries import KnownModel, task_of

from headcount.claims.base import ClaimCase, heads_of, judge, parse
from headcount.limits import N_VERDICT
from headcount.tasks.addition import Addition

pytestmark = pytest.mark.slow  # every head of many models is patched

MODELS: dict[str, Callable[[Addition], KnownModel]] = {
    "one carrier": lambda task: known.one_carrier(task, echo="unread"),
    "digit movers": known.digit_movers,
    "either of two": known.two_carriers,
}


@pytest.mark.parametrize(
    ("name", "claim", "verdict"),
    [
        ("one carrier", "X0H1 carries-the-carry 10s", "supported"),
        ("one carrier", "X0H1 carries-the-carry 1s>100s", "supported"),
        ("one carrier", "X0H0 carries-the-carry 10s", "refuted"),
        ("one carrier", "X0H2 carries-the-carry 10s", "refuted"),
        ("one carrier", "E0H1 carries-the-carry 10s", "refuted"),
        ("digit movers", "X0H1 carries-the-carry 100s", "supported"),
        ("digit movers", "E0H0 carries-the-carry 10s", "undecided"),
        ("either of two", "E0H0 carries-the-carry 10s", "supported"),
        ("either of two", "X0H1+X0H2 carries-the-carry 10s", "supported"),
    ],
)
def test_claims_about_carries_that_are_known(name: str, claim: str, verdict: str) -> None:
    model, parsed = MODELS[name](task_of(2)), parse(claim)
    result = judge(ClaimCase(model, parsed, heads_of(model, parsed.subject), N_VERDICT))
    assert result.verdict == verdict


@pytest.mark.slow
def test_cross_attention_is_the_only_way_unless_the_answer_tells() -> None:
    """A decoder that writes the 1s first can read the carry off its own answer, so no architecture decides."""
    for is_least_first in (False, True):
        model = known.one_carrier(task_of(2, least_first=is_least_first))
        parsed = parse("cross carries-the-carry 10s")
        result = judge(ClaimCase(model, parsed, heads_of(model, parsed.subject), 40))
        assert result.verdict == ("undecided" if is_least_first else "supported"), "random donors move digits as well"
        assert ("move all of it" in result.by_construction) == (not is_least_first)
