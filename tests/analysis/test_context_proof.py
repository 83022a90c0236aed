"""A certificate for every length: true for a model that is right, and refuted by an example for one that is not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from edited_sorters import FAULTS, N, add_noise, context_shape_or_none, edited, shift, with_a_wrong_context
from numpy.typing import NDArray
from small_sorters import all_sequences

from headcount.analysis import context_proof
from headcount.analysis.context_proof import ContextCertificate, bounded_table, prove
from headcount.analysis.context_rounding import first_order_error
from headcount.errors import CheckFailed, HeadcountError
from headcount.experiments.models import RunModel
from headcount.models.transformer import Classifier, FourierNumberEmbedding
from headcount.runs.run import Run
from headcount.training.contexts import ContextShape, Undecidable, lead_table
from headcount.training.violations import as_examples

pytestmark = pytest.mark.slow  # many models are proved

TRAINED = (3, 6)


@pytest.fixture(autouse=True)
def _shorter_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """One test compares sequences of 4,096 numbers; these take most of the time."""
    monkeypatch.setattr(context_proof, "CHECKED_LENGTHS", (1, 2, 3, 16, 64))


@pytest.fixture(scope="session")
def certificate(proved_sorter: Run) -> ContextCertificate:
    """The certificate of the model that was trained until it was proved."""
    return prove(RunModel.of(proved_sorter))


def whole_leads(model: RunModel, sequences: list[tuple[int, ...]]) -> NDArray[np.float64]:
    """Return the lead of the first class by the model's own forward pass."""
    answers: Any = model.answers
    logits = answers.classify(as_examples([list(each) for each in sequences], max(map(len, sequences)))).logits
    return np.asarray(logits[:, 0].astype(np.float64) - logits[:, 1])


def is_unsorted(sequence: tuple[int, ...]) -> bool:
    return list(sequence) != sorted(sequence)


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split())


def require_wrong(model: RunModel, found: ContextCertificate) -> None:
    """Every example of a refutation is wrong by the model's own forward pass, alone, as `predict` answers it."""
    assert found.verdict == "refuted"
    for answer in found.wrong:
        assert model.predict(answer.example).predicted == answer.predicted != answer.right
        assert answer.right == ("unsorted" if is_unsorted(tokens_of(answer.example)) else "sorted")
    lengths = [len(tokens_of(answer.example)) for answer in found.wrong]
    assert lengths == sorted(lengths)
    assert len({answer.example for answer in found.wrong}) == len(found.wrong)
    assert all(TRAINED[0] <= n <= TRAINED[1] for n in lengths[2:]), "all but the shortest have training lengths"


# --- a proved model ---------------------------------------------------------------------------------------------------


def test_a_model_that_is_right_on_every_sequence_is_proved(certificate: ContextCertificate, proved_sorter: Run) -> None:
    assert (certificate.verdict, certificate.wrong, certificate.errors) == ("proved", (), 0)
    assert (certificate.n_wrong_contexts, certificate.n_wrong_paths) == (0, 0)
    assert certificate.claim == "right on every sequence of numbers from 0 to 5, of every length"
    assert (certificate.n_contexts, certificate.width) == (6**3 + 2 * 6**2 + 6, 3)
    assert (certificate.first_class, certificate.last_class, certificate.trained) == ("unsorted", "sorted", TRAINED)
    assert certificate.weights_sha256 == proved_sorter.weights_sha256
    assert certificate.settings["pooling"] == "top-score"
    assert certificate.settings["window"] == "1"
    assert certificate.environment["dtype"] == "float32"
    sequences = all_sequences(N, 5)
    leads = whole_leads(RunModel.of(proved_sorter), sequences)
    assert ((leads > 0) == [is_unsorted(each) for each in sequences]).all()


def test_the_numbers_equal_brute_force(certificate: ContextCertificate, proved_sorter: Run) -> None:
    model, sequences = RunModel.of(proved_sorter), all_sequences(N, 5)
    leads, unsorted = whole_leads(model, sequences), np.array([is_unsorted(each) for each in sequences])
    assert certificate.n_unbroken == 6 + 2 * 21 + 56, "one, two and three numbers in order, with ties"
    assert certificate.least_quiet == pytest.approx(-leads[~unsorted].max(), abs=1e-4)
    sequence = tokens_of(certificate.tightest_firing)
    assert len(sequence) <= 5
    assert is_unsorted(sequence)
    assert certificate.least_firing == pytest.approx(leads[unsorted].min(), abs=1e-4)
    assert certificate.least_firing == pytest.approx(whole_leads(model, [sequence])[0], abs=1e-4)
    assert certificate.least_margin == min(certificate.least_quiet, certificate.least_firing) > 0.1
    inside = tuple(int(word) for word in certificate.tightest_quiet.split() if word != "-")
    if certificate.tightest_quiet.count("-") == 2:
        assert whole_leads(model, [inside])[0] == pytest.approx(-certificate.least_quiet, abs=1e-4)
    assert len(certificate.tightest_quiet.split()) == 3


