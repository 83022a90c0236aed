"""Does the partner do a head's job? Replace the head's output by the partner's and see what that restores.

Two models have bases of their own, so the partner's output is carried over by a linear map, fitted by least squares on
training examples (about each position's mean) and replaces the head's output on held-out ones. Without a slope the map
is mean ablation: the head's cost is what mean ablation loses, and

    restored = 1 - (lost with the partner in place) / (lost with the mean in place).

A linear map from any head that attends to the right digits restores something. So the same is done with the partners
that untrained models offer, and with the other run's other heads.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.pairing import Partners
from headcount.data.from_task import held_out, of_length
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import means_of
from headcount.heads import HeadId
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.proof import first_tensor, prove
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Sites
from headcount.models.transformer import Model
from headcount.results import Contradiction, Positive, Share, outside
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.stats import holm, mcnemar, step_down

N_FIT, N_TEST, N_MEAN, FEWEST = 500, 800, 8192, 16
"""Training examples that maps are fitted to, held-out ones that they are tested on, and inputs that means are over."""
PAIRS = 2**21
"""Of a query and a key, over all examples of either: long sequences are fewer."""
RIDGE = 1e-4
"""Of the mean variance of the partner's output."""
ALPHA, N_RESAMPLES = 0.05, 999
Outputs = dict[HeadId, Float[Tensor, "example query d_head"]]
Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class Restored:
    """The share of a head's effect that its partner, linearly mapped, restores."""

    share: float
    low: float
    high: float
    """95 % interval: a bootstrap over examples."""
    p: Share
    """Among untrained models, corrected over the heads that cost something (max-T)."""
    untrained: float
    """The most that the partner in an untrained model restores."""
    others: float | None
    """The most that another of the other run's heads of that kind restores."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the interval with the share that is restored."""
        return outside(self, "share")


@dataclass(frozen=True)
class Transplant:
    """What a head's mean costs, and what its partner restores of that."""

    drop: float
    """By mean ablation, in hits."""
    n: Positive
    """Held-out examples."""
    n_mean: Positive
    """Inputs that the mean is over; intervals are for this mean."""
    p: Share
    """Of the drop: McNemar, corrected over heads (Holm)."""
    restored: Restored | None
    """None where the drop is not beyond chance: there is nothing to restore."""


class Stage:
    """What transplants are tested on: examples to fit to, and held-out ones whose passes are cached."""

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
        each = zip(self.test.batches, self._cached, strict=True)
        clean = [_right(self.test.score(batch, first_tensor(cached.output))) for batch, cached in each]
        self.clean: Hits = np.concatenate(clean)

    def hits(self, values: Outputs) -> dict[HeadId, Hits]:
        """Which examples are right with another output of each head, batch after batch."""
        heads, begin, found = list(values), 0, {head: list[Hits]() for head in values}
        with eval_mode(self.test.model), torch.no_grad():
            for batch, cached in zip(self.test.batches, self._cached, strict=True):
                rows = slice(begin, begin + batch.n_inputs)
                interventions = []
                for head, value in values.items():
                    own, z = value if len(value) == 1 else value[rows], cached.z(head.site)
                    new = {head.site: own[:, :, None].expand(z.shape)}
                    interventions.append(Intervention((head,), values=new))
                for j, output in sweep(cached, interventions, checked=begin == 0):
                    found[heads[j]].append(_right(self.test.score(batch, output)))
                begin = rows.stop
        return {head: np.concatenate(parts) for head, parts in found.items()}

    def means(self, heads: Iterable[HeadId]) -> Outputs:
        """What the run's heads find on average, position by position."""
        places = {head: self.test.sites[head.site].heads.index(head) for head in heads}
        found = {head: self._means[head.site][:, place] for head, place in places.items()}
        return {head: mean[None].to(self.target[head]) for head, mean in found.items()}

    def hits_with(self, model: Model, choices: Sequence[Partners]) -> list[dict[HeadId, Hits]]:
        """Hits with outputs of this model's heads, linearly mapped, instead of ours; for each choice of partners."""
        needed = {partner for partners in choices for partner in partners.values()}
        fit, test = (_outputs(model, each, needed) for each in (self.fit, self.test))
        found = []
        for partners in choices:
            means = self.means(partners)
            values = {
                head: mapped(fit[its], self.target[head], test[its], means[head]) for head, its in partners.items()
            }
            found.append(self.hits(values))
        return found


