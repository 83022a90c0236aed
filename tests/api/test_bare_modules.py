"""What works on a PyTorch module with its tensors, without a task, a folder or a tokenizer."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from own_models import classifier
from torch import Tensor, nn
from torch.nn import functional as F

import headcount
from headcount import api
from headcount.analysis.matching import Effort
from headcount.api.reporting import gather
from headcount.errors import InputError

N_WORDS, D, HEADS, LENGTH = 11, 16, 4, 8


class Tagger(nn.Module):
    """Somebody's module: attention as its author wrote it, in a module of no known family."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.qkv, self.out = nn.Embedding(N_WORDS, D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.read = nn.Linear(D, N_WORDS)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(ids)
        q, k, v = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=2))
        visible = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self.read(x + self.out(z.transpose(1, 2).flatten(2)))


@pytest.fixture
def tagger() -> Tagger:
    return Tagger().eval()


def sites(model: nn.Module) -> headcount.Sites:
    return headcount.Sites.of(model, layer=["out"], n_heads=HEADS)


def ids(n: int = 6) -> Tensor:
    return torch.randint(2, N_WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(1))


def test_attention_of_every_row_is_summarised(tagger: Tagger) -> None:
    found = headcount.summarise_attention(tagger, inputs=ids(3), sites=sites(tagger)).result
    assert len(found) == 3
    weights = headcount.attention(tagger, ids(3), sites=sites(tagger))
    for row, summary in enumerate(found):
        _, head = summary.find("L0H2")
        np.testing.assert_allclose(head.array, weights["L0H2"][row].detach().numpy(), atol=1e-4)
        assert list(summary.axes[0].tokens) == [str(int(each)) for each in ids(3)[row]], "whole numbers are its tokens"
    again = headcount.summarise_attention(tagger, ids(3), sites=sites(tagger)).result
    assert again == found, "tensors may stand where texts do"


def test_heads_are_drawn_on_a_row_and_on_average(tagger: Tagger, tmp_path: Path) -> None:
    weights = headcount.attention(tagger, ids(), sites=sites(tagger))
    saved = headcount.show_heads(tagger, inputs=[ids()], sites=sites(tagger), save=tmp_path)
    assert saved.result.title == "average over 6 inputs"
    mean = weights["L0H1"].mean(dim=0).detach().numpy()
    np.testing.assert_allclose(saved.result.find("L0H1")[1].array, mean, atol=1e-4)
    assert all(path.is_file() for path in (*saved.data, *saved.figures, *saved.others))
    one = headcount.show_heads(tagger, inputs={"ids": ids(1)}, sites=sites(tagger)).result
    assert one.sites[0].keys == tuple(str(int(each)) for each in ids(1)[0])


def test_roles_of_heads_are_measured_on_tensors(tagger: Tagger) -> None:
    """A head that looks at what stands right before it is found, whoever wrote the module."""
    found = headcount.head_roles(tagger, inputs=ids(), sites=sites(tagger), n_controls=2, quiet=True).result
    assert found.controls == ("shuffled",)
    (read,) = found.inputs
    assert (read.n_texts, read.n_tokens) == (6, 6 * LENGTH)
    previous = headcount.attention(tagger, ids(), sites=sites(tagger))["L0H3"].diagonal(offset=-1, dim1=1, dim2=2)
    standing = next(each for each in found.heads if each.short == "L0H3").find("previous", "texts")
    assert standing is not None
    assert standing.mean == pytest.approx(float(previous.mean()), abs=1e-3)


def test_padding_at_the_end_is_left_out_where_a_mask_is_named(tagger: Tagger) -> None:
    mask = torch.ones_like(ids(2))
    mask[1, 5:] = 0
    found = headcount.summarise_attention(
        tagger, inputs={"ids": ids(2), "attention_mask": mask}, sites=sites(tagger)
    ).result
    assert [len(each.axes[0].tokens) for each in found] == [LENGTH, 5]


def test_positions_are_counted_where_there_are_no_tokens() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, HEADS, 8, batch_first=True)
    (found,) = headcount.summarise_attention(layer, inputs=torch.randn(1, 5, D)).result
    assert found.axes[0].tokens == ("0", "1", "2", "3", "4")


def permuted(tagger: Tagger, order: list[int]) -> Tagger:
    """A copy that computes the same, its heads in another order."""
    copy, d_head = deepcopy(tagger), D // HEADS
    rows = torch.tensor([head * d_head + i for head in order for i in range(d_head)])
    with torch.no_grad():
        for part in range(3):
            for tensor, own in ((copy.qkv.weight, tagger.qkv.weight), (copy.qkv.bias, tagger.qkv.bias)):
                tensor[part * D : (part + 1) * D] = own[part * D + rows]
        copy.out.weight.copy_(tagger.out.weight[:, rows])
    return copy


