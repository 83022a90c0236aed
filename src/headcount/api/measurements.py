"""The measurements of a report, in the order of what people look at; where time is limited, in a shorter form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from headcount.analysis.ablation import Ablation
from headcount.analysis.exhaustive import Certificate
from headcount.analysis.length_generalisation import LENGTHS, REPORTED, Stretch
from headcount.analysis.poolings import PoolingComparison
from headcount.analysis.positions import EncodingsShown, PositionsShown
from headcount.analysis.pruning import Pruning
from headcount.analysis.roles import N_CONTROLS, HeadRoles
from headcount.analysis.specialisation import Specialisation
from headcount.api.ablation import ablate_heads
from headcount.api.auditing import audit
from headcount.api.pruning import prune_heads
from headcount.api.saving import Saved, asked_data, result_name
from headcount.api.training import evaluate, verify
from headcount.api.viewing import head_roles, head_stats, show_positions, stretch
from headcount.auditing.audit import Audit
from headcount.errors import OutOfTime
from headcount.experiments.models import Data, OpenModel, RunModel
from headcount.rendering.progress import limited, time_limit
from headcount.results import Result
from headcount.tasks.base import SequenceTask
from headcount.training.evaluation import Classification, Evaluation

LARGEST_WALK = 1_000_000
"""Examples that are checked unasked; a larger domain is `headcount verify`'s."""
MOST_OF_IT = 0.6
"""Share of the time left that one measurement may take, so that one slow measurement does not displace the others."""
FEWEST, FEWEST_CONTROLS = 100, 4
"""Examples, and controls of each kind, below which a measurement is left out rather than made on fewer."""
ALL_TAKE = 4
"""How many times as long as setting heads to zero all replacements take at least, with means and four donors."""
BRIEF_LENGTH, BRIEF_N = 256, 200
"""The longest sequences, and examples per length and kind, where there is a time limit."""
BRIEF_SEARCHES, SEARCH_SECONDS = (12, 6), 300
"""Seconds that the search for removable heads may take: the first that fit a time limit; thoroughly, on data."""
Make = Callable[[OpenModel, Data, bool], Any]
R = TypeVar("R")


@dataclass(frozen=True)
class Wanted:
    """One kind of result: read if it is there, made if it is not."""

    field: str
    """Of a subject."""
    words: str
    """What is measured, for people."""
    stem: str
    """How its file's name begins."""
    types: tuple[type[Result], ...]
    make: Make | None = None
    """From a model, the data that it is measured on if it has no task, and whether to be quiet; None: only read."""
    is_quick: bool = False
    """Whether it takes seconds."""


WANTED = (
    Wanted(
        "evaluation",
        "accuracy on the test set",
        "evaluation-test",
        (Evaluation, Classification),
        lambda m, *_: evaluate(m, save=_place(m)),
        True,
    ),
    Wanted("audit", "the audit", "audit", (Audit,), lambda m, _, quiet: _result(audit, m, quiet), True),
    Wanted("ablation", "what each head is worth", "ablation", (Ablation,), lambda *asked: _ablated(*asked)),
    Wanted("stretch", "accuracy by length", "stretch", (Stretch,), lambda m, _, quiet: _stretched(m, quiet)),
    Wanted("pruning", "heads removed together", "pruning", (Pruning,), lambda *asked: _pruned(*asked)),
    Wanted(
        "stats",
        "what heads attend to",
        "head-stats",
        (Specialisation,),
        lambda m, _, quiet: _result(head_stats, m, quiet),
    ),
    Wanted("roles", "roles of heads", "head-roles", (HeadRoles,), lambda m, _, quiet: _roles(m, quiet)),
    Wanted(
        "certificate",
        "every possible example",
        "certificate",
        (Certificate,),
        lambda m, _, quiet: _walked(m, quiet),
    ),
    Wanted(
        "positions",
        "position encodings",
        "positions",
        (PositionsShown,),
        lambda m, *_: show_positions(m, save=_place(m)).result,
        True,
    ),
    # Written beside positions.
    Wanted("encodings", "other encodings", "encodings", (EncodingsShown,)),
    # A lab makes it, for it trains models.
    Wanted("poolings", "poolings compared", "poolings", (PoolingComparison,)),
)
"""In the order of what people look at: where time is limited, the last ones are left out."""


def measure(wanted: Wanted, model: OpenModel, data: Data, quiet: bool) -> Result | None:
    """Measure this, unless the time is up before it begins."""
    limit = time_limit()
    if limit is not None and limit.seconds_left <= 0:
        raise OutOfTime(wanted.words, 0.0)
    assert wanted.make is not None, "it can be measured"
    return cast("Result | None", wanted.make(model, data, quiet))


