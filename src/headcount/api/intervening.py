"""Ablate or patch heads around your own code, and read their attention weights and outputs.

with headcount.ablated(model, ["L0H3", "L2H1"], by="mean", inputs=tokens):
    model.generate(prompt)                                  # any decoding or evaluation loop
z = headcount.head_outputs(model, other_tokens)
with headcount.patched(model, {"L0H3": z["L0H3"]}):         # with the output for other inputs
    model(tokens)
headcount.attention(model, tokens)["L0H3"]                  # [batch, query, key]
x = headcount.streams(model, other_tokens)
with headcount.patched(model, {"L0.stream": x["L0.stream"]}, queries=[3], inputs=tokens):   # one position of a stream
    model(tokens)
headcount.path_patched(model, "L0H3", "L2H1", other_tokens, tokens)     # the effect of L0H3 on L2H1 alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.api.opening import AnyModel, open_model
from headcount.data.dataset import LOSS, EvalBatch, EvalDataset
from headcount.errors import InputError
from headcount.experiments.donors_and_means import means_of
from headcount.experiments.experiment import Experiment
from headcount.experiments.models import SPLITS, OpenModel, RunModel
from headcount.heads import HeadId, HeadSite
from headcount.hooks import REPLACEMENTS
from headcount.hooks.attention import attention_of
from headcount.hooks.decoding import DecodingPositions
from headcount.hooks.gates import Capture, Gates, ValuesOf, closed_gates, eval_mode
from headcount.hooks.intervention_proof import SiteProof, first_tensor, prove
from headcount.hooks.patching import path_patch
from headcount.hooks.replacements import Replacement, ReplacementInputs
from headcount.hooks.sites import Sites
from headcount.hooks.streams import KINDS as STREAM_KINDS
from headcount.hooks.streams import PatchedPositions, StreamCapture, StreamId, StreamPatches, Streams
from headcount.hooks.wrapping import wrap
from headcount.limits import PROVEN_ON
from headcount.models.transformer import DecoderOnly

Inputs: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | str
"""Inputs of a model: a tensor, several in order, tensors by name as from a tokenizer, or a text."""
MASKS = {"attention_mask": ("layer", "encoder"), "decoder_attention_mask": ("decoder",)}
"""Maps the name of an attention mask among a model's inputs to the stacks (such as the encoder) that it masks."""
MEAN_BATCHES = 8
"""Number of batches, of 128 examples each, over which heads' mean outputs are computed; from short to long examples."""
MOST_ANSWERED = 24
"""Largest number of tokens that an encoder-decoder generates as its own decoder input, if none is given."""


class ByHead(Mapping[HeadId, Tensor]):
    """One tensor for each head, found by the head or its name: `outputs["L0H3"]`."""

    def __init__(self, axes: str, tensors: Mapping[HeadId, Tensor]) -> None:
        self._axes, self._tensors = axes, dict(tensors)

    def __getitem__(self, head: str | HeadId) -> Tensor:
        head = HeadId.parse(head) if isinstance(head, str) else head
        if head not in self._tensors:
            names = ", ".join(known.short for known in list(self)[:40])
            raise InputError(f"no head {str(head)!r}", f"choose one of {names}")
        return self._tensors[head]

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
    """The heads that are ablated or patched inside a `with` block, and how often they were changed so far."""

    model: OpenModel
    """The opened model, whose `predict` and `module` run with the intervention."""
    heads: tuple[HeadId, ...]
    what: str
    n_proven: int
    """Number of attention blocks whose hooks were verified before the `with` block; 0 if there were no inputs for that.
    """
    _gates: Gates = field(repr=False)

    @property
    def calls(self) -> Counter[HeadSite]:
        """For each attention block, the number of calls so far in which its heads were changed."""
        return self._gates.calls.copy()

    def __repr__(self) -> str:
        names, most = [head.short for head in self.heads], 6
        more = f" and {len(names) - most} more" if len(names) > most else ""
        proven = f"verified at {self.n_proven} blocks" if self.n_proven else "not verified"
        where = self.model.label or type(self.model.inner).__name__
        return f"{', '.join(names[:most])}{more} of {where} {self.what}: {self.calls.total()} calls so far, {proven}"


# --- acting -----------------------------------------------------------------------------------------------------------


