"""Renderers: what was described, in a terminal, on a page, in a notebook, as Markdown or LaTeX."""
