"""What happens at positions past the end of the position table: refused, clamped, wrapped, truncated or made up?

Report 003 believed that it clamped positions. Others did clamp, which gives all later positions one vector, or took
positions modulo the table, or truncated sequences. The check reads the vectors of a sequence that repeats one number
and is longer than the table: two places with exactly the same vector share a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from headcount.analysis.positions import learns
from headcount.auditing.audited_model import AuditedClassifier, is_kept_beyond
from headcount.auditing.check import LONGER, Check, Finding, not_applicable, passed, warned
from headcount.auditing.embeddings import (
    MIXED,
    NOT_FOUND,
    constant_sequences,
    first_stream,
    is_mixed,
    number_columns,
)
from headcount.errors import HeadcountError

N_PAST, MAX_LENGTH, LENGTH_FACTOR = 8, 1024, 16
"""Places past the table; the longest sequence that is tried; its multiple of the training length without a table."""
N_SEQUENCES = 3
"""Sequences of one number each: their vectors have to agree at shared rows."""
MAX_VECTOR_DIFFERENCE = 1e-6
"""Difference of vectors, as a fraction of the largest value, up to which they are the same row of a table."""
REFUSE = "refuse sequences longer than the table, or choose an encoding that needs no row for each position"


@dataclass(frozen=True)
class PlaceVectors:
    """Vectors [row, number, width] of sequences that repeat one number, before any attention."""

    vectors: Tensor

    def __len__(self) -> int:
        return self.vectors.shape[1]

    def others_like(self, place: int) -> list[int]:
        """Return the other places with exactly the same vectors."""
        differences = (self.vectors - self.vectors[:, place : place + 1]).abs().amax(dim=(0, 2))
        is_same = (differences <= MAX_VECTOR_DIFFERENCE * self.vectors.abs().max()).tolist()
        return [i for i, same in enumerate(is_same) if same and i != place]


def run(model: AuditedClassifier) -> Finding:
    """Look inside the training lengths, then past the table."""
    longest = model.trained_lengths[1]
    inside = _place_vectors(model, longest)
    if inside is None:
        return not_applicable(NOT_FOUND)
    if is_mixed(model, constant_sequences(model, longest, N_SEQUENCES)):
        return not_applicable(MIXED)
    shared = {place: inside.others_like(place) for place in range(len(inside))}
    if all(len(others) == len(inside) - 1 for others in shared.values()):
        return not_applicable("positions are not added to the embeddings, so there is no position table")
    if any(shared.values()):
        return _shared_rows(f"in sequences of {longest}, as in training, ", shared)
    n_rows, is_learned = _table(model)
    length = LENGTH_FACTOR * longest if n_rows is None else max(n_rows, longest) + N_PAST
    if length > MAX_LENGTH:
        where = "" if n_rows is None else f", inside its table of {n_rows:,} rows"
        return passed(f"every place of a sequence of {longest} has a vector of its own{where}", rows=n_rows)
    return _past_table(model, longest, length, n_rows, is_learned)


def _past_table(model: AuditedClassifier, longest: int, length: int, n_rows: int | None, is_learned: bool) -> Finding:
    table = "" if n_rows is None else f" (position table: {n_rows} rows)"
    try:
        places = _place_vectors(model, length)
    except HeadcountError:
        return passed(f"the model refuses a sequence of {length}{table}", rows=n_rows, length=length)
    if places is None:
        return not_applicable(NOT_FOUND)
    if len(places) < length:
        return _truncated(len(places), length)
    last = {place: places.others_like(place) for place in range(length - N_PAST, length)}
    if any(last.values()):
        return _shared_rows(f"in sequences of {length}{table}, ", last)
    if n_rows is None or not is_learned:
        return passed(f"every place of a sequence of {length} has a vector of its own", rows=n_rows, length=length)
    return _made_up_rows(model, longest, length, n_rows)


def _shared_rows(where: str, others_like: Mapping[int, Sequence[int]]) -> Finding:
    """Report places that share their vector with others."""
    place = next(place for place, others in others_like.items() if others)
    first, place = sorted((others_like[place][0], place))
    is_clamped = any(place + 1 in others or place - 1 in others for place, others in others_like.items())
    count = sum(map(bool, others_like.values()))
    return warned(
        f"{where}{count} of {len(others_like)} places share their position vector with another place: place {place} "
        f"has that of place {first}",
        cause="consistent with position ids that are clamped to the last row of a table"
        if is_clamped
        else "consistent with position ids that are taken modulo the rows of a table",
        fix=REFUSE,
        place=place,
        same_as=first,
        count=count,
        n=len(others_like),
    )


def _truncated(n_read: int, length: int) -> Finding:
    return warned(
        f"{n_read} of {length} numbers of a sequence reach the first attention block",
        cause="consistent with sequences that are truncated at the length of a table or of the padding",
        fix=REFUSE,
        reached=n_read,
        length=length,
    )


def _made_up_rows(model: AuditedClassifier, longest: int, length: int, n_rows: int) -> Finding:
    inside, beyond = model.accuracy_at(longest), model.accuracy_at(length)
    if inside is None or beyond is None:
        return passed(f"the model refuses a sequence of {length} (position table: {n_rows} rows)", rows=n_rows)
    finding = (
        f"the learned table has {n_rows} rows, and the model answers sequences of {length} with position vectors that "
        "did not occur in training"
    )
    accuracies = (
        f"{100 * inside.rate:.1f} % of {inside.n} sequences of {longest} are right, and {100 * beyond.rate:.1f} % of "
        f"{beyond.n} of {length}"
    )
    numbers = {"rows": n_rows, "length": length, "inside": inside.rate, "beyond": beyond.rate}
    if is_kept_beyond(inside, beyond):
        return passed(f"{finding}, and does not need them: {accuracies}", **numbers)
    return warned(
        f"{finding}: {accuracies}",
        cause="rows past the table are drawn at random when they are needed, as the table was before training",
        fix=REFUSE,
        **numbers,
    )


def _place_vectors(model: AuditedClassifier, length: int) -> PlaceVectors | None:
    examples = constant_sequences(model, length, N_SEQUENCES)
    stream = first_stream(model, examples)
    if stream is None or len(examples) < 2:
        return None
    columns = number_columns(stream, model.inputs(examples))
    return PlaceVectors(stream[:, columns]) if int(columns.sum()) > 2 else None


def _table(model: AuditedClassifier) -> tuple[int | None, bool]:
    """Return the number of rows if there is a position table, and whether the rows are learned."""
    try:
        encoding = model.opened.positions().encoding_in_use().encoding
    except HeadcountError:
        return None, False
    return encoding.n_rows, learns(encoding)


PART = Check("HC502", "What happens at positions past the end of the position table?", classes=run, affects=LONGER)
