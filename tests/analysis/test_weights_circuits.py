"""Heads whose weights are written by hand: what they match and copy is read back, and is exact where it must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import known_carries as known
import numpy as np
import pytest
import torch
from known_carries import KnownModel, task_of
from torch import nn

from headcount.analysis import weights_circuits, weights_composition, weights_probes
from headcount.analysis.routes import EventPatches, routes
from headcount.analysis.weights_circuits import HeadReading, copying_score, fold_norm, read_heads
from headcount.analysis.weights_composition import PROJECTIONS, Composition, compositions
from headcount.analysis.weights_inputs import read_inputs, require_own
from headcount.analysis.weights_probes import probe
from headcount.encodings import ENCODINGS
from headcount.errors import InputError, InstrumentError
from headcount.experiments.models import OpenModel, RunModel
from headcount.heads import HeadSite
from headcount.hooks.gates import eval_mode
from headcount.hooks.intervention_proof import first_tensor
from headcount.hooks.patching import path_patch
from headcount.hooks.sites import Sites
from headcount.models.config import ClassifierConfig, EncoderDecoderConfig
from headcount.models.transformer import Classifier, EncoderDecoder, Residual
from headcount.runs.run import load
from headcount.seeds import stream
from headcount.tasks.addition import Addition
from headcount.tasks.sortedness import Sortedness, SortednessConfig

TASK = task_of(2)
N_TOKENS, N_PLACES = len(TASK.tokens), TASK.longest
PLACE, COPY, D_HEAD = 16, 32, 16
"""The first features of positions and of copied tokens in the stream, and the width of a head."""
E0, X0 = HeadSite("encoder", 0), HeadSite("decoder", 0, "cross")


def written_by_hand() -> KnownModel:
    """E0H0 matches equal tokens, E0H1 the previous position, E0H2 nothing; X0H0 copies, X0H1 suppresses tokens."""
    config = EncoderDecoderConfig(
        encoding="learned", n_positions=N_PLACES, d_model=64, n_heads=4, d_ff=4, norm="post", n_encoder_layers=1,
        n_decoder_layers=1,
    )  # fmt: skip
    model = EncoderDecoder(config, N_TOKENS, TASK.pad_id).double().eval()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Residual):
                module.norm = nn.Identity()
        for weight in model.parameters():
            weight.zero_()
        for embedding in (model.source_tokens, model.target_tokens):
            embedding.weight[:, :N_TOKENS] = torch.eye(N_TOKENS)
        for positions in (model.source_positions, model.target_positions):
            positions.get_parameter("rows.weight")[:, PLACE : PLACE + N_PLACES] = torch.eye(N_PLACES)
        model.to_logits.weight[:, COPY : COPY + N_TOKENS] = torch.eye(N_TOKENS)
        encoder: Any = model.blocks[E0].attention
        cross: Any = model.blocks[X0].attention
        for name in ("query", "key"):
            getattr(encoder, name).weight[:N_TOKENS, :N_TOKENS] = 3 * torch.eye(N_TOKENS)
            getattr(encoder, name).weight[2 * D_HEAD : 3 * D_HEAD].normal_(generator=rng)
        places = slice(PLACE, PLACE + N_PLACES)
        encoder.query.weight[D_HEAD : D_HEAD + N_PLACES, places] = 9 * torch.eye(N_PLACES).roll(-1, dims=0)
        encoder.key.weight[D_HEAD : D_HEAD + N_PLACES, places] = torch.eye(N_PLACES)
        for i, sign in enumerate((1.0, -1.0)):
            cross.value.weight[i * D_HEAD : i * D_HEAD + N_TOKENS, :N_TOKENS] = torch.eye(N_TOKENS)
            cross.output.weight[COPY : COPY + N_TOKENS, i * D_HEAD : i * D_HEAD + N_TOKENS] = sign * torch.eye(N_TOKENS)
    return KnownModel("by hand", "by hand", "0" * 64, model, Sites.of(model), TASK)


@pytest.fixture(scope="module")
def by_hand() -> dict[str, HeadReading]:
    model = written_by_hand()
    return {each.short: each for each in read_heads(model, model.sites.heads, read_inputs(model))}


def preferred(reading: HeadReading, grid: str) -> dict[str, str]:
    """Return the key that each query prefers."""
    matrix = getattr(reading, grid)
    values = np.array([[-np.inf if x is None else x for x in row] for row in matrix.values])
    return {row: matrix.columns[j] for row, j in zip(matrix.rows, values.argmax(axis=1).tolist(), strict=True)}


def test_a_head_that_matches_equal_tokens_is_recovered(by_hand: dict[str, HeadReading]) -> None:
    head = by_hand["E0H0"]
    assert preferred(head, "match_tokens") == {str(digit): str(digit) for digit in range(10)}
    # The operator has a position to itself, so what depends on it counts as a position's.
    assert head.tokens > 0.5 > head.positions
    assert head.match_tokens.rows == tuple("0123456789")


def test_a_head_that_matches_the_previous_position_is_recovered(by_hand: dict[str, HeadReading]) -> None:
    head, names = by_hand["E0H1"], [each.label for each in TASK.source_positions]
    wanted = dict(zip(names[1:], names, strict=False))
    assert {query: preferred(head, "match_positions")[query] for query in wanted} == wanted
    assert head.positions == pytest.approx(1, abs=1e-9)
    assert head.tokens == pytest.approx(0, abs=1e-9)


def test_positions_have_the_names_of_the_task(by_hand: dict[str, HeadReading]) -> None:
    answer, source = ("100s", "10s", "1s"), ("a 10s", "a 1s", "+", "b 10s", "b 1s")
    names = {name: (by_hand[name].match_positions.rows, by_hand[name].match_positions.columns) for name in by_hand}
    assert names["E0H0"] == (source, source)
    assert names["D0H0"] == (answer, ("<s>", "100s", "10s"))
    assert names["X0H0"] == (answer, source)
    assert by_hand["D0H0"].match_positions.values[0][1:] == (None, None), "the decoder sees no later token"


def test_the_decomposition_is_exact_where_inputs_are_tokens_plus_positions(by_hand: dict[str, HeadReading]) -> None:
    for name in ("E0H0", "E0H1", "E0H2"):
        head = by_hand[name]
        assert head.explained == pytest.approx(1, abs=1e-9), name
        assert head.positions + head.tokens + head.mixed == pytest.approx(1, abs=1e-9), name


def test_a_random_head_has_no_pattern(by_hand: dict[str, HeadReading]) -> None:
    own = [query == key for query, key in preferred(by_hand["E0H2"], "match_tokens").items()]
    assert sum(own) <= 4


def test_what_is_copied_to_the_logits_is_recovered(by_hand: dict[str, HeadReading]) -> None:
    for name, sign in (("X0H0", 1), ("X0H1", -1)):
        head = by_hand[name]
        assert head.copying == pytest.approx(sign)
        values = np.array(head.copies.values)
        assert (sign * values).argmax(axis=1).tolist() == [head.copies.columns.index(row) for row in head.copies.rows]
        assert head.copied_tokens == pytest.approx(1)
    assert by_hand["E0H0"].copying is None


def test_what_comes_from_other_tokens_is_neither_token_nor_position() -> None:
    """Where E0H0 has moved the digits of a to b, a key of X0 holds more than its own token."""
    rest = {}
    for build in (known.one_carrier, known.digit_movers):
        model = build(TASK)
        (head,) = read_heads(model, [model.find_head("X0H0")], read_inputs(model))
        rest[build] = 1 - head.copied_tokens - head.copied_positions
    assert rest[known.one_carrier] == pytest.approx(0, abs=1e-9)
    # Of 5 keys, 2 hold a digit, 2 hold two digits, 1 holds 0: variance 11.34 between, 9.9 within; 3.3 is not its own.
    assert rest[known.digit_movers] == pytest.approx(3.3 / (11.34 + 9.9), abs=0.03)


@pytest.mark.slow
def test_random_matrices_copy_no_more_often_than_chance() -> None:
    rng = stream(0, "random matrices")
    scores = [copying_score(rng.standard_normal((10, 10))) for _ in range(40)]
    assert sum(abs(score) > chance for score, chance in scores) <= 6


def test_a_folded_norm_reads_the_stream_before_it() -> None:
    torch.manual_seed(0)
    norm, matrix, x = nn.LayerNorm(8).double(), torch.randn(3, 8).double(), torch.randn(8).double()
    nn.init.normal_(norm.weight)
    size = float((x.var(correction=0) + norm.eps).sqrt())
    assert torch.allclose(matrix @ norm(x), fold_norm(matrix, norm) @ x / size)
    assert fold_norm(matrix, nn.Identity()) is matrix


def test_the_direct_path_goes_through_every_norm_after_the_block() -> None:
    """With LayerNorm after each sum, the path from D0 has one norm more than that from X0."""
    config = EncoderDecoderConfig(d_model=8, n_heads=2, d_ff=8, norm="post", n_encoder_layers=1, n_decoder_layers=1)
    model = EncoderDecoder(config, N_TOKENS, TASK.pad_id).double().eval()
    inputs = read_inputs(KnownModel("post", "post", "", model, Sites.of(model), TASK), 16)
    layer: Any = model.decoder[0]
    norms = [part.residual.norm for part in (layer.self_attention, layer.cross_attention, layer.feed_forward)]
    path, paths = model.to_logits.weight.detach(), []
    for norm in reversed(norms):
        path = fold_norm(path, norm) * inputs.scales[norm]
        paths.append(path)
    for site, expected in ((X0, paths[1]), (HeadSite("decoder", 0), paths[2])):
        actual = weights_circuits._direct_path(model, site, inputs)
        assert actual is not None
        assert torch.allclose(actual, expected)
    assert weights_circuits._direct_path(model, E0, inputs) is None


# --- which models are read --------------------------------------------------------------------------------------------


def sorter(encoding: str, **settings: Any) -> OpenModel:
    task = Sortedness(SortednessConfig(n_values=12, shortest=3, longest=6, n_validation=4, n_test=4))
    config = ClassifierConfig(encoding=encoding, d_model=16, n_heads=2, d_ff=8, n_layers=2, **settings)
    torch.manual_seed(0)
    model = Classifier(config, len(task.tokens), 2, task.pad_id).eval()
    return OpenModel(encoding, encoding, "", model, Sites.of(model), task)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [name for name in ENCODINGS.names() if name != "rotary"])
def test_scores_from_weights_give_the_attention_weights_of_every_encoding(encoding: str) -> None:
    """`read_inputs` compares both and raises an error if they differ; sequences have different lengths."""
    for settings in ({}, {"window": 2, "softmax": "log-length"}, {"causal": True, "random_positions": 9}):
        assert len(read_inputs(sorter(encoding, **settings), 16).sites) == 2


def test_scores_that_do_not_give_the_attention_weights_are_an_error() -> None:
    inputs = next(iter(read_inputs(sorter("t5"), 16).sites.values()))
    weights = inputs.scores.masked_fill(~inputs.visible, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
    inputs.require_weights(weights)
    with pytest.raises(InstrumentError, match=r"differ from the model's own by 0\.001"):
        inputs.require_weights(weights + 0.001)


def test_other_models_and_rotary_encodings_are_refused() -> None:
    with pytest.raises(InputError, match="Rotary rotates queries and keys"):
        require_own(sorter("rotary", random_positions=9))
    with pytest.raises(InputError, match="the weights of heads can be analysed only in models that headcount trained"):
        require_own(replace(sorter("none"), task=None))


# --- compositions and paths -------------------------------------------------------------------------------------------


def path_share(model: OpenModel, patches: EventPatches, pair: Composition) -> float:
    """Return the share of one path, after checking that both ways to patch it agree."""
    inputs, donor = ([each[rows] for each in patches.inputs] for rows in (patches.receivers, patches.donors["event"]))
    heads = [[model.find_head(name)] for name in (pair.sender, pair.receiver)]
    with eval_mode(model.module), torch.no_grad():
        (share,) = weights_composition._path_shares(patches, [pair], 1)
        on, off = patches.moves(first_tensor(path_patch(model.module, model.sites, inputs, donor, *heads)))
    assert share.share == pytest.approx(float((on + off).sum() / 2 / patches.gap.sum()), abs=1e-5)
    return share.share


@pytest.mark.slow
def test_values_that_are_read_compose() -> None:
    """X0H1 reads `digit` and `aligned`, and E0H0 writes `aligned`: the ratio is 1 / sqrt 2."""
    model = known.digit_movers(TASK)
    result = compositions(model)
    by_pair = {(each.sender, each.receiver): each for each in result.pairs}
    pair = by_pair["E0H0", "X0H1"]
    assert pair.kind == "V"
    assert pair.score + result.baseline == pytest.approx(0.5**0.5)
    assert by_pair["E0H1", "X0H1"].score + result.baseline == 0
    assert path_share(model, EventPatches(model, TASK.quartets(stream(0, "quartets"), 20)[0]), pair) > 0.3
    assert result.patched_paths[0] == pair


@pytest.mark.slow
def test_composition_does_not_find_the_path_of_the_packaged_adder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of the warning and of docs/heads.md rest on this rank."""
    model = RunModel.of(load("sample:addition"))
    monkeypatch.setattr(weights_composition, "_with_paths", lambda model, pairs, *_: pairs)
    result = compositions(model)
    by_pair = {(each.sender, each.receiver): each for each in result.pairs}
    pair = by_pair["E0H2", "E1H0"]
    assert (result.rank(pair), len(result.pairs)) == (22, 176)
    assert {each.kind for each in result.pairs} == set(PROJECTIONS)
    task = model.task
    assert isinstance(task, Addition)
    ways = {f"{way.source} to {way.read}": way for way in task.quartets(stream(0, "quartets"), 20)}
    patches = EventPatches(model, ways["1s to 100s"])
    assert path_share(model, patches, pair) > 0.7
    # What E1H0 and others pass on does not count for the path from E0H2 to the cross-attention.
    assert path_share(model, patches, by_pair["E0H2", "X0H2"]) < 0.1


# --- probes -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_carry_that_nothing_reads_is_decodable_and_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """E0H1 finds the carry of each column and writes it where nothing reads it."""
    monkeypatch.setattr(weights_probes, "N_FIT", 600)
    monkeypatch.setattr(weights_probes, "N_HELD_OUT", 300)
    task = task_of(1)
    model = known.one_carrier(task, echo="unread")
    result = probe(model, routes(model, 40))
    cells = {(each.stream, each.position, each.read): each for each in result.cells}
    (baseline,) = result.baselines
    assert baseline.read == "10s"
    assert baseline.raw.rate == 1
    cell = cells["E0.input", "1s", "10s"]
    assert cell.accuracy.rate == 1
    assert cell.moved == pytest.approx(1, abs=1e-3)
    assert cell.shuffled.low < baseline.guessing + 0.1
    # The decoder's own input has no carry, and what it holds at the 1s afterwards moves nothing at the 10s.
    assert cells["D0.input", "1s", "10s"].accuracy.rate < 0.9
    assert result.n_moved == result.n_decodable > result.n_idle
