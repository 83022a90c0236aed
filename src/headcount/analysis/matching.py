"""Which heads of two runs do the same job? By where they look, not by their index.

The overlap of two heads on one query is the attention that they share, sum_k min(w_k, w'_k): 1 if they look alike, 0
if nowhere together (1 less the total variation distance). Its mean over examples, and over the queries that see more
than one key, says how alike two heads are. Heads of one kind of site, of any layer, are paired one to one so that the
sum of overlaps is largest.

The best pairing is at least as good as an arbitrary one even among heads that have nothing to do with each other, and
it pairs those that are left over too. So beside each overlap stands what two arbitrary heads of that kind share: a pair
below it is no match.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from headcount.analysis.head_measures import sight_at
from headcount.analysis.watched import Watched, watch
from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.models.weights import KeptWeights
from headcount.results import Result
from headcount.runs.run import Run
from headcount.tasks.base import Tokens
from headcount.training.evaluation import evaluating, on_device

Matrix = tuple[tuple[float, ...], ...]
Kind = tuple[str, str]
"""A stack and a kind of attention."""
LONGEST = 2048
"""Both runs' weights are held at once."""
SHAPE = ("d_model", "n_heads", "n_layers", "n_encoder_layers", "n_decoder_layers")


@dataclass(frozen=True)
class Pair:
    """One head and its partner in the other run; None where there are fewer heads there."""

    head: str
    partner: str | None
    overlap: float | None
    se: float | None
    """Over examples."""
    same_index: float | None
    """The overlap with the other run's head of the same name, if there is one."""


@dataclass(frozen=True)
class KindMatch:
    """The heads of one kind of site, in all layers."""

    stack: str
    kind: str
    heads: tuple[str, ...]
    others: tuple[str, ...]
    overlaps: Matrix
    """[head][other head]: the mean over examples."""
    errors: Matrix
    """Their standard errors."""
    pairs: tuple[Pair, ...]
    matched: float
    """Mean overlap of the pairs."""
    matched_se: float
    arbitrary: float
    """Mean overlap over all pairs there could be: what an arbitrary pairing gives."""
    arbitrary_se: float


@dataclass(frozen=True)
class Matching(Result):
    """Two runs, head by head."""

    run: str
    model: str
    """The digest of the weights."""
    other: str
    other_model: str
    n: int
    """Examples."""
    data: str
    """Which examples."""
    kinds: tuple[KindMatch, ...]


def match(run: Run, other: Run, length: int | None = None) -> Matching:
    """Pair the heads of two runs that differ in their seed, on the same examples."""
    _require_alike(run, other)
    if length is not None and length > LONGEST:
        raise InputError(f"heads cannot be matched on sequences of {length:,}", f"at most {LONGEST:,} fit into memory")
    watched = watch(run, length)
    overlaps = _overlaps(run, other, watched)
    if not overlaps:
        raise InputError(f"{run.name} and {other.name} have no heads of one kind", "choose runs with heads")
    kinds = (_kind_match(kind, _heads(run, kind), _heads(other, kind), each) for kind, each in overlaps.items())
    return Matching(run.name, run.digest, other.name, other.digest, len(watched), watched.data, tuple(kinds))


def _require_alike(run: Run, other: Run) -> None:
    """Heads can be compared where the examples are the same and the models have the same shape."""
    ours, theirs = run.config, other.config
    if ours.task_name != theirs.task_name:
        what = f"{run.name} does {ours.task_name} and {other.name} does {theirs.task_name}"
        raise InputError(f"{what}: their heads cannot be matched", "choose runs of one task")
    sections = ((ours.task, theirs.task, None), (ours.model, theirs.model, SHAPE))
    differ = [
        f"{field.name}: {getattr(a, field.name)} in {run.name}, {getattr(b, field.name)} in {other.name}"
        for a, b, names in sections
        for field in fields(a)
        if (names is None or field.name in names) and getattr(a, field.name) != getattr(b, field.name)
    ]
    if differ:
        what = f"the heads of {run.name} and {other.name} cannot be matched: their data or shape differ"
        raise InputError(what, *differ, "choose runs that differ in their seed or training alone")


def _heads(run: Run, kind: Kind) -> list[HeadId]:
    """In the order of the weights' head axis, one site after another."""
    return [
        head
        for site in run.model.sites
        if (site.stack, site.kind) == kind
        for head in run.model.heads
        if head.site == site
    ]


def _overlaps(run: Run, other: Run, watched: Watched) -> dict[Kind, NDArray[np.float64]]:
    """[example, head, other head] for every kind of site that both have heads at."""
    found: dict[Kind, NDArray[np.float64]] = {}
    for rows in watched.blocks():
        ours, theirs = (_weights(each, watched[rows][1]) for each in (run, other))
        for kind in (kind for kind in ours if kind in theirs):
            shared = [torch.minimum(w_BQK[:, None], theirs[kind]).sum(dim=-1) for w_BQK in ours[kind].unbind(dim=1)]
            overlaps = torch.stack(shared, dim=1).double().mean(dim=-1).numpy()
            found.setdefault(kind, np.zeros((len(watched), *overlaps.shape[1:])))[rows] = overlaps
    return found


def _weights(run: Run, inputs: tuple[Tokens, ...]) -> dict[Kind, Tensor]:
    """All heads of a kind side by side, [example, head, query, key], at the queries that see more than one key."""
    kept, found = KeptWeights(), dict[Kind, list[Tensor]]()
    with evaluating(run.model) as device:
        run.model(*on_device(device, *inputs), weights=kept)
    for site, w_BHQK in ((site, kept[site].cpu()) for site in run.model.sites if site in kept):
        n_queries, n_keys = w_BHQK.shape[2:]
        n_seen = sight_at(run.model, site).n_seen(n_queries, n_keys, w_BHQK.device)
        has_choice = (n_seen > 1).expand(1, n_queries)[0]
        if has_choice.any():
            found.setdefault((site.stack, site.kind), []).append(w_BHQK[:, :, has_choice])
    return {kind: torch.cat(sites, dim=1) for kind, sites in found.items()}


def _kind_match(kind: Kind, heads: list[HeadId], others: list[HeadId], overlaps: NDArray[np.float64]) -> KindMatch:
    means, errors = _mean(overlaps)
    rows, columns = linear_sum_assignment(means, maximize=True)
    partners = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    pairs = []
    for i, head in enumerate(heads):
        same = _rounded(means[i, others.index(head)]) if head in others else None
        if (j := partners.get(i)) is None:
            pairs.append(Pair(str(head), None, None, None, same))
        else:
            pairs.append(Pair(str(head), str(others[j]), _rounded(means[i, j]), _rounded(errors[i, j]), same))
    matched, arbitrary = _mean(overlaps[:, rows, columns].mean(axis=1)), _mean(overlaps.mean(axis=(1, 2)))
    return KindMatch(
        stack=kind[0],
        kind=kind[1],
        heads=tuple(map(str, heads)),
        others=tuple(map(str, others)),
        overlaps=_matrix(means),
        errors=_matrix(errors),
        pairs=tuple(pairs),
        matched=_rounded(matched[0]),
        matched_se=_rounded(matched[1]),
        arbitrary=_rounded(arbitrary[0]),
        arbitrary_se=_rounded(arbitrary[1]),
    )


def _mean(values: NDArray[np.float64]) -> tuple[Any, Any]:
    """The mean over examples, and its standard error."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def _matrix(array: NDArray[np.float64]) -> Matrix:
    return tuple(tuple(map(_rounded, row)) for row in array)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
