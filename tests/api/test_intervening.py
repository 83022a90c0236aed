"""Heads ablated, patched and read around code of one's own: by hand it comes to the same, and every hook acts."""

from __future__ import annotations

from typing import Any, cast

import hub_models as hub
import pytest
import torch
from torch import Tensor, nn

import headcount
from headcount.data.from_task import of_length
from headcount.errors import InputError, InstrumentError
from headcount.experiments.experiment import task_experiment
from headcount.experiments.interventions import run_interventions
from headcount.heads import HeadId
from headcount.hooks.gates import Capture
from headcount.hooks.replay import Intervention
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import wrap
from headcount.models.transformer import EncoderDecoder
from headcount.runs.run import Run
from headcount.tasks.base import SequenceTask

GONE = ("L0H1", "L1H2")
PROMPT = torch.tensor([[5, 9, 3], [7, 2, 11]])
STEPS = 6


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return hub.build("gpt2")


@pytest.fixture(scope="module")
def t5() -> Any:
    return hub.build("t5")


def without(name: str, *heads: str) -> Any:
    """The same model with zeros in the columns (GPT-2: rows) of these heads' output projections."""
    model, width = hub.build(name), 8
    sites = wrap(model).head_sites
    with torch.no_grad():
        for head in map(HeadId.parse, heads):
            weight, own = sites[head.site].projection.weight, slice(width * head.index, width * (head.index + 1))
            (weight if name == "gpt2" else weight.T)[own] = 0.0
    return model


def generate(model: Any, prompt: Tensor = PROMPT, **more: Any) -> Tensor:
    """Greedily, as many tokens as were asked for."""
    made: Tensor = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=STEPS, do_sample=False, **more
    )
    return made


# --- zero -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_cache", [True, False])
def test_generate_of_a_decoder_without_heads(gpt2: Any, use_cache: bool) -> None:
    with headcount.ablated(gpt2, GONE) as acting:
        found = generate(gpt2, use_cache=use_cache)
    assert torch.equal(found, generate(without("gpt2", *GONE)))
    assert not torch.equal(found, generate(gpt2)), "heads that change nothing are no test"
    assert list(acting.calls.values()) == [STEPS, STEPS]
    assert acting.n_proven == 0
    assert repr(acting) == "L0H1, L1H2 of GPT2LMHeadModel ablated by zero: 12 calls so far, not verified"


def test_generate_of_an_encoder_decoder_without_heads(t5: Any) -> None:
    gone = ("E0H1", "D1H2", "X0H3")
    with headcount.ablated(t5, gone, inputs=hub.inputs_of("t5")[:2]) as acting:
        found = generate(t5, use_cache=True)
    assert acting.n_proven == 3
    assert torch.equal(found, generate(without("t5", *gone)))
    assert not torch.equal(found, generate(t5))
    assert sorted(acting.calls.values()) == [1, STEPS, STEPS]


@pytest.mark.parametrize("as_what", [wrap, headcount.ExternalModel.of], ids=["wrapped", "external"])
def test_the_model_itself_is_acted_on_however_it_is_given(gpt2: Any, as_what: Any) -> None:
    with headcount.ablated(as_what(gpt2), "L0H1"):
        found = gpt2(PROMPT).logits
    torch.testing.assert_close(found, without("gpt2", "L0H1")(PROMPT).logits)


def test_a_module_with_its_sites() -> None:
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    sites = Sites.of(model, layer="1", n_heads=3)
    with headcount.ablated(model, "L0H1", sites=sites, inputs=PROMPT % 7) as acting:
        found = model(PROMPT % 7)
    z = model[0](PROMPT % 7)
    z[..., 2:4] = 0.0
    torch.testing.assert_close(found, model[2](model[1](z)))
    assert acting.n_proven == 1


