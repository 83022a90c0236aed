"""Datasets and single questions that a user's adapter encodes: examples of a task, or the adapter's own examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.data.alphabet import N_LEARNED, Alphabet
from headcount.data.dataset import (
    ACCURACY,
    FORCED,
    FREE,
    LOSS,
    Answers,
    EvalBatch,
    EvalDataset,
    Metric,
    Rows,
    Score,
    TokenizedText,
    class_scores,
    token_scores,
)
from headcount.data.from_file import require_text
from headcount.data.from_task import held_out, of_length, reference_for
from headcount.errors import HeadcountError, InputError
from headcount.external.adapter import Adapted, Adapter, adapter_name, task_of
from headcount.external.user_code import UserCodeError, user_code_errors
from headcount.seeds import stream
from headcount.tasks import words_of
from headcount.tasks.base import IGNORE, Examples, SequenceTask, Task

Pairs = Sequence[tuple[str, str]]
"""Pairs of a question and its right answer, as texts."""
_RETURN = "return a tuple of input tensors, and then the tensor of labels: return (tensor, ...), labels"


def adapter_dataset(
    model: Adapted, split: str = "test", length: int | None = None, n: int | None = None
) -> EvalDataset:
    """Return the dataset on which an adapter's model is measured.

    It is a split of the adapter's task or, with `length`, `n` new examples of this length. Without a task, it is the
    adapter's own data.
    """
    adapter = model.adapter
    if adapter.task is None:
        pairs = own_pairs(adapter)
        if split != "test":
            raise InputError(
                f"the adapter's own data has no {split!r} split", "leave the split out: data() gives all examples"
            )
        return _of_pairs(adapter, model, pairs, "the adapter's data")
    task = task_of(adapter)
    examples, data = task.split(split), f"the {split} set of {task.name}"
    if length is not None:
        examples, data = of_length(task, length, n, split)
    elif n is not None and n > len(examples):
        examples, data = held_out(task, split, n)
    dataset = _of_pairs(adapter, model, pairs_of(task, examples), data)

    def fresh(n: int) -> EvalDataset:
        more = task.sample(stream(0, "reference"), n) if length is None else reference_for(task, length)[:n]
        what = f"{len(more):,} new examples, drawn as in training"
        return _of_pairs(adapter, model, pairs_of(task, more), what)

    return replace(dataset, fresh=fresh, task=task, examples=examples)


def pairs_of(task: Task, examples: Examples) -> Pairs:
    """Return examples of a task as pairs of question and right answer, as texts."""
    return [(task.show(example), task.answer(example)) for example in examples]


def _of_pairs(adapter: Adapter, model: Adapted, pairs: Pairs, data: str) -> EvalDataset:
    """Return a dataset of pairs of question and right answer; `data` describes them in results.

    Raise an error if the adapter or its model fails on the first pairs.
    """
    inputs, labels = encoded(adapter, pairs[:2])
    if labels.dim() not in (1, 2):
        raise InputError(
            f"encode() returned labels with {labels.dim()} axes, but labels must have one or two",
            "return one class number per question (one axis), or one token id per question and position of the answer "
            "(two axes)",
        )
    device = next(model.parameters()).device
    require_logits(model.require_answer([each.to(device) for each in inputs]), labels)
    is_sequence = labels.dim() == 2
    if is_sequence:
        _require_fed(adapter, model, pairs)

    def encode(rows: Rows) -> EvalBatch:
        inputs, labels = encoded(adapter, [pairs[row] for row in rows])
        right = labels.to(device)
        scores = token_scores(right) if right.dim() == 2 else class_scores(right)
        if (
            is_sequence
        ):  # one pass gives free-running exact match: up to the first wrong token, decoding is fed the same
            begins = [whole_answer(task, pairs[row][1]).startswith(adapter.given) for row in rows]
            forced, possible = scores[FORCED.name], torch.tensor(begins, device=device)
            scores[FREE.name] = lambda logits: forced(logits).bool() & possible
        if own is not None:
            scores[own.name] = own.score([pairs[row] for row in rows], right)
        masks = {"decoder": _up_to_the_last(right != IGNORE)} if is_sequence else {}
        return EvalBatch.scored(rows, (each.to(device) for each in inputs), scores, masks)

    def generate(rows: Rows) -> list[str]:
        return generated(adapter, model.model, [pairs[row][0] for row in rows])

    def decode(rows: Rows) -> NDArray[np.bool_]:
        right = [whole_answer(task, pairs[row][1]) for row in rows]
        return np.array([whole_answer(task, one) == two for one, two in zip(generate(rows), right, strict=True)])

    own = _OwnMetric.of(adapter, pairs, is_sequence)
    metrics = (FREE, FORCED, LOSS) if is_sequence else (ACCURACY, LOSS)
    task = None if adapter.task is None else task_of(adapter)
    generates = is_sequence and type(adapter).generate is not Adapter.generate
    answers = np.unique([answer for _, answer in pairs], return_counts=True)[1]
    majority_baseline = float(answers.max() / len(pairs)) if not is_sequence else 0.0
    return EvalDataset(
        data=data,
        metrics=metrics if own is None else (*metrics, Metric(own.name, False, "points")),
        lengths=np.array([max(len(question), len(answer)) for question, answer in pairs]),
        encode=encode,
        width=1024,
        majority_baseline=lambda rows: majority_baseline,
        decode=decode if generates else None,
        generate=generate if generates else None,
        answers=partial(_answers, adapter, model, pairs) if generates else None,
    )


@dataclass(frozen=True)
class _OwnMetric:
    """The author's metric(), applied to answers read from one forward pass, so that it can score ablations."""

    adapter: Adapter
    name: str
    """The metric's name: `own` for classifiers, and `own-teacher-forced` for models that predict sequences."""
    read: Callable[[Sequence[int]], str]
    """A function that converts predicted ids to the text of an answer."""

    @classmethod
    def of(cls, adapter: Adapter, pairs: Pairs, is_sequence: bool) -> _OwnMetric | None:
        """Return the metric with a way to write predicted ids as text, found from the labels of right answers.

        Return None if the adapter has no metric(), or if no way reproduces the right answers.
        """
        if type(adapter).metric is Adapter.metric:
            return None
        known = pairs[:N_LEARNED] if is_sequence else list({answer: (q, answer) for q, answer in pairs}.values())
        labels, answers = encoded(adapter, known)[1].tolist(), [answer for _, answer in known]
        if not is_sequence:
            names = dict(zip(labels, answers, strict=True))
            return cls(adapter, "own", lambda ids: names.get(ids[0], ""))
        rows = [[each for each in row if each != IGNORE] for row in labels]
        alphabet = Alphabet.learn(rows, answers)
        if alphabet is None:
            return None

        def parts(ids: Sequence[int]) -> list[str]:
            return [alphabet.names[each] for each in ids if each in alphabet.names]

        ways: list[Callable[[Sequence[int]], str]] = [
            lambda ids: "".join(parts(ids)),
            lambda ids: "".join(parts(ids)[::-1]),
            lambda ids: " ".join(parts(ids)),
        ]
        fitting = (way for way in ways if list(map(way, rows)) == answers)
        return next((cls(adapter, "own-teacher-forced", way) for way in fitting), None)

    def score(self, pairs: Pairs, labels: Tensor) -> Score:
        """Return a function that takes logits and scores each row's predicted answer by the author's metric.

        The answer is read at the positions that have a label.
        """
        metric, is_label = cached_metric(self.adapter), (labels != IGNORE).reshape(len(labels), -1)

        def score(logits: Tensor) -> Tensor:
            rows = zip(logits.argmax(dim=-1).reshape(len(labels), -1), is_label, strict=True)
            texts = [self.read(row[has_label].tolist()) for row, has_label in rows]
            marks = [metric(*pair, text) for pair, text in zip(pairs, texts, strict=True)]
            return torch.tensor(marks, device=logits.device)

        return score


