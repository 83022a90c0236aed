"""Names of heads: on hand-made sums, on models that learned nothing, and against controls."""

from __future__ import annotations

import copy
from statistics import median
from typing import Any

import hub_models as hub
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from headcount.analysis.role_measures import RoleSums
from headcount.analysis.roles import (
    NAMING,
    REPEATED,
    TEXTS,
    HeadRoles,
    control_makers,
    head_roles,
    measure_texts,
    name_heads,
)
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError
from headcount.experiments.external_models import ExternalModel
from headcount.heads import HeadSite
from headcount.hooks.sites import Site, Sites

SITES = [HeadSite("layer", layer, "self") for layer in range(2)]


def sites(n_heads: int = 5) -> Sites:
    return Sites({site: Site(nn.Linear(8, 8), tuple(map(site.head, range(n_heads)))) for site in SITES})


def sums(means: list[float], spread: float = 0.01, even: float = 0.1) -> RoleSums:
    """Return sums over twelve clusters of ten queries that scatter around each head's mean."""
    noise = np.random.default_rng(len(means)).normal(0, spread, (12, len(means)))
    counts = np.full(12, 10.0)
    return RoleSums(10 * (np.array(means) + noise), counts, even * counts, np.zeros((12, len(means))))


def named(role: str, means: list[float], bar: float = -1.0, **more: Any) -> list[str]:
    """Return the heads that get a name, if each of two layers has half of these means."""
    half = len(means) // 2
    measured = {
        site: {role: sums(part, **more)} for site, part in zip(SITES, (means[:half], means[half:]), strict=True)
    }
    head_roles = name_heads(sites(half), {TEXTS: measured}, {("layer", "self", role, TEXTS): bar})
    return [head.short for head in head_roles if head.named]


FEW = [0.1, 0.12, 0.09, 0.1, 0.9, 0.11, 0.1, 0.08, 0.1, 0.1]
MANY = [0.85, 0.1, 0.8, 0.7, 0.9, 0.8, 0.6, 0.9, 0.1, 0.8]


def test_a_head_that_stands_out_is_named_and_one_of_many_is_not() -> None:
    assert named("induction", FEW) == ["L0H4"]
    assert named("special", MANY) == [], "where most heads do it, the one that does it most has no name for it"


def test_every_condition_is_needed() -> None:
    assert named("induction", FEW, bar=0.95) == [], "controls show as much"
    assert named("induction", FEW, even=0.88) == [], "even attention would give nearly as much"
    assert named("induction", [0.0] * 4 + [0.2] + [0.0] * 5, even=0.0) == [], "too little"
    assert named("induction", [0.0] * 4 + [0.3] + [0.0] * 5, even=0.0) == ["L0H4"]
    assert named("induction", FEW, spread=1.5) == [], "the interval is too wide"
    assert named("entropy_share", FEW) == [], "no weight on anything"
    assert named("induction", [0.0, 0.9]) == [], "among two heads none stands out"


def test_rank_and_interval_are_what_formulas_say() -> None:
    first, second = sums(FEW[:5]), sums(FEW[5:])
    measured = {SITES[0]: {"previous": first}, SITES[1]: {"previous": second}}
    scores = [head.find("previous", TEXTS) for head in name_heads(sites(), {TEXTS: measured})]
    means = [float(x) for part in (first, second) for x in part.sums.sum(axis=0) / 120]
    spread = 1.4826 * median(abs(x - median(means)) for x in means)
    for i, standing in enumerate(scores):
        assert standing is not None
        clusters = (first if i < 5 else second).sums[:, i % 5] / 10
        low, high = stats.t.interval(0.95, 11, loc=clusters.mean(), scale=stats.sem(clusters))
        assert (standing.mean, standing.low, standing.high) == pytest.approx((means[i], low, high), rel=1e-4)
        assert (standing.n, standing.even) == (120, 0.1)
        assert standing.rank == 1 + sum(other > means[i] for other in means)
        assert standing.rank_low <= standing.rank <= standing.rank_high
        assert standing.z == pytest.approx((low - median(means)) / max(spread, NAMING.least_deviation), rel=1e-3)
    assert (scores[4].rank_low, scores[4].rank_high) == (1, 1)


