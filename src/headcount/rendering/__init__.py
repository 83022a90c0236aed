"""Renderers, which show the description of a result in a terminal, on an HTML page, in a notebook, or in LaTeX."""