def transplant(
    run: Run,
    other: Run,
    partners: Partners,
    untrained: Sequence[tuple[Callable[[], Run], Partners]],
    length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[HeadId, Transplant]:
    """Every head that has a partner; `untrained` are runs and the partners that they offer."""
    stage = Stage(run, length)
    clean, without = stage.clean, stage.hits(stage.means(partners))
    changes = [(clean & ~without[head], ~clean & without[head]) for head in partners]
    corrected = holm([mcnemar(int(worse.sum()), int(better.sum())) for worse, better in changes])
    found = {
        head: Transplant(_lost(clean, without[head]), stage.test.n, stage.test.n_reference, p, None)
        for head, p in zip(partners, corrected, strict=True)
    }
    costly = [head for head, each in found.items() if each.p <= ALPHA and each.drop > 0]
    if not costly:
        return found
    others = dict[HeadId, list[HeadId]]()
    for head in costly:
        kind = head.site.stack, head.site.kind
        alike = [each for each in other.model.heads if (each.site.stack, each.site.kind) == kind]
        others[head] = [each for each in alike if each != partners[head]]
    n_rounds = max(map(len, others.values()))
    rounds = [{head: its[i] for head, its in others.items() if i < len(its)} for i in range(n_rounds)]
    with_partner, *with_others = stage.hits_with(other.model, [{head: partners[head] for head in costly}, *rounds])
    with_untrained = []
    for i, (make, offered) in enumerate(untrained):
        with_untrained += stage.hits_with(make().model, [{head: offered[head] for head in costly if head in offered}])
        if progress:
            progress(i + 1, len(untrained))

    def share(head: HeadId, hits: Mapping[HeadId, Hits]) -> float:
        """Where a model offers no partner there is nothing to restore with."""
        return 1 - _lost(clean, hits[head]) / _lost(clean, without[head]) if head in hits else 0.0

    observed = np.array([share(head, with_partner) for head in costly])
    null = np.array([[share(head, hits) for head in costly] for hits in with_untrained])
    p = step_down(observed, null)
    for i, head in enumerate(costly):
        low, high = restored_interval(clean, without[head], with_partner[head])
        most = max((share(head, hits) for hits in with_others if head in hits), default=None)
        restored = Restored(float(observed[i]), low, high, float(p[i]), float(null[:, i].max()), most)
        found[head] = replace(found[head], restored=restored)
    return found


def mapped(source: Tensor, target: Tensor, new: Tensor, mean: Tensor | None = None) -> Tensor:
    """What replaces `target` where the source outputs `new`: [example, query, dimension] each; about this `mean`."""
    centre, base = source.mean(dim=0), target.mean(dim=0)
    x, y = ((each - mean).flatten(0, 1).cpu().double() for each, mean in ((source, centre), (target, base)))
    gram = x.T @ x
    ridge = RIDGE * gram.diagonal().mean().clamp(min=1e-12) * torch.eye(len(gram), dtype=gram.dtype)
    slope = torch.linalg.solve(gram + ridge, x.T @ y).to(new)
    return (new - centre) @ slope + (base if mean is None else mean.to(new))


def _outputs(model: nn.Module, experiment: Experiment, heads: set[HeadId] | None = None) -> Outputs:
    """What each head found (z), or these, block after block."""
    sites, found = Sites.of(model), dict[HeadId, list[Tensor]]()
    with eval_mode(model), torch.no_grad():
        for batch in experiment.batches:
            with Capture(sites) as capture:
                model(*batch.inputs)
            for site in sites:
                for head, z in zip(sites[site].heads, capture.z(site).unbind(dim=2), strict=True):
                    if heads is None or head in heads:
                        found.setdefault(head, []).append(z.clone())
    return {head: torch.cat(parts) for head, parts in found.items()}


def _right(score: Tensor) -> Hits:
    return score.cpu().numpy() > 0.5


def _lost(clean: Hits, hits: Hits) -> float:
    return float(clean.mean() - hits.mean())


def restored_interval(clean: Hits, without: Hits, partner: Hits) -> tuple[float, float]:
    """A bootstrap cannot see what never happened: one imaginary example breaks, and one is mended if any was wrong."""
    lost, still = (clean.astype(float) - each for each in (without, partner))
    extra = [1.0, -1.0] if not clean.all() else [1.0]
    lost, still = np.append(lost, np.zeros(len(extra))), np.append(still, extra)
    rows = stream(0, "restored").integers(len(lost), size=(N_RESAMPLES, len(lost)))
    cost = lost[rows].mean(axis=1)
    shares = 1 - still[rows].mean(axis=1)[cost > 0] / cost[cost > 0]
    whole = 1 - _lost(clean, partner) / _lost(clean, without)
    low, high = np.quantile(shares, [0.025, 0.975])
    return min(whole, float(low)), max(whole, float(high))
