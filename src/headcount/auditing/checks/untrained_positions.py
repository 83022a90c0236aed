"""Are there rows of a learned position table that were never trained, and do answers need them?

Report 003 said that its clamp collapses long sequences onto position 15; its table had 300 rows, so the clamp never
fired, and positions from 16 on were random vectors as they were drawn. The table is found in the model, the trained
lengths are those of the run or what the adapter says in `trained`.
"""

from headcount.analysis.positions import learns
from headcount.auditing.check import LONGER, Check, Finding, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.auditing.standing import is_as_good, right_at
from headcount.encodings.base import EncodingInUse
from headcount.errors import HeadcountError


def run(observed: Observed) -> Finding:
    """Rows of the table, those that training met, and what happens where others are met."""
    try:
        found = observed.model.positions().encoding_in_use()
    except HeadcountError as error:
        return not_applicable(error.what)
    rows, trained = found.encoding.n_rows, found.n_trained
    if rows is None or not learns(found.encoding):
        return not_applicable("its positions are not learned, so that no row of them has to be trained")
    if observed.task.output_type == "class" and observed.model.trained is None:
        return not_applicable("which lengths it was trained on is not known: say so in the adapter, trained = (8, 16)")
    if rows <= trained:
        return passed(f"all {rows} rows of its table were trained", rows=rows, trained=trained)
    if observed.task.output_type == "sequence":
        return passed(f"of {rows} rows of its table, no sequence of this task meets more than the {trained} trained")
    return _beyond(observed, found, rows)


def _beyond(observed: Observed, found: EncodingInUse, rows: int) -> Finding:
    """At up to twice the longest trained length."""
    assert observed.model.trained is not None, "asked before"
    longest, trained = observed.model.trained[1], found.n_trained
    longer = min(2 * longest, longest + rows - trained)
    told = f"rows {trained} to {rows - 1} of its position table were never trained"
    inside, beyond = right_at(observed, longest), right_at(observed, longer)
    if beyond is None or inside is None:
        return passed(f"{told}, but sequences of {longer} are refused", rows=rows, trained=trained)
    measured = f"it is right on {100 * inside.rate:.1f} % of {inside.n} sequences of {longest}, and on "
    measured += f"{100 * beyond.rate:.1f} % of {beyond.n} of {longer}"
    numbers = {"rows": rows, "trained": trained, "inside": inside.rate, "beyond": beyond.rate}
    if is_as_good(inside, beyond):
        return passed(f"{told}, and answers do without them: {measured}", **numbers)
    return warned(
        f"{told}, so that sequences longer than {longest} meet random vectors: {measured}",
        cause=f"a table of {rows} rows, and training on sequences of up to {longest}: a clamp at the end of the table "
        "never acts before it",
        fix=f"make the table as long as training sequences ({trained} rows) and refuse longer ones, or choose an "
        "encoding that needs no row for each position",
        **numbers,
    )


PART = Check("HC501", "Are there rows of a learned position table that were never trained?", run, affects=LONGER)
