"""Find output projections in other people's modules, by path; and guess paths, to be confirmed by whoever asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite

NamedPatterns = str | Sequence[str]
_CROSS = re.compile(r"cross|enc_?dec|enc(oder)?_?att|src_att|memory|context|multihead_attn", re.IGNORECASE)
_SELF = re.compile(r"(^|[._])self", re.IGNORECASE)
_DECODER, _ENCODER = re.compile(r"(^|[._])dec", re.IGNORECASE), re.compile(r"(^|[._])enc", re.IGNORECASE)
_COUNTS = ("num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "h")
_SITES = {"layer": ("layer", "self"), "encoder": ("encoder", "self"), "decoder": ("decoder", "self")}
_SITES |= {"cross": ("decoder", "cross")}
_LAST = frozenset(("out_proj", "o_proj", "c_proj", "w_o", "wo", "to_out", "out_lin", "out", "o", "proj", "dense"))
_LAST |= {"fc_out", "output", "linear_out", "final_linear", "w_out", "out_linear", "fc_o", "output_linear"}


@dataclass(frozen=True)
class SiteMatch:
    """One output projection."""

    name: HeadSite
    projection: nn.Module
    heads: tuple[HeadId, ...]
    mha: nn.MultiheadAttention | None


@dataclass(frozen=True)
class Guess:
    """Modules that look like output projections."""

    pattern: str
    n_layers: int
    n_heads: int | None
    """If some module above says so."""
    role: str
    """`layer`, `encoder`, `decoder` or `cross`, as far as the path tells."""


def unwrap(model: nn.Module) -> nn.Module:
    """The module itself, out of what torch.compile and DataParallel put around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            break
        model = inner
    compiled = [path or "itself" for path, each in model.named_modules() if each._compiled_call_impl is not None]
    if compiled:
        raise InputError(
            f"{type(model).__name__} was compiled in place ({compiled[0]}): compiled code may pass hooks by",
            "instrument a copy that was not compiled",
        )
    return model


def require_unquantised(what: str, projection: nn.Module) -> None:
    """Quantised weights do not add up head by head."""
    home = type(projection).__module__
    if (
        ".quantized" in home
        or "bitsandbytes" in home
        or type(getattr(projection, "weight", None)).__name__
        in (
            "AffineQuantizedTensor",
            "Params4bit",
            "Int8Params",
        )
    ):
        raise InputError(
            f"the output projection of {what} is quantised ({type(projection).__name__})",
            "its heads' contributions do not add up: load the model in float32",
        )


def find_sites(
    model: nn.Module,
    patterns: Sequence[str],
    named: Mapping[str, NamedPatterns],
    n_heads: int | Mapping[str, int] | None,
) -> list[SiteMatch]:
    """Every module that a pattern matches."""
    asked = [(pattern, _role(pattern, alone=len(patterns) == 1)) for pattern in patterns]
    for role, given in named.items():
        if role not in _SITES:
            raise InputError(f"no kind of site {role!r}", f"there are: {', '.join(_SITES)}")
        asked += [(pattern, role) for pattern in ([given] if isinstance(given, str) else given)]
    found: dict[HeadSite, SiteMatch] = {}
    for pattern, role in asked:
        for layer, (path, module) in enumerate(_matches(model, pattern)):
            name = HeadSite(_SITES[role][0], layer, _SITES[role][1])
            if name in found:
                raise InputError(
                    f"{pattern!r} and another pattern both mean {name}",
                    "say which is which: Sites.of(model, encoder=..., decoder=..., cross=..., n_heads=...)",
                )
            found[name] = _found(model, name, path, module, n_heads)
    return list(found.values())


def find_mha(model: nn.Module) -> list[SiteMatch]:
    """PyTorch's own attention modules, which say how many heads they have."""
    found, n_layers = [], Counter[str]()
    attentions = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)]
    for (path, module), role in zip(attentions, _roles([path for path, _ in attentions]), strict=True):
        name = HeadSite(_SITES[role][0], n_layers[role], _SITES[role][1])
        n_layers[role] += 1
        found.append(_found(model, name, path, module, None))
    return found


def guess(model: nn.Module) -> list[Guess]:
    """Modules whose names and places look like those of output projections, as patterns."""
    layers: dict[str, list[tuple[str, nn.Module]]] = {}
    model = unwrap(model)
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) or _looks_like_one(path, module):
            layers.setdefault(_starred(path), []).append((path, module))
    return [
        Guess(pattern, len(found), _agreed(_count_above(model, *each) for each in found), role)
        for (pattern, found), role in zip(layers.items(), _roles(list(layers)), strict=True)
    ]


def sites_calls(guesses: Sequence[Guess]) -> list[str]:
    """The guesses as calls that whoever asked may confirm: one, unless two of them mean the same sites."""
    calls: list[dict[str, Guess]] = []
    for each in guesses:
        free = next((call for call in calls if each.role not in call), None)
        if free is None:
            calls.append(free := {})
        free[each.role] = each
    return [_call(list(call.values())) for call in calls]


