"""The first line of an audit is the cause: the fault that explains the measured accuracy, before faults of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from planted import SURE, OrderModel, PlantedSorter, audit, observed
from printing import printed
from torch import Tensor
from torch.nn import functional as F

from headcount.auditing.audit import Audit, run_checks
from headcount.auditing.audited_model import audited_model
from headcount.auditing.causes import Cause
from headcount.auditing.check import (
    ANSWERS,
    CONCLUSIONS,
    LONGER,
    MEASUREMENT,
    PADDED,
    RESTATED,
    Check,
    Finding,
    failed,
    passed,
    warned,
)
from headcount.describing.sections.audit import audit_page, describe
from headcount.rendering.markdown import report_text

pytestmark = pytest.mark.slow  # whole audits

# --- by what they explain ---------------------------------------------------------------------------------------------


def ranked(*findings: Finding | str, right: float = 0.5, causes: Sequence[Cause] = ()) -> Audit:
    """Run checks HC101, HC102, ... with these findings, or failures that affect this, on a model that is half right."""
    seen = audited_model(observed(PlantedSorter).opened, 100)
    seen.__dict__["right"] = np.arange(100) < 100 * right
    made = [_failure(each) if isinstance(each, str) else each for each in findings]
    checks = {f"check-{i}": _check(f"HC{101 + i}", each) for i, each in enumerate(made)}
    return run_checks(seen, checks, causes=causes)


def _check(number: str, finding: Finding) -> Check:
    return Check(number, "Is it so?", classes=lambda _: finding)


def _failure(affects: str) -> Finding:
    return replace(failed(f"it changes {affects}", cause="", fix=""), affects=affects)


def predicting(n: int, name: str = "it predicts") -> Finding:
    """A fault that leaves the first `n` of 100 examples right."""
    return failed(name, cause="", fix="", right_despite_fault=np.arange(100) < n)


def test_a_check_that_accounts_for_more_does_not_follow_from_one_that_accounts_for_less() -> None:
    """A digit that is never output explains every error; that some answers stop early is what it looks like."""
    causes = [Cause("HC101", ("HC102",), "so it is")]
    few, never = predicting(75, "some stop early"), predicting(50, "0 is never output")
    assert ranked(few, never, causes=causes).summary.startswith("0 is never output")
    fits, shifted = predicting(50, "a place is constant"), predicting(75, "some are shifted")
    assert ranked(fits, shifted, causes=causes).causes == ("HC101",)
    assert ranked(replace(fits, explains_only=()), shifted, causes=causes).causes == ("HC101", "HC102")


def test_every_row_of_the_table_has_its_own_id_and_verdict() -> None:
    """Rows of a second table must not be shifted against the ids of the first."""
    text = printed(*describe(ranked(passed("it is not so"), PADDED, passed("nor is this"))))
    rows = [tuple(line.split()[:4]) for line in text.splitlines() if line.startswith(" HC")]
    verdicts = [("HC102", "check", "1", "fail"), ("HC101", "check", "0", "pass"), ("HC103", "check", "2", "pass")]
    assert rows == verdicts, "the check that fails comes first"
    assert "FAIL HC102: " in text


def test_what_explains_the_accuracy_comes_before_what_cannot() -> None:
    found = ranked(CONCLUSIONS, PADDED, LONGER, RESTATED, ANSWERS, MEASUREMENT)
    assert found.causes == ("HC106", "HC105", "HC104", "HC102", "HC103", "HC101")
    assert found.summary == "it changes measurement (also failing: HC105, HC104, HC102, HC103, HC101)"


def test_a_figure_that_fits_comes_first_the_best_fit_before_others() -> None:
    found = ranked(ANSWERS, predicting(70, "one"), predicting(52, "two"))
    assert found.causes == ("HC103", "HC102", "HC101")
    assert (
        found.summary
        == "two; and one; this predicts an accuracy of 52.00 %, and 50.00 % is measured (also failing: HC101)"
    )


def test_a_figure_that_does_not_fit_comes_after_a_fault_without_one() -> None:
    found = ranked(PADDED, predicting(97), ANSWERS)
    assert found.causes == ("HC103", "HC102", "HC101")
    assert found.summary == "it changes answers (also failing: HC102, HC101)"


def test_a_fault_that_takes_right_answers_for_wrong_explains_nothing() -> None:
    found = ranked(predicting(0), ANSWERS, right=0.6)
    assert found.causes == ("HC102", "HC101")


def test_a_figure_that_fits_alone_is_not_spoilt_by_another() -> None:
    found = ranked(predicting(5, "far off"), predicting(50, "exact"), ANSWERS)
    assert found.causes == ("HC102", "HC103", "HC101")
    assert found.summary.startswith(
        "exact; this predicts an accuracy of 50.00 %, and 50.00 % is measured (also failing: HC103, HC101)"
    )


def test_of_two_without_figures_the_one_that_explains_more_comes_first() -> None:
    seen = observed(PlantedSorter, 20)
    fails = failed("it is so", cause="", fix="")
    checks = {name: Check(name, "Is it so?", classes=lambda _: fails) for name in ("HC301", "HC504", "HC601")}
    causes = [Cause("HC504", ("HC601",), "so it is")]
    assert run_checks(seen, checks, causes=causes).causes == ("HC504", "HC301")


def test_warnings_are_named_beside_a_failure_and_alone() -> None:
    warning = warned("it may mislead", cause="", fix="")
    told = "; accuracy is measured without padding, 50.00 % (1 check warns: HC102)"
    assert ranked(PADDED, warning).summary.endswith(told)
    accuracy = "50.00 % of 100 answers are right"
    assert ranked(warning).summary == f"no check fails, and {accuracy}; 1 check warns: it may mislead"
    assert ranked(warning, warning).summary.startswith(f"no check fails, and {accuracy}; 2 checks warn: ")


def test_a_low_accuracy_that_no_check_explains_is_stated() -> None:
    counts, sound = "1 check passed, 0 do not apply", passed("it is not so")
    assert ranked(sound).summary == f"50.00 % of 100 answers are right, and no check explains the 50 errors: {counts}"
    assert ranked(sound, right=0.99).summary == f"no known mistake found: 99.00 % of 100 answers are right; {counts}"


def test_feedback_lists_the_cause_first() -> None:
    feedback = report_text(audit_page(ranked(PADDED, ANSWERS)))
    assert feedback.index("## To fix: HC102") < feedback.index("## To fix: HC101")


# --- planted ----------------------------------------------------------------------------------------------------------


class PadIsZero(PlantedSorter):
    """Padding has the id of the number 0, and is read: the fault that the other sorters have as well."""

    pad = 0


class ReadsPadding(OrderModel):
    """Nothing tells padding from the number 0."""

    def forward(self, ids: Tensor) -> Tensor:
        pooled = self.attention(self.embed(ids)).mean(dim=1)
        return SURE * F.one_hot(self.is_sorted(ids, ids >= 0).long(), 2) + 0.1 * self.head(pooled)


class LengthNormalised(ReadsPadding):
    """Positions are divided by the length, and neighbours are not compared: only large disorder is seen."""

    def embed(self, ids: Tensor) -> Tensor:
        along = torch.arange(ids.shape[1]) / ids.shape[1]
        return self.tokens(ids) + torch.sin(along[:, None] * torch.arange(1, 9))

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return (ids.diff(dim=1) > -30).all(dim=1)


class FirstNumber(ReadsPadding):
    """A shortcut: sequences that begin with a small number are called sorted."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return ids[:, 0] < 12


