"""The command `headcount`, and `python -m headcount`."""

import gc
import traceback

from headcount.cli import main
from headcount.cli._output import print_error


def run() -> int:
    """Run one verb and return its exit code; a bug in headcount exits with 2, because 1 means a failed check."""
    try:
        return main()
    except Exception:
        bug = "error: headcount failed unexpectedly\n  please report the lines above, with the command"
        print_error(f"{traceback.format_exc()}{bug}")
        return 2
    finally:
        gc.freeze()  # skips the search for cycles among torch's objects, which takes a tenth of the run time


if __name__ == "__main__":
    raise SystemExit(run())
