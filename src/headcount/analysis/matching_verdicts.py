"""Decide how alike paired heads of two models are, compared with chance: similarities, p-values and verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headcount.analysis.attention_measures import Matrix, matrix_of, rounded
from headcount.analysis.matching_pairs import Draws, Pairing, PairMeasure, pair_cka, pair_overlap
from headcount.analysis.matching_transplants import Transplant
from headcount.heads import HeadId
from headcount.limits import SIGNIFICANT
from headcount.results import Contradiction, Count, HeadName, Share, is_close, unequal
from headcount.stats import holm, share_above, step_down

HALF = 0.5
"""Smallest fraction of a head's effect that its partner must restore to do the same job (lower bound of the CI)."""
NOT_ALIKE, ALIKE, WRITES_ALIKE, SAME_JOB = "not alike", "attend alike", "attend, write alike", "same job"
ALONE = "no partner"


@dataclass(frozen=True)
class Likeness:
    """How similar a head is to its partner in another model, compared with its partners in null models (chance)."""

    value: float
    """The similarity: overlap of attention from 0 to 1, or CKA (a similarity of vectors) of the heads' outputs."""
    se: float | None
    """Standard error of the overlap of attention over examples; None for outputs."""
    untrained: float
    """Chance level from untrained models: 95th percentile of the head's similarity with its partner in such a model."""
    relabelled: float
    """Chance level from random relabelling of keys: the 95th percentile of the similarity with the partner."""
    any: float
    """Mean similarity of the head with all heads of its kind in the other model, not only with its partner."""
    p_untrained: Share
    """p-value against untrained models in place of either model: the larger of two, max-T corrected over heads."""
    p_relabelled: Share
    """p-value against models with relabelled keys, corrected over heads (Holm for attention, max-T for outputs)."""
    p: Share
    """The p-value that counts for the verdict: the larger of `p_untrained` and `p_relabelled`."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if p is not the larger of p_untrained and p_relabelled."""
        return unequal(self, p=max(self.p_untrained, self.p_relabelled))


@dataclass(frozen=True)
class Pair:
    """One head and its partner in the other model: how alike they are in attention, outputs and function."""

    head: HeadName
    partner: HeadName | None
    """The head of the other model that is paired with this head; None if that model has too few heads of its kind."""
    same_index: float | None
    """Overlap of attention with the head of the same name in the other model; None if that model has no such head."""
    attention: Likeness | None
    outputs: Likeness | None
    transplant: Transplant | None
    verdict: str

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the verdict, the partner and the similarities disagree."""
        if (self.partner is None) != (self.attention is None):
            yield "partner", "a head if attention is given, and null otherwise"
        yield from unequal(self, verdict=_verdict(self.attention, self.outputs, self.transplant))

    @property
    def is_alike(self) -> bool:
        """Return whether the two heads are alike by any verdict: in attention, in their outputs or in their job."""
        return self.verdict in (ALIKE, WRITES_ALIKE, SAME_JOB)


@dataclass(frozen=True)
class KindMatch:
    """All heads of one kind of attention, such as decoder cross-attention, in two models, with their pairing."""

    stack: str
    kind: str
    heads: tuple[HeadName, ...]
    others: tuple[HeadName, ...]
    overlaps: Matrix
    """Mean overlap of attention of each head with each head of the other model over examples, [head][other head]."""
    errors: Matrix
    """Standard error of each overlap over examples, [head][other head]."""
    pairs: tuple[Pair, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the pairs or the tables of overlaps do not fit the heads of both models."""
        yield from unequal(self, heads=tuple(pair.head for pair in self.pairs))
        for name in ("overlaps", "errors"):
            if [*map(len, getattr(self, name))] != [len(self.others)] * len(self.heads):
                yield name, f"a table of {len(self.heads)} by {len(self.others)} heads"
                return
        partners = [pair.partner for pair in self.pairs if pair.partner is not None]
        if len(set(partners)) != len(partners) or set(partners) - set(self.others):
            yield "pairs", "partners that differ from each other, all of them in others"
            return
        for pair, row in zip(self.pairs, self.overlaps, strict=False):
            overlap = None if pair.partner is None else row[self.others.index(pair.partner)]
            if overlap is not None and pair.attention and not is_close(pair.attention.value, overlap):
                yield "pairs", f"an overlap of {overlap} for {pair.head}, as in overlaps"


@dataclass(frozen=True)
class Overall:
    """Counts and mean overlaps of attention over all pairs of heads of two models, compared with chance."""

    alike: Count
    """Number of heads that attend like their partner significantly more than by chance."""
    same_job: Count
    """Number of heads whose partner does the same job: the partner's output restores most of the head's effect."""
    of: Count
    """Number of heads that have a partner in the other model."""
    matched: float
    """Overlap of attention from 0 to 1, averaged over all pairs of heads."""
    untrained: tuple[float, float]
    """Smallest and largest mean overlap of pairs if an untrained model takes the place of the other model."""
    relabelled: tuple[float, float]
    """Smallest and largest mean overlap of pairs if the keys of the other model are relabelled at random."""
    p: Share
    """p-value of the mean overlap: the largest one over all kinds of null models, which show what happens by chance."""
    untrained_alike: tuple[int, int]
    """Smallest and largest number of heads called alike if an untrained model takes the place of the other model."""
    untrained_any: Share
    """Fraction of the untrained models with which at least one head of the other model is called alike."""


