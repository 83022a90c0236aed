"""Renderers: they show the description of a result in a terminal, on a page, in a notebook, as Markdown or LaTeX."""
