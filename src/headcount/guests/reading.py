"""One text as a model of others reads it: what it is given, and what stands at each position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headcount.analysis.glance import Glance, closeup, glance
from headcount.errors import InputError
from headcount.guests.adapter import Adapted, Adapter
from headcount.guests.asking import encoded, task_of
from headcount.guests.guest import Guest, longest_of
from headcount.guests.user_code import user_code_errors
from headcount.heads import HeadId

MOST_SAID = 64
"""Tokens that an encoder-decoder may answer with."""
MOST_READ = 2048
"""Tokens of a text, for models without an end: weights grow with the square."""


@dataclass(frozen=True)
class Reading:
    """One row of inputs and its tokens, stack by stack."""

    inputs: tuple[Tensor, ...]
    tokens: Mapping[str, Sequence[str]]
    special: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    note: str = ""
    said: str | None = None
    """The model's own answer, where its adapter can ask for one."""
    right: str | None = None
    """The right answer, where the adapter's task or data know it."""


def look(guest: Guest, text: str) -> tuple[Glance, Reading]:
    """Every head on one text."""
    reading = read(guest, text)
    found = glance(
        guest.label,
        guest.digest,
        guest.model,
        guest.sites,
        reading.inputs,
        reading.tokens,
        reading.special or None,
        text=text,
    )
    return found, reading


def look_closer(guest: Guest, reading: Reading, head: str | HeadId) -> Any:
    """One head's own weights, [query, key]."""
    return closeup(guest.model, guest.sites, reading.inputs, guest.find_head(head))


def read(guest: Guest, text: str) -> Reading:
    """As the model's tokenizer or its adapter has it."""
    if text.encode(errors="ignore").decode() != text:
        raise InputError(f"{text!r} is no text in UTF-8", 'give one: --on "The cat sat on the mat."')
    if not text.strip():
        raise InputError("there is nothing to look at in an empty text", 'give one: --on "The cat sat on the mat."')
    if guest.adapter is not None:
        return _adapted(guest, guest.adapter, text)
    candidate, tokenizer = guest.candidate, guest.tokenizer
    whole = tokenizer(text, verbose=False)["input_ids"]
    longest = min(longest_of(guest.inner), MOST_READ)
    ids = tokenizer(text, truncation=True, max_length=longest)["input_ids"]
    cut = f"the first {len(ids):,} of {len(whole):,} tokens" if len(ids) < len(whole) else ""
    note = "; ".join(part for part in (cut, candidate.unknown_note([ids]).strip(" ()")) if part)
    source = torch.tensor([ids], device=candidate.device)
    if not candidate.has_decoder:
        return Reading(
            (source, torch.ones_like(source)), {"layer": _words(guest, ids)}, {"layer": _special(guest, ids)}, note
        )
    fed = _answered(guest, source)
    tokens = {"encoder": _words(guest, ids), "decoder": _words(guest, fed[0].tolist())}
    special = {"encoder": _special(guest, ids), "decoder": _special(guest, fed[0].tolist())}
    said = f"the decoder is fed the model's own answer, {fed.shape[1]} tokens"
    return Reading(
        (source, fed, torch.ones_like(source)), tokens, special, "; ".join(part for part in (note, said) if part)
    )


def _answered(guest: Guest, source: Tensor) -> Tensor:
    """What the decoder is fed while it gives its own answer."""
    model: Any = guest.inner
    if not hasattr(model, "generate"):
        raise InputError(
            f"{type(model).__name__} says nothing for its decoder to read",
            "load it with its language-modelling head (AutoModelForSeq2SeqLM)",
        )
    most = min(MOST_SAID, longest_of(model) - 1)
    with torch.no_grad():
        said: Tensor = model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), max_new_tokens=most, do_sample=False
        )
    return said[:, :-1] if said.shape[1] > 1 else said


def _words(guest: Guest, ids: Sequence[int]) -> list[str]:
    return [str(word) for word in guest.tokenizer.convert_ids_to_tokens(list(ids))]


def _special(guest: Guest, ids: Sequence[int]) -> list[bool]:
    known = set(guest.tokenizer.all_special_ids)
    return [each in known for each in ids]


def _adapted(guest: Guest, adapter: Adapter, question: str) -> Reading:
    generates = type(adapter).generate is not Adapter.generate
    with user_code_errors(adapter, "generate"):
        answer = adapter.generate(guest.inner, [question])[0] if generates else _right_answer(guest, adapter, question)
    inputs = tuple(each.to(next(guest.model.parameters()).device) for each in encoded(adapter, [(question, answer)])[0])
    if isinstance(guest.model, Adapted):
        guest.model.require_answer(inputs)
    stacks = ("encoder", "decoder") if any(site.stack == "encoder" for site in guest.sites) else ("layer",)
    with user_code_errors(adapter, "tokens"):
        labels = [list(map(str, part)) for part in adapter.tokens(question, answer)]
    labels += [list(map(str, range(each.shape[1]))) for each in inputs[len(labels) :]]
    tokens = dict(zip(stacks, labels, strict=False))
    if not generates:
        return Reading(inputs, tokens)
    right = _known_answer(adapter, question)
    told = "" if right is None else " (right)" if answer == right else f" (wrong, should be {right})"
    return Reading(inputs, tokens, note=f"{question} = {answer}{told}", said=answer, right=right)


def _known_answer(adapter: Adapter, question: str) -> str | None:
    """The right answer, if the adapter's task has this question; a question of one's own may be any."""
    if adapter.task is None:
        return None
    task = task_of(adapter)
    try:
        return task.answer(task.parse(question)[0])
    except InputError:
        return None


def _right_answer(guest: Guest, adapter: Adapter, question: str) -> str:
    """What a model that is not asked for its own answer is fed."""
    if adapter.task is not None:
        task = task_of(adapter)
        return task.answer(task.parse(question)[0])
    with user_code_errors(adapter, "data"):
        known = {str(asked): str(answer) for asked, answer in adapter.data()}
    if question not in known:
        raise InputError(f"{guest.name} cannot answer {question!r}", "add generate() to the adapter")
    return known[question]
