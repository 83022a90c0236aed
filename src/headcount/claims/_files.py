"""Read claims from a TOML file of the user, or from one of the files of claims that come with headcount.

An entry of such a file is `[[claim]]` with a `text`, such as "E0H1 prunable-together", and optionally `says`: who makes
the claim.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from headcount.claims.base import Statement, parse
from headcount.errors import InputError
from headcount.suggestions import suggestion

HOME = Path(__file__).parent / "statements"
"""The folder of the files of claims that come with headcount."""
FORM = 'write each claim as [[claim]], text = "E0H1 prunable-together", and optionally says = "who claims it"'


def shipped() -> tuple[str, ...]:
    """Return the names of the files of claims that come with headcount."""
    return tuple(sorted(path.stem for path in HOME.glob("*.toml")))


def read_statements(file: str | Path) -> tuple[Statement, ...]:
    """Return the claims of a TOML file; `file` is a path, or the name of a file of claims that comes with headcount."""
    path = HOME / f"{file}.toml" if str(file) in shipped() else Path(file)
    if not path.is_file():
        raise InputError(
            f"there is no file of claims {str(file)!r}", f"headcount comes with: {', '.join(shipped())}", FORM
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}", FORM) from error
    entries = data.get("claim")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{path} has no claims", FORM)
    return tuple(_statement(entry, path, i) for i, entry in enumerate(entries, 1))


def _statement(entry: dict[str, object], path: Path, i: int) -> Statement:
    """Return the claim of one entry of a TOML file; error messages name the file and the number `i` of the entry."""
    for name in entry:
        if name not in ("text", "says"):
            raise InputError(f"claim {i} in {path} has an unknown key {name!r}", suggestion(name, ("text", "says")))
    text, says = entry.get("text"), entry.get("says", "")
    if not isinstance(text, str) or not isinstance(says, str):
        raise InputError(f"claim {i} in {path} has no text", FORM)
    try:
        return Statement(parse(text).text, says)
    except InputError as error:
        raise InputError(f"claim {i} in {path}: {error.what}", *error.advice) from error
