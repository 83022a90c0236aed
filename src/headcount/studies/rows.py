"""Collect everything that is stored in run folders in one tidy table: one row for each run and measure.

    run  task  seed  step  (labels)  verb  file  measure  head ... metric  value  low  high  n  unit  verdict

The columns from `head` to `metric` say what a measure is about; those that do not apply are None. The files are read as
plain JSON, without the checks of `Result.from_json` and without torch, so that thousands of runs take seconds.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.special import stdtrit

from headcount.bands import PART, limit_text, role_of
from headcount.errors import InputError, RunError
from headcount.files import friendly_os_errors, parse_json, read_bytes, read_json, written_atomically
from headcount.heads import HeadId
from headcount.result_tables import csv_text, without_formula
from headcount.runs.folder import FINAL_STEPS, MOST_RESULT, RunFolder

Row = dict[str, Any]
"""A row of the table, by column name: one measure of one run."""
Data = Mapping[str, Any]
"""A stored result as plain data."""
RUN = ("run", "task", "seed", "step")
"""Columns that say which run, and which of its snapshots, a row is about. Labels follow them."""
ABOUT = ("head", "site", "layer", "replacement", "length", "negatives", "place", "way", "group", "metric")
"""Columns that say what a measure is about."""
COLUMNS = (*RUN, "verb", "file", "measure", *ABOUT, "value", "low", "high", "n", "unit", "verdict")
_HEADER = re.compile(rb'\s*\{\s*"type":\s*"(\w+)",\s*"schema":\s*(\d+)')


def tidy_rows(folder: RunFolder, only: Collection[str] | None = None, /, **labels: Any) -> list[Row]:
    """Return a row for each measure that is stored in the folder of a finished run.

    `only` chooses result files by their paths in the folder, such as `results/ablation.json`; the default is all files.

    Labels become columns of every row. The labels `run`, `task`, `seed` and `step` replace these columns; a label with
    the name of another column is stored as `setting.NAME` (see `label_column`). Files of unknown types are left out.
    """
    manifest, config = folder.read_manifest(), _config(folder)
    named = {label_column(name): plain_value(value) for name, value in labels.items()}
    run: Row = {"run": str(folder.path), "task": config.get("task_name"), "seed": config.get("seed"), "step": None}
    run |= {name: named.pop(name) for name in RUN if name in named}
    begin = {**run, **named, **dict.fromkeys(COLUMNS[len(RUN) :])}
    rows = [{**begin, "verb": "train", "file": "log", **part} for part in _training(folder, manifest)]
    for step, results in _result_folders(folder):
        place = begin if step is None else {**begin, "step": step}
        for file in sorted(results.glob("*.json")):
            if only is not None and file.relative_to(folder.path).as_posix() not in only:
                continue
            rows += [{**place, "verb": verb, "file": file.stem, **part} for verb, part in _result_parts(file)]
    return rows


def _result_folders(folder: RunFolder) -> Iterator[tuple[int | None, Path]]:
    """Yield the folder with the results of the trained model, then those of its snapshots with their steps."""
    yield None, folder.path / "results"
    steps = [path for path in (folder.path / "snapshots").glob("*/results") if path.parent.name.isdecimal()]
    yield from sorted((int(path.parent.name), path) for path in steps)


def run_settings(folder: RunFolder) -> dict[str, Any]:
    """Return all settings of a run by name, and its task and seed as `task` and `seed`.

    A setting with the name of a column, such as `low`, is called `setting.low`.
    """
    config = _config(folder)
    parts = [config.get(section) or {} for section in ("task", "model", "training")]
    settings = {label_column(name): plain_value(value) for part in parts for name, value in part.items()}
    return {"task": config.get("task_name"), "seed": config.get("seed"), **settings}


def label_column(name: str) -> str:
    """Return the name of the column for a label; a label with the name of a fixed column becomes `setting.NAME`.

    >>> label_column("encoding"), label_column("low"), label_column("seed")
    ('encoding', 'setting.low', 'seed')
    """
    return f"setting.{name}" if name in COLUMNS and name not in RUN else name


def plain_value(value: Any) -> Any:
    """Return a setting as one value of a table: lists become text.

    >>> plain_value([8, 16]), plain_value(None), plain_value(2)
    ('8, 16', None, 2)
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return value if value is None or isinstance(value, str | int | float) else str(value)


