"""Act on heads while a model runs, and read them.

    with Gates(sites, closed_gates(sites, [HeadId.parse("E0H1")])):
        model(source, decoder_input)                       # without that head
    with Capture(sites) as seen:
        model(source, decoder_input)
    seen.z(site), seen.contributions(site)                 # what its heads found, and add to the residual stream

Gates make z' = g z + (1 - g) r of z: g is per row and head, so that many experiments ride in one batch; a replacement r
(0 unless given) is per row and position. A gate that is open for all rows leaves no hook at all, so open gates change
no bit. Contexts nest, and leave the model as it was, whatever happens inside.

An intervention that did nothing is an error: gates that no forward pass came through raise when the context is left.
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
"""What replaces the outputs of heads."""
ValuesOf = Callable[[Float[Tensor, "row query head d_head"]], Values | None]
"""The same, made of what the heads found in the very pass."""


def closed_gates(sites: Sites, heads: Iterable[HeadId]) -> dict[HeadSite, Gate]:
    """Gates that are shut for these heads, in every row."""
    gates = {}
    for site, places in sites.head_slots(heads).items():
        gates[site] = torch.ones(1, len(sites[site].heads))
        gates[site][:, list(places)] = 0.0
    return gates


class Gates:
    """Gates at some sites, for as long as the context lasts."""

    def __init__(
        self,
        sites: Sites,
        gates: Mapping[HeadSite, Gate],
        replacements: Mapping[HeadSite, Values | ValuesOf] | None = None,
        *,
        allow_prefix: bool = False,
        skipped: Mapping[nn.Module, int] | None = None,
    ) -> None:
        """With `allow_prefix`, passes may see the first positions of a replacement, as in decoding without a cache.

        (A decoder with a cache sees one position at a time and would get the first one's replacement at each.)
        `skipped` counts calls of projections that do not happen because others make up for them.
        """
        self._sites, self._gates, self._replacements = sites, dict(gates), dict(replacements or {})
        self._allow_prefix, self._skipped = allow_prefix, skipped
        self.calls: Counter[HeadSite] = Counter()
        """How often each gated site was passed."""
        self._stack = ExitStack()
        for name, gate in self._gates.items():
            if name not in sites:
                there = ", ".join(map(str, sites))
                raise InputError(f"no attention site {str(name)!r} in this model", f"it has: {there}")
            n_heads = len(sites[name].heads)
            if gate.dim() != 2 or gate.shape[1] != n_heads:
                wanted = f"give [rows or 1, {n_heads}]: a column for each head"
                raise InputError(f"gates at {name} have shape {tuple(gate.shape)}", wanted)
        if unknown := set(self._replacements) - set(self._gates):
            raise InputError(f"a replacement for {sorted(map(str, unknown))[0]}, but no gate", "shut a gate there")

    def __enter__(self) -> Self:
        self.calls.clear()
        self._turns = SharedSiteCounter(self._sites, self._skipped)
        self._acting = {
            name: gate for name, gate in self._gates.items() if gate.requires_grad or not bool((gate == 1).all())
        }
        for name in self._gates.keys() - self._acting.keys():
            self.calls[name] = 0  # open: nothing to do, and nothing to prove
        self._stack.enter_context(unfused(self._sites))
        for projection in dict.fromkeys(self._sites[name].projection for name in self._acting):
            self._stack.callback(projection.register_forward_pre_hook(self._act, with_kwargs=True).remove)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._stack.close()
        missed = [name for name in self._gates if name not in self.calls]
        if error_type is None and self._acting and missed:
            raise InstrumentError(
                f"the gates at {', '.join(map(str, missed))} were never reached: nothing was ablated there",
                "the model does not call that output projection (a fused path, or a module that is not in use), or no "
                "forward pass was made",
            )
        if error_type is None and (odd := self._turns.unfinished()):
            raise InstrumentError(
                f"the output projection that {odd[0]} shares was not called once for each of its sites in every pass",
                "so gates cannot tell whose turn it was",
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
    """The z that a projection was called with."""
    if not args or not isinstance(args[0], Tensor):
        what = f"the output projection of {name} was not called with a tensor"
        raise InstrumentError(what, "its input cannot be gated; or is this a whole attention block?")
    return args[0]


def split_heads(
    name: HeadSite, z: Tensor, n_heads: int, head_axis: int | None = None
) -> Float[Tensor, "row query head d_head"]:
    """Return the output of each head: a view of z."""
    if head_axis is not None:
        if not -z.dim() <= head_axis < z.dim() or z.shape[head_axis] != n_heads:
            raise InstrumentError(
                f"z at {name} has shape {tuple(z.shape)}: its axis {head_axis} does not count {n_heads} heads",
                "give head_axis=1 for [batch, head, position, d_head], 2 for [batch, position, head, d_head], and "
                "leave it out for heads side by side in the last axis",
            )
        return z.movedim(head_axis, -2)
    if z.shape[-1] % n_heads or z.dim() < 2:
        raise InstrumentError(f"z at {name} has shape {tuple(z.shape)}, which {n_heads} heads cannot share")
    return z.unflatten(-1, (n_heads, -1))


def join_heads(z_BQHE: Float[Tensor, "row query head d_head"], head_axis: int | None = None) -> Tensor:
    """Return z as the output projection takes it: the inverse of `split_heads`."""
    return z_BQHE.flatten(start_dim=-2) if head_axis is None else z_BQHE.movedim(-2, head_axis)


def gated(name: HeadSite, z: Tensor, gate: Gate, value: Values | None, head_axis: int | None = None) -> Tensor:
    """Return the mixture g z + (1 - g) r; an open gate hands z on bit for bit."""
    z_BQHE = split_heads(name, z, gate.shape[1], head_axis)
    rows = (len(z), len(gate))
    if rows[0] != rows[1] and 1 not in rows:
        raise InstrumentError(
            f"{rows[1]} rows of gates at {name}, but the pass has {rows[0]} rows", "give one row per example, or one"
        )
    g = gate.to(z)[(slice(None), *[None] * (z_BQHE.dim() - 3), slice(None), None)]
    if value is None:
        return join_heads(z_BQHE * g, head_axis)
    mixed = z_BQHE * g + (1 - g) * value.to(z)
    return join_heads(torch.where(g == 1, z_BQHE, mixed), head_axis)  # 1 z + 0 r would turn -0 into 0


def project(projection: nn.Module, z: Tensor, product: Product | None = None) -> Tensor:
    """Pass z through an output projection, not by a call, which would set off hooks again.

    In the precision of its weights: that of z is another one in models that run under autocast. `product` is what a
    projection that is a parameter computed in the pass that z comes from.
    """
    weight = getattr(projection, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point():
        z = z.to(weight.dtype)
    projected: Tensor = (product or projection.forward)(z)
    return projected


class Capture:
    """Keeps the input and the output of every output projection of the pass made inside the context."""

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
            raise _no_projection(name, module, f"returns a {type(output).__name__}, not a tensor")
        # Copies, for the model may go on to add to its tensors in place.
        kept = input_of(name, args).clone(), output.clone(), getattr(module, "product", None)
        self._kept.setdefault(name, []).append(kept)

    def z(self, site: HeadSite) -> Float[Tensor, "row query head d_head"]:
        """Return the output of each head."""
        return split_heads(site, self._only_call(site)[0], len(self._sites[site].heads), self._sites[site].head_axis)

    def output(self, site: HeadSite) -> Float[Tensor, "row query d_model"]:
        """What the block adds to the residual stream."""
        return self._only_call(site)[1]

    def contributions(self, site: HeadSite) -> Float[Tensor, "row query head d_model"]:
        """What each head adds to the residual stream; with the bias they make up the block's output.

        Through the projection itself, head by head: whatever the layout of its weights, it is linear.
        """
        z, bias, alone = self.z(site), self.bias(site), []
        for i in range(z.shape[-2]):
            only = torch.zeros_like(z)
            only[..., i, :] = z[..., i, :]
            joined = join_heads(only, self._sites[site].head_axis)
            alone.append(self._projected(site, joined) - bias)
        return torch.stack(alone, dim=-2)

    def bias(self, site: HeadSite) -> Float[Tensor, " d_model"]:
        """Return the projection of nothing: what the block adds when all its heads are ablated.

        A parameter or an axis of heads may ask for all axes of z; then the bias has those of the output.
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
            what = f"cannot be called with z alone ({type(error).__name__}: {error})"
            raise _no_projection(site, projection, shortened(what, 240)) from error

    def _only_call(self, site: HeadSite) -> tuple[Tensor, Tensor, Product | None]:
        calls = self._kept.get(site, [])
        if len(calls) != 1:
            raise InstrumentError(
                f"{site} was passed {len(calls)} times, not once",
                "make exactly one forward pass inside the context" if calls else "the model never called it",
            )
        return calls[0]


def _no_projection(name: HeadSite, module: nn.Module, why: str) -> InputError:
    layers = layers_inside(module)
    return InputError(
        f"{type(module).__name__} is not an output projection of {name}: it {why}",
        f"name the output projection inside it: {', '.join(layers)}" if layers else "is its path right?",
    )


@contextmanager
def eval_mode(model: nn.Module, *, gradients: bool = True) -> Iterator[torch.device]:
    """Dropout off inside and, unless they are asked for, gradients; yields the model's device."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    first = next(model.parameters(), None)
    try:
        with nullcontext() if gradients else torch.inference_mode():
            yield torch.device("cpu") if first is None else first.device
    finally:
        for module in training:
            module.training = True


# --- where hooks fire -------------------------------------------------------------------------------------------------


@contextmanager
def unfused(sites: Sites) -> Iterator[None]:
    """Inside, every output projection of the sites is called as a module, so that hooks act on it; contexts may nest.

    PyTorch's own attention modules and projections that are parameters compute it without a call otherwise. The fused
    paths of `nn.TransformerEncoderLayer` and of `nn.MultiheadAttention` are off meanwhile.
    """
    attentions = dict.fromkeys(site.mha for site in sites.values() if site.mha is not None)
    closed = [mha for mha in attentions if "forward" not in mha.__dict__]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fused and not attentions)
    try:
        for mha in closed:
            mha.__dict__["forward"] = partial(unfused_forward, mha)
        with products_called(sites.projections):
            yield
    finally:
        for mha in closed:
            mha.__dict__.pop("forward", None)
        torch.backends.mha.set_fastpath_enabled(fused)


def unfused_forward(
    mha: nn.MultiheadAttention, query: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Its own code, with an identity in the place of the output projection; then the projection is called, rows first.

    The identity hands on what it is given, bit for bit: each sum has one term that is not 0.
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
    """Whose turn it is when a projection is called."""

    def __init__(self, sites: Sites, skipped: Mapping[nn.Module, int] | None = None) -> None:
        """`skipped`: calls that others make up for, as they go."""
        self._sharing = sites.projections
        self._skipped = {} if skipped is None else skipped  # empty as yet, perhaps, and filling
        self._n: Counter[nn.Module] = Counter()

    def next(self, projection: nn.Module) -> HeadSite:
        """The site that this call belongs to."""
        sharing = self._sharing[projection]
        n = self._n[projection] + self._skipped.get(projection, 0)
        self._n[projection] += 1
        return sharing[n % len(sharing)]

    def unfinished(self) -> list[str]:
        """Sites whose projection was called, but not a whole number of rounds."""
        return [
            str(self._sharing[projection][0])
            for projection, n in self._n.items()
            if (n + self._skipped.get(projection, 0)) % len(self._sharing[projection])
        ]
