"""Is padding also a symbol?

The older reports filled short sequences with the number 0, and report 002 had a loss that ignored class 0 as padding,
so that the digit 0 was never a target. One more symbol is put into a short example, and both are encoded together
with a long one: if the model is given the same for the two, it cannot tell them apart. A mask or a length beside the
ids tells them apart, and every tensor is compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from headcount.auditing.check import NOT_APPLICABLE, PADDED, Check, Finding, failed, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.data.from_adapter import encoded
from headcount.errors import InputError
from headcount.tasks.base import ClassTask, SequenceTask, Task
from headcount.tasks.sortedness import EMPTY
from headcount.training.answers import leading_zeros

MOST_SYMBOLS = 1000
"""That are tried: of more, the first and the last ones."""
ENOUGH = 20
"""Right answers that have a token, before it is said never to be asked for."""


def run(observed: Observed) -> Finding:
    """Labels of written answers, then inputs."""
    is_sequence = observed.task.output_type == "sequence"
    found = (_skipped(observed) if is_sequence else None) or _inputs(observed)
    if is_sequence and found.verdict == NOT_APPLICABLE:
        return passed(f"labels ask for every digit; {found.finding}", n=observed.n)
    return found


# --- inputs ---


def _inputs(observed: Observed) -> Finding:
    task, texts = observed.task, [observed.task.show(example) for example in observed.examples]
    words = [len(_words(text)) for text in texts]
    if min(words) == max(words):
        return not_applicable(f"all inputs have one length, {words[0]}, so nothing is padded")
    short = _plainest(task, [text for text, n in zip(texts, words, strict=True) if n == min(words)])
    longest = texts[int(np.argmax(words))]
    others = lengthened(task, short)
    if not others:
        return not_applicable(f"no longer example can be made of {short!r}")
    given = _encoded(observed, [short, longest, *others])
    is_same = np.all([(each[2:] == each[0]).reshape(len(others), -1).all(dim=1).numpy() for each in given], axis=0)
    same = [text for text, found in zip(others, is_same, strict=True) if found]
    if same:
        return _same_input(task, short, same, {others[text] for text in same})
    shared = _shared_symbol(observed, short, longest)
    return shared or passed(f"{len(others):,} longer examples all differ from {short!r} with padding", n=len(others))


def _plainest(task: Task, texts: list[str]) -> str:
    """One of the last class, if there are classes: one more symbol may then change the right answer."""
    last = cast(ClassTask, task).classes[-1] if task.output_type == "class" else ""
    return next((text for text in texts if task.answer(task.parse(text)[0]) == last), texts[0])


def _words(text: str) -> list[str]:
    """Numbers between spaces, or else characters."""
    return text.split() if " " in text else list(text)


def _joined(text: str, words: list[str]) -> str:
    return (" " if " " in text else "").join(words)


def lengthened(task: Task, text: str) -> dict[str, str]:
    """Examples with one symbol more than this, near either end, and which symbol that is."""
    symbols, words, found = _symbols(task), _words(text), dict[str, str]()
    for place in sorted({0, 1, len(words) - 1, len(words)}):  # padding stands at one of the ends
        for symbol in symbols:
            try:
                other = task.show(task.parse(_joined(text, [*words[:place], symbol, *words[place:]]))[0])
            except InputError:  # such as a sum with two operators
                continue
            if other != text:  # 07 is 7
                found[other] = symbol
    return found


def _symbols(task: Task) -> tuple[str, ...]:
    tokens, half = task.tokens, MOST_SYMBOLS // 2
    return tokens if len(tokens) <= MOST_SYMBOLS else (*tokens[:half], *tokens[-half:])


def _encoded(observed: Observed, texts: list[str]) -> list[Tensor]:
    """What the model is given of these, in one batch; a decoder is fed the same answer behind each."""
    task = observed.task
    if observed.adapter is not None:
        answer = task.answer(task.parse(texts[1])[0])
        return [each.cpu() for each in encoded(observed.adapter, [(text, answer) for text in texts])[0]]
    parsed = [task.parse(text) for text in texts]
    width = max(each.shape[1] for each in parsed)
    filled = [np.pad(each, ((0, 0), (0, width - each.shape[1])), constant_values=EMPTY) for each in parsed]
    return [each.cpu() for each in observed.inputs(np.concatenate(filled))[:1]]


def _same_input(task: Task, short: str, same: list[str], symbols: set[str]) -> Finding:
    one, other = (f"{text} ({task.answer(task.parse(text)[0])})" for text in (short, same[0]))
    symbol = ", ".join(sorted(symbols))
    told = f"the model is given the same for {one}, when it is padded, and for {other}"
    if len(symbols) > 1:
        return failed(
            f"{told}, and for {len(same) - 1} more",
            cause="encode() makes one input of different examples, such as by cutting them off",
            fix="encode every symbol of every example",
            symbols=len(symbols),
        )
    failure = failed(
        told,
        cause=f"padding has the id of the symbol {symbol}, and nothing else tells the two apart",
        fix="give padding an id of its own, and hide it from attention and from the pooling",
        symbol=symbol,
    )
    # Written answers are measured with padding, classes without.
    return replace(failure, affects=PADDED) if task.output_type == "class" else failure


def _shared_symbol(observed: Observed, short: str, longest: str) -> Finding | None:
    """A warning if ids are all there is, and only a mark between padding and a symbol of its id tells them apart."""
    (alone, *more), (beside, *_) = _encoded(observed, [short, short]), _encoded(observed, [short, longest])
    fill = None if more or alone.dim() != 2 else _fill(alone[0], beside[0])
    if fill is None:
        return None
    words, symbols = _words(short), [symbol for symbol in _symbols(observed.task) if symbol.isdigit()]
    others = [(place, symbol) for place in (0, 1) for symbol in symbols]
    changed = [_joined(short, [*words[:place], symbol, *words[place + 1 :]]) for place, symbol in others]
    ids = _encoded(observed, [short, longest, *changed])[0]
    is_other = ids[2:] != ids[0]
    is_fill = ((is_other.sum(dim=1) == 1) & (is_other & (ids[2:] == fill)).any(dim=1)).tolist()
    shared = sorted({symbol for (_, symbol), found in zip(others, is_fill, strict=True) if found})
    if not shared:
        return None
    return warned(
        f"padding and the symbol {', '.join(shared)} have one id, {fill}; only a mark between them tells them apart",
        cause="a mask that is made of ids hides that symbol too, and without one padding is read as that symbol",
        fix="give padding an id of its own",
        symbol=", ".join(shared),
    )


def _fill(alone: Tensor, beside: Tensor) -> int | None:
    """What stands behind or before a row when a longer one is beside it; None if that is not one id."""
    width = len(alone)
    for real, rest in ((beside[:width], beside[width:]), (beside[-width:], beside[:-width])):
        if len(rest) and torch.equal(real, alone) and len(rest.unique()) == 1:
            return int(rest[0])
    return None


# --- labels ---


def _skipped(observed: Observed) -> Finding | None:
    """A failure if some digit is never asked for, at any place, though others are there."""
    right, asked = observed.right_answers, observed.sequences.asked
    counts = ~leading_zeros(cast(SequenceTask, observed.task), right) & asked.any(axis=0)
    skipped = [
        (token, n)
        for token in np.unique(right).tolist()
        if (n := int((is_it := counts & (right == token)).sum())) >= ENOUGH and not asked[is_it].any()
    ]
    if not skipped:
        return None
    told = " and ".join(
        f"the digit {observed.token(token)} in any of the {n:,} places where it is right" for token, n in skipped
    )
    return failed(
        f"labels never ask for {told}, in {observed.n:,} answers",
        cause="padding has the number of that digit: consistent with a loss that ignores it (ignore_index), which then "
        "never is a target",
        fix="give padding a number of its own in labels and loss, such as -100",
        digits=", ".join(observed.token(token) for token, _ in skipped),
    )


PART = Check("HC203", "Is padding also a symbol?", run, explains=("HC202",))