def test_a_run_by_its_name_and_as_it_is(tiny_run: Run) -> None:
    with headcount.ablated(str(tiny_run.folder.path), ["E0H0", "X1H1"]) as acting:
        by_name = acting.model.predict("3+4")
    assert by_name == headcount.predict(tiny_run, "3+4", ["E0H0", "X1H1"]).without
    assert acting.n_proven == 2
    batch = tiny_run.task.encode(tiny_run.task.parse("3+4"))  # type: ignore[attr-defined]
    given = torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input)
    clean = tiny_run.model(*given)
    with headcount.ablated(tiny_run, "E0H0"):
        assert not torch.equal(tiny_run.model(*given), clean)
    assert torch.equal(tiny_run.model(*given), clean), "nothing is left of it"


def test_a_context_without_a_pass_is_an_error(gpt2: Any) -> None:
    with (
        pytest.raises(InstrumentError, match="no head was ablated at"),
        headcount.ablated(gpt2, GONE),
    ):
        pass
    with pytest.raises(ZeroDivisionError), headcount.ablated(gpt2, GONE):
        raise ZeroDivisionError
    assert not any(module._forward_pre_hooks for module in gpt2.modules())


# --- mean and resample ------------------------------------------------------------------------------------------------


def test_means_are_those_of_an_experiment(tiny_sorter: Run) -> None:
    """Two routes: the context around the model, and interventions replayed from a cached pass."""
    examples, _ = of_length(tiny_sorter.task, 5, 8, "test")
    experiment = task_experiment(tiny_sorter, examples, "some", "loss", reference=examples)
    (batch,) = experiment.batches
    theirs = run_interventions(experiment, [Intervention((HeadId.parse("L0H1"),), "mean")])
    with headcount.ablated(tiny_sorter, "L0H1", by="mean", inputs=batch.inputs) as acting:
        ours = experiment.score(batch, tiny_sorter.model(*batch.inputs))
    assert ours.tolist() == pytest.approx(theirs.scores[0][batch.rows].tolist(), abs=1e-5)
    assert abs(theirs.scores[0] - theirs.clean).max() > 1e-4
    assert acting.n_proven == 1


def by_hand(model: Any, heads: tuple[str, ...], mean: Any, tokens: Tensor) -> Tensor:
    """A pass of GPT-2 without a cache, the means of its heads put in by a hook of the test's own."""
    hooks, sites = [], wrap(model).head_sites
    for head in map(HeadId.parse, heads):
        own = slice(8 * head.index, 8 * (head.index + 1))

        def put(_: Any, args: Any, head: HeadId = head, own: slice = own) -> Any:
            z, known = args[0].clone(), mean[head]
            n = min(z.shape[1], len(known))
            z[:, :n, own], z[:, n:, own] = known[:n], known.mean(dim=0)
            return (z,)

        hooks.append(sites[head.site].projection.register_forward_pre_hook(put))
    logits: Tensor = model(tokens, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return logits


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("n_known", [5, 12], ids=["beyond the examples", "within them"])
def test_means_in_generate_by_position(gpt2: Any, use_cache: bool, n_known: int) -> None:
    """Positions 0 to 8 are decoded: each gets its own mean and, beyond the examples, the mean of all positions."""
    examples = torch.randint(2, hub.WORDS, (6, n_known), generator=torch.Generator().manual_seed(1))
    z = headcount.head_outputs(gpt2, examples)
    mean = {head: z[head].mean(dim=0) for head in map(HeadId.parse, GONE)}
    with torch.no_grad(), headcount.ablated(gpt2, GONE, by="mean", inputs=examples) as acting:
        for prompt in (PROMPT, PROMPT[:, :1], PROMPT):  # another sequence begins at 0 again, if of one token only
            found = generate(gpt2, prompt, use_cache=use_cache)
            n = prompt.shape[1]
            expected = prompt
            for _ in range(STEPS):
                expected = torch.cat([expected, by_hand_outside(gpt2, mean, expected)], dim=1)
            assert torch.equal(found, expected[:, : n + STEPS])
    assert acting.n_proven == 2


def by_hand_outside(model: Any, mean: Any, tokens: Tensor) -> Tensor:
    """The next tokens of a copy, so that no other hook acts."""
    copy = hub.build("gpt2")
    return by_hand(copy, GONE, mean, tokens)[:, -1:].argmax(dim=-1)


def test_padding_is_no_part_of_a_mean(gpt2: Any) -> None:
    tokens, mask = hub.inputs_of("gpt2")
    alone = [
        headcount.head_outputs(gpt2, row[kept.bool()][None])["L0H1"][0] for row, kept in zip(tokens, mask, strict=True)
    ]
    last = torch.stack([z[6] for z in alone if len(z) == 7]).mean(dim=0)
    with headcount.ablated(gpt2, "L0H1", by="mean", inputs={"input_ids": tokens, "attention_mask": mask}):
        found = headcount.head_outputs(gpt2, tokens[:1])["L0H1"]
    torch.testing.assert_close(found[0, 6], last)


def test_resample_takes_the_row_before(gpt2: Any) -> None:
    clean = headcount.head_outputs(gpt2, PROMPT)
    with headcount.ablated(gpt2, "L0H1", by="resample", inputs=PROMPT):
        found = headcount.head_outputs(gpt2, PROMPT)
    assert torch.equal(found["L0H1"], clean["L0H1"].roll(1, dims=0))
    assert torch.equal(found["L0H0"], clean["L0H0"])
    assert not torch.equal(found["L1H0"], clean["L1H0"]), "later layers are given something else"
    with pytest.raises(InputError, match="the batch has only one row"), headcount.ablated(gpt2, "L0H1", by="resample"):
        gpt2(PROMPT[:1])


def test_means_while_a_run_decodes_with_its_own_cache(tiny_run: Run) -> None:
    """Step by step with a cache, or all at once: the same logits, so positions are counted right, twice over."""
    model, batch = (
        cast(EncoderDecoder, tiny_run.model),
        cast(SequenceTask, tiny_run.task).encode(tiny_run.task.split("test")),
    )
    source, fed = torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input)
    clean = model(source, fed)
    with torch.no_grad(), headcount.ablated(tiny_run, ["D0H0", "X1H1"], by="mean", inputs=(source, fed)) as acting:
        whole = model(source, fed)
        for _ in range(2):
            memory, caches = model.encode(source), dict[Any, Any]()
            steps = [model.decode(fed[:, i : i + 1], memory, n_past=i, caches=caches) for i in range(fed.shape[1])]
            torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert not torch.allclose(whole, clean)
    assert set(acting.calls.values()) == {1 + 2 * fed.shape[1]}


