"""Run the quick runs of a study, as `headcount study` does, but without torch: quick_launch.py WHERE N [NAME].

WHERE is `local`, `dask` or the address of a scheduler, and N the number of runs at a time. When the run NAME has done
all its steps, the whole process group gets a Ctrl-C, as from a terminal.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

from headcount.studies.plan import Plan
from headcount.studies.running import LocalProcesses, Progress, execute

if __name__ == "__main__":
    plan: Plan = pickle.loads((Path(os.environ["QUICK_RUN"]) / "plan").read_bytes())
    if sys.argv[1] == "local":
        opened = nullcontext(LocalProcesses(int(sys.argv[2])))
    else:
        from headcount.studies.dask_cluster import cluster

        opened = cluster(plan, sys.argv[1], int(sys.argv[2]))

    def on_change(progress: Progress) -> None:
        if any(state.run.name in sys.argv[3:] and state.process and state.progress() == 1 for state in progress.states):
            os.killpg(os.getpgrp(), signal.SIGINT)

    with opened as place:
        progress = execute(plan, place, retries=100, on_change=on_change)
    for state in progress.of("failed"):
        sys.stderr.write(f"{state.run.name}: {state.error}\n")
    sys.exit(1 if progress.of("failed") else 0)
