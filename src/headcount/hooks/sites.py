"""Find the output projections of the attention blocks (sites) of any PyTorch model.

The input of an attention block's output projection is z, the outputs of its heads. They are concatenated in the last
axis, [..., head * d_head], or have an axis of their own. In any model, z is the tensor in which a head can be ablated,
scaled, replaced and measured. The user gives the paths of the projections (modules or parameters). Paths can also be
guessed from names, for the user to confirm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.parameters import ParameterProjection
from headcount.suggestions import suggestion

NamedPatterns = str | Sequence[str]
LISTED = 40
"""Largest number of heads that an error message lists."""
_CROSS = re.compile(r"cross|enc_?dec|enc(oder)?_?att|src_att|memory|context|multihead_attn", re.IGNORECASE)
_SELF = re.compile(r"(^|[._])self", re.IGNORECASE)
_DECODER, _ENCODER = re.compile(r"(^|[._])dec", re.IGNORECASE), re.compile(r"(^|[._])enc", re.IGNORECASE)
_COUNTS = ("num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "h")
_ROLES = {"layer": ("layer", "self"), "encoder": ("encoder", "self"), "decoder": ("decoder", "self")}
_ROLES |= {"cross": ("decoder", "cross")}
_LAST = frozenset(("out_proj", "o_proj", "c_proj", "w_o", "wo", "to_out", "out_lin", "out", "o", "proj", "dense"))
_LAST |= {"fc_out", "output", "linear_out", "final_linear", "w_out", "out_linear", "fc_o", "output_linear"}
_LAST |= {"fc", "linear", "unify_heads", "unifyheads", "projection", "out_projection", "output_proj", "w_concat"}
_LAST |= {"output_projection", "combine_heads", "proj_out", "final_proj", "linear_o", "last_linear", "fc_output"}
_FOUR = frozenset(("linears", "linear_layers", "projections", "proj_layers"))
"""Usual names of a list of four layers that compute queries, keys, values and the output projection, in this order."""
_ATTENTION = re.compile(r"att|mha|mhsa|multi_?head|^(sa|ca)$", re.IGNORECASE)
"""Matches the names of attention blocks and of their classes."""
_QUANTISED = ("AffineQuantizedTensor", "Params4bit", "Int8Params")


@runtime_checkable
class SupportsHeads(Protocol):
    """A model that names its output projections and heads, such as headcount's own models."""

    @property
    def projections(self) -> Mapping[HeadSite, nn.Module]:
        """The output projection of every attention block that has heads, by the name of the block."""

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Return the heads of an attention block, in the order of their outputs in the output projection's input."""


@runtime_checkable
class SupportsSites(Protocol):
    """A model that lists its attention blocks in an attribute `head_sites`, such as a model wrapped by `wrap`."""

    @property
    def head_sites(self) -> Sites:
        """The attention blocks (sites) of the model, with their output projections and heads."""


SUPPORTED = (SupportsSites, SupportsHeads)
"""Protocols of models that say where their heads are."""


@dataclass(frozen=True)
class Site:
    """The output projection of one attention block, and the heads whose outputs are its input z."""

    projection: nn.Module
    heads: tuple[HeadId, ...]
    call: int = 0
    """The index of this block's call of the projection in a pass, if several blocks share it (ALBERT); else 0."""
    mha: nn.MultiheadAttention | None = None
    """The `nn.MultiheadAttention` that contains the projection (and uses its weights without calling it), or None."""
    head_axis: int | None = None
    """The axis that counts heads in the projection's input: 1 in [batch, head, position, d_head].

    None if the heads are concatenated in the last axis.
    """


