"""Entry point of the command `headcount` and of `python -m headcount`."""

import gc
import traceback

from headcount.cli import main
from headcount.cli._output import print_error


def run() -> int:
    """Run one command, such as `headcount ablate`, and return its exit code.

    After an unexpected exception, the exit code is 2, because 1 means that a check failed.
    """
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
