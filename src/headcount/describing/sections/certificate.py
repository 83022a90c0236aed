"""Is every answer right? Not only on a test set: on every example of the task, each checked once."""

from __future__ import annotations

from headcount.describing.blocks import Block, Conclusions, Notice, Paragraph, Section, Sentence
from headcount.describing.certificate import checked_table, conclusions, verdict, wrong_tables
from headcount.describing.evaluation import main_share
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import some
from headcount.errors import argument
from headcount.stats import Proportion

TABLE = "certificate-checked"
SHOWN = 50
"""Wrong answers listed; the result file has all of them."""


def section(results: ReportResults) -> Section | None:
    """Describe every model that was checked on all examples."""
    checked = [(each, each.certificate) for each in results.models if each.certificate is not None]
    if not checked:
        return None
    blocks: list[Block] = [
        Paragraph(
            "A test set is a sample. Here every example of the task was checked, so shares have no interval. One "
            "forward pass decides whether an answer is right. Some answers are also decoded token by token: if one of "
            "these had another verdict, there would be no certificate."
        )
    ]
    for model, certificate in checked:
        blocks += [Notice("fail", f"{model.title}: {certificate.audit}.")] if certificate.audit else []
        blocks.append(Conclusions(tuple(conclusions(certificate, model.title, TABLE, _tested(model)))))
    command = "; ".join(f"headcount verify {argument(model.name)}" for model, _ in checked)
    blocks.append(checked_table([(model.title, certificate) for model, certificate in checked], TABLE, command))
    for model, certificate in checked:
        name, caption = f"{results.block_id('certificate', model)}-wrong", f"Wrong answers of {model.title}"
        blocks += wrong_tables(name, certificate.wrong, caption, SHOWN, certificate.errors)
    if len(checked) == 1:
        (model, certificate), *_ = checked
        answer = verdict(certificate, model.title, TABLE, _tested(model))
    else:
        right = [model.title for model, certificate in checked if not certificate.errors]
        wrong = [f"{model.title} ({each.errors:,} of {each.distinct:,})" for model, each in checked if each.errors]
        text = f"{len(right)} of {len(checked)} models are right on every example of their task"
        text += f": {some(right)}" if right else ""
        answer = Sentence(f"{text}. Models with errors: {some(wrong)}." if wrong else f"{text}.", TABLE)
    return Section("certificate", "Is every answer right?", tuple(blocks), answer)


def _tested(model: ModelResults) -> Proportion | None:
    return None if model.evaluation is None else main_share(model.evaluation)


PART = section
