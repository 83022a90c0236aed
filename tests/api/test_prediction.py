"""One answer without some heads: by gates, and by a copy of the model whose heads are zeroed."""

from dataclasses import replace

import pytest
from second_routes import zero_heads

from headcount.api import predict
from headcount.errors import InputError, InstrumentError
from headcount.heads import HeadId
from headcount.runs.run import load


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "text", "heads"),
    [
        ("sample:addition", "999+100", ["E0H2", "encoder.1.self.3", "X1H1", "X1H2"]),
        ("sample:addition", "374+814", ["E0H2", "X1H1"]),
        ("sample:sortedness", "3 5 4 9", ["L0H0"]),
        ("sample:sortedness", "9 1 2 3 4 5", ["L0H0", "L0H1"]),
    ],
)
def test_gates_and_a_zeroed_copy_give_one_answer(run, text, heads):
    found, clean = predict(run, text, heads), load(run)
    copy = replace(clean, model=zero_heads(clean.model, list(map(HeadId.parse, heads))).eval())
    other, before = copy.predict_one(text, with_attention=False), clean.predict_one(text, with_attention=False)
    assert (found.clean.predicted, found.clean.probability) == (before.predicted, before.probability)
    assert (found.without.predicted, found.without.explanation) == (other.predicted, other.explanation)
    assert found.without.probability == pytest.approx(other.probability, rel=1e-4)
    assert found.without.probability != found.clean.probability, "the heads were ablated"
    assert bool(found.changes) == (before.predicted != other.predicted)
    after = clean.predict_one(text, with_attention=False)
    assert (after.predicted, after.probability) == (before.predicted, before.probability), "the model is left as it was"


def test_what_changed_is_told_by_position():
    found = predict("sample:addition", "999+100", ["E0H2", "E1H3", "X1H1", "X1H2"])
    assert (found.clean.predicted, found.without.predicted) == ("1099", "1199")
    assert [(each.position, each.clean, each.without) for each in found.changes] == [("100s", "0", "1")]
    assert found.without.explanation.startswith("100s: 1, should be 0")
    assert found.n_sites == 6


def test_unknown_heads_are_told_before_anything_is_asked(tiny_run):
    for head in ("E7H0", "L0H0", "E0H9"):
        with pytest.raises(InputError, match=r"no head '(.|\n)*list its heads"):
            predict(tiny_run, "3+4", [head])
    with pytest.raises(InputError, match="not the name of a head"):
        predict(tiny_run, "3+4", [""])


def test_gates_that_do_nothing_are_an_error(tiny_run, monkeypatch):
    monkeypatch.setattr(type(tiny_run), "predict_one", lambda *a, **k: None)
    with pytest.raises(InstrumentError, match="no head was ablated"):
        predict(tiny_run, "3+4", ["E0H0"])
