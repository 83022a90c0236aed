"""What the audit says, and that it is said at the place it concerns."""

from __future__ import annotations

from dataclasses import replace

from told_results import audit, cells, evaluation, model_results, report_results, require_sound, sentences, table, texts

from headcount.describing.blocks import Notice
from headcount.describing.sections.audit import POSITIONS, notices, section

SOUND = {"HC101": "pass", "HC201": "pass", "HC301": "not applicable"}


def report(**audits):
    made = section(report_results(*(model_results(name, audit=each) for name, each in audits.items())))
    require_sound(made)
    return made


def told_notices(made):
    return [(each.verdict, each.check) for each in made.blocks if isinstance(each, Notice)]


def test_without_an_audit_there_is_no_section():
    assert section(report_results(model_results("a"), model_results("b", evaluation=evaluation()))) is None


def test_nothing_found_is_told_and_is_no_answer():
    made = report(a=audit(SOUND), b=audit(SOUND))
    assert texts(made) == "The audit finds no fault (4 checks of 2 models)."
    assert made.answer is None
    assert not told_notices(made)
    assert table(made, "audit-verdicts").note == "Not listed: 2 checks that do not apply."


def test_a_fault_is_told_first_with_its_cause():
    faulty = audit({"HC502": "warn", **SOUND, "HC102": "fail"}, summary="0 is never output: that leaves 32 % right")
    made = report(a=audit(SOUND), b=faulty)
    assert made.answer.text == "The audit finds faults in 1 of 2 models: b (HC102 check 102)."
    assert len(sentences(made)) == 1, "the cause stands in the notice"
    predicting = replace(faulty, predicted=0.32)
    assert (
        sentences(report(b=predicting))[1].text
        == "b: 0 is never output: that leaves 32 % right. Measured on 500 examples."
    )
    assert told_notices(made) == [("fail", "HC102"), ("warn", "HC502")]
    assert [row[:4] for row in cells(made, "audit-verdicts")[:2]] == [
        ["b", "HC102", "check 102", "fail"],
        ["b", "HC502", "check 502", "warn"],
    ]


def test_a_warning_is_an_answer():
    made = report(a=audit({**SOUND, "HC403": "warn"}))
    assert made.answer.text == "The audit finds no fault (3 checks of 1 model), but warns about a (HC403 check 403)."
    assert told_notices(made) == [("warn", "HC403")]


def test_what_another_check_explains_and_what_is_ignored_keep_their_reasons():
    found = audit({"HC101": "fail", "HC106": "explained", "HC403": "ignored"})
    reasons = {"HC106": {"explained_by": "HC101"}, "HC403": {"reason": "skewed on purpose"}}
    found = replace(found, verdicts=tuple(replace(each, **reasons.get(each.id, {})) for each in found.verdicts))
    made = report(a=found)
    assert told_notices(made) == [("fail", "HC101")]
    assert [row[-1] for row in cells(made, "audit-verdicts")[1:]] == [
        "explained by HC101: found by HC106",
        "found by HC403 (ignored: skewed on purpose)",
    ]


def test_quick_checks_speak_where_there_was_no_audit():
    found = replace(evaluation(), audit="no start token: that leaves 39 % right")
    made = section(report_results(model_results("a", evaluation=found)))
    (notice,) = (each for each in made.blocks if isinstance(each, Notice))
    assert notice.text == "a: No start token: that leaves 39 % right."
    assert made.answer is None
    whole = section(report_results(model_results("a", evaluation=found, audit=audit(SOUND))))
    assert not told_notices(whole)


def test_notices_are_those_of_the_kinds_that_are_asked_for():
    found = model_results(
        "a", audit=audit({"HC503": "warn", "HC101": "warn", "HC501": "fail", "HC704": "pass", "XYZ": "fail"})
    )
    assert [each.check for each in notices(found, [POSITIONS])] == ["HC501", "HC503"]
    assert [each.check for each in notices(found, ["1", POSITIONS])] == ["HC501", "HC101", "HC503"]
    assert [each.check for each in notices(found, ["503"])] == ["HC503"]
    assert notices(found, ["7"]) == []
    assert notices(model_results("b"), "12345678") == []
    silent = audit({"HC101": "warn"})
    silent = replace(silent, verdicts=tuple(replace(each, cause="", fix="") for each in silent.verdicts))
    assert notices(replace(found, audit=silent), ["1"])[0].text == "a: Found by HC101."
