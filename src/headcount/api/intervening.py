"""Act on heads around code of one's own, and read them: ablate, patch, attention, outputs.

with headcount.ablated(model, ["L0H3", "L2H1"], by="mean", inputs=tokens):
    model.generate(prompt)                                  # anybody's decoding or evaluation loop
z = headcount.head_outputs(model, other_tokens)
with headcount.patched(model, {"L0H3": z["L0H3"]}):         # that head as it was in another run
    model(tokens)
headcount.attention(model, tokens)["L0H3"]                  # [batch, query, key]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.api.opening import PROVEN_ON, AnyModel, open_model
from headcount.data.dataset import LOSS, EvalBatch, EvalDataset
from headcount.errors import InputError
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import means_of
from headcount.experiments.models import SPLITS, OpenModel, RunModel
from headcount.heads import HeadId, HeadSite
from headcount.hooks import REPLACEMENTS
from headcount.hooks.attention import attention_of
from headcount.hooks.decoding import DecodingPositions
from headcount.hooks.gates import Capture, Gates, ValuesOf, closed_gates, eval_mode
from headcount.hooks.proof import SiteProof, prove
from headcount.hooks.replacements import Replacement, ReplacementInputs
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import wrap

Inputs: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | str
"""A model's tensors: one, several in order, or by name as a tokenizer gives them; or a text, where it takes texts."""
MASKS = {"attention_mask": ("layer", "encoder"), "decoder_attention_mask": ("decoder",)}
"""Of named inputs, those that say which positions of which stacks hold tokens."""
MEAN_BATCHES = 8
"""Batches of a task's examples, of 128 each, that means are taken over, from short ones to long ones."""
MOST_ANSWERED = 24
"""Tokens of its own answer that an encoder-decoder is fed, if it is given none."""


class ByHead(Mapping[HeadId, Tensor]):
    """A tensor for each head, found by its name: `found["L0H3"]`."""

    def __init__(self, axes: str, tensors: Mapping[HeadId, Tensor]) -> None:
        self._axes, self._tensors = axes, dict(tensors)

    def __getitem__(self, head: str | HeadId) -> Tensor:
        found = HeadId.parse(head) if isinstance(head, str) else head
        if found not in self._tensors:
            names = ", ".join(each.short for each in list(self)[:40])
            raise InputError(f"no head {str(found)!r} here", f"there are: {names}")
        return self._tensors[found]

    def __contains__(self, head: object) -> bool:
        return (HeadId.parse(head) if isinstance(head, str) else head) in self._tensors

    def __iter__(self) -> Iterator[HeadId]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        names = [head.short for head in self]
        span = f"{names[0]} to {names[-1]}" if len(names) > 1 else "".join(names)
        shapes = dict.fromkeys(str(list(tensor.shape)) for tensor in self.values())
        return f"{len(names)} heads, {span}: [{self._axes}] of {' or '.join(shapes)}"


@dataclass(frozen=True, repr=False)
class HeadIntervention:
    """Heads that are ablated or patched for as long as a context lasts."""

    model: OpenModel
    """Opened, if it was named: `model.predict` and `model.module` are acted on."""
    heads: tuple[HeadId, ...]
    what: str
    n_proven: int
    """Attention blocks at which the hooks were proven before the context began; 0 if there was nothing to prove on."""
    _gates: Gates = field(repr=False)

    @property
    def calls(self) -> Counter[HeadSite]:
        """How often each block was passed, and acted on, so far."""
        return self._gates.calls.copy()

    def __repr__(self) -> str:
        names, most = [head.short for head in self.heads], 6
        more = f" and {len(names) - most} more" if len(names) > most else ""
        proven = f"proven at {self.n_proven} blocks" if self.n_proven else "not proven before"
        where = self.model.label or type(self.model.inner).__name__
        return f"{', '.join(names[:most])}{more} of {where} {self.what}: {self.calls.total()} calls so far, {proven}"


