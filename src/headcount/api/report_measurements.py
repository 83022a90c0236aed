"""The measurements of a report, the most important ones first. With a time limit, they are done in a shorter form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from headcount.analysis.ablation import Ablation
from headcount.analysis.exhaustive_check import domain_size
from headcount.analysis.length_generalisation import REPORTED, Stretch
from headcount.analysis.pooling_comparison import PoolingComparison
from headcount.analysis.positions import EncodingsShown, PositionsShown
from headcount.analysis.pruning import Pruning
from headcount.analysis.roles import N_CONTROLS, HeadRoles
from headcount.analysis.routes import Routes
from headcount.analysis.specialisation import Specialisation
from headcount.analysis.verification import VERIFICATIONS, Verification
from headcount.api.ablation import ablate_heads
from headcount.api.auditing import audit
from headcount.api.evaluating import evaluate
from headcount.api.heads import head_roles, head_stats
from headcount.api.positions import show_positions
from headcount.api.pruning import prune_heads
from headcount.api.routing import routes
from headcount.api.saving import Saved, data_setting, result_name
from headcount.api.stretching import stretch
from headcount.api.verifying import verify
from headcount.auditing.audit import Audit
from headcount.errors import OutOfTime
from headcount.experiments.models import Data, OpenModel, RunModel
from headcount.limits import LENGTHS, N_SCAN
from headcount.rendering.progress import limited, time_limit
from headcount.results import Result
from headcount.training.evaluation import Classification, Evaluation

LARGEST_DOMAIN_CHECKED = 1_000_000
"""Largest domain of a task, in examples, that a report checks exhaustively; `headcount verify` checks larger ones."""
BRIEF_SEARCH = 5.0
"""Seconds that a report searches for wrong answers of a model that cannot be proved."""
LARGEST_TIME_SHARE = 0.6
"""Fraction of the remaining time that one measurement may take, so that a slow one leaves time for the others."""
MIN_EXAMPLES, MIN_CONTROLS = 100, 4
"""Smallest number of examples, and of controls of each kind; a measurement on fewer is left out."""
MIN_QUARTETS = 40
"""Smallest number of quartets (sets of four examples) for each way of an event, such as the carry."""
ALL_REPLACEMENTS_COST = 4
"""Ablating heads with all replacements takes at least this many times as long as with zero ablation alone."""
BRIEF_LENGTH, BRIEF_N = 256, 200
"""In a report with a time limit: the longest sequences, and the number of examples per length and kind."""
BRIEF_LENGTHS = [length for length in LENGTHS if length <= BRIEF_LENGTH]
BRIEF_SEARCHES, SEARCH_SECONDS = (12, 6), 300
"""Seconds of the search for removable heads: with a time limit, the first of `BRIEF_SEARCHES` that fits into it; for
models that are measured on a data file, `SEARCH_SECONDS`."""
Make = Callable[[OpenModel, Data, bool], Any]
R = TypeVar("R")


@dataclass(frozen=True)
class Measurement:
    """One kind of result of a report, with the function that measures it if no file has it."""

    field: str
    """Name of the field of `ModelResults` that holds the result."""
    words: str
    """Name of the measurement in messages."""
    stem: str
    """First part of the name of the result's file."""
    types: tuple[type[Result], ...]
    make: Make | None = None
    """A function of the model, the data (of a model without a task) and `quiet` that measures the result; None if the
    result is only read."""
    is_quick: bool = False
    """Whether the measurement takes only seconds."""


def measure(measurement: Measurement, model: OpenModel, data: Data, quiet: bool) -> Result | None:
    """Carry out a measurement of a model, and return its result; raise `OutOfTime` if no time is left."""
    limit = time_limit()
    if limit is not None and limit.seconds_left <= 0:
        raise OutOfTime(measurement.words, 0.0)
    assert measurement.make is not None, "only results that can be measured are passed here"
    return cast("Result | None", measurement.make(model, data, quiet))


def brief_names(measurement: Measurement, model: OpenModel, data: Data) -> list[str]:
    """Return the file names under which reports with a time limit save this result, the most complete result first."""
    settings: dict[str, Any] = {"data": data_setting(data)}
    if measurement.field == "stretch":
        return [result_name(measurement.stem, lengths=BRIEF_LENGTHS, n=BRIEF_N, draw=REPORTED)]
    if measurement.field == "pruning":
        return [result_name(measurement.stem, **settings, budget=f"{seconds}s") for seconds in BRIEF_SEARCHES]
    if measurement.field == "ablation":
        settings |= {"n": _whole_test_set(model, data), "examples": model.task is not None}
        return [result_name(measurement.stem, replacements=names, **settings) for names in (None, ["zero"])]
    return []


def _by(verb: Callable[..., Saved[Any]]) -> Make:
    """Return a measuring function that calls an API function, such as `audit`, with its defaults."""
    return lambda model, data, quiet: verb(model, save=model.has_output, quiet=quiet).result


def _ablate(model: OpenModel, data: Data, quiet: bool) -> Ablation:
    """Ablate each head; for a model with a task, also record which kinds of answers become wrong.

    With a time limit, zero ablation on the test set comes first. All replacements follow if there is time for them.
    """
    ablate = partial(ablate_heads, model, data, examples=model.task is not None, save=model.has_output, quiet=quiet)
    limit = time_limit()
    if limit is None:
        return ablate().result
    n, whole = _n_examples(model, data), _whole_test_set(model, data)
    started = limit.clock()
    zeroed = _on_fewer(lambda fewer: ablate(n=fewer or whole, replacements=["zero"]).result, n, MIN_EXAMPLES)
    if ALL_REPLACEMENTS_COST * (limit.clock() - started) > limit.seconds_left:
        return zeroed
    try:
        return ablate(n=whole).result
    except OutOfTime:
        return zeroed


