"""What holds for every check, and for the page that describes them; and models in which there is nothing to find."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from planted import LeastFirst, OrderModel, PlainAdder, PlantedAdder, PlantedSorter, audit, observed
from printing import printed
from tools.traps import KINDS, PAGE, page
from torch import Tensor

from headcount.api import open_model
from headcount.auditing.audit import Audit, checks_named, quick_audit, run_checks
from headcount.auditing.audited_model import AuditedModel, audited_model
from headcount.auditing.causes import Cause
from headcount.auditing.check import (
    EXPLAINED,
    FAIL,
    IGNORED,
    NOT_APPLICABLE,
    PASS,
    WARN,
    Check,
    Finding,
    failed,
    passed,
)
from headcount.describing.blocks import Paragraph
from headcount.describing.sections.audit import audit_page, describe
from headcount.errors import InputError
from headcount.rendering.markdown import report_text

CHECKS = checks_named()
HERE = Path(__file__).parents[1]


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_an_id_a_question_and_a_story(name: str) -> None:
    check = CHECKS[name]
    assert re.fullmatch(r"HC[1-8]\d\d", check.id)
    assert check.id[:3] in KINDS
    assert check.question.endswith("?")
    question, _, story = (sys.modules[check.module].__doc__ or "").partition("\n\n")
    assert "?" in question
    assert len(story) > 100, "where it happened, and how it is seen"


def test_ids_are_different() -> None:
    assert len({check.id for check in CHECKS.values()}) == len(CHECKS) >= 30


def test_the_page_is_made_of_the_checks() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m tools.traps --write"


# --- what is at the bottom --------------------------------------------------------------------------------------------


def chain(*links: tuple[str, tuple[str, ...], str]) -> Audit:
    """Audit with checks of these ids, effects and verdicts."""
    findings = {FAIL: failed("it is so", cause="", fix=""), PASS: passed("it is not so")}
    checks = {
        id: Check(id, "Is it so?", classes=partial(lambda finding, _: finding, findings[verdict]))
        for id, _, verdict in links
    }
    causes = [Cause(id, effects, "so it is") for id, effects, _ in links]
    return run_checks(observed(PlantedSorter, 20), checks, causes=causes)


def test_what_follows_is_explained_by_the_first_of_a_chain() -> None:
    found = chain(("HC301", ("HC101",), FAIL), ("HC101", ("HC106",), FAIL), ("HC106", (), FAIL))
    assert [(each.id, each.verdict, each.explained_by) for each in found.verdicts] == [
        ("HC301", FAIL, ""),
        ("HC101", EXPLAINED, "HC301"),
        ("HC106", EXPLAINED, "HC301"),
    ]


def test_what_passes_explains_nothing_and_is_never_explained() -> None:
    found = chain(("HC101", ("HC102",), PASS), ("HC102", ("HC103",), FAIL), ("HC103", (), PASS))
    assert [each.verdict for each in found.verdicts] == [PASS, FAIL, PASS]


def test_the_page_of_everything_that_is_found_is_named() -> None:
    found = chain(("HC101", (), FAIL), ("HC403", (), FAIL), ("HC601", (), PASS))
    assert Paragraph("What each check means: docs/traps.md#hc101, #hc403") in describe(found)
    page = report_text(audit_page(found))
    assert "docs/traps.md\\#hc101\n\n" in page
    assert "docs/traps.md\\#hc403\n\n" in page
    sound = chain(("HC601", (), PASS))
    assert "traps.md" not in printed(*describe(sound)) + report_text(audit_page(sound))


@pytest.mark.slow
def test_what_is_ignored_is_told_with_its_reason_and_so_is_what_follows() -> None:
    class Broken(PlantedSorter):
        model_class = type("Wrong", (OrderModel,), {"is_sorted": lambda self, ids, visible: ids[:, 0] < 0})

    found = run_checks(observed(Broken), ignore={"one-answer": "it is the baseline of the course"})
    one = next(each for each in found.verdicts if each.id == "HC301")
    assert (one.verdict, one.reason) == (IGNORED, "it is the baseline of the course")
    assert found.is_sound, "what follows from it is explained by it all the same"
    assert {each.explained_by for each in found.of(EXPLAINED)} == {"HC301"}
    with pytest.raises(InputError, match="no reason is given to ignore the check"):
        run_checks(observed(Broken), ignore={"HC301": " "})
    with pytest.raises(InputError, match="no check 'HC999'"):
        run_checks(observed(Broken), ignore={"HC999": "why not"})


def test_what_one_check_trips_over_costs_neither_the_others_nor_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def trips(_: AuditedModel) -> Finding:
        raise ZeroDivisionError("of somebody's making")

    checks = {
        "trips": Check("HC101", "Is it so?", classes=trips),
        "holds": Check("HC102", "Is it?", classes=lambda _: passed("yes")),
    }
    with pytest.raises(ZeroDivisionError):
        run_checks(observed(PlantedSorter, 20), checks)  # in tests
    monkeypatch.setattr("headcount.auditing.audit.STRICT", False)
    found = run_checks(observed(PlantedSorter, 20), checks)
    assert [each.verdict for each in found.verdicts] == [NOT_APPLICABLE, PASS]
    assert "ZeroDivisionError: of somebody's making" in found.verdicts[0].finding
    monkeypatch.setattr("headcount.auditing.audit.audited_model", trips)
    assert quick_audit(observed(PlantedSorter).opened) == ""


class NotANumber(OrderModel):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * torch.nan


def test_logits_that_are_no_numbers_are_the_cause_of_everything_else() -> None:
    found = audit(type("Broken", (PlantedSorter,), {"model_class": NotANumber}))
    assert [each.id for each in found.of(FAIL)] == ["HC306"]
    assert found.summary.startswith("the logits of 400 of 400 examples are NaN or infinite")


@pytest.mark.parametrize("claimed", ["99.85 %", float("nan")])
def test_a_claim_that_is_no_number_is_refused_when_the_adapter_is_loaded(claimed: object) -> None:
    with pytest.raises(InputError, match="must be a number"):
        observed(type("Claims", (PlantedSorter,), {"claimed": claimed}))


def test_an_audit_reads_back(tmp_path: Path) -> None:
    found = audit(PlantedSorter, 60)
    assert Audit.from_json(found.to_json()) == found


# --- nothing to find --------------------------------------------------------------------------------------------------


def variant(base: type, **settings: object) -> type[PlantedAdder]:
    return type(f"{base.__name__}{settings}", (base,), {"settings": {**base.settings, **settings}})  # type: ignore[attr-defined]


class SlowlySure(OrderModel):
    """Less sure, as models are that have learned."""

    def forward(self, ids: Tensor) -> Tensor:
        return 0.3 * super().forward(ids)


SOUND = [
    *(variant(PlantedAdder, digits=digits, n_test=300) for digits in (2, 3, 4)),
    *(variant(PlainAdder, digits=digits, n_test=300) for digits in (2, 3)),
    *(variant(PlantedAdder, split_seed=seed) for seed in (1, 2, 3)),
    variant(LeastFirst, n_test=300),
    *(variant(PlantedSorter, split_seed=seed) for seed in (1, 2, 3)),
    *(variant(PlantedSorter, negatives=kind) for kind in ("shuffle", "adjacent", "transpositions", "moved_one")),
    *(variant(PlantedSorter, **settings) for settings in ({"balance": "coin"}, {"paired": True}, {"distinct": True})),
    type("SlowlySureSorter", (PlantedSorter,), {"model_class": SlowlySure}),
]


@pytest.mark.slow
@pytest.mark.parametrize("sound", SOUND, ids=lambda each: each.__name__)
def test_sound_models_fail_nothing(sound: type[PlantedAdder]) -> None:
    """What they warn of is what is so: the planted sorters have their order from elsewhere than attention."""
    found = audit(sound)
    assert not found.of(FAIL), found.summary
    is_sorter = issubclass(sound, PlantedSorter)
    assert [each.id for each in found.of(WARN)] == (["HC506"] if is_sorter else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sample:addition", "sample:sortedness", "adder", "sorter"])
def test_trained_models_fail_nothing(name: str) -> None:
    files = {"adder": "foreign_adder/adder_adapter.py:Adder", "sorter": "foreign_sorter/sorter_adapter.py:Sorted"}
    found = run_checks(audited_model(open_model(str(HERE / files[name]) if name in files else name), 400))
    assert not found.of(FAIL), found.summary
    rare = set() if name == "sample:addition" else {"HC603"}  # errors that the test set does not show
    assert {each.id for each in found.of(WARN)} <= rare | ({"HC302", "HC501", "HC601"} if name == "sorter" else set())
    assert found.of(NOT_APPLICABLE)


def test_two_checks_of_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = {name: Check("HC101", "Is it so?", classes=lambda _: passed("no")) for name in ("mine", "yours")}
    monkeypatch.setattr("headcount.auditing.audit.CHECKS", Parts(twins))
    with pytest.raises(InputError, match="the checks 'mine' and 'yours' have the same id, HC101"):
        checks_named()


def test_the_page_refuses_an_id_without_a_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check("HC901", "Is it so?", classes=lambda _: passed("no"))
    monkeypatch.setattr("headcount.auditing.audit.CHECKS", Parts({"mine": check}))
    with pytest.raises(SystemExit, match=re.escape("HC901 (mine) belongs to no heading of the page; there are: HC1xx")):
        page()


class Parts(dict[str, Check]):
    """A registry of these checks."""

    def names(self) -> tuple[str, ...]:
        return tuple(self)
