"""What a claim about heads is: one line that is parsed, judged on a model, and supported or refuted by intervals.

    E0H2 carries-the-carry 10s        SUBJECT KIND [OBJECT]

A subject is a head (`E0H2`), an attention block (`E0`, `X1`, `D0`, `L0`), all blocks of one kind (`encoder`,
`decoder-self`, `cross`), all blocks of one layer (`layer-0`), the whole `model`, or a list of these (`E0H1+E0H3`).

Each kind is one file of this folder that ends with `PART = ClaimKind(...)`. Its `measure` returns a `Judgement`: the
evidence, whose first entry is the effect, and the controls. `verdict_of` turns these into one of four verdicts:

    supported    all evidence and all controls support the claim, each with its whole 95 % interval
    refuted      some evidence refutes the claim with its whole interval
    undecided    neither; `n_needed` estimates the number of examples that would decide
    not judged   the model fails its audit, or the claim does not apply to the model
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

from scipy import stats

from headcount.bands import POWER, limit_text
from headcount.claims import CLAIMS
from headcount.errors import InputError
from headcount.experiments.models import Data, OpenModel
from headcount.heads import HeadId
from headcount.registry import suggestion
from headcount.results import ROUNDING, Contradiction, Count, Positive, Result
from headcount.stats import Z95
from headcount.tasks import TASKS
from headcount.tasks.base import with_article

Verdict = Literal["supported", "refuted", "undecided", "not judged"]
Outcome = Literal["supports", "refutes", "open", "shown"]
"""What one number says about a claim; `shown` is for context and decides nothing."""
GROUPS = {"encoder": ("encoder", "self"), "decoder-self": ("decoder", "self"), "cross": ("decoder", "cross")}
"""Subjects that mean all blocks of one kind: stack and kind of attention."""
MODEL, EVENT = "model", "{event}"
T = TypeVar("T")


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """One number that a claim rests on, with its 95 % interval and what it says about the claim."""

    words: str
    """A clause with `{}` for the number, such as `its patch moves {} of the gap`."""
    value: float
    low: float
    high: float
    n: Count
    of: str
    """Name of what n counts, such as `quartets`."""
    unit: str
    """`share` (of 1), `points` (of accuracy), or the unit of another metric."""
    needed: str = ""
    """The condition that supports the claim, such as `at least 0.5`; empty if the number is shown only."""
    outcome: Outcome = "shown"
    n_needed: Positive | None = None
    """Number of examples that would decide, with a power of 80 %; None if it is decided or cannot be estimated."""

    def at_least(self, limit: float) -> Evidence:
        """Return the evidence for "at least `limit`".

        >>> half = Evidence("it moves {}", 0.6, 0.52, 0.68, 100, "quartets", "share")
        >>> half.at_least(0.5).outcome, half.at_least(0.7).outcome, half.at_least(0.65).outcome
        ('supports', 'refutes', 'open')
        """
        outcome: Outcome = "supports" if self.low >= limit else "refutes" if self.high < limit else "open"
        return self._decided(f"at least {self._shown(limit)}", outcome, limit)

    def above(self, limit: float) -> Evidence:
        """Return the evidence for "above `limit`"; an interval that only touches the limit stays open."""
        outcome: Outcome = "supports" if self.low > limit else "refutes" if self.high < limit else "open"
        return self._decided(f"above {self._shown(limit)}", outcome, limit)

    def at_most(self, limit: float) -> Evidence:
        """Return this evidence, judged by whether its whole interval is at most `limit`."""
        outcome: Outcome = "supports" if self.high <= limit else "refutes" if self.low > limit else "open"
        return self._decided(f"at most {self._shown(limit)}", outcome, limit)

    def within(self, limit: float) -> Evidence:
        """Return this evidence, judged by whether its whole interval lies between -`limit` and `limit`."""
        is_outside = self.low > limit or self.high < -limit
        outcome: Outcome = (
            "supports" if -limit < self.low and self.high < limit else "refutes" if is_outside else "open"
        )
        return self._decided(f"between -{limit:g} and {limit:g}", outcome, math.copysign(limit, self.value))

    def _shown(self, limit: float) -> str:
        return f"{limit:g}" if self.unit == "share" else limit_text(limit, self.unit)

    def _decided(self, needed: str, outcome: Outcome, limit: float) -> Evidence:
        n_needed = self._examples_needed(limit) if outcome == "open" else None
        return replace(self, needed=needed, outcome=outcome, n_needed=n_needed)

    def _examples_needed(self, limit: float) -> int | None:
        """Estimate the n at which the interval leaves the limit; None if the limit lies within one standard error.

        An interval narrows with the square root of n. If no example differs, its one side narrows with n itself.
        """
        half, distance = (self.value - self.low if limit < self.value else self.high - self.value), self.value - limit
        if self.n and distance and self.value in (self.low, self.high):
            return math.ceil(1.02 * self.n * half / abs(distance))  # exact bounds narrow a little more slowly
        if not self.n or abs(distance) <= half / Z95:
            return None
        return math.ceil(self.n * max(1.0, POWER * (half / distance) ** 2))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a number outside of its interval, and words without a place for the number."""
        if not self.low - ROUNDING <= self.value <= self.high + ROUNDING:
            yield "value", "a number inside of its interval"
        if "{}" not in self.words:
            yield "words", "a clause with {} for the number"


