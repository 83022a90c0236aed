"""The words about weights say what the numbers say, and never more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from weights_by_hand import PAIRS, probes, reading, weights

from headcount.analysis.weights import HeadWeights
from headcount.analysis.weights_composition import Compositions
from headcount.describing.blocks import Block, Conclusions, DataTable, Paragraph
from headcount.describing.weights import describe
from headcount.errors import ResultError


def words(blocks: list[Block]) -> str:
    texts = [each.text for block in blocks if isinstance(block, Conclusions) for each in block.sentences]
    texts += [block.text for block in blocks if isinstance(block, Paragraph)]
    return " ".join(texts)


def test_the_ranks_of_patched_paths_are_counted() -> None:
    text = words(describe(weights()))
    assert (
        "E0H2 → E1H0 (86 % of the gap, 1s to 100s) is 2nd and E0H2 → E1H3 (18 % of the gap, 1s to 10s) is 3rd" in text
    )
    assert "The pair with the largest score, E1H3 → X0H2, moves 5.0 % of the logit gap." in text
    assert "no evidence of a path" in text


def test_without_patched_paths_the_warning_stays() -> None:
    unknown = Compositions(0.09, tuple(replace(each, path=None, way="") for each in PAIRS))
    text = words(describe(weights(compositions=unknown)))
    assert "no evidence of a path" in text
    assert "Patching finds" not in text


def test_a_path_that_ranks_first_is_said_to_rank_first() -> None:
    text = words(describe(weights(compositions=Compositions(0.09, PAIRS[1:]))))
    assert "among 2 pairs of heads, E0H2 → E1H0 (86 % of the gap, 1s to 100s) is 1st" in text


def test_heads_that_weights_do_not_explain_are_named() -> None:
    text = words(describe(weights()))
    assert "For 2 of 3 heads of runs/adder" in text
    assert "For D0H0, they explain under 50 %, so the pictures of these heads are not reliable." in text
    assert "X0H1 (+0.80)" in text
    assert "D0H0 (+0.10)" not in text, "its score is within chance"


def test_probes_come_with_their_warning_only_if_asked_for() -> None:
    text = words(describe(weights()))
    assert "without any model, decodes the carry with an accuracy of 100 % into the 10s" in text
    assert "At 3 of 4 places" in text
    assert "Of these places, 2 were patched, and 1 of them move nothing" in text
    unpatched = tuple(replace(each, moved=None, moved_high=None) for each in probes().cells)
    assert "measure it with `headcount routes`" in words(
        describe(weights(probes=probes(cells=unpatched, n_moved=0, n_idle=0)))
    )
    blocks = describe(weights(probes=None))
    assert "decode" not in words(blocks)
    assert [block.id for block in blocks if isinstance(block, DataTable)] == ["weights", "weights-compositions"]


@pytest.mark.parametrize(
    ("result", "field"),
    [
        (weights(probes=probes(n_idle=2)), "n_idle"),
        (weights(heads=(reading("E0H2", copying=0.5),)), "copying"),
        (weights(heads=(reading("E0H2", explained=1.5),)), "explained"),
        (weights(compositions=Compositions(0.1, (replace(PAIRS[0], way=""),))), "way"),
    ],
)
def test_results_that_contradict_themselves_are_refused(result: HeadWeights, field: str) -> None:
    with pytest.raises(ResultError, match=field):
        HeadWeights.from_json(result.to_json())
