"""Which character stands behind which token id: learned from texts whose encoding is known.

An adapter's ids are its own. But it encodes texts that we know, so where ids and characters (or words) go together in
every row, each id has a name. Then a position of a picture and an answer that was read off logits can be written out.

>>> Alphabet.learn([[1, 3, 4, 2], [1, 4, 4, 2]], ["12", "22"]).tokens([4, 3, 2])
['2', '1', '<2>']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Ids = Sequence[int]
MOST_SPECIAL = 3
"""Ids before or after a text that stand for none of it."""
N_LEARNED = 64
"""Examples that are enough to learn from."""


@dataclass(frozen=True)
class Alphabet:
    """Characters or words, by token id."""

    names: dict[int, str]

    @classmethod
    def learn(cls, rows: Sequence[Ids], texts: Sequence[str]) -> Alphabet | None:
        """From rows of ids and the texts that they stand for; None if no way to lay them beside each other is right.

        Where several are (too few texts), only the plainest counts: as many ids as characters, in their order.
        """
        found: list[Alphabet] = []
        for parts in ([list(text) for text in texts], [text.split() for text in texts]):
            laid = [_names(pairs) for pairs in _ways(rows, parts)]
            found += [cls(names) for i, names in enumerate(laid) if names and names not in laid[:i]]
            if found:
                break
        is_plain = all(len(row) == len(text) for row, text in zip(rows, texts, strict=True))
        return found[0] if len(found) == 1 or (found and is_plain) else None

    def tokens(self, ids: Ids) -> list[str]:
        """One name each; a number in brackets where there is none, as for the end of a text."""
        return [self.names.get(each, f"<{each}>") for each in ids]


def _ways(rows: Sequence[Ids], parts: Sequence[Sequence[str]]) -> Iterator[list[tuple[int, str]]]:
    """Ways to lay texts beside ids, as pairs: forwards or backwards, some ids after the first or before the last."""
    if not rows or not all(parts):
        return
    for step in (1, -1):
        for is_from_end in (False, True):
            for skipped in range(MOST_SPECIAL + 1):
                pairs = list[tuple[int, str]]()
                for row, part in zip(rows, parts, strict=True):
                    first = len(row) - len(part) - skipped if is_from_end else skipped
                    if first < 0 or first + len(part) > len(row):
                        break
                    pairs += zip(row[first : first + len(part)], part[::step], strict=True)
                else:
                    yield pairs


def _names(pairs: Sequence[tuple[int, str]]) -> dict[int, str] | None:
    """If each id goes with one part of a text alone, and each part with one id."""
    names, ids = dict(pairs), {part: each for each, part in pairs}
    is_right = all(names[each] == part and ids[part] == each for each, part in pairs)
    return names if is_right else None
