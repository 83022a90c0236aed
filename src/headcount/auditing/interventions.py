"""Audit an intervention: what does a context manager, a hook or a function do to every head?

Head ablations can fail silently: a hook on a block's output reshapes what is already projected into "heads"
(thought-anchors issue 7), slices of `o_proj.output` are set to zero (nnsight issue 525), a mask is loaded and never
reaches the model (optin-transformer-pruning issue 6), or transformers 5 accepts and ignores `head_mask`.

The model runs with the intervention, and everything that enters or leaves a module is recorded. Then the model runs
without the intervention. The first difference is the first change by the intervention. This change is inserted, and the
model runs again: the next difference is the next change, and not a consequence of the first. So every change is found
where it was made. headcount.auditing.dependence tests whether a changed head is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from headcount.auditing.dependence import Probes, acts_through_z, find_even_heads, find_other_examples
from headcount.auditing.head_changes import (
    NO_CHANGE,
    PARTLY,
    REMOVALS,
    SCALED,
    UNTOUCHED,
    OutputChange,
    output_changes,
    z_changes,
)
from headcount.auditing.intervened_pass import IntervenedPass, run_with
from headcount.auditing.module_watch import BlockLayout, Event, ModuleWatch, copied, is_same, tensors_of
from headcount.errors import InputError, InstrumentError
from headcount.experiments.models import OpenModel
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import eval_mode
from headcount.hooks.head_check import check_heads
from headcount.hooks.intervention_proof import difference, tolerance
from headcount.hooks.sites import Sites, unwrap
from headcount.hooks.wrapping import Wrapped, input_names
from headcount.results import Contradiction, Result, Size
from headcount.runs.run import Run

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
EXACTLY, RESIDUAL = "exactly these heads removed", "residual coordinates instead of a head"
NO_HEAD, NO_NUMBER = "changed something that is no head", "output that is not a number"


@dataclass(frozen=True)
class HeadChange:
    """What an intervention did to one head: whether the head was removed, changed or not touched."""

    head: str
    site: str
    is_named: bool
    """Whether the head is one of those that the user wants the intervention to remove."""
    done: str
    """The kind of change. For a head without a change: untouched. For a removed head: zero, mean, constant, resample,
    another head, other. For a head that is changed but not removed: scaled, partly removed, hardly changed, mean over
    positions, mean of features, rearranged, moved, rectified, batch mean subtracted (or position, or feature), other
    values added, even attention, changed, not a number, not tested."""
    detail: str
    """What the intervention did to the head, in words."""
    change: Size
    """The largest change of a value of the head's output, as a fraction of the largest value."""


