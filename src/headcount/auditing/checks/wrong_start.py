"""Does generation start from a token that the decoder was not trained to start from?

Others who did the exercise started generation from the most common first digit, or from padding. It is seen by trying:
where the decoder is fed its start token, every other token is put. If one of them makes our own loop of passes write
what `generate` writes, where one pass fed as in training is right, then `generate` starts from it. And if one of them
makes one pass right where the adapter's own start does not, then `encode` itself starts from a wrong token: an adapter
may copy its decoder's fault.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.fed_answers import rows_of_one_length
from headcount.auditing.observed import Hits, Observed
from headcount.data.adapter_task import AdapterSequences
from headcount.data.alphabet import Alphabet
from headcount.data.from_adapter import Pairs, encoded, pairs_of, whole_answer
from headcount.data.probing import AnswerTokens
from headcount.hooks.gates import eval_mode
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, Examples, SequenceTask
from headcount.training.answers import BLOCK

ENOUGH, ROWS = 10, 24
"""Examples that are decoded from every start: at least, and at most."""
TRIED = 64
"""Examples of one pass from every start."""
MOST_STARTS = 32
"""Tokens that are tried."""
OFTEN = 0.05
"""Share of examples that one pass has right and decoding has not."""
NEARLY_ALL = 0.9
"""Share that one pass has right if nothing is wrong with it."""
SAME = 0.7
"""Share of decoded answers that another start has to reproduce."""
BETTER = 0.2
"""By how much one pass has to be better from another start."""
FIX = "begin generation with the start token that the decoder was fed in training, in encode() as in generate()"


@dataclass(frozen=True)
class Feeding:
    """Where some examples of one length have their start token and their answers in what the model is given."""

    inputs: tuple[Tensor, ...]
    labels: Tensor
    fed: int
    """Which of the inputs has the answer."""
    position: int
    """Of the start token in it; the answer follows."""
    columns: tuple[int, ...]
    """The labels that are asked for, in order."""
    alphabet: Alphabet
    is_turned: bool
    """Whether answers are fed in another order than they are written in."""
    separator: str
    """What the task writes between two tokens."""

    @property
    def start(self) -> int:
        """The id that encode() starts from."""
        return int(self.inputs[self.fed][0, self.position])

    def first(self, n: int) -> Feeding:
        """The first examples."""
        return replace(self, inputs=tuple(each[:n] for each in self.inputs), labels=self.labels[:n])

    def starts(self, module: nn.Module) -> list[int]:
        """That one first, and others: ids that are fed, and those that the table of embeddings has."""
        known = self.inputs[self.fed].unique().tolist()
        tables = [each.num_embeddings for each in module.modules() if isinstance(each, nn.Embedding)]
        more = range(min((size for size in tables if size > max(known)), default=0))
        return list(dict.fromkeys((self.start, *known, *more)))[:MOST_STARTS]

    def text(self, ids: list[int]) -> str:
        """As it is written, up to the first id that is no character."""
        names = [self.alphabet.names.get(each, "") for each in ids]
        names = names[: names.index("")] if "" in names else names
        return self.separator.join(reversed(names) if self.is_turned else names)


def run(observed: Observed) -> Finding:
    """Against what generate() writes; and in one pass, where that is not right."""
    if not isinstance(observed.answers, AdapterSequences):
        return not_applicable("headcount decodes its own runs, from the token that training feeds first")
    forced = Proportion.count(observed.sequences.forced_right)
    is_apart = observed.sequences.forced_right & ~observed.right_without_separators
    group = rows_of_one_length(observed, observed.n)
    rows = group[is_apart[group]][:ROWS]
    differs = Proportion.count(is_apart).low > OFTEN and len(rows) >= ENOUGH
    if not differs and forced.high >= NEARLY_ALL:
        return passed("one pass and decoding are right from the start token that encode() feeds", n=observed.n)
    first = np.append(rows, np.setdiff1d(group, rows)) if differs else group
    feeding = _feeding(observed.answers, observed.examples[first])  # of all, so that every token has a name
    if feeding is None:
        return not_applicable("where the decoder's start token stands in what encode() makes was not found")
    return (
        _generated(observed, feeding.first(len(rows)), rows) if differs else _one_pass(observed, feeding.first(TRIED))
    )


def _generated(observed: Observed, feeding: Feeding, rows: np.ndarray) -> Finding:
    """Does our own loop write the same from another start?"""
    task, starts, n = observed.task, feeding.starts(observed.model.module), len(rows)
    theirs = [whole_answer(task, observed.readable.texts[row]) for row in rows]
    ours = [[whole_answer(task, feeding.text(ids)) for ids in some] for some in _decoded(observed, feeding, starts)]
    same = [sum(one == other for one, other in zip(texts, theirs, strict=True)) for texts in ours]
    best = int(np.argmax(same))
    if not best or Proportion.of(same[best], n).low < SAME:
        return passed("what is decoded does not come from another start token", n=n, starts=len(starts), same=max(same))
    named = _best_named(feeding, starts, same)
    return failed(
        f"generate() writes what the decoder writes from {named}, in {same[best]:,} of {n:,} examples that are "
        f"wrong when decoded and right in one pass, where it is fed {_named(feeding, starts[0])} first; from that one "
        f"our own loop writes the same in {same[0]:,}",
        cause="generation starts from another token than training does",
        fix=FIX,
        right_despite_fault=_right_from(observed, feeding, starts[best]),
        start=starts[best],
        trained_start=starts[0],
        same=same[best],
        n=n,
    )


def _one_pass(observed: Observed, feeding: Feeding) -> Finding:
    """Is it right from another start?"""
    starts, n = feeding.starts(observed.model.module), len(feeding.labels)
    right = [int(_hits(observed, feeding, feeding.inputs, feeding.labels, start).sum()) for start in starts]
    best = int(np.argmax(right))
    if Proportion.of(right[best], n).low < Proportion.of(right[0], n).high + BETTER:
        return passed("no other start token makes one pass better", n=n, starts=len(starts), right=right[0])
    return failed(
        f"fed {_best_named(feeding, starts, right)} first, one pass is right on {right[best]:,} of {n:,} examples; fed "
        f"{_named(feeding, starts[0])}, as encode() has it, on {right[0]:,}",
        cause="the decoder was trained with another start token than it is fed here",
        fix=FIX,
        start=starts[0],
        trained_start=starts[best],
        n=n,
    )


def _best_named(feeding: Feeding, starts: list[int], counts: list[int]) -> str:
    """The first of the best, and how many do as well."""
    best, n_alike = int(np.argmax(counts)), counts.count(max(counts)) - 1
    return _named(feeding, starts[best]) + (f" (or one of {n_alike} that do the same)" if n_alike else "")


def _named(feeding: Feeding, token: int) -> str:
    name = feeding.alphabet.names.get(token)
    return f"the token {token}" if name is None else f"the token {token} ({name!r})"


# --- where the start token is -----------------------------------------------------------------------------------------


def _feeding(model: AdapterSequences, examples: Examples) -> Feeding | None:
    """Found by changing the answers: the token before the first one that changes, if it is the same in all rows."""
    pairs = _filled(model, examples)
    (inputs, labels), (others, _) = (_on_cpu(model, each) for each in (pairs, _changed(model.task, pairs)))
    changed = [i for i, (one, two) in enumerate(zip(inputs, others, strict=True)) if not torch.equal(one, two)]
    if len(changed) != 1 or not _are_ids(ids := inputs[changed[0]], others[changed[0]]):
        return None
    position = int((ids != others[changed[0]]).any(dim=0).nonzero()[0]) - 1
    columns = (labels != IGNORE).all(dim=0).nonzero().flatten().tolist()
    follows = ids[:, position + 1 :]
    n = min(len(columns), follows.shape[1])
    is_shifted = n > 0 and torch.equal(labels[:, columns[:n]], follows[:, :n])
    rows, texts = labels[:, columns].tolist(), [text for _, text in pairs]
    alphabet, separator = Alphabet.learn(rows, texts), AnswerTokens.of(model.task).separator
    if position < 0 or len(ids[:, position].unique()) > 1 or not is_shifted or alphabet is None:
        return None
    for is_turned in (False, True):
        found = Feeding(inputs, labels, changed[0], position, tuple(columns), alphabet, is_turned, separator)
        if [found.text(row) for row in rows] == texts:
            return found
    return None


def _are_ids(one: Tensor, other: Tensor) -> bool:
    return one.dim() == 2 and not one.is_floating_point() and one.shape == other.shape


def _filled(model: AdapterSequences, examples: Examples) -> Pairs:
    """Answers with their leading zeros, if the adapter writes them."""
    pairs, answers = pairs_of(model.task, examples), model.task.encode(examples).answer
    full = [(question, model.task.show_tokens(tokens)) for (question, _), tokens in zip(pairs, answers, strict=True)]
    is_filled = torch.equal(encoded(model.adapter, full)[1], encoded(model.adapter, pairs)[1])
    return full if is_filled else pairs


def _on_cpu(model: AdapterSequences, pairs: Pairs) -> tuple[tuple[Tensor, ...], Tensor]:
    """What somebody's encode() makes of them, wherever it puts that."""
    inputs, labels = encoded(model.adapter, pairs)
    return tuple(each.cpu() for each in inputs), labels.cpu()


