"""Prove that hooks act on a model, before measurements rely on them.

The proof checks five statements at every site, on a few rows:

    the heads' contributions and the bias sum to the block's output      (z consists of the heads' outputs only)
    with all gates closed, the block outputs its bias                    (nothing bypasses the projection's input)
    noise in place of z changes the model's output                       (the model uses the block's output)
    noise in one row changes the output of that row only                 (rows are the first axis, and do not mix)
    each head's slice of z depends only on its own attention pattern     (each slice is a head: own_attention.py)
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import Capture, Gates, eval_mode
from headcount.hooks.own_attention import check_heads
from headcount.hooks.sites import Site, Sites, layers_inside

TOLERANCE = 1e-4
"""Largest relative difference between two equivalent computations in single precision."""
COARSE = 8
"""Largest relative difference in half precision, in units of its machine epsilon."""
ROWS = 4


@dataclass(frozen=True)
class SiteProof:
    """What the proof measured at one attention block."""

    site: str
    sum_error: float
    """Relative difference between the block's output and contributions plus bias."""
    shut_error: float
    """Relative difference between the block's output with all gates closed and the bias."""
    output_change: float
    """Largest change of the model's output when noise replaces z."""
    cross_row_effect: float
    """Relative change of other rows' outputs when noise replaces z in one row."""
    follows_attention: bool = False
    """Whether the check of own_attention.py was made and passed; False if it could not be made."""


def prove(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], at: Collection[HeadSite] | None = None
) -> tuple[SiteProof, ...]:
    """Prove that hooks act at all sites, or only those in `at`; an error names the site and the failed check."""
    few, at = [tensor[:ROWS] for tensor in inputs], tuple(sites if at is None else at)
    proofs = []
    with eval_mode(model), torch.no_grad():
        with Capture(sites) as clean:
            logits = first_tensor(model(*few))
        checks = check_heads(model, sites, few, at)
        for name in at:
            proof = replace(
                _prove_site(model, sites, name, few, clean, logits), follows_attention=checks[name].is_checked
            )
            _require(proof, tolerance(clean.output(name).dtype), layers_inside(sites[name].projection))
            if fault := checks[name].fault or _position_fault(clean.contributions(name)):
                raise InstrumentError(
                    f"the heads at {name} are not heads: {fault}", *_advice(sites[name], clean.z(name))
                )
            proofs.append(proof)
    return tuple(proofs)


def _prove_site(
    model: nn.Module, sites: Sites, name: HeadSite, inputs: Sequence[Tensor], clean: Capture, logits: Tensor
) -> SiteProof:
    """Measure the effect of gates at one site, in three passes."""
    n_rows, n_heads = len(inputs[0]), len(sites[name].heads)
    z, output, bias = clean.z(name), clean.output(name), clean.bias(name)
    sum_error = difference(output, clean.contributions(name).sum(dim=-2) + bias)
    shut = {name: torch.zeros(1, n_heads)}
    with Gates(sites, shut), Capture(sites) as ablated:
        model(*inputs)
    shut_error = difference(ablated.output(name), bias.expand_as(output))
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z) * z.std().clamp(min=1.0)
    with Gates(sites, shut, {name: noise}):
        output_change = float((first_tensor(model(*inputs)) - logits).abs().max())
    cross_row_effect = 0.0
    if n_rows > 1 and len(logits) == n_rows:  # put noise into the first row, and compare the other rows
        first_shut = torch.ones(n_rows, n_heads)
        first_shut[0] = 0.0
        with Gates(sites, {name: first_shut}, {name: noise}):
            cross_row_effect = difference(first_tensor(model(*inputs))[1:], logits[1:])
    return SiteProof(str(name), sum_error, shut_error, output_change, cross_row_effect)


def _position_fault(contributions: Tensor) -> str:
    """Return a message if slice i of z reaches only position i of the output; the axis then counts positions."""
    if contributions.dim() != 4 or contributions.shape[1] != contributions.shape[2] or contributions.shape[1] < 2:
        return ""
    is_reached = (contributions != 0).any(dim=-1).any(dim=0)  # [query, head]
    if torch.equal(is_reached, torch.eye(len(is_reached), dtype=torch.bool, device=is_reached.device)):
        return "each slice of z reaches one position of the output alone, so head_axis counts positions"
    return ""


def _advice(site: Site, z: Tensor) -> list[str]:
    """Return advice on how to specify the sites if slices of z are not heads."""
    n_heads, axes = len(site.heads), list(z.flatten(start_dim=-2).shape)
    advice = [f"an ablation here would not remove one head: check n_heads={n_heads}, the path and head_axis"]
    if site.head_axis is None and z.dim() == 5:
        axis = 2 if axes[2] == n_heads != axes[1] else 1
        advice.append(f"z has shape {axes}: if axis {axis} counts heads, give n_heads={axes[axis]}, head_axis={axis}")
    return advice


def _require(proof: SiteProof, most: float, layers: Sequence[str]) -> None:
    """Raise an error for the first check that failed at a site."""
    block = f"if this is a whole attention block, name its output projection: {', '.join(layers)}" if layers else ""
    faults = [
        (proof.sum_error, f"its heads' contributions miss its output by {proof.sum_error:.1e} of the largest value"),
        (proof.shut_error, f"with all heads off, it still adds more than its bias (by {proof.shut_error:.1e})"),
        (0.0 if proof.output_change > 0 else 1.0, "noise in place of its heads does not change the model's output"),
        (proof.cross_row_effect, "noise in one row changes other rows: rows are not the first axis, or mix"),
    ]
    for error, why in faults:
        if not error <= most:  # NaN fails too
            raise InstrumentError(
                f"gates do not act as they should at {proof.site}: {why}",
                "an ablation of its heads would measure something else",
                *filter(None, [block]),
            )


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative difference allowed between two equivalent computations."""
    return max(TOLERANCE, COARSE * torch.finfo(dtype).eps) if dtype in (torch.float16, torch.bfloat16) else TOLERANCE


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference divided by the largest absolute value."""
    largest = max(float(one.abs().max()), float(other.abs().max()), torch.finfo(one.dtype).tiny)
    return float((one - other).abs().max()) / largest


def first_tensor(output: Any) -> Tensor:
    """Return a model's output if it is a tensor, else the first tensor in it."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, dict) else output
    return next(part for part in parts if isinstance(part, Tensor))
