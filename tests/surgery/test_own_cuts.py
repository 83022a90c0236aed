"""Cutting heads out equals ablating them: the same outputs from smaller matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from second_routes import held_at_means, zero_heads
from torch import Tensor, nn

from headcount.encodings import ENCODINGS
from headcount.errors import CheckFailed, InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.sites import Sites
from headcount.models.attention import AttentionCache, MultiHeadAttention
from headcount.models.config import ClassifierConfig, EncoderDecoderConfig
from headcount.models.transformer import AttentionBlock, Classifier, EncoderDecoder, HeadlessAttention, Model, greedy
from headcount.runs import prune
from headcount.runs.run import Run
from headcount.surgery.cut_proof import prove_cut, prove_folded
from headcount.surgery.cutting import Inputs, Means, cut_heads, fold, mean_outputs

pytestmark = pytest.mark.slow  # seconds together

START, PAD = 11, 12
NUMBERS = torch.tensor([[3, 5, 5, 9, 1], [7, 20, 20, 20, 20], [0, 19, 4, 20, 20], [8, 2, 2, 11, 6]])
SOURCE = torch.tensor([[3, 7, 4, 10, 8, 1, 4], [9, 9, 10, 1, PAD, PAD, PAD], [0, 10, 5, 5, 3, PAD, PAD]])
FED = torch.tensor([[START, 1, 1, 8], [START, 0, 3, 9], [START, 7, 7, 2]])
close = {"atol": 1e-9, "rtol": 1e-9}


def scattered(model: Model) -> Any:
    """No weight is left at 0 or 1, where a fault would not show; in double precision, where rounding hides none."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval().double()


def classifier(**given: Any) -> Classifier:
    torch.manual_seed(0)
    shape = {"d_model": 8, "n_heads": 4, "d_ff": 16, "n_layers": 2, "n_positions": 8}
    return scattered(Classifier(ClassifierConfig(**(shape | given)), 21, 2, pad_id=20))


