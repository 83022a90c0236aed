"""Write numbers and lists of names as text: percentages, 95 % intervals, amounts, counts.

All descriptions of results use these functions, so that a number looks the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from headcount.describing.blocks import Cell
from headcount.formatting import fixed
from headcount.formatting import number as number  # descriptions import all functions that write numbers from here
from headcount.formatting import percent as percent
from headcount.heads import HeadId
from headcount.stats import Proportion

ONE_SEED = "This is one training run: another seed may give another result."


# --- percentages and intervals ----------------------------------------------------------------------------------------


def interval(low: float, high: float, scale: float = 100, digits: int = 1) -> str:
    """Return a 95 % confidence interval as text, by default in percent or points.

    >>> interval(0.123, 0.456), interval(0.98765, 1), interval(-0.002, 0.004), interval(1.2, 1.3, scale=1, digits=3)
    ('95 % CI 12.3-45.6', '95 % CI 98.8-100', '95 % CI -0.2 to 0.4', '95 % CI 1.200-1.300')
    """
    return f"95 % CI {number(scale * low, digits)}{'-' if low >= 0 else ' to '}{number(scale * high, digits)}"


def bracketed(value: float, low: float, high: float, scale: float = 100, digits: int = 1) -> str:
    """Return an estimate with its 95 % interval in brackets, short enough for a table cell.

    >>> bracketed(0.166, 0.1499, 0.183, digits=2), bracketed(1.5, 1.4, 1.6, scale=1, digits=3)
    ('16.60 [14.99, 18.30]', '1.500 [1.400, 1.600]')
    >>> bracketed(0.9995, 0.9972, 0.99997)
    '99.95 [99.7, 99.997]'
    """
    middle, lower, upper = (fixed(scale * each, digits) for each in (value, low, high))
    return f"{middle} [{lower}, {upper}]"


def interval_cell(
    value: float,
    low: float,
    high: float,
    *,
    scale: float = 100,
    digits: int = 1,
    mark: Literal["", "strong", "weak"] = "",
) -> Cell:
    """Return a table cell with an estimate and its 95 % interval; tables are sorted by the estimate.

    >>> interval_cell(0.166, 0.1499, 0.183, mark="strong")
    Cell(text='16.6 [15.0, 18.3]', value=16.6..., mark='strong')
    """
    return Cell(bracketed(value, low, high, scale, digits), scale * value, mark)


def plus_minus(mean: float, half: float, scale: float = 100, digits: int = 1) -> str:
    """Return a mean with half the width of its 95 % interval, as text.

    >>> plus_minus(0.381, 0.0123)
    '38.1 ± 1.2'
    """
    return f"{scale * mean:z.{digits}f} ± {scale * half:.{digits}f}"


def rate(proportion: Proportion) -> str:
    """Return a proportion as counts and in percent, with its 95 % CI.

    >>> rate(Proportion.of(1998, 2000))
    '1,998 of 2,000 (99.9 %, 95 % CI 99.6-99.98)'
    """
    doubt = interval(proportion.low, proportion.high)
    return f"{proportion.correct:,} of {proportion.n:,} ({percent(proportion.rate)}, {doubt})"


def share(of_one: float) -> str:
    """Return a share of attention in percent with one decimal, or `over 99.9 %` or `under 0.1 %` near the ends.

    >>> share(0.38765), share(0.999997), share(0.00004), share(1)
    ('38.8 %', 'over 99.9 %', 'under 0.1 %', '100 %')
    """
    if of_one in (0, 1) or 0.001 <= of_one <= 0.999:
        return percent(of_one)
    return "over 99.9 %" if of_one > 0.5 else "under 0.1 %"


# --- drops, in points or in the metric's unit -------------------------------------------------------------------------


def amount(drop: float, unit: str) -> str:
    """Return a drop with its unit: in points for an accuracy, otherwise in the metric's own unit.

    >>> amount(0.745, "points"), amount(0.01, "points"), amount(0.0123, "nats")
    ('74.5 points', '1.0 point', '0.0123 nats')
    """
    if unit == "points":
        points = f"{100 * drop:z.1f}"
        return f"{points} point{'' if points == '1.0' else 's'}"
    return f"{drop:.3g} {unit}".rstrip()


def amount_interval(low: float, high: float, unit: str) -> str:
    """Return the 95 % interval of a drop as text, in points or in the metric's own unit.

    >>> amount_interval(0.74, 0.75, "points"), amount_interval(0.011, 0.0135, "nats")
    ('95 % CI 74.0-75.0', '95 % CI 0.0110-0.0135')
    """
    return interval(low, high) if unit == "points" else interval(low, high, scale=1, digits=4)


def amount_cell(
    drop: float, low: float, high: float, unit: str, mark: Literal["", "strong", "weak"] = "", digits: int = 2
) -> Cell:
    """Return a table cell with a drop and its 95 % interval, in points or in the metric's own unit.

    >>> amount_cell(0.166, 0.1499, 0.183, "points").text, amount_cell(0.5, 0.4, 0.6, "nats").text
    ('16.60 [14.99, 18.30]', '0.5000 [0.4000, 0.6000]')
    """
    scale, digits = (100, digits) if unit == "points" else (1, digits + 2)
    return interval_cell(drop, low, high, scale=scale, digits=digits, mark=mark)


# --- names and counts -------------------------------------------------------------------------------------------------


def some(names: Sequence[str], most: int = 6) -> str:
    """Return names as a list in words; if there are more than `most`, the first ones and the number of the others.

    >>> some(["a"]), some(["a", "b", "c"]), some(list("abcdefgh"), most=2), some([])
    ('a', 'a, b and c', 'a, b and 6 more', 'none')
    """
    shown = list(names) if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else "none"


def short(head: str) -> str:
    """Return the short name of a head, such as `E0H2`, for its long name.

    >>> short("encoder.0.self.2")
    'E0H2'
    """
    return HeadId.parse(head).short


def counted(n: int, one: str, many: str = "") -> str:
    """Return a number with its noun in the singular or the plural.

    >>> counted(1, "head"), counted(1200, "head"), counted(2, "class", "classes")
    ('1 head', '1,200 heads', '2 classes')
    """
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"


def fraction(n: int, total: int, noun: str = "head") -> str:
    """Return a count with its total and the percentage.

    >>> fraction(11, 24)
    '11 of 24 heads (45.8 %)'
    """
    return f"{n:,} of {counted(total, noun)} ({percent(n / total)})"


def sentence(text: str) -> str:
    """Return the text with a capital letter at the beginning and a full stop at the end.

    >>> sentence("no head stands out")
    'No head stands out.'
    """
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', '!')) else '.'}" if text else ""


# --- what one model stands for ----------------------------------------------------------------------------------------


def once(settings: Mapping[str, object]) -> str:
    """Return `one seed` for a model that has a seed among its settings, and `one model` for other models.

    >>> once({"seed": 3}), once({})
    ('one seed', 'one model')
    """
    return "one seed" if "seed" in settings else "one model"


def briefly(text: str, settings: Mapping[str, object]) -> str:
    """Return the text with its final sentence `ONE_SEED` replaced by `(one seed)` or, without a seed, `(one model)`.

    The first screen of a report uses this shorter form.

    >>> briefly(f"E0H2 matters most. {ONE_SEED}", {"seed": 0})
    'E0H2 matters most (one seed).'
    """
    return f"{text.removesuffix(ONE_SEED).rstrip('. ')} ({once(settings)})."


# --- replacements -----------------------------------------------------------------------------------------------------

REPLACEMENT_WORDS = {
    "zero": "Zero ablation sets a head's output to zero.",
    "resample": "Resample ablation replaces a head's output with the head's output on another example.",
    "mean": "Mean ablation replaces a head's output with its mean.",
}
"""Maps each kind of ablation to a sentence on what it does to the output of a head."""


def stand_ins(replacements: Sequence[str]) -> str:
    """Return sentences on what these kinds of ablation do to the output of a head.

    >>> stand_ins(["zero"])
    "Zero ablation sets a head's output to zero."
    """
    return " ".join(
        REPLACEMENT_WORDS.get(name, f"Ablation by “{name}” replaces a head's output.") for name in replacements
    )


def removed_alone(replacement: str) -> str:
    """Return the phrase for ablating one head at a time with this replacement.

    >>> removed_alone("zero"), removed_alone("mean")
    ('when removed alone', 'alone under mean ablation')
    """
    return "when removed alone" if replacement == "zero" else f"alone under {replacement} ablation"
