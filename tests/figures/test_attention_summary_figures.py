"""Mosaics and patterns of single heads from results that went through JSON; people check how they look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from printing import printed

from headcount.analysis.attention import MEASURES, Axis, HeadAttention, SiteAttention
from headcount.analysis.attention_summary import AttentionSummary
from headcount.describing.attention import describe
from headcount.errors import InputError
from headcount.figures import attention as view
from headcount.figures.style import png
from headcount.heads import HeadId, HeadSite

pytestmark = pytest.mark.slow  # together they take over 5 s

ODD = ("$a", "b$", "[red]", "中文", "\n", "averyveryverylongtokenindeed")
"""Math, markup, letters that the font lacks, control characters, and too long: all of it is just text."""


def axis(stack: str, n: int) -> Axis:
    edges = np.linspace(0, n, min(n, 32) + 1).round().astype(int).tolist()
    return Axis(stack, tuple(f"{stack}{i}" for i in range(n)), None, tuple(edges))


def head(name: HeadId, down: int, across: int) -> HeadAttention:
    """Every head is its own."""
    draw = np.random.default_rng([name.site.layer, name.index])
    pooled = draw.dirichlet(np.full(across, 0.2), size=down)
    first, previous, itself, following = draw.dirichlet(np.ones(5))[:4].round(4).tolist()
    if name.site.kind == "cross":
        previous = itself = following = None
    share = draw.random()
    rows = tuple(map(tuple, (10_000 * pooled).round().astype(int).tolist()))
    measures: dict[str, Any] = dict.fromkeys(MEASURES)
    measures |= {"first": first, "previous": previous, "itself": itself, "next": following}
    measures |= {"entropy_share": share, "distance": 12.34}
    return HeadAttention(head=str(name), short=name.short, **measures, pooled=rows)


def made(
    *kinds: tuple[str, str], layers: int = 2, heads: int = 3, run: str = "models/bert", **n: int
) -> AttentionSummary:
    axes = {stack: axis(stack, length) for stack, length in n.items()}
    sites = []
    for stack, kind in kinds or (("layer", "self"),):
        keys = "encoder" if kind == "cross" else stack
        sizes = [len(axes[each].edges) - 1 for each in (stack, keys)]
        for layer in range(layers):
            site = HeadSite(stack, layer, kind)
            found = tuple(head(site.head(i), *sizes) for i in range(heads))
            sites.append(SiteAttention(str(site), stack, layer, kind, stack, keys, found))
    result = AttentionSummary(
        name=run,
        weights_sha256="digest",
        title="a text",
        n_tokens=sum(n.values()),
        axes=tuple(axes.values()),
        sites=tuple(sites),
    )
    return AttentionSummary.from_json(result.to_json())


TRANSLATOR = (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))


def labels(figure: Figure) -> tuple[list[str], list[str]]:
    """At the left and above or below."""
    axes = figure.axes[0]
    return [each.get_text() for each in axes.get_yticklabels()], [each.get_text() for each in axes.get_xticklabels()]


def lines(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def require_tidy(figure: Figure) -> None:
    """It can be drawn, nothing leaves the page, and no two texts touch."""
    assert png(figure).startswith(b"\x89PNG")
    axes, bar = figure.axes
    words = [*figure.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), *bar.get_yticklabels()]
    words += [axes.xaxis.label, axes.yaxis.label, bar.yaxis.label]
    boxes = {each: each.get_window_extent() for each in words if each.get_text()}
    page = figure.bbox
    for text, box in boxes.items():
        assert page.x0 <= box.x0 and box.x1 <= page.x1, text  # noqa: PT018
        assert page.y0 <= box.y0 and box.y1 <= page.y1, text  # noqa: PT018
    placed = list(boxes.items())
    for i, (one, box) in enumerate(placed):
        touched = [other for other, beside in placed[:i] if box.overlaps(beside)]
        assert not touched, (one, touched)


# --- the mosaic -----------------------------------------------------------------------------------------------------


def test_a_mosaic_names_layers_and_heads_once() -> None:
    result = made(layers=12, heads=12, layer=512)
    figure = view.draw_mosaic(result, "layer", "self")
    assert len(figure.axes) == 2, "one picture of all heads, and the colour bar"
    assert labels(figure) == ([f"L{i}" for i in range(12)], [f"H{i}" for i in range(12)])
    assert lines(figure) == [
        "models/bert: self-attention, 12 layers × 12 heads",
        "each square is a head: query ↓ attends to key →; its rows sum to 1",
        "512 tokens; each cell: a bin of 16 tokens",
        "a text",
    ]
    assert "square-root scale" in figure.axes[1].get_ylabel()
    norm = figure.axes[0].images[0].norm
    assert isinstance(norm, PowerNorm)
    assert (norm.gamma, norm.vmin, norm.vmax) == (0.5, 0, 1)
    require_tidy(figure)


@pytest.mark.parametrize("n", [1, 6, 40])
def test_every_head_stands_in_its_row_and_column(n: int) -> None:
    result = made(*TRANSLATOR, encoder=n, decoder=4)
    for kind in TRANSLATOR:
        figure = view.draw_mosaic(result, *kind)
        picture = figure.axes[0].images[0].get_array()
        assert picture is not None
        sites = [site for site in result.sites if (site.stack, site.kind) == kind]
        down, across = (len(each.edges) - 1 for each in result.axes_of(sites[0]))
        height, width = ((size - view.GAP) // parts for size, parts in zip(picture.shape, (2, 3), strict=True))
        cell = (height - view.GAP) // down
        assert cell == (width - view.GAP) // across
        for layer, site in enumerate(sites):
            for each in site.heads:
                top, left = layer * height + view.GAP, HeadId.parse(each.head).index * width + view.GAP
                shown = picture[top : top + cell * down : cell, left : left + cell * across : cell]
                np.testing.assert_array_equal(shown, each.array)
                assert picture[top - 1].mask.all(), "a gap"
    assert list(view.draw_pages(result)) == ["encoder-self", "decoder-self", "decoder-cross"]


def test_a_pixel_of_the_picture_is_a_pixel_of_the_page() -> None:
    figure = view.draw_mosaic(made(layers=3, heads=5, layer=20), "layer", "self")
    axes = figure.axes[0]
    (height, width), box = axes.images[0].get_size(), axes.get_window_extent()
    assert (figure.dpi, box.width, box.height) == pytest.approx((view.DPI, width, height))


def test_cells_are_explained() -> None:
    def told(**n: int) -> str:
        kind = ("decoder", "cross") if "decoder" in n else ("layer", "self")
        return lines(view.draw_mosaic(made(kind, **n), *kind))[2]

    assert told(layer=1) == "1 token; each cell: one token"
    assert told(layer=32) == "32 tokens; each cell: one token"
    assert told(layer=500) == "500 tokens; each cell: a bin of 15 or 16 tokens"
    assert told(encoder=512, decoder=1) == "1 query and 512 keys; each cell: one query and a bin of 16 keys"
    expected = "40 queries and 64 keys; each cell: a bin of 1 or 2 queries and a bin of 2 keys"
    assert told(encoder=64, decoder=40) == expected


def test_where_a_head_was_cut_out_nothing_is_drawn() -> None:
    result = made(layer=6)
    first, second = result.sites
    result = replace(result, sites=(first, replace(second, heads=second.heads[::2])))
    figure = view.draw_mosaic(result, "layer", "self")
    picture = figure.axes[0].images[0].get_array()
    assert picture is not None
    height, width = picture.shape[0] // 2, picture.shape[1] // 3
    middle = picture[height + view.GAP :, width + view.GAP : 2 * width - view.GAP]
    assert np.ma.getmaskarray(middle).all()
    above = picture[view.GAP : height - view.GAP, width + view.GAP : 2 * width - view.GAP]
    assert not np.ma.getmaskarray(above).any()
    assert lines(figure)[1].endswith("; grey: no head")


PAGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "one head": ((("layer", "self"),), {"layers": 1, "heads": 1, "layer": 3}),
    "long name": ((("decoder", "cross"),), {"run": "models/" + "m" * 80, "encoder": 1999, "decoder": 1997}),
    "many heads": ((("layer", "self"),), {"layers": 48, "heads": 64, "layer": 5}),
}


@pytest.mark.parametrize(("kinds", "sizes"), PAGES.values(), ids=PAGES)
def test_pages_of_all_sizes_are_tidy(kinds: Any, sizes: dict[str, Any]) -> None:
    result = replace(made(*kinds, **sizes), title="w" * 40 + " … " + "w" * 15)
    figure = view.draw_mosaic(result, *kinds[0])
    require_tidy(figure)
    assert labels(figure)[0][0] == ("X0" if "encoder" in sizes else "L0")


# --- one head -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 40, 41, 512])
def test_a_pattern_names_tokens(n: int) -> None:
    result = made(layer=n)
    weights = np.random.default_rng(0).dirichlet(np.ones(n), size=n)
    figure = view.draw_head_on_text(result, "L1H2", weights)
    every = 1 if n <= 40 else 2 if n == 41 else 13
    names = [f"{i}: layer{i}" if every > 1 else f"layer{i}" for i in range(0, n, every)]
    assert labels(figure) == (names, names)
    assert lines(figure)[0] == "models/bert: layer.1.self.2 (L1H2)"
    picture = figure.axes[0].images[0].get_array()
    assert picture is not None
    cell = len(picture) // n
    np.testing.assert_array_equal(picture[::cell, ::cell], weights)
    places = figure.axes[0].get_yticks()
    assert places == pytest.approx([cell * (i + 0.5) - 0.5 for i in range(0, n, every)])
    require_tidy(figure)


def test_a_pattern_of_cross_attention_has_both_texts() -> None:
    weights = np.full((5, 300), 1 / 300)
    figure = view.draw_head_on_text(made(*TRANSLATOR, encoder=300, decoder=5), HeadId.parse("X0H1"), weights)
    queries, keys = labels(figure)
    assert queries == [f"decoder{i}" for i in range(5)]
    assert keys[:2] == ["0: encoder0", "8: encoder8"]
    assert (figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()) == ("query ↓ (attends)", "key → (attended to)")
    require_tidy(figure)


def test_a_pattern_of_very_many_tokens_is_pooled() -> None:
    n = 3 * view.MOST_CLOSE
    weights = np.random.default_rng(0).dirichlet(np.ones(n), size=n)
    figure = view.draw_head_on_text(made(layer=n), "L0H0", weights)
    picture = figure.axes[0].images[0].get_array()
    assert picture is not None
    expected = weights.reshape(n // 3, 3, n // 3, 3).sum(axis=3).mean(axis=1)
    np.testing.assert_allclose(picture[::2, ::2], expected, rtol=1e-9)
    assert lines(figure)[1] == "1,536 tokens; each cell: a bin of 3 tokens"


def test_tokens_are_text_whatever_they_hold() -> None:
    result = made(layer=len(ODD))
    result = replace(result, title=" ".join(ODD), axes=(replace(result.axes[0], tokens=ODD),))
    figure = view.draw_head_on_text(result, "L0H0", np.eye(len(ODD)))
    assert labels(figure)[0] == ["$a", "b$", "[red]", "□□", "\\n", "averyveryverylo…"]
    require_tidy(figure)
    require_tidy(view.draw_mosaic(result, "layer", "self"))
    assert r"$a b$ [red] 中文 \n averyvery" in " ".join(printed(*describe(result)).split())


def test_faults_are_told() -> None:
    result = made(layer=6)
    with pytest.raises(InputError, match=r"no head 'layer.0.self.3' in models/bert"):
        view.draw_head_on_text(result, "L0H3", np.eye(6))
    with pytest.raises(InputError, match=r"no head 'encoder.0.self.0'"):
        view.draw_head_on_text(result, "E0H0", np.eye(6))
    with pytest.raises(InputError, match=r"must be a matrix of 6 queries by 6 keys, got the shape \(5, 5\)"):
        view.draw_head_on_text(result, "L0H0", np.eye(5))
    with pytest.raises(InputError, match=r"no decoder cross-attention\n  it has layer.0.self \(3 heads\), layer.1"):
        view.draw_mosaic(result, "decoder", "cross")
