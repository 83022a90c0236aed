"""Parse a claim about heads, which is one line of text, and judge it on a model by confidence intervals.

    E0H2 carries-the-carry 10s        SUBJECT KIND [OBJECT]

A subject is a head (`E0H2`), an attention block (`E0`, `X1`, `D0`, `L0`), all blocks of one kind (`encoder`,
`decoder-self`, `cross`), all blocks of one layer (`layer-0`), the whole `model`, or a list of these (`E0H1+E0H3`).

Each kind of claim is one file of this folder that ends with `PART = ClaimKind(...)`. Its function `measure` returns a
`Judgement`: the evidence, whose first entry is the effect, and the controls. The claim then gets one of four verdicts:

    supported    all evidence and all controls support the claim, each with its whole 95 % interval
    refuted      some evidence refutes the claim with its whole interval
    undecided    neither supported nor refuted; `n_needed` estimates the number of examples that would decide
    not judged   the model fails its audit, or the claim does not apply to the model
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

from scipy.special import stdtrit

from headcount.bands import POWER, limit_text
from headcount.claims import CLAIMS
from headcount.errors import InputError
from headcount.experiments.models import Data, OpenModel
from headcount.heads import HeadId
from headcount.results import ROUNDING, Contradiction, Count, Positive, Result
from headcount.stats import Z95
from headcount.suggestions import suggestion
from headcount.tasks import TASKS
from headcount.tasks.base import with_article

Verdict = Literal["supported", "refuted", "undecided", "not judged"]
Outcome = Literal["supports", "refutes", "open", "shown"]
"""What one number says about a claim: it supports or refutes the claim, leaves it open, or is only `shown`."""
GROUPS = {"encoder": ("encoder", "self"), "decoder-self": ("decoder", "self"), "cross": ("decoder", "cross")}
"""Names for all attention blocks of one kind, which can be the subject of a claim, with their stack and kind."""
MODEL, EVENT = "model", "{event}"
T = TypeVar("T")


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """One number as evidence for or against a claim, with its 95 % CI."""

    words: str
    """A clause with `{}` for the number, such as `patching E0H2 moves {} of the logit gap`."""
    value: float
    low: float
    high: float
    n: Count
    of: str
    """What `n` counts, such as `examples` or `sets of four examples`."""
    unit: str
    """Unit of the number: `share` (a fraction of 1), `points` (of accuracy), or the unit of another metric."""
    needed: str = ""
    """The condition on the number that supports the claim, such as `at least 0.5`; empty if there is none."""
    outcome: Outcome = "shown"
    n_needed: Positive | None = None
    """Estimated number of examples that would decide an undecided claim (power of 80 %); None without an estimate."""

    def at_least(self, limit: float) -> Evidence:
        """Return this number with its outcome: it supports the claim if its whole interval is at least `limit`.

        It refutes the claim if the whole interval is below the limit. Otherwise the outcome is `open`.

        >>> half = Evidence("it moves {}", 0.6, 0.52, 0.68, 100, "quartets", "share")
        >>> half.at_least(0.5).outcome, half.at_least(0.7).outcome, half.at_least(0.65).outcome
        ('supports', 'refutes', 'open')
        """
        outcome: Outcome = "supports" if self.low >= limit else "refutes" if self.high < limit else "open"
        return self._decided(f"at least {self._shown(limit)}", outcome, limit)

    def above(self, limit: float) -> Evidence:
        """Return this number with its outcome: it supports the claim if its whole interval is above `limit`.

        It refutes the claim if the whole interval is below the limit. Otherwise the outcome is `open`.
        """
        outcome: Outcome = "supports" if self.low > limit else "refutes" if self.high < limit else "open"
        return self._decided(f"above {self._shown(limit)}", outcome, limit)

    def at_most(self, limit: float) -> Evidence:
        """Return this number with its outcome: it supports the claim if its whole interval is at most `limit`.

        It refutes the claim if the whole interval is above the limit. Otherwise the outcome is `open`.
        """
        outcome: Outcome = "supports" if self.high <= limit else "refutes" if self.low > limit else "open"
        return self._decided(f"at most {self._shown(limit)}", outcome, limit)

    def within(self, limit: float) -> Evidence:
        """Return this number with its outcome: it supports the claim if its whole interval is within ±`limit`.

        It refutes the claim if the whole interval is outside of this range. Otherwise the outcome is `open`.
        """
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
        """Estimate the number of examples at which the interval of this number would no longer contain `limit`.

        Return None if the limit lies within one standard error of the number. An interval narrows with the square root
        of n. If no example differs, one side of the interval narrows with n itself.
        """
        half, distance = (self.value - self.low if limit < self.value else self.high - self.value), self.value - limit
        if self.n and distance and self.value in (self.low, self.high):
            return math.ceil(1.02 * self.n * half / abs(distance))  # exact bounds narrow a little more slowly
        if not self.n or abs(distance) <= half / Z95:
            return None
        return math.ceil(self.n * max(1.0, POWER * (half / distance) ** 2))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for a number outside of its interval, or for words without `{}` for the number."""
        if not self.low - ROUNDING <= self.value <= self.high + ROUNDING:
            yield "value", "a number from low to high"
        if "{}" not in self.words:
            yield "words", "a clause with {} for the number"


