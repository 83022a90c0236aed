"""Where a task's tokens stand in others' inputs: found by probing encode(), whatever it puts around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headcount import Adapter, Sites
from headcount.analysis.attention import average_patterns
from headcount.analysis.specialisation import specialise
from headcount.errors import InputError
from headcount.experiments.adapter_attention import AdapterAttention, Layout
from headcount.experiments.task_attention import visible_in
from headcount.external.adapter import Adapted, task_of
from headcount.heads import HeadSite

CHARS = "0123456789+=_<>#"
"""_ pads, < begins, > ends, # is a class token."""
SELF, FED, CROSS, ONE = (
    HeadSite(*site)
    for site in (("encoder", 0, "self"), ("decoder", 0, "self"), ("decoder", 0, "cross"), ("layer", 0, "self"))
)


def ids(texts: Sequence[str]) -> Tensor:
    width = max(map(len, texts))
    return torch.tensor([[CHARS.index(char) for char in text.ljust(width, "_")] for text in texts])


class Sums(Adapter):
    """`question` and `fed` and `asked` say how texts are written."""

    task, settings = "addition", {"digits": 2, "n_validation": 10, "n_test": 40}
    question, fed, asked = "{q}", "<{a}", "{a}>"
    fill = 0

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        filled = [answer.zfill(self.fill) for answer in answers]
        pairs = [{"q": q, "a": a, "r": a[::-1]} for q, a in zip(questions, filled, strict=True)]
        return tuple(ids([form.format(**p) for p in pairs]) for form in (self.question, self.fed)), ids(
            [self.asked.format(**p) for p in pairs]
        )


def attention_of(adapter: Adapter) -> AdapterAttention:
    model = nn.ModuleDict({"o": nn.Linear(4, 4)})
    adapted = Adapted(adapter, model, Sites.of(model, layer="o", n_heads=2))
    return AdapterAttention("mine", "", task_of(adapter), adapted)


def layout_of(adapter: Adapter, example: list[int]) -> Layout:
    attention = attention_of(adapter)
    (pattern,) = attention._by_pattern(np.array([example]))
    return attention._layout(pattern)


@pytest.mark.parametrize("fixed", [0, 9])
def test_an_encoder_and_a_decoder(fixed: int) -> None:
    adapter = Sums()
    adapter.question = "#{q}>" + "_" * fixed
    layout = layout_of(adapter, [37, 81])
    queries, keys = layout.at(SELF)
    assert queries.tolist() == keys.tolist() == [-1, 0, 1, 2, 3, 4, -1] + [-1] * fixed
    assert [each.tolist() for each in layout.at(FED)] == [[0, 1, 2, -1], [0, 1, 2, -1]]  # the last 8 is not fed in it
    assert [each.tolist() for each in layout.at(CROSS)] == [[0, 1, 2, -1], keys.tolist()]


def test_a_short_sum_has_no_hundreds_unless_it_is_filled_with_zeros() -> None:
    layout = layout_of(Sums(), [12, 45])
    assert [each.tolist() for each in layout.at(FED)] == [[1, 2, -1], [0, 2, -1]]
    adapter = Sums()
    adapter.fill = 3
    assert [each.tolist() for each in layout_of(adapter, [12, 45]).at(FED)] == [[0, 1, 2, -1], [0, 1, 2, -1]]


def test_answers_that_begin_with_the_ones() -> None:
    adapter = Sums()
    adapter.fed, adapter.asked = "<{r}", "{r}>"
    with pytest.raises(InputError, match=r'"least_first": True'):
        layout_of(adapter, [37, 81])
    adapter.settings = {**Sums.settings, "least_first": True}
    assert [each.tolist() for each in layout_of(adapter, [37, 81]).at(FED)] == [[0, 1, 2, -1], [0, 1, 2, -1]]
    assert layout_of(adapter, [37, 81]).at(SELF)[0].tolist() == [1, 0, 2, 4, 3], "the task has the ones first"
    short = layout_of(adapter, [12, 45])
    assert [each.tolist() for each in short.at(FED)] == [[0, 1, -1], [0, 1, 2]], "behind its end there is no 0"


class OneStack(Sums):
    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        pairs = list(zip(questions, answers, strict=True))
        inputs = ids([f"{q}={a}" for q, a in pairs])
        labels = ids([f"{q}={a}"[1:] + ">" for q, a in pairs])
        before = torch.tensor([[i < len(q) for i in range(inputs.shape[1])] for q, _ in pairs])
        return inputs, labels.masked_fill(before, -100)


def test_a_stack_that_reads_question_and_answer() -> None:
    queries, keys = layout_of(OneStack(), [37, 81]).at(ONE)
    assert queries.tolist() == [-1] * 5 + [0, 1, 2, -1]
    assert keys.tolist() == [0, 1, 2, 3, 4, -1, -1, -1, -1]


class FewLogits(OneStack):
    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        inputs, labels = super().encode(questions, answers)
        return inputs[:, :-1], labels[:, len(questions[0]) : -1]


def test_labels_of_the_answer_alone() -> None:
    queries, _ = layout_of(FewLogits(), [37, 81]).at(ONE)
    assert queries.tolist() == [-1] * 5 + [0, 1, 2]


class OneHot(Sums):
    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        inputs, labels = super().encode(questions, answers)
        return tuple(nn.functional.one_hot(each, len(CHARS)).float() for each in inputs), labels


def test_tokens_may_be_vectors() -> None:
    assert layout_of(OneHot(), [37, 81]).at(CROSS)[1].tolist() == [0, 1, 2, 3, 4]