def _changed(task: SequenceTask, pairs: Pairs) -> Pairs:
    """Replace every token of the answers by another; never by the first, a 0 that need not be written in front."""
    writing = AnswerTokens.of(task)
    answers = [writing.split(text) for _, text in pairs]
    tokens = sorted({token for answer in answers for token in answer})
    known = tokens[1:] if len(tokens) > 2 else ["1", "2"]
    others = {token: known[bisect_right(known, token) % len(known)] for token in tokens}
    texts = (writing.join(map(others.__getitem__, answer)) for answer in answers)
    return [(question, text) for (question, _), text in zip(pairs, texts, strict=True)]


# --- from another one -------------------------------------------------------------------------------------------------


@torch.no_grad()
def _decoded(observed: Observed, feeding: Feeding, starts: list[int]) -> list[list[list[int]]]:
    """[start][example]: ids that the model writes, one pass after the other, all starts at once."""
    n, fed_at = len(feeding.labels), feeding.fed
    with eval_mode(observed.model.module, gradients=False) as device:
        inputs = [each.repeat(len(starts), *[1] * (each.dim() - 1)).to(device) for each in feeding.inputs]
        inputs[fed_at][:, feeding.position] = torch.tensor(starts, device=device).repeat_interleave(n)
        written = []
        for place, column in enumerate(feeding.columns, start=feeding.position + 1):
            written.append(observed.model.module(*inputs)[:, column].argmax(dim=-1))
            if place < inputs[fed_at].shape[1]:
                inputs[fed_at][:, place] = written[-1]
    return torch.stack(written, dim=1).unflatten(0, (len(starts), n)).tolist()


