"""Read from the weights of heads which tokens and positions they match, and what they copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headcount.analysis.routes import Routes, require_event
from headcount.analysis.weights import HeadWeights
from headcount.analysis.weights import weights as read_weights
from headcount.analysis.weights_inputs import require_own
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import Place, Saved, folder_for, result_name, save_in, unless_default, within
from headcount.auditing.audit import quick_audit
from headcount.errors import HeadcountError, InputError, ResultError
from headcount.experiments.models import OpenModel
from headcount.figures.weights import draw_weights
from headcount.heads import HeadId
from headcount.limits import N_WEIGHTS
from headcount.rendering.progress import counting

FEWEST = 64
"""Smallest number of examples over which heads' inputs are averaged; fewer make R^2 (explained variance) too high."""


def weights(
    model: AnyModel,
    heads: Sequence[str | HeadId] = (),
    *,
    n: int = N_WEIGHTS,
    seed: int = 0,
    probes: bool = False,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Saved[HeadWeights]:
    """Read from the weights of each head which tokens and positions it matches, and what it copies.

    `heads` are the heads to read; the default is all. `n` is the number of examples over which inputs are averaged, and
    `seed` is the seed with which they are drawn. `probes` also fits linear probes of the task's event, such as the
    carry. `save` names a folder for the result and its figures; `save=True` means the model's own folder. `run_adapter`
    allows running the adapter (the user's Python file) that the folder of a pruned model names. The returned `result`
    is a `HeadWeights`.

        head = headcount.weights("sample:addition", ["E0H2"]).result.heads[0]
        head.match_positions.largest(), head.explained
    """
    if n < FEWEST:
        raise InputError(
            f"--n must be at least {FEWEST}, got {n}",
            "the inputs of heads are averaged over this number of examples, and fewer give a misleading mean",
        )
    opened = open_on_task(model, run_adapter=run_adapter)
    require_own(opened)
    if probes:
        require_event(opened)
    chosen = tuple(dict.fromkeys(opened.find_head(head) for head in heads))
    folder = folder_for(opened, save)
    routes = stored_routes(opened) if probes else None
    with counting(f"patching paths of {opened.name}", quiet=quiet) as progress:
        result = read_weights(opened, chosen, n=n, seed=seed, probes=probes, routes=routes, progress=progress)
    result = replace(result, audit=quick_audit(opened))
    settings = {"n": unless_default(N_WEIGHTS, n), "seed": unless_default(0, seed), "probes": probes}
    name = result_name("weights", heads=[head.short for head in chosen] or None, **settings)
    return save_in(folder, name, result, lambda stem, made: within(stem, draw_weights(made)))


def stored_routes(model: OpenModel) -> Routes | None:
    """Return the result of `headcount routes` that is stored for this model's weights; None if there is none."""
    if not model.has_output or not model.output.result_file("routes").exists():
        return None
    try:
        routes = model.output.read_result("routes", Routes)
    except ResultError:
        raise
    except HeadcountError:  # another version
        return None
    return routes if routes.weights_sha256 == model.weights_sha256 else None
