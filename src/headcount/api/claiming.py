"""Judge claims about heads: each is supported, refuted, undecided or not judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headcount.api.opening import AnyModel, open_model
from headcount.auditing.audit import quick_audit
from headcount.claims._files import read_statements
from headcount.claims.base import (
    ClaimCase,
    ClaimResult,
    ClaimsResult,
    Statement,
    heads_of,
    judge,
    not_judged,
    parse,
)
from headcount.errors import InputError
from headcount.experiments.models import Data, OpenModel
from headcount.limits import MIN_N
from headcount.rendering.progress import counting

FAILS_AUDIT = "the model fails its audit, so measurements of its heads show nothing about the task"


def claim(
    model: AnyModel,
    text: str,
    *,
    n: int | None = None,
    seed: int = 0,
    data: Data = None,
    anyway: bool = False,
    run_adapter: bool = False,
) -> ClaimResult:
    """Judge one claim about the heads of a model: SUBJECT KIND [OBJECT].

    * `n` is the number of examples, sequences or quartets (sets of four examples); each kind of claim has a default.
    * `seed` is the seed of everything that is drawn: examples, sequences, quartets and sets of heads.
    * `data` is a file for a model without a task.
    * `anyway` judges a model that fails its quick audit, or is no better than a constant answer.
    * `run_adapter` allows running the adapter (the user's Python file) that the folder of a pruned model names.

    >>> claim("sample:addition", "D1 prunable-together", n=200).verdict
    'undecided'
    """
    parsed, opened = parse(text), open_model(model, run_adapter=run_adapter)
    _require(n)
    heads = heads_of(opened, parsed.subject)
    audit = quick_audit(opened)
    if audit and not anyway:
        return not_judged(opened, parsed, FAILS_AUDIT, audit)
    return judge(ClaimCase(opened, parsed, heads, n, seed, data, anyway=anyway), audit)


def claim_all(
    models: AnyModel | Sequence[AnyModel],
    statements: str | Path | Sequence[str | Statement],
    *,
    n: int | None = None,
    seed: int = 0,
    data: Data = None,
    anyway: bool = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> ClaimsResult:
    """Judge several claims on several models; return one verdict for each claim and model.

    `statements` is a list of claims, a TOML file, or the name of a file that comes with headcount, such as
    `reports`. A claim about a head that a model does not have is not judged on this model. The other arguments are
    those of `claim`. The returned result also says in how many models each claim is supported.
    """
    _require(n)
    parts = read_statements(statements) if isinstance(statements, str | Path) else map(_statement, statements)
    unique = tuple(dict.fromkeys(parts))
    if not unique:
        raise InputError(
            "no claim about a model was given",
            'give one, such as "E0H1+E0H2 prunable-together": heads 1 and 2 of encoder layer 0 can be removed together',
        )
    given: Sequence[AnyModel] = models if isinstance(models, list | tuple) else [models]  # type: ignore[list-item]
    opened = [open_model(model, run_adapter=run_adapter) for model in given]
    by_model = []
    with counting("judging claims", quiet=quiet) as progress:
        for i, each in enumerate(opened):
            audit, memo, results = quick_audit(each), dict[Any, Any](), list[ClaimResult]()
            for statement in unique:
                results.append(_judged(each, statement, audit, memo, (n, seed, data), anyway=anyway))
                progress(i * len(unique) + len(results), len(opened) * len(unique))
            by_model.append(results)
    results_in_order = tuple(result for row in zip(*by_model, strict=True) for result in row)
    return ClaimsResult(tuple(each.name for each in opened), unique, results_in_order)


def _judged(
    model: OpenModel,
    statement: Statement,
    audit: str,
    memo: dict[Any, Any],
    settings: tuple[int | None, int, Data],
    *,
    anyway: bool,
) -> ClaimResult:
    """Judge one of several claims; the verdict is `not judged` if the model lacks the heads that the claim is about."""
    parsed = parse(statement.text)
    if audit and not anyway:
        return not_judged(model, parsed, FAILS_AUDIT, audit)
    try:
        heads = heads_of(model, parsed.subject)
    except InputError as error:
        return not_judged(model, parsed, error.what, audit)
    return judge(ClaimCase(model, parsed, heads, *settings, memo, anyway), audit)


def _statement(claim: str | Statement) -> Statement:
    return claim if isinstance(claim, Statement) else Statement(parse(claim).text)


def _require(n: int | None) -> None:
    if n is not None and n < MIN_N:
        raise InputError(
            f"--n must be at least {MIN_N}, got {n}",
            "it is the number of examples; leave --n out for the default of each kind of claim",
        )
