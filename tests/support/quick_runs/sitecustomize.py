"""Replace the process of a run, `python -m headcount study FILE --run NAME`, by `quick_run.py`.

Python imports this file at its start if its folder is on PYTHONPATH, in launchers, workers and runs alike.
"""

import os
import sys

if "--run" in sys.orig_argv:
    import quick_run

    os._exit(quick_run.main(sys.orig_argv))
