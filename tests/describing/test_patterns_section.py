"""Heads on view, and what stands below each."""

from heads_by_hand import ablation, effect, model_results, report_results

from headcount import api
from headcount.describing.blocks import HeadPatterns
from headcount.describing.sections.patterns import section


def test_without_attention_there_is_no_section() -> None:
    assert section(report_results(model_results())) is None


def test_below_a_head_stands_what_is_lost_without_it() -> None:
    shown = api.show_heads("sample:addition", "374+814").result
    found = ablation(effect("E0H0", 0.031), effect("E0H1", -0.02), effect("E0H2", 0.0), effect("E0H3", 1e-5))
    made = section(report_results(model_results(patterns=(shown,), ablation=found)))
    (book,) = [block for block in made.blocks if isinstance(block, HeadPatterns)]
    assert book.worth == {"E0H0": "−3.1 points", "E0H1": "+2.0 points", "E0H2": "0.0 points", "E0H3": "0.0 points"}
    assert book.book.n_heads == 24
    assert book.caption == "All 24 heads of adder"
    assert book.command == "headcount heads runs/adder"
    assert "Zero ablation sets a head's output to zero." in made.blocks[0].text
    assert "replaced" not in section(report_results(model_results(patterns=(shown,)))).blocks[0].text


def test_weights_read_off_a_page_are_those_of_the_result() -> None:
    shown = api.show_heads("sample:addition", "374+814").result
    made = section(report_results(model_results(patterns=(shown,))))
    (book,) = [block for block in made.blocks if isinstance(block, HeadPatterns)]
    for site, weights in zip(shown.sites, book.book.pages[0].weights, strict=True):
        for head, kept in zip(site.heads, weights, strict=True):
            told = [[f"{weight:.2f}" for weight in row] for row in head.weights]
            assert [[f"{cell / 100:.2f}" for cell in row] for row in kept.tolist()] == told


def test_the_page_says_why_it_cannot_run_a_model() -> None:
    shown = api.show_heads("sample:addition", "374+814").result
    models = [
        model_results(name, patterns=(shown,), why_not_live=why)
        for name, why in (("a", "no engine"), ("b", ""), ("c", "no engine"))
    ]
    described = section(report_results(*models))
    assert described is not None
    (first, *_) = described.blocks
    assert first.text.endswith(" The page cannot run a and c: no engine.")