@dataclass(frozen=True)
class InterventionAudit(Result):
    """The verdict on an intervention, with its effect on every head of the model."""

    ROWS: ClassVar[tuple[str, ...]] = ("rows",)
    name: str
    heads: tuple[str, ...]
    """The heads that should be removed."""
    summary: str
    """One sentence about what the intervention did; it begins with the verdict."""
    verdict: str
    is_right: bool
    """Whether the intervention removes exactly the named heads, and the model is restored afterwards."""
    output_change: Size
    """The largest change of the model's output, as a fraction of the output's largest value."""
    repair: str
    """One line of code that removes exactly the named heads; empty if there is nothing to repair."""
    others: tuple[str, ...]
    """Paths of modules whose inputs or outputs the intervention changed directly, and not by changing a head."""
    rows: tuple[HeadChange, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if `is_named` is not true exactly for the rows of the heads in `heads`."""
        if any(each.is_named != (each.head in self.heads) for each in self.rows):
            yield "rows", "is_named to be true for the heads in `heads`, and false for all others"

    def __str__(self) -> str:
        return "\n".join(filter(None, [self.summary, self.repair and f"repair: {self.repair}"]))


def audit_intervention(
    model: nn.Module | OpenModel | Run,
    inputs: Inputs,
    context: Any,
    heads: str | HeadId | Iterable[str | HeadId],
    *,
    sites: Sites | None = None,
) -> InterventionAudit:
    """Audit what an intervention does to every head, and whether it removes exactly the named heads.

    A head is removed if its replacement does not depend on what the head computes: with another example's output of
    the head, the replacement stays the same. Zeros, means over the batch, constants, noise and another example's
    output remove a head. A scaled, shifted, noisy or rearranged output does not, and neither does uniform attention
    (headcount.auditing.dependence has the definition).

    >>> import headcount, torch
    >>> run = headcount.load("sample:sortedness")
    >>> tokens = torch.randint(100, (4, 8), generator=torch.Generator().manual_seed(0))
    >>> def hook(attention, args, output):  # splits the projected output as if it still were heads
    ...     output.unflatten(-1, (4, -1))[..., 2, :] = 0
    >>> block = run.model.layers[0].self_attention.attention
    >>> audit_intervention(run, tokens, lambda: block.register_forward_hook(hook), ["L0H2"]).verdict
    'residual coordinates instead of a head'
    >>> audit_intervention(run, tokens, headcount.ablated(run, "L0H2"), ["L0H2"]).summary
    'exactly L0H2 removed by zero ablation'

    `context` is a context manager; a function that returns one; a function that registers hooks and returns their
    handles; a function that changes weights; a function that runs the model itself on these inputs; or keyword
    arguments of the model. Functions are called without arguments or, if they take one, with the model. They run
    several times, on these inputs and on others. Give at least two rows that differ, so that a mean and another row's
    output can be told from a head's own. `sites` says where the heads are in a model of an unknown family.

    The model's weights, modules, hooks and training mode are restored, whatever the intervention does.
    """
    opened = _open(model, sites)
    given = [heads] if isinstance(heads, str | HeadId) else heads
    named = tuple(dict.fromkeys(opened.find_head(each) for each in given))
    if not named:
        raise InputError(
            "no heads were named", f"name the heads that should be removed: heads=[{opened.sites.heads[0].short!r}]"
        )
    module = unwrap(opened.module)
    tensors, call = _call_of(module, opened.sites, inputs)
    if sites is not None and not isinstance(inputs, Mapping):  # given by the user and not checked yet
        _require_heads(module, opened.sites, tensors, named)
    layout = BlockLayout.of(module, opened.sites, n_rows=len(tensors[0]))
    with eval_mode(module), torch.no_grad():
        clean = call()
        if n_nan := int(clean.isnan().sum()):
            raise InputError(
                f"the model's output has NaN without any intervention ({n_nan} of {clean.numel()} values)",
                "give other inputs, or repair the model: headcount audit looks for the cause (HC306)",
            )
        _require_same(
            clean,
            call(),
            "the model's output differs between two passes on the same inputs",
            "make the model deterministic: does it keep state between calls, or draw noise?",
        )
        layout.learn(module, call)
        probes = Probes(*find_other_examples(module, layout, tensors, call))
        seen = run_with(context, module, layout, call, opened.inner, probes)
        if seen.even:
            seen.even -= find_even_heads(layout, probes.n_rows, call)
        left = "the model's output has changed, although its modules were restored after the intervention"
        _require_same(clean, call(), left, "undo what the intervention changed outside of modules, such as globals")
        trace = _Trace(layout, seen, clean, _group_size(opened.inner))
        if not trace.is_bypassed:
            trace.run(module, call)
    return _audit(trace, named, type(opened.inner).__name__, "" if sites is None else ", sites=sites")


def _open(model: nn.Module | OpenModel | Run, sites: Sites | None) -> OpenModel:
    if isinstance(model, OpenModel):
        return model
    module = model.model if isinstance(model, Run) else model
    if not isinstance(module, nn.Module):
        raise InputError(
            f"{type(model).__name__} is not a model", "give a torch.nn.Module, or a model from headcount.load()"
        )
    return OpenModel.of_module(module, sites)


def _group_size(model: nn.Module) -> int:
    """Return how many query heads share keys and values, from the Hugging Face configuration; 1 if unknown."""
    config = getattr(model, "config", None)
    n_heads, n_shared = (getattr(config, f"num_{name}_heads", None) for name in ("attention", "key_value"))
    return n_heads // n_shared if n_heads and n_shared else 1


def _call_of(module: nn.Module, sites: Sites, inputs: Inputs) -> tuple[list[Tensor], Callable[..., Tensor]]:
    """Return the inputs on the model's device, and a function that runs the model with further keyword arguments."""
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    given = [] if named else [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not (named or given) or not all(isinstance(each, Tensor) for each in (*given, *named.values())):
        raise InputError(
            "the inputs must be tensors", "give one tensor, several in the order of forward(), or a mapping by name"
        )
    caller = Wrapped(module, sites, tuple(named) or input_names(module))
    moved = {name: each.to(device) for name, each in named.items()}
    in_order = [cast(Tensor, each).to(device) for each in given]
    return [*in_order, *moved.values()], partial(caller, *in_order, **moved)


def _require_heads(module: nn.Module, sites: Sites, tensors: Sequence[Tensor], heads: Iterable[HeadId]) -> None:
    """Raise an error if the slices of z (the heads' outputs) at these sites are not whole heads."""
    for name, check in check_heads(module, sites, tensors, dict.fromkeys(head.site for head in heads)).items():
        if check.fault:
            what = f"the slices of z (the head outputs) at {name} are not whole heads: {check.fault}"
            raise InstrumentError(what, f"check n_heads={len(sites[name].heads)} and the paths of modules in `sites`")


def _require_same(one: Tensor, other: Tensor, what: str, advice: str) -> None:
    if not (one.shape == other.shape and (torch.equal(one, other) or difference(one, other) <= tolerance(one.dtype))):
        raise InputError(what, advice)


# --- changes, one after the other -------------------------------------------------------------------------------------


class _Comparison:
    """A pass without the intervention that inserts all changes known so far, and stops at the next difference."""

    def __init__(
        self, layout: BlockLayout, kept: Mapping[Event, Any], pinned: Collection[Event], passed: Collection[Event]
    ) -> None:
        """Create a comparison.

        `kept` are the tensors recorded with the intervention, and `pinned` are the changes known so far. `passed` are
        changes before z (the heads' outputs); they are not inserted, because the change of z already shows them.
        """
        self._layout, self._kept, self._pinned, self._passed = layout, kept, pinned, passed
        self._entered = Counter[str]()
        self.z: dict[HeadSite, Tensor] = {}
        """For each block, z (the heads' outputs) in this pass, up to the first difference."""
        self.first: tuple[Event, list[Tensor]] | None = None
        """The first module call whose tensors differ from the recorded pass, with its tensors here; None if none do."""
        self.missed: HeadSite | None = None
        """The last attention block whose output projection was not called under the intervention."""

    def meet(self, event: Event, tree: Any) -> Any:
        """Compare a module's tensors with those recorded under the intervention, or insert a known change.

        Return the tensors with which the pass continues.
        """
        self._entered[event.path] += not event.is_output
        if self.first is not None:
            return tree
        site = self._layout.site_of(event)
        if event in self._pinned:
            tree = copied(self._kept[event])
        elif event not in self._kept:
            self.missed = site or self.missed
        elif not (self._is_same(event, tree) or event in self._passed or self._is_before_z(event)):
            self.first = event, tensors_of(event, copied(tree))
        if site is not None:
            self.z[site] = tensors_of(event, tree)[0].clone()
        return tree

    def _is_same(self, event: Event, tree: Any) -> bool:
        pairs = zip(tensors_of(event, tree), tensors_of(event, self._kept[event]), strict=False)
        return all(is_same(*pair) for pair in pairs)

    def _is_before_z(self, event: Event) -> bool:
        """Return whether the event is inside attention but before z, such as queries; z then shows any change of it."""
        for path, attention in self._layout.attentions.items():
            if event.path == attention:
                return not event.is_output
            if event.path.startswith(f"{attention}.") and event.path != path:
                return self._entered[attention] > self._entered[path]
        return False


class _Trace:
    """A search for all changes that an intervention makes to heads, to the residual stream and to other modules."""

    def __init__(self, layout: BlockLayout, seen: IntervenedPass, clean: Tensor, group_size: int = 1) -> None:
        """Create a trace; `group_size` is the number of heads that share keys and values."""
        self.layout, self.seen, self.clean, self.group_size = layout, seen, clean, group_size
        self.heads: dict[HeadId, OutputChange] = {}
        self.residual: list[str] = []
        """For each changed slice of the residual stream, a description in words."""
        self.others: list[Event] = []
        self.is_complete = True

    def run(self, module: nn.Module, call: Callable[[], Tensor]) -> None:
        """Find the changes one after the other; each pass inserts all changes that are already known."""
        pinned, passed = set[Event](), set[Event]()
        for _ in range(4 * len(self.layout.sites) + 8):
            comparison = _Comparison(self.layout, self.seen.kept, pinned, passed)
            with ModuleWatch(module, self.layout.sites, comparison.meet):
                call()
            if comparison.first is None:
                return
            event, before = comparison.first
            changed, own = self.seen.kept[event], self.seen.probes.own
            if acts_through_z(module, self.layout, call, event, changed, own, self.clean):
                passed.add(event)
                continue
            self._judge(comparison, event, before)
            pinned.add(event)
        self.is_complete = False

    def _judge(self, comparison: _Comparison, event: Event, before: list[Tensor]) -> None:
        after = tensors_of(event, self.seen.kept[event])
        own, new = next(pair for pair in zip(before, after, strict=False) if not is_same(*pair))
        if (site := self.layout.site_of(event)) is not None:
            self._keep(site, self._changes_of_z(site, new, own))
            return
        path = self.layout.holders.get(event.path)
        sharing = self.layout.projections[path] if path and event.is_output else ()
        site = sharing[event.n % len(sharing)] if sharing else comparison.missed
        changes = None
        if site in comparison.z and own.shape == new.shape:
            mha, is_projection = self.layout.sites[site].mha, event.path in self.layout.projections
            is_turned = mha is not None and not (mha.batch_first or is_projection) and own.dim() == 3
            change = (new - own).transpose(0, 1) if is_turned else new - own
            changes = output_changes(self.layout.sites[site], comparison.z[site], change)
        if site is not None and changes is not None:
            self._keep(site, changes)
        elif coordinates := self._coordinates(event, own, new):
            self.residual.append(coordinates)
        else:
            self.others.append(event)

    def _changes_of_z(self, site: HeadSite, new: Tensor, own: Tensor) -> list[OutputChange]:
        if new.shape != own.shape:
            raise InputError(
                f"the intervention changes the shape of z (the head outputs) at {site.short}: {list(own.shape)} "
                f"becomes {list(new.shape)}, so heads cannot be compared one by one",
                "set the outputs of heads to zero instead of cutting the heads out",
            )
        heads = self.layout.sites[site].heads
        followings = [self.seen.probes.following(head, i) for i, head in enumerate(heads)]
        is_even = [head in self.seen.even for head in heads]
        elsewhere = [grid for other, grid in self.seen.probes.own.items() if other != site]
        grids = self.layout.grid(site, new), self.layout.grid(site, own)
        return z_changes(*grids, followings, is_even, elsewhere)

    def _keep(self, site: HeadSite, changes: Sequence[OutputChange]) -> None:
        for head, each in zip(self.layout.sites[site].heads, changes, strict=True):
            if each.kind != UNTOUCHED:
                self.heads[head] = each

    def described(self, heads: Sequence[HeadId]) -> str:
        """Return in words how these heads are changed; heads with equal changes are listed together."""
        groups: dict[str, list[HeadId]] = {}
        for head in heads:
            if head in self.heads:
                groups.setdefault(self.heads[head].detail, []).append(head)
        return ", ".join(f"{_names(group)} {detail}" for detail, group in groups.items())

    def relation(self) -> str:
        """Return in brackets what all changed heads have in common, such as their block; empty if nothing."""
        names = {head.site for head in self.heads}
        whole = [name for name in names if set(self.layout.sites[name].heads) <= set(self.heads)]
        if len(whole) == len(names) and len(self.heads) > 1:
            return f" (all heads of {', '.join(sorted(name.short for name in whole))})"
        size = self.group_size
        groups = {(head.site, head.index // size) for head in self.heads}
        is_grouped = size > 1 and all(site.head(i * size + j) in self.heads for site, i in groups for j in range(size))
        return " (they share keys and values)" if is_grouped else ""

    @property
    def is_bypassed(self) -> bool:
        """Whether the intervention acts only while it is recorded, because PyTorch's fast path calls no submodule."""
        return torch.equal(self.clean, self.seen.output) and not is_same(self.clean, self.seen.watched)

    @property
    def output_change(self) -> float:
        """The largest change of the model's output, as a fraction of the output's largest value."""
        is_alike = self.seen.output.shape == self.clean.shape and not self.n_nan
        return difference(self.clean, self.seen.output) if is_alike else 1.0

    @property
    def n_nan(self) -> int:
        """The number of NaN values in the model's output with the intervention."""
        return int(self.seen.output.isnan().sum())

    def _coordinates(self, event: Event, own: Tensor, new: Tensor) -> str:
        """Describe the coordinates of the residual stream that the intervention changes as if they were a head.

        Return an empty text if it changes no such coordinates.
        """
        counts = {len(self.layout.sites[sharing[0]].heads) for sharing in self.layout.projections.values()}
        if own.shape != new.shape or own.shape[-1] not in self.layout.widths.values():
            return ""
        apart, width = (own != new).flatten(0, -2).any(dim=0), own.shape[-1]
        for n_heads in sorted(n for n in counts if width % n == 0):
            slices = apart.unflatten(0, (n_heads, -1)).any(dim=1).nonzero().flatten().tolist()
            if len(slices) < n_heads:
                d_head, is_one_piece = width // n_heads, slices[-1] - slices[0] + 1 == len(slices)
                span = f"{slices[0] * d_head} to {(slices[-1] + 1) * d_head - 1}"
                which = span if is_one_piece else f"{len(slices) * d_head}"
                to = "to other values" if new[..., apart].any() else "to zero"
                return f"coordinates {which} of {event} ({width} in all) are set {to}"
        return ""


# --- the result -------------------------------------------------------------------------------------------------------


def _audit(trace: _Trace, named: Sequence[HeadId], name: str, given: str) -> InterventionAudit:
    verdict, rest = _verdict(trace, named)
    first = f"exactly {rest}" if verdict == EXACTLY else f"{verdict}: {rest}"
    is_right = verdict == EXACTLY and not trace.seen.left
    changes = {head: trace.heads.get(head, NO_CHANGE) for head in trace.layout.sites.heads}
    return InterventionAudit(
        name=name,
        heads=tuple(head.short for head in named),
        summary="; ".join([first, *_further_sentences(trace, verdict)]),
        verdict=verdict,
        is_right=is_right,
        output_change=trace.output_change,
        repair="" if is_right else _repair(trace.layout, named, given),
        others=tuple(dict.fromkeys(event.path for event in trace.others)),
        rows=tuple(
            HeadChange(head.short, str(head.site), head in named, change.kind, change.detail, change.size)
            for head, change in changes.items()
        ),
    )


def _verdict(trace: _Trace, named: Sequence[HeadId]) -> tuple[str, str]:
    """Return the verdict on the intervention, and the rest of the summary's first sentence."""
    wanted, touched = set(named), set(trace.heads)
    others = [head for head in trace.heads if head not in wanted]
    missing, untouched = [head for head in named if head not in touched], f"{_names(named)} untouched"
    if trace.n_nan:
        n = trace.seen.output.numel()
        first = trace.described(list(trace.heads)) or (f"the first is {trace.others[0]}" if trace.others else untouched)
        return NO_NUMBER, f"{trace.n_nan} of {n} values of the model's output are NaN with the intervention; {first}"
    if not touched and not trace.residual and not trace.others:
        return "did nothing", _why_nothing(trace)
    if not touched and trace.residual:
        every = "every head of the block writes into each of these coordinates"
        return RESIDUAL, f"{trace.residual[0]}, and {every}; {untouched}"
    if not touched:
        return NO_HEAD, f"{trace.others[0]}; {untouched}"
    if not touched & wanted:
        verdict, why = _instead(others, named)
        return verdict, f"{trace.described(others)}{trace.relation()}; {untouched}: {why}"
    changes, left = trace.described(named), f"; {_names(missing)} untouched" if missing else ""
    if others:
        return "other heads as well", f"{changes}; but also {trace.described(others)}{trace.relation()}{left}"
    if missing:
        return "not all of them", changes + left
    if kept := {trace.heads[head].kind for head in named} - set(REMOVALS):
        return {SCALED: "scaled, not removed", PARTLY: "removed in places only"}.get(min(kept), "not removed"), changes
    return ("something else as well" if trace.residual or trace.others else EXACTLY), changes


def _instead(others: Sequence[HeadId], named: Sequence[HeadId]) -> tuple[str, str]:
    """Return the verdict, and the likely mistake, if only other heads than the named ones are changed."""
    if {head.index for head in others} == {head.index for head in named}:
        return "wrong layer", "the index is right, the layer is not"
    if {head.site for head in others} != {head.site for head in named}:
        return "other heads instead", "neither the layer nor the index is right"
    steps = {other.index - head.index for other, head in zip(sorted(others), sorted(named), strict=False)}
    is_shifted = len(others) == len(named) and steps in ({1}, {-1})
    return "other heads instead", f"the layer is right, the index is {'off by one' if is_shifted else 'not'}"


def _further_sentences(trace: _Trace, verdict: str) -> Iterator[str]:
    """Yield further sentences of the summary: other changes, and what the intervention did not undo."""
    if trace.residual and verdict != RESIDUAL:
        yield f"also, {trace.residual[0]}"
    more = trace.others[verdict == NO_HEAD :]
    if more:
        rest = f" and {len(more) - 1} more" if len(more) > 1 else ""
        yield f"the intervention also changes {more[0]}{rest}"
    if trace.heads and torch.equal(trace.clean, trace.seen.output):
        yield "but the model's output is bit for bit the same, so nothing depends on these heads"
    if not trace.is_complete:
        yield "there are further changes, which were not traced"
    if trace.seen.left:
        yield (
            f"when its context ended, the intervention had not undone these changes: {', '.join(trace.seen.left[:3])} "
            "(this audit has undone them)"
        )


def _names(heads: Sequence[HeadId]) -> str:
    """Return the names of up to eight heads as a list in words, with the number of all others."""
    names = ", ".join(head.short for head in heads[:8])
    return names + (f" and {len(heads) - 8} more" if len(heads) > 8 else "")


def _why_nothing(trace: _Trace) -> str:
    """Return in words that the intervention changed nothing, with the most likely reason."""
    seen = trace.seen
    is_equal = torch.equal(seen.output, trace.clean)
    same = "bit for bit the same" if is_equal else f"the same but for rounding ({trace.output_change:.0e})"
    silent = [path for path in seen.hooked if Event(path, False, 0) not in seen.kept or path in seen.uncalled]
    if seen.arguments:
        why = f"the model accepts and ignores its arguments ({', '.join(seen.arguments)})"
    elif not seen.hooked:
        why = "no hook was in place when the model ran"
    elif trace.is_bypassed:
        why = f"PyTorch's fast path computes whole layers without calling {seen.hooked[0]}"
    elif silent:
        why = f"the model never calls {silent[0]}, where the intervention has its hook"
    else:
        why = f"the hook at {seen.hooked[0]} ran and changed nothing"
    return f"the model's output is {same} with and without the intervention: {why}"


def _repair(layout: BlockLayout, named: Sequence[HeadId], given: str) -> str:
    """Return one line of code that removes exactly the named heads."""
    line = f"with headcount.ablated(model, [{', '.join(repr(head.short) for head in named)}]{given}):"
    places = {head.site for head in named}
    site = layout.sites[named[0].site]
    if len(places) > 1 or site.mha is not None:
        return line
    slots = [site.heads.index(head) for head in named]
    which = slots[0] if len(slots) == 1 else slots
    hook = f"args[0].unflatten(-1, ({len(site.heads)}, -1))[..., {which}, :] = 0"
    return f"{line}  # or, in a pre-hook on {layout.path_of(named[0].site)}: {hook}"