def table_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of a table with these rows: the fixed columns, with all labels after the column `step`."""
    labels = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in COLUMNS]
    return [*RUN, *labels, *COLUMNS[len(RUN) :]]


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as CSV (`.csv`) or as JSON lines (`.jsonl`), which pandas and polars read in one call."""
    columns = table_columns(rows)
    if path.suffix not in _FORMATS:
        raise InputError(
            f"a table can be written only to a .csv or .jsonl file, got {path}", f"name the file {path.stem}.csv"
        )
    with RowWriter({path: columns}) as writer:
        writer.write(rows)


class RowWriter:
    """Write rows to several files in a `with` block, some rows at a time; each file has its own columns.

    The files appear when the block ends, and only if no error ended it.
    """

    def __init__(self, files: Mapping[Path, Sequence[str]]) -> None:
        self._columns = dict(files)

    def __enter__(self) -> RowWriter:
        self._stack = ExitStack()
        self._files = {path: self._stack.enter_context(written_atomically(path)) for path in self._columns}
        for path, columns in self._columns.items():
            if path.suffix == ".csv":
                self._append(path, csv_text([], columns))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append these rows to all files."""
        for path, columns in self._columns.items():
            self._append(path, _FORMATS[path.suffix](rows, columns))

    def _append(self, path: Path, text: str) -> None:
        with friendly_os_errors(f"write {path}"):
            self._files[path].write(text.encode())


def _csv_lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(
        [_plain_text(value) if type(value) is str else value for value in map(row.get, columns)] for row in rows
    )
    return out.getvalue()


_plain_text = lru_cache(maxsize=4096)(without_formula)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def _json_lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    return "".join([f"{_ENCODER.encode({name: row.get(name) for name in columns})}\n" for row in rows])


_FORMATS: dict[str, Callable[[Sequence[Mapping[str, Any]], Sequence[str]], str]] = {
    ".csv": _csv_lines,
    ".jsonl": _json_lines,
}
"""Maps the suffix of a file to the function that returns rows as text for it, without a header."""


def _config(folder: RunFolder) -> dict[str, Any]:
    if not folder.holds_a_run:
        raise RunError(f"no run in {folder.path}", "train one: headcount train addition")
    config = read_json(folder.config_file)
    if not isinstance(config, dict):
        raise RunError(f"{folder.config_file} is damaged: it is not a JSON object", "restore the file from a copy")
    return config


def _training(folder: RunFolder, manifest: Data) -> Iterator[Row]:
    """Yield a row each for the number of steps, the duration and the final losses of a training."""
    yield {"measure": "steps", "value": manifest["steps"], "unit": "steps"}
    if folder.log_file.exists():
        losses: list[float] = []
        validation: Row | None = None
        for line in reversed(read_bytes(folder.log_file).splitlines()):
            entry = parse_json(line, folder.log_file)
            if "validation_loss" in entry and validation is None:
                validation = {"measure": "validation loss", "value": entry["validation_loss"], "n": entry.get("n")}
            if "loss" in entry:
                losses.append(entry["loss"])
            if len(losses) == FINAL_STEPS:
                break
        if losses:
            yield {"measure": "training loss", "value": fmean(losses), "unit": "nats"}
        if validation:
            yield {**validation, "unit": "nats"}
    if timings := folder.read_timings() if folder.timings_file.exists() else []:
        yield {"measure": "seconds of training", "value": timings[-1]["seconds"], "unit": "s"}


def _result_parts(file: Path) -> Iterator[tuple[str, Row]]:
    """Yield the verb and the columns of each row of a result file; nothing if its type is unknown."""
    data = read_bytes(file, MOST_RESULT)
    header = _HEADER.match(data[:200])
    if header is None or (kind := header[1].decode()) not in READERS:
        return
    schema, verb, read = READERS[kind]
    if int(header[2]) != schema:
        what = f"{file} has version {int(header[2])} of {kind}, not {schema}"
        raise InputError(what, "measure it again with this version of headcount, or delete it")
    try:
        parts = list(read(parse_json(data, file)))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise RunError(f"{file} is damaged: {error!r}", "delete it to measure it again") from error
    yield from ((verb, part) for part in parts)


# --- one reader for each type of result -------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _head_columns(name: str) -> Mapping[str, Any]:
    """Return the columns of a head, from its long or short name."""
    head = HeadId.parse(name)
    return {"head": head.short, "site": head.site.short, "layer": head.site.layer}


def _share(proportion: Data) -> Row:
    """Return the columns of a stored `Proportion`."""
    columns = {name: proportion[name] for name in ("low", "high", "n")}
    return {"value": proportion["rate"], **columns, "unit": "share"}


def _evaluation(data: Data) -> Iterator[Row]:
    for column, suffix in (("free_running", ""), ("teacher_forced", ", teacher-forced")):
        named: list[tuple[str, Row, Data]] = [("exact match", {}, data["exact"])]
        named += [("accuracy by place", {"place": row["group"]}, row) for row in data["digits"]]
        named += [("exact match by group", {"group": f"{row['facet']}: {row['group']}"}, row) for row in data["groups"]]
        for measure, about, row in named:
            if row[column] is not None:
                yield {"measure": f"{measure}{suffix}", **about, **_share(row[column])}


def _classification(data: Data) -> Iterator[Row]:
    constant = data["constant"]
    verdict = None if constant is None else f"constant: {constant}"
    yield {"measure": "accuracy", **_share(data["accuracy"]["right"]), "verdict": verdict}
    for row in data["groups"]:
        yield {"measure": "accuracy by group", "group": f"{row['facet']}: {row['group']}", **_share(row["right"])}


def _proved(verdict: str) -> Row:
    return {"measure": "proved", "value": float(verdict == "proved"), "verdict": verdict, "unit": "share"}


def _margin(value: float | None) -> Iterator[Row]:
    if value is not None:
        yield {"measure": "least margin", "value": value, "unit": "logits"}


def _certificate(data: Data) -> Iterator[Row]:
    yield _proved("refuted" if data["errors"] else "undecided" if data["undecided"] else "proved")
    yield {"measure": "wrong answers", "value": data["errors"], "n": data["total"], "unit": "examples"}
    yield from _margin(data["least_margin"])


def _context_certificate(data: Data) -> Iterator[Row]:
    yield _proved(data["verdict"])
    wrong = data["n_wrong_contexts"] + data["n_wrong_paths"]
    yield {"measure": "wrong contexts", "value": wrong, "n": data["n_contexts"], "unit": "contexts"}
    yield from _margin(min(data["least_quiet"], data["least_firing"]))


def _worst_margins(data: Data) -> Iterator[Row]:
    yield _proved(data["verdict"])
    for row in data["rows"]:
        least = min(case["margin"] for case in (row["last"], row["first"]) if case)
        yield {"measure": "least margin", "length": row["length"], "value": least, "unit": "logits"}


def _search(data: Data) -> Iterator[Row]:
    yield _proved(data["verdict"])
    yield {"measure": "wrong answers found", "value": len(data["wrong"]), "n": data["n_tried"], "unit": "examples"}
    yield from _margin(data["least_margin"])


def _ablation(data: Data) -> Iterator[Row]:
    unit = data["unit"]
    for condition in data["conditions"]:
        low, high = condition["clean_interval"]
        about = {"length": condition["length"], "metric": data["metric"], "n": condition["n"]}
        score = {"value": condition["clean"], "low": low, "high": high}
        yield {"measure": "score with all heads", **about, **score, "unit": "share" if data["is_accuracy"] else unit}
        for replacement in data["replacements"]:
            effects = [
                effect
                for effect in data["heads"]
                if effect["replacement"] == replacement and effect["length"] == condition["length"]
            ]
            about = {"replacement": replacement, "length": condition["length"], "metric": data["metric"]}
            for effect in effects:
                numbers = {name: effect[name] for name in ("low", "high", "n")}
                columns = {**_head_columns(effect["head"]), **about, "value": effect["drop"], **numbers}
                yield {"measure": "drop", **columns, "unit": unit, "verdict": effect["band"]}
            bands = [effect["band"] for effect in effects]
            if any(bands):
                for band in ("critical", "redundant"):
                    count = {"value": bands.count(band), "n": len(bands), "unit": "heads"}
                    yield {"measure": f"{band} heads", **about, **count}


def _pruning(data: Data) -> Iterator[Row]:
    metric, unit = data["metric"], "share" if data["is_accuracy"] else data["unit"]

    def score(measure: str, point: Data) -> Row:
        numbers = {"value": point["score"], "low": point["low"], "high": point["high"], "n": data["n"]}
        return {"measure": measure, "metric": metric, **numbers, "unit": unit}

    share = data.get("share")
    chosen = f"at most {limit_text(data['loss'], data['unit'])}" if share is None else f"{100 * share:g} % of the heads"
    counts = {chosen: len(data["chosen"])}
    counts |= {f"at most {limit_text(each['loss'])}": each["n_together"] for each in data["prunable"]}
    for group, n_heads in counts.items():
        count = {"value": n_heads, "n": data["n_heads"], "unit": "heads"}
        yield {"measure": "removable heads", "group": group, "metric": metric, **count}
    alone = {"value": len(data["harmless"]), "n": data["n_heads"], "unit": "heads"}
    yield {"measure": "heads that are harmless alone", "metric": metric, **alone}
    yield score("score with all heads", {"score": data["clean"], "low": None, "high": None})
    yield score("score without the removable heads", data["kept"])
    yield score("score without the best random heads", data["best_random"])
    yield score("score without all harmless heads", data["harmless_left"])
    by_zero = "heads that are harmless under zero ablation"
    yield {"measure": by_zero, "metric": metric, **alone, "value": len(data["by_zero"])}
    yield score(f"score without all {by_zero}", data["by_zero_left"])
    heads = dict.fromkeys(point["head"] for curve in data["curves"] for point in curve["points"] if point["head"])
    for head in heads:
        removed = float(head in data["chosen"])
        verdict = "removed" if removed else "kept"
        yield {"measure": "removed", **_head_columns(head), "value": removed, "unit": "share", "verdict": verdict}


def _answer(data: Data) -> Iterator[Row]:
    """Yield the answer to one example, whose attention is stored as well; averages have no answer."""
    if data["example"] and data["predicted"] is not None:
        value = None if data["correct"] is None else float(data["correct"])
        yield {"measure": "answer", "group": data["example"], "value": value, "unit": "share"} | {
            "verdict": data["predicted"]
        }


def _head_stats(data: Data) -> Iterator[Row]:
    """Yield the mean attention of each head over all queries and examples; the head's label is the verdict."""
    for head in data["heads"]:
        about = _head_columns(head["head"])
        for each in head["measures"]:
            if each["column"] == each["condition"] == "all":
                half = _t_quantile(each["n"]) * each["se"]
                ends = {"low": each["mean"] - half, "high": each["mean"] + half, "n": each["n"]}
                unit = "nats" if each["measure"] == "entropy" else "share"
                measure = f"attention: {each['measure']}"
                columns = {"value": each["mean"], **ends, "unit": unit, "verdict": head["label"] or None}
                yield {"measure": measure, **about, **columns}