def brief_names(wanted: Wanted, model: OpenModel, data: Data) -> list[str]:
    """Return the names under which a report in limited time stores this result, the fullest first."""
    asked: dict[str, Any] = {"data": asked_data(data)}
    if wanted.field == "stretch":
        return [result_name(wanted.stem, lengths=_brief_lengths(), n=BRIEF_N, draw=REPORTED)]
    if wanted.field == "pruning":
        return [result_name(wanted.stem, **asked, budget=f"{seconds}s") for seconds in BRIEF_SEARCHES]
    if wanted.field == "ablation":
        how = {"n": _whole_test_set(model, data), "examples": model.task is not None}
        return [result_name(wanted.stem, **asked, replacements=each, **how) for each in (None, ["zero"])]
    return []


def _place(model: OpenModel) -> bool:
    return model.has_output


def _result(verb: Callable[..., Saved[Any]], model: OpenModel, quiet: bool) -> Any:
    return verb(model, save=_place(model), quiet=quiet).result


def _ablated(model: OpenModel, data: Data, quiet: bool) -> Ablation:
    """Ablate each head, with what broke where a task can say so.

    In limited time each head is first set to zero, on the test set alone; then, if that went quickly, all replacements
    are measured.
    """
    ablate = partial(ablate_heads, model, data, examples=model.task is not None, save=_place(model), quiet=quiet)
    limit = time_limit()
    if limit is None:
        return ablate().result
    n, whole = _n_examples(model, data), _whole_test_set(model, data)
    started = limit.clock()
    zeroed = _on_fewer(lambda fewer: ablate(n=fewer or whole, replacements=["zero"]).result, n, FEWEST)
    if ALL_TAKE * (limit.clock() - started) > limit.seconds_left:
        return zeroed
    try:
        return ablate(n=whole).result
    except OutOfTime:
        return zeroed


def _n_examples(model: OpenModel, data: Data) -> int:
    """Return how many examples an ablation has by default."""
    dataset, rows = model.examples(data, None, None, None)
    return len(dataset) if rows is None else len(rows)


def _whole_test_set(model: OpenModel, data: Data) -> int | None:
    """Return the n that keeps heads from being measured again on new examples; None for models that never are."""
    return _n_examples(model, data) if isinstance(model, RunModel) else None


def _roles(model: OpenModel, quiet: bool) -> HeadRoles:
    """Name heads by their roles; in limited time against fewer controls."""
    measure = partial(head_roles, model, save=_place(model), quiet=quiet)
    return _on_fewer(
        lambda fewer: (measure(n_controls=fewer) if fewer else measure()).result, N_CONTROLS, FEWEST_CONTROLS
    )


def _on_fewer(measure: Callable[[int | None], R], n: int, fewest: int) -> R:
    """Measure on all `n`; where there is no time for that, on as many as there is time for."""
    try:
        return measure(None)
    except OutOfTime as error:
        limit = time_limit()
        assert limit is not None, "nothing else is out of time"
        fewer = int(n * MOST_OF_IT * limit.seconds_left / max(error.seconds, 1.0))
        if not fewest <= fewer < n:
            raise
        return measure(fewer)


def _pruned(model: OpenModel, data: Data, quiet: bool) -> Pruning | None:
    limit, budget = time_limit(), None if data is None else SEARCH_SECONDS
    if limit is not None:
        budget = next((each for each in BRIEF_SEARCHES if each <= limit.seconds_left), None)
        if budget is None:
            raise OutOfTime("removing heads", BRIEF_SEARCHES[-1])
    with limited(None):  # the search has a budget of its own, and its pace says little
        return prune_heads(model, data=data, budget=budget, save=_place(model), quiet=quiet).result


def _walked(model: OpenModel, quiet: bool) -> Certificate | None:
    if cast(SequenceTask, model.task).domain_size > LARGEST_WALK:
        return None
    return verify(model, save=_place(model), quiet=quiet)


def _stretched(model: OpenModel, quiet: bool) -> Stretch:
    """Measure accuracy by length; in limited time up to a length that takes seconds."""
    measure = partial(stretch, model, draw=REPORTED, save=_place(model), quiet=quiet)
    if time_limit() is None:
        return measure().result[0]
    return measure(lengths=_brief_lengths(), n=BRIEF_N).result[0]


def _brief_lengths() -> list[int]:
    return [length for length in LENGTHS if length <= BRIEF_LENGTH]