def cached_metric(adapter: Adapter) -> Callable[[str, str, str], float]:
    """Return the author's metric(question, answer, predicted) with a cache, so that equal calls run only once."""

    @cache
    def metric(question: str, answer: str, predicted: str) -> float:
        with user_code_errors(adapter, "metric"):
            return float(adapter.metric(question, answer, predicted))

    return metric


def whole_answer(task: Task | None, text: str) -> str:
    """Return an answer with all tokens that its task writes, such as leading zeros; invalid texts stay unchanged."""
    if task is None or task.output_type != "sequence":
        return text
    tokens = cast(SequenceTask, task).read_answer(text)
    return text if tokens is None else cast(SequenceTask, task).show_tokens(tokens)


def own_pairs(adapter: Adapter) -> Pairs:
    """Return the pairs of question and right answer that the adapter's data() gives; without data(), raise an error."""
    if type(adapter).data is Adapter.data:
        raise InputError(
            f"{type(adapter).__name__} names no task, and has no data() to measure its model on",
            'set task = "addition" (or another task), or write data(), which returns pairs of question and answer',
        )
    return _read_pairs(adapter, "data")


def training_pairs(adapter: Adapter) -> Pairs:
    """Return the pairs that the adapter's training_data() gives; empty if the adapter has no such method."""
    return [] if type(adapter).training_data is Adapter.training_data else _read_pairs(adapter, "training_data")