@pytest.mark.parametrize("seed", range(4))
def test_the_least_lead_of_unsorted_sequences_equals_brute_force_in_noisy_models(proved_sorter: Run, seed: int) -> None:
    """In such models, the sequence with the smallest largest lead may be long."""
    model = edited(proved_sorter, add_noise(0.5, seed))
    found = prove(model)
    sequence, sequences = tokens_of(found.tightest_firing), [each for each in all_sequences(N, 5) if is_unsorted(each)]
    by_force = whole_leads(model, sequences).min()
    assert found.least_firing <= by_force + 1e-4
    assert found.least_firing == pytest.approx(whole_leads(model, [sequence])[0], abs=1e-4)
    if len(sequence) <= 5:
        assert found.least_firing == pytest.approx(by_force, abs=1e-4)


def test_errors_are_in_order(certificate: ContextCertificate, proved_sorter: Run) -> None:
    assert 0 < certificate.double_error < certificate.single_error < certificate.first_order_error
    assert certificate.sequence_error < 1e-4
    model = cast(Classifier, proved_sorter.model)
    shape = ContextShape.of(model, N)
    table, _ = bounded_table(model, shape)
    contexts = np.argwhere(~np.isnan(table))
    estimates = []
    for left, right in shape.borders():
        block = np.array([c for c in contexts if ((c[0] < N), (c[2] < N)) == (left == 1, right == 1)])
        inside = torch.from_numpy(block[:, 1 - left : 2 + right].copy())
        estimates.append(float(first_order_error(model, N, inside, left).max()))
    assert certificate.first_order_error == pytest.approx(max(estimates)), "of contexts that exist, and of all of them"
    assert certificate.single_error == pytest.approx(float(np.nanmax(np.abs(lead_table(model, shape) - table))))


def test_whole_sequences_of_up_to_4096_numbers_equal_the_table(
    proved_sorter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_proof, "CHECKED_LENGTHS", (1, 4096))
    steps: list[tuple[int, int]] = []
    found = prove(RunModel.of(proved_sorter), progress=lambda *done: steps.append(done))
    assert found.n_sequences > 10
    assert found.sequence_error < 1e-4
    assert steps[-1] == (found.n_contexts, found.n_contexts)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_the_digests_are_those_of_the_constants(certificate: ContextCertificate, proved_sorter: Run) -> None:
    model = cast(Classifier, proved_sorter.model)
    assert isinstance(model.tokens, FourierNumberEmbedding)
    biases = torch.stack([cast(torch.Tensor, model.positions.bias(torch.tensor(1), torch.tensor(j))) for j in range(3)])
    expected = {
        name: hashlib.sha256(part.detach().numpy().astype("<f4").tobytes()).hexdigest()
        for name, part in (("biases", biases), ("waves", model.tokens.waves))
    }
    assert certificate.buffers == expected

    def turn(model: Any) -> None:
        model.tokens.waves[0, 0] += 1e-3

    assert prove(edited(proved_sorter, turn)).buffers["waves"] != expected["waves"]


def test_the_certificate_round_trips_and_damage_is_noticed(certificate: ContextCertificate) -> None:
    assert ContextCertificate.from_json(certificate.to_json()) == certificate
    with pytest.raises(HeadcountError):
        ContextCertificate.from_json(certificate.to_json().replace('"proved"', '"refuted"'))
    with pytest.raises(HeadcountError):
        ContextCertificate.from_json(replace(certificate, n_wrong_paths=3).to_json())


def test_a_certificate_that_contradicts_itself_is_named(certificate: ContextCertificate, proved_sorter: Run) -> None:
    assert list(certificate.contradictions()) == []
    wrong = prove(edited(proved_sorter, shift(9.0))).wrong
    for changes, field in (
        ({"n_wrong_contexts": 1}, "verdict"),
        ({"n_wrong_paths": 1}, "verdict"),
        ({"verdict": "undecided"}, "verdict"),
        ({"verdict": "refuted"}, "wrong"),
        ({"wrong": wrong}, "wrong"),
        ({"double_error": 99.0}, "double_error"),
        ({"least_quiet": -1.0}, "double_error"),
        ({"n_unbroken": 10**6}, "n_unbroken"),
        ({"n_wrong_contexts": 10**6}, "n_wrong_contexts"),
    ):
        assert field in [name for name, _ in replace(certificate, **cast(Any, changes)).contradictions()]