def test_one_cluster_has_no_interval_and_no_name() -> None:
    one = RoleSums(np.array([[9.0, 0.1, 0.1, 0.1, 0.1]]), np.array([10.0]), np.array([1.0]), None)
    head_roles = name_heads(sites(), {TEXTS: {site: {"previous": one} for site in SITES}})
    assert not any(head.named for head in head_roles)
    assert {(s.low, s.high) for head in head_roles for s in head.standings} == {(0.0, 1.0)}


# --- models -----------------------------------------------------------------------------------------------------------


def text_of(words: str, vocabulary: int = hub.WORDS) -> TokenizedText:
    ids = torch.tensor([[ord(letter) % vocabulary for letter in words]])
    return TokenizedText((ids, torch.ones_like(ids)), {"layer": list(words)})


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_models_that_learned_nothing_get_no_name(family: str) -> None:
    """Use models with initial weights, and with weights so large that attention is sharp."""
    config, kind, changes = hub.FAMILIES[family]
    torch.manual_seed(3)
    for model in (kind(config(**changes)), hub.build(family, torch.float32)):
        external = ExternalModel.of(model)
        texts = {TEXTS: [text_of("abcabcdefgabcd")], REPEATED: external.repeated_tokens()}
        result = head_roles("model", "digest", external.model, external.sites, texts, n_controls=3)
        assert result.controls == ("untrained", "shuffled")
        assert [head.short for head in result.heads if head.named] == []
        assert {each.on for head in result.heads for each in head.standings} == {TEXTS, REPEATED}
        assert HeadRoles.from_json(result.to_json()) == result
        assert len(result.bars) == len({(s.role, s.on) for s in result.heads[0].standings}) - 4
        assert "at most 25 % of such models" in result.words


@pytest.mark.slow
def test_controls_are_other_models_of_the_same_shape() -> None:
    external = ExternalModel.of(hub.build("bert", torch.float32))
    before = copy.deepcopy(external.inner.state_dict())
    texts = external.repeated_tokens()
    makers = control_makers(external.model, external.sites)
    seen = [measure_texts(external.model, external.sites, texts)]
    for make in makers.values():
        for i in (0, 1):
            module, control_sites = make(i)
            assert [str(head) for head in control_sites.heads] == [str(head) for head in external.sites.heads]
            seen.append(measure_texts(module, control_sites, texts))
            sizes = [tuple(each.shape) for each in module.parameters()]
            assert sizes == [tuple(each.shape) for each in external.model.parameters()]
    means = [by_site[site]["previous"].sums.sum() for by_site in seen for site in list(by_site)[:1]]
    assert len({round(float(mean), 6) for mean in means}) == 5, "each attends in its own way"
    assert all(torch.equal(each, before[name]) for name, each in external.inner.state_dict().items())
    shuffled, _ = makers["shuffled"](0)
    for own, other in zip(external.model.parameters(), shuffled.parameters(), strict=True):
        assert torch.equal(own.flatten().sort().values, other.flatten().sort().values)
        assert own.ndim < 2 or not torch.equal(own, other)


@pytest.mark.slow
def test_faults_are_told() -> None:
    external = ExternalModel.of(hub.build("bert", torch.float32))
    known = "model", "digest", external.model, external.sites
    with pytest.raises(InputError, match="no texts to measure heads on"):
        head_roles(*known, {TEXTS: [], REPEATED: []})
    with pytest.raises(
        InputError, match=r"no text contains the separator token '>'\n  the first text has the tokens: a b c"
    ):
        head_roles(*known, {TEXTS: [text_of("abc")]}, [">"])
    result = head_roles(*known, {TEXTS: [text_of("ab>ba")]}, [">"], n_controls=0)
    assert (result.controls, result.bars, result.separators) == ((), (), (">",))
    assert result.heads[0].find("matching", TEXTS) is not None
    assert "there were no control models" in result.words