def _read_pairs(adapter: Adapter, method: str) -> Pairs:
    with user_code_errors(adapter, method):
        pairs = [(str(question), str(answer)) for question, answer in getattr(adapter, method)()]
    if len(pairs) < 2:
        gave = f"{method}() gave {'1 pair' if pairs else 'no pair'} of a question and its right answer"
        raise InputError(gave, "give at least 2 pairs of texts")
    return pairs


def encoded(adapter: Adapter, pairs: Pairs) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the inputs and labels that the adapter's encode() makes of these pairs; raise an error if it fails.

    encode() must return one row of each tensor per pair.
    """
    if type(adapter).encode is Adapter.encode:
        raise InputError(
            f"{type(adapter).__name__} has no encode()",
            "write one: it converts questions and answers to tensors and labels",
        )
    with user_code_errors(adapter, "encode"):
        returned = adapter.encode([question for question, _ in pairs], [answer for _, answer in pairs])
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Tensor)):
        raise InputError(f"encode() should return inputs and labels, not {_kind(returned)}", _RETURN)
    inputs = (returned[0],) if isinstance(returned[0], Tensor) else returned[0]
    if not (isinstance(inputs, tuple | list) and inputs and all(isinstance(each, Tensor) for each in inputs)):
        raise InputError(f"encode() should return input tensors, not {_kind(inputs)}", _RETURN)
    rows = [len(each) if each.dim() else 0 for each in (*inputs, returned[1])]
    if set(rows) != {len(pairs)}:
        raise InputError(
            f"encode() returned tensors with {rows} rows for {len(pairs)} questions",
            "make the first axis of every tensor count the questions",
        )
    return tuple(inputs), returned[1]


def _kind(returned: Any) -> str:
    """Return a description of the type of a value, with the types of its parts, such as `tuple (Tensor, int)`."""
    parts = ", ".join(type(each).__name__ for each in returned[:4]) if isinstance(returned, tuple | list) else ""
    return type(returned).__name__ + (f" ({parts})" if parts else "")


def generated(adapter: Adapter, model: nn.Module, questions: Sequence[str]) -> list[str]:
    """Return the answers of the adapter's generate() to these questions; it must give one text for each."""
    with user_code_errors(adapter, "generate"):
        texts: Any = adapter.generate(model, list(questions))
    is_list = isinstance(texts, list | tuple)
    if not is_list or not all(isinstance(each, str) for each in texts):
        what = f"a {type(texts).__name__}"
        if isinstance(texts, Tensor):
            what = f"a tensor of shape {tuple(texts.shape)}"
        elif is_list:
            what += f" of {next(type(each).__name__ for each in texts if not isinstance(each, str))}"
        raise InputError(f"generate() returned {what}", "return a list of texts, one answer for each question")
    if len(texts) != len(questions):
        raise InputError(
            f"generate() gave {len(texts)} answers to {len(questions)} questions", "return one text for each"
        )
    return list(texts)


def _answers(adapter: Adapter, model: Adapted, pairs: Pairs, rows: Rows, places: Rows, logits: Tensor) -> list[Answers]:
    """Return the decoded and the teacher-forced answers to some examples of a batch.

    Token ids are written as characters or words, if these are known. `rows`, `places` and `logits` are explained in
    data/dataset.py, `ShowAnswers`.
    """
    some = [pairs[row] for row in rows]
    predicted, labels = logits.argmax(dim=-1).tolist(), encoded(adapter, some)[1].tolist()
    known = list(dict.fromkeys((*pairs[:N_LEARNED], *some)))
    known_labels = [[each for each in row if each != IGNORE] for row in encoded(adapter, known)[1].tolist()]
    alphabet = Alphabet.learn(known_labels, [answer for _, answer in known]) or Alphabet({})
    texts = generated(adapter, model.model, [some[place][0] for place in places])
    answers = []
    for place, text in zip(places, texts, strict=True):
        asked_at = [i for i, label in enumerate(labels[place]) if label != IGNORE]
        right, one_pass = (tuple(alphabet.tokens([ids[place][i] for i in asked_at])) for ids in (labels, predicted))
        question, answer = some[place]
        answers.append(Answers(question, answer, right, one_pass, text))
    return answers


