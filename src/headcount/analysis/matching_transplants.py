"""Test whether a head's partner in another model does the same job: put the partner's output in the head's place.

Two models use different bases, so the partner's output is transformed by a linear map. The map is fitted by least
squares on training examples, relative to each position's mean, and tested on held-out examples. A map with slope 0
is mean ablation, so the restored fraction is relative to the drop under mean ablation:

    restored = 1 - (drop with the partner's output) / (drop with the mean output)

A linear map from any head that attends to the right tokens restores something. The restored fraction is therefore
compared with that of partners in untrained models, and with that of the other heads of the other model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.matching_pairs import Partners
from headcount.data.from_task import held_out, of_length
from headcount.experiments.donors_and_means import means_of
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.heads import HeadId
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.intervention_proof import first_tensor, prove
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Sites
from headcount.limits import SIGNIFICANT
from headcount.models.transformer import Model
from headcount.results import Contradiction, Positive, Share, outside
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.stats import holm, mcnemar, step_down

N_FIT, N_TEST, N_MEAN, FEWEST = 500, 800, 8192, 16
"""Number of examples for fitting maps, for testing them and for averaging outputs; and the smallest number of each."""
PAIRS = 2**21
"""Largest number of query-key pairs over all examples of a set, which limits the number of long sequences."""
RIDGE = 1e-4
"""Ridge penalty in the fit of a map, relative to the mean variance of the partner's output."""
N_RESAMPLES = 999
Outputs = dict[HeadId, Float[Tensor, "example query d_head"]]
Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class Restored:
    """Fraction of a head's effect on accuracy that its partner's output, mapped linearly, restores."""

    share: float
    low: float
    """Lower end of the 95 % CI of the restored fraction (bootstrap over examples)."""
    high: float
    """Upper end of the 95 % CI of the restored fraction (bootstrap over examples)."""
    p: Share
    """p-value against partners in untrained models, max-T corrected over the heads with a significant drop."""
    untrained: float
    """Largest fraction that the head's partner in any of the untrained models restores."""
    others: float | None
    """Largest fraction that any other head of this kind in the other model restores; None if there is none."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the restored fraction lies outside of its CI."""
        return outside(self, "share")


@dataclass(frozen=True)
class Transplant:
    """The drop in accuracy under mean ablation of a head, and how much of it the partner's output restores."""

    drop: float
    """Drop in accuracy when the head's output is replaced by its mean."""
    n: Positive
    """Number of held-out examples on which accuracy was measured."""
    n_mean: Positive
    """Number of inputs over which the mean output is averaged; the CI ignores the uncertainty of this mean."""
    p: Share
    """p-value of the drop: McNemar's test, Holm-corrected over heads."""
    restored: Restored | None
    """How much of the drop the partner's output restores; None if the drop is not significant."""


