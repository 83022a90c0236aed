"""The page of a study: opposite results give opposite sentences, and every sentence has its number of seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rows_by_hand import COSTLY, HARMLESS, judged_rows, over_training, route_rows, row, rows_of

from headcount.describing.blocks import Cards, DataTable, Picture
from headcount.describing.study import answers, build_study_report, short_answers
from headcount.describing.study_answers import Answer, PartResults
from headcount.rendering.page import html_page
from headcount.studies.head_findings import find_over_seeds
from headcount.studies.rows import Row
from headcount.studies.summary import summarise

SEEDS = 10
HIGH, LOW = (0.9, 0.8, 1.0), (0.0, -0.05, 0.05)


def part_of(rows: Sequence[Row], name: str = "") -> PartResults:
    summary = summarise(rows)
    return PartResults(name, summary, find_over_seeds(rows, summary.by))


def answer_of(rows: Sequence[Row], question: str) -> Answer:
    return next(each for each in answers(part_of(rows)) if each.id == question)


def texts(answer: Answer) -> list[str]:
    return [sentence.text for sentence in answer.sentences]


def drops(first: int, second: int) -> list[Row]:
    """Drops of heads of which E0H0 counts in `first` of ten seeds, and E1H1 in `second`."""
    heads = {"E0H0": first, "E0H1": 0, "E1H0": 0, "E1H1": second}
    return judged_rows({head: [COSTLY if i < n else HARMLESS for i in range(SEEDS)] for head, n in heads.items()})


def test_blocks_that_matter_in_all_and_in_no_seed() -> None:
    every, none, *_ = texts(answer_of(drops(10, 0), "blocks"))
    assert every.startswith(
        "E0 contains a head whose ablation alone costs over 1 point in 10 of 10 seeds (95 % CI 72.2-"
    )
    assert none == "E1 contains such a head in only 0 of 10 seeds (95 % CI 0-27.8), so not in most seeds."
    every, none, *_ = texts(answer_of(drops(0, 10), "blocks"))
    assert every.startswith("E1 contains")
    assert none.startswith("E0 contains such a head in only 0 of 10")


def test_half_of_the_seeds_do_not_decide() -> None:
    first, *others = answer_of(drops(5, 4), "blocks").sentences
    assert not first.is_decided
    assert first.text.startswith("No attention block is shown to contain")
    assert "E0 does in 5 of 10" in first.text
    assert others[0].text.startswith(
        "It is undecided whether other attention blocks contain such a head in most seeds: E1 in 4 of 10"
    )


def test_layers_are_compared_by_a_sign_test() -> None:
    (told,) = answer_of(drops(0, 10), "layers").sentences
    assert told.is_decided
    assert "Heads of layer 1 cost more than heads of layer 0 in 10 of 10" in told.text
    assert "p = 0.002" in told.text
    (told,) = answer_of(drops(5, 4), "layers").sentences
    assert not told.is_decided
    assert "is undecided" in told.text


def test_rankings_that_agree_and_that_do_not() -> None:
    (first, *_) = answer_of(drops(10, 0), "agreement").sentences
    assert first.is_decided
    agreement = r"Over 10 seeds, the ranking by drop agrees for attention blocks \(Kendall's W = 1\.00\)"
    assert re.search(agreement, first.text)
    random = [HARMLESS, COSTLY] * 5
    rows = judged_rows({"E0H0": random, "E0H1": random[::-1], "E1H0": random[::-1], "E1H1": random})
    (first, *_) = answer_of(rows, "agreement").sentences
    assert not first.is_decided
    assert first.text.startswith("Over 10 seeds, rankings by drop are not shown to agree for attention blocks")


def test_routes_that_hold_and_that_do_not() -> None:
    (told, one, absent) = answer_of(route_rows({"E0": [HIGH] * 10, "D0": [LOW] * 10}), "routes").sentences
    assert told.is_decided
    assert told.text.startswith(
        "In most seeds, the same block moves the largest share of the carry: E0 from 1s to 10s (10 of 10 seeds"
    )
    assert "E0 moves the largest share of the carry in 10 of 10" in one.text
    assert absent.text.startswith("D0 moves at least a tenth of the carry on some route in 0 of 10")
    mixed = {"E0": [HIGH, LOW] * 5, "X0": [LOW, HIGH] * 5}
    (told, *_) = answer_of(route_rows(mixed), "routes").sentences
    assert not told.is_decided
    assert "No block is shown to move the largest share of the carry in most of 10 seeds" in told.text


def test_a_function_that_holds_over_seeds_names_no_single_head() -> None:
    rows = route_rows({"E0H0": [HIGH, LOW] * 5, "E0H2": [LOW, HIGH] * 5})
    (told,) = answer_of(rows, "functions").sentences
    assert told.is_decided
    assert told.text.startswith(
        "In 10 of 10 (95 % CI 72.2-100) seeds, a head of E0 (encoder, layer 0) carries the carry"
    )
    assert told.text.endswith("over seeds, 2 different heads of the block do.")
    (told,) = answer_of(route_rows({"E0H0": [HIGH, *[LOW] * 9]}), "functions").sentences
    assert not told.is_decided


def test_what_can_be_removed_has_its_range() -> None:
    rows = [
        row(seed, value, measure, unit=unit, run=f"run{seed}", verb="prune", group=group)
        for measure, unit, group, values in (
            ("removable heads", "heads", "at most 1 point", (11, 12, 14)),
            ("heads that are harmless alone", "heads", None, (18, 19, 19)),
            ("score without all harmless heads", "share", None, (0.02, 0.03, 0.05)),
        )
        for seed, value in enumerate(values)
    ]
    removable, left = texts(answer_of(rows, "removal"))
    assert removable.startswith("A median of 12 heads can be removed together (range 11-14, mean 12.3, 95 % CI")
    assert left.startswith(
        "Without all heads that are harmless alone (median 19 heads), a median score of 3.0 % is left (range 2.0-5.0"
    )


def test_the_best_variant_is_undecided_if_others_reach_it() -> None:
    (told,) = answer_of(rows_of({"none": (0.5, 0.6, 0.5), "rotary": (0.9, 0.95, 0.99)}), "variants").sentences
    assert told.is_decided
    assert "rotary has the highest median accuracy: 95.0 %" in told.text
    (told,) = answer_of(rows_of({"none": (0.5, 0.92, 0.5), "rotary": (0.9, 0.95, 0.99)}), "variants").sentences
    assert not told.is_decided
    assert "undecided whether it is best: 1 other variant reaches its values in at least one seed (none)" in told.text


def test_the_page_begins_with_a_card_per_question_and_folds_the_rest() -> None:
    rows = [*drops(10, 0), *route_rows({"E0": [HIGH] * 10, "E0H0": [HIGH] * 10})]
    summary = summarise(rows)
    parts = [
        PartResults(name, summary, find_over_seeds(rows), over_training(seeds=3)) for name in ("first part", "second")
    ]
    report = build_study_report("Which heads matter?", "Over ten seeds.", parts, "made by a test")
    (cards,) = (block for block in report.sections[0].blocks if isinstance(block, Cards))
    assert {card.section for card in cards.cards} <= {section.id for section in report.sections}
    assert all(card.draw is not None and card.alt for card in cards.cards)
    assert all(re.search(r"\d+ of \d+|seeds", card.answer.text + card.note) for card in cards.cards)
    ids = [
        block.id for section in report.sections for block in section.blocks if isinstance(block, DataTable | Picture)
    ]
    assert len(ids) == len(set(ids))
    page = html_page(report)
    assert page.count("<details") > len(report.sections)
    assert page.count('class="card"') == len(cards.cards) <= 8
    assert len(re.findall(r'id="([^"]+)"', page)) == len(set(re.findall(r'id="([^"]+)"', page)))
    for target in re.findall(r'class="rests-on" href="#([^"]+)"', page):
        assert f'id="{target}"' in page


def test_the_terminal_shows_one_sentence_per_question() -> None:
    part = part_of(drops(10, 0))
    (conclusions,) = short_answers([part])
    assert len(conclusions.sentences) == 1 + len(answers(part))
    assert conclusions.sentences[0].text == (
        "10 runs of the task addition are compared; they differ only in their seeds."
    )
