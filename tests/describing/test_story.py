"""What comes first in a report, and how many answers stand at its beginning."""

from dataclasses import replace

from heads_by_hand import ablation, certificate, effect, evaluation, material, pruning, subject
from told_results import audit

from headcount.describing.blocks import Conclusions, Notice, Paragraph
from headcount.describing.story import MOST_ANSWERS, tell

SETTINGS = {"digits": 3, "seed": 0, "steps": 2000}


def names(story) -> list[str]:
    return [section.id for section in story.sections]


def known(**more):
    heads = [effect("E0H0", 0.3), effect("X0H0", 0.0)]
    made = {"evaluation": evaluation(), "certificate": certificate(), "ablation": ablation(*heads)}
    return {**made, "pruning": pruning(), **more}


def test_the_answers_come_first_and_are_few() -> None:
    story = tell(material(subject(settings=SETTINGS, **known())))
    assert names(story)[0] == "asked"
    (answers,) = [block for block in story.sections[0].blocks if isinstance(block, Conclusions)]
    assert 3 <= len(answers.sentences) <= MOST_ANSWERS
    assert answers.sentences[0].text.startswith("On the test set adder gets 1,998 of 2,000 right")
    ids = {block.id for section in story.sections for block in section.blocks if hasattr(block, "id")}
    assert {each.rests_on for each in answers.sentences} <= ids, "what they rest on is in the report"


def test_of_models_of_others_the_audit_comes_first() -> None:
    found = audit({"HC101": "fail"}, summary="the 1000s digit is 0 in 500 of 500 answers")
    stranger = tell(material(replace(subject(audit=found, **known()), settings={})))
    assert names(stranger)[:2] == ["asked", "audit"]
    own = tell(material(subject(settings=SETTINGS, audit=found, **known())))
    assert names(own).index("audit") > names(own).index("ablation")
    (notice,) = [block for block in own.sections[0].blocks if isinstance(block, Notice)]
    assert notice.text == "adder: the 1000s digit is 0 in 500 of 500 answers.", "a fault stands at the beginning"


def test_how_heads_are_called_is_said_of_those_there_are() -> None:
    (first, *_) = tell(material(subject(settings=SETTINGS, **known()))).sections
    told = " ".join(block.text for block in first.blocks if isinstance(block, Paragraph))
    assert "E0H1 is head 1 of layer 0 of the encoder and X0H1 is one of the decoder's attention to the encoder." in told
    assert "L0H1" not in told
    assert "A point is a hundredth of all examples." in told


def test_a_fault_of_one_among_several_comes_after_the_answers() -> None:
    found = audit({"HC101": "fail"}, summary="the 1000s digit is 0 in 500 of 500 answers")
    one, other = (subject(name, settings=SETTINGS, audit=found, **known()) for name in ("a", "b"))
    kinds = [type(block) for block in tell(material(one, other)).sections[0].blocks]
    assert kinds.index(Conclusions) < kinds.index(Notice)
    kinds = [type(block) for block in tell(material(one)).sections[0].blocks]
    assert kinds.index(Notice) < kinds.index(Conclusions)


def test_every_block_has_an_id_of_its_own() -> None:
    story = tell(material(subject("a", settings=SETTINGS, **known()), subject("b", settings=SETTINGS, **known())))
    ids = [block.id for section in story.sections for block in section.blocks if hasattr(block, "id")]
    assert len(ids) == len(set(ids))