# --- acting -----------------------------------------------------------------------------------------------------------


@contextmanager
def ablated(
    model: AnyModel,
    heads: str | HeadId | Iterable[str | HeadId],
    *,
    by: str = "zero",
    inputs: Inputs | Path | EvalDataset | None = None,
    sites: Sites | None = None,
    run_adapter: bool = False,
) -> Iterator[HeadIntervention]:
    """Ablate these heads for as long as the context lasts, whatever calls the model: a loop of one's own, `generate`.

    >>> import headcount
    >>> run = headcount.load("sample:addition")
    >>> with headcount.ablated(run, ["E0H2"]):
    ...     run.predict("999+100")
    '1199'
    >>> run.predict("999+100")
    '1099'

    `by` says what replaces a head's output: "zero" nothing; "resample" its output for the row before in the same batch,
    so that batches need two rows; "mean" its mean over `inputs` (tensors, a file or split, a dataset), or over examples
    of the model's task. The mean is that of the position; of a position that no input had, that of all positions. In
    decoding with a cache, Hugging Face's caches tell the position; elsewhere a pass over a single position is taken to
    follow the last pass of its block, unless the encoder has run since.

    That hooks act is proven first on `inputs`, or on examples of the model's task; where there are none, an error at
    the end names the heads whose block was never passed.
    """
    opened, replacement = (
        open_model(model, sites=sites, run_adapter=run_adapter),
        cast(Replacement, REPLACEMENTS.get(by)),
    )
    found = _found(opened, [heads] if isinstance(heads, str | HeadId) else heads)
    gates = closed_gates(opened.sites, found)
    experiment = _experiment(opened, inputs, required=replacement.needs_mean)
    means = means_of(experiment)[0] if replacement.needs_mean and experiment else {}
    proven, positions = _proven(opened, experiment, gates), DecodingPositions()

    def values_at(site: HeadSite) -> ValuesOf:
        def values(z: Float[Tensor, "row query head d_head"]) -> Tensor | None:
            if replacement.needs_donors and len(z) < 2:
                raise InputError(
                    f"by={by!r} takes what another row of the batch has, and this pass has one row",
                    "pass two rows or more, or ablate by zero or mean",
                )
            first = positions.first(site, z.shape[1])
            mean = _at(means[site].to(z), first, z.shape[1]) if means else None
            donors = torch.arange(len(z), device=z.device).roll(1)
            return replacement.make(ReplacementInputs(z, mean, donors))

        return values

    values = {site: values_at(site) for site in gates}
    with positions.watching(opened.inner, opened.sites), Gates(opened.sites, gates, values) as acting:
        yield HeadIntervention(opened, found, f"ablated by {by}", len(proven), acting)


