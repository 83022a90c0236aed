"""A report of a run that was hardly trained, in every form; what was stored is read, and what is missing is made."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import dataset_models as texts
import hub_models as hub
import pytest

from headcount import api
from headcount.api.report_measurements import MEASUREMENTS
from headcount.api.reporting import gather
from headcount.data.tables import TextLines
from headcount.describing.blocks import Commands
from headcount.describing.report import ReportResults, build_report
from headcount.describing.sections.reproduce import ablate_command
from headcount.errors import InputError, RunError
from headcount.runs.run import Run, load

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_work")]  # figures are drawn


@pytest.fixture
def runs(tiny_run: Run, tiny_sorter: Run, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    for name, run in (("adder", tiny_run), ("sorter", tiny_sorter)):
        shutil.copytree(run.folder.path, name, ignore=shutil.ignore_patterns("results", "figures"))
    return [load("adder"), load("sorter")]


def test_one_file_and_what_may_stand_beside_it(runs: list[Run]) -> None:
    files = api.report(
        *runs, out="out/report.html", stored=True, n_examples=2, markdown=True, latex=True, exercise="mine", quiet=True
    )
    page = files[0].read_text()
    assert files[0] == Path("out/report.html")
    assert all(file.is_file() for file in files)
    assert "http://" not in page.replace("http://www.w3.org/", ""), "nothing is fetched"
    assert "https://" not in page
    text = Path("out/report.md").read_text()
    assert text.startswith("# The heads of adder and sorter")
    assert text.count("![") == len(list(Path("out/figures").glob("*.png"))) > 3
    assert all(path.read_text().startswith("%") for path in Path("out/tables").glob("*.tex"))
    assert json.loads(Path("mine/problem1/results/training_log.json").read_text())["log"]
    assert list(Path("mine/problem1/results/attention_patterns").glob("average-*.png"))
    handed_in = {path.relative_to("mine/problem2/results").as_posix() for path in Path("mine/problem2").rglob("*.*")}
    assert "extrapolation/encoding_comparison.png" in handed_in


def test_sections_without_results_are_left_out(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    report_results = gather(*runs, stored=True, n_examples=0, quiet=True)
    assert [model_results.ablation for model_results in report_results.models] == [None, None]
    names = [section.id for section in build_report(report_results).sections]
    assert "ablation" not in names
    assert "pruning" not in names
    assert names[0] == "summary"
    api.ablate_heads(runs[0], n=10, replacements=["zero"], save=True, quiet=True)
    again = gather(*runs, stored=True, n_examples=0)
    assert again.models[0].ablation is not None, "what is stored is read, whatever it was asked for"
    told = " ".join(capsys.readouterr().err.split())
    assert "adder: the ablation of each head is read from ablation-zero-n10.json, made with other settings" in told
    assert "ablation" in [section.id for section in build_report(again).sections]


def test_an_ablation_of_few_examples_is_not_the_reports_figure(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the default is missing, it is measured."""
    alone = [each if each.field == "ablation" else replace(each, make=lambda *_: None) for each in MEASUREMENTS]
    monkeypatch.setattr("headcount.api.reporting.MEASUREMENTS", alone)
    few = api.ablate_heads(runs[0], n=4, save=True, quiet=True).result
    (model_results,) = gather(runs[0], n_examples=0, quiet=True).models
    assert model_results.ablation is not None
    assert [each.n for each in few.conditions] == [4]
    assert [each.n for each in model_results.ablation.conditions] == [len(runs[0].task.split("test"))]


