"""Exit codes of verbs, by what they found: 0 if nothing failed, 1 if something did, 2 if nothing could be judged.

Other endings have their codes elsewhere: errors in `errors`, signals in `cli/__init__.py`, runs of a study in
`studies/running.py`.
"""

from collections.abc import Collection

PASSED, FAILED, NOT_JUDGED = 0, 1, 2
OF_CLAIM = {"supported": PASSED, "undecided": PASSED, "refuted": FAILED, "not judged": NOT_JUDGED}
"""Maps the verdict on a claim to the exit code of the verb `claim`."""


def of_claims(verdicts: Collection[str]) -> int:
    """Return the exit code of the verb `claims`: 1 if a claim is refuted, 2 if no claim could be judged.

    >>> of_claims(["supported", "refuted"]), of_claims(["supported", "not judged"]), of_claims(["not judged"])
    (1, 0, 2)
    """
    if "refuted" in verdicts:
        return FAILED
    return NOT_JUDGED if set(verdicts) == {"not judged"} else PASSED


def of_verification(verdict: str) -> int:
    """Return the exit code of the verb `verify`: 1 only if a wrong answer was found."""
    return FAILED if verdict == "refuted" else PASSED


def of_training(verdict: str) -> int:
    """Return the exit code of the verb `train` with `--until-proved`: 1 unless the trained model is proved right."""
    return PASSED if verdict == "proved" else FAILED


def of_failures(*failures: object, interrupted: int = 0) -> int:
    """Return 1 if there is any failure, such as a failed check, a broken submission or a failed run of a study.

    `interrupted` is the exit code of an interrupt, which comes first; 0 if there was none.

    >>> of_failures(["seed=3"]), of_failures([]), of_failures("a broken submission", interrupted=130)
    (1, 0, 130)
    """
    return interrupted or (FAILED if any(failures) else PASSED)
