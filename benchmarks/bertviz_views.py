"""Print the size in bytes of BertViz's views of some attention weights, without the scripts that the views load.

The module runs in the environment of the other tools, on a numpy file with weights [layer, head, query, key].
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from bertviz import head_view, model_view

VIEWS: dict[str, Callable[..., Any]] = {"model_view": model_view, "head_view": head_view}


def main(file: str) -> None:
    """Render one view after another, because each takes gigabytes of memory, and print the size of its HTML."""
    weights = torch.from_numpy(np.load(file)).float()
    layers = [layer.unsqueeze(0) for layer in weights]
    tokens = [f"token{i}" for i in range(weights.shape[-1])]
    pages = ((name, view(layers, tokens, html_action="return").data) for name, view in VIEWS.items())
    print(json.dumps({name: len(page.encode()) for name, page in pages}))


if __name__ == "__main__":
    main(*sys.argv[1:])
