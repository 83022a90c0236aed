"""Names and descriptions of the roles that heads have on any text, such as attention to the previous token.

A role is a kind of key. To add a role, add it to `ROLES`, and add the keys that count for it to `role_targets` in
analysis/role_measures.py.
"""

from typing import NamedTuple


class Role(NamedTuple):
    """How figures and sentences call one role of a head, such as attention to the previous token."""

    name: str
    """Name of the role in figures and tables, such as `previous token`."""
    keys: str
    """The keys that a head with this role attends to, as part of a sentence, such as `the previous token`."""


ROLES = {
    "first": Role("first token", "the first token"),
    "previous": Role("previous token", "the previous token"),
    "itself": Role("itself", "the token itself"),
    "next": Role("next token", "the next token"),
    "farthest": Role("farthest token", "the farthest token"),
    "special": Role("special tokens", "special tokens"),
    "separator": Role("separators", "separators"),
    "duplicate": Role("duplicate token", "another copy of the same token (duplicate token)"),
    "induction": Role("induction", "the token after an earlier copy (induction)"),
    "matching": Role("matching token", "a copy across a separator (matching token)"),
}
"""For each role (kind of key), its name and description, in the order of tables.

The keys of this dictionary are the names of measures in stored results.
"""
