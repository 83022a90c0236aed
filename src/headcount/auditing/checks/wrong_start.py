"""Does generation start from another token than training?

Some submitted models started generation from the most common first digit, or from padding. The check replaces the start
token by other tokens, one after another. If teacher forcing is right, and headcount's own decoding loop writes the same
wrong answers as `generate` from one of these tokens, then `generate` starts from it. If teacher forcing is wrong with
the adapter's start token but right with another one, then `encode` feeds a wrong start token.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from headcount.auditing.audited_model import AuditedSequenceModel, Hits
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.data.adapter_task import AdapterSequences
from headcount.data.alphabet import Alphabet
from headcount.data.from_adapter import Pairs, encoded, pairs_of, whole_answer
from headcount.data.probing import AnswerTokens
from headcount.hooks.gates import eval_mode
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, Examples, SequenceTask
from headcount.training.answers import BLOCK

MIN_DECODED, MAX_DECODED = 10, 24
"""Smallest and largest number of examples to decode from every start token; each generated token costs a pass."""
N_ONE_PASS = 64
"""Number of examples for one teacher-forced pass from every start token."""
MAX_STARTS = 32
"""Largest number of start tokens to try."""
MIN_DECODING_ERRORS = 0.05
"""Decoding is examined if it is wrong on more than this fraction of the examples where teacher forcing is right."""
MIN_ONE_PASS_RIGHT = 0.9
"""If the accuracy of one teacher-forced pass is below this, encode() may feed a wrong start token; others are tried."""
MIN_REPRODUCED = 0.7
"""Fraction of wrong decoded answers that another start token must reproduce (lower end of the 95 % CI)."""
MIN_GAIN = 0.2
"""Another start token must raise the accuracy of one teacher-forced pass by at least this."""
FIX = "begin generation with the start token that the decoder was fed in training, in encode() as in generate()"


@dataclass(frozen=True)
class Feeding:
    """The positions of the start token and of the answer in the input tensors of some examples of one length."""

    inputs: tuple[Tensor, ...]
    labels: Tensor
    fed: int
    """Index of the input tensor that contains the answer."""
    position: int
    """Position of the start token in this tensor; the answer follows it."""
    columns: tuple[int, ...]
    """Columns of the labels that the loss does not ignore, in order."""
    alphabet: Alphabet
    is_reversed: bool
    """Whether answers are fed in reverse order."""
    separator: str
    """The text that the task writes between two tokens."""

    @property
    def start(self) -> int:
        """The token id that the adapter's encode() feeds to the decoder first."""
        return int(self.inputs[self.fed][0, self.position])

    def first(self, n: int) -> Feeding:
        """Return a copy for the first `n` examples only."""
        return replace(self, inputs=tuple(each[:n] for each in self.inputs), labels=self.labels[:n])

    def starts(self, module: nn.Module) -> list[int]:
        """Return start tokens to try: encode()'s own, then other ids in the decoder's input and the embedding table."""
        known = self.inputs[self.fed].unique().tolist()
        tables = [each.num_embeddings for each in module.modules() if isinstance(each, nn.Embedding)]
        more = range(min((size for size in tables if size > max(known)), default=0))
        return list(dict.fromkeys((self.start, *known, *more)))[:MAX_STARTS]

    def text(self, ids: list[int]) -> str:
        """Return ids as text, up to the first id that is not a token of an answer."""
        names = [self.alphabet.names.get(each, "") for each in ids]
        names = names[: names.index("")] if "" in names else names
        return self.separator.join(reversed(names) if self.is_reversed else names)


def run(model: AuditedSequenceModel) -> Finding:
    """Try other start tokens; fail if one reproduces generate()'s wrong answers, or makes teacher forcing right."""
    if (adapted := model.adapted) is None:
        return not_applicable(
            "headcount decodes the answers of models that it trained itself, from the same start token as in training"
        )
    forced = Proportion.count(model.answers.forced_right)
    is_lost = model.answers.forced_right & ~model.right_when_readable
    group = model.rows_of_one_length(model.n)
    rows = group[is_lost[group]][:MAX_DECODED]
    is_decoding_wrong = Proportion.count(is_lost).low > MIN_DECODING_ERRORS and len(rows) >= MIN_DECODED
    if not is_decoding_wrong and forced.high >= MIN_ONE_PASS_RIGHT:
        return passed("teacher forcing and decoding are right with the start token that encode() feeds", n=model.n)
    chosen = np.append(rows, np.setdiff1d(group, rows)) if is_decoding_wrong else group
    feeding = _feeding(adapted, model.examples[chosen])  # of all examples, so that every token gets a name
    if feeding is None:
        return not_applicable("the decoder's start token was not found in the tensors of encode()")
    return (
        _compare_decoding(model, feeding.first(len(rows)), rows)
        if is_decoding_wrong
        else _compare_one_pass(model, feeding.first(N_ONE_PASS))
    )


