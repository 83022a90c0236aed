"""The command `headcount`, and `python -m headcount`."""

import gc

from headcount.cli import main


def run() -> int:
    """One verb in a process of its own, which ends with it."""
    try:
        return main()
    finally:
        gc.freeze()  # or Python would look for cycles in all that torch has made, a tenth of its time, only to end


if __name__ == "__main__":
    raise SystemExit(run())
