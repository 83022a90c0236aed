"""Run the quick runs of a study, as `headcount study` does, but without torch: quick_launch.py WHERE N_PROCESSES."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import nullcontext
from pathlib import Path

from headcount.studies.plan import Plan
from headcount.studies.running import LocalProcesses, execute

if __name__ == "__main__":
    plan: Plan = pickle.loads((Path(os.environ["QUICK_RUN"]) / "plan").read_bytes())
    if sys.argv[1] == "local":
        opened = nullcontext(LocalProcesses(int(sys.argv[2])))
    else:
        from headcount.studies.dask_cluster import cluster

        opened = cluster(plan, sys.argv[1], int(sys.argv[2]))
    with opened as place:
        progress = execute(plan, place, retries=100)
    for state in progress.of("failed"):
        sys.stderr.write(f"{state.run.name}: {state.error}\n")
    sys.exit(1 if progress.of("failed") else 0)