class Sites(dict[HeadSite, Site]):
    """All attention blocks of a model: maps each block's name to its output projection and heads; immutable."""

    def __init__(self, sites: Mapping[HeadSite, Site]) -> None:
        super().__init__(sites)
        self.heads: tuple[HeadId, ...] = tuple(head for site in self.values() for head in site.heads)
        self.projections: dict[nn.Module, tuple[HeadSite, ...]] = {}
        """Maps each output projection to the attention blocks that use it; usually there is one."""
        self._slots: dict[tuple[HeadId, ...], dict[HeadSite, tuple[int, ...]]] = {}  # a cache of `head_slots`
        if not self:
            raise InputError("this model has no heads: there is nothing to ablate, read or cut", "give another model")
        for name, site in sorted(self.items(), key=lambda item: item[1].call):
            _require_unquantised(name, site.projection)
            sharing = self.projections[site.projection] = (*self.projections.get(site.projection, ()), name)
            if site.call != len(sharing) - 1:
                share = (
                    f"{sharing[0]} and {name} share"
                    if len(sharing) > 1
                    else f"{name} is call number {site.call} (the first is 0) of"
                )
                raise InputError(
                    f"{share} one output projection",
                    "the heads cannot be told apart; if each attention block calls the projection once per pass, "
                    "number the calls from 0: Site(projection, heads, call=0), then call=1",
                )

    @classmethod
    def empty(cls) -> Sites:
        """Return empty sites, for a model whose heads have all been cut out."""
        sites = cls.__new__(cls)
        sites.heads, sites.projections, sites._slots = (), {}, {}
        return sites

    @classmethod
    def of(
        cls,
        model: nn.Module,
        *patterns: str,
        n_heads: int | Mapping[str, int] | None = None,
        head_axis: int | None = None,
        **named: NamedPatterns,
    ) -> Sites:
        """Return the attention blocks (sites) of a model, found by the paths of their output projections.

        Without paths, the model must name its sites itself. In a path, `*` stands for a layer's number:
        Sites.of(model, "encoder_layers.*.self_attn.W_o", n_heads=4). A path leads to a module whose input is z, the
        outputs of the block's heads, or to a parameter that z is multiplied with. The stack and the kind of attention
        are inferred from the path. If that fails, give them as keyword: Sites.of(model, cross="dec.*.attn2.o",
        n_heads=4); the keywords are `layer` (a single stack), `encoder`, `decoder` and `cross`.

        `head_axis` is the axis of z that counts heads: 1 if z is [batch, head, position, d_head], 2 if z is [batch,
        position, head, d_head]. Without `head_axis`, the heads are concatenated in the last axis of z.
        """
        model = unwrap(model)
        if patterns or named:
            sites = _find_sites(model, patterns, named, n_heads)
            return cls({name: replace(site, head_axis=_axis(site, head_axis)) for name, site in sites.items()})
        if isinstance(model, SupportsSites):
            return model.head_sites
        if not isinstance(model, SupportsHeads):
            raise InputError(
                f"{type(model).__name__} does not say where its heads are",
                "try headcount.wrap(model), or give its output projections: "
                'Sites.of(model, "layers.*.attn.out", n_heads=4)',
            )
        return cls({site: Site(projection, model.heads_at(site)) for site, projection in model.projections.items()})

    def head_slots(self, heads: Iterable[HeadId]) -> dict[HeadSite, tuple[int, ...]]:
        """Return the indices of these heads within their attention blocks, by block.

        An index counts the head outputs in the input of the block's output projection.
        """
        heads = tuple(heads)
        if heads not in self._slots:
            slots: dict[HeadSite, set[int]] = {}
            for head in heads:
                if head.site not in self or head not in self[head.site].heads:
                    names = [known.short for known in self.heads]
                    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
                    raise InputError(
                        f"no head {str(head)!r} in this model", f"it has: {', '.join(names[:LISTED])}{more}"
                    )
                slots.setdefault(head.site, set()).add(self[head.site].heads.index(head))
            self._slots[heads] = {site: tuple(sorted(places)) for site, places in slots.items()}
        return self._slots[heads]


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of torch.compile and DataParallel."""
    inner: object = model
    while isinstance(inner, nn.Module):
        model, inner = inner, getattr(inner, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
    compiled = [path or "itself" for path, module in model.named_modules() if module._compiled_call_impl is not None]
    if compiled:
        raise InputError(
            f"{type(model).__name__} was compiled in place ({compiled[0]}): compiled code may bypass hooks",
            "use a copy of the model that was not compiled",
        )
    return model


def _require_unquantised(name: HeadSite, projection: nn.Module) -> None:
    """Raise an error if the projection's weights are quantised, because the heads' contributions do not add up then."""
    package, weight = type(projection).__module__, type(getattr(projection, "weight", None)).__name__
    if ".quantized" in package or "bitsandbytes" in package or weight in _QUANTISED:
        raise InputError(
            f"the output projection of {name} is quantised ({type(projection).__name__})",
            "so the contributions of its heads would not sum to its output: load the model in float32",
        )


# --- sites by path ----------------------------------------------------------------------------------------------------


def _regex(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a path pattern, in which `*` stands for one part of the path."""
    return re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))