def test_means_of_a_task_need_no_inputs(tiny_run: Run) -> None:
    with headcount.ablated(tiny_run, "X1H1", by="mean") as acting:
        headcount.head_outputs(tiny_run, "3+4")
    assert acting.n_proven == 1


@pytest.mark.parametrize(
    ("asked", "explanation"),
    [
        ({"heads": "L9H9"}, "no head 'layer.9.self.9'"),
        ({"heads": []}, "no heads were given"),
        ({"heads": "L0H0", "by": "median"}, "median"),
        ({"heads": "L0H0", "by": "mean"}, "by='mean' needs examples to average over"),
        ({"heads": "L0H0", "inputs": [[1, 2]]}, "inputs must be tensors, got list"),
        ({"heads": "L0H0", "inputs": {"input_ids": [[1, 2]]}}, 'return_tensors="pt"'),
    ],
)
def test_what_cannot_be_is_told(gpt2: Any, asked: dict[str, Any], explanation: str) -> None:
    with pytest.raises(InputError, match=explanation), headcount.ablated(gpt2, **asked):
        pytest.fail("told too late")


# --- patches ----------------------------------------------------------------------------------------------------------


def test_a_patch_from_another_run(gpt2: Any) -> None:
    one, other = PROMPT[:1], PROMPT[1:]
    z = headcount.head_outputs(gpt2, other)
    with headcount.patched(gpt2, {"L2H0": z["L2H0"]}, inputs=one) as acting:
        found = headcount.head_outputs(gpt2, one)
    clean = headcount.head_outputs(gpt2, one)
    assert torch.equal(found["L2H0"], z["L2H0"])
    assert not torch.equal(clean["L2H0"], z["L2H0"])
    assert torch.equal(found["L2H1"], clean["L2H1"])
    assert (acting.n_proven, "patched: 1 calls so far" in repr(acting)) == (1, True)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_all_heads_of_another_run_give_its_output(name: str, request: pytest.FixtureRequest) -> None:
    """Whatever was read, what all heads add to the last position is that of the other run."""
    model = request.getfixturevalue(name)
    given = hub.inputs_of(name)
    names = ("input_ids", "attention_mask") if name == "gpt2" else ("input_ids", "decoder_input_ids", "attention_mask")
    z = headcount.head_outputs(model, dict(zip(names, given, strict=True)))
    with headcount.patched(model, z):
        found = headcount.head_outputs(model, dict(zip(names, given, strict=True)))
    assert all(torch.equal(found[head], z[head]) for head in z)


