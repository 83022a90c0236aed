"""Does a learned position table have untrained rows, and do answers need them?

Published report 003 said that clamping maps all later positions of long sequences to position 15. But its table had 300
rows, so nothing was clamped, and positions from 16 on had their random initial vectors. The check finds the table in
the model. The training lengths are those of the run, or the adapter's `trained`.
"""

from headcount.analysis.positions import learns
from headcount.auditing.audited_model import AuditedClassifier, AuditedModel
from headcount.auditing.check import LONGER, Check, Finding, not_applicable, passed, warned
from headcount.errors import HeadcountError


def run(model: AuditedModel) -> Finding:
    """Look for untrained rows in a learned position table, and check whether longer sequences need them."""
    try:
        in_use = model.opened.encoding_in_use()
    except HeadcountError as error:
        return not_applicable(error.what)
    n_rows, n_trained, trained = in_use.encoding.n_rows, in_use.n_trained, model.opened.trained
    if n_rows is None or not learns(in_use.encoding):
        return not_applicable("positions are not learned, so there are no rows to train")
    if isinstance(model, AuditedClassifier) and trained is None:
        return not_applicable(
            "the training lengths are not known: set them in the headcount.Adapter class: trained = (8, 16)"
        )
    if n_rows <= n_trained:
        return passed(f"all {n_rows} rows of the position table were trained", rows=n_rows, trained=n_trained)
    if isinstance(model, AuditedClassifier) and trained is not None:
        return _compare(model, n_rows, n_trained, longest=trained[1])
    return passed(f"{n_trained} of {n_rows} rows of the position table are trained, and no sequence needs more")


def _compare(model: AuditedClassifier, n_rows: int, n_trained: int, longest: int) -> Finding:
    """Compare accuracy at the longest training length with accuracy where untrained rows are needed."""
    longer = min(2 * longest, longest + n_rows - n_trained)
    finding = f"rows {n_trained} to {n_rows - 1} of the position table were never trained"
    accuracies = model.compare_lengths(longest, longer)
    if accuracies is None:
        return passed(f"{finding}, but the model refuses sequences of length {longer}", rows=n_rows, trained=n_trained)
    numbers = {"rows": n_rows, "trained": n_trained, **accuracies.shares}
    if accuracies.is_kept:
        return passed(f"{finding}, but accuracy does not depend on them: {accuracies}", **numbers)
    return warned(
        f"{finding}, so sequences longer than {longest} have random position vectors: {accuracies}",
        cause=f"the table has {n_rows} rows, but training sequences have at most {longest} numbers; clamping positions "
        "to the last row does not help, because that row was not trained either",
        fix=f"make the table as long as training sequences ({n_trained} rows) and refuse longer ones, or choose an "
        "encoding that needs no row for each position",
        **numbers,
    )


PART = Check(
    "HC501",
    "Does a learned position table have untrained rows, and do answers need them?",
    sequences=run,
    classes=run,
    affects=LONGER,
)
