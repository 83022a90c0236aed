"""The command `headcount`, and `python -m headcount`."""

import gc
import traceback

from headcount.cli import main
from headcount.cli._output import print_error


def run() -> int:
    """Run one verb in a process of its own, which ends with it; 1 is for a failed check, so that a bug exits with 2."""
    try:
        return main()
    except Exception:
        bug = "error: headcount failed unexpectedly\n  please report the lines above, with the command"
        print_error(f"{traceback.format_exc()}{bug}")
        return 2
    finally:
        gc.freeze()  # or Python would look for cycles in all that torch has made, a tenth of its time, only to end


if __name__ == "__main__":
    raise SystemExit(run())
