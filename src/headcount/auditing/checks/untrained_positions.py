"""Does a learned position table have untrained rows, and do answers need them?

Report 003 said that its clamp collapses long sequences onto position 15. Its table had 300 rows, so the clamp never
acted, and positions from 16 on kept their random initial vectors. The check finds the table in the model. The training
lengths are those of the run, or of the adapter's `trained`.
"""

from headcount.analysis.positions import learns
from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel, is_kept_beyond
from headcount.auditing.check import LONGER, Check, Finding, not_applicable, passed, warned
from headcount.errors import HeadcountError


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Compare the table with the sequences of the task, which are no longer than in training."""
    table = _learned_table(model)
    if isinstance(table, Finding):
        return table
    n_rows, n_trained = table
    if n_rows <= n_trained:
        return _all_trained(n_rows, n_trained)
    return passed(f"no sequence of this task needs more than the {n_trained} trained rows of {n_rows}")


def check_classes(model: AuditedClassifier) -> Finding:
    """Compare accuracy inside the training lengths with accuracy where untrained rows are needed."""
    table = _learned_table(model)
    if isinstance(table, Finding):
        return table
    if model.opened.trained is None:
        return not_applicable("the training lengths are not known: set them in the adapter, trained = (8, 16)")
    (n_rows, n_trained), longest = table, model.opened.trained[1]
    if n_rows <= n_trained:
        return _all_trained(n_rows, n_trained)
    longer = min(2 * longest, longest + n_rows - n_trained)
    finding = f"rows {n_trained} to {n_rows - 1} of the position table were never trained"
    inside, beyond = model.accuracy_at(longest), model.accuracy_at(longer)
    if beyond is None or inside is None:
        return passed(f"{finding}, but the model refuses sequences of {longer}", rows=n_rows, trained=n_trained)
    accuracies = (
        f"{100 * inside.rate:.1f} % of {inside.n} sequences of {longest} are right, and {100 * beyond.rate:.1f} % of "
        f"{beyond.n} of {longer}"
    )
    numbers = {"rows": n_rows, "trained": n_trained, "inside": inside.rate, "beyond": beyond.rate}
    if is_kept_beyond(inside, beyond):
        return passed(f"{finding}, and answers do not need them: {accuracies}", **numbers)
    return warned(
        f"{finding}, so sequences longer than {longest} have random position vectors: {accuracies}",
        cause=f"the table has {n_rows} rows, and training sequences have up to {longest} numbers: a clamp at the end "
        "of the table does not act before that",
        fix=f"make the table as long as training sequences ({n_trained} rows) and refuse longer ones, or choose an "
        "encoding that needs no row for each position",
        **numbers,
    )


def _learned_table(model: AuditedModel) -> tuple[int, int] | Finding:
    """Return the rows of the learned table, and how many were trained; a finding if there is no such table."""
    try:
        in_use = model.opened.positions().encoding_in_use()
    except HeadcountError as error:
        return not_applicable(error.what)
    if in_use.encoding.n_rows is None or not learns(in_use.encoding):
        return not_applicable("positions are not learned, so there are no rows to train")
    return in_use.encoding.n_rows, in_use.n_trained


def _all_trained(n_rows: int, n_trained: int) -> Finding:
    return passed(f"all {n_rows} rows of the position table were trained", rows=n_rows, trained=n_trained)


PART = Check(
    "HC501",
    "Does a learned position table have untrained rows, and do answers need them?",
    sequences=check_sequences,
    classes=check_classes,
    affects=LONGER,
)
