"""What comes first in a report, and how many answers stand at its beginning."""

from dataclasses import replace

from heads_by_hand import ablation, certificate, effect, evaluation, model_results, pruning, report_results
from told_results import audit

from headcount.describing.blocks import Card, Cards, Commands, Paragraph
from headcount.describing.cards import MOST_CARDS
from headcount.describing.report import build_report

SETTINGS = {"digits": 3, "seed": 0, "steps": 2000}


def names(report) -> list[str]:
    return [section.id for section in report.sections]


def known(**more):
    heads = [effect("E0H0", 0.3), effect("X0H0", 0.0)]
    made = {"evaluation": evaluation(), "certificate": certificate(), "ablation": ablation(*heads)}
    return {**made, "pruning": pruning(), **more}


def cards_of(report) -> tuple[Card, ...]:
    (cards,) = [block.cards for block in report.sections[0].blocks if isinstance(block, Cards)]
    return cards


def test_the_answers_come_first_and_are_few() -> None:
    report = build_report(report_results(model_results(settings=SETTINGS, **known())))
    assert names(report)[0] == "summary"
    cards = cards_of(report)
    assert 3 <= len(cards) <= MOST_CARDS
    assert cards[0].answer.text.startswith("On the test set, adder gets 1,998 of 2,000 right")
    assert {each.section for each in cards} <= set(names(report)), "every card leads to its section"
    assert not any("95 % CI" in each.answer.text for each in cards), "intervals are in small letters"
    assert any("95 % CI" in each.note for each in cards)


def test_pictures_of_cards_say_in_words_what_they_show() -> None:
    report = build_report(report_results(model_results(settings=SETTINGS, **known())))
    drawn = {each.section: each for each in cards_of(report) if each.draw is not None}
    assert {"ablation", "pruning", "training"} <= set(drawn)
    assert drawn["ablation"].alt.endswith("E0H0 30.0; X0H0 0.0")
    for each in drawn.values():
        assert each.draw is not None
        texts = [text.get_text() for axes in each.draw().axes for text in axes.texts]
        assert texts, f"every bar of {each.section} has its number"
        assert all(text in each.alt for text in texts)


def test_of_models_of_others_the_audit_comes_first() -> None:
    found = audit({"HC101": "fail"}, summary="the 1000s digit is 0 in 500 of 500 answers")
    stranger = build_report(report_results(replace(model_results(audit=found, **known()), settings={})))
    assert names(stranger)[:2] == ["summary", "audit"]
    own = build_report(report_results(model_results(settings=SETTINGS, audit=found, **known())))
    assert names(own).index("audit") > names(own).index("ablation")
    first = cards_of(own)[0]
    assert first.is_fault, "a fault stands at the beginning"
    assert first.answer.text == "The audit finds a fault in adder: the 1000s digit is 0 in 500 of 500 answers."


def test_how_heads_are_called_is_said_of_those_there_are() -> None:
    (first, *_) = build_report(report_results(model_results(settings=SETTINGS, **known()))).sections
    told = " ".join(block.text for block in first.blocks if isinstance(block, Paragraph))
    assert (
        "E0H1 is head 1 of layer 0 of the encoder and X0H1 is head 1 of the decoder's cross-attention in layer 0."
        in told
    )
    assert "L0H1" not in told
    assert "A drop of 1 point means that accuracy falls by one percent of all examples." in told


def test_faults_of_several_models_share_a_card() -> None:
    found = audit({"HC101": "fail"}, summary="the 1000s digit is 0 in 500 of 500 answers")
    models = [model_results(name, settings=SETTINGS, audit=found, **known()) for name in ("a", "b")]
    cards = cards_of(build_report(report_results(*models)))
    assert [each.is_fault for each in cards].count(True) == 1
    assert cards[0].answer.text == "The audit finds faults in a and b, so numbers about these models may be wrong."
    assert len(cards) <= MOST_CARDS


def test_every_block_has_an_id_of_its_own() -> None:
    report = build_report(
        report_results(
            model_results("a", settings=SETTINGS, **known()), model_results("b", settings=SETTINGS, **known())
        )
    )
    ids = [block.id for section in report.sections for block in section.blocks if hasattr(block, "id")]
    assert len(ids) == len(set(ids))


def test_a_long_list_of_what_is_left_out_is_one_sentence_first_and_whole_at_the_end() -> None:
    first, *_, last = build_report(
        report_results(model_results(settings=SETTINGS, not_measured=tuple("abcdefgh"), **known()))
    ).sections
    (left_out,) = (block for block in first.blocks if isinstance(block, Commands))
    assert left_out.words == "To save time, this report leaves out a, b, c and 5 more. To measure everything, run:"
    assert left_out.commands == ("headcount report runs/adder --thorough",)
    (whole,) = (block.text for block in last.blocks if isinstance(block, Paragraph) and "not measured" in block.text)
    assert whole.endswith(": a; b; c; d; e; f; g; h.")