def adder(**given: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    shape = {"d_model": 12, "n_heads": 3, "d_ff": 16, "n_positions": 8}
    return scattered(EncoderDecoder(EncoderDecoderConfig(**(shape | given)), n_tokens=13, pad_id=PAD))


def inputs(model: Model) -> tuple[Tensor, ...]:
    return (NUMBERS,) if isinstance(model, Classifier) else (SOURCE, FED)


def masked(model: Model, heads: Iterable[HeadId], *tokens: Tensor) -> tuple[Tensor, AttentionCache]:
    """Logits and weights of the whole model, while hooks set the outputs of these heads to zero."""
    gone, weights, hooks = set(heads), AttentionCache(), []

    def shut(site: HeadSite) -> Callable[..., tuple[Tensor]]:
        gate = torch.tensor([head not in gone for head in model.heads_at(site)])
        return lambda _, z: ((z[0].unflatten(-1, (len(gate), -1)) * gate[:, None]).flatten(start_dim=-2),)

    for site, projection in model.projections.items():
        hooks.append(projection.register_forward_pre_hook(shut(site)))
    try:
        return model(*tokens, weights=weights), weights
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def require_same(model: Model, heads: Iterable[HeadId]) -> Model:
    """Logits, and the weights of the heads that are left, read or not; returns the cut model."""
    heads, tokens, weights = list(heads), inputs(model), AttentionCache()
    expected, shown = masked(model, heads, *tokens)
    cut = cut_heads(model, heads)
    torch.testing.assert_close(cut(*tokens), expected, **close)
    torch.testing.assert_close(cut(*tokens, weights=weights), expected, **close)
    torch.testing.assert_close(zero_heads(model, heads)(*tokens), expected, **close)
    assert prove_cut(model, cut, heads, tokens) <= 1e-12
    assert set(weights) == set(cut.sites) == {head.site for head in cut.heads}
    for site in cut.sites:
        places = [place for place, head in enumerate(model.heads_at(site)) if head in cut.heads_at(site)]
        torch.testing.assert_close(weights[site], shown[site][:, places], **close)
    return cut


# --- cut is silenced ------------------------------------------------------------------------------------------------


def sampled(cases: Iterable[tuple[Any, ...]], is_common: Callable[..., bool]) -> list[Any]:
    """Return every case of a product, those that are not common for `--long` only."""
    return [pytest.param(*case, marks=() if is_common(*case) else pytest.mark.long) for case in cases]


KINDS = [*product(ENCODINGS.names(), ["plain", "log-length"], [False, True], ["pre", "post"])]
NORMS = ("pre", "post")
SITES = ("E0", "E1", "D0", "D1", "X0", "X1")
LOST = [*[(site,) for site in SITES], ("D0", "D1"), ("X0", "X1"), ("E0", "D1", "X0"), SITES]
PLACED = dict(zip(LOST, cycle(NORMS), strict=False))
"""Where the norm stands in the model that is tried for each."""


def is_pair(encoding: str, *others: Any) -> bool:
    """Return whether a case is one of two for its encoding, which differ in every other setting."""
    place = ENCODINGS.names().index(encoding) % 8
    return others in (KINDS[place][1:], KINDS[7 - place][1:])


@pytest.mark.parametrize(
    ("encoding", "softmax", "causal", "norm"),
    sampled(KINDS, is_pair),
)
def test_a_classifier_without_heads_is_one_whose_heads_are_silent(
    encoding: str, softmax: str, causal: bool, norm: str
) -> None:
    model = classifier(encoding=encoding, softmax=softmax, causal=causal, norm=norm)
    require_same(model, [HeadId.parse(name) for name in ("L0H1", "L1H0", "L1H3")])
    require_same(model, model.heads_at(model.sites[0]))


@pytest.mark.parametrize(
    ("lost", "norm"),
    sampled(product(LOST, NORMS), lambda lost, norm: lost == SITES or norm == PLACED[lost]),
)
def test_whole_blocks_are_lost_and_only_their_bias_is_left(lost: tuple[str, ...], norm: str) -> None:
    model = adder(norm=norm, encoding="t5")
    cut = require_same(model, [head for head in model.heads if head.site.short in lost])
    assert [site.short for site in cut.sites] == [site for site in SITES if site not in lost]
    for site, block in cut.blocks.items():
        assert isinstance(block.attention, HeadlessAttention) == (site.short in lost)
        if site.short in lost:
            names = {"attention.output.bias", *(["residual.norm.weight", "residual.norm.bias"] * (norm == "post"))}
            assert set(block.state_dict()) == names
    assert all(weight.numel() for weight in cut.parameters())


@pytest.fixture(scope="module", params=["pre", "post"])
def whole(request: pytest.FixtureRequest) -> EncoderDecoder:
    return adder(norm=request.param, encoding="rotary", softmax="log-length", window=3)


@pytest.mark.slow
@settings(deadline=None, max_examples=6)
@given(data=st.data())
def test_any_heads_can_be_cut_in_any_order(whole: EncoderDecoder, data: st.DataObject) -> None:
    gone = data.draw(st.lists(st.sampled_from(whole.heads), min_size=1, unique=True))
    require_same(whole, gone)
    require_same_in_two_steps(whole, gone, data.draw(st.integers(0, len(gone))))


def test_cut_twice_is_cut_at_once(whole: EncoderDecoder) -> None:
    for middle in (1, 4, 7):
        require_same_in_two_steps(whole, [*whole.heads[5:0:-1], *whole.heads[-3:]], middle)


def require_same_in_two_steps(whole: EncoderDecoder, gone: list[HeadId], middle: int) -> None:
    """Or in one, where one of the two is left with nothing to do."""
    at_once, twice = cut_heads(whole, gone), whole
    for part in (gone[:middle], [head.short for head in gone[middle:]]):
        twice = cut_heads(twice, part) if part else twice
    assert twice.config == at_once.config
    assert list(twice.state_dict()) == list(at_once.state_dict())
    for one, other in zip(twice.state_dict().values(), at_once.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@torch.no_grad()
def test_the_comparison_can_fail() -> None:
    model = classifier(encoding="alibi")
    expected, _ = masked(model, model.heads[:1], NUMBERS)
    for wrong in (model, cut_heads(model, model.heads[1:2]), cut_heads(model, model.heads[:2])):
        assert (wrong(NUMBERS) - expected).abs().max() > 1e-3
        with pytest.raises(CheckFailed, match="differ by"):
            prove_cut(model, wrong, model.heads[:1], [NUMBERS])


# --- what a head says on average stays ------------------------------------------------------------------------------


def z_of(model: Model, *tokens: Tensor) -> dict[HeadSite, Tensor]:
    """Return the output of every head, [row, query, head, d_head]."""
    seen: dict[HeadSite, Tensor] = {}
    hooks = [
        projection.register_forward_hook(lambda _, z, output, site=site: seen.update({site: z[0]}))
        for site, projection in model.projections.items()
    ]
    model(*tokens)
    for hook in hooks:
        hook.remove()
    return {site: z.unflatten(-1, (len(model.heads_at(site)), -1)) for site, z in seen.items()}


def with_masks(model: Model, tokens: Sequence[Tensor]) -> Inputs:
    """One batch, and which of its positions hold tokens."""
    stacks = ("layer",) if isinstance(model, Classifier) else ("encoder", "decoder")
    return tokens, {stack: torch.ne(each, model.pad_id) for stack, each in zip(stacks, tokens, strict=True)}


def means_of(model: Model) -> Means:
    return mean_outputs(model, Sites.of(model), [with_masks(model, inputs(model))])


@pytest.mark.parametrize("make", [adder, classifier])
@torch.no_grad()
def test_means_are_over_tokens_and_not_over_padding(make: Callable[..., Any]) -> None:
    model = make()
    tokens = inputs(model)
    parts = [[each[:1] for each in tokens], [each[1:] for each in tokens]]
    found = mean_outputs(model, Sites.of(model), [with_masks(model, part) for part in parts])
    pad = {"encoder": PAD, "decoder": PAD, "layer": 20}
    for site, z in z_of(model, *tokens).items():
        stack = tokens[-1] if site.stack == "decoder" else tokens[0]
        is_token = stack != pad[site.stack]
        rows = [z[i, j] for i in range(len(z)) for j in range(z.shape[1]) if is_token[i, j]]
        torch.testing.assert_close(found[site], torch.stack(rows).mean(dim=0), **close)
    assert not any(projection._forward_pre_hooks for projection in model.projections.values())


def test_a_runs_means_leave_its_padding_out(tiny_run: Run, tiny_sorter: Run) -> None:
    """The caller of `mean_outputs` marks the padding; a run does so."""
    for run, stacks in ((tiny_run, ["encoder", "decoder"]), (tiny_sorter, ["layer"])):
        tokens, is_token = prune._inputs(run, run.task.split("validation"))
        assert list(is_token) == stacks
        for each, mask in zip(tokens, is_token.values(), strict=True):
            assert torch.equal(mask, each != run.model.pad_id)
    assert not is_token["layer"].all(), "sequences of unequal length"


@pytest.mark.parametrize("lost", [("D0",), ("E0", "D1", "X0"), SITES])
@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_a_mean_is_folded_into_the_bias_that_stays(lost: tuple[str, ...], norm: str) -> None:
    """Some heads of every site, and whole blocks, of which the bias alone is left."""
    model = adder(norm=norm, encoding="rotary")
    gone = [head for head in model.heads if head.site.short in lost or head.index == 1]
    means = means_of(model)
    folded = fold(model, gone, means, 3)
    cut = cut_heads(folded, gone)
    expected = held_at_means(model, gone, means)(*inputs(model))
    torch.testing.assert_close(cut(*inputs(model)), expected, **close)
    assert (cut(*inputs(model)) - cut_heads(model, gone)(*inputs(model))).abs().max() > 1e-2, "the mean is heard"
    for site, z in z_of(held_at_means(model, gone, means), *inputs(model)).items():
        for place, head in enumerate(model.heads_at(site)):
            assert torch.equal(z[..., place, :], means[site][place].expand(*z.shape[:2], -1)) == (head in gone)
    assert prove_cut(folded, cut, gone, inputs(model)) <= 1e-12
    assert prove_folded(model, cut, gone, means, inputs(model)) <= 1e-12
    with pytest.raises(CheckFailed, match=r"these heads replaced by their mean outputs.* differ by"):
        prove_folded(model, cut_heads(model, gone), gone, means, inputs(model))


# --- rows, caches and answers ---------------------------------------------------------------------------------------

cuts: dict[str, Callable[[HeadId], bool]] = {
    "some": lambda head: head.index == 1,
    "all that look at the source": lambda head: head.site.kind == "cross",
    "the decoder's own": lambda head: (head.site.stack, head.site.kind) == ("decoder", "self"),
    "everything": lambda head: True,
}


@pytest.mark.parametrize(
    ("which", "norm"), sampled(product(cuts, NORMS), lambda which, norm: norm == NORMS[list(cuts).index(which) % 2])
)
@torch.no_grad()
def test_answers_are_the_same_with_and_without_a_cache(which: str, norm: str) -> None:
    model = adder(norm=norm, encoding="learned")
    cut = cut_heads(model, filter(cuts[which], model.heads))
    memory = cut.encode(SOURCE)
    predicted = greedy(cut, memory, START, 6)
    assert predicted.shape == (3, 6)
    assert torch.equal(predicted, greedy(cut, memory, START, 6, use_cache=False))
    silent = zero_heads(model, filter(cuts[which], model.heads))
    assert torch.equal(predicted, greedy(silent, silent.encode(SOURCE), START, 6))


@pytest.mark.parametrize("which", cuts)
@torch.no_grad()
def test_one_row_of_fed_tokens_still_serves_all_sources(which: str) -> None:
    model = adder()
    cut = cut_heads(model, filter(cuts[which], model.heads))
    logits = cut(SOURCE, FED[:1])
    assert logits.shape == (3, 4, 13)
    torch.testing.assert_close(logits, cut(SOURCE, FED[:1].expand(3, -1)), **close)


def test_lost_attention_adds_its_bias_to_as_many_rows_as_attention_would() -> None:
    lost = HeadlessAttention(4)
    with torch.no_grad():
        lost.output["bias"].copy_(torch.arange(4.0))
    one, many = torch.randn(1, 3, 4), torch.randn(5, 2, 4)
    assert torch.equal(lost(one), torch.arange(4.0).expand(1, 3, 4))
    assert torch.equal(lost(one, many), torch.arange(4.0).expand(5, 3, 4))


# --- names and shapes -----------------------------------------------------------------------------------------------


def test_heads_keep_their_names() -> None:
    cut = cut_heads(adder(n_heads=4), ["E0H1", "X1H0", "X1H1", "D0H0", "D0H1", "D0H2", "D0H3"])
    assert [site.short for site in cut.sites] == ["E0", "E1", "D1", "X0", "X1"]
    assert [head.short for head in cut.heads_at(HeadSite("encoder", 0))] == ["E0H0", "E0H2", "E0H3"]
    assert [head.short for head in cut.heads_at(HeadSite("decoder", 1, "cross"))] == ["X1H2", "X1H3"]
    assert cut.heads_at(HeadSite("decoder", 0)) == ()
    assert cut.heads == tuple(head for site in cut.sites for head in cut.heads_at(site))
    assert list(cut.projections) == list(cut.sites)
    shapes = {site.short: tuple(projection.weight.shape) for site, projection in cut.projections.items()}
    assert shapes == {"E0": (12, 9), "E1": (12, 12), "D1": (12, 12), "X0": (12, 12), "X1": (12, 6)}


@pytest.mark.parametrize("build", [classifier, adder])
def test_nothing_cut_is_nothing_changed(build: Callable[..., Model]) -> None:
    model = build(encoding="fire", softmax="log-length")
    named = build(encoding="fire", softmax="log-length", pruned=())
    assert named.config == model.config
    assert list(named.state_dict()) == list(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(named.parameters(), model.parameters(), strict=True))
    assert torch.equal(named(*inputs(model)), model(*inputs(model)))
    with pytest.raises(InputError, match="no heads to cut out"):
        cut_heads(model, [])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("build", [classifier, adder])
def test_a_cut_model_is_what_its_settings_build(build: Callable[..., Model], norm: str) -> None:
    model = build(norm=norm, encoding="t5", softmax="log-length")
    gone = [*model.heads_at(model.sites[-1]), model.heads[0]]
    cut = cut_heads(model, gone)
    fresh = build(norm=norm, encoding="t5", softmax="log-length", pruned=gone)
    assert fresh.config == cut.config
    assert [(n, t.shape) for n, t in fresh.state_dict().items()] == [(n, t.shape) for n, t in cut.state_dict().items()]
    fresh.load_state_dict(cut.state_dict())
    assert torch.equal(fresh(*inputs(model)), cut(*inputs(model)))


def test_the_copy_shares_nothing_with_the_model_and_draws_nothing() -> None:
    model = adder(norm="post")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    for cut in (cut_heads(model, ["E0H0", *model.heads_at(HeadSite("decoder", 0))]), zero_heads(model, ["E0H0"])):
        with torch.no_grad():
            for parameter in cut.parameters():
                parameter.fill_(7.0)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config.pruned == ()


@pytest.mark.parametrize("training", [True, False])
def test_precision_and_mode_are_kept(training: bool) -> None:
    for dtype in (torch.float32, torch.float64):
        model = classifier(dropout=0.5).to(dtype).train(training)
        cut = cut_heads(model, ["L0H0", *model.heads_at(HeadSite("layer", 1))])
        assert all(module.training == training for module in cut.modules())
        assert all(weight.dtype == dtype and weight.requires_grad for weight in cut.parameters())
        assert {weight.device.type for weight in cut.parameters()} == {"cpu"}


@torch.no_grad()
def test_in_single_precision_they_differ_by_rounding_at_most() -> None:
    model = adder(encoding="rotary", softmax="log-length").float()
    gone = [head for head in model.heads if head.index == 1]
    expected = zero_heads(model, gone)(SOURCE, FED)
    assert (cut_heads(model, gone)(SOURCE, FED) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_heads_that_are_not_there_are_told() -> None:
    cut = cut_heads(classifier(), ["L0H1", *(f"L1H{i}" for i in range(4))])
    with pytest.raises(InputError, match=r"no head L0H1, L2H0 in this model(.|\n)*L0H0, L0H2, L0H3"):
        cut_heads(cut, ["L0H0", "L0H1", "L2H0"])
    with pytest.raises(InputError, match="'E1' is not the name of a head"):
        cut_heads(cut, ["E1"])


# --- models that never had them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_weight_of_a_cut_model_is_trained(norm: str) -> None:
    model = classifier(norm=norm, encoding="t5", softmax="log-length", pruned="L0H0,L0H2,L1H0,L1H1,L1H2,L1H3").train()
    model(NUMBERS).sin().sum().backward()
    still = {name for name, weight in model.named_parameters() if weight.grad is None or weight.grad.norm() < 1e-6}
    assert still <= {"layers.0.self_attention.attention.key.bias"}, "which softmax does not see"


def test_the_bias_of_an_encoding_goes_to_the_heads_it_was_learned_for() -> None:
    kept = MultiHeadAttention(8, 4, kept=(1, 3))
    assert (kept.d_head, kept.kept, kept.query.weight.shape) == (2, (1, 3), (4, 8))
    bias = torch.arange(4.0)[None, :, None, None]
    assert kept._narrowed(bias).flatten().tolist() == [1.0, 3.0]
    assert kept._narrowed(bias[:, :1]) is not None
    assert kept._narrowed(bias[:, :1]).shape == (1, 1, 1, 1)
    whole = MultiHeadAttention(8, 4)
    assert whole._narrowed(bias) is bias, "nothing is indexed where nothing is cut"


def test_blocks_are_found_wherever_they_stand() -> None:
    model = adder()
    assert {id(block) for block in model.blocks.values()} == {
        id(module) for module in model.modules() if isinstance(module, AttentionBlock)
    }
    assert all(isinstance(projection, nn.Linear) for projection in model.projections.values())
    assert list(model.blocks) == list(model.sites)
