"""Prove that hooks act on a model, before measurements rely on them.

The proof checks five statements at every attention block, on a few rows (examples). z is the input of the block's
output projection, and a closed gate replaces a head's slice of z by zeros:

    the heads' contributions and the bias sum to the block's output      (z consists of the heads' outputs only)
    with all gates closed, the block outputs its bias                    (nothing bypasses the projection's input)
    noise in place of z changes the model's output, or the model         (no other code computes the block)
        uses neither z nor the projection outside of that call
    noise in one row changes the output of that row only                 (rows are the first axis, and do not mix)
    each head's slice of z depends only on its own attention pattern     (each slice is a head: head_check.py)

If the model does not use a block's output at all, this is not an error: its heads truly have no effect (`is_used`).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import Capture, Gates, SharedSiteCounter, eval_mode, input_of, unfused
from headcount.hooks.head_check import check_heads
from headcount.hooks.parameters import ParameterProjection
from headcount.hooks.sites import Site, Sites, layers_inside

TOLERANCE = 1e-4
"""Largest relative difference between two equivalent computations in single precision."""
COARSE = 8
"""Largest relative difference between two equivalent computations in half precision, in machine epsilons."""
ROWS = 4


@dataclass(frozen=True)
class SiteProof:
    """The measurements at one attention block which prove that gates act on its heads."""

    site: str
    sum_error: float
    """Relative difference between the block's output and the sum of its heads' contributions and its bias."""
    shut_error: float
    """Relative difference between the bias and the block's output when all its heads are ablated."""
    output_change: float
    """Largest change of the model's output when noise replaces z, the outputs of the block's heads."""
    cross_row_effect: float
    """Relative change of the outputs of other rows (examples) when noise replaces the head outputs in one row."""
    follows_attention: bool = False
    """Whether each head was shown to depend on its own attention pattern only; False if this could not be checked."""
    is_used: bool = True
    """Whether noise in place of the head outputs changes the model's output; if not, no head here has an effect."""


def prove(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], at: Collection[HeadSite] | None = None
) -> tuple[SiteProof, ...]:
    """Prove that hooks act on the heads of all attention blocks, or of those in `at`, and return the measurements.

    If a check fails, raise an error that names the attention block and the check.
    """
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
            bypass = "" if proof.is_used else _bypass(model, sites, name, few)
            _require(proof, tolerance(clean.output(name).dtype), layers_inside(sites[name].projection), bypass)
            if fault := checks[name].fault or _position_fault(clean.contributions(name)):
                raise InstrumentError(
                    f"the slices of z (the input of the output projection) at {name} are not the outputs of heads: "
                    f"{fault}",
                    *_advice(sites[name], clean.z(name)),
                )
            proofs.append(proof)
    return tuple(proofs)


def _prove_site(
    model: nn.Module, sites: Sites, name: HeadSite, inputs: Sequence[Tensor], clean: Capture, logits: Tensor
) -> SiteProof:
    """Return the measurements of the proof at one attention block, from three forward passes with gates.

    `clean` holds the head outputs of a pass without gates, and `logits` the output of that pass.
    """
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
    return SiteProof(str(name), sum_error, shut_error, output_change, cross_row_effect, is_used=output_change != 0)


def _position_fault(contributions: Tensor) -> str:
    """Return a message if the axis that should count heads counts positions, else an empty text.

    The axis counts positions if slice i of the head outputs contributes only to position i of the block's output.
    """
    if contributions.dim() != 4 or contributions.shape[1] != contributions.shape[2] or contributions.shape[1] < 2:
        return ""
    is_reached = (contributions != 0).any(dim=-1).any(dim=0)  # [query, head]
    if torch.equal(is_reached, torch.eye(len(is_reached), dtype=torch.bool, device=is_reached.device)):
        return (
            "each slice of z reaches one position of the output alone, so head_axis is the axis that counts positions"
        )
    return ""


def _advice(site: Site, z: Tensor) -> list[str]:
    """Return advice on how to specify an attention block's heads if the slices of z are not heads."""
    n_heads, axes = len(site.heads), list(z.flatten(start_dim=-2).shape)
    advice = [f"an ablation would not remove exactly one head: check n_heads={n_heads}, the path and head_axis"]
    if site.head_axis is None and z.dim() == 5:
        axis = 2 if axes[2] == n_heads != axes[1] else 1
        advice.append(f"z has shape {axes}: if axis {axis} counts heads, give n_heads={axes[axis]}, head_axis={axis}")
    return advice


