"""Patch the outputs of heads from one example into another, and measure how far the answer changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from headcount.analysis.pair_patching import Pair, PairPatch, PlaceShift, require_equal_lengths
from headcount.analysis.pair_patching import patch_pair as measure_pair
from headcount.analysis.routes import position_labels, positions_by_place
from headcount.api.intervening import head_outputs, patched
from headcount.api.opening import AnyModel, open_model
from headcount.api.saving import Place, Saved, folder_for, result_name, save_in
from headcount.errors import InputError
from headcount.experiments.external_models import ExternalModel
from headcount.experiments.models import OpenModel
from headcount.figures.pair_patching import draw_pair_patch
from headcount.heads import HeadId
from headcount.models.transformer import DecoderOnly
from headcount.suggestions import suggestion
from headcount.tasks.base import ClassTask, SequenceTask
from headcount.training.evaluation import SequenceModel


def patch_pair(
    model: AnyModel,
    receiver: str,
    donor: str,
    heads: Sequence[str | HeadId] = (),
    *,
    at: Sequence[str] = (),
    answers: tuple[str, str] | None = None,
    save: Place = False,
    run_adapter: bool = False,
) -> Saved[PairPatch]:
    """Patch heads' outputs on one example (donor) into another one (receiver), and measure how its answer changes.

    `receiver` and `donor` are two examples of the model's task with equally many tokens, or two texts for a language
    model. `heads` are patched together; the default is the head that alone moves the answer furthest towards that of
    the donor. `at` names query positions: a place of the task such as `10s` (both operands), a single position such as
    `a 10s`, or a number. For two texts, `answers` are the next tokens to compare: that of the receiver, then that of
    the donor. `save` names a folder for the result and its figure; `save=True` means the model's own folder.

        headcount.patch_pair("sample:addition", "342+125", "348+125", ["E0H2"], at=["10s"]).result.patched_answer
    """
    opened = open_model(model, run_adapter=run_adapter)
    pair, names, tokens = _pair(opened, receiver, donor, answers)
    chosen = tuple(opened.find_head(head) for head in heads)
    if not chosen:
        _, ranking = measure_pair(opened, pair, opened.sites.heads[:1])
        chosen = (opened.find_head(ranking[0].head),)
    queries = _queries(opened, pair, chosen, at) if at else None
    differences, ranking = measure_pair(opened, pair, chosen, queries)
    differing = zip(names, tokens, differences, strict=True)
    places = [PlaceShift(place, *both, *moved) for place, both, moved in differing]
    texts = _answers(opened, receiver, donor, chosen, queries) if opened.task is not None else (*tokens[0], "")
    result = PairPatch(
        opened.name,
        opened.weights_sha256,
        receiver,
        donor,
        *texts,
        tuple(map(str, chosen)),
        tuple(at),
        tuple(places),
        tuple(ranking),
    )
    name = result_name("patch", on=f"{receiver} {donor}", heads=[head.short for head in chosen], at=list(at) or None)
    return save_in(folder_for(opened, save), name, result, lambda stem, made: {stem: draw_pair_patch(made)})


def _pair(
    opened: OpenModel, receiver: str, donor: str, answers: tuple[str, str] | None
) -> tuple[Pair, list[str], list[tuple[str, str]]]:
    """Return both examples as tensors, the names of the positions where their answers differ, and the tokens there."""
    if opened.task is None:
        return _text_pair(opened, receiver, donor, answers)
    if answers is not None:
        raise InputError(
            "--answers is only for models without a task of headcount",
            "leave --answers out: the model's task defines the right answers",
        )
    parsed = [opened.task.parse(text) for text in (receiver, donor)]
    require_equal_lengths(*(each.shape[1] for each in parsed))
    examples = np.concatenate(parsed)
    if opened.task.output_type == "class":
        return _class_pair(opened, examples)
    task = cast(SequenceTask, opened.task)
    inputs, labels = cast(SequenceModel, opened.answers).teacher_forced(examples)
    positions = torch.nonzero((labels[0] != labels[1]) & (labels >= 0).all(dim=0)).flatten().tolist()
    if not positions:
        raise InputError(f"{receiver} and {donor} have the same answer", "choose two examples with different answers")
    one, other = ([each[i : i + 1] for each in inputs] for i in range(2))
    own, given = (labels[i, positions].tolist() for i in range(2))
    names = position_labels(task, "decoder", labels.shape[1])
    n_given, written = len(task.decoding_start.given), task.encode(examples).answer
    tokens = [tuple(task.tokens[row[i + n_given]] for row in written) for i in positions]
    return Pair(one, other, positions, own, given), [names[i] for i in positions], cast(Any, tokens)


def _class_pair(opened: OpenModel, examples: np.ndarray[Any, Any]) -> tuple[Pair, list[str], list[tuple[str, str]]]:
    task = cast(ClassTask, opened.task)
    batch = task.encode(examples)
    own, given = batch.labels.tolist()
    if own == given:
        raise InputError("both examples are in the same class", "choose two examples of different classes")
    device = next(opened.module.parameters()).device
    one, other = ([torch.from_numpy(batch.source[i : i + 1]).to(device)] for i in range(2))
    return Pair(one, other, [-1], [own], [given]), ["class"], [(task.classes[own], task.classes[given])]


def _text_pair(
    opened: OpenModel, receiver: str, donor: str, answers: tuple[str, str] | None
) -> tuple[Pair, list[str], list[tuple[str, str]]]:
    """Return two texts as tensors, with the next token to compare after each text."""
    if answers is None:
        raise InputError(
            f"{opened.label} has no task, so the answers to compare must be given",
            "name the next token after each text: --answers ' Paris' ' Rome'",
        )
    one, other = (opened.text_input(text).inputs for text in (receiver, donor))
    tokenizer = cast(ExternalModel, opened).tokenizer
    ids = []
    for answer in answers:
        token_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        if len(token_ids) != 1:
            fix = "give answers of one token each; a leading space often matters"
            raise InputError(f"{answer!r} has {len(token_ids)} tokens, but only single tokens can be compared", fix)
        ids.append(int(token_ids[0]))
    last = one[0].shape[1] - 1
    return Pair(one, other, [last], ids[:1], ids[1:]), ["next token"], [(answers[0], answers[1])]


def _queries(opened: OpenModel, pair: Pair, heads: Sequence[HeadId], at: Sequence[str]) -> list[int]:
    """Return the query positions that names such as `10s` stand for, in the heads' stack (encoder or decoder)."""
    stacks = {head.site.stack for head in heads}
    if len(stacks) > 1:
        raise InputError(
            "--at needs heads of one stack, because encoder and decoder have different positions",
            "name only encoder heads, or only decoder heads",
        )
    (stack,) = stacks
    n = pair.receiver[1 if stack == "decoder" and len(pair.receiver) > 1 else 0].shape[1]
    if isinstance(opened.inner, DecoderOnly):
        n = sum(tokens.shape[1] for tokens in pair.receiver)
    known: dict[str, list[int]] = {str(i): [i] for i in range(n)}
    if opened.task is not None and opened.task.output_type == "sequence":
        task = cast(SequenceTask, opened.task)
        known |= positions_by_place(task, stack, n)
        known |= {label: [i] for i, label in enumerate(position_labels(task, stack, n))}
    queries: list[int] = []
    for name in at:
        if name not in known:
            raise InputError(f"the head {heads[0].short} has no query position {name!r}", suggestion(name, known))
        queries += known[name]
    return sorted(set(queries))


def _answers(
    opened: OpenModel, receiver: str, donor: str, heads: Sequence[HeadId], queries: Sequence[int] | None
) -> tuple[str, str, str]:
    """Return three answers: to the receiver, to the donor, and to the receiver with the heads patched.

    The patch stays while the answer is decoded.
    """
    own, given = (opened.predict(text).predicted for text in (receiver, donor))
    outputs = head_outputs(opened, donor)
    with patched(opened, {head: outputs[head] for head in heads}, queries=queries):
        return own, given, opened.predict(receiver).predicted
