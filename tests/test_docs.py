"""What the documents list is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headcount.encodings import ENCODINGS
from headcount.poolings import POOLINGS

SORTEDNESS = (Path(__file__).parents[1] / "docs" / "sortedness.md").read_text()


def rows(section: str) -> dict[str, str]:
    """The last cell of each row of a section's table, by each name in its first cell."""
    (text,) = re.findall(rf"## {section}\n(.*?)(?=\n## |\Z)", SORTEDNESS, flags=re.DOTALL)
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: row[-1] for row in cells for name in re.findall(r"`([a-z0-9-]+)`", row[0])}


@pytest.mark.parametrize(("section", "registry"), [("Encodings", ENCODINGS), ("Poolings", POOLINGS)])
def test_every_part_is_listed_with_what_it_gives_away(section, registry):
    listed = rows(section)
    assert set(listed) == set(registry.names())
    nothing = {"Encodings": "generic", "Poolings": "nothing"}[section]
    for name, gives in listed.items():
        assert gives == (registry.get(name).gives or nothing)


def test_the_poolings_that_know_no_order_are_listed_as_such():
    (text,) = re.findall(r"## Poolings\n(.*?)(?=\n## )", SORTEDNESS, flags=re.DOTALL)
    for line in (line for line in text.splitlines() if line.startswith("| `")):
        names, symmetric, _ = line.strip("| ").split(" | ")
        for name in re.findall(r"`([a-z0-9-]+)`", names):
            assert POOLINGS.get(name).symmetric == (symmetric == "yes")
