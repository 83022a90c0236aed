"""Which heads can go together, and a smaller model without them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headcount.analysis.ablation import Ablation
from headcount.analysis.cost import Cost, compare_cost
from headcount.analysis.pruning import Pruning, prune_curves
from headcount.api.ablation import batch_rows
from headcount.api.opening import AnyModel, open_model
from headcount.api.saving import Place, Saved, asked_data, folder_for, result_name, save_in, unless
from headcount.auditing.audit import quick_audit
from headcount.bands import CRITICAL
from headcount.data.tables import text_lines
from headcount.errors import HeadcountError, InputError, argument
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import run_interventions
from headcount.experiments.models import CUT_IT, NO_FOLDER, Data, ExperimentMetric, OpenModel
from headcount.figures.pruning import draw_pruning
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.sites import Sites
from headcount.limits import BATCH, LOSS, ORDERS, parse_seconds
from headcount.rendering.progress import TrainingProgress, announcer, counting
from headcount.runs.folder import require_vacant

MOST_ORDERS = 10_000
SEARCH_ROWS = 2
"""As many examples in a batch as for `ablate`: a search measures one head at a time, so fewer ride together."""


@dataclass(frozen=True, repr=False)
class SavedPruning(Saved[Pruning | None]):
    """The curves, None if the heads were given; and (if it was asked for) the model without them."""

    cost: Cost | None = None
    """Size and speed before and after; None if nothing was cut."""
    model: OpenModel | None = None
    """What is left; None likewise."""


def prune_heads(
    model: AnyModel,
    out: str | Path | None = None,
    *,
    data: Data = None,
    lines: bool = False,
    metric: ExperimentMetric = None,
    sites: Sites | None = None,
    loss: float = LOSS,
    share: float | None = None,
    heads: Sequence[str | HeadId] | None = None,
    fold_mean: bool = False,
    fine_tune: int = 0,
    length: int | None = None,
    n: int | None = None,
    n_orders: int = ORDERS,
    budget: str | float | None = None,
    batch_size: int = BATCH,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> SavedPruning:
    """Find the heads that can go together for at most `loss`, and cut them out into a new folder `out`.

    With `share`, such as 0.2, heads go until that share of all heads is gone, and the result says what that costs.
    Without `out` nothing is cut; with `heads`, those are cut and nothing is searched. With `fold_mean`, what the heads
    output on average over unlabelled training inputs stays, in the biases of their output projections. For models of
    others `data` (see `ablate_heads`) and `metric` are what they are measured on: half of the examples serve to choose
    heads, the other half to measure. Of any PyTorch module `data` are its tensors, `metric(output, rows)` gives one
    score per row, and `sites` says where its heads are unless it has them itself: heads are chosen, and `cut_heads`
    cuts them out of a copy. A `budget` is what the search may take, in seconds or as "5m": it finds what fits,
    and the result says what was `not_measured`. The curves are written if `save` names a folder; with `save=True` that
    is the model's own.

        headcount.prune_heads("sample:addition", "runs/smaller", loss=0.01)
    """
    seconds = None if budget is None else parse_seconds(budget)
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    data = text_lines(data) if lines else data
    _require_share(share, loss, heads)
    _require_sense(opened, out, heads, fine_tune, fold_mean)
    found, experiments = SavedPruning(None), None
    if heads is None or not opened.measures_itself:
        experiments = opened.selection(data, metric, n, length=length, at_once=batch_rows(SEARCH_ROWS * batch_size))
    if heads is None:
        assert experiments is not None, "made for the search"
        is_default = data is None and metric is None and n is None and length is None
        how = (loss, share, n_orders, batch_size, seconds, save, quiet)
        result = _search(opened, experiments, *how, is_default=is_default)
        result = replace(result, audit=quick_audit(opened))
        name = result_name(
            "pruning",
            data=asked_data(data),
            metric=metric,
            share=share,
            loss=unless(LOSS, loss),
            length=length,
            n=n,
            orders=unless(ORDERS, n_orders),
            budget=None if seconds is None else f"{seconds:g}s",
            batch=unless(BATCH, batch_size),
        )
        saved = save_in(folder_for(opened, save), name, result, lambda name, found: {name: draw_pruning(found)})
        found = SavedPruning(result, saved.data, saved.figures)
        heads = result.chosen
    is_all = len(heads) == len(opened.sites.heads) and not opened.can_lose_all_heads
    if out is None or not heads or is_all:
        if out is not None:
            which = "all heads" if heads else "no head"
            asked = f"for a loss of {loss:g}" if share is None else f"where {100 * share:g} % of the heads are to go"
            announcer(quiet)(f"{which} can go {asked}: nothing was cut")
        return found
    measured = None if experiments is None else experiments[1]
    with TrainingProgress(fine_tune, quiet=quiet or not fine_tune) as progress:
        cut = opened.cut(heads, Path(out), measured, fold_mean=fold_mean, fine_tune=fine_tune, listeners=[progress])
    cost = compare_cost(opened, cut, opened.cost_experiment(measured), fine_tune)
    return replace(found, cost=cost, model=cut.model)


def _require_share(share: float | None, loss: float, heads: Sequence[str | HeadId] | None) -> None:
    """Refuse a share that is none, or that something else decides."""
    if share is None:
        return
    if not 0 < share < 1:
        raise InputError(f"--share must be in (0, 1), got {share:g}", "it is a share of all heads, such as 0.2")
    if loss != LOSS or heads is not None:
        other = "--heads" if heads is not None else "--loss"
        raise InputError(f"--share and {other} both say which heads go", f"leave {other} or --share out")


def _require_sense(
    opened: OpenModel, out: str | Path | None, heads: Sequence[str | HeadId] | None, fine_tune: int, fold_mean: bool
) -> None:
    """Find out before a long search what could not be done after it."""
    if not opened.has_output and (out is not None or heads is not None or fine_tune or fold_mean):
        raise InputError(NO_FOLDER, CUT_IT)
    if fine_tune < 0:
        raise InputError(f"--fine-tune must be at least 0, got {fine_tune}", "it is steps of fine-tuning")
    if fine_tune:
        opened.require_training()
    if heads is not None:
        if not heads:
            raise InputError("no heads to cut out", f"list the heads: headcount heads {argument(opened.name)}")
        for head in heads:
            opened.find_head(head)
    if out is not None:
        require_vacant(Path(out))
    elif heads is not None or fine_tune or fold_mean:
        what = "heads to cut" if heads is not None else "fine-tuning" if fine_tune else "means to fold"
        raise InputError(f"{what}, but no folder for the model that it makes", "add -o DIR")


def _search(
    opened: OpenModel,
    experiments: tuple[Experiment, Experiment, Experiment],
    loss: float,
    share: float | None,
    n_orders: int,
    batch_size: int,
    budget: float | None,
    save: Place,
    quiet: bool,
    *,
    is_default: bool,
) -> Pruning:
    """Search for heads that can go; on a model's default examples, a stored ablation says which are harmless alone."""
    selection_set = experiments[0]
    if not (0 <= loss < 1 or (loss >= 0 and not selection_set.metric.in_points)):
        raise InputError(f"--loss must be in [0, 1), got {loss}", "it is a share of 1, such as 0.01 for one point")
    if not 1 <= n_orders <= MOST_ORDERS:
        raise InputError(f"--orders must be from 1 to {MOST_ORDERS:,}, got {n_orders:,}")
    found = run_interventions(selection_set, [])
    clean, baseline = float(selection_set.aggregate(found.clean)), found.majority_baseline
    if selection_set.metric.is_loss and clean <= baseline:
        raise InputError(
            f"{opened.name} has a loss of {-clean:.3f} nats on {selection_set.data}, guessing {-baseline:.3f}",
            "it has nothing to lose there, so any head could go: choose a model or data that work",
        )
    constant = selection_set.majority_baseline
    if selection_set.metric.in_points and clean - constant < CRITICAL:
        raise InputError(
            f"{opened.name} scores {clean:.3f} on {selection_set.data}, the best constant answer {constant:.3f}",
            "it has nothing to lose there, so any head could go: choose a model or a length that works",
        )
    folder_for(opened, save)
    ablation = _known_ablation(opened, selection_set.metric.name) if is_default else None
    with counting(f"removing heads of {opened.name}, %", quiet=quiet) as progress:
        return prune_curves(
            opened.label,
            opened.weights_sha256,
            *experiments,
            loss,
            share=share,
            n_orders=n_orders,
            batch_size=batch_size,
            budget=budget,
            ablation=ablation,
            progress=progress,
        )


def _known_ablation(opened: OpenModel, metric: str) -> Ablation | None:
    """Return the ablation of all heads that is stored for these very weights, or None."""
    for name in ("ablation-examples", "ablation") if opened.has_output else ():
        try:
            result = opened.output.read_result(name, Ablation)
        except HeadcountError:  # there is none, or another version wrote it
            continue
        is_whole = set(result.replacements) == set(REPLACEMENTS.names())
        if is_whole and (result.weights_sha256, result.metric) == (opened.weights_sha256, metric):
            return result
    return None