class Untrained(ReadsPadding):
    """The loss is ln 2: the logits hardly depend on anything."""

    def forward(self, ids: Tensor) -> Tensor:
        is_odd = ids.sum(dim=1) % 2
        return 0.01 * F.one_hot(is_odd, 2) + 1e-4 * self.head(self.attention(self.embed(ids)).mean(dim=1))


class OneAnswer(ReadsPadding):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return ids[:, 0] >= 0


class OneAnswerBeyond(ReadsPadding):
    """Right up to the trained lengths; longer sequences are all called unsorted."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return super().is_sorted(ids, visible) & (ids.shape[1] <= 16)


class LearnedShuffles(LengthNormalised):
    """The same, right on shuffled sequences alone: sure of every answer, and half of them are wrong."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return (ids.diff(dim=1) > -30).all(dim=1) ^ (ids[:, :2].sum(dim=1) % 2 == 0)


SORTERS = {
    LearnedShuffles: "HC504",
    LengthNormalised: "HC504",
    FirstNumber: "HC602",
    Untrained: "HC304",
    OneAnswer: "HC301",
    ReadsPadding: "HC203",
    OneAnswerBeyond: "HC203",
}


@pytest.mark.parametrize(("model", "first"), SORTERS.items())
def test_padding_is_blamed_only_where_nothing_explains_the_accuracy(model: type[OrderModel], first: str) -> None:
    found = audit(type(model.__name__, (PadIsZero,), {"model_class": model}), 300)
    failing = {each.id: each for each in found.of("fail")}
    assert "HC203" in failing, "the planted padding"
    assert found.causes[0] == first, found.summary
    assert found.summary.startswith(failing[first].finding)
    assert first == "HC203" or "HC203" in found.summary.rpartition("more: ")[2]
    assert first != "HC203" or "accuracy is measured without padding" in found.summary
    assert (
        "; and at lengths beyond those of training (8 to 16), the model gives the same answer" in found.summary
    ) == (model is OneAnswerBeyond)
