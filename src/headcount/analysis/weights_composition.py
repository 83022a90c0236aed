"""Does one head read what another one writes? Compare their weights, and patch the path between them.

A head composes with an earlier one through its queries, keys or values (Elhage et al. 2021). The composition score is
the Frobenius norm of the product of both heads' matrices over the product of their norms, less the same ratio for
random matrices:

    Q   |W_QK'^T W_OV| / (|W_QK'| |W_OV|)        K   |W_QK' W_OV| / ...        V   |W_OV' W_OV| / ...

Here W_OV belongs to the earlier head (the sender), W_QK' and W_OV' to the later one (the receiver). A LayerNorm
between the heads is folded into the receiver's matrix, without the norm's scale. The scores do not show what the
heads attend to, which directions of the residual stream are in use, or paths through MLPs. A path patch
(hooks/patching.py) shows these effects. It measures the share of an event, such as the carry, that the receiver gets
from the sender.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from headcount.analysis.routes import EventPatches, Progress, Share, measurable
from headcount.analysis.weights_circuits import fold_norm
from headcount.analysis.weights_inputs import require_own
from headcount.bands import PART
from headcount.errors import InputError
from headcount.experiments.models import OpenModel
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Capture, Gates, closed_gates, eval_mode
from headcount.hooks.patching import merged
from headcount.hooks.replay import Intervention, sweep
from headcount.limits import MIN_N
from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import EncoderDecoder, Transformer
from headcount.results import Contradiction, Size
from headcount.seeds import integer, stream
from headcount.tasks.base import SequenceTask

N_QUARTETS = 40
"""Number of quartets on which paths are patched. A quartet is four examples that differ in one event (a carry)."""
N_RANDOM = 20
"""Number of pairs of random matrices whose mean ratio of norms is the baseline of composition scores."""
PROJECTIONS = {"Q": "query", "K": "key", "V": "value"}


@dataclass(frozen=True)
class Composition:
    """How strongly one head (the receiver) reads what an earlier head (the sender) writes.

    A composition score comes from the weights alone. Patching the path between the two heads gives the share of an
    event, such as a carry, that the path moves.
    """

    sender: str
    receiver: str
    kind: str
    """The projection of the receiver that has the largest score: Q (queries), K (keys) or V (values)."""
    score: float
    """Composition score of the two heads through this projection: ratio of norms, less that of random matrices."""
    path: Share | None = None
    """Largest share of an event (a carry) that moves along this path, over ways such as `1s to 10s`, or None."""
    way: str = ""
    """The way on which `path` was measured, from where a carry arises to where it is read: `1s to 10s`; or empty."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for a projection other than Q, K or V, or if only one of `path` and `way` is given."""
        if self.kind not in PROJECTIONS:
            yield "kind", "Q, K or V"
        if (self.path is None) != (self.way == ""):
            yield "way", "a text such as '1s to 10s' if path is a share, and empty if path is null"


@dataclass(frozen=True)
class Compositions:
    """Composition scores of all pairs of heads in which the later head can read what the earlier head writes."""

    baseline: Size
    """Mean ratio of norms for random matrices of the heads' shapes, which is already subtracted from every score."""
    pairs: tuple[Composition, ...]
    """All pairs of heads, the largest composition score first."""

    def rank(self, pair: Composition) -> int:
        """Return the rank of a pair by its composition score; rank 1 has the largest score."""
        return 1 + sum(each.score > pair.score for each in self.pairs)

    @property
    def patched_paths(self) -> list[Composition]:
        """Pairs of heads whose path moves at least 10 % of the event (a carry) by its whole CI, in falling order."""
        paths = [(each.path.share, each) for each in self.pairs if each.path and each.path.low >= PART]
        return [pair for _, pair in sorted(paths, key=lambda item: -item[0])]


def compositions(model: OpenModel, *, seed: int = 0, progress: Progress | None = None) -> Compositions:
    """Compute the composition score of every pair of heads.

    If the task has an event, such as a carry, and the model handles it, also patch the path between every pair of
    heads.
    """
    inner = require_own(model)
    heads, baseline = model.sites.heads, _baseline(inner)
    pairs = [
        pair for sender in heads for receiver in heads if (pair := _best(inner, sender, receiver, baseline)) is not None
    ]
    pairs = _with_paths(model, pairs, seed, progress)
    return Compositions(baseline, tuple(sorted(pairs, key=lambda pair: -pair.score)))


# --- scores -----------------------------------------------------------------------------------------------------------


def _order(site: HeadSite) -> tuple[int, int]:
    return site.layer, site.kind == "cross"


def _readers(sender: HeadSite, receiver: HeadSite) -> str:
    """Return the projections (such as `KV`) through which heads of `receiver` can read what heads of `sender` write."""
    if sender.stack == "encoder" and receiver.stack == "decoder":
        return "KV" if receiver.kind == "cross" else ""
    if sender.stack != receiver.stack or _order(sender) >= _order(receiver):
        return ""
    return "Q" if receiver.kind == "cross" else "QKV"


