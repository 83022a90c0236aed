"""How many bytes BertViz's views of some attention weights are, without the scripts that they load from elsewhere.

Runs in the environment of the other tools, on a file of weights [layer, head, query, key] as numpy saves them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from bertviz import head_view, model_view
from torch import Tensor

VIEWS: dict[str, Callable[..., Any]] = {"model_view": model_view, "head_view": head_view}


def main(file: str) -> None:
    """Make every view, one after another: each takes gigabytes while it is made."""
    weights = torch.from_numpy(np.load(file)).float()
    layers = [layer.unsqueeze(0) for layer in weights]
    tokens = [f"token{i}" for i in range(weights.shape[-1])]
    print(json.dumps({name: n_bytes(view, layers, tokens) for name, view in VIEWS.items()}))


def n_bytes(view: Callable[..., Any], layers: Sequence[Tensor], tokens: list[str]) -> int:
    """Of the HTML that a view returns."""
    return len(view(layers, tokens, html_action="return").data.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