def require_logits(logits: Tensor, labels: Tensor) -> None:
    """Raise an error unless an adapter's forward() returned one row of logits per label; it says what to change."""
    shape, label_shape = tuple(logits.shape), tuple(labels.shape)
    if labels.is_floating_point():
        raise InputError(
            f"encode() returned labels of {labels.dtype}",
            "labels must be whole numbers, the ids of classes or tokens: labels.long()",
        )
    if shape[:-1] == label_shape and shape[-1] > 1:
        if (largest := int(labels.max())) >= shape[-1]:
            raise InputError(
                f"encode() returned the label {largest}, but forward() has logits for 0 to {shape[-1] - 1} only",
                "labels must be ids of tokens or classes that the model outputs",
            )
        return
    last = "size of the vocabulary" if labels.dim() == 2 else "number of classes"
    wanted = f"[{', '.join(map(str, label_shape))}, {last}]"
    raise InputError(
        f"forward() returned a tensor of shape {list(shape)}, not one row of logits for each label, which is the shape "
        f"{wanted}",
        _reshaping(shape, label_shape),
    )


def _reshaping(shape: tuple[int, ...], label_shape: tuple[int, ...]) -> str:
    """Return advice on how to turn an output of shape `shape` into logits that fit labels of shape `label_shape`."""
    if len(label_shape) == 1 and shape in (label_shape, (*label_shape, 1)):
        return "for one number x per row, return two logits: torch.stack([torch.zeros_like(x), x], -1)"
    if len(label_shape) == 1:
        return "pool over positions, or label each of them: [row, position]"
    if shape in (label_shape, (*label_shape, 1)):
        return "if it decodes, move that code into generate(), and return the logits from which tokens are chosen"
    if len(shape) == 3 and shape[:2] == label_shape[::-1]:
        return "the first axis must count rows: return logits.transpose(0, 1)"
    if len(shape) == 3 and (shape[0], shape[2]) == label_shape:
        return "the last axis must count tokens: return logits.transpose(1, 2)"
    if len(shape) == 3:
        return (
            "if it decodes, move that code into generate(), and make one pass here, fed the right answer; otherwise "
            "give every position a label (-100 for none), or return the logits of the labelled positions only"
        )
    return "return the logits of every position; its label is the right token, or -100 for none"


def _require_fed(adapter: Adapter, model: Adapted, pairs: Pairs) -> None:
    """Raise an error if the logits of an adapter's forward() do not depend on the answer that it is fed.

    forward() then probably decodes by itself.
    """
    question, answer = pairs[0]
    device = next(model.parameters()).device
    others = dict.fromkeys(each for _, each in pairs[:N_LEARNED] if len(each) == len(answer))
    fed = ([each.to(device) for each in encoded(adapter, [(question, each)])[0]] for each in (answer, *others))
    one = next(fed)
    two = next((each for each in fed if _is_other(one, each)), None)
    if two is None:
        return  # encode() ignores the answer, so the model is fed none
    first, second = model.require_answer(one), model.require_answer(two)
    if torch.equal(first, second) and not torch.equal(first, first[:, :1].expand_as(first)):
        raise InputError(
            "forward() gives the same logits whatever answer is in the inputs from encode()",
            "if it decodes, move that code into generate(); forward() should make one pass on the inputs of encode()",
            "if the model needs no answer as input, encode() should leave it out",
        )


