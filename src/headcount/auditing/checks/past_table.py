"""What becomes of positions past the end of the table: refused, clamped, wrapped, cut off or made up?

Report 003 believed that it clamped; others did clamp, which gives all later positions one vector, or took positions
modulo the table, or cut sequences off. A sequence of one number, longer than the table, is read by the model: two
places with the very same vector share a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from headcount.analysis.positions import learns
from headcount.auditing.check import LONGER, Check, Finding, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.auditing.standing import is_as_good, right_at
from headcount.auditing.streams import MIXED, UNSEEN, constant_sequences, first_stream, is_mixed, number_columns
from headcount.errors import HeadcountError

PAST, LONGEST, TIMES = 8, 1024, 16
"""Places past the table that are asked for; the longest sequence; how many times the training length without a table"""
N_ROWS, SAME = 3, 1e-6
REFUSE = "refuse sequences longer than the table, or choose an encoding that needs no row for each position"


@dataclass(frozen=True)
class Places:
    """Vectors [row, number, width] of sequences of one number, before any attention."""

    vectors: Tensor

    def __len__(self) -> int:
        return self.vectors.shape[1]

    def alike(self, place: int) -> list[int]:
        """Other places with the very same vectors."""
        apart = (self.vectors - self.vectors[:, place : place + 1]).abs().amax(dim=(0, 2))
        found = cast("list[int]", (apart <= SAME * self.vectors.abs().max()).nonzero().flatten().tolist())
        return [each for each in found if each != place]


def run(observed: Observed) -> Finding:
    """Inside the training lengths, then past the table."""
    longest = observed.trained_lengths[1]
    inside = _places(observed, longest)
    if inside is None:
        return not_applicable(UNSEEN)
    if is_mixed(observed, constant_sequences(observed, longest, N_ROWS)):
        return not_applicable(MIXED)
    shared = {place: inside.alike(place) for place in range(len(inside))}
    if all(len(others) == len(inside) - 1 for others in shared.values()):
        return not_applicable("positions are not added to the embeddings, so that there is no table to run out of")
    if any(shared.values()):
        return _shared(f"in sequences of {longest}, as in training, ", shared)
    rows, is_learned = _table(observed)
    length = TIMES * longest if rows is None else max(rows, longest) + PAST
    if length > LONGEST:
        where = "" if rows is None else f", inside its table of {rows:,} rows"
        return passed(f"every place of a sequence of {longest} has a vector of its own{where}", rows=rows)
    return _past(observed, longest, length, rows, is_learned)


def _past(observed: Observed, longest: int, length: int, rows: int | None, is_learned: bool) -> Finding:
    table = "" if rows is None else f", its table having {rows} rows"
    try:
        found = _places(observed, length)
    except HeadcountError:
        return passed(f"a sequence of {length} is refused{table}", rows=rows, length=length)
    if found is None:
        return not_applicable(UNSEEN)
    if len(found) < length:
        return _cut_off(len(found), length)
    last = {place: found.alike(place) for place in range(length - PAST, length)}
    if any(last.values()):
        return _shared(f"in sequences of {length}{table}, ", last)
    if rows is None or not is_learned:
        return passed(f"every place of a sequence of {length} has a vector of its own", rows=rows, length=length)
    return _made_up(observed, longest, length, rows)


def _shared(where: str, alike: Mapping[int, Sequence[int]]) -> Finding:
    """By place, others with its vector."""
    place = next(place for place, others in alike.items() if others)
    first, place = sorted((alike[place][0], place))
    is_clamped = any(place + 1 in others or place - 1 in others for place, others in alike.items())
    count = sum(map(bool, alike.values()))
    return warned(
        f"{where}place {place} has the very vector of place {first}; so it is with {count} of {len(alike)} places that "
        "were looked at",
        cause="consistent with position ids that are clamped to the last row of a table"
        if is_clamped
        else "consistent with position ids that are taken modulo the rows of a table",
        fix=REFUSE,
        place=place,
        same_as=first,
        count=count,
        n=len(alike),
    )


def _cut_off(reached: int, length: int) -> Finding:
    return warned(
        f"of {length} numbers of a sequence only {reached} reach the first attention block",
        cause="consistent with sequences that are cut off at the length of a table or of the padding",
        fix=REFUSE,
        reached=reached,
        length=length,
    )


def _made_up(observed: Observed, longest: int, length: int, rows: int) -> Finding:
    inside, beyond = right_at(observed, longest), right_at(observed, length)
    told = f"its learned table has {rows} rows, and a sequence of {length} is answered all the same, its later "
    told += "positions having vectors of their own that no training has met"
    if inside is None or beyond is None:
        return passed(f"a sequence of {length} is refused, its table having {rows} rows", rows=rows)
    measured = f"right on {100 * inside.rate:.1f} % of {inside.n} of {longest}, "
    measured += f"and on {100 * beyond.rate:.1f} % of {beyond.n} of {length}"
    numbers = {"rows": rows, "length": length, "inside": inside.rate, "beyond": beyond.rate}
    if is_as_good(inside, beyond):
        return passed(f"{told}, and answers do without them: {measured}", **numbers)
    return warned(
        f"{told}: {measured}",
        cause="rows past the table are drawn when they are asked for, as the table was before training",
        fix=REFUSE,
        **numbers,
    )


def _places(observed: Observed, length: int) -> Places | None:
    examples = constant_sequences(observed, length, N_ROWS)
    stream = first_stream(observed, examples)
    if stream is None or len(examples) < 2:
        return None
    columns = number_columns(stream, observed.inputs(examples))
    return Places(stream[:, columns]) if int(columns.sum()) > 2 else None


def _table(observed: Observed) -> tuple[int | None, bool]:
    """Rows, where a table is found, and whether they are learned."""
    try:
        encoding = observed.model.positions().encoding_in_use().encoding
    except HeadcountError:
        return None, False
    return encoding.n_rows, learns(encoding)


PART = Check("HC502", "What becomes of positions past the end of the table?", run, asks="class", affects=LONGER)