def _n_examples(model: OpenModel, data: Data) -> int:
    """Return how many examples an ablation of this model uses unless `n` is given."""
    dataset, rows = model.examples(data, None, None, None)
    return len(dataset) if rows is None else len(rows)


def _whole_test_set(model: OpenModel, data: Data) -> int | None:
    """Return the size of a run's test set, or None for other models.

    If an ablation gets this size as `n`, it does not measure heads again on new examples.
    """
    return _n_examples(model, data) if isinstance(model, RunModel) else None


def _roles(model: OpenModel, data: Data, quiet: bool) -> HeadRoles:
    """Find the roles of heads; if time is short, compare heads with fewer control models."""
    measure = partial(head_roles, model, save=model.has_output, quiet=quiet)
    return _on_fewer(lambda fewer: (measure(n_controls=fewer) if fewer else measure()).result, N_CONTROLS, MIN_CONTROLS)


def _on_fewer(measure: Callable[[int | None], R], n: int, fewest: int) -> R:
    """Measure with all `n` examples or controls, or with as many as time allows.

    Raise `OutOfTime` if fewer than `fewest` are possible.
    """
    try:
        return measure(None)
    except OutOfTime as error:
        limit = time_limit()
        assert limit is not None, "only a time limit raises OutOfTime"
        fewer = int(n * LARGEST_TIME_SHARE * limit.seconds_left / max(error.seconds, 1.0))
        if not fewest <= fewer < n:
            raise
        return measure(fewer)


def _prune(model: OpenModel, data: Data, quiet: bool) -> Pruning | None:
    limit, budget = time_limit(), None if data is None else SEARCH_SECONDS
    if limit is not None:
        budget = next((seconds for seconds in BRIEF_SEARCHES if seconds <= limit.seconds_left), None)
        if budget is None:
            raise OutOfTime("removing heads", BRIEF_SEARCHES[-1])
    with limited(None):  # the search keeps to its own budget; its progress does not predict its end
        return prune_heads(model, data=data, budget=budget, save=model.has_output, quiet=quiet).result


def _verify(model: OpenModel, data: Data, quiet: bool) -> Verification | None:
    """Verify a model; with a time limit, wrong answers are searched for in a few seconds only."""
    if (domain_size(model) or 0) > LARGEST_DOMAIN_CHECKED:
        return None
    return verify(model, seconds=BRIEF_SEARCH, save=model.has_output, quiet=quiet)


def _routes(model: OpenModel, data: Data, quiet: bool) -> Routes | None:
    """Measure which heads move the event of the task, if it has one; if time is short, on fewer quartets."""
    task = model.task
    if task is None or task.output_type != "sequence" or task.words.event is None:
        return None
    measure = partial(routes, model, save=model.has_output, quiet=quiet)
    return _on_fewer(lambda fewer: (measure(n=fewer) if fewer else measure()).result, N_SCAN, MIN_QUARTETS)


def _stretch(model: OpenModel, data: Data, quiet: bool) -> Stretch | None:
    """Measure a classifier's accuracy by length; with a time limit, only on lengths that take seconds."""
    if model.task is not None and model.task.output_type == "sequence":
        return None
    measure = partial(stretch, model, draw=REPORTED, save=model.has_output, quiet=quiet)
    if time_limit() is None:
        return cast(Stretch, measure().result[0])
    return cast(Stretch, measure(lengths=BRIEF_LENGTHS, n=BRIEF_N).result[0])


MEASUREMENTS = (
    Measurement(
        "evaluation",
        "accuracy on the test set",
        "evaluation-test",
        (Evaluation, Classification),
        lambda model, *_: evaluate(model, save=model.has_output),
        is_quick=True,
    ),
    Measurement("audit", "the audit", "audit", (Audit,), _by(audit), is_quick=True),
    Measurement("ablation", "the ablation of each head", "ablation", (Ablation,), _ablate),
    Measurement("stretch", "accuracy by length", "stretch", (Stretch,), _stretch),
    Measurement("pruning", "the removal of several heads", "pruning", (Pruning,), _prune),
    Measurement("routes", "the heads that move the task's event", "routes", (Routes,), _routes),
    Measurement("stats", "the attention statistics of heads", "head-stats", (Specialisation,), _by(head_stats)),
    Measurement("roles", "the roles of heads", "head-roles", (HeadRoles,), _roles),
    Measurement("certificate", "the verification", "certificate", VERIFICATIONS, _verify),
    Measurement(
        "positions",
        "position encodings",
        "positions",
        (PositionsShown,),
        lambda model, *_: show_positions(model, save=model.has_output).result,
        is_quick=True,
    ),
    # `show_positions` writes it together with the positions.
    Measurement("encodings", "all position encodings side by side", "encodings", (EncodingsShown,)),
    # `headcount lab` writes it, because it needs trained models.
    Measurement("poolings", "the comparison of poolings", "poolings", (PoolingComparison,)),
)
"""All measurements, the most important ones first; if time is short, the last ones are left out."""