def test_the_certificate_of_a_packaged_run_comes_with_the_package(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for 810,000 sums that were checked with these very weights."""
    monkeypatch.setattr(
        "headcount.api.reporting.MEASUREMENTS", [each for each in MEASUREMENTS if each.field == "certificate"]
    )
    monkeypatch.setattr("headcount.api.reporting._shortened", lambda *_: [])
    monkeypatch.setattr(
        "headcount.api.report_measurements.verify", lambda *_, **__: pytest.fail("it was checked again")
    )
    results = api.reporting._results(api.open_model("sample:addition"), "", None, False, True, False, True, [])
    assert results["certificate"].total == 810_000


def test_results_of_other_weights_are_not_told(runs: list[Run]) -> None:
    found = api.ablate_heads(runs[0], n=10, replacements=["zero"], quiet=True).result
    runs[0].folder.write_result("ablation-zero-n10", replace(found, weights_sha256="0" * 64))
    (model_results,) = gather(runs[0], stored=True, n_examples=0, quiet=True).models
    assert model_results.ablation is None


def test_two_models_of_one_name_have_their_folders_names(runs: list[Run]) -> None:
    shutil.copytree("adder", "other/adder")
    titles = [each.title for each in gather("adder", "other/adder", stored=True, n_examples=0, quiet=True).models]
    assert titles == ["adder", "other/adder"]


def test_a_text_is_shown_token_by_token_while_there_is_room(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = api.open_model(texts.model(hub.build("gpt2"), "$A"))
    (model_results,) = gather(model, on=[texts.TEXTS[0]], stored=True, quiet=True).models
    weights = api.attention(model, texts.TEXTS[0])
    (page,) = model_results.book.pages
    for site, kept in zip(model_results.book.sites, page.weights, strict=True):
        for short, each in zip(site.heads, kept, strict=True):
            assert [f"{cell / 100:.2f}" for cell in each.flatten()] == [
                f"{weight:.2f}" for weight in weights[short][0].flatten().tolist()
            ]
    assert len(page.tokens[0]) == kept.shape[1]
    monkeypatch.setattr("headcount.api.report_patterns.MOST_CELLS", 0)
    (pooled,) = gather(model, on=[texts.TEXTS[0]], stored=True, quiet=True).models
    assert pooled.book.pages[0].weights[0].shape[1] <= 32


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_markdown_of_a_model_without_a_task_has_its_heads_on_a_text(in_tmp: Path, family: str) -> None:
    """On a text weights are pooled: there was nothing to draw in the form of a run's heads."""
    model = api.open_model(texts.model(hub.build(family), "$A"))
    api.report(model, out="report.html", on=[texts.TEXTS[0]], stored=True, markdown=True, quiet=True)
    assert Path("report.md").read_text().count("![") == 1


@pytest.mark.parametrize(("out", "told"), [("there", "does not end in .html"), ("adder", "does not end in .html")])
def test_a_page_has_a_name(runs: list[Run], out: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        api.report(runs[0], out=out, quiet=True)
    with pytest.raises(InputError, match="no model"):
        api.report(out="x.html")


def test_examples_that_are_named_come_first(runs: list[Run]) -> None:
    """In a report on several tasks each model gets those that are its own."""
    adder, sorter = gather(*runs, on=["3+4", "1 2 3 4"], stored=True, n_examples=1, quiet=True).models
    assert [each.example for each in adder.patterns][1] == "3+4"
    assert [each.example for each in sorter.patterns][1] == "1 2 3 4"
    assert len(adder.patterns) == len(sorter.patterns) == 3, "the average, the named one, and one of the test set"
    with pytest.raises(InputError, match="hello"):
        gather(*runs, on=["3+4", "hello"], stored=True, quiet=True)


def test_heads_of_a_model_without_a_task_are_ablated_and_removed_on_data(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored of one file is not told of another."""
    classifier = texts.classifier(max_position_embeddings=64)
    classifier.float().save_pretrained("bert")
    texts.tokenizer().save_pretrained("bert")
    Path("data.tsv").write_text(texts.own_labels(classifier, texts.MANY))
    Path("other.tsv").write_text(texts.own_labels(classifier, texts.MANY[:40]))
    (found,) = gather("bert", data="data.tsv", on=[texts.TEXTS[0]], thorough=True, quiet=True).models
    assert found.ablation.conditions[0].n == len(texts.MANY)
    assert found.pruning.n_heads == len(found.ablation.heads) / 3
    sections = build_report(ReportResults("BERT", (found,), "")).sections
    told = ["summary", "patterns", "roles", "ablation", "sites", "pruning", "reproduce"]
    assert [section.id for section in sections] == told
    assert [line for block in sections[-1].blocks if isinstance(block, Commands) for line in block.commands] == [
        f"headcount heads bert --on '{texts.TEXTS[0]}'",
        "headcount heads bert --stats",
        "headcount ablate bert --data data.tsv",
        "headcount prune bert --data data.tsv --budget 300s",
        f"headcount report bert --data data.tsv --on '{texts.TEXTS[0]}'",
    ]
    again = {name: gather("bert", data=name, stored=True, quiet=True).models[0] for name in ("data.tsv", "other.tsv")}
    assert again["data.tsv"].ablation == found.ablation
    assert again["data.tsv"].pruning == found.pruning, "whatever time it was given"
    assert again["other.tsv"].ablation is None


def test_results_on_lines_are_not_those_on_the_whole_text(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a file's name needs a digest in that of a result."""
    model = api.open_model(texts.model(hub.build("gpt2"), "$A"))
    Path("my texts.txt").write_text("\n".join(texts.MANY))
    api.ablate_heads(model, "my texts.txt", lines=True, save=True, quiet=True)
    whole = gather(model, data="my texts.txt", stored=True, quiet=True).models[0]
    lines = gather(model, data=TextLines("my texts.txt"), stored=True, quiet=True).models[0]
    assert whole.ablation is None
    assert lines.ablation is not None
    assert ablate_command(lines) == f"headcount ablate {lines.name} --data 'my texts.txt' --lines"


def test_data_are_for_models_without_a_task(runs: list[Run]) -> None:
    with pytest.raises(InputError, match="leave --data out"):
        gather(runs[0], data="data.tsv", quiet=True)
    with pytest.raises(InputError, match="name the file"):
        api.report(runs[0], lines=True, quiet=True)


def test_data_that_are_not_there_are_told_at_once(in_tmp: Path) -> None:
    model = api.open_model(texts.model(texts.classifier()))
    with pytest.raises(RunError, match=r"nowhere\.tsv"):
        gather(model, data="nowhere.tsv", quiet=True)
    Path("data.tsv").write_text(texts.table(("text", "label"), ("the cat", "cat"), ("the cat", "elephant")))
    with pytest.raises(InputError, match="elephant"):
        gather(model, data="data.tsv", quiet=True)
