"""Names of attention heads, such as `encoder.1.self.2`, in short `E1H2`.

A head has an index within its attention block. An attention block (a site) is named by its stack, its layer and its
kind of attention (self or cross). Layers and heads count from 0.

>>> HeadId.parse("X1H2")
HeadId('decoder.1.cross.2')
>>> HeadId.parse("encoder.1.self.2").short
'E1H2'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headcount.errors import InputError

_LETTERS = {("encoder", "self"): "E", ("decoder", "self"): "D", ("decoder", "cross"): "X", ("layer", "self"): "L"}
_SITES = {letter: site for site, letter in _LETTERS.items()}
_LONG = re.compile(r"(encoder|decoder|layer)\.(\d{1,6})\.(self|cross)\.(\d{1,6})")
_ALMOST = re.compile(
    r"(?:(enc|dec|lay|[edxl])[a-z]*)?[\W_]*(\d{1,6})[\W_]*(self|cross)?[a-z]*[\W_]*(?:h|head)?[\W_]*(\d{1,6})",
    re.IGNORECASE,
)
_SHORT = re.compile(r"([EDXL])(\d{1,6})H(\d{1,6})", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class HeadSite:
    """The name of one attention block, such as `encoder.1.self`; a single stack of layers is called `layer`."""

    stack: str
    layer: int
    kind: str = "self"

    def __post_init__(self) -> None:
        if (self.stack, self.kind) not in _LETTERS:
            known = ", ".join(".N.".join(site) for site in _LETTERS)
            raise InputError(
                f"there is no attention block with the name '{self.stack}.{self.layer}.{self.kind}'",
                f"names have one of these forms, where N is the number of the layer: {known}",
            )

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.kind}"

    @property
    def short(self) -> str:
        """The short name of the block: `E1` (encoder), `D1` (decoder self), `X1` (cross) or `L1` (single stack)."""
        return f"{_LETTERS[self.stack, self.kind]}{self.layer}"

    def head(self, index: int) -> HeadId:
        """Return the head of this attention block that has the given index, counted from 0."""
        return HeadId(self, index)


@dataclass(frozen=True, order=True, repr=False)
class HeadId:
    """The name of one attention head, such as `encoder.1.self.2`, in short `E1H2`."""

    site: HeadSite
    index: int

    def __str__(self) -> str:
        return f"{self.site}.{self.index}"

    def __repr__(self) -> str:
        return f"HeadId({str(self)!r})"

    @property
    def short(self) -> str:
        """The short name of the head: `E1H2`, `D1H2` (decoder self), `X1H2` (cross) or `L1H2` (single stack)."""
        return f"{self.site.short}H{self.index}"

    @classmethod
    def parse(cls, text: str) -> HeadId:
        """Parse the long or the short name of a head, such as `encoder.1.self.2` or `E1H2`."""
        if long := _LONG.fullmatch(text.strip()):
            stack, layer, kind, index = long.groups()
        elif short := _SHORT.fullmatch(text.strip()):
            letter, layer, index = short.groups()
            stack, kind = _SITES[letter.upper()]
        else:
            raise InputError(
                f"{text!r} is not the name of a head",
                *_corrections(text),
                "write it as encoder.1.self.2 or E1H2 (E encoder, D decoder self, X decoder cross, L single stack)",
            )
        return cls(HeadSite(stack, int(layer), kind), int(index))


def _corrections(text: str) -> list[str]:
    """Return a list with one line of advice: the heads that a misspelt name may mean. Return [] if there are none.

    >>> _corrections("encoder.0.2"), _corrections("first")
    (['did you mean encoder.0.self.2 (E0H2)?'], [])
    >>> _corrections("decoder.1.3")
    ['did you mean decoder.1.self.3 (D1H3) or decoder.1.cross.3 (X1H3)?']
    """
    match = _ALMOST.fullmatch(text.strip())
    if match is None or re.search(r"(?<!\d)-\d", text):  # an index from the end, such as -1, has no counterpart
        return []
    stack, layer, kind, index = match.groups()
    letter = (stack or "l")[0].upper()
    stack, only_kind = _SITES[letter]
    kinds = [kind.lower()] if kind else [only_kind] if letter != "D" else ["self", "cross"]
    heads = [HeadSite(stack, int(layer), kind).head(int(index)) for kind in kinds if (stack, kind) in _LETTERS]
    return [f"did you mean {' or '.join(f'{head} ({head.short})' for head in heads)}?"] if heads else []