def _hits(observed: Observed, feeding: Feeding, inputs: tuple[Tensor, ...], labels: Tensor, start: int) -> Hits:
    """[example]: right in one pass, from this start."""
    with eval_mode(observed.model.module, gradients=False) as device:
        given = [each.clone().to(device) for each in inputs]
        given[feeding.fed][:, feeding.position] = start
        predicted = observed.model.module(*given).argmax(dim=-1).cpu()
    return np.asarray(((predicted == labels) | (labels == IGNORE)).all(dim=1).numpy())


def _right_from(observed: Observed, feeding: Feeding, start: int) -> Hits | None:
    """[example]: which answers are right from this start; None if it stands elsewhere in some."""
    model, parts = cast(AdapterSequences, observed.answers), []
    pairs = pairs_of(model.task, observed.examples)
    for i in range(0, len(pairs), BLOCK):
        inputs, labels = _on_cpu(model, pairs[i : i + BLOCK])
        fed = inputs[feeding.fed]
        if feeding.position >= fed.shape[1] or not (fed[:, feeding.position] == feeding.start).all():
            return None
        parts.append(_hits(observed, feeding, inputs, labels, start))
    return np.concatenate(parts)


PART = Check(
    "HC104",
    "Does generation start from a token that the decoder was not trained to start from?",
    run,
    asks="sequence",
    explains=("HC101", "HC102", "HC105", "HC106", "HC303", "HC304", "HC702", "HC703", "HC802"),
)