@dataclass(frozen=True)
class Judgement:
    """The measurements for one claim on one model: evidence, controls and remarks."""

    evidence: tuple[Evidence, ...]
    """Numbers that must all support the claim. The first one is its effect, such as a drop in score."""
    controls: tuple[Evidence, ...] = ()
    """Numbers that rule out other explanations. All must support the claim, except those with the outcome `shown`."""
    by_construction: str = ""
    """Reason why the architecture alone decides the claim; empty if it does not."""
    note: str = ""
    """A further remark for readers, in full sentences; empty if there is none."""


def verdict_of(evidence: Sequence[Evidence], controls: Sequence[Evidence] = ()) -> Verdict:
    """Return the verdict on a claim from its evidence and controls: `supported`, `refuted` or `undecided`."""
    outcomes = {each.outcome for each in evidence}
    if "refutes" in outcomes:
        return "refuted"
    are_controls_met = all(control.outcome in ("supports", "shown") for control in controls)
    is_supported = "supports" in outcomes and "open" not in outcomes and are_controls_met
    return "supported" if is_supported else "undecided"


@dataclass(frozen=True)
class ClaimResult(Result):
    """The verdict on one claim for one model, with the evidence and controls that it rests on."""

    name: str
    weights_sha256: str
    text: str
    """The claim as its author wrote it, such as `E0H2 carries-the-carry 10s`."""
    statement: str
    """The claim as a sentence in plain English, such as `E0H2 of sample:addition carries the carry into the 10s`."""
    verdict: Verdict
    evidence: tuple[Evidence, ...] = ()
    controls: tuple[Evidence, ...] = ()
    reason: str = ""
    """Reason why the claim was not judged on this model; empty if it was judged."""
    by_construction: str = ""
    note: str = ""
    seed: int = 0
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    @property
    def effect(self) -> Evidence | None:
        """The effect: the first number of the evidence, such as a drop in score; None if nothing was measured."""
        return self.evidence[0] if self.evidence else None

    @property
    def decisive(self) -> Evidence | None:
        """The number of the evidence that decided the verdict (the first one of several); None without evidence."""
        wanted = {"refuted": "refutes", "undecided": "open"}.get(self.verdict, "supports")
        return next((each for each in self.evidence if each.outcome == wanted), self.effect)

    @property
    def n_needed(self) -> int | None:
        """The number of examples that would decide an undecided claim; None if decided or without an estimate."""
        open_entries = [each for each in (*self.evidence, *self.controls) if each.outcome == "open"]
        needed = [each.n_needed for each in open_entries]
        if self.verdict != "undecided" or not needed or any(each is None for each in needed) or self.failed_controls:
            return None
        return max(each for each in needed if each is not None)

    @property
    def failed_controls(self) -> list[Evidence]:
        """The controls (which guard against other explanations) that contradict the claim with their whole interval."""
        return [control for control in self.controls if control.outcome == "refutes"]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the verdict does not follow from the evidence, or a judged claim has a `reason`."""
        if self.verdict == "not judged":
            if self.evidence or not self.reason:
                yield "reason", "a text (and evidence must be empty), as the claim was not judged"
            return
        if self.reason:
            yield "reason", "an empty text, as the claim was judged"
        right = verdict_of(self.evidence, self.controls)
        if self.verdict != right:
            yield "verdict", f"{right!r}, which follows from the evidence"


@dataclass(frozen=True)
class Statement:
    """One entry of a file of claims: the text of a claim, and who makes it."""

    text: str
    says: str = ""
    """Name of a person or report that makes the claim, such as `report 001`; empty if nobody is named."""


@dataclass(frozen=True)
class ClaimsResult(Result):
    """The verdicts on several claims, each judged on several models."""

    ROWS: ClassVar[tuple[str, ...]] = ("results",)
    models: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[ClaimResult, ...]
    """The results in order: all models for the first claim, then all models for the second claim, and so on."""

    def of(self, statement: Statement) -> tuple[ClaimResult, ...]:
        """Return the results for one claim: one per model, in the order of the models."""
        i, n = self.statements.index(statement), len(self.models)
        return self.results[i * n : (i + 1) * n]

    def count(self, statement: Statement) -> tuple[int, int]:
        """Return, for one claim, the number of models that support it and the number of models that were judged."""
        verdicts = [result.verdict for result in self.of(statement)]
        return verdicts.count("supported"), len(verdicts) - verdicts.count("not judged")

    def mean_effect(self, statement: Statement) -> tuple[float, float, float, int] | None:
        """Return (mean, low, high, n): the mean effect of one claim over n models, and its 95 % CI (Student's t).

        The effect is the first number of the evidence, such as a drop in score. Return None if fewer than two models
        have it.
        """
        values = [result.effect.value for result in self.of(statement) if result.effect is not None]
        return (*mean_interval(values), len(values)) if len(values) > 1 else None

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict of each result, in the order of the results: all models for the first claim, and so on."""
        return [result.verdict for result in self.results]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if claims are repeated, or if there is not one result for each claim and model."""
        if len(set(self.statements)) != len(self.statements):
            yield "statements", "claims that differ from each other"
        texts = [statement.text for statement in self.statements for _ in self.models]
        if [result.text for result in self.results] != texts:
            yield "results", "one result for each claim and model, in this order"


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return (mean, low, high): the mean of two or more values, and the ends of its 95 % CI (Student's t).

    >>> [round(each, 3) for each in mean_interval([0.1, 0.2, 0.3])]
    [0.2, -0.048, 0.448]
    """
    n, mean = len(values), sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = float(stdtrit(n - 1, 0.975)) * error
    return mean, mean - half, mean + half


# --- claims and their kinds -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A claim parsed from text, such as `E0H1 redundant-with E0H2`: subject (`E0H1`), kind, and objects (`E0H2`)."""

    text: str
    subject: str
    kind: ClaimKind
    event: str
    """The event that the kind of claim names, such as `carry` in `carries-the-carry`; empty if it names none."""
    objects: tuple[str, ...]

    @property
    def phrase(self) -> str:
        """The claim in plain English without its subject, such as `carries the carry into the 10s`."""
        source, _, place = self.objects[0].rpartition(">") if self.objects else ("", "", "")
        way = f"from {with_article(source)} into {with_article(place)}" if source else f"into {with_article(place)}"
        return self.kind.phrase.format(event=self.event, object=place, way=way)


@dataclass(frozen=True)
class ClaimCase:
    """A claim about one model, with the settings and shared measurements that are needed to judge it."""

    model: OpenModel
    claim: Claim
    heads: tuple[HeadId, ...]
    """The heads that the subject of the claim stands for."""
    n: int | None = None
    """Number of examples (or of sets of four) to measure the claim on; None for the default of this kind of claim."""
    seed: int = 0
    data: Data = None
    """Data file for a model without a task; None to use examples of the model's own task."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """Measurements of this model that were already made for other claims, by key."""
    anyway: bool = False
    """Whether to judge even a model that is no better than a constant answer."""

    def once(self, key: Any, measure: Callable[[], T]) -> T:
        """Return the measurement stored under `key`; if there is none yet, call `measure` and store what it returns."""
        if key not in self.memo:
            self.memo[key] = measure()
        value: T = self.memo[key]
        return value


@dataclass(frozen=True)
class ClaimKind:
    """One kind of claim, such as `prunable-together`, defined by one file of this package.

    The file has the name of the kind, with `event` in place of the task's own event, such as the carry.
    """

    grammar: str
    """The form of these claims, such as `SUBJECT carries-the-{event} PLACE`; an object in `[...]` may be left out."""
    phrase: str
    """The claim in plain English without its subject.

    `{event}`, `{object}` and `{way}` (such as `into the 10s`) are filled in.
    """
    supported_if: str
    refuted_if: str
    controls: str
    measure: Callable[[ClaimCase], Judgement]
    """A function that measures a claim of this kind on a model; it raises an InputError if the claim does not apply."""

    @property
    def name(self) -> str:
        """The name of this kind of claim as users write it, such as `prunable-together`."""
        return self.grammar.split()[1]

    @property
    def subject(self) -> str:
        """The word before the name in the form of these claims: `SUBJECT`, `HEAD` or `model`."""
        return self.grammar.split()[0]

    @property
    def objects(self) -> tuple[str, ...]:
        """The words after the name in the form of these claims, such as `PLACE` or `HEAD`."""
        return tuple(self.grammar.split()[2:])


def kinds() -> dict[str, ClaimKind]:
    """Return all kinds of claims by name; a kind about events has a name for each event (`carries-the-carry`)."""
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
    """Parse a claim such as `E0H2 carries-the-carry 10s`; if it is invalid, raise an error with the allowed form.

    >>> claim = parse("E0H2 carries-the-carry 10s")
    >>> claim.subject, claim.event, claim.objects, claim.phrase
    ('E0H2', 'carry', ('10s',), 'carries the carry into the 10s')
    """
    subject, name, *objects = [*text.split(), "", ""][: max(2, len(text.split()))]
    by_name = kinds()
    if not name:
        names = f"the kinds of claims are: {', '.join(by_name)}"
        raise InputError(
            f"{text!r} is not a claim",
            "write a subject and a kind of claim (some kinds need an object, too), such as: E0H1 prunable-together",
            names,
        )
    if name not in by_name:
        raise InputError(f"{name!r} in {text!r} is no kind of claim", suggestion(name, by_name))
    kind = by_name[name]
    events = [each for each in _events() if EVENT in kind.name and kind.name.replace(EVENT, each) == name]
    event = events[0] if events else ""
    n_least = sum(not each.startswith("[") for each in kind.objects)
    grammar = f"write {kind.grammar.replace(EVENT, event)}"
    if not n_least <= len(objects) <= len(kind.objects):
        raise InputError(f"{text!r} has {len(objects)} words after {name}, which are too few or too many", grammar)
    for word, wanted in zip((subject, *objects), (kind.subject, *kind.objects), strict=False):
        _require(word, wanted.strip("[]"), grammar)
    return Claim(" ".join(text.split()), subject, kind, event, tuple(objects))


def _require(word: str, wanted: str, grammar: str) -> None:
    """Raise an error if a word of a claim is not of the required sort, such as HEAD or LENGTH.

    `wanted` is the required sort, and `grammar` is a line for the error message that shows the form of the claim.
    """
    if wanted == "LENGTH" and not (word.isascii() and word.isdigit() and int(word) > 0):
        raise InputError(f"{word!r} is not a length: a length is a whole number above 0, such as 64", grammar)
    if wanted == MODEL and word != MODEL:
        raise InputError(f"the subject of this kind of claim must be the word 'model', got {word!r}", grammar)
    if wanted == "HEAD":
        HeadId.parse(word)
    if wanted == "SUBJECT":
        for part in word.split("+"):
            if not _is_group(part):
                near = suggestion(part, (*GROUPS, MODEL, "layer-0", "layer-1"))
                if near.startswith("did you mean"):
                    raise InputError(f"{part!r} names no head, block, layer or kind of block", near, grammar)
                HeadId.parse(part)


def _is_group(part: str) -> bool:
    return part in (*GROUPS, MODEL) or re.fullmatch(r"[EDXL]\d{1,6}|layer-\d{1,6}", part, re.IGNORECASE) is not None


def heads_of(model: OpenModel, subject: str) -> tuple[HeadId, ...]:
    """Return the heads of a model that a subject of claims such as `E0` or `cross` stands for.

    Raise an error if the model has no such head, block or layer.
    """
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
            raise InputError(f"{model.name} has no attention block {part!r}", f"its blocks are: {blocks}")
        heads.update(head for site in sites for head in model.sites[site].heads)
    return tuple(head for head in model.sites.heads if head in heads)


def judge(case: ClaimCase, audit: str = "") -> ClaimResult:
    """Judge a claim on a model; if the claim does not apply to the model, the verdict is `not judged`.

    `audit` is the root cause that the quick audit of the model reported; empty if every check passed.
    """
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
    """Return an error's message and its advice as one line of text."""
    if not error.what.endswith("?"):
        return "; ".join((error.what, *error.advice))
    advice = "; ".join(error.advice)
    return f"{error.what} {advice[:1].upper()}{advice[1:]}"


def not_judged(model: OpenModel, claim: Claim, reason: str, audit: str = "") -> ClaimResult:
    """Return a result with the verdict `not judged`, and the reason why the claim was not judged on the model."""
    named = model.name, model.weights_sha256, claim.text, statement(model, claim)
    return ClaimResult(*named, "not judged", reason=reason, audit=audit)


def statement(model: OpenModel, claim: Claim) -> str:
    """Return a claim about a model as a sentence, such as `E0H2 of my-run carries the carry into the 10s`."""
    subject = model.name if claim.subject == MODEL else f"{claim.subject} of {model.name}"
    return f"{subject} {claim.phrase}"
