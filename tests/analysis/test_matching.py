"""Matching of heads: planted permutations are found, and unrelated heads are not matched."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from headcount.analysis.attention_measures import eval_inputs
from headcount.analysis.matching import Effort, Matching, match
from headcount.analysis.matching_pairs import cka, observe, relabelled
from headcount.analysis.matching_transplants import Stage
from headcount.analysis.matching_verdicts import ALONE
from headcount.errors import InputError
from headcount.hooks.gates import Capture
from headcount.hooks.sites import Sites
from headcount.models.attention import AttentionCache
from headcount.runs.config import RunConfig
from headcount.runs.run import build, load

pytestmark = pytest.mark.slow  # many comparisons with chance

NO_NULL = Effort(untrained=1, relabelled=1, transplants=0)
"""Effort for tests that do not look at p-values."""
QUICK = Effort(untrained=19, relabelled=199, transplants=0)
"""Smallest numbers of draws that can call ten heads alike at 5 %."""


@pytest.fixture(scope="module")
def run(tiny_run, untrained):
    return untrained(tiny_run, digits=2, n_heads=4, n_test=30)


@pytest.fixture(scope="module")
def stranger(tiny_run, untrained):
    """Return a run with another seed."""
    return untrained(tiny_run, digits=2, n_heads=4, n_test=30, seed=5)


@pytest.fixture(scope="module")
def beside_stranger(run, stranger):
    return match(run, stranger, effort=NO_NULL)


def fresh(run, seed, **settings):
    """Return a run with initial weights."""
    config = RunConfig.build(run.config.task_name, base=run.config, seed=seed, **settings)
    task, model = build(config)
    return replace(run, name=f"untrained {seed}", config=config, task=task, model=model.eval())


def permuted(run, order):
    """Return the run with the heads of every block permuted: head i becomes the former head order[i]."""
    model = deepcopy(run.model)
    n_heads = run.config.model.n_heads
    with torch.no_grad():
        for block in (module for module in model.modules() if hasattr(module, "attention")):
            for name in ("query", "key", "value"):
                for tensor in getattr(block.attention, name).parameters():
                    tensor.copy_(tensor.unflatten(0, (n_heads, -1))[order].flatten(0, 1))
            weight = block.attention.output.weight
            weight.copy_(weight.unflatten(1, (n_heads, -1))[:, order].flatten(1, 2))
    return replace(run, model=model, name="permuted")


def weights_of(run):
    kept = AttentionCache()
    with torch.no_grad():
        logits = run.model(*map(torch.from_numpy, run.inputs(eval_inputs(run).examples)), weights=kept)
    return kept, logits


def test_a_planted_permutation_is_found(run):
    order = [2, 0, 3, 1]
    other = permuted(run, order)
    (ours, logits), (theirs, same_logits) = weights_of(run), weights_of(other)
    torch.testing.assert_close(logits, same_logits, atol=1e-4, rtol=1e-4)
    assert all((ours[site] - theirs[site]).abs().max() > 0.1 for site in ours), "the permutation acted"
    matching = match(run, other, effort=NO_NULL)
    assert [(kind.stack, kind.kind) for kind in matching.kinds] == [
        ("encoder", "self"),
        ("decoder", "self"),
        ("decoder", "cross"),
    ]
    for pair in (pair for kind in matching.kinds for pair in kind.pairs):
        site, _, index = pair.head.rpartition(".")
        assert pair.partner == f"{site}.{order.index(int(index))}"
        assert pair.attention.value == pytest.approx(1, abs=1e-4)
        assert pair.attention.se == pytest.approx(0, abs=1e-4)
        assert pair.outputs.value == pytest.approx(1, abs=1e-4)
        assert pair.same_index < 0.9


def test_a_copy_with_permuted_heads_attends_alike_beyond_chance(tiny_run, untrained):
    run = untrained(tiny_run, digits=2, n_test=30)
    matching = match(run, permuted(run, [1, 0]), effort=QUICK)
    assert all(pair.is_alike for kind in matching.kinds for pair in kind.pairs)
    assert matching.overall.alike == matching.overall.of == 10
    assert matching.overall.p == 1 / 20


def test_untrained_models_do_not_attend_alike(tiny_run):
    one, other = (fresh(tiny_run, seed, digits=2, n_test=30) for seed in (7, 8))
    matching = match(one, other, effort=QUICK)
    assert matching.overall.alike == 0
    assert matching.overall.matched > 0.5, "though the best pairing shares a lot"
    assert matching.overall.untrained[0] < matching.overall.matched < matching.overall.untrained[1]
    assert "0 of 10 heads attend alike (family-wise error 5 %" in matching.words


@pytest.mark.slow
def test_the_error_rate_is_that_which_is_stated(good_run):
    """Compare untrained runs with untrained and with trained ones: of 12 comparisons, 0.6 may err on average.

    More than 2 errors have a probability of 1 in 50. Only the untrained null models are used, as their p-values are
    exact; relabelling can only make fewer heads alike.
    """
    least = []
    for i in range(12):
        one = good_run if i % 2 else fresh(good_run, 100 + i)
        pair = (one, fresh(good_run, 200 + i))[:: (1, -1)[i // 2 % 2]]
        matching = match(pair[0], pair[1], effort=replace(NO_NULL, untrained=19, seed=i))
        pairs = [each for kind in matching.kinds for each in kind.pairs]
        least.append([min(getattr(each, name).p_untrained for each in pairs) for name in ("attention", "outputs")])
    assert (np.count_nonzero(np.array(least) <= 0.05, axis=0) <= 2).all()


@pytest.mark.slow
def test_a_twin_restores_what_a_head_does_and_an_untrained_model_does_not(monkeypatch):
    for name, n in {"N_FIT": 200, "N_TEST": 200, "N_MEAN": 1024}.items():
        monkeypatch.setattr(f"headcount.analysis.matching_transplants.{name}", n)
    run, effort = load("sample:addition"), Effort(untrained=1, relabelled=1, transplants=1)
    for other, is_twin in ((permuted(run, [1, 0, 3, 2]), True), (fresh(run, 3), False)):
        matching = match(run, other, effort=effort)
        moved = {pair.head: pair.transplant for kind in matching.kinds for pair in kind.pairs}
        for head in ("encoder.0.self.2", "encoder.1.self.3"):
            restored = moved[head].restored
            assert restored.low <= restored.share <= restored.high
            assert restored.share > 0.99 if is_twin else restored.high < 0.9
            assert restored.untrained < 0.8
        assert moved["encoder.0.self.0"].restored is None, "it costs nothing"


@pytest.mark.slow
def test_a_transplant_is_what_plain_hooks_make_of_it(good_run):
    stage, sites = Stage(good_run, None), Sites.of(good_run.model)
    means = stage.means(good_run.model.heads)
    by_head = stage.hits(means)
    assert any((hits != stage.clean).any() for hits in by_head.values()), "it acted"
    for head, hits in by_head.items():
        place = sites[head.site].heads.index(head)

        def put(module, args, mean=means[head], place=place):
            z = args[0].unflatten(-1, (good_run.config.model.n_heads, -1)).clone()
            z[:, :, place] = mean
            return (z.flatten(2),)

        with torch.no_grad():
            hook = sites[head.site].projection.register_forward_pre_hook(put)
            plain = [stage.test.score(batch, good_run.model(*batch.inputs)).numpy() for batch in stage.test.batches]
            hook.remove()
        np.testing.assert_array_equal(hits, np.concatenate(plain) > 0.5)


def test_outputs_are_those_that_hooks_capture(run):
    """The CKA of outputs from weights and values equals that from the captured inputs of the projections."""
    examples = eval_inputs(run).examples
    activity, sites = observe(run, examples), Sites.of(run.model)
    with torch.no_grad(), Capture(sites) as capture:
        run.model(*map(torch.from_numpy, run.inputs(examples)))
    assert set(activity) == {(site.stack, site.kind) for site in sites}
    for kind, kind_activity in activity.items():
        queries = slice(1, None) if kind == ("decoder", "self") else slice(None)
        written = [capture.contributions(site) for site in sites if (site.stack, site.kind) == kind]
        outputs = torch.cat(written, dim=2)[:, queries].double()
        whole = (outputs - outputs.mean(dim=0)).flatten(0, 1).detach().numpy()
        for i in (0, 3):
            expected = cka(whole[:, i], whole[:, 1])
            assert cka(kind_activity.outputs[i], kind_activity.outputs[1]) == pytest.approx(expected, abs=1e-4)


def test_relabelling_moves_visible_keys_alone(run):
    activity = observe(run, eval_inputs(run).examples)["decoder", "self"]
    examples = np.random.default_rng(0).permutation(len(activity.weights))
    moved = relabelled(activity, examples, np.random.default_rng(3))
    assert (moved[..., ~activity.visible] == 0).all()
    torch.testing.assert_close(moved.sort(dim=-1).values, activity.weights[examples].sort(dim=-1).values)
    assert (moved - activity.weights[examples]).abs().max() > 0.1


def test_a_run_matched_with_itself_is_the_identity(run, tiny_sorter):
    for each in (run, tiny_sorter):
        kinds = match(each, each, effort=NO_NULL).kinds
        assert [pair.head for kind in kinds for pair in kind.pairs] == [str(head) for head in each.model.heads]
        for kind in kinds:
            assert [pair.partner for pair in kind.pairs] == [pair.head for pair in kind.pairs]
            for pair in kind.pairs:
                assert pair.attention.value == pair.same_index == pytest.approx(1, abs=1e-5)


def test_overlaps_are_those_of_plain_loops(run, stranger, beside_stranger):
    (ours, _), (theirs, _) = weights_of(run), weights_of(stranger)
    for kind in beside_stranger.kinds:
        for head, means, errors in zip(kind.heads, kind.overlaps, kind.errors, strict=True):
            for other, mean, error in zip(kind.others, means, errors, strict=True):
                mine, its = run.find_head(head), run.find_head(other)
                a, b = ours[mine.site][:, mine.index].double(), theirs[its.site][:, its.index].double()
                apart = (a - b).abs().sum(dim=-1) / 2  # total variation
                queries = slice(1, None) if (kind.stack, kind.kind) == ("decoder", "self") else slice(None)
                each = (1 - apart[:, queries]).mean(dim=1).numpy()
                assert mean == pytest.approx(each.mean(), abs=1e-5)
                assert error == pytest.approx(each.std(ddof=1) / np.sqrt(len(each)), abs=1e-5)
    pairs = [pair.attention for kind in beside_stranger.kinds for pair in kind.pairs]
    assert beside_stranger.overall.matched == pytest.approx(np.mean([pair.value for pair in pairs]), abs=1e-5)
    everyone = np.concatenate([np.ravel(kind.overlaps) for kind in beside_stranger.kinds])
    assert np.mean([pair.any for pair in pairs]) < np.mean([pair.value for pair in pairs])
    assert everyone.min() < min(pair.any for pair in pairs)


def test_the_pairing_is_one_to_one_and_the_best(beside_stranger):
    rng = np.random.default_rng(0)
    for kind in beside_stranger.kinds:
        overlaps = np.array(kind.overlaps)
        partners = [kind.others.index(pair.partner) for pair in kind.pairs]
        assert sorted(partners) == list(range(len(kind.heads)))
        best = overlaps[range(len(partners)), partners].sum()
        assert all(overlaps[range(len(partners)), rng.permutation(len(partners))].sum() <= best for _ in range(200))


def test_unequal_numbers_of_heads(run, tiny_run, untrained):
    cut = untrained(tiny_run, digits=2, n_heads=4, n_test=30, pruned="X0H0,X1H3,E0H0,E0H1,E0H2,E0H3")
    (own, cross) = match(run, cut, effort=NO_NULL).kinds
    assert (own.kind, cross.kind) == ("self", "cross")
    assert (len(own.pairs), len(own.others), len(cross.pairs), len(cross.others)) == (8, 8, 8, 6)
    alone = [pair for pair in cross.pairs if pair.partner is None]
    assert [(pair.attention, pair.outputs, pair.verdict) for pair in alone] == [(None, None, ALONE)] * 2
    by_name = {pair.head: pair for pair in cross.pairs}
    assert by_name["decoder.0.cross.0"].same_index is None
    assert by_name["decoder.0.cross.1"].same_index is not None
    assert {pair.head for pair in match(cut, run, effort=NO_NULL).kinds[1].pairs} == set(cross.others)


def test_a_match_survives_json(beside_stranger, stranger):
    assert Matching.from_json(beside_stranger.to_json()) == beside_stranger
    assert (beside_stranger.n, beside_stranger.data, beside_stranger.other) == (30, "the test set", stranger.name)


def test_runs_that_cannot_be_compared_are_refused(run, tiny_run, tiny_sorter, untrained):
    with pytest.raises(InputError, match=r"has the task addition and (.|\n)*has the task sortedness"):
        match(run, tiny_sorter)
    with pytest.raises(InputError, match=r"digits: 2 in (.|\n)*, 1 in (.|\n)*n_heads: 4 in (.|\n)*seed or training"):
        match(run, tiny_run)
    with pytest.raises(InputError, match="n_layers: 1"):
        match(tiny_sorter, untrained(tiny_sorter, n_layers=2))
    with pytest.raises(InputError, match="at most 1,024"):
        match(tiny_sorter, tiny_sorter, 4096)
    matching = match(tiny_sorter, untrained(tiny_sorter, pooling="mean"), 9, effort=NO_NULL)
    assert (matching.n, matching.data) == (128, "128 of new sequences of 9 tokens, half of them sorted")