def _call(guesses: Sequence[Guess]) -> str:
    paths = ", ".join(f'{each.role}="{each.pattern}"' for each in guesses)
    counts = {each.role: str(each.n_heads or "...") for each in guesses}
    several = "{" + ", ".join(f'"{role}": {count}' for role, count in counts.items()) + "}"
    heads = several if len(set(counts.values())) > 1 else counts[guesses[0].role]
    return f"Sites.of(model, {paths}, n_heads={heads})"


def _looks_like_one(path: str, module: nn.Module) -> bool:
    parts = path.lower().split(".")
    weight = getattr(module, "weight", None)
    if parts[-1] not in _LAST or any(module.children()) or not isinstance(weight, Tensor):
        return False
    return any("att" in part for part in parts[:-1]) and weight.dim() == 2


def _matches(model: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    shape = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    everywhere = model.named_modules(remove_duplicate=False)  # a projection that layers share is not that of one layer
    found = [(path, module) for path, module in everywhere if shape.fullmatch(path)]
    found.sort(key=lambda each: [int(number) for number in re.findall(r"\d+", each[0])])
    if not found:
        starred = dict.fromkeys(_starred(path) for path, _ in model.named_modules() if path)
        close = get_close_matches(pattern, list(starred), n=3, cutoff=0.4)
        raise InputError(
            f"no module of {type(model).__name__} is at {pattern!r}",
            f"close to it: {', '.join(close)}" if close else f"it has, for example: {', '.join(list(starred)[:8])}",
        )
    yield from found


def _found(
    model: nn.Module, name: HeadSite, path: str, module: nn.Module, n_heads: int | Mapping[str, int] | None
) -> SiteMatch:
    mha = module if isinstance(module, nn.MultiheadAttention) else _mha_of(model, path)
    count = n_heads.get(name.stack if name.kind == "self" else "cross") if isinstance(n_heads, Mapping) else n_heads
    if mha is not None:
        if count is not None and count != mha.num_heads:
            raise InputError(f"{path} has {mha.num_heads} heads, not {count}", "leave n_heads out for such modules")
        heads = tuple(map(name.head, range(mha.num_heads)))
        return SiteMatch(name, mha.out_proj, heads, mha)
    if not isinstance(count, int):  # a pasted n_heads=..., perhaps
        count = _count_above(model, path, module)
        outputs = "" if count is None else f"; a module above it says {count}"
        raise InputError(f"how many heads end in {path}?", f"say n_heads=...{outputs}")
    width = _width(module)
    if width is not None and (count < 1 or width % count):
        raise InputError(f"{count} heads cannot share the {width} inputs of {path}", "is n_heads right?")
    return SiteMatch(name, module, tuple(map(name.head, range(count))), None)


def _width(module: nn.Module) -> int | None:
    """How many numbers a projection takes, where it says so."""
    return next((getattr(module, name) for name in ("in_features", "nx") if hasattr(module, name)), None)


def _mha_of(model: nn.Module, path: str) -> nn.MultiheadAttention | None:
    """PyTorch's attention, if it is its projection that is meant."""
    parent, _, last = path.rpartition(".")
    above = model.get_submodule(parent) if parent or last else model
    return above if isinstance(above, nn.MultiheadAttention) and last == "out_proj" else None


def _count_above(model: nn.Module, path: str, module: nn.Module) -> int | None:
    """What a module on the way to this one calls its number of heads."""
    if isinstance(module, nn.MultiheadAttention):
        return module.num_heads
    parts, width = path.split("."), _width(module)
    for end in range(len(parts) - 1, -1, -1):
        above = model.get_submodule(".".join(parts[:end]))
        for holder in (above, getattr(above, "config", None)):
            for name in _COUNTS:
                count = getattr(holder, name, None)
                if type(count) is int and count > 0 and not (width or 0) % count:
                    return count
    return None


def _agreed(counts: Iterable[int | None]) -> int | None:
    """What all say, if they do."""
    outputs = set(counts)
    return outputs.pop() if len(outputs) == 1 else None


def _role(pattern: str, *, alone: bool) -> str:
    """What a path says about the stack and the kind of attention."""
    stack, _, block = _starred(pattern).rpartition("*")
    if _CROSS.search(block) and not _SELF.search(block):
        return "cross"
    for part in (stack or block).split("."):
        is_encoder, is_decoder = _ENCODER.search(part), _DECODER.search(part)
        if (is_encoder is None) != (is_decoder is None):  # a part called encoder_decoder says nothing
            return "encoder" if is_encoder else "decoder"
    if alone:
        return "layer"
    raise InputError(
        f"{pattern!r} does not say which stack it belongs to",
        "name it: Sites.of(model, encoder=..., decoder=..., cross=..., n_heads=...), or layer=... for a single stack",
    )


def _roles(paths: Sequence[str]) -> list[str]:
    """Those of several, so that they fit each other."""
    roles = [_role(path, alone=True) for path in paths]
    if "cross" in roles and "decoder" not in roles:  # a decoder alone; or a single stack whose attention is called so
        turned = {"layer": "decoder"} if "layer" in roles else {"cross": "layer"} if set(roles) == {"cross"} else {}
        return [turned.get(role, role) for role in roles]
    return roles


def _starred(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
