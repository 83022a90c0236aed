"""Runs with results that published figures can be compared with, written by hand."""

import json
from pathlib import Path

from headcount.runs.config import RunConfig


def write_adder(path: Path, seed: int, rate: float) -> Path:
    """Write the files of a finished run without a start token, whose exact match is `rate`; return its folder."""
    (path / "results").mkdir(parents=True)
    config = json.loads(RunConfig.build("addition", seed=seed, start_token=False).to_json())
    (path / "config.json").write_text(json.dumps(config))
    (path / "manifest.json").write_text(json.dumps({"schema": 1, "steps": 10, "files": {}}))
    share = {"correct": int(2000 * rate), "n": 2000, "rate": rate, "low": rate, "high": rate}
    exact = {"facet": "exact match", "group": "all", "teacher_forced": None, "free_running": share}
    result = {"type": "Evaluation", "schema": 2, "exact": exact, "digits": [], "groups": []}
    (path / "results" / "evaluation-test.json").write_text(json.dumps(result))
    return path