def _layer_numbers(item: tuple[str, nn.Module]) -> list[int]:
    """Return the numbers in the path of a (path, module) pair, such as [0, 1] for `blocks.0.layer.1`, as a sort key."""
    return [int(number) for number in re.findall(r"\d+", item[0])]


def modules_at(model: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    """Return the (path, module) pairs whose path matches a pattern, sorted by the numbers in the paths."""
    modules = model.named_modules(remove_duplicate=False)  # a module that layers share has one path per layer
    return sorted((item for item in modules if _regex(pattern).fullmatch(item[0])), key=_layer_numbers)


def parameters_at(model: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    """Return the path of each parameter that matches a pattern, with a module that represents the parameter.

    If layers share a parameter, they share the module, too.
    """
    matches, projections = list[tuple[str, nn.Module]](), dict[int, ParameterProjection]()
    for path, parameter in model.named_parameters(remove_duplicate=False):
        if _regex(pattern).fullmatch(path):
            above, _, name = path.rpartition(".")
            new = ParameterProjection(model.get_submodule(above), name)
            matches.append((path, projections.setdefault(id(parameter), new)))
    return sorted(matches, key=_layer_numbers)


def find_mha(model: nn.Module) -> dict[HeadSite, Site]:
    """Return the sites (attention blocks) of all `nn.MultiheadAttention` modules, which know their number of heads."""
    sites, n_layers = {}, Counter[str]()
    attentions = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)]
    for (path, module), role in zip(attentions, _roles([path for path, _ in attentions]), strict=True):
        name = HeadSite(_ROLES[role][0], n_layers[role], _ROLES[role][1])
        n_layers[role] += 1
        sites[name] = _site_at(model, name, path, module, None)
    return sites


def _find_sites(
    model: nn.Module,
    patterns: Sequence[str],
    named: Mapping[str, NamedPatterns],
    n_heads: int | Mapping[str, int] | None,
) -> dict[HeadSite, Site]:
    """Return the sites (attention blocks) of all output projections whose paths match the patterns."""
    roles = [(pattern, _role(pattern, alone=len(patterns) == 1)) for pattern in patterns]
    for role, given in named.items():
        if role not in _ROLES:
            raise InputError(f"there is no kind of attention block {role!r}", suggestion(role, _ROLES))
        roles += [(pattern, role) for pattern in ([given] if isinstance(given, str) else given)]
    sites: dict[HeadSite, Site] = {}
    for pattern, role in roles:
        matches = modules_at(model, pattern) or parameters_at(model, pattern)
        if not matches:
            starred = list(dict.fromkeys(_starred(path) for path in _paths(model)))
            close = get_close_matches(pattern, starred, n=3, cutoff=0.4)
            raise InputError(
                f"no module or parameter of {type(model).__name__} is at {pattern!r}",
                f"close to it: {', '.join(close)}" if close else f"it has, for example: {', '.join(starred[:8])}",
            )
        for layer, (path, module) in enumerate(matches):
            name = HeadSite(_ROLES[role][0], layer, _ROLES[role][1])
            if name in sites:
                raise InputError(
                    f"the path {pattern!r} and another one both lead to an attention block with the name {name}",
                    "say which kind each is: Sites.of(model, encoder=..., decoder=..., cross=..., n_heads=...)",
                )
            sites[name] = _site_at(model, name, path, module, n_heads)
    return sites


def _site_at(
    model: nn.Module, name: HeadSite, path: str, module: nn.Module, n_heads: int | Mapping[str, int] | None
) -> Site:
    """Return the site of the output projection at a path.

    The path may also lead to an `nn.MultiheadAttention` or to its `out_proj`.
    """
    above, _, last = path.rpartition(".")
    is_own = isinstance(module, nn.MultiheadAttention) or last != "out_proj"
    mha = module if is_own else model.get_submodule(above)
    count = n_heads.get(name.stack if name.kind == "self" else "cross") if isinstance(n_heads, Mapping) else n_heads
    if isinstance(mha, nn.MultiheadAttention):
        if count is not None and count != mha.num_heads:
            raise InputError(f"{path} has {mha.num_heads} heads, not {count}", "leave n_heads out for such modules")
        return Site(mha.out_proj, tuple(map(name.head, range(mha.num_heads))), mha=mha)
    if not isinstance(count, int):  # such as a pasted n_heads=...
        count = _count_above(model, path, module)
        hint = "" if count is None else f"; a module that contains it says {count}"
        raise InputError(f"the number of heads whose outputs {path} projects is not known", f"give n_heads=...{hint}")
    if candidates := _projections_inside(path, module):
        raise InputError(
            f"{path} is a whole attention block ({type(module).__name__}), not an output projection",
            f"name the output projection inside it: {', '.join(map(_starred, candidates))}",
        )
    width = _width(module)
    if width is not None and (count < 1 or width % count):
        raise InputError(
            f"{count} heads cannot share the {width} inputs of {path}", f"give an n_heads that divides {width}"
        )
    return Site(module, tuple(map(name.head, range(count))))


