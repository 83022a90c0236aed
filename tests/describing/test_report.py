"""What comes first in a report, and how many answers stand at its beginning."""

from dataclasses import replace

from heads_by_hand import ablation, certificate, effect, evaluation, model_results, pruning, report_results
from told_results import audit

from headcount.describing.blocks import Commands, Conclusions, Notice, Paragraph
from headcount.describing.report import MOST_ANSWERS, build_report

SETTINGS = {"digits": 3, "seed": 0, "steps": 2000}


def names(report) -> list[str]:
    return [section.id for section in report.sections]


def known(**more):
    heads = [effect("E0H0", 0.3), effect("X0H0", 0.0)]
    made = {"evaluation": evaluation(), "certificate": certificate(), "ablation": ablation(*heads)}
    return {**made, "pruning": pruning(), **more}


def test_the_answers_come_first_and_are_few() -> None:
    report = build_report(report_results(model_results(settings=SETTINGS, **known())))
    assert names(report)[0] == "summary"
    (answers,) = [block for block in report.sections[0].blocks if isinstance(block, Conclusions)]
    assert 3 <= len(answers.sentences) <= MOST_ANSWERS
    assert answers.sentences[0].text.startswith("On the test set, adder gets 1,998 of 2,000 right")
    ids = {block.id for section in report.sections for block in section.blocks if hasattr(block, "id")}
    assert {each.rests_on for each in answers.sentences} <= ids, "what they rest on is in the report"


def test_of_models_of_others_the_audit_comes_first() -> None:
    found = audit({"HC101": "fail"}, summary="the 1000s digit is 0 in 500 of 500 answers")
    stranger = build_report(report_results(replace(model_results(audit=found, **known()), settings={})))
    assert names(stranger)[:2] == ["summary", "audit"]
    own = build_report(report_results(model_results(settings=SETTINGS, audit=found, **known())))
    assert names(own).index("audit") > names(own).index("ablation")
    (notice,) = [block for block in own.sections[0].blocks if isinstance(block, Notice)]
    assert notice.text == "adder: the 1000s digit is 0 in 500 of 500 answers.", "a fault stands at the beginning"


def test_how_heads_are_called_is_said_of_those_there_are() -> None:
    (first, *_) = build_report(report_results(model_results(settings=SETTINGS, **known()))).sections
    told = " ".join(block.text for block in first.blocks if isinstance(block, Paragraph))
    assert (
        "E0H1 is head 1 of layer 0 of the encoder and X0H1 is head 1 of the decoder's cross-attention in layer 0."
        in told
    )
    assert "L0H1" not in told
    assert "A point is one percent of all examples." in told


def test_a_fault_of_one_among_several_comes_after_the_answers() -> None:
    found = audit({"HC101": "fail"}, summary="the 1000s digit is 0 in 500 of 500 answers")
    one, other = (model_results(name, settings=SETTINGS, audit=found, **known()) for name in ("a", "b"))
    kinds = [type(block) for block in build_report(report_results(one, other)).sections[0].blocks]
    assert kinds.index(Conclusions) < kinds.index(Notice)
    kinds = [type(block) for block in build_report(report_results(one)).sections[0].blocks]
    assert kinds.index(Notice) < kinds.index(Conclusions)


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
    assert left_out.words == "To be quick, this report leaves out a, b, c and 5 more. To measure everything:"
    assert left_out.commands == ("headcount report runs/adder --thorough",)
    (whole,) = (block.text for block in last.blocks if isinstance(block, Paragraph) and "Not measured" in block.text)
    assert whole.endswith(": a; b; c; d; e; f; g; h.")