@contextmanager
def patched(
    model: AnyModel,
    outputs: Mapping[Any, Float[Tensor, "#batch #query d_head"]],
    *,
    inputs: Inputs | None = None,
    sites: Sites | None = None,
    run_adapter: bool = False,
) -> Iterator[HeadIntervention]:
    """Put these outputs in the place of heads' own for as long as the context lasts; see `head_outputs`.

    >>> import headcount, torch
    >>> run = headcount.load("sample:addition")
    >>> z = headcount.head_outputs(run, "999+101")
    >>> with headcount.patched(run, {"X1H1": z["X1H1"]}):
    ...     patched = headcount.head_outputs(run, "374+814")
    >>> torch.equal(patched["X1H1"], z["X1H1"])
    True

    An output is [batch, query, d_head]; an axis of 1 stands for all rows or all positions. While a model decodes with a
    cache, each step gets its position of the output, and positions after those are left as they are. Proven as
    `ablated` is.
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    patches = dict(zip(_found(opened, outputs), outputs.values(), strict=True))
    gates, positions = closed_gates(opened.sites, patches), DecodingPositions()
    proven = _proven(opened, _experiment(opened, inputs), gates)

    def values_at(site: HeadSite) -> ValuesOf:
        def values(z: Float[Tensor, "row query head d_head"]) -> Tensor:
            first, made = positions.first(site, z.shape[1]), z.clone()
            for place, head in enumerate(opened.sites[site].heads):
                if head in patches:
                    _put(head, made[..., place, :], patches[head].to(z), first)
            return made

        return values

    values = {site: values_at(site) for site in gates}
    with positions.watching(opened.inner, opened.sites), Gates(opened.sites, gates, values) as acting:
        yield HeadIntervention(opened, tuple(patches), "patched", len(proven), acting)


def _found(opened: OpenModel, heads: Iterable[str | HeadId]) -> tuple[HeadId, ...]:
    found = tuple(dict.fromkeys(opened.find_head(head) for head in heads))
    if not found:
        raise InputError("no heads to act on", f"name some: {', '.join(head.short for head in opened.sites.heads[:4])}")
    return found


def _at(mean: Float[Tensor, "position head d_head"], first: int, n_queries: int) -> Tensor:
    """The mean at these positions; where there is none, the mean of those there are."""
    known = mean[first : first + n_queries]
    return torch.cat([known, mean.mean(dim=0).expand(n_queries - len(known), -1, -1)])


def _put(head: HeadId, own: Tensor, patch: Tensor, first: int) -> None:
    """Write a patch over a head's own output [batch, query, d_head]."""
    given = patch
    if (first or own.shape[1] == 1) and patch.dim() == 3 and patch.shape[1] > 1:  # one step of decoding with a cache
        given = patch[:, first : first + own.shape[1]]
        own = own[:, : given.shape[1]]
    fits = given.dim() <= own.dim() and all(
        n in (1, m) for n, m in zip(given.shape[::-1], own.shape[::-1], strict=False)
    )
    if not fits or given.shape[-1] != own.shape[-1]:
        raise InputError(
            f"the patch for {head.short} has shape {tuple(patch.shape)}, its output in this pass {tuple(own.shape)}",
            "give [batch, query, d_head], each axis as in the pass; batch and query may be 1",
        )
    own.copy_(given.expand_as(own))


def _proven(opened: OpenModel, experiment: Experiment | None, at: Iterable[HeadSite]) -> tuple[SiteProof, ...]:
    """Proof at these blocks; nothing if there are no examples: then calls are counted."""
    if experiment is None:
        return ()
    few = [each[:PROVEN_ON] for each in experiment.batches[0].inputs]
    return prove(experiment.model, opened.sites, few, tuple(at))


# --- reading ----------------------------------------------------------------------------------------------------------


def attention(model: AnyModel, inputs: Inputs, *, sites: Sites | None = None, run_adapter: bool = False) -> ByHead:
    """Every head's attention weights on these inputs, in one pass with dropout off.

    >>> import headcount
    >>> headcount.attention("sample:addition", "374+814")
    24 heads, E0H0 to X1H3: [batch, query, key] of [1, 7, 7] or [1, 4, 4] or [1, 4, 7]

    An encoder-decoder that is given no decoder input is fed its own answer.
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    module, batch = input_batch(opened, inputs)
    found = attention_of(module, opened.sites, *batch.inputs)
    heads = {head: found[head.site][:, opened.sites[head.site].heads.index(head)] for head in opened.sites.heads}
    return ByHead("batch, query, key", heads)


def head_outputs(model: AnyModel, inputs: Inputs, *, sites: Sites | None = None, run_adapter: bool = False) -> ByHead:
    """What every head found (z: its weighted values, before the output projection), in one pass with dropout off.

    >>> import headcount
    >>> headcount.head_outputs("sample:addition", "374+814")["X1H2"].shape
    torch.Size([1, 4, 32])
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    module, batch = input_batch(opened, inputs)
    with eval_mode(module), torch.no_grad(), Capture(opened.sites) as seen:
        module(*batch.inputs)
    found = {site: seen.z(site) for site in opened.sites}
    heads = {head: found[head.site][..., opened.sites[head.site].heads.index(head), :] for head in opened.sites.heads}
    return ByHead("batch, query, d_head", heads)