def _compare_decoding(model: AuditedSequenceModel, feeding: Feeding, rows: np.ndarray) -> Finding:
    """Look for a start token from which headcount's own decoding loop writes the same answers as generate()."""
    task, starts, n = model.task, feeding.starts(model.opened.module), len(rows)
    theirs = [whole_answer(task, model.readable_answers.texts[row]) for row in rows]
    ours = [[whole_answer(task, feeding.text(ids)) for ids in each] for each in _decode(model, feeding, starts)]
    counts = [sum(one == other for one, other in zip(texts, theirs, strict=True)) for texts in ours]
    best = int(np.argmax(counts))
    if not best or Proportion.of(counts[best], n).low < MIN_REPRODUCED:
        finding = "no other start token reproduces the decoded answers"
        return passed(finding, n=n, starts=len(starts), same=max(counts))
    return failed(
        f"{counts[best]:,} of the {n:,} wrong answers of generate() appear again if the decoder starts from "
        f"{_best_name(feeding, starts, counts)}, but only {counts[0]:,} if it starts from "
        f"{_name(feeding, starts[0])}, as in teacher forcing, which is right on these examples",
        cause="generation starts from another token than training",
        fix=FIX,
        right_despite_fault=_right_from(model, feeding, starts[best]),
        start=starts[best],
        trained_start=starts[0],
        same=counts[best],
        n=n,
    )


def _compare_one_pass(model: AuditedSequenceModel, feeding: Feeding) -> Finding:
    """Look for a start token with which teacher forcing is right far more often than with encode()'s own."""
    starts, n = feeding.starts(model.opened.module), len(feeding.labels)
    counts = [int(_hits(model, feeding, start).sum()) for start in starts]
    best = int(np.argmax(counts))
    if Proportion.of(counts[best], n).low < Proportion.of(counts[0], n).high + MIN_GAIN:
        finding = "no other start token makes teacher forcing more accurate"
        return passed(finding, n=n, starts=len(starts), right=counts[0])
    return failed(
        f"teacher forcing is right on {counts[best]:,} of {n:,} examples if the decoder starts from "
        f"{_best_name(feeding, starts, counts)}, and on {counts[0]:,} if it starts from {_name(feeding, starts[0])}, "
        "which encode() feeds",
        cause="the decoder was trained with another start token than encode() feeds",
        fix=FIX,
        start=starts[0],
        trained_start=starts[best],
        n=n,
    )


def _best_name(feeding: Feeding, starts: list[int], counts: list[int]) -> str:
    """Return the start token with the highest count in words, with the number of others that have the same count."""
    best, n_others = int(np.argmax(counts)), counts.count(max(counts)) - 1
    return _name(feeding, starts[best]) + (f" (or one of {n_others} that do the same)" if n_others else "")


def _name(feeding: Feeding, token: int) -> str:
    name = feeding.alphabet.names.get(token)
    return f"the token {token}" if name is None else f"the token {token} ({name!r})"


# --- where the start token is -----------------------------------------------------------------------------------------


def _feeding(model: AdapterSequences, examples: Examples) -> Feeding | None:
    """Find the start token, just before the first input position that changes with the answer; None if not found."""
    pairs = _filled(model, examples)
    (inputs, labels), (others, _) = (_on_cpu(model, each) for each in (pairs, _changed(model.task, pairs)))
    changed = [i for i, (one, two) in enumerate(zip(inputs, others, strict=True)) if not torch.equal(one, two)]
    if len(changed) != 1:
        return None
    ids, other_ids = inputs[changed[0]], others[changed[0]]
    if ids.dim() != 2 or ids.is_floating_point() or ids.shape != other_ids.shape:
        return None
    position = int((ids != other_ids).any(dim=0).nonzero()[0]) - 1
    columns = (labels != IGNORE).all(dim=0).nonzero().flatten().tolist()
    following = ids[:, position + 1 :]
    n = min(len(columns), following.shape[1])
    is_shifted = n > 0 and torch.equal(labels[:, columns[:n]], following[:, :n])
    rows, texts = labels[:, columns].tolist(), [text for _, text in pairs]
    alphabet, separator = Alphabet.learn(rows, texts), AnswerTokens.of(model.task).separator
    if position < 0 or len(ids[:, position].unique()) > 1 or not is_shifted or alphabet is None:
        return None
    for is_reversed in (False, True):
        feeding = Feeding(inputs, labels, changed[0], position, tuple(columns), alphabet, is_reversed, separator)
        if [feeding.text(row) for row in rows] == texts:
            return feeding
    return None