@pytest.mark.slow
def test_heads_of_two_modules_are_matched_on_tensors(tagger: Tagger, tmp_path: Path) -> None:
    """A planted order is found; a module of other weights has no partners beyond chance."""
    with torch.no_grad():
        tagger.qkv.weight *= 4  # heads that look at something
    order = [2, 0, 3, 1]
    twin, stranger = permuted(tagger, order), Tagger(seed=5).eval()
    torch.testing.assert_close(twin(ids()), tagger(ids()))
    opened, *others = (api.open_model(each, sites=sites(each)) for each in (tagger, twin, stranger))
    effort = Effort(untrained=19, relabelled=199)
    saved = headcount.match_heads(opened, *others, inputs=ids(8), effort=effort, save=tmp_path, quiet=True)
    same, other = saved.result
    (kind,) = same.kinds
    assert [pair.partner for pair in kind.pairs] == [f"layer.0.self.{order.index(i)}" for i in range(HEADS)]
    assert all(pair.attention is not None and pair.attention.value > 0.999 for pair in kind.pairs)
    assert same.overall.alike == HEADS
    assert other.overall.alike == 0
    assert same.stand_ins == "shuffled"
    assert "19 shuffled models" in same.words
    with pytest.raises(InputError, match="3 inputs are too few to match heads"):
        headcount.match_heads(opened, others[0], inputs=ids(3), quiet=True)
    with pytest.raises(InputError, match=r"Tagger has no task.*\s+give tensors: inputs="):
        headcount.match_heads(opened, others[0], quiet=True)


def right_word(output: Tensor, rows: np.ndarray) -> Tensor:
    logits = output.log_softmax(dim=-1)
    return logits.gather(2, ids(40)[torch.from_numpy(rows)][..., None]).mean(dim=(1, 2))


def test_heads_that_can_go_together_are_found_on_tensors(tagger: Tagger, tmp_path: Path) -> None:
    asked = {"data": ids(40), "metric": right_word, "sites": sites(tagger), "loss": 0.05, "n_orders": 2, "quiet": True}
    saved = headcount.prune_heads(tagger, save=tmp_path, **asked)
    result = saved.result
    assert result is not None
    assert (result.n_heads, result.n) == (HEADS, 20)
    assert saved.data[0].is_file()
    with headcount.ablated(tagger, list(result.chosen), sites=sites(tagger)) if result.chosen else torch.no_grad():
        scores = right_word(tagger(ids(40)), np.arange(40))
    assert torch.isfinite(scores).all()
    assert result.kept.n_removed == len(result.chosen)
    with pytest.raises(InputError, match=r"cannot be saved in a folder.*\s+cut the heads out of a copy"):
        headcount.prune_heads(tagger, tmp_path / "cut", **asked)


def test_examples_that_do_not_follow_each_other_are_scored_by_their_own_numbers(tagger: Tagger) -> None:
    """Halves of the examples are drawn at random."""
    opened = api.open_model(tagger, sites=sites(tagger))
    chosen, measured, _ = opened.selection(ids(40), right_word, None, length=None, at_once=7)
    both = [row.tolist() for each in (chosen, measured) for batch in each.batches for row in batch.inputs[0]]
    assert sorted(both) == sorted(ids(40).tolist())
    for experiment in (chosen, measured):
        for batch in experiment.batches:
            own = next(iter(batch.scores.values()))(tagger(batch.inputs[0]))
            alone = tagger(batch.inputs[0]).log_softmax(dim=-1).gather(2, batch.inputs[0][..., None]).mean(dim=(1, 2))
            torch.testing.assert_close(own, alone)


@pytest.mark.parametrize("verb", [headcount.summarise_attention, headcount.head_roles, headcount.show_heads])
def test_what_is_missing_is_told_for_the_call_that_was_made(verb: object) -> None:
    with pytest.raises(InputError, match="inputs=") as told:
        verb(classifier())
    assert "--on" not in str(told.value)
    with pytest.raises(InputError, match=r"without a tokenizer, so it takes no texts\s+give its tensors: inputs="):
        verb(classifier(), "a text")


@pytest.mark.slow
@pytest.mark.usefixtures("little_work")
def test_a_report_of_a_module_is_written_from_its_tensors(tagger: Tagger, in_tmp: Path) -> None:
    asked = {"sites": sites(tagger), "n_examples": 3, "thorough": True, "quiet": True}
    report_results = gather(tagger, data=ids(40), metric=right_word, **asked)
    (model_results,) = report_results.models
    assert model_results.title == "Tagger"
    assert model_results.ablation is not None
    assert model_results.pruning is not None
    assert model_results.roles is not None
    assert [each.title for each in model_results.patterns] == ["average over 3 inputs", "input 0", "input 1", "input 2"]
    whole = headcount.ablate_heads(tagger, ids(40), right_word, sites=sites(tagger), quiet=True).result
    assert [each.drop for each in model_results.ablation.heads] == [each.drop for each in whole.heads]
    page = headcount.report(tagger, data=ids(40), metric=right_word, out="tagger.html", **asked)[0]
    assert "in memory&gt;" not in page.read_text(), "no command can be given this model"
    assert "headcount ablate" not in page.read_text()
    (seen,) = gather(tagger, data=[ids(40)], **asked).models
    assert seen.ablation is None
    assert seen.roles == model_results.roles, "what needs no score"
    with pytest.raises(InputError, match=r"Tagger is a PyTorch module.*\s+give them: data=tensors"):
        gather(tagger, sites=sites(tagger))
