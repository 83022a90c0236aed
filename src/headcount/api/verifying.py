"""Verify whether every answer of a model is right, in the strongest way that the model allows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from headcount.analysis.context_proof import ContextCertificate
from headcount.analysis.exhaustive_check import Certificate
from headcount.analysis.verification import VERIFICATIONS, Verification
from headcount.analysis.verification import verify as verify_strongly
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import Place, folder_for, save_in
from headcount.auditing.audit import quick_audit
from headcount.errors import HeadcountError, InputError, ResultError
from headcount.experiments.models import OpenModel, RunModel
from headcount.limits import SEARCH_SECONDS
from headcount.rendering.progress import counting


def verify(
    model: AnyModel,
    *,
    seconds: float = SEARCH_SECONDS,
    seed: int = 0,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Verification:
    """Check whether every answer of a model is right, in the strongest way that the model allows.

    1. A finite task is checked on every example (`Certificate`).
    2. A classifier with windowed attention is checked on every context (the tokens that a position can see), which
       decides all sequences of every length (`ContextCertificate`; `WorstMargins` for mean pooling).
    3. Otherwise, wrong answers are searched for, for this many seconds (`CounterexampleSearch`). Finding none proves
       nothing.

    `save` names a folder for the result; `save=True` means the model's own folder. `run_adapter` allows running the
    adapter (the user's Python file) that the folder of a pruned model names.

        outcome = headcount.verify("sample:sortedness")
        outcome.verdict, outcome.wrong
    """
    if not seconds > 0:
        raise InputError(f"--seconds must be above 0, got {seconds:g}", "give the search some time: --seconds 20")
    opened = open_on_task(model, run_adapter=run_adapter)
    folder = folder_for(opened, save)
    outcome = verify_strongly(opened, seconds=seconds, seed=seed, counting=partial(counting, quiet=quiet))
    if isinstance(outcome, Certificate | ContextCertificate):
        outcome = replace(outcome, audit=quick_audit(opened))
    return save_in(folder, "certificate", outcome).result


def stored_verification(model: OpenModel) -> Verification | None:
    """Return the result of `verify` that is stored for this model's weights; None if there is none."""
    folders = [model.output] if model.has_output else []
    folders += [model.run.folder] if isinstance(model, RunModel) else []
    for folder in folders:
        for kind in VERIFICATIONS if folder.result_file("certificate").exists() else ():
            try:
                result = folder.read_result("certificate", kind)
            except ResultError:
                raise
            except HeadcountError:  # another type or version
                continue
            if result.weights_sha256 == model.weights_sha256:
                return result
    return None
