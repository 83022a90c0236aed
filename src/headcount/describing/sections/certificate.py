"""Is every answer right? Not only on a test set: on every example of the task, each checked once."""

from __future__ import annotations

from headcount.describing.blocks import Block, Conclusions, Notice, Paragraph, Section, Sentence
from headcount.describing.certificate import checked_table, conclusions, verdict, wrong_tables
from headcount.describing.evaluation import main_share
from headcount.describing.story import Material, Subject
from headcount.describing.words import some
from headcount.errors import argument
from headcount.stats import Proportion

TABLE = "certificate-checked"
SHOWN = 50
"""Wrong answers listed; the result file has all of them."""


def section(material: Material) -> Section | None:
    """Describe every model that was checked on all examples."""
    checked = [(each, each.certificate) for each in material.subjects if each.certificate is not None]
    if not checked:
        return None
    blocks: list[Block] = [
        Paragraph(
            "A test set is a sample. Here every example of the task was checked, so shares have no interval. One "
            "forward pass decides whether an answer is right. Some answers are also decoded token by token: if one of "
            "these had another verdict, there would be no certificate."
        )
    ]
    for subject, certificate in checked:
        blocks += [Notice("fail", f"{subject.title}: {certificate.audit}.")] if certificate.audit else []
        blocks.append(Conclusions(tuple(conclusions(certificate, subject.title, TABLE, _tested(subject)))))
    command = "; ".join(f"headcount verify {argument(subject.name)}" for subject, _ in checked)
    blocks.append(checked_table([(subject.title, certificate) for subject, certificate in checked], TABLE, command))
    for subject, certificate in checked:
        name, caption = f"{material.block_id('certificate', subject)}-wrong", f"Wrong answers of {subject.title}"
        blocks += wrong_tables(name, certificate.wrong, caption, SHOWN, certificate.errors)
    if len(checked) == 1:
        (subject, certificate), *_ = checked
        answer = verdict(certificate, subject.title, TABLE, _tested(subject))
    else:
        right = [subject.title for subject, certificate in checked if not certificate.errors]
        wrong = [f"{subject.title} ({each.errors:,} of {each.distinct:,})" for subject, each in checked if each.errors]
        text = f"{len(right)} of {len(checked)} models are right on every example of their task"
        text += f": {some(right)}" if right else ""
        answer = Sentence(f"{text}. Models with errors: {some(wrong)}." if wrong else f"{text}.", TABLE)
    return Section("certificate", "Is every answer right?", tuple(blocks), answer)


def _tested(subject: Subject) -> Proportion | None:
    return None if subject.evaluation is None else main_share(subject.evaluation)


PART = section
