"""Read and patch (replace) the residual stream and the MLP outputs of a model, layer by layer.

    E0.input     the residual stream before encoder layer 0: embeddings and positions
    E0.mlp       what the feed-forward network (MLP) of encoder layer 0 adds to the stream
    E0.stream    the residual stream after encoder layer 0

`D` is the decoder, and `L` a model with one stack of layers. `Streams.of` finds the layers from the paths of the
attention blocks' output projections. The output of an MLP is the output of the last linear layer that a layer calls
after its attention, so one forward pass is needed to find the MLPs.

    streams = Streams.of(model, sites, inputs)
    with StreamCapture(streams) as seen:
        model(*inputs)
    with StreamPatches(streams, {StreamId.parse("E0.stream"): seen["E0.stream"]}, queries=[2]):
        model(*other_inputs)

Like gates, patches that no pass reached are an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.errors import InputError, InstrumentError
from headcount.hooks.gates import unfused
from headcount.hooks.parameters import ParameterProjection
from headcount.hooks.sites import Sites

LETTERS = {"encoder": "E", "decoder": "D", "layer": "L"}
KINDS = ("input", "mlp", "stream")
_NAME = re.compile(r"([EDL])(\d{1,6})\.(input|mlp|stream)", re.IGNORECASE)
Patch = Float[Tensor, "#row #position d_model"]


@dataclass(frozen=True, order=True)
class StreamId:
    """The name of a point in a model's residual stream, such as `E0.stream`, or of an MLP's output (`E0.mlp`)."""

    stack: str
    layer: int
    kind: str

    def __str__(self) -> str:
        return f"{LETTERS[self.stack]}{self.layer}.{self.kind}"

    @classmethod
    def parse(cls, text: str) -> StreamId:
        """Parse the name of a residual stream or MLP output, such as `E0.mlp`; raise an error if it is not valid.

        >>> str(StreamId.parse("e0.MLP"))
        'E0.mlp'
        """
        match = _NAME.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"{text!r} is not the name of a residual stream or of an MLP's output",
                "write E0.input (the residual stream before layer 0), E0.mlp (what the MLP of layer 0 adds) or "
                "E0.stream (after layer 0), with E for an encoder, D for a decoder and L for a single stack",
            )
        letter, layer, kind = match.groups()
        stack = next(stack for stack, known in LETTERS.items() if known == letter.upper())
        return cls(stack, int(layer), kind.lower())


@dataclass(frozen=True)
class StreamPlace:
    """The module whose input or output is a residual stream (or an MLP's output), and the index of its call."""

    module: nn.Module
    call: int = 0
    """Which call of the module in a forward pass is meant, counted from 0, if several layers share the module."""
    n_calls: int = 1
    """The number of calls of the module in one forward pass."""


class Streams(dict[StreamId, StreamPlace]):
    """Maps the names of a model's residual streams and MLP outputs to their modules, from first to last layer."""

    @classmethod
    def of(cls, model: nn.Module, sites: Sites, inputs: Sequence[Tensor]) -> Streams:
        """Return the streams of a model: find its layers and, by one forward pass over `inputs`, their MLPs."""
        layers = _layers(model, sites)
        sharing = Counter(layers.values())
        calls = Counter[nn.Module]()
        places: dict[tuple[str, int], StreamPlace] = {}
        for key, module in layers.items():
            places[key] = StreamPlace(module, calls[module], sharing[module])
            calls[module] += 1
        mlps = _mlp_outputs(model, sites, sharing, inputs)
        found: dict[StreamId, StreamPlace] = {}
        for (stack, layer), place in places.items():
            if layer == 0:
                found[StreamId(stack, layer, "input")] = place
            if place.module in mlps:
                found[StreamId(stack, layer, "mlp")] = replace(place, module=mlps[place.module])
            found[StreamId(stack, layer, "stream")] = place
        return cls(found)

    def find(self, name: str | StreamId) -> StreamId:
        """Return the identifier of a stream, such as "E0.mlp"; if the model has none of this name, raise an error."""
        stream = StreamId.parse(name) if isinstance(name, str) else name
        if stream not in self:
            raise InputError(
                f"no residual stream or MLP output {stream} in this model", f"it has: {', '.join(map(str, self))}"
            )
        return stream


def _layers(model: nn.Module, sites: Sites) -> dict[tuple[str, int], nn.Module]:
    """Return the module of each layer, by stack and layer number.

    It is the outermost item of a `ModuleList` in the path of the layer's output projection that differs between layers.
    """
    paths = {module: path for path, module in model.named_modules()}
    chains: dict[tuple[str, int], list[nn.Module]] = {}
    for name, site in sites.items():
        projection = site.projection
        owner = projection.holder if isinstance(projection, ParameterProjection) else projection
        if owner not in paths:
            raise InputError(
                f"the layer of {name} is not known: its output projection is not part of this model",
                "find the attention blocks of this model, not of another one or a copy, and give them as `sites`",
            )
        parts = paths[owner].split(".")
        prefixes = [".".join(parts[:i]) for i in range(1, len(parts) + 1) if parts[i - 1].isdigit()]
        chain = [model.get_submodule(prefix) for prefix in prefixes]
        if not chain:
            raise InputError(
                f"the layer of {name} is not known: the path of its output projection has no layer number",
                "residual streams can only be found in a model whose layers are in an nn.ModuleList",
            )
        chains.setdefault((name.stack, name.layer), chain)
    layers: dict[tuple[str, int], nn.Module] = {}
    for stack in dict.fromkeys(stack for stack, _ in chains):
        own = {key: chain for key, chain in sorted(chains.items()) if key[0] == stack}
        shortest = min(map(len, own.values()))
        depth = next(
            (i for i in range(shortest) if len({chain[i] for chain in own.values()}) == len(own)), shortest - 1
        )
        layers |= {key: chain[depth] for key, chain in own.items()}
    return layers


def _mlp_outputs(
    model: nn.Module, sites: Sites, layers: Collection[nn.Module], inputs: Sequence[Tensor]
) -> dict[nn.Module, nn.Module]:
    """Map each layer to the module that computes its MLP's output; layers without an MLP are left out.

    The module is the last linear layer called after the layer's attention, if it is as wide as the residual stream.
    """
    parts: dict[nn.Module, list[tuple[nn.Module, int]]] = {layer: [] for layer in layers}
    widths: dict[nn.Module, int] = {}

    def note_part(layer: nn.Module, part: nn.Module, args: Any, output: Any) -> None:
        if part in sites.projections:
            parts[layer].clear()  # what comes before the last attention of a layer is not the output of its MLP
        elif isinstance(output, Tensor):
            parts[layer].append((part, output.shape[-1]))

    def note_width(layer: nn.Module, args: Any, output: Any) -> None:
        widths[layer] = _first(output).shape[-1]

    with ExitStack() as hooks:
        hooks.enter_context(unfused(sites))
        for layer in parts:
            hooks.callback(layer.register_forward_hook(note_width).remove)
            for part in layer.modules():
                if getattr(getattr(part, "weight", None), "ndim", 0) == 2 and not list(part.children()):
                    hooks.callback(part.register_forward_hook(partial(note_part, layer)).remove)
        with torch.no_grad():
            model(*inputs)
    writers = {layer: [part for part, width in called if width == widths[layer]] for layer, called in parts.items()}
    return {layer: called[-1] for layer, called in writers.items() if called}


def _first(output: Any) -> Tensor:
    """Return the residual stream in the output of a layer: the tensor itself, or the first tensor of a tuple."""
    tensor = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(tensor, Tensor):
        tensor = next((part for part in getattr(output, "values", tuple)() if isinstance(part, Tensor)), None)
    if tensor is None:
        raise InstrumentError(
            "a layer returns no tensor, so its residual stream cannot be read",
            "let the layer return the residual stream, alone or first in a tuple",
        )
    return tensor


class _Watched:
    """Base class of contexts that read or replace the residual streams of a model during forward passes."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.n_calls: Counter[StreamId] = Counter()
        self._counts: Counter[tuple[nn.Module, bool]] = Counter()
        self._stack = ExitStack()

    def _watch(self, ids: Sequence[StreamId], act: Callable[[StreamId, Tensor], Tensor | None]) -> None:
        by_module: dict[tuple[nn.Module, bool], list[StreamId]] = {}
        for stream in ids:
            by_module.setdefault((self.streams[stream].module, stream.kind == "input"), []).append(stream)
        for (module, is_input), here in by_module.items():
            hook = self._input_hook(here, act) if is_input else self._output_hook(here, act)
            register = module.register_forward_pre_hook if is_input else module.register_forward_hook
            self._stack.callback(register(hook, with_kwargs=True).remove)

    def _turn(self, module: nn.Module, here: Sequence[StreamId], is_input: bool) -> StreamId | None:
        place = self.streams[here[0]]
        call = self._counts[module, is_input] % place.n_calls
        self._counts[module, is_input] += 1
        stream = next((stream for stream in here if self.streams[stream].call == call), None)
        if stream is not None:
            self.n_calls[stream] += 1
        return stream

    def _output_hook(self, here: Sequence[StreamId], act: Callable[[StreamId, Tensor], Tensor | None]) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            stream = self._turn(module, here, is_input=False)
            changed = None if stream is None else act(stream, _first(output))
            if changed is None:
                return None
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return hook

    def _input_hook(self, here: Sequence[StreamId], act: Callable[[StreamId, Tensor], Tensor | None]) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            stream = self._turn(module, here, is_input=True)
            name = None if args else next(iter(kwargs))
            changed = None if stream is None else act(stream, args[0] if name is None else kwargs[name])
            if changed is None:
                return None
            return ((changed, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: changed})

        return hook

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._stack.close()


class StreamCapture(_Watched):
    """A context that keeps every residual stream of one forward pass.

    With `StreamCapture(streams) as seen`, `seen["E0.stream"]` is [row, position, d_model].
    """

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._kept: dict[StreamId, Tensor] = {}

    def __enter__(self) -> Self:
        self._watch(list(self.streams), self._keep)
        return self

    def _keep(self, stream: StreamId, x: Tensor) -> None:
        self._kept[stream] = x.clone()

    def __getitem__(self, name: str | StreamId) -> Tensor:
        stream = self.streams.find(name)
        if self.n_calls[stream] != 1:
            raise InstrumentError(
                f"{stream} was computed {self.n_calls[stream]} times inside the `with` block, not once",
                "make exactly one forward pass inside the `with` block",
            )
        return self._kept[stream]

    def __iter__(self) -> Iterator[StreamId]:
        return iter(self._kept)


class StreamPatches(_Watched):
    """A context in which the tensors in `patches` replace residual streams, at all positions or only at `queries`."""

    def __init__(
        self,
        streams: Streams,
        patches: Mapping[StreamId, Patch],
        queries: Sequence[int] | None = None,
    ) -> None:
        super().__init__(streams)
        self.patches = {streams.find(stream): patch for stream, patch in patches.items()}
        self.positions = PatchedPositions(queries)

    def __enter__(self) -> Self:
        self._watch(list(self.patches), self._replace)
        return self

    def _replace(self, stream: StreamId, x: Tensor) -> Tensor:
        patch = self.patches[stream].to(x)
        try:
            patch = patch.expand_as(x)
        except RuntimeError as error:
            raise InputError(
                f"the patch (the tensor to put in) for {stream} has shape {tuple(patch.shape)}, but the tensor to "
                f"replace has shape {tuple(x.shape)}",
                "give a tensor of shape [batch, position, d_model] with the sizes of this pass; batch and position "
                "may be 1",
            ) from error
        at = self.positions.mask(x.shape[1], x.device)
        return torch.where(at[:, None], patch, x)

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        super().__exit__(error_type, *error)
        missed = [str(stream) for stream in self.patches if not self.n_calls[stream]]
        if error_type is None and missed:
            raise InstrumentError(
                f"no forward pass reached {', '.join(missed)}: nothing was patched there",
                "make a forward pass inside the `with` block",
            )
        if error_type is None:
            self.positions.require_reached()


class PatchedPositions:
    """The positions (`queries`; None for all) at which heads or streams are changed in forward passes.

    `require_reached` raises an error if no pass had one of these positions.
    """

    def __init__(self, queries: Sequence[int] | None) -> None:
        self.queries = queries
        self.longest = 0
        """The number of positions of the longest sequence so far."""
        self._is_reached = queries is None

    def mask(self, n: int, device: torch.device, first: int = 0) -> Tensor:
        """Return a mask of the positions that are changed in a pass over positions `first` to `first + n - 1`."""
        self.longest = max(self.longest, first + n)
        if self.queries is None:
            return torch.ones(n, dtype=torch.bool, device=device)
        self._is_reached |= any(0 <= query - first < n for query in self.queries)
        return position_mask(self.queries, n, device, first)

    def require_reached(self) -> None:
        """Raise an error if forward passes were made, but none of them had one of the positions."""
        if self.longest and not self._is_reached:
            raise InstrumentError(
                "nothing was changed, because no forward pass had the positions "
                f"{', '.join(map(str, self.queries or ()))}",
                f"choose positions that exist: they count from 0, and the longest forward pass had {self.longest} "
                "positions",
            )


def position_mask(queries: Sequence[int], n: int, device: torch.device, first: int = 0) -> Tensor:
    """Return a mask of the positions in `queries`, for a pass over positions `first` to `first + n - 1`."""
    wanted = torch.zeros(n, dtype=torch.bool, device=device)
    for query in queries:
        if 0 <= query - first < n:
            wanted[query - first] = True
    return wanted
