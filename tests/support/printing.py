"""Blocks as a terminal of a given width prints them."""

from __future__ import annotations

import io

from headcount.describing.blocks import Block
from headcount.rendering.progress import Terminal
from headcount.rendering.terminal import terminal_lines


def printed(*blocks: Block, width: int = 140) -> str:
    out = io.StringIO()
    console = Terminal(file=out, width=width)
    for line in terminal_lines(blocks):
        console.print(line)
    return out.getvalue()
