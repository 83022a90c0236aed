"""Ablate, scale or replace heads during a forward pass, and read their outputs.

    with Gates(sites, closed_gates(sites, [HeadId.parse("E0H1")])):
        model(source, decoder_input)                       # without that head
    with Capture(sites) as seen:
        model(source, decoder_input)
    seen.z(site), seen.contributions(site)                 # the heads' outputs, before and after the projection

z is the input of an attention block's output projection: the outputs of all its heads. Gates replace z by
g z + (1 - g) r. The gate g has one value per row (example) and head: 1 keeps the head, 0 ablates it, so one batch can
hold many experiments. The replacement r (default 0) has values per row and position. A gate that is 1 for all rows
installs no hook, so the output stays bit-identical. Contexts can be nested, and restore the model even after an
exception.

An intervention without effect is an error: leaving the context raises if no forward pass reached the gates.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.errors import InputError, InstrumentError, shortened
from headcount.heads import HeadId, HeadSite
from headcount.hooks.parameters import ParameterProjection, Product, products_called
from headcount.hooks.sites import Sites, layers_inside

Gate = Float[Tensor, "#row head"]
Values = Float[Tensor, "#row #query head d_head"]
"""Values that replace the outputs of heads whose gate is closed (below 1)."""
ValuesOf = Callable[[Float[Tensor, "row query head d_head"]], Values | None]
"""A function that computes replacement values from the heads' own outputs in the same forward pass."""


def closed_gates(sites: Sites, heads: Iterable[HeadId]) -> dict[HeadSite, Gate]:
    """Return gates that ablate these heads in every row: 0 for the heads, 1 for other heads of their attention blocks.

    Attention blocks without any of the heads get no gate.
    """
    gates = {}
    for site, places in sites.head_slots(heads).items():
        gates[site] = torch.ones(1, len(sites[site].heads))
        gates[site][:, list(places)] = 0.0
    return gates


