"""HTML from text that may come from anywhere: nothing is markup unless it was made here."""

from __future__ import annotations

import html
import re


def escaped(text: str) -> str:
    """As text, in an element or in an attribute; letters that steer a page or the direction of text are shown."""
    shown = "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)
    return html.escape(shown, quote=True)


def inline(text: str) -> str:
    """Escaped, with `code` between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(text))


def tag(name: str, *inside: str, **attributes: str | bool | None) -> str:
    """An element; what is inside must be markup already, attributes are escaped: `class_`, `aria_label`, `hidden`."""
    told = []
    for key, value in attributes.items():
        word = key.rstrip("_").replace("_", "-")
        if value is True:
            told.append(f" {word}")
        elif value not in (None, False):
            told.append(f' {word}="{escaped(str(value))}"')
    return f"<{name}{''.join(told)}>{''.join(inside)}</{name}>"
