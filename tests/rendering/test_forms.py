"""The same story as Markdown and as LaTeX, and figures that a page's policy allows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from told_results import subject

from headcount.describing.blocks import (
    Cell,
    Commands,
    Conclusions,
    DataTable,
    Formula,
    HeadPatterns,
    Notice,
    Paragraph,
    Picture,
    Section,
    Sentence,
)
from headcount.describing.exercise import write_exercise
from headcount.describing.patterns import PatternBook, PatternPage, SiteHeads
from headcount.describing.story import Material, Story
from headcount.rendering.latex import latex_table, write_latex
from headcount.rendering.markdown import plain, write_markdown
from headcount.rendering.svg import inline_svg, svg

HOSTILE = "</script><img src=x onerror=alert(1)> | *a* _b_ $c$ # [d](e)"


def drawn() -> Figure:
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="black", label="a & b")
    axes.imshow(np.eye(3))
    axes.set_title(HOSTILE.replace("$", ""))
    axes.legend()
    return figure


TABLE = DataTable("t", HOSTILE, ("head", "drop (%)"), (("E0H1", Cell("1.5 ± 0.2", 1.5, "strong")), ("E0_H2", "")), "n")
PICTURE = Picture("p", "a caption", "what is seen", drawn, "headcount ablate x")
BOOK = PatternBook(
    (SiteHeads("encoder.0.self", "encoder", "self", 0, ("E0H0",)),),
    (PatternPage("one", "", (("a", "b"),), ((0, 0),), (np.array([[[100, 0], [40, 60]]], dtype=np.uint8),)),),
)
STORY = Story(
    HOSTILE,
    "subtitle",
    (
        Section(
            "s",
            HOSTILE,
            (
                Paragraph(HOSTILE),
                Conclusions((Sentence("`code` holds", "t"), Sentence("open", is_decided=False))),
                TABLE,
                PICTURE,
                HeadPatterns("h", "patterns", BOOK, picture=Picture("hp", "heads", "seen", drawn)),
                HeadPatterns("h2", "patterns", BOOK),
                Formula("f", "words", "<mi>x</mi>", "x", "error 0"),
                Notice("fail", HOSTILE, "HC101"),
                Commands(("headcount lab",), "next:"),
            ),
        ),
    ),
    "made",
)


def test_markdown_has_every_block_and_its_pictures_beside_it(tmp_path: Path) -> None:
    files = write_markdown(STORY, tmp_path / "report.md")
    text = files[0].read_text()
    assert [file.name for file in files[1:]] == ["p.png", "p.svg", "hp.png", "hp.svg"]
    assert "![what is seen](figures/p.png)" in text
    assert "- `code` holds ([see](#t))" in text
    assert "| E0H1 | **1.5 ± 0.2** |" in text
    assert "$$\nx\n$$" in text
    assert "> **FAIL (HC101).**" in text
    assert "    headcount lab" in text
    assert "<img" not in text.replace("\\<img", "")
    assert "<script" not in text


def test_text_is_no_markup() -> None:
    assert plain("a|b `c|d` *e*") == "a\\|b `c|d` \\*e\\*"


def test_latex_is_a_tabular(tmp_path: Path) -> None:
    text = latex_table(TABLE)
    assert text.splitlines()[1] == r"\begin{tabular}{lr}"
    assert r"head & drop (\%) \\" in text
    assert r"E0\_H2 &  \\" in text
    assert r"1.5 $\pm$ 0.2" in text
    assert text.startswith("% </script>"), "in a comment, on one line"
    assert [file.name for file in write_latex(STORY, tmp_path)] == ["t.tex"]


def test_figures_in_a_page_have_neither_style_nor_black() -> None:
    text = inline_svg(drawn(), "fig", "label")
    assert " style=" not in text
    assert "<style" not in text
    assert "#000000" not in text
    assert "currentColor" in text
    assert not re.search(r'(id="|url\(#|href="#)(?!fig-)', text), "no id meets another figure's"
    assert "&lt;/script&gt;" in text
    assert svg(drawn()) == svg(drawn()), "the same bytes"
    assert "<text" in svg(drawn()), "text is text"


def test_an_exercise_without_material_is_empty(tmp_path: Path) -> None:
    assert write_exercise(Material("t", (subject("a", task=None),), ""), tmp_path) == []
