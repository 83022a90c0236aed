"""Does padding have the id of a symbol?

Some published reports padded short sequences with the number 0, and one had a loss that ignored class 0 as padding, so
that the digit 0 was never a label. The check adds one symbol to a short example, and encodes the example with and
without it beside a long one. If the model gets the same tensors for both, it cannot tell them apart. A mask or a length
beside the ids does tell them apart, so every tensor is compared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel
from headcount.auditing.check import NOT_APPLICABLE, PADDED, Check, Finding, failed, not_applicable, passed, warned
from headcount.data.from_adapter import encoded
from headcount.errors import InputError
from headcount.tasks.base import Task, widened
from headcount.training.answers import leading_zeros

MAX_SYMBOLS = 1000
"""Largest number of symbols to try; of more symbols, only the first and last, which often share padding's id."""
MIN_TOKEN_COUNT = 20
"""A digit that is never a label is reported only if it is right at this many places: fewer may be chance."""


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Fail if a token is never a label, or if a padded example has the same input tensors as a longer one."""
    finding = _missing_labels(model) or _check_inputs(model, prefer="")
    if finding.verdict == NOT_APPLICABLE:
        return passed(f"labels contain every {model.task.words.place}; {finding.finding}", n=model.n)
    return finding


def check_classes(model: AuditedClassifier) -> Finding:
    """Fail if a padded example has the same input as a longer one; accuracy, measured without padding, hides this."""
    return _check_inputs(model, prefer=model.task.classes[-1], affects=PADDED)


# --- inputs ---


def _check_inputs(model: AuditedModel, prefer: str, affects: str = "") -> Finding:
    """Look for a longer example that encode() turns into the same input as a padded short one.

    Short examples with the answer `prefer` are tried first. `affects` is what the fault can change.
    """
    task, texts = model.task, [model.task.show(example) for example in model.examples]
    words = [len(_words(text)) for text in texts]
    if min(words) == max(words):
        return not_applicable(f"all inputs have the same length, {words[0]}, so nothing is padded")
    shortest = [text for text, n in zip(texts, words, strict=True) if n == min(words)]
    short = next((text for text in shortest if task.answer(task.parse(text)[0]) == prefer), shortest[0])
    longest = texts[int(np.argmax(words))]
    others = lengthened(task, short)
    if not others:
        return not_applicable(
            f"the example {short!r} cannot be lengthened by a symbol, to compare the symbol with padding"
        )
    inputs = _encoded(model, [short, longest, *others])
    is_same = np.all([(each[2:] == each[0]).reshape(len(others), -1).all(dim=1).numpy() for each in inputs], axis=0)
    same = [text for text, is_equal in zip(others, is_same, strict=True) if is_equal]
    if same:
        return _same_input(task, short, same, {others[text] for text in same}, affects)
    shared = _shared_symbol(model, short, longest)
    text = f"the inputs of {len(others):,} longer examples all differ from that of {short!r} with padding"
    return shared or passed(text, n=len(others))


def _words(text: str) -> list[str]:
    """Return the words of a text or, if the text has no spaces, its characters."""
    return text.split() if " " in text else list(text)


def _joined(text: str, words: list[str]) -> str:
    return (" " if " " in text else "").join(words)


def lengthened(task: Task, text: str) -> dict[str, str]:
    """Return valid examples with one more symbol near either end of `text`, each with its inserted symbol."""
    symbols, words, examples = _symbols(task), _words(text), dict[str, str]()
    for place in sorted({0, 1, len(words) - 1, len(words)}):  # padding is at the beginning or at the end
        for symbol in symbols:
            try:
                other = task.show(task.parse(_joined(text, [*words[:place], symbol, *words[place:]]))[0])
            except InputError:  # such as a sum with two operators
                continue
            if other != text:  # 07 and 7 are the same example
                examples[other] = symbol
    return examples


def _symbols(task: Task) -> tuple[str, ...]:
    tokens, half = task.tokens, MAX_SYMBOLS // 2
    return tokens if len(tokens) <= MAX_SYMBOLS else (*tokens[:half], *tokens[-half:])


def _encoded(model: AuditedModel, texts: list[str]) -> list[Tensor]:
    """Return the input tensors of these questions, encoded in one batch with equal answers."""
    task = model.task
    if model.adapter is not None:
        answer = task.answer(task.parse(texts[1])[0])
        return [each.cpu() for each in encoded(model.adapter, [(text, answer) for text in texts])[0]]
    parsed = [task.parse(text) for text in texts]
    width = max(each.shape[-1] for each in parsed)
    filled = [widened(each, width - each.shape[-1]) for each in parsed]
    return [each.cpu() for each in model.inputs(np.concatenate(filled))[:1]]


def _same_input(task: Task, short: str, same: list[str], symbols: set[str], affects: str) -> Finding:
    one, other = (f"{text} ({task.answer(task.parse(text)[0])})" for text in (short, same[0]))
    symbol = ", ".join(sorted(symbols))
    finding = f"the model gets the same input for {one} with padding and for {other}"
    if len(symbols) > 1:
        return failed(
            f"{finding}, and for {len(same) - 1} more",
            cause="encode() gives different examples the same input, for example by truncating them",
            fix="encode every symbol of every example",
            symbols=len(symbols),
        )
    failure = failed(
        finding,
        cause=f"padding has the same token id as the symbol {symbol}, and nothing else tells the two apart",
        fix="give padding an id of its own, and mask it in attention and in the pooling",
        symbol=symbol,
    )
    return replace(failure, affects=affects)


def _shared_symbol(model: AuditedModel, short: str, longest: str) -> Finding | None:
    """Return a warning if padding has the id of a symbol and only another input tensor tells them apart; else None."""
    (alone, *more), (beside, *_) = _encoded(model, [short, short]), _encoded(model, [short, longest])
    fill = None if more or alone.dim() != 2 else _padding_id(alone[0], beside[0])
    if fill is None:
        return None
    words, symbols = _words(short), [symbol for symbol in _symbols(model.task) if symbol.isdigit()]
    others = [(place, symbol) for place in (0, 1) for symbol in symbols]
    changed = [_joined(short, [*words[:place], symbol, *words[place + 1 :]]) for place, symbol in others]
    ids = _encoded(model, [short, longest, *changed])[0]
    is_other = ids[2:] != ids[0]
    is_fill = ((is_other.sum(dim=1) == 1) & (is_other & (ids[2:] == fill)).any(dim=1)).tolist()
    shared = sorted({symbol for (_, symbol), is_shared in zip(others, is_fill, strict=True) if is_shared})
    if not shared:
        return None
    return warned(
        f"padding and the symbol {', '.join(shared)} have the same id, {fill}, and only another input tensor tells "
        "them apart",
        cause="a mask computed from these ids also hides the symbol, and without a mask padding is read as the symbol",
        fix="give padding an id of its own",
        symbol=", ".join(shared),
    )


def _padding_id(alone: Tensor, beside: Tensor) -> int | None:
    """Return the id that fills up a row in a batch with a longer row; None if several ids do."""
    width = len(alone)
    for real, rest in ((beside[:width], beside[width:]), (beside[-width:], beside[:-width])):
        if len(rest) and torch.equal(real, alone) and len(rest.unique()) == 1:
            return int(rest[0])
    return None


# --- labels ---


def _missing_labels(model: AuditedSequenceModel) -> Finding | None:
    """Return a failure if a token that occurs in right answers is never a label; else None."""
    right, asked = model.right_answers, model.answers.asked
    is_counted = ~leading_zeros(model.task, right) & asked.any(axis=0)
    missing = [
        (token, n)
        for token in np.unique(right).tolist()
        if (n := int((is_token := is_counted & (right == token)).sum())) >= MIN_TOKEN_COUNT
        and not asked[is_token].any()
    ]
    if not missing:
        return None
    noun = model.task.words.place
    digits = " and ".join(
        f"the {noun} {model.token(token)} at any of the {n:,} places where it is right" for token, n in missing
    )
    return failed(
        f"in {model.n:,} answers, labels never contain {digits}",
        cause=f"padding has the same token id as that {noun}: consistent with a loss that ignores this id "
        "(ignore_index), so that it is never a label",
        fix="give padding an id of its own in labels and loss, such as -100",
        digits=", ".join(model.token(token) for token, _ in missing),
    )


PART = Check("HC203", "Does padding have the id of a symbol?", sequences=check_sequences, classes=check_classes)
