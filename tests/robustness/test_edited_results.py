"""Result files that somebody edited: each is refused with the field, or says what it said before.

Two things refuse an edited file: a contradiction between its fields, and the digests that stand beside the fields. A
figure that stands alone, such as the narrowest margin, contradicts nothing when it is changed: only its digest tells.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import dataset_models as texts
import hub_models as hub
import pytest
import torch
from answer_lengths import answer_stretch
from edited_sorters import edited, shift, with_settings
from published_by_hand import write_adder
from routes_by_hand import routes as routes_by_hand
from rows_by_hand import COSTLY, HARMLESS, OPEN, head_rows, judged_rows, over_training, rows_of
from weights_by_hand import weights as weights_by_hand

import headcount
from headcount import api
from headcount.analysis.matching import Effort, match
from headcount.analysis.pooling_comparison import compare_poolings
from headcount.analysis.positions import all_encodings
from headcount.analysis.specialisation import specialise
from headcount.api.reporting import gather
from headcount.cli import main
from headcount.errors import ResultError, RunError
from headcount.exercise.comparison import compare as compare_published
from headcount.rendering.notebook import _section
from headcount.results import Result
from headcount.runs.folder import RunFolder, TrainingRecord
from headcount.runs.run import Run
from headcount.studies.head_findings import find_over_seeds
from headcount.studies.summary import summarise

pytestmark = pytest.mark.slow  # a result of every kind is measured

MUTATIONS = 150
"""Of every result."""
SHOWN_ANYWAY = 12
"""Mutations of every result that only the digests can tell, and that are read and put into sentences without them."""
VERDICTS = REFUSED, BY_DIGEST, SAME = "refused", "refused by a digest alone", "said the same"
NUMBERS = (0, -1, -2000, 1, 2, 0.5, 1.5, 99_999, 5000.0, 1e308, 2**70, float("nan"), float("inf"), -float("inf"))
OTHERS: tuple[Any, ...] = (None, True, "", "x", "12", [], {}, [1, "a"], {"a": {}})
HEADS = ("encoder.7.self.0", "layer.0.self.99", "E0H0", "", "decoder.0.self.-1", "encoder.0.cross.1")


@pytest.fixture(scope="module")
def results(
    tiny_run: Run, tiny_sorter: Run, proved_sorter: Run, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Result]:
    """One result of every kind that headcount writes, by name."""
    adders = tmp_path_factory.mktemp("adders")
    sample, small = headcount.load("sample:sortedness"), tmp_path_factory.mktemp("cut") / "small"
    model = api.open_model(texts.model(hub.build("gpt2"), "$A"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headcount.stats.N_RESAMPLES", 99)
        patch.setattr("headcount.experiments.models.N_DECIDING", 100)
        patch.setattr("headcount.data.from_task.REFERENCE", 2**10)
        made: dict[str, Any] = {
            "evaluation": api.evaluate(tiny_run),
            "classification": api.evaluate(tiny_sorter),
            "certificate": api.verify(tiny_run, quiet=True),
            "search": api.verify(tiny_sorter, seconds=1, quiet=True),
            "context certificate": api.verify(proved_sorter, quiet=True),
            "refuted contexts": api.verify(edited(proved_sorter, shift(9.0)), quiet=True),
            "worst margins": api.verify(with_settings(proved_sorter, pooling="mean"), quiet=True),
            "ablation": api.ablate_heads(tiny_run, examples=True, replacements=["zero", "resample"], quiet=True).result,
            "ablation by length": api.ablate_heads(sample, lengths=[8, 16], n=20, quiet=True).result,
            "pruning": api.prune_heads(sample, n=20, n_orders=1, quiet=True).result,
            "cost": api.prune_heads(tiny_run, small, heads=["E0H1"], quiet=True).cost,
            "stretch": api.stretch(tiny_sorter, lengths=[4, 8], negatives=["adjacent"], n=20, quiet=True).result[0],
            "answers by length": answer_stretch(),
            "head stats": specialise(tiny_sorter, controls=(2, 1)),
            "match": match(tiny_run, tiny_run, None, Effort(3, 5, 1)),
            "roles": api.head_roles(model, on=texts.TEXTS[0], n_controls=2, quiet=True).result,
            "patterns": api.show_heads(tiny_run, "3+4").result,
            "average": api.show_heads(tiny_sorter).result,
            "summary": api.summarise_attention(model, texts.TEXTS[0]).result,
            "positions": api.show_positions(tiny_run, 6).result,
            "routes": routes_by_hand(),
            "weights": weights_by_hand(),
            "patch": api.patch_pair(sample, "1 2 3 4", "1 2 4 3").result,
            "claim": api.claim(tiny_run, "D0 prunable-together", n=30, anyway=True),
            "claims": api.claim_all(tiny_run, ["D0 prunable-together", "E0 induction"], n=30, anyway=True, quiet=True),
            "seeds": summarise(
                [
                    *rows_of({"learned": (0.1, 0.5, 0.3), "rotary": (0.4, 0.6, 0.8)}),
                    *head_rows(
                        {"E0H0": (0.1, 0.2, 0.3), "E0H1": (0, 0.1, 0), "E1H0": (0.5, 0.6, 0.1)}, encoding="learned"
                    ),
                ]
            ),
            "findings": find_over_seeds(
                judged_rows({"E0H0": [COSTLY] * 3, "E0H1": [HARMLESS] * 3, "E1H0": [OPEN] * 3})
            ),
            "emergence": over_training(3),
            "published": compare_published([RunFolder(write_adder(adders / f"{i}", i, 0.395)) for i in range(3)]),
            "encodings": all_encodings(d_model=4, n_heads=2, n_positions=4),
            "audit": api.audit(tiny_run, only=["HC101", "HC102", "HC201"], quiet=True).result,
            "intervention": headcount.audit_intervention(
                tiny_sorter, torch.arange(12).view(2, 6), headcount.ablated(tiny_sorter, "L0H1"), ["L0H1"]
            ),
        }
    record = TrainingRecord(3, 0.5, 0.6, 1.5, "cpu")
    made["poolings"] = compare_poolings(made["stretch"], [(made["stretch"], record)])
    return {name: each[0] if isinstance(each, tuple) else each for name, each in made.items()}


# --- mutations --------------------------------------------------------------------------------------------------------


Place = tuple[str | int, ...]


def places(data: Any, above: Place = ()) -> Iterator[Place]:
    """Every place in a JSON tree, but for the type and the version."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if key not in ("type", "schema"):
            yield (*above, key)
            if isinstance(value, (dict, list)):
                yield from places(value, (*above, key))