class Stage:
    """A model whose heads get the outputs of other heads, with examples for fitting maps and held-out examples."""

    def __init__(self, run: Run, length: int | None) -> None:
        task = run.task
        if task.output_type == "class":
            length = task.trained_lengths[1] if length is None else length  # type: ignore[attr-defined]
            n_fit, n_test, n_mean = (max(FEWEST, min(n, PAIRS // length**2)) for n in (N_FIT, N_TEST, N_MEAN))
            fit = of_length(task, length, n_fit, "transplant fit")[0]
            test = of_length(task, length, n_test, "transplant")[0]
            mean = of_length(task, length, n_mean, "transplant mean")[0]
        else:
            fit = task.sample(stream(0, "transplant fit"), N_FIT)
            mean = task.sample(stream(0, "transplant mean"), N_MEAN)
            test = held_out(task, "test", min(N_TEST, len(task.split("test"))))[0]
        self.fit, self.test = task_experiment(run, fit, "fit"), task_experiment(run, test, "test", reference=mean)
        prove(run.model, self.test.sites, self.test.batches[0].inputs)
        self.target, self._means = _outputs(run.model, self.fit), means_of(self.test)[0]
        with eval_mode(run.model), torch.no_grad():
            self._cached = [CachedPass(run.model, self.test.sites, batch.inputs) for batch in self.test.batches]
        batches = zip(self.test.batches, self._cached, strict=True)
        clean = [_right(self.test.score(batch, first_tensor(cached.output))) for batch, cached in batches]
        self.clean: Hits = np.concatenate(clean)

    def hits(self, values: Outputs) -> dict[HeadId, Hits]:
        """Return which held-out examples are right when `values` replace the output of each head alone."""
        heads, begin, hits = list(values), 0, {head: list[Hits]() for head in values}
        with eval_mode(self.test.model), torch.no_grad():
            for batch, cached in zip(self.test.batches, self._cached, strict=True):
                rows = slice(begin, begin + batch.n_inputs)
                interventions = []
                for head, value in values.items():
                    batch_values, z = value if len(value) == 1 else value[rows], cached.z(head.site)
                    new = {head.site: batch_values[:, :, None].expand(z.shape)}
                    interventions.append(Intervention((head,), values=new))
                for j, output in sweep(cached, interventions, checked=begin == 0):
                    hits[heads[j]].append(_right(self.test.score(batch, output)))
                begin = rows.stop
        return {head: np.concatenate(parts) for head, parts in hits.items()}

    def means(self, heads: Iterable[HeadId]) -> Outputs:
        """Return the mean output of each head at each position, over examples that are used for nothing else."""
        indices = {head: self.test.sites[head.site].heads.index(head) for head in heads}
        return {head: self._means[head.site][:, i][None].to(self.target[head]) for head, i in indices.items()}

    def hits_with(self, model: Model, choices: Sequence[Partners]) -> list[dict[HeadId, Hits]]:
        """Put the outputs of partners (heads of `model`) in place of this model's heads; return the right examples.

        The outputs are mapped linearly first. Each of the `choices` names one partner per head, and gives one result:
        for each head, which held-out examples are right.
        """
        needed = {partner for partners in choices for partner in partners.values()}
        fit, test = (_outputs(model, experiment, needed) for experiment in (self.fit, self.test))
        hits = []
        for partners in choices:
            means = self.means(partners)
            values = {
                head: mapped(fit[partner], self.target[head], test[partner], means[head])
                for head, partner in partners.items()
            }
            hits.append(self.hits(values))
        return hits


def transplant(
    run: Run,
    other: Run,
    partners: Partners,
    untrained: Sequence[tuple[Callable[[], Run], Partners]],
    length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[HeadId, Transplant]:
    """Put the output of each head's partner in the head's place, and measure how much of the head's effect it restores.

    `untrained` are null models, which learned nothing, each with its own partners for the heads.
    """
    stage = Stage(run, length)
    clean, without = stage.clean, stage.hits(stage.means(partners))
    changes = [(clean & ~without[head], ~clean & without[head]) for head in partners]
    corrected = holm([mcnemar(int(worse.sum()), int(better.sum())) for worse, better in changes])
    transplants = {
        head: Transplant(_lost(clean, without[head]), stage.test.n, stage.test.n_reference, p, None)
        for head, p in zip(partners, corrected, strict=True)
    }
    costly = [head for head, result in transplants.items() if result.p <= SIGNIFICANT and result.drop > 0]
    if not costly:
        return transplants
    others = dict[HeadId, list[HeadId]]()
    for head in costly:
        kind = head.site.stack, head.site.kind
        same_kind = [one for one in other.model.heads if (one.site.stack, one.site.kind) == kind]
        others[head] = [one for one in same_kind if one != partners[head]]
    n_rounds = max(map(len, others.values()))
    rounds = [{head: heads[i] for head, heads in others.items() if i < len(heads)} for i in range(n_rounds)]
    with_partner, *with_others = stage.hits_with(other.model, [{head: partners[head] for head in costly}, *rounds])
    with_untrained = []
    for i, (make, null) in enumerate(untrained):
        with_untrained += stage.hits_with(make().model, [{head: null[head] for head in costly if head in null}])
        if progress:
            progress(i + 1, len(untrained))

    def share(head: HeadId, hits: Mapping[HeadId, Hits]) -> float:
        """Return the restored fraction of a head's drop; 0 if the model has no partner for the head."""
        return 1 - _lost(clean, hits[head]) / _lost(clean, without[head]) if head in hits else 0.0

    observed = np.array([share(head, with_partner) for head in costly])
    by_chance = np.array([[share(head, hits) for head in costly] for hits in with_untrained])
    p = step_down(observed, by_chance)
    for i, head in enumerate(costly):
        low, high = restored_interval(clean, without[head], with_partner[head])
        most = max((share(head, hits) for hits in with_others if head in hits), default=None)
        restored = Restored(float(observed[i]), low, high, float(p[i]), float(by_chance[:, i].max()), most)
        transplants[head] = replace(transplants[head], restored=restored)
    return transplants


def mapped(source: Tensor, target: Tensor, new: Tensor, mean: Tensor | None = None) -> Tensor:
    """Fit a linear map from `source` to `target`, and return `new` transformed by it.

    All arrays are [example, query, dimension]. The result is centred at `mean`, by default the mean of `target`.
    """
    centre, base = source.mean(dim=0), target.mean(dim=0)
    x, y = ((source - centre).flatten(0, 1).cpu().double(), (target - base).flatten(0, 1).cpu().double())
    gram = x.T @ x
    ridge = RIDGE * gram.diagonal().mean().clamp(min=1e-12) * torch.eye(len(gram), dtype=gram.dtype)
    slope = torch.linalg.solve(gram + ridge, x.T @ y).to(new)
    return (new - centre) @ slope + (base if mean is None else mean.to(new))


def _outputs(model: nn.Module, experiment: Experiment, heads: set[HeadId] | None = None) -> Outputs:
    """Return the outputs z of the given heads (default: all heads) on all examples of an experiment."""
    sites, outputs = Sites.of(model), dict[HeadId, list[Tensor]]()
    with eval_mode(model), torch.no_grad():
        for batch in experiment.batches:
            with Capture(sites) as capture:
                model(*batch.inputs)
            for site in sites:
                for head, z in zip(sites[site].heads, capture.z(site).unbind(dim=2), strict=True):
                    if heads is None or head in heads:
                        outputs.setdefault(head, []).append(z.clone())
    return {head: torch.cat(parts) for head, parts in outputs.items()}


def _right(score: Tensor) -> Hits:
    return score.cpu().numpy() > 0.5


def _lost(clean: Hits, hits: Hits) -> float:
    return float(clean.mean() - hits.mean())


def restored_interval(clean: Hits, without: Hits, partner: Hits) -> tuple[float, float]:
    """Return the 95 % bootstrap CI of the fraction of a head's effect that its partner's output restores.

    The arguments say which examples are right: with all heads, with the head at its mean, and with the partner's
    output. A bootstrap cannot show events that did not occur in the sample. One pseudo-example that the partner makes
    wrong is therefore added and, if any example was wrong, one that the partner makes right.
    """
    lost, still = (clean.astype(float) - hits for hits in (without, partner))
    extra = [1.0, -1.0] if not clean.all() else [1.0]
    lost, still = np.append(lost, np.zeros(len(extra))), np.append(still, extra)
    rows = stream(0, "restored").integers(len(lost), size=(N_RESAMPLES, len(lost)))
    cost = lost[rows].mean(axis=1)
    shares = 1 - still[rows].mean(axis=1)[cost > 0] / cost[cost > 0]
    whole = 1 - _lost(clean, partner) / _lost(clean, without)
    low, high = np.quantile(shares, [0.025, 0.975])
    return min(whole, float(low)), max(whole, float(high))
