"""Cut heads out of a model that others wrote, and keep what is left as a folder; proven before and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headcount.errors import CheckFailed, InputError
from headcount.external.adapter import Adapted
from headcount.external.adapter_folder import save_cut
from headcount.external.hugging_face import save_model
from headcount.external.models import ExternalModel, load_external
from headcount.heads import HeadId
from headcount.hooks.wrapping import wrap
from headcount.surgery.cutting import Cut, Inputs, Means, Size, cut_heads, fold, mean_outputs
from headcount.surgery.proof import prove_cut, prove_folded
from headcount.surgery.tracing import cut_traced

TOLERANCE = 1e-5
"""Most that what is written and what is read may differ, as a share of the largest value."""


def prune_external(
    model: ExternalModel,
    heads: Iterable[str | HeadId],
    out: Path,
    inputs: Sequence[Tensor],
    means: Sequence[Inputs] = (),
    n_means: int = 0,
) -> Cut[ExternalModel]:
    """Cut these heads out, proven on `inputs`; write a folder, read it, and prove it again.

    If there are batches to take `means` over, what the heads output on average over their `n_means` examples stays in
    the biases.
    """
    gone = tuple(dict.fromkeys(model.find_head(head) for head in heads))
    if len(gone) == len(model.sites.heads):
        raise InputError(f"all heads of {model.name} would go", "lower --loss, or name the heads: --heads")
    whole: Any = model.model
    average = mean_outputs(whole, model.sites, means) if means else None
    kept = whole if average is None else fold(whole, gone, average, n_means)
    cut = cut_traced(kept, gone, inputs) if isinstance(kept, Adapted) else cut_heads(kept.model, gone)
    difference = _proven(whole, kept, cut, gone, average, inputs)
    if isinstance(cut, Adapted):
        save_cut(cut, model.weights_sha256, out, inputs, folded_over=n_means)
    else:
        save_model(cut, out, model.tokenizer)
    device = next(model.inner.parameters()).device
    is_adapted = isinstance(whole, Adapted)  # whose code was run already, and is asked to be run again
    left = load_external(out, device, length=model.length, run_adapter=is_adapted)
    again = _proven(whole, kept, left.model if is_adapted else left.inner, gone, average, inputs)
    if not again <= TOLERANCE:
        raise CheckFailed(f"what was written to {out} differs by {again:.1e} from what was cut", "please report this")
    return Cut(left, gone, max(difference, again), Size.of(model.inner), Size.of(left.inner), n_means)


def _proven(
    whole: nn.Module,
    kept: nn.Module,
    cut: nn.Module,
    gone: Sequence[HeadId],
    means: Means | None,
    inputs: Sequence[Tensor],
) -> float:
    """How far the cut model is from the whole one with those heads ablated, or at their means."""
    found = prove_cut(wrap(kept), cut, gone, inputs)
    return found if means is None else prove_folded(wrap(whole), cut, gone, means, inputs)
