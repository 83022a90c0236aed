"""Prepare the measurement of a claim that heads carry an event of the task, such as "E0H2 carries-the-carry 10s".

The claim needs examples that differ in the event alone. In some models, the architecture alone decides the claim.
"""

from __future__ import annotations

from typing import cast

from headcount.analysis.routes import require_event
from headcount.claims.base import ClaimCase
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.suggestions import suggestion
from headcount.tasks.base import Quartets, SequenceTask


def way_into(case: ClaimCase, n: int) -> Quartets:
    """Return the quartets (sets of four examples that differ in one event, such as a carry) for a claim.

    The claim names a place of the answer, such as `10s`, to which the event comes from the place before it, or two
    places, such as `1s>100s`: where the event arises and where it changes the answer.
    """
    task, event = require_event(case.model), case.claim.event
    assert task.words.event is not None, "require_event has checked this"
    if task.words.event.name != event:
        raise InputError(
            f"the task {task.name} has no {event} that a head could carry",
            f"write carries-the-{task.words.event.name} instead",
        )
    quartets = case.once(("quartets", n, case.seed), lambda: task.quartets(stream(case.seed, "quartets"), n))
    ways = {f"{each.source}>{each.read}": each for each in quartets}
    ways |= {each.read: each for each in quartets if each.chain == 1}
    place = case.claim.objects[0]
    if place not in ways:
        raise InputError(
            f"the answer has no {task.words.place} {place!r} that receives a {event}", suggestion(place, ways)
        )
    if not len(ways[place]):
        raise InputError(
            f"the task of {case.model.name} has no examples with a {event} into the {place}",
            f"choose another {task.words.place}, or a model whose task has such examples",
        )
    return ways[place]


def construction(case: ClaimCase, quartets: Quartets) -> tuple[str, bool, str]:
    """Say whether the architecture alone decides a claim that heads carry an event: return (why, is_true, note).

    `why` gives the reason, empty if the architecture does not decide; `is_true` says how it decides; `note` is a
    remark. In the first layer, decoder self-attention sees only the tokens written so far, which may not depend on the
    event. In later layers, it also sees what cross-attention has read, so the order of writing is only noted.
    """
    labels = [each.label for each in cast(SequenceTask, case.model.answers.task).answer_positions]
    places = [next((i for i, label in enumerate(labels) if name in label.split()), -1) for name in _ends(quartets)]
    if -1 in places or places[0] < places[1]:  # the answer before the place that is read may depend on the event
        return "", False, ""
    unread = f"the {quartets.read} are written before the {quartets.source}"
    crossing = {head for site in case.model.sites.values() for head in site.heads if head.site.kind == "cross"}
    if crossing and crossing <= set(case.heads):
        why = f"{unread}, so that the decoder gets the {case.claim.event} through these heads alone"
        return f"{why}, and they move all of it", True, ""
    sites = {head.site for head in case.heads}
    if any((site.stack, site.kind) != ("decoder", "self") for site in sites):
        return "", False, ""
    if all(site.layer == 0 for site in sites):
        return f"{unread}, so these heads see nothing that the {case.claim.event} changes", False, ""
    return "", False, f"Besides, {unread}, so no head can read the {case.claim.event} off the written answer."


def _ends(quartets: Quartets) -> tuple[str, str]:
    return quartets.source, quartets.read
