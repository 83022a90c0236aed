"""Show that the hooks act on a model, before anything is concluded from them.

At every site, on a few rows:

    the heads' contributions and the bias add up to the block's output   (z is the heads side by side, nothing else)
    all gates shut leave the bias alone                                  (nothing passes around the projection's input)
    noise in place of z changes the model's output                       (the block's output is used at all)
    noise in one row changes the output of that row alone                (rows come first, and do not mix)
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import Capture, Gates, eval_mode
from headcount.hooks.sites import Sites

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


def prove(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], at: Collection[HeadSite] | None = None
) -> tuple[SiteProof, ...]:
    """Proof for every site, or for those `at` which something is done; an error says which one failed and how."""
    few = [each[:ROWS] for each in inputs]
    n_rows, proofs = len(few[0]), []
    with eval_mode(model), torch.no_grad():
        with Capture(sites) as clean:
            logits = first_tensor(model(*few))
        for name in sites if at is None else at:
            site = sites[name]
            z, output, bias = clean.z(name), clean.output(name), clean.bias(name)
            sum_error = difference(output, clean.contributions(name).sum(dim=-2) + bias)
            shut = {name: torch.zeros(1, len(site.heads))}
            with Gates(sites, shut), Capture(sites) as ablated:
                model(*few)
            shut_error = difference(ablated.output(name), bias.expand_as(output))
            noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z) * z.std().clamp(min=1.0)
            with Gates(sites, shut, {name: noise}):
                output_change = float((first_tensor(model(*few)) - logits).abs().max())
            cross_row_effect = 0.0
            if n_rows > 1 and len(logits) == n_rows:  # what noise in the first row does to the others
                first_shut = torch.ones(n_rows, len(site.heads))
                first_shut[0] = 0.0
                with Gates(sites, {name: first_shut}, {name: noise}):
                    cross_row_effect = difference(first_tensor(model(*few))[1:], logits[1:])
            found = SiteProof(str(name), sum_error, shut_error, output_change, cross_row_effect)
            _require(found, tolerance(output.dtype))
            proofs.append(found)
    return tuple(proofs)


def _require(found: SiteProof, most: float) -> None:
    faults = [
        (found.sum_error, f"its heads' contributions miss its output by {found.sum_error:.1e} of the largest value"),
        (found.shut_error, f"with all heads silent it still adds more than its bias (by {found.shut_error:.1e})"),
        (0.0 if found.output_change > 0 else 1.0, "noise in place of its heads changes nothing in the model's output"),
        (found.cross_row_effect, "noise in one row changes the output of other rows: rows do not come first, or mix"),
    ]
    for error, why in faults:
        if not error <= most:  # NaN fails too
            raise InstrumentError(
                f"the instrument does not act at {found.site}: {why}", "so ablating heads there would prove nothing"
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
