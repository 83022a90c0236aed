"""Which character or word stands behind which token id: learned from texts whose encoding is known.

An adapter's ids are its own. Where ids and characters (or words) go together in all rows, each id has a name.

>>> Alphabet.learn([[1, 3, 4, 2], [1, 4, 4, 2]], ["12", "22"]).tokens([4, 3, 2])
['2', '1', '<2>']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_SPECIAL = 3
"""Largest number of special ids before or after a text."""
N_LEARNED = 64
"""Examples from which the names of ids are learned."""


@dataclass(frozen=True)
class Alphabet:
    """The characters or words that the token ids of an adapter stand for."""

    names: dict[int, str]
    """Maps each known id to its character or word."""

    @classmethod
    def learn(cls, rows: Sequence[Sequence[int]], texts: Sequence[str]) -> Alphabet | None:
        """Find out which id stands for which character or word; return None if no alignment of ids and texts fits.

        If several alignments fit, because there are too few texts, the only one accepted has one id per character, in
        the same order.
        """
        alphabets: list[Alphabet] = []
        for parts in ([list(text) for text in texts], [text.split() for text in texts]):
            fits = [_names(pairs) for pairs in _alignments(rows, parts)]
            alphabets += [cls(names) for i, names in enumerate(fits) if names and names not in fits[:i]]
            if alphabets:
                break
        is_plain = all(len(row) == len(text) for row, text in zip(rows, texts, strict=True))
        return alphabets[0] if len(alphabets) == 1 or (alphabets and is_plain) else None

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Name each id by its character or word; an id without a name, such as an end token, becomes `<id>`."""
        return [self.names.get(number, f"<{number}>") for number in ids]


def _alignments(rows: Sequence[Sequence[int]], parts: Sequence[Sequence[str]]) -> Iterator[list[tuple[int, str]]]:
    """Yield candidate alignments of ids with characters or words: forwards or backwards, after skipping special ids."""
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
    """Map each id to its character or word if the pairs are a one-to-one mapping; else return None."""
    names, ids = dict(pairs), {part: number for number, part in pairs}
    is_one_to_one = all(names[number] == part and ids[part] == number for number, part in pairs)
    return names if is_one_to_one else None
