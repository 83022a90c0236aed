"""Check a certificate for every length again, without headcount: the standard library and NumPy are enough.

    python tools/check_certificate.py RUN_FOLDER              # config.json, model.safetensors, results/certificate.json
    python tools/check_certificate.py RUN_FOLDER FILE.json    # another certificate
    python tools/check_certificate.py RUN_FOLDER --json       # one JSON object

The certificate says that a model with a window tells sorted sequences from unsorted ones at every length. This file
shares no code with headcount and takes another way at each step:

    leads       token tables: the score of each pair of tokens, and what each head writes for each token
    decision    the quietest sequence through each context, as a fixed point of minima and maxima
    rounding    one bound for all contexts, from the sizes of the weights and the smallest spread of each LayerNorm
    ends        all sequences of one and two numbers, and some longer ones, are computed without tables as well

Exit code: 0 if the certificate is confirmed, 1 if it is not, 2 for a model or a file that this program cannot judge.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = dict[str, Array]

AT_ONCE = 512
"""Number of contexts per block; a block's hidden layer then fits into the cache."""
MOST_CONTEXTS = 5_000_000
N_WAVES = 16
EPSILON = 1e-5
"""The constant that LayerNorm adds to the variance."""
AGREE = 1e-6
"""Largest difference between two numbers, one from the certificate and one computed here, that are called equal."""
UNIT = 2.0**-53
SLACK = 1 + 1e-6
"""Bounds are rounded too; this factor covers it."""
N_SHIFTED = 20
"""Number of contexts for which the effect of the last bit of the waves is computed."""
N_RANDOM = 100
"""Number of random sequences of each class that are computed without tables."""
TYPES = {"F32": "<f4", "F64": "<f8"}
KNOWN: dict[str, tuple[object, ...]] = {
    "n_layers": (1,),
    "softmax": ("plain",),
    "pooling": ("top-score",),
    "encoding": ("relative", "none"),
    "norm": ("pre", "post"),
    "numbers": ("fourier", "table"),
    "random_positions": (None,),
    "causal": (True, False),
}
"""Settings of the model for which this program knows the forward pass."""
OTHER = {"window", "clip_distance", "d_model", "n_heads", "d_ff", "dropout", "pruned", "n_positions", "past_table"}
"""Settings that are numbers, or that do not change the answers of such a model."""
CERTIFIED = ("n_layers", "n_heads", "d_model", "d_ff", "window", "causal", "encoding", "norm", "numbers", "pooling")
"""Settings that the certificate repeats."""
BLOCK = "layers.0.self_attention."
FEED_FORWARD = "layers.0.feed_forward."