@dataclass(frozen=True)
class Judgement:
    """What a kind of claim has measured on one model."""

    evidence: tuple[Evidence, ...]
    """All of these must support the claim; the first one is the effect."""
    controls: tuple[Evidence, ...] = ()
    """A claim is not supported unless all of these support it, except for those that are only shown."""
    by_construction: str = ""
    """Why the outcome follows from the architecture alone; empty if it does not."""
    note: str = ""
    """What a reader must know besides; empty if nothing."""


def verdict_of(evidence: Sequence[Evidence], controls: Sequence[Evidence] = ()) -> Verdict:
    """Return the verdict that evidence and controls allow."""
    outcomes = {each.outcome for each in evidence}
    if "refutes" in outcomes:
        return "refuted"
    are_controls_met = all(control.outcome in ("supports", "shown") for control in controls)
    is_supported = "supports" in outcomes and "open" not in outcomes and are_controls_met
    return "supported" if is_supported else "undecided"


@dataclass(frozen=True)
class ClaimResult(Result):
    """One claim, judged on one model."""

    name: str
    weights_sha256: str
    text: str
    """The claim as it was written."""
    statement: str
    """The claim in plain English: `E0H2 of sample:addition carries the carry into the 10s`."""
    verdict: Verdict
    evidence: tuple[Evidence, ...] = ()
    controls: tuple[Evidence, ...] = ()
    reason: str = ""
    """Why the claim was not judged; empty for other verdicts."""
    by_construction: str = ""
    note: str = ""
    seed: int = 0
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    @property
    def effect(self) -> Evidence | None:
        """The first evidence; None if nothing was measured."""
        return self.evidence[0] if self.evidence else None

    @property
    def decisive(self) -> Evidence | None:
        """The first evidence that has led to the verdict; None if nothing was measured."""
        wanted = {"refuted": "refutes", "undecided": "open"}.get(self.verdict, "supports")
        return next((each for each in self.evidence if each.outcome == wanted), self.effect)

    @property
    def n_needed(self) -> int | None:
        """The number of examples that would decide an undecided claim; None if no estimate is possible."""
        open_entries = [each for each in (*self.evidence, *self.controls) if each.outcome == "open"]
        needed = [each.n_needed for each in open_entries]
        if self.verdict != "undecided" or not needed or any(each is None for each in needed) or self.failed_controls:
            return None
        return max(each for each in needed if each is not None)

    @property
    def failed_controls(self) -> list[Evidence]:
        """The controls that fail with their whole interval; more examples do not help against them."""
        return [control for control in self.controls if control.outcome == "refutes"]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a verdict that does not follow from the evidence, and a reason without need."""
        if self.verdict == "not judged":
            if self.evidence or not self.reason:
                yield "reason", "a text, and no evidence, as the claim was not judged"
            return
        if self.reason:
            yield "reason", "empty, as the claim was judged"
        right = verdict_of(self.evidence, self.controls)
        if self.verdict != right:
            yield "verdict", f"{right}, according to the evidence"


@dataclass(frozen=True)
class Statement:
    """A claim of a file, and who makes it."""

    text: str
    says: str = ""
    """Who says it, such as `report 001`; empty if nobody is named."""


@dataclass(frozen=True)
class ClaimsResult(Result):
    """Several claims, each judged on several models."""

    ROWS: ClassVar[tuple[str, ...]] = ("results",)
    models: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[ClaimResult, ...]
    """All models for the first claim, then all models for the second claim, and so on."""

    def of(self, statement: Statement) -> tuple[ClaimResult, ...]:
        """Return the results of one claim on all models, in the order of the models."""
        i, n = self.statements.index(statement), len(self.models)
        return self.results[i * n : (i + 1) * n]

    def count(self, statement: Statement) -> tuple[int, int]:
        """Return the number of models that support a claim, and the number of models on which it was judged."""
        verdicts = [result.verdict for result in self.of(statement)]
        return verdicts.count("supported"), len(verdicts) - verdicts.count("not judged")

    def mean_effect(self, statement: Statement) -> tuple[float, float, float, int] | None:
        """Return the mean effect over models, its 95 % CI (Student's t over models) and their number.

        Return None if the claim has an effect in fewer than two models.
        """
        values = [result.effect.value for result in self.of(statement) if result.effect is not None]
        return (*mean_interval(values), len(values)) if len(values) > 1 else None

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict on each claim and model, in the order of the results."""
        return [result.verdict for result in self.results]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield repeated claims, and results that do not belong to the claims and the models."""
        if len(set(self.statements)) != len(self.statements):
            yield "statements", "different claims"
        texts = [statement.text for statement in self.statements for _ in self.models]
        if [result.text for result in self.results] != texts:
            yield "results", "one result for each claim and model"


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of two or more values, and the ends of its 95 % CI (Student's t).

    >>> [round(each, 3) for each in mean_interval([0.1, 0.2, 0.3])]
    [0.2, -0.048, 0.448]
    """
    n, mean = len(values), sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = float(stats.t.ppf(0.975, n - 1)) * error
    return mean, mean - half, mean + half


# --- claims and their kinds -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A claim that was read from text: its subject, such as `E0H1`, its kind, and what stands after the kind."""

    text: str
    subject: str
    kind: ClaimKind
    event: str
    """The event that the name of the kind contains, such as `carry`; empty if it contains none."""
    objects: tuple[str, ...]

    @property
    def phrase(self) -> str:
        """The claim in plain English, without its subject."""
        source, _, place = self.objects[0].rpartition(">") if self.objects else ("", "", "")
        way = f"from {with_article(source)} into {with_article(place)}" if source else f"into {with_article(place)}"
        return self.kind.phrase.format(event=self.event, object=place, way=way)


@dataclass(frozen=True)
class ClaimCase:
    """A claim about one model, with all that a kind needs to judge it."""

    model: OpenModel
    claim: Claim
    heads: tuple[HeadId, ...]
    """The heads of the subject."""
    n: int | None = None
    """Number of examples or quartets; None for the default of the kind."""
    seed: int = 0
    data: Data = None
    """The file of a model without a task; None for the examples of the task."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """Measurements that several claims about the model share."""
    anyway: bool = False
    """Whether a model that is no better than a constant answer is judged, too."""

    def once(self, key: Any, measure: Callable[[], T]) -> T:
        """Return a measurement that is shared by all claims about the model; make it when it is first needed."""
        if key not in self.memo:
            self.memo[key] = measure()
        value: T = self.memo[key]
        return value


@dataclass(frozen=True)
class ClaimKind:
    """One kind of claim; the name of its file is its name, with `event` for the task's event."""

    grammar: str
    """One line, such as `SUBJECT carries-the-{event} PLACE`. HEAD is one head, and `[...]` may be left out."""
    phrase: str
    """The claim in plain English behind its subject, with `{event}`, `{object}` or `{way}` (`into the 10s`)."""
    supported_if: str
    refuted_if: str
    controls: str
    measure: Callable[[ClaimCase], Judgement]
    """Measure the claim; raise an InputError if it does not apply to the model."""

    @property
    def name(self) -> str:
        """The name in the grammar, such as `prunable-together`."""
        return self.grammar.split()[1]

    @property
    def subject(self) -> str:
        """What the subject must be: SUBJECT, HEAD or `model`."""
        return self.grammar.split()[0]

    @property
    def objects(self) -> tuple[str, ...]:
        """What must stand after the name of the kind, such as `PLACE` or `HEAD`."""
        return tuple(self.grammar.split()[2:])


def kinds() -> dict[str, ClaimKind]:
    """Return every kind by the name that users write; a kind about an event has one name per event of a task."""
    by_name = dict[str, ClaimKind]()
    for part in CLAIMS.names():
        kind: ClaimKind = CLAIMS.get(part)
        events = _events() if EVENT in kind.name else [""]
        by_name |= {kind.name.replace(EVENT, event): kind for event in events}
    return by_name


def _events() -> list[str]:
    words = [TASKS.get(name).words for name in TASKS.names()]
    return [each.event.name for each in words if each.event is not None]


def parse(text: str) -> Claim:
    """Parse one claim; an error says what the grammar allows.

    >>> claim = parse("E0H2 carries-the-carry 10s")
    >>> claim.subject, claim.event, claim.objects, claim.phrase
    ('E0H2', 'carry', ('10s',), 'carries the carry into the 10s')
    """
    subject, name, *objects = [*text.split(), "", ""][: max(2, len(text.split()))]
    by_name = kinds()
    if not name:
        names = f"the kinds are: {', '.join(by_name)}"
        raise InputError(
            f"{text!r} is not a claim", "write SUBJECT KIND [OBJECT], such as E0H1 prunable-together", names
        )
    if name not in by_name:
        raise InputError(f"no kind of claim {name!r} in {text!r}", suggestion(name, by_name))
    kind = by_name[name]
    events = [each for each in _events() if EVENT in kind.name and kind.name.replace(EVENT, each) == name]
    event = events[0] if events else ""
    n_least = sum(not each.startswith("[") for each in kind.objects)
    grammar = f"write {kind.grammar.replace(EVENT, event)}"
    if not n_least <= len(objects) <= len(kind.objects):
        raise InputError(f"{text!r} names {len(objects)} things after {name}", grammar)
    for word, wanted in zip((subject, *objects), (kind.subject, *kind.objects), strict=False):
        _require(word, wanted.strip("[]"), grammar)
    return Claim(" ".join(text.split()), subject, kind, event, tuple(objects))


def _require(word: str, wanted: str, grammar: str) -> None:
    """Raise an error if a word of a claim is not what the grammar wants."""
    if wanted == "LENGTH" and not (word.isascii() and word.isdigit() and int(word) > 0):
        raise InputError(f"{word!r} is not a length", grammar)
    if wanted == MODEL and word != MODEL:
        raise InputError(f"the subject of this claim is the whole model, not {word!r}", grammar)
    if wanted == "HEAD":
        HeadId.parse(word)
    if wanted == "SUBJECT":
        for part in word.split("+"):
            if not _is_group(part):
                near = suggestion(part, (*GROUPS, MODEL, "layer-0", "layer-1"))
                if near.startswith("did you mean"):
                    raise InputError(f"{part!r} is not a subject", near, grammar)
                HeadId.parse(part)


def _is_group(part: str) -> bool:
    return part in (*GROUPS, MODEL) or re.fullmatch(r"[EDXL]\d{1,6}|layer-\d{1,6}", part, re.IGNORECASE) is not None


def heads_of(model: OpenModel, subject: str) -> tuple[HeadId, ...]:
    """Return the heads that a subject means, in the order of the model; raise an error if the model lacks a part."""
    heads = set[HeadId]()
    for part in subject.split("+"):
        if not _is_group(part):
            heads.add(model.find_head(part))
            continue
        sites = [
            site
            for site in model.sites
            if part.lower() in (MODEL, site.short.lower(), f"layer-{site.layer}")
            or (site.stack, site.kind) == GROUPS.get(part)
        ]
        if not sites:
            blocks = ", ".join(site.short for site in model.sites)
            raise InputError(f"{model.name} has no attention block {part}", f"its blocks are: {blocks}")
        heads.update(head for site in sites for head in model.sites[site].heads)
    return tuple(head for head in model.sites.heads if head in heads)


def judge(case: ClaimCase, audit: str = "") -> ClaimResult:
    """Judge a claim on a model; a claim that does not apply to the model is not judged."""
    try:
        judgement = case.claim.kind.measure(case)
    except InputError as error:
        return not_judged(case.model, case.claim, _reason(error), audit)
    return ClaimResult(
        name=case.model.name,
        weights_sha256=case.model.weights_sha256,
        text=case.claim.text,
        statement=statement(case.model, case.claim),
        verdict=verdict_of(judgement.evidence, judgement.controls),
        evidence=judgement.evidence,
        controls=judgement.controls,
        by_construction=judgement.by_construction,
        note=judgement.note,
        seed=case.seed,
        audit=audit,
    )


def _reason(error: InputError) -> str:
    """Return an error and its advice on one line."""
    if not error.what.endswith("?"):
        return "; ".join((error.what, *error.advice))
    advice = "; ".join(error.advice)
    return f"{error.what} {advice[:1].upper()}{advice[1:]}"


def not_judged(model: OpenModel, claim: Claim, reason: str, audit: str = "") -> ClaimResult:
    """Return the result `not judged`, with the reason why the claim does not apply to the model."""
    named = model.name, model.weights_sha256, claim.text, statement(model, claim)
    return ClaimResult(*named, "not judged", reason=reason, audit=audit)


def statement(model: OpenModel, claim: Claim) -> str:
    """Return a claim about a model in plain English."""
    subject = model.name if claim.subject == MODEL else f"{claim.subject} of {model.name}"
    return f"{subject} {claim.phrase}"
