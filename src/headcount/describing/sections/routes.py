"""Where does the carry travel? Which heads move such an event of the task, and which residual streams hold it."""

from __future__ import annotations

from headcount.describing.blocks import Block, Conclusions, Notice, Paragraph, Picture, Section, Sentence
from headcount.describing.report import ReportResults
from headcount.describing.routes import conclusions, tables
from headcount.errors import argument
from headcount.figures.routes import draw_routes

FIGURE = "routes-map"


def section(results: ReportResults) -> Section | None:
    """Return the section on how the event (a carry) moves through each model, or None if it was not measured."""
    followed = [(each, each.routes) for each in results.models if each.routes is not None]
    if not followed:
        return None
    event = followed[0][1].event
    blocks: list[Block] = [
        Paragraph(
            "The method is patching. Four examples differ in one token, which rises in three equal steps, and only the "
            f"middle step makes a {event}. The output of a head on the example with the {event} replaces its output on "
            "the example without it. The logit gap is how far the logits of the two answers differ. A head moves 100 % "
            f"of the gap if the answer changes as if the {event} were there. The first and the last step change the "
            f"token but not the {event}; patches between these examples are placebos, which should move nothing. "
            "Patching shows causes: what the model uses, not only what its heads attend to."
        )
    ]
    answers: list[Sentence] = []
    for model, result in followed:
        prefix = f"{results.block_id('routes', model)}-"
        sentences = conclusions(result, model.title, f"{prefix}heads")
        answers += sentences[:1] if result.heads else []
        blocks += [Notice("fail", f"{model.title}: {result.audit}.")] if result.audit else []
        blocks.append(Conclusions(tuple(sentences)))
    measured = [(model, result) for model, result in followed if result.heads]
    if measured:
        shown, titles = [result for _, result in measured], [model.title for model, _ in measured]
        command = f"headcount routes {' '.join(argument(model.name) for model, _ in measured)}"
        alt = " ".join(sentence.text for sentence in answers)
        blocks.append(Picture(FIGURE, f"Where the {event} travels", alt, lambda: draw_routes(shown, titles), command))
    for model, result in followed:
        blocks += tables(result, model.title, f"{results.block_id('routes', model)}-")
    return Section("routes", f"Where does the {event} travel?", tuple(blocks), answers[0] if answers else None)


PART = section
