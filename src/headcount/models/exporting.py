"""Export a model as plain arrays, for the JavaScript engine that runs the model in the report's HTML page.

The engine is `rendering/static/engine.js`. Parameters are rounded to half precision. Values that the engine could only
compute with torch's own random numbers or kernels are exported as tables in single precision: embeddings of numbers,
biases by distance, untrained rows of a learned position table, and random position ids.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headcount.encodings.base import Encoding, Positions, Randomised, fixed_subsets
from headcount.encodings.fire import Fire
from headcount.encodings.learned import Learned
from headcount.encodings.length_normalised import PLACES, LengthNormalised
from headcount.encodings.rotary import Rotary
from headcount.encodings.sinusoidal import Sinusoidal
from headcount.errors import InputError
from headcount.models.transformer import N_WAVES, DecoderOnly, EncoderDecoder, FourierNumberEmbedding, Model

ENGINE_POOLINGS = (
    *("max", "min", "mean", "first", "last", "attention"),
    *("lse-max", "score-max", "top-score", "neighbour-difference"),
)
"""The poolings that `engine.js` can compute."""
Array = NDArray[Any]
"""An exported array: numbers in half (float16) or single precision (float32), or position ids (uint16)."""


@dataclass
class ExportedModel:
    """The architecture of a model as data for JSON, and its arrays by name."""

    architecture: dict[str, Any]
    arrays: dict[str, Array] = field(default_factory=dict)
    n_positions: int = 0
    """The largest number of tokens that the exported model can take."""


def in_half_precision(model: Model) -> Model:
    """Return a copy of the model whose parameters are rounded to half precision but stored in single precision."""
    rounded = copy.deepcopy(model).float().cpu().eval()
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.half().float())
    return rounded


def export(model: Model, n_positions: int, *, in_half: bool = True) -> ExportedModel:
    """Return the arrays of a model for sequences of at most `n_positions` tokens, in half or in single precision.

    Raise an error if `engine.js` cannot compute the model's encoding or pooling.
    """
    model = in_half_precision(model) if in_half else copy.deepcopy(model).float().cpu().eval()
    config = model.config
    exported = ExportedModel(
        {
            "width": config.d_model,
            "headWidth": config.d_model // config.n_heads,
            "isPreNorm": config.norm == "pre",
            "window": config.window,
            "sites": [
                {
                    "name": site.short,
                    "stack": site.stack,
                    "kind": site.kind,
                    "layer": site.layer,
                    "heads": [head.short for head in block.heads],
                    "kept": list(block.attention.kept),
                    "module": _path(model, block.attention),
                    "norm": _path(model, block.residual.norm),
                }
                for site, block in model.blocks.items()
            ],
        },
        n_positions=n_positions,
    )
    tables = [name for name, module in model.named_modules() if isinstance(module, Encoding)]
    for name, value in model.state_dict().items():
        if not any(name.startswith(f"{table}.") for table in tables):
            exported.arrays[name] = _array(value, in_half)
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            exported.architecture |= {
                "kind": "sequence",
                "source": _encoding(exported, "source_positions", model.source_positions, n_positions),
                "target": _encoding(exported, "target_positions", model.target_positions, n_positions),
            }
        elif isinstance(model, DecoderOnly):
            raise not_runnable("decoder-only model")
        else:
            if model.config.pooling not in ENGINE_POOLINGS:
                raise not_runnable(f"pooling {model.config.pooling}")
            exported.architecture |= {
                "kind": "class",
                "source": _encoding(exported, "positions", model.positions, n_positions),
                "isCausal": model.config.causal or model.positions.forces_causal,
                "pooling": model.config.pooling,
            }
            if isinstance(model.tokens, FourierNumberEmbedding):
                exported.architecture["waves"] = {"tokens": len(model.tokens.waves), "n": N_WAVES}
    return exported


def not_runnable(part: str) -> InputError:
    """Build the error for a part of a model, such as a pooling, that the report's JavaScript engine cannot compute."""
    return InputError(
        f"the model cannot run inside the report's page: its JavaScript does not support the {part}",
        "write the report without --live-only: it has everything but the interactive model",
    )


def _path(model: nn.Module, part: nn.Module) -> str:
    """Return the path of a module inside the model; empty for `nn.Identity`, which does nothing."""
    return "" if isinstance(part, nn.Identity) else next(name for name, each in model.named_modules() if each is part)


def _array(value: torch.Tensor, in_half: bool = False) -> Array:
    return np.asarray(value.numpy()).astype(np.float16 if in_half else np.float32)


# --- encodings --------------------------------------------------------------------------------------------------------

Described = Callable[[ExportedModel, str, Any, int], dict[str, Any]]


def _encoding(exported: ExportedModel, name: str, encoding: Encoding, n: int) -> dict[str, Any]:
    """Describe an encoding for the JavaScript engine, for positions 0 to n - 1, and add its arrays to `exported`."""
    if isinstance(encoding, Randomised):
        if encoding.n_ids > np.iinfo(np.uint16).max:
            raise not_runnable(f"{encoding.n_ids:,} random positions")
        exported.n_positions = n = min(n, encoding.n_ids)
        ids = fixed_subsets(encoding.n_ids, list(range(1, n + 1)), n).numpy()
        exported.arrays[f"{name}.ids"] = ids.astype(np.uint16)
        return {**_encoding(exported, name, encoding.inner, encoding.n_ids), "ids": f"{name}.ids"}
    if encoding.is_bias_of_distance:
        ahead = torch.arange(2 * n - 1)
        bias = encoding.bias(torch.full_like(ahead, n - 1), ahead)
        if bias is None:
            return {"kind": "none"}
        exported.arrays[f"{name}.by_distance"] = _array(bias)
        return {"kind": "distance", "table": f"{name}.by_distance", "farthest": n - 1}
    for kind, describe in DESCRIPTIONS.items():
        if type(encoding) is kind:
            return describe(exported, name, encoding, n)
    raise not_runnable(f"encoding {type(encoding).__name__}")


def _fire(exported: ExportedModel, name: str, encoding: Fire, n: int) -> dict[str, Any]:
    for part, value in encoding.state_dict().items():
        exported.arrays[f"{name}.{part}"] = _array(value)
    return {"kind": "fire", "module": name}


def _table(exported: ExportedModel, name: str, encoding: Learned, n: int) -> dict[str, Any]:
    """Add the first n rows of a learned position table to `exported`, including rows for positions past its end."""
    if encoding.refuses_past_table:
        assert encoding.n_rows is not None, "it is a table"
        n = min(n, encoding.n_rows)
        exported.n_positions = min(exported.n_positions, n)
    zeros = torch.zeros(1, n, encoding.d_model)
    rows = encoding.add_to_embeddings(zeros, Positions.in_order(n, zeros.device))
    exported.arrays[f"{name}.rows"] = _array(rows[0])
    return {"kind": "table", "table": f"{name}.rows"}


DESCRIPTIONS: dict[type[Encoding], Described] = {
    Sinusoidal: lambda *_: {"kind": "sinusoidal", "places": None},
    LengthNormalised: lambda *_: {"kind": "sinusoidal", "places": PLACES},
    Rotary: lambda *_: {"kind": "rotary"},
    Fire: _fire,
    Learned: _table,
}