# --- planted faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_noise_in_the_weights_is_refuted_with_a_shortest_example(proved_sorter: Run, seed: int) -> None:
    model = edited(proved_sorter, add_noise(1.0, seed))
    if context_shape_or_none(model) is None:
        pytest.skip("the read-out has the other sign")
    found = prove(model)
    require_wrong(model, found)
    sequences = all_sequences(N, 4)
    wrong = (whole_leads(model, sequences) > 0) != [is_unsorted(each) for each in sequences]
    by_force = [each for each, is_wrong in zip(sequences, wrong, strict=True) if is_wrong]
    shortest = len(tokens_of(found.wrong[0].example))
    assert shortest == (min(map(len, by_force)) if by_force else shortest)
    assert by_force or shortest > 4


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_context_is_refuted_with_a_sequence_that_has_it(proved_sorter: Run, name: str) -> None:
    """One context is wrong, or all four that repeat one number: attention to equal numbers is attention to one."""
    model, contexts = with_a_wrong_context(proved_sorter, FAULTS[name])
    found = prove(model)
    require_wrong(model, found)
    assert found.n_wrong_contexts == len(contexts) == (4 if name == "length 1" else 1)
    assert found.tightest_quiet in {" ".join("-" if t == N else str(t) for t in context) for context in contexts}
    assert found.least_quiet < 0
    called_unsorted = [answer.example for answer in found.wrong if answer.right == "sorted"]
    assert called_unsorted
    for example in called_unsorted:
        padded = (N, *tokens_of(example), N)
        assert contexts & {padded[i : i + 3] for i in range(len(padded) - 2)}
    if name == "length 1":
        assert (N, *tokens_of(found.wrong[0].example), N) in contexts


def test_an_unsorted_sequence_that_no_context_reveals_is_found(
    certificate: ContextCertificate, proved_sorter: Run
) -> None:
    model = edited(proved_sorter, shift(-certificate.least_firing - 0.01))
    found = prove(model)
    require_wrong(model, found)
    assert (found.n_wrong_contexts, found.wrong[0].predicted) == (0, "sorted")
    assert found.n_wrong_paths > 0
    assert found.least_firing == pytest.approx(-0.01, abs=1e-4)
    assert len(tokens_of(found.wrong[0].example)) == len(tokens_of(certificate.tightest_firing))


def test_a_model_that_gives_one_answer_only_is_refuted(proved_sorter: Run) -> None:
    for by, predicted, shortest in ((1e3, "unsorted", 1), (-1e3, "sorted", 2)):
        model = edited(proved_sorter, shift(by))
        found = prove(model)
        require_wrong(model, found)
        assert {answer.predicted for answer in found.wrong} == {predicted}
        assert len(tokens_of(found.wrong[0].example)) == shortest


# --- neither ----------------------------------------------------------------------------------------------------------


def test_leads_of_0_are_undecided(proved_sorter: Run) -> None:
    """Rounding could give each of them any sign."""

    def edit(model: Any) -> None:
        """Every score is 1/2, and 2 * 1/2 - 1 is 0."""
        model.pooling.score.weight.zero_()
        model.pooling.score.bias.fill_(0.5)
        model.to_logits.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model.to_logits.bias.copy_(torch.tensor([-1.0, 0.0]))

    found = prove(edited(proved_sorter, edit))
    assert (found.verdict, found.wrong) == ("undecided", ())
    assert found.n_wrong_contexts == found.n_unbroken
    assert found.double_error > abs(found.least_quiet)
    assert ContextCertificate.from_json(found.to_json()) == found


def test_a_bound_larger_than_the_smallest_lead_is_undecided(
    certificate: ContextCertificate, proved_sorter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = bounded_table(cast(Classifier, proved_sorter.model), ContextShape(1, 1, N))
    for error, verdict in ((0.9, "proved"), (1.01, "undecided")):
        bound = certificate.least_margin * error
        monkeypatch.setattr(context_proof, "bounded_table", lambda *_, bound=bound: (table, bound))
        assert prove(RunModel.of(proved_sorter)).verdict == verdict


def test_a_table_that_whole_sequences_contradict_gives_no_certificate(
    proved_sorter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_proof, "lead_table", lambda *given: lead_table(*given) + np.float32(0.1))
    with pytest.raises(CheckFailed, match="logits for whole sequences differ by 0.1 from"):  # noqa: RUF043
        prove(RunModel.of(proved_sorter))


def test_weights_too_large_to_bound_give_no_certificate(proved_sorter: Run) -> None:
    def edit(model: Classifier) -> None:
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(1e12)

    with pytest.raises((CheckFailed, HeadcountError)):
        prove(edited(proved_sorter, edit))


@pytest.fixture
def other_models(tiny_run: Run, tiny_sorter: Run) -> Iterator[tuple[RunModel, str]]:
    return iter([(RunModel.of(tiny_run), "only classifiers"), (RunModel.of(tiny_sorter), "no attention window")])


def test_other_models_are_not_decidable_here(other_models: Iterator[tuple[RunModel, str]]) -> None:
    for model, reason in other_models:
        with pytest.raises(Undecidable, match=reason):
            prove(model)


def test_a_task_without_pairs_is_not_decidable_here(proved_sorter: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proved_sorter.task, "allowed_neighbours", None)
    with pytest.raises(Undecidable, match="neighbours alone do not decide"):
        prove(RunModel.of(proved_sorter))