@contextmanager
def ablated(
    model: AnyModel,
    heads: str | HeadId | Iterable[str | HeadId],
    *,
    by: str = "zero",
    queries: Sequence[int] | None = None,
    inputs: Inputs | Path | EvalDataset | None = None,
    sites: Sites | None = None,
    run_adapter: bool = False,
) -> Iterator[HeadIntervention]:
    """Ablate heads inside a `with` block, for any code that calls the model, such as `generate` or your own loop.

    `heads` are names such as "E0H2", or one name. `by` chooses the replacement of a head's output:

    * "zero": zeros.
    * "resample": the head's output for the previous row of the batch; every batch needs two rows or more.
    * "mean": the head's mean output at the same position, over `inputs` (tensors, a file, a split or a dataset) or over
      examples of the model's task. A position that no input has gets the mean over all positions.

    `queries` are the positions at which heads are ablated, from 0 on; the default is all positions. If no forward pass
    has one of these positions, an error is raised at the end of the `with` block.

    The hooks are first verified on `inputs`, or on examples of the model's task. Without either, an error at the end
    of the `with` block names the heads whose attention block was never called.

    While a model decodes with a cache, a Hugging Face cache gives the position of each token. In other models, a pass
    over a single position is assumed to continue the previous pass of its attention block, unless the encoder has run
    in between.

    `as` gives a `HeadIntervention`, which counts the calls.

    >>> import headcount
    >>> run = headcount.load("sample:addition")
    >>> with headcount.ablated(run, ["E0H2"]):
    ...     run.predict("999+100")
    '1199'
    >>> run.predict("999+100")
    '1099'
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    replacement = cast(Replacement, REPLACEMENTS.get(by))
    targets = _find_heads(opened, [heads] if isinstance(heads, str | HeadId) else heads)
    gates = closed_gates(opened.sites, targets)
    experiment = _experiment(opened, inputs, required=replacement.needs_mean)
    means = means_of(experiment)[0] if replacement.needs_mean and experiment else {}
    proof, positions, changed = _prove(opened, experiment, gates), DecodingPositions(), PatchedPositions(queries)

    def values_at(site: HeadSite) -> ValuesOf:
        def values(z: Float[Tensor, "row query head d_head"]) -> Tensor | None:
            if replacement.needs_donors and len(z) < 2:
                raise InputError(
                    f"by={by!r} replaces a head's output by that of another row, but the batch has only one row",
                    "pass two rows or more, or use by='zero' or by='mean'",
                )
            first = positions.first(site, z.shape[1])
            mean = _mean_at(means[site].to(z), first, z.shape[1]) if means else None
            donors = torch.arange(len(z), device=z.device).roll(1)
            value = replacement.make(ReplacementInputs(z, mean, donors))
            return _only_at(changed, z, value, first)

        return values

    values = {site: values_at(site) for site in gates}
    with positions.watching(opened.inner, opened.sites), Gates(opened.sites, gates, values) as acting:
        yield HeadIntervention(opened, targets, f"ablated by {by}", len(proof), acting)
    changed.require_reached()


@contextmanager
def patched(
    model: AnyModel,
    outputs: Mapping[Any, Float[Tensor, "#batch #query d"]],
    *,
    queries: Sequence[int] | None = None,
    inputs: Inputs | None = None,
    sites: Sites | None = None,
    run_adapter: bool = False,
) -> Iterator[HeadIntervention]:
    """Replace the outputs of heads, or residual streams, with given tensors inside a `with` block.

    `outputs` maps heads to tensors [batch, query, d_head], such as those that `head_outputs` returns, or streams such
    as "E0.stream" to tensors [batch, position, d_model], such as those that `streams` returns. A batch or query axis of
    size 1 is used for all rows or positions. `queries` are the positions that are patched, from 0 on; the default is
    all. If no forward pass has one of these positions, an error is raised at the end of the `with` block.

    While a model decodes with a cache, each step takes the values at its own position from a head's tensor. Positions
    beyond the end of the tensor keep the model's own output.

    The hooks are first verified on `inputs`, or on examples of the model's task. Without either, an error at the end
    of the `with` block names the heads whose attention block was never called. `as` gives a `HeadIntervention`.

    >>> import headcount, torch
    >>> run = headcount.load("sample:addition")
    >>> z = headcount.head_outputs(run, "999+101")
    >>> with headcount.patched(run, {"X1H1": z["X1H1"]}):
    ...     patched = headcount.head_outputs(run, "374+814")
    >>> torch.equal(patched["X1H1"], z["X1H1"])
    True
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    of_streams = {name: patch for name, patch in outputs.items() if is_stream(name)}
    of_heads = {name: patch for name, patch in outputs.items() if not is_stream(name)}
    heads = _find_heads(opened, of_heads) if of_heads or not of_streams else ()
    patches = dict(zip(heads, of_heads.values(), strict=True))
    gates, positions, changed = closed_gates(opened.sites, patches), DecodingPositions(), PatchedPositions(queries)
    experiment = _experiment(opened, inputs)
    proof = _prove(opened, experiment, gates)

    reads_prompt = isinstance(opened.inner, DecoderOnly)

    def values_at(site: HeadSite) -> ValuesOf:
        def values(z: Float[Tensor, "row query head d_head"]) -> Tensor:
            first, outputs = positions.first(site, z.shape[1]), z.clone()
            for i, head in enumerate(opened.sites[site].heads):
                if head in patches:
                    _write_patch(head, outputs[..., i, :], patches[head].to(z), first, is_prefix=reads_prompt)
            return cast(Tensor, _only_at(changed, z, outputs, first))

        return values

    values = {site: values_at(site) for site in gates}
    patching = _stream_patches(opened, of_streams, queries, experiment) if of_streams else nullcontext()
    with positions.watching(opened.inner, opened.sites), patching, Gates(opened.sites, gates, values) as acting:
        yield HeadIntervention(opened, tuple(patches), "patched", len(proof), acting)
    changed.require_reached()


