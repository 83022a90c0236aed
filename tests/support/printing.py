"""Blocks as a terminal of a given width prints them."""

from __future__ import annotations

import io

from headcount.describing.blocks import Block
from headcount.rendering.progress import Terminal
from headcount.rendering.terminal import block_lines


def printed(*blocks: Block, width: int = 140) -> str:
    out = io.StringIO()
    console = Terminal(file=out, width=width)
    for block in blocks:
        for line in block_lines(block):
            console.print(line)
    return out.getvalue()
