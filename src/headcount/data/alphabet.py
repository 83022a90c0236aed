"""Find out which character or word each token id of an adapter's model stands for, from encoded texts.

If token ids and characters (or words) can be aligned in the same way in all texts, each id gets a name.

>>> Alphabet.learn([[1, 3, 4, 2], [1, 4, 4, 2]], ["12", "22"]).tokens([4, 3, 2])
['2', '1', '<2>']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_SPECIAL = 3
"""Largest number of special ids, such as [CLS], that an alignment allows before or after a text."""
N_LEARNED = 64
"""Number of examples from which the names of token ids are learned."""


@dataclass(frozen=True)
class Alphabet:
    """The characters or words that the token ids of an adapter's model stand for."""

    names: dict[int, str]
    """Maps each known id to its character or word."""

    @classmethod
    def learn(cls, rows: Sequence[Sequence[int]], texts: Sequence[str]) -> Alphabet | None:
        """Return the alphabet that explains how these texts were encoded as `rows` of ids, or None if none fits.

        If several alphabets fit because there are too few texts, only the one with one id per character, in the order
        of the text, is accepted.
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
        """Return the character or word of each id; an id without a name, such as an end token, becomes `<id>`."""
        return [self.names.get(number, f"<{number}>") for number in ids]


def _alignments(rows: Sequence[Sequence[int]], parts: Sequence[Sequence[str]]) -> Iterator[list[tuple[int, str]]]:
    """Yield candidate alignments of ids with characters or words, as lists of (id, character or word) over all rows.

    An alignment runs forwards or backwards, and skips some special ids.
    """
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
    """Return a mapping from ids to characters or words if the pairs are one-to-one, else None."""
    names, ids = dict(pairs), {part: number for number, part in pairs}
    is_one_to_one = all(names[number] == part and ids[part] == number for number, part in pairs)
    return names if is_one_to_one else None