class Gates:
    """A context in which gates scale or replace the outputs of heads: 1 keeps a head's output, 0 ablates the head."""

    def __init__(
        self,
        sites: Sites,
        gates: Mapping[HeadSite, Gate],
        replacements: Mapping[HeadSite, Values | ValuesOf] | None = None,
        *,
        allow_prefix: bool = False,
        skipped: Mapping[nn.Module, int] | None = None,
    ) -> None:
        """Check that every gate belongs to an attention block of the model and has one column per head.

        With `allow_prefix`, a forward pass may have fewer positions than a replacement, as in decoding without a cache.
        (With a cache, each pass has one position and would always get the replacement of position 0.) `skipped` counts
        the calls of output projections that a pass replayed from a cache leaves out.
        """
        self._sites, self._gates, self._replacements = sites, dict(gates), dict(replacements or {})
        self._allow_prefix, self._skipped = allow_prefix, skipped
        self.calls: Counter[HeadSite] = Counter()
        """How often the output projection of each gated attention block was called inside the context."""
        self._stack = ExitStack()
        for name, gate in self._gates.items():
            if name not in sites:
                raise InputError(
                    f"no attention block {str(name)!r} in this model", f"it has: {', '.join(map(str, sites))}"
                )
            n_heads = len(sites[name].heads)
            if gate.dim() != 2 or gate.shape[1] != n_heads:
                wanted = (
                    f"give a tensor of shape [examples, {n_heads}] or [1, {n_heads}], with one column for each head"
                )
                raise InputError(
                    f"the gates at {name} (factors of its heads: 1 keeps a head, 0 ablates it) have the wrong shape "
                    f"{tuple(gate.shape)}",
                    wanted,
                )
        if unknown := set(self._replacements) - set(self._gates):
            raise InputError(
                f"values to replace head outputs are given for {sorted(map(str, unknown))[0]}, but no gates, which "
                "say which heads are replaced",
                "give gates for this attention block, too: a factor for each head (1 keeps its output, 0 replaces it)",
            )

    def __enter__(self) -> Self:
        self.calls.clear()
        self._turns = SharedSiteCounter(self._sites, self._skipped)
        self._acting = {
            name: gate for name, gate in self._gates.items() if gate.requires_grad or not bool((gate == 1).all())
        }
        for name in self._gates.keys() - self._acting.keys():
            self.calls[name] = 0  # an open gate needs no hook and no check
        self._stack.enter_context(unfused(self._sites))
        for projection in dict.fromkeys(self._sites[name].projection for name in self._acting):
            self._stack.callback(projection.register_forward_pre_hook(self._act, with_kwargs=True).remove)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._stack.close()
        missed = [name for name in self._gates if name not in self.calls]
        if error_type is None and self._acting and missed:
            raise InstrumentError(
                f"no head was ablated at {', '.join(map(str, missed))}: its output projection was never called",
                "make a forward pass inside the `with` block; if one was made, the model does not call this module "
                "(it uses a fused path, or another module)",
            )
        if error_type is None and (unfinished := self._turns.unfinished()):
            raise InstrumentError(
                f"{unfinished[0]} shares its output projection with other attention blocks, but the projection was not "
                "called once per block in every pass",
                "headcount cannot tell which call belongs to which block: give inputs on which every block runs once",
            )

    def _act(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        name = self._turns.next(module)
        if name not in self._acting:
            return None
        self.calls[name] += 1
        z, value, gate = input_of(name, args), self._replacements.get(name), self._acting[name]
        axis = self._sites[name].head_axis
        if value is not None and not isinstance(value, Tensor):
            value = value(split_heads(name, z, gate.shape[1], axis))
        elif value is not None and self._allow_prefix:
            value = value[:, : split_heads(name, z, gate.shape[1], axis).shape[1]]
        return (gated(name, z, gate, value, axis), *args[1:]), kwargs


def input_of(name: HeadSite, args: tuple[Any, ...]) -> Tensor:
    """Return z (the outputs of all heads) from the arguments of a call of the output projection."""
    if not args or not isinstance(args[0], Tensor):
        what = f"the output projection of {name} was not called with a tensor"
        raise InstrumentError(
            what,
            "headcount ablates heads in the input tensor of the output projection; if this module is a whole "
            "attention block, name the output projection inside it",
        )
    return args[0]


def split_heads(
    name: HeadSite, z: Tensor, n_heads: int, head_axis: int | None = None
) -> Float[Tensor, "row query head d_head"]:
    """Return z, the input of an output projection, as a view [row, query, head, d_head] with one output per head.

    `head_axis` is the axis of z that counts heads; None if the heads are concatenated in the last axis.
    """
    if head_axis is not None:
        if not -z.dim() <= head_axis < z.dim() or z.shape[head_axis] != n_heads:
            raise InstrumentError(
                f"head outputs at {name} have shape {tuple(z.shape)}: the length of axis {head_axis} is not "
                f"{n_heads}, the number of heads",
                "give head_axis=1 for [batch, head, position, d_head], 2 for [batch, position, head, d_head], and "
                "leave it out if the heads are concatenated in the last axis",
            )
        return z.movedim(head_axis, -2)
    if z.shape[-1] % n_heads or z.dim() < 2:
        raise InstrumentError(
            f"head outputs at {name} have shape {tuple(z.shape)}: the last axis cannot be divided evenly among "
            f"{n_heads} heads"
        )
    return z.unflatten(-1, (n_heads, -1))


def join_heads(z_BQHE: Float[Tensor, "row query head d_head"], head_axis: int | None = None) -> Tensor:
    """Undo `split_heads`: return head outputs in the shape that the output projection takes."""
    return z_BQHE.flatten(start_dim=-2) if head_axis is None else z_BQHE.movedim(-2, head_axis)


def gated(name: HeadSite, z: Tensor, gate: Gate, value: Values | None, head_axis: int | None = None) -> Tensor:
    """Return g z + (1 - g) r for head outputs z, `gate` g and replacement `value` r; None for r means 0.

    Where the gate is 1, z is unchanged bit for bit. `name` is the attention block, for error messages.
    """
    z_BQHE = split_heads(name, z, gate.shape[1], head_axis)
    rows = (len(z), len(gate))
    if rows[0] != rows[1] and 1 not in rows:
        raise InstrumentError(
            f"the gates at {name} (the factors of its heads) have {rows[1]} rows, but the batch has {rows[0]} examples",
            "give one row for all examples, or one row for each example",
        )
    g = gate.to(z)[(slice(None), *[None] * (z_BQHE.dim() - 3), slice(None), None)]
    if value is None:
        return join_heads(z_BQHE * g, head_axis)
    mixed = z_BQHE * g + (1 - g) * value.to(z)
    return join_heads(torch.where(g == 1, z_BQHE, mixed), head_axis)  # 1 z + 0 r would turn -0 into 0


def project(projection: nn.Module, z: Tensor, product: Product | None = None) -> Tensor:
    """Return the output projection of z (head outputs) without calling the module, which would trigger hooks again.

    z is converted to the dtype of the weights, because the two differ under autocast. If the projection is a parameter
    instead of a module, `product` is the function of z that the model computed with the parameter.
    """
    weight = getattr(projection, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point():
        z = z.to(weight.dtype)
    projected: Tensor = (product or projection.forward)(z)
    return projected


class Capture:
    """A context that keeps the input z and the output of every output projection during exactly one forward pass."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._kept: dict[HeadSite, list[tuple[Tensor, Tensor, Product | None]]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._turns = SharedSiteCounter(self._sites)
        self._stack.enter_context(unfused(self._sites))
        for projection in self._sites.projections:
            self._stack.callback(projection.register_forward_hook(self._keep).remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _keep(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        name = self._turns.next(module)
        if not isinstance(output, Tensor):
            raise _not_a_projection(name, module, f"returns a {type(output).__name__}, not a tensor")
        # Copies, because the model may change its tensors in place later.
        kept = input_of(name, args).clone(), output.clone(), getattr(module, "product", None)
        self._kept.setdefault(name, []).append(kept)

    def z(self, site: HeadSite) -> Float[Tensor, "row query head d_head"]:
        """Return z of one attention block: the output of each head before the output projection mixes the heads."""
        return split_heads(site, self._only_call(site)[0], len(self._sites[site].heads), self._sites[site].head_axis)

    def output(self, site: HeadSite) -> Float[Tensor, "row query d_model"]:
        """Return the output of one attention block, which the model adds to the residual stream."""
        return self._only_call(site)[1]

    def contributions(self, site: HeadSite) -> Float[Tensor, "row query head d_model"]:
        """Return what each head of one attention block adds to the residual stream (its projected output).

        The contributions of all heads and the bias add up to the block's output.

        Contributions are computed by the projection itself, one head at a time, so any layout of its weights works.
        """
        z, bias, contributions = self.z(site), self.bias(site), []
        for i in range(z.shape[-2]):
            one_head = torch.zeros_like(z)
            one_head[..., i, :] = z[..., i, :]
            joined = join_heads(one_head, self._sites[site].head_axis)
            contributions.append(self._projected(site, joined) - bias)
        return torch.stack(contributions, dim=-2)

    def bias(self, site: HeadSite) -> Float[Tensor, " d_model"]:
        """Return the output of an attention block when all its heads are ablated: the projection of zeros.

        If the projection is a parameter, or if heads have an axis of their own, the bias has the shape of the block's
        output.
        """
        z, projection = self._only_call(site)[0], self._sites[site].projection
        if self._sites[site].head_axis is not None or isinstance(projection, ParameterProjection):
            return self._projected(site, torch.zeros_like(z))
        return self._projected(site, z.new_zeros(1, z.shape[-1]))[0]

    def _projected(self, site: HeadSite, z: Tensor) -> Tensor:
        projection = self._sites[site].projection
        try:
            return project(projection, z, self._only_call(site)[2])
        except (TypeError, RuntimeError, ValueError, IndexError, AttributeError) as error:
            if not layers_inside(projection):
                raise
            what = f"cannot be called with the head outputs alone ({type(error).__name__}: {error})"
            raise _not_a_projection(site, projection, shortened(what, 240)) from error

    def _only_call(self, site: HeadSite) -> tuple[Tensor, Tensor, Product | None]:
        calls = self._kept.get(site, [])
        if len(calls) != 1:
            raise InstrumentError(
                f"the output projection of {site} was called {len(calls)} times inside the `with` block, not once",
                "make exactly one forward pass inside the `with` block, in which the model uses this attention block",
            )
        return calls[0]


def _not_a_projection(name: HeadSite, module: nn.Module, why: str) -> InputError:
    layers = layers_inside(module)
    return InputError(
        f"the module given for {name} is not its output projection: this {type(module).__name__} {why}",
        f"name the output projection inside it: {', '.join(layers)}"
        if layers
        else "check the path that was given to Sites",
    )


@contextmanager
def eval_mode(model: nn.Module, *, gradients: bool = True) -> Iterator[torch.device]:
    """Put the model into evaluation mode (no dropout) inside the context, and yield the device of the model.

    If `gradients` is false, no gradients are recorded inside the context.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    first = next(model.parameters(), None)
    try:
        with nullcontext() if gradients else torch.inference_mode():
            yield torch.device("cpu") if first is None else first.device
    finally:
        for module in training:
            module.training = True


# --- calls of output projections --------------------------------------------------------------------------------------


@contextmanager
def unfused(sites: Sites) -> Iterator[None]:
    """Return a context in which the model calls every output projection as a module, so that hooks act on it.

    Without the context, PyTorch's own attention modules, and projections that are parameters, compute the projection
    without calling a module. The context also switches off the fused paths of `nn.TransformerEncoderLayer` and
    `nn.MultiheadAttention`. Contexts can be nested.
    """
    attentions = dict.fromkeys(site.mha for site in sites.values() if site.mha is not None)
    unpatched = [mha for mha in attentions if "forward" not in mha.__dict__]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fused and not attentions)
    try:
        for mha in unpatched:
            mha.__dict__["forward"] = partial(unfused_forward, mha)
        with products_called(sites.projections):
            yield
    finally:
        for mha in unpatched:
            mha.__dict__.pop("forward", None)
        torch.backends.mha.set_fastpath_enabled(fused)


def unfused_forward(
    mha: nn.MultiheadAttention, query: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Run the forward pass of `mha`, but call its output projection as a module, so that hooks act on the projection.

    The module's own forward runs with an identity matrix as output projection, which returns the head outputs z bit for
    bit. The real projection is then called with z, with the rows (examples) in the first axis.
    """
    projection, identity = mha.out_proj, nn.Module()
    identity.weight = nn.Parameter(torch.eye(query.shape[-1], device=query.device, dtype=query.dtype), False)
    identity.bias = None  # type: ignore[assignment]
    mha._modules["out_proj"] = identity
    try:
        z, weights = type(mha).forward(mha, query, *args, **kwargs)
    finally:
        mha._modules["out_proj"] = projection
    if mha.batch_first or z.dim() == 2:
        return projection(z), weights
    return projection(z.transpose(0, 1)).transpose(0, 1), weights


class SharedSiteCounter:
    """Assigns each call of an output projection that several attention blocks share (ALBERT) to its block."""

    def __init__(self, sites: Sites, skipped: Mapping[nn.Module, int] | None = None) -> None:
        """Count calls from now on; `skipped` counts calls that a replayed pass leaves out, and may grow later."""
        self._sharing = sites.projections
        self._skipped = {} if skipped is None else skipped
        self._n: Counter[nn.Module] = Counter()

    def next(self, projection: nn.Module) -> HeadSite:
        """Count one call of an output projection and return the attention block (site) that made it."""
        sharing = self._sharing[projection]
        n = self._n[projection] + self._skipped.get(projection, 0)
        self._n[projection] += 1
        return sharing[n % len(sharing)]

    def unfinished(self) -> list[str]:
        """Return the projections whose number of calls is not a multiple of the number of blocks that share them.

        Each projection is named by its first attention block.
        """
        return [
            str(self._sharing[projection][0])
            for projection, n in self._n.items()
            if (n + self._skipped.get(projection, 0)) % len(self._sharing[projection])
        ]