# --- inputs -----------------------------------------------------------------------------------------------------------


def _experiment(opened: OpenModel, inputs: Any, *, required: bool = False) -> Experiment | None:
    """The model on given inputs, on a file or split, or on examples of its task; None if it has no examples."""
    is_file = isinstance(inputs, str) and (inputs in SPLITS or Path(inputs).is_file())
    if not (inputs is None or isinstance(inputs, Path | EvalDataset) or is_file):
        module, batch = input_batch(opened, inputs)
        return Experiment.of_batches(module, opened.sites, (batch,), LOSS, "given inputs")
    try:
        experiment = opened.experiment(inputs)
    except InputError as error:
        if inputs is not None:
            raise
        if required:
            raise InputError("a mean is taken over examples, and none are known", "give some: inputs=...") from error
        return None
    over = experiment.reference or experiment.batches
    places = np.linspace(0, len(over) - 1, MEAN_BATCHES).round().astype(int)
    return replace(experiment, reference=tuple(over[i] for i in dict.fromkeys(places.tolist())))


def input_batch(opened: OpenModel, inputs: Inputs) -> tuple[nn.Module, EvalBatch]:
    """What is called, and the tensors that it is called with."""
    device = next((each.device for each in opened.module.parameters()), torch.device("cpu"))
    if isinstance(inputs, str):
        return opened.module, _as_batch(_text(opened, inputs), device)
    if isinstance(inputs, Mapping):
        _require_tensors(inputs.values())
        named = {name: each.to(device) for name, each in inputs.items()}
        module = wrap(opened.inner, opened.sites, inputs=tuple(named := _with_decoder_input(opened.inner, named)))
        masks = {stack: named[name].bool() for name, stacks in MASKS.items() if name in named for stack in stacks}
        return module, _as_batch(named.values(), device, masks)
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    _require_tensors(tensors)
    # Tensors of a bare model of Hugging Face's are its usual inputs in their usual order, whatever its forward() says.
    is_bare = type(opened) is OpenModel
    return wrap(opened.module, opened.sites) if is_bare else opened.module, _as_batch(tensors, device)


def _as_batch(tensors: Iterable[Tensor], device: torch.device, masks: Mapping[str, Tensor] | None = None) -> EvalBatch:
    inputs = tuple(each.to(device) for each in tensors)
    return EvalBatch(np.arange(len(inputs[0])), inputs, {}, None, masks or {})


def _require_tensors(tensors: Iterable[object]) -> None:
    kinds = [type(each).__name__ for each in tensors if not isinstance(each, Tensor)]
    if kinds:
        raise InputError(f"inputs of {kinds[0]}", 'give tensors; of a tokenizer, with return_tensors="pt"')


def _text(opened: OpenModel, text: str) -> tuple[Tensor, ...]:
    """One text or example as the model takes it; a run's decoder is fed the run's own answer."""
    if not isinstance(opened, RunModel):
        return opened.text_input(text).inputs
    run = opened.run
    source = torch.from_numpy(cast(Any, run.task).encode(run.task.parse(text)).source)
    fed = run.predict_one(text, with_attention=False).decoder_input
    return (source, torch.tensor([[run.task.tokens.index(token) for token in fed]])) if fed else (source,)


def _with_decoder_input(model: Any, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """An encoder-decoder of Hugging Face's is fed its own answer, if it is given none."""
    is_fed = any(name.startswith("decoder_input") or name == "labels" for name in named)
    if is_fed or not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return named
    with torch.no_grad():
        answer: Tensor = model.generate(**named, max_new_tokens=MOST_ANSWERED, do_sample=False)
    return named | {"decoder_input_ids": answer[:, :-1] if answer.shape[1] > 1 else answer}