def mutate(data: dict[str, Any], place: Place, rng: Random) -> str:
    """Change the value at a place, and say how."""
    owner: Any = data
    for key in place[:-1]:
        owner = owner[key]
    value, path = owner[place[-1]], ".".join(map(str, place))
    if isinstance(owner, dict) and rng.random() < 0.1:
        del owner[place[-1]]
        return f"{path} dropped"
    ways: list[Any] = [rng.choice(NUMBERS), rng.choice(OTHERS)]
    if isinstance(value, bool):
        ways += [not value] * 4
    elif isinstance(value, int):
        ways += [value - 1, value + 1, -value, 10 * value, str(value)] * 2
    elif isinstance(value, float):
        ways += [-value, 100 * value, value + 0.25, 1 - value] * 2
    elif isinstance(value, str):
        ways += [f"{value}x", rng.choice(HEADS)] * 2
    elif isinstance(value, list) and value:
        ways += [value[:-1], value[1:], [*value, value[0]], value[::-1]] * 2
    owner[place[-1]] = rng.choice(ways)
    return f"{path}: {str(value)[:60]} -> {str(owner[place[-1]])[:60]}"


def sentences(result: Result) -> list[str]:
    """What a report says of a result: every text, cell and heading of its section, and its table."""
    section = _section(result)
    parts = [str(block) for block in section.blocks] if section else []
    return [*parts, repr(result), *map(str, result.to_rows())]