def test_a_patch_while_decoding_with_a_cache(gpt2: Any) -> None:
    """The prompt is patched; what comes after it is the model's own."""
    z = {"L1H2": torch.zeros(1, 3, 8, dtype=torch.float64)}

    def put(_: Any, args: Any) -> Any:
        made = args[0].clone()
        if made.shape[1] == 3:
            made[..., 16:24] = 0.0
        return (made,)

    with headcount.patched(gpt2, z):
        found = generate(gpt2, use_cache=True)
    hook = wrap(gpt2).head_sites[HeadId.parse("L1H2").site].projection.register_forward_pre_hook(put)
    expected = generate(gpt2, use_cache=True)
    hook.remove()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(3, 3, 8), (2, 4, 8), (2, 3, 1), (2, 3, 7), (1, 2, 3, 8)], ids=str)
def test_a_patch_of_another_shape_is_told_with_both(gpt2: Any, shape: tuple[int, ...]) -> None:
    patches = {"L0H0": torch.zeros(shape)}
    both = (
        rf"L0H0 has the shape \({', '.join(map(str, shape))}\), but the output of this head has the shape \(2, 3, 8\)"
    )
    with pytest.raises(InputError, match=both), headcount.patched(gpt2, patches):
        gpt2(PROMPT)


# --- attention --------------------------------------------------------------------------------------------------------


def test_attention_is_what_the_models_own_library_says() -> None:
    for name in ("gpt2", "t5"):
        model, given = hub.build(name, attn_implementation="eager"), hub.inputs_of(name)
        theirs = hub.called(name, model, given, output_attentions=True)
        names = (
            ("input_ids", "attention_mask") if name == "gpt2" else ("input_ids", "decoder_input_ids", "attention_mask")
        )
        ours = headcount.attention(model, dict(zip(names, given, strict=True)))
        one = {"gpt2": ("L1H2", "attentions"), "t5": ("X1H2", "cross_attentions")}[name]
        torch.testing.assert_close(ours[one[0]], theirs[one[1]][1][:, 2])
        assert HeadId.parse(one[0]) in ours


def test_an_encoder_decoder_reads_its_own_answer(t5: Any) -> None:
    found = headcount.attention(t5, {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)})
    made = t5.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=24, do_sample=False)
    assert found["X0H0"].shape == (2, made.shape[1] - 1, 3)


def test_attention_of_a_run_is_that_while_it_decodes(tiny_run: Run, tiny_sorter: Run) -> None:
    found = headcount.attention(tiny_run, "3+4")
    for head in tiny_run.model.heads:
        torch.testing.assert_close(found[head][0], tiny_run.attention("3+4", head))
    sorted_ = headcount.attention(tiny_sorter, "3 5 9")
    torch.testing.assert_close(sorted_["L0H1"][0], tiny_sorter.attention("3 5 9", "L0H1"))
    assert repr(sorted_) == "2 heads, L0H0 to L0H1: [batch, query, key] of [1, 3, 3]"
    with pytest.raises(InputError, match=r"no head 'layer\.7\.self\.0'"):
        sorted_["L7H0"]


def test_outputs_are_what_is_captured(gpt2: Any) -> None:
    found, sites = headcount.head_outputs(gpt2, PROMPT), wrap(gpt2).head_sites
    with Capture(sites) as seen, torch.no_grad():
        gpt2(PROMPT)
    for head in sites.heads:
        assert torch.equal(found[head], seen.z(head.site)[..., head.index, :])
    assert len(found) == 12
