"""How numbers are told in sentences: with their interval and n, and what one seed cannot say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headcount.heads import HeadId
from headcount.stats import Proportion

ONE_SEED = "This is one training run: another seed may come out otherwise."


def percent(share: float, digits: int = 1) -> str:
    """Of 1, and never a round 100 that is not one.

    >>> percent(0.98765), percent(1), percent(0.99996), percent(0.00004)
    ('98.8 %', '100 %', '99.996 %', '0.004 %')
    """
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    while digits < 6 and float(f"{100 * share:.{digits}f}") in (0, 100):
        digits += 1
    return f"{100 * share:.{digits}f} %"


def share(of_one: float) -> str:
    """Of attention, to a tenth of a per cent: what is nearer to all or nothing than that is said to be.

    >>> share(0.38765), share(0.999997), share(0.00004), share(1)
    ('38.8 %', 'over 99.9 %', 'under 0.1 %', '100 %')
    """
    if of_one in (0, 1) or 0.001 <= of_one <= 0.999:
        return percent(of_one)
    return "over 99.9 %" if of_one > 0.5 else "under 0.1 %"


def rate(found: Proportion) -> str:
    """`1,998 of 2,000 (99.9 %, 95 % interval 99.6 to 100.0)`."""
    return f"{found.correct:,} of {found.n:,} ({percent(found.rate)}, {interval(found.low, found.high)})"


def interval(low: float, high: float, scale: float = 100, digits: int = 1) -> str:
    """Of 95 %.

    >>> interval(0.123, 0.456)
    '95 % interval 12.3 to 45.6'
    """
    return f"95 % interval {scale * low:.{digits}f} to {scale * high:.{digits}f}"


def amount(drop: float, unit: str) -> str:
    """In points or in the metric's own unit."""
    if unit == "points":
        points = f"{100 * drop:z.1f}"
        return f"{points} point{'' if points == '1.0' else 's'}"
    return f"{drop:.3g} {unit}".rstrip()


def some(names: Sequence[str], most: int = 6) -> str:
    """Heads or models in a row; of many, the first ones and how many more.

    >>> some(["a"]), some(["a", "b", "c"]), some(list("abcdefgh"), most=2)
    ('a', 'a, b and c', 'a, b and 6 more')
    """
    shown = list(names) if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else "none"


def short(head: str) -> str:
    """`E0H2` of a head's full name."""
    return HeadId.parse(head).short


def counted(n: int, one: str, many: str = "") -> str:
    """`1 head`, `12 heads`."""
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', '!')) else '.'}" if text else ""


def once(settings: Mapping[str, object]) -> str:
    """What a figure of one model stands for, short enough for brackets: nobody knows how models of others were drawn.

    >>> once({"seed": 3}), once({})
    ('one seed', 'one model')
    """
    return "one seed" if "seed" in settings else "one model"


def within(low: float, high: float) -> str:
    """An interval of shares, of 95 %: to as many digits as they need not to look like all or nothing.

    >>> within(0.98765, 1), within(0.0, 0.00004)
    ('95 % interval 98.8 to 100', '95 % interval 0 to 0.004')
    """
    return f"95 % interval {percent(low).removesuffix(' %')} to {percent(high).removesuffix(' %')}"


STAND_INS = {
    "zero": "Removing a head sets its output to zero.",
    "resample": "Swapping a head's output replaces it with the head's output on another example.",
    "mean": "Mean ablation replaces a head's output with its mean.",
}
"""By replacement."""


def stand_ins(replacements: Sequence[str]) -> str:
    """Say what replaces the output of an ablated head.

    >>> stand_ins(["zero"])
    'Removing a head sets its output to zero.'
    """
    return " ".join(
        STAND_INS.get(name, f"The replacement “{name}” stands for a head's output.") for name in replacements
    )


def removed_alone(replacement: str) -> str:
    """Say how a head was ablated by itself.

    >>> removed_alone("zero"), removed_alone("mean")
    ('when removed alone', 'alone by mean')
    """
    return "when removed alone" if replacement == "zero" else f"alone by {replacement}"


def briefly(text: str, settings: Mapping[str, object]) -> str:
    """For the beginning of a report: what one seed cannot say takes two words there.

    >>> briefly(f"E0H2 matters most. {ONE_SEED}", {"seed": 0})
    'E0H2 matters most (one seed).'
    """
    return f"{text.removesuffix(ONE_SEED).rstrip('. ')} ({once(settings)})."
