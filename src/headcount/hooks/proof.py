"""Show that the hooks act on a model, before anything is concluded from them.

At every site, on a few rows:

    the heads' contributions and the bias add up to the block's output   (z is the heads side by side, nothing else)
    all gates shut leave the bias alone                                  (nothing passes around the projection's input)
    noise in place of z changes the model's output                       (the block's output is used at all)
    noise in one row changes the output of that row alone                (rows come first, and do not mix)
    each head's slice of z depends on its own attention pattern alone    (a head is a head: own_attention.py)
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
"""Largest difference between two ways to compute the same in single precision, as a share of the largest value."""
COARSE = 8
"""The same for half precision, in units of its rounding."""
ROWS = 4


@dataclass(frozen=True)
class SiteProof:
    """What was found at one site."""

    site: str
    sum_error: float
    """Block output against contributions plus bias, as a share of the largest value."""
    shut_error: float
    """Block output with all gates shut against the bias, likewise."""
    output_change: float
    """How much noise in place of z changes the model's output."""
    cross_row_effect: float
    """How much noise in one row changes the output of the others."""
    follows_attention: bool = False
    """Whether each head's slice of z was seen to depend on its own attention pattern alone; False: not checked."""


def prove(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], at: Collection[HeadSite] | None = None
) -> tuple[SiteProof, ...]:
    """Prove the hooks at every site, or `at` those where something is done; an error says which one failed and how."""
    few, at = [each[:ROWS] for each in inputs], tuple(sites if at is None else at)
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
    """Measure at one site what the gates do, in three passes."""
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
    if n_rows > 1 and len(logits) == n_rows:  # what noise in the first row does to the others
        first_shut = torch.ones(n_rows, n_heads)
        first_shut[0] = 0.0
        with Gates(sites, {name: first_shut}, {name: noise}):
            cross_row_effect = difference(first_tensor(model(*inputs))[1:], logits[1:])
    return SiteProof(str(name), sum_error, shut_error, output_change, cross_row_effect)


def _position_fault(contributions: Tensor) -> str:
    """Say so if slice i of z reaches position i of the block's output alone: then the axis counts positions."""
    if contributions.dim() != 4 or contributions.shape[1] != contributions.shape[2] or contributions.shape[1] < 2:
        return ""
    is_reached = (contributions != 0).any(dim=-1).any(dim=0)  # [query, head]
    if torch.equal(is_reached, torch.eye(len(is_reached), dtype=torch.bool, device=is_reached.device)):
        return "each slice of z reaches one position of the output alone, so head_axis counts positions"
    return ""


def _advice(site: Site, z: Tensor) -> list[str]:
    """Say how to name heads whose slices of z are not heads."""
    n_heads, axes = len(site.heads), list(z.flatten(start_dim=-2).shape)
    advice = [f"an ablation here would not remove one head: check n_heads={n_heads}, the path and head_axis"]
    if site.head_axis is None and z.dim() == 5:
        axis = 2 if axes[2] == n_heads != axes[1] else 1
        advice.append(f"z has shape {axes}: if axis {axis} counts heads, give n_heads={axes[axis]}, head_axis={axis}")
    return advice


def _require(found: SiteProof, most: float, layers: Sequence[str]) -> None:
    block = f"if this is a whole attention block, name its output projection: {', '.join(layers)}" if layers else ""
    faults = [
        (found.sum_error, f"its heads' contributions miss its output by {found.sum_error:.1e} of the largest value"),
        (found.shut_error, f"with all heads silent it still adds more than its bias (by {found.shut_error:.1e})"),
        (0.0 if found.output_change > 0 else 1.0, "noise in place of its heads changes nothing in the model's output"),
        (found.cross_row_effect, "noise in one row changes the output of other rows: rows do not come first, or mix"),
    ]
    for error, why in faults:
        if not error <= most:  # NaN fails too
            raise InstrumentError(
                f"the instrument does not act at {found.site}: {why}",
                "so ablating heads there would prove nothing",
                *filter(None, [block]),
            )


def tolerance(dtype: torch.dtype) -> float:
    """What two ways to compute the same may differ by, as a share of the largest value."""
    return max(TOLERANCE, COARSE * torch.finfo(dtype).eps) if dtype in (torch.float16, torch.bfloat16) else TOLERANCE


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    largest = max(float(one.abs().max()), float(other.abs().max()), torch.finfo(one.dtype).tiny)
    return float((one - other).abs().max()) / largest


def first_tensor(output: Any) -> Tensor:
    """A model's output, or the first tensor in it."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, dict) else output
    return next(part for part in parts if isinstance(part, Tensor))