def _filled(model: AdapterSequences, examples: Examples) -> Pairs:
    """Return questions and right answers with leading zeros, if encode() makes the same labels with and without."""
    pairs, answers = pairs_of(model.task, examples), model.task.encode(examples).answer
    full = [(question, model.task.show_tokens(tokens)) for (question, _), tokens in zip(pairs, answers, strict=True)]
    is_filled = torch.equal(encoded(model.adapter, full)[1], encoded(model.adapter, pairs)[1])
    return full if is_filled else pairs


def _on_cpu(model: AdapterSequences, pairs: Pairs) -> tuple[tuple[Tensor, ...], Tensor]:
    """Call encode() and return its inputs and labels on the CPU."""
    inputs, labels = encoded(model.adapter, pairs)
    return tuple(each.cpu() for each in inputs), labels.cpu()


def _changed(task: SequenceTask, pairs: Pairs) -> Pairs:
    """Replace every token of the answers by another token, but never by 0, which may be omitted as a leading zero."""
    answer_tokens = AnswerTokens.of(task)
    answers = [answer_tokens.split(text) for _, text in pairs]
    tokens = sorted({token for answer in answers for token in answer})
    known = tokens[1:] if len(tokens) > 2 else ["1", "2"]
    others = {token: known[bisect_right(known, token) % len(known)] for token in tokens}
    texts = (answer_tokens.join(map(others.__getitem__, answer)) for answer in answers)
    return [(question, text) for (question, _), text in zip(pairs, texts, strict=True)]


# --- other start tokens -----------------------------------------------------------------------------------------------


@torch.no_grad()
def _decode(model: AuditedSequenceModel, feeding: Feeding, starts: list[int]) -> list[list[list[int]]]:
    """Decode from all start tokens at once; return the ids that the model writes, [start][example][token]."""
    n, fed, module = len(feeding.labels), feeding.fed, model.opened.module
    with eval_mode(module, gradients=False) as device:
        inputs = [each.repeat(len(starts), *[1] * (each.dim() - 1)).to(device) for each in feeding.inputs]
        inputs[fed][:, feeding.position] = torch.tensor(starts, device=device).repeat_interleave(n)
        written = []
        for place, column in enumerate(feeding.columns, start=feeding.position + 1):
            written.append(module(*inputs)[:, column].argmax(dim=-1))
            if place < inputs[fed].shape[1]:
                inputs[fed][:, place] = written[-1]
    return torch.stack(written, dim=1).unflatten(0, (len(starts), n)).tolist()


def _hits(model: AuditedSequenceModel, feeding: Feeding, start: int) -> Hits:
    """Return for each example whether one teacher-forced pass from this start token is right."""
    with eval_mode(model.opened.module, gradients=False) as device:
        inputs = [tensor.clone().to(device) for tensor in feeding.inputs]
        inputs[feeding.fed][:, feeding.position] = start
        predicted = model.opened.module(*inputs).argmax(dim=-1).cpu()
    return np.asarray(((predicted == feeding.labels) | (feeding.labels == IGNORE)).all(dim=1).numpy())


def _right_from(model: AuditedSequenceModel, feeding: Feeding, start: int) -> Hits | None:
    """Return for each audited example whether one pass from this start token is right; None if its position varies."""
    assert model.adapted is not None, "feeding is found in an adapter's tensors"
    blocks, pairs = [], model.pairs
    for i in range(0, len(pairs), BLOCK):
        inputs, labels = _on_cpu(model.adapted, pairs[i : i + BLOCK])
        fed = inputs[feeding.fed]
        if feeding.position >= fed.shape[1] or not (fed[:, feeding.position] == feeding.start).all():
            return None
        blocks.append(_hits(model, replace(feeding, inputs=inputs, labels=labels), start))
    return np.concatenate(blocks)


PART = Check("HC104", "Does generation start from another token than training?", sequences=run)