def _matrix(inner: Transformer, head: HeadId, projection: str, *, from_encoder: bool = False) -> Tensor:
    """Return the matrix of one head's query, key, value or output projection.

    The LayerNorm before a query, key or value projection is folded into its matrix.
    """
    block = inner.blocks[head.site]
    attention = cast(MultiHeadAttention, block.attention)
    weight = getattr(attention, projection).weight.detach().double().cpu()
    at, size = attention.kept.index(head.index), attention.d_head
    if projection == "output":
        return cast(Tensor, weight[:, at * size : (at + 1) * size])
    norm = cast(EncoderDecoder, inner).encoder_norm if from_encoder else block.residual.norm
    weight = weight[at * size : (at + 1) * size]
    return fold_norm(weight, norm) if inner.config.norm == "pre" else weight


def _best(inner: Transformer, sender: HeadId, receiver: HeadId, baseline: float) -> Composition | None:
    """Return the largest composition score of two heads over queries, keys and values; None if no path exists."""
    kinds = _readers(sender.site, receiver.site)
    if not kinds:
        return None
    is_cross = receiver.site.kind == "cross"
    own = _matrix(inner, sender, "output"), _matrix(inner, sender, "value", from_encoder=sender.site.kind == "cross")
    query = _matrix(inner, receiver, "query")
    key, value = (_matrix(inner, receiver, name, from_encoder=is_cross) for name in ("key", "value"))
    circuits = {"Q": (key.T, query), "K": (query.T, key), "V": (_matrix(inner, receiver, "output"), value)}
    scores = {kind: _ratio(*circuits[kind], *own) - baseline for kind in kinds}
    kind = max(scores, key=lambda each: scores[each])
    return Composition(sender.short, receiver.short, kind, scores[kind])


def _ratio(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> float:
    """Return the ratio of Frobenius norms |a b c d| / (|a b| |c d|), or 0 if a factor is 0."""
    norms = float((a @ b).norm() * (c @ d).norm())
    return float((a @ (b @ c) @ d).norm()) / norms if norms else 0.0


def _baseline(inner: Transformer) -> float:
    """Return the baseline of composition scores: the mean ratio of norms for random matrices of the heads' shapes."""
    d_model, d_head = inner.config.d_model, inner.config.d_model // inner.config.n_heads
    rng = torch.Generator().manual_seed(integer(0, "composition"))

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    shapes = (d_model, d_head), (d_head, d_model), (d_model, d_head), (d_head, d_model)
    return float(np.mean([_ratio(*(draw(*shape) for shape in shapes)) for _ in range(N_RANDOM)]))


# --- paths ------------------------------------------------------------------------------------------------------------


def _with_paths(
    model: OpenModel, pairs: Sequence[Composition], seed: int, progress: Progress | None
) -> list[Composition]:
    """Patch the path between every pair of heads, and add to each pair the largest share of the event that it moves.

    Return the pairs unchanged if the task has no event (such as a carry), or too few examples that differ in it alone.
    """
    task = model.task
    if task is None or task.output_type != "sequence" or task.words.event is None:
        return list(pairs)
    try:
        ways = measurable(model, cast(SequenceTask, task).quartets(stream(seed, "quartets"), N_QUARTETS), MIN_N)
    except InputError:  # there are too few examples that differ in the event alone
        return list(pairs)
    shares: dict[tuple[str, str], list[tuple[Share, str]]] = {}
    with eval_mode(model.module), torch.no_grad():
        for i, way in enumerate(ways):
            patches = EventPatches(model, way)
            if patches.n >= MIN_N and patches.gap.mean() > 0:
                name = f"{way.source} to {way.read}"
                for pair, share in zip(pairs, _path_shares(patches, pairs, len(pairs) * len(ways)), strict=True):
                    shares.setdefault((pair.sender, pair.receiver), []).append((share, name))
            if progress:
                progress(i + 1, len(ways))
    if not shares:
        return list(pairs)
    best = {heads: max(found, key=lambda item: item[0].share) for heads, found in shares.items()}
    return [replace(pair, path=share, way=way) for pair in pairs for share, way in [best[pair.sender, pair.receiver]]]


def _path_shares(patches: EventPatches, pairs: Sequence[Composition], n_comparisons: int) -> list[Share]:
    """Return, for each pair of heads, the share of the event (a carry) that moves along the path between them.

    Only the receiver reads the patched output of the sender; all other heads get its clean output.
    """
    model, sites = patches.model.module, patches.model.sites
    inputs = [each[patches.receivers] for each in patches.inputs]
    given = patches.donor_outputs["event"]
    clean = {site: patches.cached.z(site) for site in sites}
    received: dict[tuple[str, HeadSite], Tensor] = {}
    interventions = []
    for pair in pairs:
        sender, receiver = HeadId.parse(pair.sender), HeadId.parse(pair.receiver)
        if (pair.sender, receiver.site) not in received:
            # Heads of one block do not read each other, so one pass serves all receivers of a block.
            values = merged(sites, clean, given, [sender])
            closed = closed_gates(sites, [head for head in sites.heads if head.site != receiver.site])
            with Gates(sites, closed, {site: values[site] for site in closed}), Capture(sites) as capture:
                model(*inputs)
            received[pair.sender, receiver.site] = capture.z(receiver.site)
        z = {receiver.site: received[pair.sender, receiver.site]}
        interventions.append(Intervention((receiver,), "patch", values=z))
    moved = dict(sweep(patches.cached, interventions, checked=True))
    return [Share.of(*patches.moves(moved[i]), patches.gap, n_comparisons) for i in range(len(pairs))]
