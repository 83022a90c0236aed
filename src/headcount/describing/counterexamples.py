"""Is there an example that the model answers wrong? What a search for counterexamples says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Commands, Conclusions, Sentence
from headcount.describing.certificate import SHOWN, wrong_tables
from headcount.describing.words import counted
from headcount.errors import argument

if TYPE_CHECKING:
    from headcount.analysis.counterexamples import CounterexampleSearch
    from headcount.training.evaluation import WrongAnswer


def describe(search: CounterexampleSearch) -> list[Block]:
    """Return the verdict, how the search went, the wrong answers and a command that shows the first of them."""
    sentences = [Sentence(verdict(search)), *reasons(search)]
    tables = wrong_tables("wrong", search.wrong, "Wrong answers", SHOWN, len(search.wrong))
    commands = [
        " ".join(["headcount predict", argument(search.name), argument(each.example)]) for each in search.wrong[:1]
    ]
    return [Conclusions(tuple(sentences)), *tables, *([Commands(tuple(commands), "See it")] if commands else [])]


def reasons(search: CounterexampleSearch, rests_on: str = "") -> list[Sentence]:
    """Say how the search went, and why there is no proof."""
    texts = [_effort(search)]
    if search.why_not_proved:
        texts.append(f"This is a search, not a proof, because {search.why_not_proved.rstrip('.')}.")
    return [Sentence(text, rests_on) for text in texts]


def verdict(search: CounterexampleSearch, title: str = "") -> str:
    """Return one sentence: the shortest example that is answered wrong, or that none was found."""
    tried = counted(search.n_tried, search.noun, search.plural)
    if not search.wrong:
        return f"Not refuted: no wrong answer among {tried} tried, which proves nothing."
    n_wrong = counted(len(search.wrong), "wrong answer")
    stopped = ", where the search stopped" if len(search.wrong) == search.stopped_at else ""
    mistake = _mistake(search.wrong[0], title or search.name, search.output_type)
    return f"Refuted: {mistake} ({n_wrong} found among {tried} tried{stopped})."


def _mistake(wrong: WrongAnswer, title: str, output_type: str) -> str:
    if output_type == "class":
        return f"{title} calls {wrong.example} {wrong.predicted}, and it is {wrong.right}"
    return f"{title} answers {wrong.example} with {wrong.predicted or 'nothing'}, and {wrong.right} is right"


def _effort(search: CounterexampleSearch) -> str:
    """Say how many examples were chosen in which way, how long it took, and how small the smallest margin is."""
    others = search.n_tried - search.n_families
    ways = {"with patterns on which models often err": search.n_families}
    ways["drawn as in training or changed step by step towards smaller margins"] = others
    numbers = {way: counted(n, search.noun, search.plural) for way, n in ways.items() if n}
    tried = " and ".join(f"{number} {way}" for way, number in numbers.items())
    text = f"The search took {search.seconds:.1f} s and tried {tried or 'nothing'}."
    if search.least_margin is None:
        return text
    return f"{text} The smallest margin of a right answer over its best rival is {search.least_margin:.2f} logits."