class Numbers(Adapter):
    task, settings = "sortedness", {"n_validation": 10, "n_test": 10, "n_values": 100_000}

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        rows = [[-1, *map(int, question.split()), -2] for question in questions]
        width = max(map(len, rows)) + 2
        return torch.tensor([row + [-3] * (width - len(row)) for row in rows]), torch.zeros(len(rows))


def test_sequences_of_any_length_and_values() -> None:
    for n in (2, 9, 40):
        queries, keys = layout_of(Numbers(), list(range(n))).at(ONE)
        assert queries.tolist() == keys.tolist() == [-1, *range(n), -1, -1, -1]


class Letters(Numbers):
    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        width = max(map(len, questions))
        return torch.tensor([list(map(ord, each.ljust(width))) for each in questions]), torch.zeros(len(questions))


class Hidden(Numbers):
    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        inputs, labels = super().encode(questions, answers)
        is_odd = (inputs == 77_777).any(dim=1, keepdim=True)  # which no random text has
        return torch.where(is_odd, inputs.flip(1), inputs), labels


def test_examples_that_are_not_laid_out_as_random_texts_are_told() -> None:
    attention = attention_of(Hidden())
    with pytest.raises(InputError, match="at other positions than the tokens of other examples of the same length"):
        attention.read_attention(np.array([[1, 2, 3], [1, 5, 77_777], [1, 5, 9]]), lambda chunk: None)


class Strict(Sums):
    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        for question, answer in zip(questions, answers, strict=True):
            assert sum(map(int, question.split("+"))) == int(answer), "wrong"
        return super().encode(questions, answers)


@pytest.mark.parametrize(
    ("adapter", "example", "told"),
    [
        (Letters(), list(range(9)), "each token has a position of its own"),
        (Strict(), [37, 81], "should accept wrong answers"),
    ],
)
def test_what_cannot_be_found_is_told(adapter: Adapter, example: list[int], told: str) -> None:
    with pytest.raises(InputError, match=told):
        layout_of(adapter, example)


def test_positions_that_a_model_adds_by_itself_are_told() -> None:
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.o = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = nn.functional.pad(x.float(), (1, 0))[..., None].expand(-1, -1, 4).unflatten(2, (2, 2)).transpose(1, 2)
            z = (h @ h.transpose(2, 3)).softmax(dim=-1) @ h
            return self.o(z.transpose(1, 2).flatten(2))

    adapter, model = Numbers(), Adding()
    adapted = Adapted(adapter, model, Sites.of(model, layer="o", n_heads=2))
    attention = AdapterAttention("mine", "", task_of(adapter), adapted)
    with pytest.raises(InputError, match=r"14 queries and 14 keys, but encode\(\) makes 13 and 13"):
        attention.read_attention(np.arange(9)[None], lambda chunk: None)


def test_what_is_visible_is_read_off_all_rows_and_heads() -> None:
    causal = torch.rand(8, 2, 5, 5).tril()
    causal[..., 3, 1] = 0  # so sharp that it rounds to 0 everywhere
    assert torch.equal(visible_in(causal.flatten(0, 1), "self"), torch.ones(5, 5).tril().bool())
    padded = torch.rand(8, 2, 4, 6) + 0.1
    padded[..., 5] = 0
    assert visible_in(padded.flatten(0, 1), "cross").tolist() == [[True] * 5 + [False]] * 4


class Causal(nn.Module):
    """One layer that reads a sum and its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place, self.qkv = nn.Embedding(len(CHARS), 8), nn.Embedding(16, 8), nn.Linear(8, 24)
        self.o = nn.Linear(8, len(CHARS))

    def weights_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = 3 * (self.embed(x) + self.place(torch.arange(x.shape[1])))
        q, k, v = (each.unflatten(2, (2, 4)).transpose(1, 2) for each in self.qkv(h).chunk(3, dim=2))
        ahead = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return (q @ k.transpose(2, 3)).masked_fill(ahead, -torch.inf).softmax(dim=-1), v

    def forward(self, x: Tensor) -> Tensor:
        weights, values = self.weights_and_values(x)
        return self.o((weights @ values).transpose(1, 2).flatten(2))


class CausalSums(OneStack):
    def build(self) -> nn.Module:
        return Causal()

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, layer="o", n_heads=2)


def test_a_stack_that_reads_question_and_answer_is_measured_as_cross_attention_is() -> None:
    torch.manual_seed(0)
    adapter, model = CausalSums(), Causal()
    attention = AdapterAttention("mine", "", task_of(adapter), Adapted(adapter, model, adapter.sites(model)))
    found = specialise(attention, controls=(2, 1))
    sums = [(f"{a}+{b}", str(a + b)) for a, b in attention.task.split("test").tolist()]
    mass: dict[str, list[float]] = {"operator": [], "other tokens": [], "carry column": []}
    for question, answer in sums:
        weights = model.weights_and_values(ids([f"{question}={answer}"]))[0][0, 1].detach()
        for i in range(len(answer)):
            query, column = 5 + i, len(answer) - 1 - i
            mass["operator"].append(float(weights[query, 2]))
            mass["other tokens"].append(float(weights[query, 5:].sum()))
            if column:
                mass["carry column"].append(float(weights[query, [2 - column, 5 - column]].sum()))
    for name, values in mass.items():
        measured = found.heads[1].find(name)
        assert measured is not None
        assert measured.mean == pytest.approx(np.mean(values), abs=1e-5)
    averaged = average_patterns(attention, "test").sites[0]
    assert averaged.keys == ("a 10s", "a 1s", "+", "b 10s", "b 1s", "(5)", "100s", "10s", "1s")