def _axis(site: Site, head_axis: int | None) -> int | None:
    """Return `head_axis`; raise an error if it is the batch axis (0) or is given for an `nn.MultiheadAttention`.

    The heads of an `nn.MultiheadAttention` share the last axis.
    """
    if head_axis is not None and site.mha is not None:
        raise InputError(
            "head_axis is not allowed for nn.MultiheadAttention",
            "leave it out: the outputs of its heads are concatenated in the last axis",
        )
    if head_axis == 0:
        raise InputError(
            "head_axis=0 is not allowed: axis 0 counts examples, not heads", "for [batch, head, ...] give head_axis=1"
        )
    return head_axis


def _paths(model: nn.Module) -> list[str]:
    """Return the paths of all modules, followed by those of all parameters that are not called weight or bias."""
    named = (path for path, _ in (*model.named_modules(), *model.named_parameters()))
    return [path for path in named if path.rpartition(".")[2] not in ("", "weight", "bias")]


def _projections_inside(path: str, module: nn.Module) -> list[str]:
    """Return the paths inside an attention block that look like output projections; empty for other modules."""
    own, projections = (path.rpartition(".")[2], type(module).__name__), list[str]()
    for layer in () if isinstance(module, nn.Sequential) else layers_inside(module):
        *above, last = layer.split(".")
        if last.lower() in _LAST and any(map(_ATTENTION.search, (*own, *above))):
            projections.append(f"{path}.{layer}")
    return projections


def layers_inside(module: nn.Module) -> list[str]:
    """Return the paths of the weight matrices inside a module; empty unless there are several."""
    inside = [path.removesuffix(".weight") for path, weight in module.named_parameters() if weight.dim() > 1]
    return inside if len(inside) > 1 else []


def _width(module: nn.Module) -> int | None:
    """Return the number of input features of a projection, or None if it is not known."""
    return next((getattr(module, name) for name in ("in_features", "nx") if hasattr(module, name)), None)


def _count_above(model: nn.Module, path: str, module: nn.Module) -> int | None:
    """Return the number of heads according to the modules that contain the module at `path`, or None.

    The number is an attribute of such a module or of its configuration.
    """
    if isinstance(module, nn.MultiheadAttention):
        return module.num_heads
    parts, width = path.split("."), _width(module)
    for end in range(len(parts) - 1, -1, -1):
        above = model.get_submodule(".".join(parts[:end]))
        for holder in (above, getattr(above, "config", None)):
            for name in _COUNTS:
                count = getattr(holder, name, None)
                if isinstance(count, nn.ModuleList):  # one module per head
                    count = len(count)
                if type(count) is int and count > 0 and not (width or 0) % count:
                    return count
    return None


def _role(pattern: str, *, alone: bool) -> str:
    """Infer the role of an attention block from its path: `encoder`, `decoder` (self-attention) or `cross`.

    If the path does not say, return `layer` if the model has a single stack (`alone`), else raise an error.
    """
    stack, _, block = _starred(pattern).rpartition("*")
    if _CROSS.search(block) and not _SELF.search(block):
        return "cross"
    for part in (stack or block).split("."):
        is_encoder, is_decoder = _ENCODER.search(part), _DECODER.search(part)
        if (is_encoder is None) != (is_decoder is None):  # a part called encoder_decoder is ambiguous
            return "encoder" if is_encoder else "decoder"
    if alone:
        return "layer"
    raise InputError(
        f"the path {pattern!r} does not say whether its layers belong to the encoder or to the decoder",
        "say it: Sites.of(model, encoder=..., decoder=..., cross=..., n_heads=...), or layer=... for a model with a "
        "single stack of layers",
    )


