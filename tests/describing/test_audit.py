"""Feedback for students and the teacher's summary: what a submission printed or raised is text, never markup."""

from __future__ import annotations

import re

from printing import printed
from told_results import audit

from headcount.describing.sections.audit import audit_page, course_page, course_table, describe, feedback_page
from headcount.errors import InputError
from headcount.rendering.markdown import report_text

HOSTILE = "a.py fails: KeyError: '<b>bold</b> *a* | _b_ `c|d`'"
BROKEN = InputError(HOSTILE, "at line 2: <script>x</script>")


def unescaped(text: str) -> str:
    """Return Markdown without code and without what is escaped."""
    return re.sub(r"`[^`]*`|\\[\\*_\[\]<>|#$~]", "", text)


def test_an_error_of_a_student_is_text_in_the_feedback() -> None:
    page = report_text(feedback_page("bob", BROKEN, "bob/a.py:Model", "printed *this*\n<b>"))
    assert page.startswith("# Feedback for bob\n\nYour submission could not be measured.\n")
    assert "KeyError" in page
    assert "    headcount audit bob/a.py:Model\n" in page
    assert "    printed *this*\n    <b>\n" in page, "a block of code"
    prose = [line for line in page.splitlines() if not line.startswith(("    ", "<a id="))]
    assert not re.search(r"[<>*_|]", unescaped("\n".join(prose)))


def test_an_error_of_a_student_does_not_break_the_teachers_table() -> None:
    page = report_text(course_page({"bob": BROKEN, "alice": audit({"HC101": "pass"})}))
    (head, _, *rows) = (line for line in page.splitlines() if line.startswith("|"))
    assert len(rows) == 2
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in (head, *rows)} == {7}
    assert not re.search(r"[<>*_]", unescaped(rows[0]))


def test_an_audit_is_text_as_well() -> None:
    page = report_text(audit_page(audit({"HC101": "fail"}, summary="the <b>100s</b> digit")))
    assert "<b>" not in page


def test_the_terminal_has_every_check_once() -> None:
    found = audit({"HC102": "fail", "HC403": "warn", "HC101": "pass", "HC301": "not applicable"})
    text = printed(*describe(found), width=80)
    assert text.count(" fail") == text.count(" pass ") == text.count("not applicable") == 1
    assert "FAIL HC102: Found by HC102. Likely cause: Cause of HC102." in text
    assert "90.00 % of the answers to 500 test examples of addition are right." in text


def test_a_course_in_a_narrow_terminal_names_every_submission() -> None:
    text = printed(course_table({"bob": BROKEN, "alice": audit({"HC101": "fail"})}), width=60)
    assert text.count("alice") == text.count("bob") > 1
    assert "KeyError" in text.replace("\n", "")
