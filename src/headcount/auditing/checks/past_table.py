"""What happens at positions past the end of the position table: refused, clamped, wrapped, truncated or made up?

Published report 003 said that it clamped positions, but did not. Other code does clamp, which gives all later positions
the same vector, or takes positions modulo the table's length, or truncates sequences. The check reads the vectors of a
sequence that repeats one number and is longer than the table: two places with the same vector share a row.
"""

from collections.abc import Iterable

from torch import Tensor

from headcount.analysis.positions import learns
from headcount.auditing.audited_model import AuditedClassifier
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
"""Number of positions tested past the table, longest sequence and, without a table, multiple of the training length."""
N_SEQUENCES = 3
"""Number of sequences, each repeating one number; two places share a row if their vectors agree in all of them."""
MAX_VECTOR_DIFFERENCE = 1e-6
"""Two vectors count as the same row of a table if they differ by at most this fraction of the largest value."""
REFUSE = "refuse sequences longer than the table, or choose an encoding that needs no row for each position"


def run(model: AuditedClassifier) -> Finding:
    """Look for places that share a position vector, at the training lengths and past the end of the table."""
    longest = model.trained_lengths[1]
    vectors = _place_vectors(model, longest)
    if vectors is None:
        return not_applicable(NOT_FOUND)
    if is_mixed(model, constant_sequences(model, longest, N_SEQUENCES)):
        return not_applicable(MIXED)
    n_places = vectors.shape[1]
    shared = _places_alike(vectors, range(n_places))
    if all(len(others) == n_places - 1 for others in shared.values()):
        return not_applicable("positions are not added to the embeddings, so there is no position table")
    if any(shared.values()):
        return _shared_rows(f"in sequences of length {longest}, as in training, ", shared)
    n_rows, is_learned = _table(model)
    length = LENGTH_FACTOR * longest if n_rows is None else max(n_rows, longest) + N_PAST
    if length > MAX_LENGTH:
        where = "" if n_rows is None else f", inside its table of {n_rows:,} rows"
        return passed(f"every place of a sequence of length {longest} has a vector of its own{where}", rows=n_rows)
    return _past_table(model, longest, length, n_rows, is_learned)


def _past_table(model: AuditedClassifier, longest: int, length: int, n_rows: int | None, is_learned: bool) -> Finding:
    table = "" if n_rows is None else f" (position table: {n_rows} rows)"
    try:
        vectors = _place_vectors(model, length)
    except HeadcountError:
        return passed(f"the model refuses a sequence of length {length}{table}", rows=n_rows, length=length)
    if vectors is None:
        return not_applicable(NOT_FOUND)
    if (n_read := vectors.shape[1]) < length:
        return warned(
            f"only {n_read} of {length} numbers of a sequence reach the first attention block",
            cause="consistent with sequences that are truncated at the length of a table or of the padding",
            fix=REFUSE,
            reached=n_read,
            length=length,
        )
    shared = _places_alike(vectors, range(length - N_PAST, length))
    if any(shared.values()):
        return _shared_rows(f"in sequences of length {length}{table}, ", shared)
    if n_rows is None or not is_learned:
        finding = f"every place of a sequence of length {length} has a vector of its own"
        return passed(finding, rows=n_rows, length=length)
    return _made_up_rows(model, longest, length, n_rows)


def _shared_rows(where: str, shared: dict[int, list[int]]) -> Finding:
    """Return the finding for places that share their vector with other places, as `_places_alike` lists them."""
    place = next(place for place, others in shared.items() if others)
    first, place = sorted((shared[place][0], place))
    is_clamped = any(place + 1 in others or place - 1 in others for place, others in shared.items())
    count = sum(map(bool, shared.values()))
    return warned(
        f"{where}{count} of {len(shared)} positions have the same position vector as another: position "
        f"{place} has the vector of position {first}",
        cause="consistent with position ids that are clamped to the last row of a table"
        if is_clamped
        else "consistent with position ids that are taken modulo the rows of a table",
        fix=REFUSE,
        place=place,
        same_as=first,
        count=count,
        n=len(shared),
    )


def _made_up_rows(model: AuditedClassifier, longest: int, length: int, n_rows: int) -> Finding:
    """Return the finding for a model that makes up rows past its table: a warning if accuracy falls there."""
    accuracies = model.compare_lengths(longest, length)
    if accuracies is None:
        return passed(f"the model refuses a sequence of length {length} (position table: {n_rows} rows)", rows=n_rows)
    finding = (
        f"the learned table has {n_rows} rows, and the model answers sequences of length {length} with position "
        "vectors that did not occur in training"
    )
    numbers = {"rows": n_rows, "length": length, **accuracies.shares}
    if accuracies.is_kept:
        return passed(f"{finding}, but accuracy does not depend on these: {accuracies}", **numbers)
    return warned(
        f"{finding}: {accuracies}",
        cause="the model draws position vectors past the end of its table at random when they are needed, as it drew "
        "the table before training",
        fix=REFUSE,
        **numbers,
    )


def _place_vectors(model: AuditedClassifier, length: int) -> Tensor | None:
    """Return the vectors [row, place, width] of sequences that repeat one number, before any attention."""
    examples = constant_sequences(model, length, N_SEQUENCES)
    stream = first_stream(model, examples)
    if stream is None or len(examples) < 2:
        return None
    columns = number_columns(stream, model.inputs(examples))
    return stream[:, columns] if int(columns.sum()) > 2 else None


def _places_alike(vectors: Tensor, places: Iterable[int]) -> dict[int, list[int]]:
    """Return, for each of these places, the list of all other places that have the same vectors."""
    alike = {}
    for place in places:
        differences = (vectors - vectors[:, place : place + 1]).abs().amax(dim=(0, 2))
        is_same = differences <= MAX_VECTOR_DIFFERENCE * vectors.abs().max()
        alike[place] = [other for other in is_same.nonzero().flatten().tolist() if other != place]
    return alike


def _table(model: AuditedClassifier) -> tuple[int | None, bool]:
    """Return the number of rows of the position table (None if there is none), and whether the rows are learned."""
    try:
        encoding = model.opened.encoding_in_use().encoding
    except HeadcountError:
        return None, False
    return encoding.n_rows, learns(encoding)


PART = Check("HC502", "What happens at positions past the end of the position table?", classes=run, affects=LONGER)