@lru_cache(maxsize=1024)
def _t_quantile(n: int) -> float:
    return float(stdtrit(n - 1, 0.975)) if n > 1 else 0.0


def _routes(data: Data) -> Iterator[Row]:
    n_quartets = {f"{way['source']} to {way['read']}": way["n"] for way in data["ways"]}
    measure = f"share of the {data['event']}"
    for patch in data["heads"]:
        moved = _moved(patch, n_quartets)
        placebo = patch["placebo"]
        if moved["verdict"] in ("carrier", "part") and not (placebo["low"] > -PART and placebo["high"] < PART):
            moved["verdict"] = f"more than the {data['event']}"  # its placebo moves the answer, too
        yield {"measure": measure, **_head_columns(patch["what"]), **moved}
    for patch in data["blocks"]:
        # `E0` is not a head: any head of the block has its site and layer.
        site = {**_head_columns(f"{patch['what']}H0"), "head": None}
        yield {"measure": f"{measure}, all heads of a block", **site, **_moved(patch, n_quartets)}
    for donor in data["donors"]:
        about = {"group": donor["head"], "place": donor["read"]}
        yield {"measure": f"answers that follow the {data['event']} of a donor", **about, **_share(donor["followed"])}


def _moved(patch: Data, n_quartets: Mapping[str, int]) -> Row:
    moved = patch["moved"]
    ends = {"value": moved["share"], "low": moved["low"], "high": moved["high"], "n": n_quartets[patch["way"]]}
    return {"way": patch["way"], **ends, "unit": "fraction", "verdict": role_of(moved["low"], moved["high"])}