def _require(proof: SiteProof, most: float, layers: Sequence[str], bypass: str) -> None:
    """Raise an error for the first check of an attention block that failed.

    `most` is the tolerance, and `layers` are paths of possible output projections, for the advice. `bypass` says which
    other code computes the block; it is empty if there is none.
    """
    block = f"if this is a whole attention block, name its output projection: {', '.join(layers)}" if layers else ""
    has_number = proof.output_change >= 0
    faults = [
        (
            proof.sum_error,
            "the contributions of the heads and the bias do not sum to the output of the block (they differ by "
            f"{proof.sum_error:.1e} of the largest value)",
        ),
        (
            proof.shut_error,
            "with all heads ablated, the output of the block is not the bias of its output projection (difference: "
            f"{proof.shut_error:.1e})",
        ),
        (0.0 if has_number else 1.0, "noise in place of the head outputs makes the model's output NaN"),
        (1.0 if bypass else 0.0, f"noise in place of the head outputs does not change the model's output, {bypass}"),
        (
            proof.cross_row_effect,
            "noise in one example changes the outputs of other examples: the first axis does not count examples, or "
            "the model mixes them",
        ),
    ]
    for error, why in faults:
        if not error <= most:  # NaN fails too
            raise InstrumentError(
                f"ablations do not act as they should at {proof.site}: {why}",
                "check that the path given to Sites leads to the output projection, which the model must call",
                *filter(None, [block]),
            )


# --- blocks whose output has no effect --------------------------------------------------------------------------------

# Noise in place of z has no effect if the model does not use the block's output: the weights of the projection are 0,
# nothing reads what it writes, or the model drops its result. It also has no effect if the projection is called, but
# other code computes the block. In the second case every head would seem to cost nothing, so it has to be an error.
#
# Gradients tell the two apart. The result of the projection's call is detached. If the model's output still depends on
# z or on the weights of the projection, then other code uses them: the same weights (a fused path), or z with a copy of
# the weights. The graph decides, not the size of the gradient, which may be 0 by chance.
#
# Gradients cannot show code that uses neither this z nor these weights, such as a second copy of the whole block, which
# computes its own z with copied weights. Nor can they show a path outside of autograd, such as NumPy or a `no_grad`
# block after the projection. A model that records no gradients at all is refused. Weights that other modules share are
# not followed, because those modules use them rightly.


def _bypass(model: nn.Module, sites: Sites, name: HeadSite, inputs: Sequence[Tensor]) -> str:
    """Describe other code by which the model's output depends on an attention block, besides its projection's call.

    Return an empty text if there is no such code.
    """
    weights = _own_weights(model, sites, name)
    try:
        gradients = _gradients_around(model, sites, name, inputs, weights)
    except RuntimeError:  # the model calls .numpy(), changes z in place, or has weights that cannot record gradients
        gradients = None
    if gradients is None:
        return "and without gradients it cannot be decided whether other code computes the block"
    of_z, *of_weights = (gradient is not None for gradient in gradients)
    users = [*(["z"] if of_z else []), *(["the weights of its projection"] if any(of_weights) else [])]
    return f"but other code uses {' and '.join(users)}, so it may compute the block again" if users else ""


def _gradients_around(
    model: nn.Module, sites: Sites, name: HeadSite, inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> Sequence[Tensor | None] | None:
    """Return the gradients of the model's output with respect to z and `weights`, without the projection's own call.

    The result of the projection's call is detached, so only other uses of the tensors count. A gradient is None if the
    output does not depend on the tensor. Return None if the model records no gradients.
    """
    turns, seen = SharedSiteCounter(sites), list[Tensor]()

    def keep_z(module: nn.Module, args: tuple[Any, ...]) -> None:
        if turns.next(module) == name and torch.is_grad_enabled():
            z = input_of(name, args)
            seen.append(z if z.requires_grad else z.requires_grad_())

    def detach(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return output.detach() if seen and args[0] is seen[0] else None

    projection = sites[name].projection
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_all_weights_recorded(model))
        stack.enter_context(unfused(sites))
        stack.callback(projection.register_forward_pre_hook(keep_z).remove)
        stack.callback(projection.register_forward_hook(detach).remove)
        output = first_tensor(model(*[tensor.clone() for tensor in inputs]))
        if not seen or not output.requires_grad:
            return None
        return torch.autograd.grad(output.sum(), [seen[0], *weights], allow_unused=True)


def _own_weights(model: nn.Module, sites: Sites, name: HeadSite) -> list[Tensor]:
    """Return the weights of an attention block's output projection, without weights that other modules share."""
    projection = sites[name].projection
    if len(sites.projections[projection]) > 1:
        return []
    if isinstance(projection, ParameterProjection):
        return [projection.weight]
    n_owners = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    return [weight for weight in projection.parameters() if n_owners[id(weight)] == 1]


@contextmanager
def _all_weights_recorded(model: nn.Module) -> Iterator[None]:
    """Return a context in which gradients of all weights are recorded, also of frozen weights."""
    frozen = [weight for weight in model.parameters() if not weight.requires_grad and weight.is_floating_point()]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative difference allowed between two equivalent computations in this dtype."""
    return max(TOLERANCE, COARSE * torch.finfo(dtype).eps) if dtype in (torch.float16, torch.bfloat16) else TOLERANCE


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference of two tensors, divided by their largest absolute value."""
    largest = max(float(one.abs().max()), float(other.abs().max()), torch.finfo(one.dtype).tiny)
    return float((one - other).abs().max()) / largest


def first_tensor(output: Any) -> Tensor:
    """Return a model's output if it is a tensor, else the first tensor inside the output."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, dict) else output
    return next(part for part in parts if isinstance(part, Tensor))