@dataclass(frozen=True)
class Evidence:
    """Evidence for verdicts on pairs of heads: the best pairing, pairings with null models, and transplants.

    Null models cannot have learned the same. In a transplant, the partner's output is put in the head's place.
    """

    pairing: Pairing
    untrained: tuple[Draws, Draws]
    relabelled: dict[PairMeasure, Draws]
    transplants: dict[HeadId, Transplant]

    def kinds(self) -> tuple[KindMatch, ...]:
        """Return the pairs of heads for each kind of attention, with their similarities and verdicts."""
        attention, outputs = self._likeness(pair_overlap), self._likeness(pair_cka)
        partners, matches = self.pairing.partners, list[KindMatch]()
        for (stack, name), overlaps in self.pairing.overlaps.items():
            ours, theirs = (side[stack, name].heads for side in (self.pairing.ours, self.pairing.theirs))
            means, errors = overlaps.mean(axis=0), overlaps.std(axis=0, ddof=1) / np.sqrt(len(overlaps))
            pairs = tuple(
                Pair(
                    head=str(head),
                    partner=str(partners[head]) if head in partners else None,
                    same_index=rounded(means[i, theirs.index(head)]) if head in theirs else None,
                    attention=attention.get(head),
                    outputs=outputs.get(head),
                    transplant=self.transplants.get(head),
                    verdict=_verdict(attention.get(head), outputs.get(head), self.transplants.get(head)),
                )
                for i, head in enumerate(ours)
            )
            names = tuple(map(str, ours)), tuple(map(str, theirs))
            matches.append(KindMatch(stack, name, *names, matrix_of(means), matrix_of(errors), pairs))
        return tuple(matches)

    def overall(self, kinds: tuple[KindMatch, ...]) -> Overall:
        """Return counts over all heads and the mean overlap of pairs, compared with null models (chance)."""
        pairs = [pair for kind in kinds for pair in kind.pairs]
        nulls = [np.array(draws.means) for draws in (*self.untrained, self.relabelled[pair_overlap])]
        untrained, _, relabelled = ((rounded(means.min()), rounded(means.max())) for means in nulls)
        # Test each untrained model against the other ones: how many heads are called alike by chance?
        draws = np.array(self.untrained[0].values[pair_overlap])
        indices = np.arange(len(draws))
        n_alike = np.array([(step_down(draws[i], draws[indices != i]) <= SIGNIFICANT).sum() for i in indices])
        return Overall(
            alike=sum(pair.is_alike for pair in pairs),
            same_job=sum(pair.verdict == SAME_JOB for pair in pairs),
            of=sum(pair.partner is not None for pair in pairs),
            matched=rounded(self.pairing.mean),
            untrained=untrained,
            relabelled=relabelled,
            p=rounded(max(float(share_above(np.array(self.pairing.mean), means)) for means in nulls)),
            untrained_alike=(int(n_alike.min()), int(n_alike.max())),
            untrained_any=rounded(float((n_alike > 0).mean())),
        )

    def _likeness(self, measure: PairMeasure) -> dict[HeadId, Likeness]:
        """Return how similar each head is to its partner by one measure, compared with chance; {} if not measured."""
        if measure not in self.relabelled:
            return {}
        pairing, values = self.pairing, self.pairing.values(measure)
        untrained, reverse, relabelled = (
            np.array(draws.values[measure]) for draws in (*self.untrained, self.relabelled[measure])
        )
        # The head is tested against untrained models that replace the other model, its partner against the reverse.
        heads, partners = pairing.indices(0), pairing.indices(1)
        p_head, p_partner = (step_down(pairing.along(i, measure), null) for i, null in enumerate((untrained, reverse)))
        p_untrained = np.maximum(p_head[heads], p_partner[partners])
        if measure is pair_overlap:
            p_relabelled = np.array(holm(share_above(values, relabelled[:, heads]).tolist()))
        else:
            p_relabelled = step_down(pairing.along(0, measure), relabelled)[heads]
        by_head = {}
        for n, (kind, i, j) in enumerate(pairing.pairs):
            overlaps, others = pairing.overlaps[kind][:, i, j], range(len(pairing.theirs[kind].heads))
            by_head[pairing.ours[kind].heads[i]] = Likeness(
                value=rounded(values[n]),
                se=rounded(overlaps.std(ddof=1) / np.sqrt(len(overlaps))) if measure is pair_overlap else None,
                untrained=rounded(np.quantile(untrained[:, heads[n]], 0.95)),
                relabelled=rounded(np.quantile(relabelled[:, heads[n]], 0.95)),
                any=rounded(float(np.mean([measure(pairing, kind, i, other) for other in others]))),
                p_untrained=rounded(p_untrained[n]),
                p_relabelled=rounded(p_relabelled[n]),
                p=rounded(max(p_untrained[n], p_relabelled[n])),
            )
        return by_head


def _verdict(attention: Likeness | None, outputs: Likeness | None, transplant: Transplant | None) -> str:
    """Return the strongest verdict on two heads that the evidence supports, such as `attend alike` or `same job`.

    Each verdict requires all weaker ones.
    """
    if attention is None:
        return ALONE
    if attention.p > SIGNIFICANT:
        return NOT_ALIKE
    if outputs is None or outputs.p > SIGNIFICANT:
        return ALIKE
    restored = None if transplant is None else transplant.restored
    if restored is None or restored.p > SIGNIFICANT or restored.low < max(HALF, restored.untrained):
        return WRITES_ALIKE
    return SAME_JOB