def _is_other(inputs: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return not all(torch.equal(one, other) for one, other in zip(inputs, others, strict=True))


def _up_to_the_last(asked: Tensor) -> Tensor:
    """Return a mask of the positions up to the last one that has a label; later positions are padding."""
    return asked.flip(1).cumsum(1).flip(1) > 0


# --- one question -----------------------------------------------------------------------------------------------------


def adapter_input(model: Adapted, question: str) -> TokenizedText:
    """Return the model's inputs for one question, with its own answer or, without generate(), with a known answer."""
    require_text(question)
    adapter = model.adapter
    generates, right, note = type(adapter).generate is not Adapter.generate, None, ""
    if generates:
        question, answer, right = own_answer(model, question)
        fed, note = _possible_answer(adapter, question, answer, right)
    else:
        fed = answer = _fed_answer(adapter, question)
    device = next(model.parameters()).device
    inputs = tuple(tensor.to(device) for tensor in encoded(adapter, [(question, fed)])[0])
    model.require_answer(inputs)
    stacks = ("encoder", "decoder") if any(site.stack == "encoder" for site in model.head_sites) else ("layer",)
    with user_code_errors(adapter, "tokens"):
        labels = [list(map(str, part)) for part in adapter.tokens(question, fed)]
    if len(labels) < len(inputs):
        labels += _token_labels(adapter, (question, fed), inputs)[len(labels) :]
    tokens = dict(zip(stacks, labels, strict=False))
    if not generates:
        return TokenizedText(inputs, tokens)
    verdict, sign = "", words_of(adapter.task).sign
    if right is not None:
        verdict = " (right)" if is_right(adapter, answer, right) else f" (wrong, should be {right})"
    return TokenizedText(inputs, tokens, note=f"{question}{sign}{answer}{verdict}{note}", predicted=answer, right=right)


def own_answer(model: Adapted, question: str) -> tuple[str, str, str | None]:
    """Return the question in the task's format, the model's decoded answer, and the right answer (None if unknown)."""
    adapter, right, refusal = model.adapter, None, None
    if adapter.task is not None:
        task = task_of(adapter)
        try:
            example = task.parse(question)[0]
            question, right = task.show(example), task.answer(example)
        except InputError as error:  # the model may answer a question that the task cannot parse
            refusal = error
    try:
        return question, generated(adapter, model.model, [question])[0], right
    except UserCodeError:
        if refusal is not None:
            raise refusal from None
        raise


def is_right(adapter: Adapter, answer: str, right: str) -> bool:
    """Return whether an answer equals the right answer, except for leading zeros."""
    task = None if adapter.task is None else task_of(adapter)
    return whole_answer(task, answer) == whole_answer(task, right)


def _possible_answer(adapter: Adapter, question: str, answer: str, right: str | None) -> tuple[str, str]:
    """Return the answer to feed the decoder, and a note on which answer it is.

    It is the model's own answer or, if encode() fails on this answer, the right one.
    """
    try:
        encoded(adapter, [(question, answer)])
    except UserCodeError:
        if right is None:
            raise
        return right, "; attention is shown on the right answer, for encode() does not take this one"
    return answer, ""


def _fed_answer(adapter: Adapter, question: str) -> str:
    """Return the answer to feed the decoder for a question: the right answer if it is known.

    Otherwise return any answer if the model's inputs do not depend on it, or else raise an error.
    """
    known, faults = dict(_known_pairs(adapter)), list[str]()
    try:
        if adapter.task is not None:
            task = task_of(adapter)
            return task.answer(task.parse(question)[0])
    except InputError as error:
        faults.append(error.what)
    if question in known:
        return known[question]
    answer = next(iter(known.values()), "")
    other = next((each for each in known.values() if each != answer), 2 * answer)
    inputs = encoded(adapter, [(question, answer)])[0]
    try:
        if not _is_other(inputs, encoded(adapter, [(question, other)])[0]):
            return answer
    except UserCodeError:  # the data have one class only, and doubling its name gives no class
        return answer
    advice = "add generate() to the headcount.Adapter class, or ask a question of its task or data()"
    raise InputError(
        f"{adapter_name(adapter)} needs an answer as input, and no answer to {question!r} is known", *faults, advice
    )


def _known_pairs(adapter: Adapter) -> Pairs:
    """Return the pairs of question and right answer that an adapter knows: its own data, or the test set of its task.

    Return an empty list if data() is not written yet.
    """
    try:
        if adapter.task is None:
            return own_pairs(adapter)
        task = task_of(adapter)
        return pairs_of(task, task.split("test"))
    except UserCodeError:
        raise
    except HeadcountError:
        return []


def _token_labels(adapter: Adapter, pair: tuple[str, str], inputs: Sequence[Tensor]) -> list[list[str]]:
    """Return a name for each position of each input: the character or word of its id or, if unknown, its index."""
    known, sizes = _known_pairs(adapter), tuple(map(len, pair))
    alike = [each for each in known if tuple(map(len, each)) == sizes]  # an encoder may pad shorter ones
    pairs = [pair, *(alike or known)[:N_LEARNED]]
    tensors, _ = encoded(adapter, pairs)
    names = []
    for ids, given in zip(tensors, inputs, strict=True):
        is_ids = given.dim() == 2 and not given.is_floating_point()
        texts = ([each[side] for each in pairs] for side in (0, 1)) if is_ids else ()
        alphabet = next(filter(None, (Alphabet.learn(ids.tolist(), each) for each in texts)), None)
        row = given[0].tolist() if alphabet else range(given.shape[1] if given.dim() > 1 else 0)
        names.append(alphabet.tokens(row) if alphabet else list(map(str, row)))
    return names