def path_patched(
    model: AnyModel,
    sender: str | HeadId | Sequence[str | HeadId],
    receiver: str | HeadId | Sequence[str | HeadId] | None,
    donor: Inputs,
    inputs: Inputs,
    *,
    through_mlps: bool = True,
    sites: Sites | None = None,
    run_adapter: bool = False,
) -> Tensor:
    """Return the output on `inputs` if one head (receiver) reads the output of another head (sender) on other inputs.

    Nothing else changes. `donor` are these other inputs. `sender` and `receiver` are one head or several heads. With
    `receiver=None`, the result is the direct effect of the sender on the logits. All other heads keep their outputs
    while the receiver reads the sender. The path goes through the residual stream and through MLPs; with
    `through_mlps=False`, MLPs keep their outputs as well.

    >>> import headcount
    >>> clean = headcount.path_patched("sample:addition", "E0H2", "E1H0", donor="346+125", inputs="346+125")
    Traceback (most recent call last):
    ...
    headcount.errors.InputError: ...
    >>> logits = headcount.path_patched("sample:addition", "E0H2", "E1H0", donor="358+250", inputs="352+250")
    >>> logits.shape
    torch.Size([1, 4, 13])
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    module, batch = input_batch(opened, inputs)
    _, given = input_batch(opened, donor)
    senders = _find_heads(opened, [sender] if isinstance(sender, str | HeadId) else sender)
    receivers = () if receiver is None else [receiver] if isinstance(receiver, str | HeadId) else receiver
    with eval_mode(module), torch.no_grad():
        prove(module, opened.sites, [tensor[:PROVEN_ON] for tensor in batch.inputs], {head.site for head in senders})
        held = None
        if not through_mlps:
            every = Streams.of(module, opened.sites, batch.inputs)
            held = Streams({stream: place for stream, place in every.items() if stream.kind == "mlp"})
        heads = _find_heads(opened, receivers) if receivers else ()
        return first_tensor(path_patch(module, opened.sites, batch.inputs, given.inputs, senders, heads, held=held))


def _only_at(changed: PatchedPositions, z: Tensor, value: Tensor | None, first: int) -> Tensor | None:
    """Return z (the heads' outputs) with `value` at the query positions that `changed` selects.

    If it selects all positions, return `value`; None stands for zeros. `first` is the first position of this pass.
    """
    at = changed.mask(z.shape[1], z.device, first)[:, None, None]
    if changed.queries is None:
        return value
    return torch.where(at, torch.zeros_like(z) if value is None else value, z)


def is_stream(name: object) -> bool:
    """Return whether a name is that of a residual stream, such as `E0.stream`, and not of a head."""
    return isinstance(name, StreamId) or (isinstance(name, str) and name.rpartition(".")[2].lower() in STREAM_KINDS)


def _stream_patches(
    opened: OpenModel, patches: Mapping[Any, Tensor], queries: Sequence[int] | None, experiment: Experiment | None
) -> StreamPatches:
    if experiment is None:
        raise InputError(
            "patching a residual stream needs example inputs, from which headcount finds the layers",
            "give some: inputs=...",
        )
    inputs = [tensor[:PROVEN_ON] for tensor in experiment.batches[0].inputs]
    found = Streams.of(experiment.model, opened.sites, inputs)
    return StreamPatches(found, {found.find(name): patch for name, patch in patches.items()}, queries)


def _find_heads(opened: OpenModel, heads: Iterable[str | HeadId]) -> tuple[HeadId, ...]:
    known = tuple(dict.fromkeys(opened.find_head(head) for head in heads))
    if not known:
        names = ", ".join(head.short for head in opened.sites.heads[:4])
        raise InputError("no heads were given to ablate or patch", f"name some, such as {names}")
    return known


def _mean_at(mean: Float[Tensor, "position head d_head"], first: int, n_queries: int) -> Tensor:
    """Return the mean output at `n_queries` positions from `first` on.

    A position without a mean gets the mean over all positions.
    """
    known = mean[first : first + n_queries]
    return torch.cat([known, mean.mean(dim=0).expand(n_queries - len(known), -1, -1)])


def _write_patch(head: HeadId, own: Tensor, patch: Tensor, first: int, *, is_prefix: bool = False) -> None:
    """Overwrite a head's own output [batch, query, d_head] with a patch, which is a tensor that the user gave.

    With `is_prefix`, a pass from the first position on may end before the patch does, as when a model reads a question
    before it decodes.
    """
    given = patch
    is_step = bool(first) or own.shape[1] == 1  # one step of decoding with a cache
    if patch.dim() == 3 and patch.shape[1] > 1 and (is_step or (is_prefix and own.shape[1] < patch.shape[1])):
        given = patch[:, first : first + own.shape[1]]
        own = own[:, : given.shape[1]]
    fits = given.dim() <= own.dim() and all(
        n in (1, m) for n, m in zip(given.shape[::-1], own.shape[::-1], strict=False)
    )
    if not fits or given.shape[-1] != own.shape[-1]:
        raise InputError(
            f"the patch for {head.short} has the shape {tuple(patch.shape)}, but the output of this head has the shape "
            f"{tuple(own.shape)} (batch, query, d_head)",
            "give a tensor of the shape of the head's output; its batch and query axes may also have size 1",
        )
    own.copy_(given.expand_as(own))


def _prove(opened: OpenModel, experiment: Experiment | None, sites: Iterable[HeadSite]) -> tuple[SiteProof, ...]:
    """Verify that the gates (hooks that change heads) act at these attention blocks; return the evidence.

    Return an empty tuple without examples.
    """
    if experiment is None:
        return ()
    inputs = [tensor[:PROVEN_ON] for tensor in experiment.batches[0].inputs]
    return prove(experiment.model, opened.sites, inputs, tuple(sites))


# --- reading ----------------------------------------------------------------------------------------------------------


def attention(model: AnyModel, inputs: Inputs, *, sites: Sites | None = None, run_adapter: bool = False) -> ByHead:
    """Return the attention weights of every head on the inputs, from one pass without dropout.

    `inputs` are tensors, tensors by name, or a text. If an encoder-decoder is given no decoder input, its own answer
    is its decoder input. `sites` lists the heads of a module whose heads headcount cannot find. The weights of a head
    are `weights["E0H2"]`, a tensor [batch, query, key].

    >>> import headcount
    >>> headcount.attention("sample:addition", "374+814")
    24 heads, E0H0 to X1H3: [batch, query, key] of [1, 7, 7] or [1, 4, 4] or [1, 4, 7]
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    module, batch = input_batch(opened, inputs)
    weights = attention_of(module, opened.sites, *batch.inputs)
    heads = {head: weights[head.site][:, opened.sites[head.site].heads.index(head)] for head in opened.sites.heads}
    return ByHead("batch, query, key", heads)


def head_outputs(model: AnyModel, inputs: Inputs, *, sites: Sites | None = None, run_adapter: bool = False) -> ByHead:
    """Return the output of every head on the inputs, from one pass without dropout.

    The output of a head is its weighted sum of values, before the output projection: a tensor [batch, query, d_head].
    See `attention` for the parameters. `patched` takes these outputs.

    >>> import headcount
    >>> headcount.head_outputs("sample:addition", "374+814")["X1H2"].shape
    torch.Size([1, 4, 32])
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    module, batch = input_batch(opened, inputs)
    with eval_mode(module), torch.no_grad(), Capture(opened.sites) as capture:
        module(*batch.inputs)
    outputs = {site: capture.z(site) for site in opened.sites}
    heads = {head: outputs[head.site][..., opened.sites[head.site].heads.index(head), :] for head in opened.sites.heads}
    return ByHead("batch, query, d_head", heads)


def streams(
    model: AnyModel, inputs: Inputs, *, sites: Sites | None = None, run_adapter: bool = False
) -> Mapping[str, Float[Tensor, "batch position d_model"]]:
    """Return the residual streams and MLP outputs of every layer on the inputs, by name, from one pass.

    "E0.input" is the stream before encoder layer 0, "E0.mlp" the output of its MLP, and "E0.stream" the stream after
    the layer; D is the decoder, and L a model with one stack. Dropout is off. `patched` takes these tensors.

    >>> import headcount
    >>> list(headcount.streams("sample:addition", "374+814"))[:4]
    ['E0.input', 'E0.mlp', 'E0.stream', 'E1.mlp']
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    module, batch = input_batch(opened, inputs)
    with eval_mode(module), torch.no_grad():
        found = Streams.of(module, opened.sites, batch.inputs)
        with StreamCapture(found) as seen:
            module(*batch.inputs)
    return {str(stream): seen[stream] for stream in found}


# --- inputs -----------------------------------------------------------------------------------------------------------


def _experiment(opened: OpenModel, inputs: Any, *, required: bool = False) -> Experiment | None:
    """Return the model together with examples: the given inputs, those of a file or split, or examples of its task.

    Return None if there are no examples.
    """
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
            raise InputError("by='mean' needs examples to average over", "give some: inputs=...") from error
        return None
    batches = experiment.reference or experiment.batches
    chosen = np.linspace(0, len(batches) - 1, MEAN_BATCHES).round().astype(int)
    return replace(experiment, reference=tuple(batches[i] for i in dict.fromkeys(chosen.tolist())))


def input_batch(opened: OpenModel, inputs: Inputs) -> tuple[nn.Module, EvalBatch]:
    """Return the module to call, and the batch of tensors to call it with."""
    device = next((weight.device for weight in opened.module.parameters()), torch.device("cpu"))
    if isinstance(inputs, str):
        return opened.module, _as_batch(_text(opened, inputs), device)
    if isinstance(inputs, Mapping):
        _require_tensors(inputs.values())
        named = {name: tensor.to(device) for name, tensor in inputs.items()}
        module = wrap(opened.inner, opened.sites, inputs=tuple(named := _with_decoder_input(opened.inner, named)))
        masks = {stack: named[name].bool() for name, stacks in MASKS.items() if name in named for stack in stacks}
        return module, _as_batch(named.values(), device, masks)
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    _require_tensors(tensors)
    # A bare Hugging Face model takes its usual inputs in their usual order, whatever the order in its forward() is.
    is_bare = type(opened) is OpenModel
    return wrap(opened.module, opened.sites) if is_bare else opened.module, _as_batch(tensors, device)


def _as_batch(tensors: Iterable[Tensor], device: torch.device, masks: Mapping[str, Tensor] | None = None) -> EvalBatch:
    inputs = tuple(tensor.to(device) for tensor in tensors)
    return EvalBatch(np.arange(len(inputs[0])), inputs, {}, None, masks or {})


def _require_tensors(tensors: Iterable[object]) -> None:
    kinds = [type(tensor).__name__ for tensor in tensors if not isinstance(tensor, Tensor)]
    if kinds:
        raise InputError(f"inputs must be tensors, got {kinds[0]}", 'call a tokenizer with return_tensors="pt"')


def _text(opened: OpenModel, text: str) -> tuple[Tensor, ...]:
    """Return the tensors of one text or example; the decoder input of a run is the run's own answer."""
    if not isinstance(opened, RunModel):
        return opened.text_input(text).inputs
    run = opened.run
    source = torch.from_numpy(cast(Any, run.task).encode(run.task.parse(text)).source)
    answer = run.predict_one(text, with_attention=False).decoder_input
    return (source, torch.tensor([[run.task.tokens.index(token) for token in answer]])) if answer else (source,)


def _with_decoder_input(model: Any, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the generated answer as decoder input of a Hugging Face encoder-decoder that was given none."""
    has_decoder_input = any(name.startswith("decoder_input") or name == "labels" for name in named)
    if has_decoder_input or not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return named
    with torch.no_grad():
        answer: Tensor = model.generate(**named, max_new_tokens=MOST_ANSWERED, do_sample=False)
    return named | {"decoder_input_ids": answer[:, :-1] if answer.shape[1] > 1 else answer}