def test_every_kind_of_result_is_attacked(results: dict[str, Result]) -> None:
    kinds, todo = set[type](), [Result]
    while todo:
        todo += (found := todo.pop().__subclasses__())
        kinds |= {each for each in found if each.__module__.startswith("headcount.") and not each.__subclasses__()}
    assert {type(each) for each in results.values()} == kinds


def test_edited_results_are_refused_or_say_the_same(
    results: dict[str, Result], seed: int, count: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    faults, by_digest = list[str](), Counter[str]()
    for name, result in results.items():
        text, before = result.to_json(), sentences(result)
        assert sentences(type(result).from_json(text)) == before
        everywhere = list(places(json.loads(text)))
        for number in range(MUTATIONS):
            data, rng = json.loads(text), Random(f"{seed}-{name}-{number}")
            where = f"{name}, mutation {number}, {mutate(data, rng.choice(everywhere), rng)}"
            try:
                verdict = attack(type(result), data, before, by_digest[name] < SHOWN_ANYWAY)
            except Exception as error:
                verdict = f"{type(error).__name__}: {error}"
            by_digest[name] += verdict == BY_DIGEST
            count[verdict if verdict in VERDICTS else "fault"] += 1
            faults += [] if verdict in VERDICTS else [f"{where}: {verdict}"]
    assert not faults, f"--attack-seed {seed}: {len(faults)} of {count.total()}:\n" + "\n".join(faults[:30])
    with capsys.disabled():
        share = count[BY_DIGEST] / count.total()
        sys.stdout.write(f"\n{count.total():,} edited results: {dict(count)}; only the digests tell {share:.0%}\n")
    assert count[REFUSED] > count[BY_DIGEST], "most edits contradict another field"


def attack(kind: type[Result], data: dict[str, Any], before: list[str], show_anyway: bool) -> str:
    """Read an edited result and say what became of it; without its digests, it must still not end in a traceback."""
    try:
        result = kind.from_json(json.dumps(data), Path("results/x.json"))
    except ResultError as error:
        field, _, _ = error.what.removeprefix("results/x.json is damaged: ").partition(" = ")
        if field.partition(".")[0].partition("[")[0] not in (*data, *kind.__dataclass_fields__, "digests"):  # type: ignore[attr-defined]
            return f"refused without the field: {error.what}"
        if "somebody changed it" not in error.what:
            return REFUSED
        if show_anyway:
            data.pop("digests", None)
            sentences(kind.from_json(json.dumps(data)))
        return BY_DIGEST
    return SAME if sentences(result) == before else "another sentence"


# --- contradictions that were believed once ---------------------------------------------------------------------------

CONTRADICTIONS = [
    ("certificate", "errors", 0, "wrong"),
    ("certificate", "total", -2000, "total"),
    ("certificate", "least_margin", 3.5, "least_margin"),
    ("evaluation", "exact.free_running.correct", 99_999, "exact.free_running.correct"),
    ("evaluation", "exact.free_running.n", 0, "exact.free_running.n"),
    ("evaluation", "exact.free_running.n", -2000, "exact.free_running.n"),
    ("evaluation", "exact.free_running.rate", 0.99, "exact.free_running.rate"),
    ("evaluation", "wrong", [], "wrong"),
    ("classification", "accuracy.right.high", 0.2, "accuracy.right.high"),
    ("classification", "answer_shares.0.right.n", 10**6, "answer_shares[0].right.rate"),
    ("ablation", "heads.0.drop", 50.0, "heads[0].drop"),
    ("ablation", "heads.0.low", float("nan"), "heads[0].low"),
    ("ablation", "heads.0.n", 0, "heads[0].n"),
    ("ablation", "heads.0.head", "encoder.9.self", "heads[0].head"),
    ("ablation", "heads.0.band", "harmless", "heads[0].band"),
    ("ablation", "conditions", [], "conditions"),
    ("ablation", "replacements", [], "replacements"),
    ("ablation by length", "heads", [], "replacements"),
    ("pruning", "curves.0.points", [], "curves"),
    ("pruning", "chosen", ["layer.0.self.1"] * 2, "kept"),
    ("pruning", "kept.score", 2.0, "kept"),
    ("stretch", "cells.0.n", 7, "cells[0].n"),
    ("stretch", "cells.0.recall", [], "cells[0].n"),
    ("stretch", "cells.0.accuracy", 0.123, "cells[0].accuracy"),
    ("head stats", "heads.0.measures.0.n", 0, "heads[0].measures[0].n"),
    ("head stats", "heads.0.layer", 5, "heads[0].layer"),
    ("roles", "heads.0.standings.0.rank", 99, "heads[0].standings[0].rank_high"),
    ("match", "overall.alike", 77, "overall"),
    ("positions", "encoding.kernel", [], "encoding"),
    ("audit", "measured", 1.5, "measured"),
    ("cost", "n_heads.1", 99, "n_heads"),
]


@pytest.mark.parametrize(("name", "place", "value", "field"), CONTRADICTIONS)
def test_a_contradiction_is_refused_with_its_field(
    results: dict[str, Result], name: str, place: str, value: Any, field: str
) -> None:
    """Without the digests, which a file of an older version does not have."""
    data = json.loads(results[name].to_json())
    del data["digests"]
    *above, key = (int(part) if part.isdigit() else part for part in place.split("."))
    owner: Any = data
    for part in above:
        owner = owner[part]
    owner[key] = value
    with pytest.raises(ResultError) as caught:
        type(results[name]).from_json(json.dumps(data), "results/x.json")
    assert caught.value.what.startswith(f"results/x.json is damaged: {field}"), caught.value.what
    assert caught.value.advice == ("delete results/x.json to measure it again",)


def test_a_report_names_the_damaged_file_and_measures_nothing_again(
    results: dict[str, Result], tiny_run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_run.folder.path, "adder", ignore=shutil.ignore_patterns("results", "figures"))
    folder = headcount.load("adder").folder
    file = folder.write_result("certificate", results["certificate"])
    file.write_text(file.read_text().replace('"errors": ', '"errors": 1', 1))
    edited = file.read_bytes()
    assert main(["report", "adder", "--stored", "--examples", "0", "--quiet", "-o", "page.html"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {file} is damaged: errors = 1")
    assert f"delete {file} to measure it again" in message
    assert file.read_bytes() == edited
    assert not Path("page.html").exists()


def test_a_report_refuses_heads_that_the_model_does_not_have(
    results: dict[str, Result], tiny_run: Run, in_tmp: Path
) -> None:
    shutil.copytree(tiny_run.folder.path, "adder", ignore=shutil.ignore_patterns("results", "figures"))
    file = headcount.load("adder").folder.result_file("ablation")
    text = results["ablation"].to_json().replace("decoder.1.self", "decoder.5.self").replace("D1H", "D5H")
    data = {key: value for key, value in json.loads(text).items() if key != "digests"}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data))
    with pytest.raises(ResultError, match=r"names the head decoder\.5\.self\.0, which the model does not have"):
        gather("adder", stored=True, n_examples=0, quiet=True)


def test_the_log_of_a_finished_run_is_what_the_run_wrote(tiny_run: Run, in_tmp: Path) -> None:
    shutil.copytree(tiny_run.folder.path, "adder")
    folder = headcount.load("adder").folder
    lines = folder.read_log()
    folder.log_file.write_text("".join(json.dumps({**line, "step": line["step"] + 1}) + "\n" for line in lines))
    with pytest.raises(RunError, match=r"log\.jsonl differs from the file that this run wrote"):
        folder.read_log()
