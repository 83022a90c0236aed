"""What a head is called.

A head sits at a site (a stack's layer and the kind of attention there) and has an index. Everything counts from 0.

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
    """One attention block: `encoder.1.self`. A model with a single stack calls it `layer`."""

    stack: str
    layer: int
    kind: str = "self"

    def __post_init__(self) -> None:
        if (self.stack, self.kind) not in _LETTERS:
            known = ", ".join(".N.".join(site) for site in _LETTERS)
            raise InputError(f"no attention site '{self.stack}.{self.layer}.{self.kind}'", f"there are: {known}")

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.kind}"

    @property
    def short(self) -> str:
        """`E1`, `D1`, `X1` (cross), or `L1` where there is one stack."""
        return f"{_LETTERS[self.stack, self.kind]}{self.layer}"

    def head(self, index: int) -> HeadId:
        """One head of this site."""
        return HeadId(self, index)


@dataclass(frozen=True, order=True, repr=False)
class HeadId:
    """One head: `encoder.1.self.2`, in short `E1H2`."""

    site: HeadSite
    index: int

    def __str__(self) -> str:
        return f"{self.site}.{self.index}"

    def __repr__(self) -> str:
        return f"HeadId({str(self)!r})"

    @property
    def short(self) -> str:
        """`E1H2`, `D1H2`, `X1H2` or `L1H2`."""
        return f"{self.site.short}H{self.index}"

    @classmethod
    def parse(cls, text: str) -> HeadId:
        """Read either form of a head's name."""
        if long := _LONG.fullmatch(text.strip()):
            stack, layer, kind, index = long.groups()
        elif short := _SHORT.fullmatch(text.strip()):
            letter, layer, index = short.groups()
            stack, kind = _SITES[letter.upper()]
        else:
            raise InputError(
                f"{text!r} is not the name of a head",
                *_meant(text),
                "write it as encoder.1.self.2 or E1H2 (E encoder, D decoder self, X decoder cross, L single stack)",
            )
        return cls(HeadSite(stack, int(layer), kind), int(index))


def _meant(text: str) -> list[str]:
    """Say which head was meant, if a name says all but how it is written.

    >>> _meant("encoder.0.2"), _meant("first")
    (['did you mean encoder.0.self.2 (E0H2)?'], [])
    >>> _meant("decoder.1.3")
    ['did you mean decoder.1.self.3 (D1H3) or decoder.1.cross.3 (X1H3)?']
    """
    found = _ALMOST.fullmatch(text.strip())
    if found is None or re.search(r"(?<!\d)-\d", text):  # which of the last ones, nobody knows
        return []
    stack, layer, kind, index = found.groups()
    letter = (stack or "l")[0].upper()
    stack, only = _SITES[letter]
    kinds = [kind.lower()] if kind else [only] if letter != "D" else ["self", "cross"]
    known = [HeadSite(stack, int(layer), each).head(int(index)) for each in kinds if (stack, each) in _LETTERS]
    return [f"did you mean {' or '.join(f'{head} ({head.short})' for head in known)}?"] if known else []
