"""Find heads that can be removed together, and cut them out of a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headcount.analysis.ablation import Ablation
from headcount.analysis.pruning import Pruning, prune_curves
from headcount.analysis.pruning_cost import Cost, compare_cost
from headcount.api.ablation import batch_rows
from headcount.api.opening import AnyModel, open_model
from headcount.api.saving import Place, Saved, data_setting, folder_for, result_name, save_in, unless_default
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
"""Largest number of random orders in which heads are removed, to compare the search with."""
SEARCH_ROWS = 2
"""Factor on the batch size in the search for removable heads, which ablates one set of heads per forward pass."""


@dataclass(frozen=True, repr=False)
class SavedPruning(Saved[Pruning | None]):
    """The result of a search for removable heads (None if the heads were given), and the smaller model."""

    cost: Cost | None = None
    """Size, speed and score before and after; None if nothing was cut."""
    model: OpenModel | None = None
    """The smaller model; None if nothing was cut."""


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
    """Find the heads that can be removed together for a drop of at most `loss`, and save the smaller model in `out`.

    * `out` is the folder of the smaller model. Without it, nothing is cut. A PyTorch module cannot be cut here: use
      `cut_heads` on a copy.
    * `loss` is the largest drop that is allowed: 0.01 is one point of accuracy.
    * `share` removes this fraction of the heads instead, such as 0.2, and the result gives the drop.
    * `heads` are cut without a search.
    * `data` and `metric` are those of `ablate_heads`. One half of a file or of tensors is used to choose heads, and the
      other half to measure.
    * `fold_mean` adds the mean output of the cut heads, over unlabelled training inputs, to the bias of their block.
    * `fine_tune` is the number of training steps after the cut.
    * `n_orders` is the number of random orders of removal that the search is compared with.
    * `budget` limits the time of the search, in seconds or as "5m". The result lists what was `not_measured`.
    * `save` names a folder for the result and its figure; `save=True` means the model's own folder.

    Return the `Pruning`, the size, speed and score before and after the cut (`cost`), and the smaller model (`model`).

        headcount.prune_heads("sample:addition", "runs/smaller", loss=0.01)
    """
    seconds = None if budget is None else parse_seconds(budget)
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    data = text_lines(data) if lines else data
    _require_share(share, loss, heads)
    _require_sense(opened, out, heads, fine_tune, fold_mean)
    saved_pruning, experiments = SavedPruning(None), None
    if heads is None or not opened.measures_itself:
        experiments = opened.selection(data, metric, n, length=length, at_once=batch_rows(SEARCH_ROWS * batch_size))
    if heads is None:
        assert experiments is not None, "the search needs experiments"
        _require_searchable(opened, experiments[0], loss, n_orders)
        folder = folder_for(opened, save)
        is_default = data is None and metric is None and n is None and length is None
        with counting(f"removing heads of {opened.name}, %", quiet=quiet) as progress:
            result = prune_curves(
                opened.label,
                opened.weights_sha256,
                *experiments,
                loss,
                share=share,
                n_orders=n_orders,
                batch_size=batch_size,
                budget=seconds,
                ablation=_known_ablation(opened, experiments[0].metric.name) if is_default else None,
                progress=progress,
            )
        result = replace(result, audit=quick_audit(opened))
        name = result_name(
            "pruning",
            data=data_setting(data),
            metric=metric,
            share=share,
            loss=unless_default(LOSS, loss),
            length=length,
            n=n,
            orders=unless_default(ORDERS, n_orders),
            budget=None if seconds is None else f"{seconds:g}s",
            batch=unless_default(BATCH, batch_size),
        )
        saved = save_in(folder, name, result, lambda name, result: {name: draw_pruning(result)})
        saved_pruning = SavedPruning(result, saved.data, saved.figures)
        heads = result.chosen
    is_all = len(heads) == len(opened.sites.heads) and not opened.can_lose_all_heads
    if out is None or not heads or is_all:
        if out is not None:
            which = "all heads" if heads else "no head"
            limit = f"a drop of {loss:g}" if share is None else f"{100 * share:g} % of the heads"
            announcer(quiet)(f"with a limit of {limit}, the search removes {which}, so no smaller model was written")
        return saved_pruning
    measured = None if experiments is None else experiments[1]
    with TrainingProgress(fine_tune, quiet=quiet or not fine_tune) as progress:
        cut = opened.cut(heads, Path(out), measured, fold_mean=fold_mean, fine_tune=fine_tune, listeners=[progress])
    cost = compare_cost(opened, cut, opened.cost_experiment(measured), fine_tune)
    return replace(saved_pruning, cost=cost, model=cut.model)


def _require_share(share: float | None, loss: float, heads: Sequence[str | HeadId] | None) -> None:
    """Raise an error for a share outside (0, 1), or for a share together with `loss` or `heads`."""
    if share is None:
        return
    if not 0 < share < 1:
        raise InputError(f"--share must be in (0, 1), got {share:g}", "it is a fraction of all heads, such as 0.2")
    if loss != LOSS or heads is not None:
        other = "--heads" if heads is not None else "--loss"
        raise InputError(f"--share and {other} cannot be combined", f"leave {other} or --share out")


def _require_sense(
    opened: OpenModel, out: str | Path | None, heads: Sequence[str | HeadId] | None, fine_tune: int, fold_mean: bool
) -> None:
    """Raise an error, before the long search for heads begins, for settings with which it would fail in the end."""
    if not opened.has_output and (out is not None or heads is not None or fine_tune or fold_mean):
        raise InputError(NO_FOLDER, CUT_IT)
    if fine_tune < 0:
        raise InputError(f"--fine-tune must be at least 0, got {fine_tune}", "it is a number of training steps")
    if fine_tune:
        opened.require_training()
    if heads is not None:
        if not heads:
            raise InputError(
                "no heads to cut out were given", f"list the heads: headcount heads {argument(opened.name)}"
            )
        for head in heads:
            opened.find_head(head)
    if out is not None:
        require_vacant(Path(out))
    elif heads is not None or fine_tune or fold_mean:
        flag = "--heads" if heads is not None else "--fine-tune" if fine_tune else "--fold-mean"
        raise InputError(f"{flag} needs a folder for the smaller model", "add -o DIR")


def _require_searchable(opened: OpenModel, selection_set: Experiment, loss: float, n_orders: int) -> None:
    """Raise an error for invalid limits, or if the model is no better than guessing on the selection examples."""
    if not (0 <= loss < 1 or (loss >= 0 and not selection_set.metric.in_points)):
        raise InputError(
            f"--loss must be in [0, 1), got {loss}",
            "it is the largest drop in the score that removing heads may cause; 0.01 is one point",
        )
    if not 1 <= n_orders <= MOST_ORDERS:
        raise InputError(
            f"--orders must be from 1 to {MOST_ORDERS:,}, got {n_orders:,}",
            "it is the number of random orders in which heads are removed",
        )
    scores = run_interventions(selection_set, [])
    clean, baseline = float(selection_set.aggregate(scores.clean)), scores.majority_baseline
    if selection_set.metric.is_loss and clean <= baseline:
        raise InputError(
            f"{opened.name} is no better than guessing, so removing heads cannot make it worse: its loss on "
            f"{selection_set.data} is {-clean:.3f} nats, and that of guessing is {-baseline:.3f}",
            "choose data that the model was trained for",
        )
    constant = selection_set.majority_baseline
    if selection_set.metric.in_points and clean - constant < CRITICAL:
        raise InputError(
            f"{opened.name} is hardly better than guessing, so removing heads cannot make it worse: it scores "
            f"{clean:.3f} on {selection_set.data}, and always giving the same answer scores {constant:.3f}",
            "choose a more accurate model, or a sequence length at which this one is accurate",
        )


def _known_ablation(opened: OpenModel, metric: str) -> Ablation | None:
    """Return the stored ablation of the same weights with the same metric and all replacements, or None."""
    for name in ("ablation-examples", "ablation") if opened.has_output else ():
        try:
            result = opened.output.read_result(name, Ablation)
        except HeadcountError:  # no such file, or one of another version
            continue
        is_whole = set(result.replacements) == set(REPLACEMENTS.names())
        if is_whole and (result.weights_sha256, result.metric) == (opened.weights_sha256, metric):
            return result
    return None
