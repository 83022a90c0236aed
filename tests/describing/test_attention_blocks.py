"""The table of attention on one text, and the heads that stand out there."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from printing import printed
from tests.figures.test_attention_summary_figures import TRANSLATOR, made

from headcount.analysis.attention import MEASURES, AttentionSummary
from headcount.analysis.roles import RoleScore
from headcount.describing.attention import conclusions, describe
from headcount.describing.words import interval


def standing(role: str, mean: float, rank: int = 1) -> RoleScore:
    return RoleScore(
        role, "texts", mean, mean - 0.05, mean + 0.05, 0.1, 40, 30, rank, rank, rank + 1, 9.0, is_named=True
    )


def with_names(result: AttentionSummary, names: dict[str, tuple[RoleScore, ...]]) -> AttentionSummary:
    sites = (
        replace(site, heads=tuple(replace(each, named=names.get(each.short, ())) for each in site.heads))
        for site in result.sites
    )
    return replace(result, sites=tuple(sites))


def test_the_table_has_a_row_per_head_and_what_stands_out_has_a_star() -> None:
    names = {"E0H1": (standing("previous", 0.5),), "X1H2": (standing("first", 0.4), standing("duplicate", 0.3))}
    result = with_names(made(*TRANSLATOR, encoder=6, decoder=4), names)
    lines = {line.split()[0]: line for line in printed(*describe(result)).splitlines() if line.strip()}
    heads = [each for site in result.sites for each in site.heads]
    rows = {name: lines[name].replace("*", "").split()[1:] for name in lines if name in [each.short for each in heads]}
    assert list(rows) == [each.short for each in heads]
    for each in heads:
        weights = [each.first, each.previous, each.itself, each.next]
        told = ["–" if weight is None else f"{100 * weight:.1f}" for weight in weights]
        assert each.entropy_share is not None
        assert rows[each.short] == [*told, f"{100 * each.entropy_share:.1f}", "12.3"]
        weight = {"E0H1": each.previous, "X1H2": each.first}.get(each.short)
        assert lines[each.short].count("*") == (weight is not None)
        assert weight is None or f" {100 * weight:.1f} *" in lines[each.short]


def test_what_no_head_has_is_no_column() -> None:
    result = made(layers=1, heads=1, layer=1)
    (site,) = result.sites
    nothing: dict[str, Any] = dict.fromkeys(MEASURES)
    result = replace(result, sites=(replace(site, heads=(replace(site.heads[0], **nothing),)),))
    (row,) = (line for line in printed(*describe(result)).splitlines() if "L0H0" in line)
    assert row.split() == ["L0H0", "–", "–"]
    assert conclusions(result)[0].text == "No head stands out against the others on this text."


def test_a_mean_has_its_n_and_one_over_too_few_queries_is_not_printed() -> None:
    result = made(layer=6)
    sizes = ({"previous": 12, "first": 4, "entropy_share": 13}, {"previous": 9, "first": 1, "entropy_share": 13})
    sites = tuple(replace(site, n_queries=n) for site, n in zip(result.sites, sizes, strict=True))
    table = describe(replace(result, sites=sites))[0]
    text = " ".join(printed(table).split())
    assert "first" not in text, "69.8 % of one query says nothing"
    (first, *_), *_ = (site.heads for site in result.sites)
    row = next(
        line for line in printed(*describe(replace(result, sites=sites))).splitlines() if line.split()[:1] == ["L0H0"]
    )
    assert row.split()[1] == f"{100 * first.previous:.1f}"
    assert {"n", "=", "9", "to", "12"} <= set(re.sub(r"[^\w=]+", " ", text).split())
    sites = (replace(sites[0], n_queries=sizes[0] | {"first": 5}), sites[1])
    rows = [line.split() for line in printed(*describe(replace(result, sites=sites))).splitlines()]
    cells = {row[0]: row[1] for row in rows if row and row[0] in ("L0H0", "L1H0")}
    assert cells == {"L0H0": f"{100 * first.first:.1f}", "L1H0": "–"}


def test_conclusions_name_heads_that_stand_out_with_rank_and_interval() -> None:
    names = {"L0H1": (standing("previous", 0.5, rank=2),), "L1H2": (standing("previous", 0.8),)}
    (sentence,) = conclusions(with_names(made(layer=6), names))
    assert sentence.text == (
        "Heads that stand out for attention to the previous token: "
        f"L1H2 80.0 % ({interval(0.75, 0.85)}; n = 40; 1st of 6 [1, 2]), "
        f"L0H1 50.0 % ({interval(0.45, 0.55)}; n = 40; 2nd of 6 [2, 3])."
    )