def _roles(paths: Sequence[str]) -> list[str]:
    """Infer the role of each path (encoder, decoder, cross or layer) so that all roles fit together."""
    roles = [_role(path, alone=True) for path in paths]
    if "cross" in roles and "decoder" not in roles:  # a decoder without encoder, or a stack with a misleading name
        renamed = {"layer": "decoder"} if "layer" in roles else {"cross": "layer"} if set(roles) == {"cross"} else {}
        return [renamed.get(role, role) for role in roles]
    return roles


def _starred(path: str) -> str:
    """Replace the layer numbers in the path of a module by `*`, so that one pattern stands for all layers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


# --- guesses ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guess:
    """A guess at where a model's heads are: a path pattern whose modules may be output projections."""

    pattern: str
    n_layers: int
    n_heads: int | None
    """The number of heads according to a module that contains the projection; None if no module says it."""
    role: str
    """The stack and kind of attention, inferred from the path: `layer` (single stack), `encoder`, `decoder` or `cross`.
    """


def guess(model: nn.Module) -> list[Guess]:
    """Return guesses at where a model's heads are, from the names of its modules and parameters.

    No attention block occurs in two guesses.
    """
    layers: dict[str, list[tuple[str, nn.Module]]] = {}
    model = unwrap(model)
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            layers.setdefault(_starred(path), []).append((path, module))
        elif pattern := _projection_pattern(model, path, module):
            layers.setdefault(pattern, []).append((path, module))
    for path, parameter in model.named_parameters():
        *above, last = path.split(".")
        if parameter.dim() > 1 and last.lower() in _LAST and any(map(_ATTENTION.search, above)):
            layers.setdefault(_starred(path), []).extend(parameters_at(model, path))
    guesses = []
    for (pattern, matches), role in zip(layers.items(), _roles(list(layers)), strict=True):
        counts = {_count_above(model, *match) for match in matches}
        guesses.append(Guess(pattern, len(matches), counts.pop() if len(counts) == 1 else None, role))
    return guesses


def _projection_pattern(model: nn.Module, path: str, module: nn.Module) -> str | None:
    """Return the path pattern of a module that may be an output projection, or None for other modules."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or any(module.children()):
        return None
    above, _, last = path.rpartition(".")
    number = ""
    if last.isdigit() and above:  # to_out = Sequential(Linear, Dropout), or linears = [q, k, v, output]
        holder, place = model.get_submodule(above), int(last)
        above, _, last = above.rpartition(".")
        is_fourth = last.lower() in _FOUR and place == 3 == len(holder._modules) - 1
        if not (is_fourth or (last.lower() in _LAST and place == 0)):
            return None
        number = f".{place}"
    elif last.lower() not in _LAST:
        return None
    parts = above.split(".")
    blocks = [model.get_submodule(".".join(parts[:end])) for end in range(1, len(parts) + 1)] if above else []
    if any(isinstance(block, nn.MultiheadAttention) for block in blocks):
        return None  # the nn.MultiheadAttention is listed instead
    if not any(_ATTENTION.search(name) for name in (*parts, *(type(block).__name__ for block in blocks))):
        return None
    return f"{_starred(f'{above}.{last}')}{number}"


def in_one_stack(guesses: Sequence[Guess]) -> list[Guess]:
    """Return the guesses with role `layer` if all have the same role, because the model then has only one stack."""
    is_single = len({candidate.role for candidate in guesses}) == 1
    return [replace(candidate, role="layer") for candidate in guesses] if is_single else list(guesses)


def sites_calls(guesses: Sequence[Guess]) -> list[str]:
    """Return the guesses as Python calls of `Sites.of`, for the user to paste.

    There is one call, unless several guesses have the same role.
    """
    calls: list[dict[str, Guess]] = []
    for candidate in guesses:
        free = next((call for call in calls if candidate.role not in call), None)
        if free is None:
            calls.append(free := {})
        free[candidate.role] = candidate
    lines = []
    for call in calls:
        paths = ", ".join(f'{role}="{candidate.pattern}"' for role, candidate in call.items())
        counts = {role: str(candidate.n_heads or "...") for role, candidate in call.items()}
        several = "{" + ", ".join(f'"{role}": {count}' for role, count in counts.items()) + "}"
        heads = several if len(set(counts.values())) > 1 else next(iter(counts.values()))
        lines.append(f"Sites.of(model, {paths}, n_heads={heads})")
    return lines