def _stretch(data: Data) -> Iterator[Row]:
    for cell in data["cells"]:
        about = {"length": cell["length"], "negatives": cell["negative"]}
        numbers = {"value": cell["accuracy"], "low": cell["low"], "high": cell["high"], "n": cell["n"], "unit": "share"}
        verdict = f"constant: {cell['constant_class']}" if cell["constant"] else None
        yield {"measure": "accuracy by length", **about, **numbers, "verdict": verdict}


def _answer_stretch(data: Data) -> Iterator[Row]:
    for cell in data["cells"]:
        about = {"length": cell["length"], "group": cell["kind"]}
        yield {"measure": "exact match by length", **about, **_share(cell["exact"])}


def _audit(data: Data) -> Iterator[Row]:
    judged = [each for each in data["verdicts"] if each["verdict"] != "not applicable"]
    n_failed = sum(each["verdict"] == "fail" for each in judged)
    yield {"measure": "failed checks", "value": n_failed, "n": len(judged), "unit": "checks"}
    for each in judged:
        outcome = {"value": float(each["verdict"] == "fail"), "n": data["n"], "unit": "share"}
        yield {
            "measure": "check fails",
            "group": f"{each['id']} {each['check']}",
            **outcome,
            "verdict": each["verdict"],
        }


def _claim(data: Data) -> Iterator[Row]:
    about, verdict = {"group": data["text"]}, data["verdict"]
    supported = {"supported": 1.0, "refuted": 0.0}.get(verdict)
    yield {"measure": "claim supported", **about, "value": supported, "unit": "share", "verdict": verdict}
    if data["evidence"]:
        effect = data["evidence"][0]
        numbers = {name: effect[name] for name in ("value", "low", "high", "n")}
        yield {"measure": "effect of a claim", **about, **numbers, "unit": effect["unit"], "verdict": verdict}


def _claims(data: Data) -> Iterator[Row]:
    for result in data["results"]:
        yield from _claim(result)


READERS: dict[str, tuple[int, str, Callable[[Data], Iterator[Row]]]] = {
    "Evaluation": (2, "evaluate", _evaluation),
    "Classification": (3, "evaluate", _classification),
    "Certificate": (3, "verify", _certificate),
    "ContextCertificate": (1, "verify", _context_certificate),
    "WorstMargins": (1, "verify", _worst_margins),
    "CounterexampleSearch": (1, "verify", _search),
    "Ablation": (6, "ablate", _ablation),
    "Pruning": (5, "prune", _pruning),
    "AttentionPatterns": (2, "heads", _answer),
    "Specialisation": (3, "heads", _head_stats),
    "Routes": (1, "routes", _routes),
    "Stretch": (3, "stretch", _stretch),
    "AnswerStretch": (1, "stretch", _answer_stretch),
    "Audit": (1, "audit", _audit),
    "ClaimResult": (1, "claim", _claim),
    "ClaimsResult": (1, "claims", _claims),
}
"""For each type of result: the version that can be read, the verb that measures it, and a function that yields rows."""
