"""Format numbers for all texts: `98.8 %`, and never `100 %` for a number that is a little less."""

MOST_DIGITS = 6
"""Largest number of decimals that `number` prints to keep a value apart from exactly 0 or 100."""


def number(value: float, digits: int = 1) -> str:
    """Format a number with `digits` decimals, or with more if it would otherwise look like exactly 0 or 100.

    >>> number(98.765), number(100), number(99.996), number(0.004), number(-0.01)
    ('98.8', '100', '99.996', '0.004', '-0.01')
    """
    if value in (0, 100):
        return f"{value:.0f}"
    while digits < MOST_DIGITS and float(f"{value:.{digits}f}") in (0, 100):
        digits += 1
    return f"{value:z.{digits}f}"


def fixed(value: float, digits: int = 1) -> str:
    """Format a number for a table column, with `digits` decimals.

    A number below 100 that would be rounded to 100 gets more decimals.

    >>> fixed(98.765), fixed(100), fixed(99.96), fixed(0.004)
    ('98.8', '100.0', '99.96', '0.0')
    """
    text = f"{value:z.{digits}f}"
    return number(value, digits) if value < 100 == float(text) else text


def percent(rate: float, digits: int = 1) -> str:
    """Format a rate between 0 and 1 in percent; only exactly 0 and 1 become `0 %` and `100 %`.

    >>> percent(0.98765), percent(1), percent(0.99996), percent(0.00004)
    ('98.8 %', '100 %', '99.996 %', '0.004 %')
    """
    return f"{number(100 * rate, digits)} %"