class NotDecidable(Exception):
    """The reason why this program cannot judge a model."""


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The settings of a model that this program can judge."""

    n_tokens: int
    trained: tuple[int, int]
    d_model: int
    n_heads: int
    d_ff: int
    window: int
    clip: int
    causal: bool
    encoding: str
    pre_norm: bool
    fourier: bool
    kept: tuple[int, ...]
    """The heads that are not cut out."""
    certified: dict[str, str]

    @property
    def left(self) -> int:
        """The number of places to the left that a position sees."""
        return self.window

    @property
    def right(self) -> int:
        """The number of places to the right that a position sees."""
        return 0 if self.causal else self.window

    @property
    def borders(self) -> list[tuple[int, int]]:
        """How many tokens a context has to the left and to the right; fewer at the ends of a sequence."""
        return [(left, right) for left in range(self.left + 1) for right in range(self.right + 1)]

    @property
    def n_contexts(self) -> int:
        """The number of contexts."""
        return sum(self.n_tokens ** (left + 1 + right) for left, right in self.borders)

    @classmethod
    def read(cls, config: dict[str, Any]) -> Settings:
        """Return the settings of a run, or raise `NotDecidable`."""
        if config.get("schema") != 1 or config.get("task_name") != "sortedness":
            raise NotDecidable("this program knows the task sortedness only, with settings of schema 1")
        task, model = config["task"], {"pruned": [], "random_positions": None} | config["model"]
        if task.get("padding_is_zero"):
            raise NotDecidable("padding is the number 0")
        for name, allowed in KNOWN.items():
            if model.get(name) not in allowed or isinstance(model.get(name), bool) != isinstance(allowed[0], bool):
                raise NotDecidable(f"the setting {name} is {model.get(name)!r}")
        if unknown := set(model) - set(KNOWN) - OTHER:
            raise NotDecidable(f"the setting {sorted(unknown)[0]} is unknown")
        if not isinstance(model.get("window"), int):
            raise NotDecidable("the model has no window")
        pruned, n_heads = set(model["pruned"]), model["n_heads"]
        names = [f"layer.0.self.{head}" for head in range(n_heads)]
        if pruned - set(names):
            raise NotDecidable(f"the pruned head {sorted(pruned - set(names))[0]} is unknown")
        settings = cls(
            n_tokens=task["n_values"],
            trained=(task["shortest"], task["longest"]),
            d_model=model["d_model"],
            n_heads=n_heads,
            d_ff=model["d_ff"],
            window=model["window"],
            clip=model.get("clip_distance", 0),
            causal=model["causal"],
            encoding=model["encoding"],
            pre_norm=model["norm"] == "pre",
            fourier=model["numbers"] == "fourier",
            kept=tuple(head for head, name in enumerate(names) if name not in pruned),
            certified={"n_tokens": str(task["n_values"])} | {name: str(model[name]) for name in CERTIFIED},
        )
        if settings.n_contexts > MOST_CONTEXTS:
            raise NotDecidable(f"the model has {settings.n_contexts:,} contexts, more than {MOST_CONTEXTS:,}")
        return settings

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape that each tensor of the model must have."""
        d, hidden, heads = self.d_model, self.d_ff, len(self.kept) * (self.d_model // self.n_heads)
        shapes: dict[str, tuple[int, ...]] = {f"{BLOCK}attention.output.bias": (d,)}
        norms = [f"{FEED_FORWARD}residual.norm"]
        if self.kept:
            shapes |= {f"{BLOCK}attention.{part}.weight": (heads, d) for part in ("query", "key", "value")}
            shapes |= {f"{BLOCK}attention.{part}.bias": (heads,) for part in ("query", "key", "value")}
            shapes[f"{BLOCK}attention.output.weight"] = (d, heads)
        if self.kept or not self.pre_norm:
            norms.append(f"{BLOCK}residual.norm")
        if self.pre_norm:
            norms.append("norm")
        shapes |= {f"{norm}.{part}": (d,) for norm in norms for part in ("weight", "bias")}
        shapes |= {f"{FEED_FORWARD}layers.0.weight": (hidden, d), f"{FEED_FORWARD}layers.0.bias": (hidden,)}
        shapes |= {f"{FEED_FORWARD}layers.2.weight": (d, hidden), f"{FEED_FORWARD}layers.2.bias": (d,)}
        shapes |= {"pooling.score.weight": (1, d), "pooling.score.bias": (1,)}
        shapes |= {"to_logits.weight": (2, 1), "to_logits.bias": (2,)}
        if self.encoding == "relative":
            shapes["positions.rows.weight"] = (2 * self.clip + 1, self.n_heads)
        if self.fourier:
            return shapes | {"tokens.mix.weight": (d, 1 + 2 * N_WAVES), "tokens.mix.bias": (d,)}
        return shapes | {"tokens.weight": (self.n_tokens + 1, d)}


def read_tensors(data: bytes) -> Tensors:
    """Read a safetensors file: the length of the header, the header as JSON, the raw tensors; all little-endian."""
    size = int.from_bytes(data[:8], "little")
    header, raw, tensors = json.loads(data[8 : 8 + size]), data[8 + size :], {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in TYPES:
            raise NotDecidable(f"the tensor {name} has the type {entry['dtype']}")
        start, stop = entry["data_offsets"]
        tensors[name] = np.frombuffer(raw[start:stop], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def require_fit(settings: Settings, tensors: Tensors) -> None:
    """Raise `NotDecidable` unless the tensors are those of such a model, finite, and read out with the right sign."""
    shapes = settings.shapes()
    for name in sorted(set(shapes) | set(tensors)):
        if name not in shapes or name not in tensors:
            raise NotDecidable(f"the tensor {name} is {'missing' if name in shapes else 'unknown'}")
        if tensors[name].shape != shapes[name]:
            raise NotDecidable(f"the tensor {name} has the shape {tensors[name].shape}, not {shapes[name]}")
        if not np.isfinite(tensors[name]).all():
            raise NotDecidable(f"the tensor {name} has numbers that are not finite")
    weight = tensors["to_logits.weight"]
    if not weight[0, 0] > weight[1, 0]:
        raise NotDecidable("a larger score does not raise the logit of the first class")


def number_waves(n_rows: int) -> Array:
    """Return v, sin(k pi v / n) and cos(k pi v / n) of each number, in single precision.

    Angles are products of single precision; sines are computed in double precision and rounded once. PyTorch takes
    sines from one of several libraries, which may differ in the last bit.
    """
    share = (np.arange(n_rows, dtype=np.float32) / np.float32(n_rows))[:, None]
    angle = (np.float32(math.pi) * share * np.arange(1, N_WAVES + 1, dtype=np.float32)).astype(np.float64)
    return np.concatenate([2 * share - 1, np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)


def distance_biases(settings: Settings, tensors: Tensors) -> Array:
    """Return the bias at the distances -window to window (key minus query) of each head."""
    distances = np.arange(-settings.window, settings.window + 1)
    if settings.encoding == "none":
        return np.zeros((len(distances), settings.n_heads), dtype=np.float32)
    return tensors["positions.rows.weight"][np.clip(distances, -settings.clip, settings.clip) + settings.clip]


# --- the model --------------------------------------------------------------------------------------------------------


@dataclass
class Network:
    """The forward pass in double precision (or in another type, to test it)."""

    settings: Settings
    tensors: Tensors
    inputs: Array
    """The waves of each token, or its row of the number table."""
    dtype: Any = np.float64
    least_spread: dict[str, float] = field(default_factory=dict)
    """The smallest standard deviation that each LayerNorm has divided by."""

    def __post_init__(self) -> None:
        weights = {name: tensor.astype(self.dtype) for name, tensor in self.tensors.items()}
        self.weights, settings = weights, self.settings
        self.d_head = settings.d_model // settings.n_heads
        self.root = np.sqrt(self.dtype(self.d_head))
        self.biases = distance_biases(settings, self.tensors).astype(self.dtype)
        self.embedded = self.inputs.astype(self.dtype)
        if settings.fourier:
            self.embedded = self.embedded @ weights["tokens.mix.weight"].T + weights["tokens.mix.bias"]
        self.token_queries, self.token_keys, self.token_values = self.project(self.embedded)
        # Tables: the score of each pair of tokens, and what each head adds to the stream for each token.
        self.scores = [q @ k.T / self.root for q, k in zip(self.token_queries, self.token_keys, strict=True)]
        self.written = [v @ self.output_of(i).T for i, v in enumerate(self.token_values)]

    def output_of(self, i: int) -> Array:
        """Return the part of the output projection that reads the i-th kept head."""
        return self.weights[f"{BLOCK}attention.output.weight"][:, i * self.d_head : (i + 1) * self.d_head]

    def norm(self, name: str, x: Array) -> Array:
        """Return LayerNorm(x)."""
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self.dtype(EPSILON))
        self.least_spread[name] = min(self.least_spread.get(name, math.inf), float(spread.min()))
        centred /= spread
        return centred * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def project(self, x: Array) -> tuple[list[Array], list[Array], list[Array]]:
        """Return queries, keys and values of each kept head, for a stream [..., d_model]."""
        if not self.settings.kept:
            return [], [], []
        normed = self.norm(f"{BLOCK}residual.norm", x) if self.settings.pre_norm else x
        parts = []
        for part in ("query", "key", "value"):
            weight, bias = (self.weights[f"{BLOCK}attention.{part}.{kind}"] for kind in ("weight", "bias"))
            parts.append(np.split(normed @ weight.T + bias, len(self.settings.kept), axis=-1))
        return parts[0], parts[1], parts[2]

    def context_leads(self, contexts: Array, centre: int) -> Array:
        """Return the lead of the first class at the place `centre` of each context, from the tables."""
        query, window = contexts[:, centre], self.settings.window
        x = self.embedded[query] + self.weights[f"{BLOCK}attention.output.bias"]
        places = range(contexts.shape[1])
        for i, head in enumerate(self.settings.kept):
            score = [self.scores[i][query, contexts[:, at]] + self.biases[at - centre + window, head] for at in places]
            top = np.maximum.reduce(score)
            shares = [np.exp(each - top) for each in score]
            total = sum(shares[1:], shares[0])
            for at in places:
                x += (shares[at] / total)[:, None] * self.written[i][contexts[:, at]]
        return self.read_out(x)

    def read_out(self, x: Array) -> Array:
        """Return the lead of the first class, given the stream after attention (before LayerNorm if post-LN)."""
        pre, weights = self.settings.pre_norm, self.weights
        x = x if pre else self.norm(f"{BLOCK}residual.norm", x)
        hidden = self.norm(f"{FEED_FORWARD}residual.norm", x) if pre else x
        hidden = hidden @ weights[f"{FEED_FORWARD}layers.0.weight"].T + weights[f"{FEED_FORWARD}layers.0.bias"]
        np.maximum(hidden, 0, out=hidden)
        x = x + hidden @ weights[f"{FEED_FORWARD}layers.2.weight"].T + weights[f"{FEED_FORWARD}layers.2.bias"]
        x = self.norm("norm" if pre else f"{FEED_FORWARD}residual.norm", x)
        score = x @ weights["pooling.score.weight"][0] + weights["pooling.score.bias"][0]
        logits = weights["to_logits.weight"][:, 0], weights["to_logits.bias"]
        return score * (logits[0][0] - logits[0][1]) + (logits[1][0] - logits[1][1])

    def sequence_leads(self, sequences: Array) -> Array:
        """Return the largest lead of each sequence, all of one length, without any table of contexts or tokens."""
        settings, length = self.settings, sequences.shape[1]
        x = self.embedded[sequences]
        distance = np.arange(length)[None] - np.arange(length)[:, None]
        seen = (abs(distance) <= settings.window) & ((distance <= 0) | (not settings.causal))
        place = np.clip(distance, -settings.window, settings.window) + settings.window
        queries, keys, values = self.project(x)
        outputs = []
        for i, head in enumerate(settings.kept):
            score = queries[i] @ keys[i].swapaxes(1, 2) / self.root + self.biases[place, head]
            share = np.exp(np.where(seen, score, -np.inf) - score.max(axis=2, keepdims=True))
            outputs.append(share @ values[i] / share.sum(axis=2, keepdims=True))
        x = x + self.weights[f"{BLOCK}attention.output.bias"]
        if outputs:
            x = x + np.concatenate(outputs, axis=2) @ self.weights[f"{BLOCK}attention.output.weight"].T
        return self.read_out(x.reshape(-1, settings.d_model)).reshape(len(x), length).max(axis=1)


def table_of_leads(network: Network) -> Array:
    """Return the lead of each context; `n_tokens` stands for a place outside of the sequence, +inf for no context."""
    settings = network.settings
    n = settings.n_tokens
    table = np.full((n + 1,) * (settings.left + 1 + settings.right), np.inf)
    for left, right in settings.borders:
        shape = (n,) * (left + 1 + right)
        leads = np.empty(math.prod(shape))
        for start in range(0, len(leads), AT_ONCE):
            numbers = np.arange(start, min(start + AT_ONCE, len(leads)))
            contexts = np.stack(np.unravel_index(numbers, shape), axis=1)
            leads[numbers] = network.context_leads(contexts, left)
        inside = (slice(0, n),) * len(shape)
        table[(n,) * (settings.left - left) + inside + (n,) * (settings.right - right)] = leads.reshape(shape)
    return table


# --- rounding ---------------------------------------------------------------------------------------------------------


def gamma(n: int) -> float:
    """Return the relative error bound of a sum of `n` products, in any order (Higham 2002, chapter 3)."""
    return n * UNIT / (1 - n * UNIT)


@dataclass(frozen=True)
class Rounding:
    """A bound of the rounding error of the leads that holds for every context at once.

    `size` is the largest Euclidean length of a vector over all contexts (or tokens), `error` a bound of the length of
    its error. A matrix multiplies errors by at most its largest singular value.
    """

    network: Network

    def linear(self, name: str, size: float, error: float, rows: slice = slice(None)) -> tuple[float, float]:
        """Return size and error of W x + b, for some rows of W."""
        weight, bias = self.network.weights[f"{name}.weight"][rows], self.network.weights[f"{name}.bias"][rows]
        largest, added = float(np.linalg.norm(weight, 2)) * SLACK, _length(bias)
        rounding = gamma(weight.shape[1] + 2) * (_length(weight) * (size + error) + added)
        return largest * size + added, (largest * error + rounding) * SLACK

    def norm(self, name: str, size: float, error: float) -> tuple[float, float]:
        """Return size and error of LayerNorm(x).

        Let c be x minus its mean and s its standard deviation. An error of length e moves c by at most e and s by at
        most e / sqrt(n), and c is no longer than s sqrt(n). So c / s moves by at most 2 e / s.
        """
        weight, bias = self.network.weights[f"{name}.weight"], self.network.weights[f"{name}.bias"]
        n, gain, least = len(weight), float(abs(weight).max()), self.network.least_spread[name]
        centred = error + gamma(n + 4) * 2 * (size + error)
        ratio = 2 * centred / least + math.sqrt(n) * gamma(n + 10)
        length = gain * math.sqrt(n) * SLACK + _length(bias)
        return length, (gain * ratio + gamma(3) * length) * SLACK

    def attention(self) -> tuple[float, float]:
        """Return size and error of the stream after attention."""
        network, settings, name = self.network, self.network.settings, f"{BLOCK}attention"
        size, error = _longest(network.embedded), 0.0
        if settings.fourier:
            error = self.linear("tokens.mix", _longest(network.inputs.astype(np.float64)), 0.0)[1]
        normed = (
            self.norm(f"{BLOCK}residual.norm", size, error) if settings.pre_norm and settings.kept else (size, error)
        )
        size += _length(network.weights[f"{name}.output.bias"])
        n_keys, n_terms = settings.left + 1 + settings.right, 2
        for i, head in enumerate(settings.kept):
            rows = slice(i * network.d_head, (i + 1) * network.d_head)
            errors = [self.linear(f"{name}.{part}", *normed, rows)[1] for part in ("query", "key", "value")]
            sizes = [_longest(part[i]) for part in (network.token_queries, network.token_keys, network.token_values)]
            query, key, value = (size + error for size, error in zip(sizes, errors, strict=True))
            dot_error = query * errors[1] + key * errors[0] + gamma(network.d_head + 4) * query * key
            largest = float(abs(network.scores[i]).max() + abs(network.biases[:, head]).max())
            exponent_error = (dot_error / math.sqrt(network.d_head) + 4 * UNIT * largest) * SLACK
            # The exponential function is assumed to be within four units in the last place.
            share_error = math.expm1(2 * exponent_error + gamma(2 * n_keys + 16)) + 1e-300
            output, written = network.output_of(i), _longest(network.written[i])
            written_error = float(np.linalg.norm(output, 2)) * SLACK * errors[2]
            written_error += gamma(network.d_head + 1) * _length(output) * value
            error += (1 + share_error) * written_error + share_error * written
            size += (1 + share_error) * (written + written_error)
            n_terms += n_keys
        return size, (error + gamma(n_terms + 2) * size) * SLACK

    def lead_error(self) -> float:
        """Return a bound of the distance of each computed lead from its exact value."""
        pre, weights = self.network.settings.pre_norm, self.network.weights
        size, error = self.attention()
        size, error = (size, error) if pre else self.norm(f"{BLOCK}residual.norm", size, error)
        hidden = self.norm(f"{FEED_FORWARD}residual.norm", size, error) if pre else (size, error)
        added, added_error = self.linear(f"{FEED_FORWARD}layers.2", *self.linear(f"{FEED_FORWARD}layers.0", *hidden))
        size, error = size + added, (error + added_error + gamma(3) * (size + added)) * SLACK
        size, error = self.norm("norm" if pre else f"{FEED_FORWARD}residual.norm", size, error)
        score, score_error = self.linear("pooling.score", size, error)
        slope, shift = abs(weights["to_logits.weight"]).sum(), abs(weights["to_logits.bias"]).sum()
        return float(slope * score_error + gamma(5) * (slope * (score + score_error) + shift)) * SLACK


def _length(array: Array) -> float:
    """Return the root of the sum of squares."""
    return float(np.sqrt((array * array).sum())) * SLACK


def _longest(rows: Array) -> float:
    """Return the largest length of a row."""
    return float(np.sqrt((rows * rows).sum(axis=-1)).max()) * SLACK


def wave_shift(network: Network, contexts: list[tuple[int, ...]]) -> float:
    """Return how far other waves can move the leads of these contexts, to first order.

    The sines of another library may differ by one unit in the last place: the effects of all 32 are added up.
    """
    settings, largest = network.settings, 0.0
    for context in contexts:
        tokens = [token for token in context if token < settings.n_tokens]
        centre = sum(token < settings.n_tokens for token in context[: settings.left])
        rows = [network.inputs[token].astype(np.float64) for token in tokens]
        variants = [list(range(len(tokens)))]
        for place, token in enumerate(tokens):
            for i in range(1, 1 + 2 * N_WAVES):
                row = rows[place].copy()
                row[i] += np.spacing(np.abs(network.inputs[token, i]))
                variants.append([len(rows) if at == place else at for at in range(len(tokens))])
                rows.append(row)
        leads = Network(settings, network.tensors, np.array(rows)).context_leads(np.array(variants), centre)
        largest = max(largest, float(abs(leads[1:] - leads[0]).sum()))
    return largest


# --- decision ---------------------------------------------------------------------------------------------------------


@dataclass
class Quietest:
    """The quietest sequence through each context: the smallest possible largest lead of a sequence that contains it."""

    settings: Settings
    table: Array

    def __post_init__(self) -> None:
        left, right = self.settings.left, self.settings.right
        self.exists = np.isfinite(self.table)
        before = _quietest_before(self.table, left)
        after = _quietest_before(self.table.T, right).T
        self.through = np.maximum(before, after)
        n = self.settings.n_tokens
        places: tuple[Array, ...] = np.indices(self.table.shape, sparse=True)
        self.broken = np.zeros(self.table.shape, dtype=bool)
        for first, second in pairwise(places):
            self.broken |= (first > second) & (first < n) & (second < n)
        self.broken &= self.exists
        self.unbroken = self.exists & ~self.broken

    def loudest_unbroken(self) -> tuple[int, ...]:
        """Return the context without a broken pair that has the largest lead."""
        return self._at(int(np.where(self.unbroken, self.table, -np.inf).argmax()))

    def quietest_broken(self) -> tuple[int, ...]:
        """Return the context with a broken pair through which the quietest sequence goes."""
        return self._at(int(np.where(self.broken, self.through, np.inf).argmin()))

    def _at(self, index: int) -> tuple[int, ...]:
        return tuple(int(place) for place in np.unravel_index(index, self.table.shape))

    def sequence_through(self, context: tuple[int, ...]) -> list[int]:
        """Return a shortest sequence through this context whose largest lead is `through`."""
        most = float(self.through[context])
        left, right, outside = self.settings.left, self.settings.right, self.settings.n_tokens
        before = _shortest_way(self.table, context, left, most, outside)
        mirrored = _shortest_way(self.table.T, context[::-1], right, most, outside)
        symbols = [*before, *context, *mirrored[::-1]]
        return [symbol for symbol in symbols if symbol != outside]


def _quietest_before(table: Array, left: int) -> Array:
    """Return the smallest possible largest lead of a beginning of a sequence that ends with each context.

    A context in which all `left` places are outside of the sequence begins one. Any other context follows a context
    that overlaps with it in all places but one. Values fall until nothing changes.
    """
    start = np.full(table.shape, np.inf)
    start[(table.shape[0] - 1,) * left] = -np.inf
    values = np.maximum(table, start)
    while True:
        lower = np.maximum(table, np.minimum(start, values.min(axis=0)[..., None]))
        if np.array_equal(lower, values):
            return values
        values = lower


def _shortest_way(table: Array, context: tuple[int, ...], left: int, most: float, outside: int) -> list[int]:
    """Return the symbols to put before a context so that a sequence begins there, with leads of at most `most`."""
    came_from: dict[tuple[int, ...], tuple[int, ...] | None] = {context: None}
    queue = deque([context])
    while queue:
        current = queue.popleft()
        if all(symbol == outside for symbol in current[:left]):
            symbols, at = [], current
            while (following := came_from[at]) is not None:
                symbols.append(at[0])
                at = following
            return symbols
        overlap: Any = (slice(None), *current[:-1])
        for symbol in np.flatnonzero(table[overlap] <= most).tolist():
            previous = (symbol, *current[:-1])
            if previous not in came_from:
                came_from[previous] = current
                queue.append(previous)
    raise AssertionError("the fixed point found a way that is not there")


# --- comparison with the certificate ----------------------------------------------------------------------------------


@dataclass
class Check:
    """What was computed here, and how it differs from the certificate."""

    certificate: dict[str, Any]
    differences: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    verdict: str = ""
    example: str = ""
    notes: list[str] = field(default_factory=list)

    def compare(self, name: str, value: object) -> None:
        """Compare a field of the certificate with its value here."""
        if (stated := self.certificate.get(name)) != value:
            self.differences.append(f"{name} is {_brief(stated)} in the certificate, and {_brief(value)} here")

    def compare_number(self, name: str, value: float, tolerance: float) -> None:
        """Compare a number of the certificate with its value here, up to a tolerance."""
        self.numbers[name] = value
        stated = self.certificate.get(name)
        if not _is_number(stated) or not abs(stated - value) <= tolerance:
            self.differences.append(f"{name} is {_brief(stated)} in the certificate, and {value:.9g} here")

    def compare_count(self, name: str, least: int, most: int) -> None:
        """Compare a count; leads within the tolerance of a threshold may count or not."""
        self.numbers[name] = most
        stated = self.certificate.get(name)
        if not _is_number(stated) or not least <= stated <= most:
            here = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            self.differences.append(f"{name} is {_brief(stated)} in the certificate, and {here} here")


def _brief(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _show(settings: Settings, context: tuple[int, ...]) -> str:
    return " ".join("-" if token >= settings.n_tokens else str(token) for token in context)


def check(config: dict[str, Any], weights: bytes, certificate: dict[str, Any]) -> Check:
    """Check a certificate against the settings and the weights of a run, or raise `NotDecidable`."""
    if certificate.get("type") != "ContextCertificate" or certificate.get("schema") != 1:
        raise NotDecidable("the file is no certificate for every length of schema 1")
    result = Check(certificate)
    result.compare("weights_sha256", _digest(weights))
    if result.differences:
        result.verdict = "not checked"
        return result
    try:
        settings, tensors = Settings.read(config), read_tensors(weights)
    except (KeyError, TypeError, ValueError) as error:
        raise NotDecidable(f"settings or weights are damaged ({type(error).__name__}: {error})") from error
    require_fit(settings, tensors)
    numbers = f"numbers from 0 to {settings.n_tokens - 1}"
    result.compare("settings", settings.certified)
    result.compare("trained", list(settings.trained))
    result.compare("claim", f"right on every sequence of {numbers}, of every length")
    result.compare("n_contexts", settings.n_contexts)
    inputs = number_waves(settings.n_tokens + 1) if settings.fourier else tensors["tokens.weight"]
    same_waves = _check_buffers(result, settings, tensors, inputs)
    network = Network(settings, tensors, inputs[: settings.n_tokens])
    quietest = Quietest(settings, table_of_leads(network))
    shift = 0.0 if same_waves else _shift_of_tightest(network, quietest)
    if not same_waves:
        result.notes.append(f"other waves in the last bit can move the smallest leads by {shift:.1g}")
    bound = Rounding(network).lead_error()
    result.numbers |= {"n_contexts": settings.n_contexts, "rounding_bound": bound, "wave_shift": shift}
    _compare_leads(result, settings, quietest, bound + shift, AGREE + shift)
    _compare_sequences(result, network, quietest, bound)
    return result


def _check_buffers(result: Check, settings: Settings, tensors: Tensors, inputs: Array) -> bool:
    """Compare the digests of biases and waves; return whether the waves are the same, byte for byte."""
    stated, expected = result.certificate.get("buffers"), {}
    if settings.encoding != "none":
        expected["biases"] = _digest(distance_biases(settings, tensors).astype("<f4").tobytes())
    if settings.fourier:
        expected["waves"] = _digest(inputs.astype("<f4").tobytes())
    if not isinstance(stated, dict) or set(stated) != set(expected):
        result.compare("buffers", expected)
        return True
    if stated.get("biases") != expected.get("biases"):
        result.differences.append("the digest of the biases differs")
    if stated.get("waves") == expected.get("waves"):
        return True
    result.notes.append("the waves differ from the certificate's (another library for sines); the check uses its own")
    return False


def _shift_of_tightest(network: Network, quietest: Quietest) -> float:
    """Return the largest effect of other waves on the contexts with the smallest leads, and on those that decide."""
    table = np.where(quietest.exists, abs(quietest.table), np.inf)
    nearest = np.argpartition(table, min(N_SHIFTED, table.size - 1), axis=None)[:N_SHIFTED]
    contexts = [tuple(int(place) for place in np.unravel_index(int(at), table.shape)) for at in nearest]
    contexts += [quietest.loudest_unbroken(), quietest.quietest_broken()]
    firing = quietest.sequence_through(quietest.quietest_broken())
    contexts += list(_contexts_of(network.settings, firing))
    return wave_shift(network, [context for context in contexts if quietest.exists[context]])


def _contexts_of(settings: Settings, sequence: list[int]) -> Iterator[tuple[int, ...]]:
    outside, width = [settings.n_tokens], settings.left + 1 + settings.right
    padded = outside * settings.left + sequence + outside * settings.right
    for i in range(len(sequence)):
        yield tuple(padded[i : i + width])


def _largest_lead(settings: Settings, quietest: Quietest, sequence: list[int]) -> float:
    return max(float(quietest.table[context]) for context in _contexts_of(settings, sequence))


def _compare_leads(result: Check, settings: Settings, quietest: Quietest, error: float, tolerance: float) -> None:
    """Decide, and compare verdict, counts, smallest leads and listed sequences with the certificate."""
    stated, table = result.certificate, quietest.table
    loudest, firing = quietest.loudest_unbroken(), quietest.quietest_broken()
    least_quiet, least_firing = -float(table[loudest]), float(quietest.through[firing])
    sequence = quietest.sequence_through(firing)
    result.compare("n_unbroken", int(quietest.unbroken.sum()))
    result.numbers["n_unbroken"] = int(quietest.unbroken.sum())
    result.compare_number("least_quiet", least_quiet, tolerance)
    result.compare_number("least_firing", least_firing, tolerance)
    result.numbers |= {
        "tightest_quiet": _show(settings, loudest),
        "tightest_firing": " ".join(map(str, sequence)),
    }
    margin = stated.get("double_error")
    if not _is_number(margin) or margin < 0:
        result.differences.append("double_error is not a number of at least 0")
        margin = error
    for name, values in (
        ("n_wrong_contexts", np.where(quietest.unbroken, -table, np.inf)),
        ("n_wrong_paths", np.where(quietest.broken, quietest.through, np.inf)),
    ):
        least, most = (int((values <= margin + sign * tolerance).sum()) for sign in (-1, 1))
        result.compare_count(name, least, most)
    least_margin = min(least_quiet, least_firing)
    result.verdict = "proved" if least_margin > error else "refuted" if least_margin < -error else "undecided"
    if result.verdict == "refuted":
        tokens = [token for token in loudest if token < settings.n_tokens]
        result.example = " ".join(map(str, tokens if least_quiet < -error else sequence))
    if stated.get("verdict") != result.verdict:
        example = f", wrong on {result.example}" if result.example else ""
        differences = f"verdict is {stated.get('verdict')} in the certificate, and {result.verdict} here{example}"
        result.differences.insert(0, differences)
    if result.verdict == "proved" and not margin < least_margin:
        result.differences.append(f"double_error ({margin:.3g}) is not below the smallest lead, {least_margin:.3g}")
    _compare_listed(result, settings, quietest, tolerance)


def _compare_listed(result: Check, settings: Settings, quietest: Quietest, tolerance: float) -> None:
    """Check the tightest context, the tightest sequence and the wrong answers that the certificate lists."""
    stated = result.certificate
    names = {str(token): token for token in range(settings.n_tokens)}
    context = [({"-": settings.n_tokens} | names).get(word) for word in str(stated.get("tightest_quiet")).split()]
    place = tuple(-1 if token is None else token for token in context)
    fits = len(place) == quietest.table.ndim and min(place) >= 0 and bool(quietest.unbroken[place])
    if not fits or abs(-float(quietest.table[place]) - result.numbers["least_quiet"]) > 2 * tolerance:
        result.differences.append(f"tightest_quiet, {_brief(stated.get('tightest_quiet'))}, has another lead")
    sequence = [names.get(word, -1) for word in str(stated.get("tightest_firing")).split()]
    fits = min(sequence, default=-1) >= 0 and sequence != sorted(sequence)
    if not fits or abs(_largest_lead(settings, quietest, sequence) - result.numbers["least_firing"]) > 2 * tolerance:
        result.differences.append(f"tightest_firing, {_brief(stated.get('tightest_firing'))}, has another lead")
    wrong = stated.get("wrong")
    if not isinstance(wrong, list) or (stated.get("verdict") == "refuted") != bool(wrong):
        result.differences.append("wrong answers must be listed if and only if the verdict is refuted")
        return
    for answer in wrong:
        sequence = [names.get(word, -1) for word in str(answer.get("example")).split()]
        if min(sequence, default=-1) < 0:
            result.differences.append(f"{_brief(answer.get('example'))} is not a sequence of this task")
            continue
        right = "sorted" if sequence == sorted(sequence) else "unsorted"
        lead = _largest_lead(settings, quietest, sequence)
        predicted = "unsorted" if lead > 0 else "sorted"
        stays = abs(lead) <= tolerance or predicted != right
        if not stays or answer.get("right") != right or answer.get("predicted") == right:
            result.differences.append(f"{_brief(answer['example'])} is {right}, and the answer is {predicted}")


def _compare_sequences(result: Check, network: Network, quietest: Quietest, error: float) -> None:
    """Compute whole sequences without tables: all of length 1 and 2, and random longer ones."""
    settings, rng = network.settings, np.random.default_rng(0)
    n, largest, n_sequences = settings.n_tokens, 0.0, 0
    for length in (1, 2, 3, 5, 8, 33):
        total = n**length if length <= 2 else 2 * N_RANDOM
        for start in range(0, total, AT_ONCE):
            numbers = np.arange(start, min(start + AT_ONCE, total))
            if length <= 2:
                rows = np.stack(np.unravel_index(numbers, (n,) * length), axis=1)
            else:
                rows = rng.integers(n, size=(len(numbers), length))
                rows[::2] = np.sort(rows[::2], axis=1)
            leads = network.sequence_leads(rows)
            expected = np.array([_largest_lead(settings, quietest, row) for row in rows.tolist()])
            largest, n_sequences = max(largest, float(abs(leads - expected).max())), n_sequences + len(rows)
            is_sorted = (np.diff(rows, axis=1) >= 0).all(axis=1)
            if result.verdict == "proved" and (wrong := np.flatnonzero((leads > 0) == is_sorted)).size:
                example = " ".join(map(str, rows[wrong[0]]))
                result.differences.append(f"the whole sequence {example} is answered wrong")
    result.numbers |= {"n_sequences": n_sequences, "sequence_difference": largest}
    if not largest <= 2 * error + 1e-9:
        result.differences.append(f"whole sequences and the table differ by {largest:.2g}")


# --- command line -----------------------------------------------------------------------------------------------------


def lines_of(result: Check, seconds: float) -> Iterator[str]:
    """Yield the verdict in one line, then what was computed."""
    numbers, stated = result.numbers, result.certificate
    if result.differences:
        yield f"not confirmed: {result.differences[0]}"
        yield from (f"  also: {difference}" for difference in result.differences[1:])
    else:
        text = {
            "proved": stated["claim"],
            "refuted": f"wrong on {result.example}",
            "undecided": "rounding could decide",
        }
        yield f"confirmed: {result.verdict}, {text[result.verdict]}"
    if numbers:
        yield f"contexts:         {numbers['n_contexts']:,}, of which {numbers['n_unbroken']:,} have no broken pair"
        n_wrong, n_paths = numbers["n_wrong_contexts"], numbers["n_wrong_paths"]
        yield f"wrong contexts:   {n_wrong:,} without a broken pair, {n_paths:,} with one"
        yield f"smallest leads:   {numbers['least_quiet']:.6f} below 0 for sorted: {numbers['tightest_quiet']}"
        yield f"                  {numbers['least_firing']:.6f} above 0 for unsorted: {numbers['tightest_firing']}"
        yield f"rounding:         at most {numbers['rounding_bound']:.1g} in double precision"
        yield (
            f"whole sequences:  {numbers['n_sequences']:,}, at most {numbers['sequence_difference']:.1g} from the table"
        )
    yield from (f"note:             {note}" for note in result.notes)
    yield f"seconds:          {seconds:.1f}"


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise NotDecidable(f"{file} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise NotDecidable(f"{file} is no JSON object")
    return content


def main(arguments: list[str] | None = None) -> int:
    """Check the certificate that the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(description="Check a certificate for every length, without headcount.")
    parser.add_argument("folder", type=Path, help="run folder with config.json and model.safetensors")
    parser.add_argument("certificate", type=Path, nargs="?", help="certificate (default: results/certificate.json)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        file = options.certificate or options.folder / "results" / "certificate.json"
        certificate, config = _read_object(file), _read_object(options.folder / "config.json")
        result = check(config, (options.folder / "model.safetensors").read_bytes(), certificate)
    except (OSError, NotDecidable) as error:
        print(json.dumps({"agrees": None, "reason": str(error)}) if options.json else f"not decidable here: {error}")
        return 2
    seconds = time.perf_counter() - started
    if options.json:
        fields = {"verdict": result.verdict, "differences": result.differences, "example": result.example}
        print(json.dumps({"agrees": not result.differences} | fields | result.numbers | {"seconds": seconds}, indent=1))
    else:
        print("\n".join(lines_of(result, seconds)))
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
