"""One text as a model takes it: its tensors, and what stands at each position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headcount.data.from_adapter import encoded
from headcount.data.from_file import TokenizedModel
from headcount.errors import InputError
from headcount.external.adapter import Adapted, Adapter, task_of
from headcount.external.models import ExternalModel, longest_of
from headcount.external.user_code import user_code_errors
from headcount.hooks.wrapping import Wrapped

MOST_SAID = 64
"""Tokens that an encoder-decoder may answer with."""
MOST_READ = 2048
"""Tokens of a text, for models without an end: weights grow with the square."""


@dataclass(frozen=True)
class TokenizedText:
    """One row of inputs and its tokens, stack by stack."""

    inputs: tuple[Tensor, ...]
    tokens: Mapping[str, Sequence[str]]
    special: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    note: str = ""
    predicted: str | None = None
    """The model's own answer, where its adapter can ask for one."""
    right: str | None = None
    """The right answer, where the adapter's task or data know it."""


def tokenized_model(model: ExternalModel) -> TokenizedModel:
    """A model with its tokenizer."""
    if isinstance(model.model, Wrapped) and "pixel_values" in model.model.inputs:
        raise InputError(
            f"{model.name} takes images", "try it from Python: headcount.ablate_heads(model, pixels, metric)"
        )
    if not isinstance(model.model, Wrapped) or model.tokenizer is None:
        raise InputError(f"{model.name} came without a tokenizer", "save the tokenizer into the model's folder")
    return TokenizedModel(model.model, model.tokenizer, min(model.length, longest_of(model.inner)))


def text_input(model: ExternalModel, text: str) -> TokenizedText:
    """As the model's tokenizer has it."""
    _require_text(text)
    tokenized, tokenizer = tokenized_model(model), model.tokenizer
    whole = tokenizer(text, verbose=False)["input_ids"]
    longest = min(longest_of(model.inner), MOST_READ)
    ids = tokenizer(text, truncation=True, max_length=longest)["input_ids"]
    cut = f"the first {len(ids):,} of {len(whole):,} tokens" if len(ids) < len(whole) else ""
    note = "; ".join(part for part in (cut, tokenized.unknown_note([ids]).strip(" ()")) if part)
    source = torch.tensor([ids], device=tokenized.device)
    if not tokenized.has_decoder:
        return TokenizedText(
            (source, torch.ones_like(source)), {"layer": _words(model, ids)}, {"layer": _special(model, ids)}, note
        )
    decoder_input = _answered(model, source)
    tokens = {"encoder": _words(model, ids), "decoder": _words(model, decoder_input[0].tolist())}
    special = {"encoder": _special(model, ids), "decoder": _special(model, decoder_input[0].tolist())}
    predicted = f"the decoder is fed the model's own answer, {decoder_input.shape[1]} tokens"
    return TokenizedText(
        (source, decoder_input, torch.ones_like(source)),
        tokens,
        special,
        "; ".join(part for part in (note, predicted) if part),
    )


def _answered(external: ExternalModel, source: Tensor) -> Tensor:
    """What the decoder is fed while it gives its own answer."""
    model: Any = external.inner
    if not hasattr(model, "generate"):
        raise InputError(
            f"{type(model).__name__} generates nothing for its decoder to read",
            "load it with its language-modelling head (AutoModelForSeq2SeqLM)",
        )
    most = min(MOST_SAID, longest_of(model) - 1)
    with torch.no_grad():
        predicted: Tensor = model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), max_new_tokens=most, do_sample=False
        )
    return predicted[:, :-1] if predicted.shape[1] > 1 else predicted


def _words(model: ExternalModel, ids: Sequence[int]) -> list[str]:
    return [str(word) for word in model.tokenizer.convert_ids_to_tokens(list(ids))]


def _special(model: ExternalModel, ids: Sequence[int]) -> list[bool]:
    known = set(model.tokenizer.all_special_ids)
    return [each in known for each in ids]


def _require_text(text: str) -> None:
    if text.encode(errors="ignore").decode() != text:
        raise InputError(f"{text!r} is no text in UTF-8", 'give one: --on "The cat sat on the mat."')
    if not text.strip():
        raise InputError("there is nothing to look at in an empty text", 'give one: --on "The cat sat on the mat."')


def adapter_input(model: ExternalModel, question: str) -> TokenizedText:
    """As its adapter encodes it, with the model's own answer if it generates one."""
    _require_text(question)
    adapter = model.adapter
    assert adapter is not None, "brought by one"
    generates = type(adapter).generate is not Adapter.generate
    with user_code_errors(adapter, "generate"):
        answer = adapter.generate(model.inner, [question])[0] if generates else _right_answer(model, adapter, question)
    inputs = tuple(each.to(next(model.model.parameters()).device) for each in encoded(adapter, [(question, answer)])[0])
    if isinstance(model.model, Adapted):
        model.model.require_answer(inputs)
    stacks = ("encoder", "decoder") if any(site.stack == "encoder" for site in model.sites) else ("layer",)
    with user_code_errors(adapter, "tokens"):
        labels = [list(map(str, part)) for part in adapter.tokens(question, answer)]
    labels += [list(map(str, range(each.shape[1]))) for each in inputs[len(labels) :]]
    tokens = dict(zip(stacks, labels, strict=False))
    if not generates:
        return TokenizedText(inputs, tokens)
    right = _known_answer(adapter, question)
    told = "" if right is None else " (right)" if answer == right else f" (wrong, should be {right})"
    return TokenizedText(inputs, tokens, note=f"{question} = {answer}{told}", predicted=answer, right=right)


def _known_answer(adapter: Adapter, question: str) -> str | None:
    """The right answer, if the adapter's task has this question; a question of one's own may be any."""
    if adapter.task is None:
        return None
    task = task_of(adapter)
    try:
        return task.answer(task.parse(question)[0])
    except InputError:
        return None


def _right_answer(model: ExternalModel, adapter: Adapter, question: str) -> str:
    """What a model that is not asked for its own answer is fed."""
    if adapter.task is not None:
        task = task_of(adapter)
        return task.answer(task.parse(question)[0])
    with user_code_errors(adapter, "data"):
        known = {str(asked): str(answer) for asked, answer in adapter.data()}
    if question not in known:
        raise InputError(f"{model.name} cannot answer {question!r}", "add generate() to the adapter")
    return known[question]
