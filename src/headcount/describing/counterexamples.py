"""Is there an example that the model answers wrong? Sentences on a search for counterexamples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Sentence
from headcount.describing.words import counted, sentence
from headcount.describing.wrong_answers import mistake

if TYPE_CHECKING:
    from headcount.analysis.counterexamples import CounterexampleSearch
    from headcount.training.evaluation import WrongAnswer


def conclusions(search: CounterexampleSearch, title: str, rests_on: str = "") -> list[Sentence]:
    """Return sentences on the verdict, on which and how many examples were tried, and on why there is no proof."""
    texts = [_verdict(search, title), _effort(search)]
    if search.why_not_proved:
        texts.append(f"This is a search, not a proof. {sentence(search.why_not_proved)}")
    return [Sentence(text, rests_on) for text in texts]


def details(search: CounterexampleSearch) -> list[Block]:
    """Return an empty list, because a search is described by sentences alone, without tables or figures."""
    return []


def clearest(search: CounterexampleSearch) -> WrongAnswer:
    """Return the shortest example that is answered wrong."""
    return search.wrong[0]


def _verdict(search: CounterexampleSearch, title: str) -> str:
    tried = counted(search.n_tried, search.noun, search.plural)
    if not search.wrong:
        return f"Not refuted: {title} is right on all {tried} that were tried, which proves nothing about others."
    n_wrong = counted(len(search.wrong), "wrong answer")
    stopped = f"; the search stops after {search.stopped_at}" if len(search.wrong) == search.stopped_at else ""
    wrong = mistake(clearest(search), title, search.output_type)
    return f"Refuted: {wrong} ({n_wrong} found among {tried} tried{stopped})."


def _effort(search: CounterexampleSearch) -> str:
    """Return sentences on how examples were chosen, how long the search took, and the smallest margin."""
    others = search.n_tried - search.n_families
    ways = {"with patterns on which models often err": search.n_families}
    ways["that were drawn as in training or changed step by step to reduce the margin"] = others
    numbers = {way: counted(n, search.noun, search.plural) for way, n in ways.items() if n}
    tried = " and ".join(f"{number} {way}" for way, number in numbers.items())
    text = f"The search took {search.seconds:.1f} s and tried {tried or 'nothing'}."
    if search.wrong or search.least_margin is None:
        return text
    lead = "The smallest lead of a right answer over the next most likely answer"
    return f"{text} {lead} is {search.least_margin:.2f} logits."
