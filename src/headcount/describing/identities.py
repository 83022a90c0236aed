"""Identities of the mathematics, and how far double precision is from each when it is computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headcount.describing.blocks import Formula
from headcount.describing.mathml import (
    applied,
    both,
    bracketed,
    frac,
    gap,
    lines,
    matrix,
    name,
    number,
    root,
    row,
    sign,
    sub,
    sup,
    text,
    total,
)

Array = NDArray[np.float64]
PLACES, STEPS = 512, 64
"""Positions p and steps k that identities are computed for: all up to these."""
EXACT = 1e-9
"""What rounding in double precision stays under."""
INDEX, STEP, PLACE = name("i"), name("k"), name("p")
W = sub(name("ω"), INDEX)


def frequencies(d_model: int) -> Array:
    """The w_i of all whole pairs: an odd last dimension has a sine without its cosine."""
    return 10000.0 ** (-2 * np.arange(d_model // 2) / d_model)


def sinusoids(places: Array, d_model: int) -> Array:
    """PE, [place, pair, sine and cosine]."""
    angles = places[:, None] * frequencies(d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1)


def rotation_error(d_model: int, places: int = PLACES, steps: int = STEPS) -> float:
    """The largest entry of PE(p + k) - R(k) PE(p) over all p and k up to these."""
    table, w, largest = sinusoids(np.arange(places + steps + 1.0), d_model), frequencies(d_model), 0.0
    for k in range(steps + 1):
        cos, sin = np.cos(k * w), np.sin(k * w)
        here, there = table[: places + 1], table[k : places + 1 + k]
        turned = np.stack([cos * here[..., 0] + sin * here[..., 1], cos * here[..., 1] - sin * here[..., 0]], axis=-1)
        largest = max(largest, float(np.abs(there - turned).max(initial=0.0)))
    return largest


def kernel_error(d_model: int, places: int = PLACES) -> float:
    """The largest |PE(t) . PE(s) - sum_i cos(w_i (t - s))| over all t and s up to this."""
    at = np.arange(places + 1.0)
    table = sinusoids(at, d_model).reshape(places + 1, -1)
    expected = np.cos(at[:, None] * frequencies(d_model)).sum(axis=1)
    distance = np.abs(at[:, None] - at[None, :]).astype(np.int64)
    return float(np.abs(table @ table.T - expected[distance]).max())


# --- typeset ----------------------------------------------------------------------------------------------------------


def attention(error: str = "") -> Formula:
    """What a head computes."""
    scores = frac(row(name("Q"), sup(name("K"), sign("⊤"))), root(name("d")))
    made = row(name("softmax"), bracketed(scores, tall=True), name("V"))
    told = r"\mathrm{Attention}(Q, STEP, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d}}\right) V"
    given = bracketed(name("Q"), sign(","), name("K"), sign(","), name("V"))
    words = "A head compares its queries with all keys; each row of weights sums to 1, and mixes the values."
    return Formula("mathematics-attention", words, row(name("Attention"), given, sign("="), made), told, error)


def gate(error: str = "") -> Formula:
    """How a head is ablated."""
    z, g, h = name("z"), name("g"), name("h")
    mixed = row(sup(z, sign("′")), sign("="), g, z, sign("+"), bracketed(number(1), sign("−"), g), name("r"))
    summed = row(name("output"), sign("="), total(h), both(z, h, sign("′")), sub(name("W"), h), sign("+"), name("b"))
    told = r"z' = g\,z + (1 - g)\,r, \qquad \mathrm{output} = \sum_h z'_h W_h + b"
    words = (
        "Before the output projection a head is a vector z. A gate g lets it through (g = 1) or puts a replacement r "
        "in its place (g = 0): zero, its mean, or z on another example."
    )
    return Formula("mathematics-gate", words, lines(mixed, summed), told, error)


def _wave(function: str, place: str) -> str:
    return row(name(function), bracketed(place, W))


def encoding(error: str = "") -> Formula:
    """Sinusoidal positions."""
    even, odd = row(number(2), INDEX), row(number(2), INDEX, sign("+"), number(1))
    made = [
        row(name("PE"), bracketed(PLACE, sign(","), at), sign("="), _wave(function, PLACE))
        for at, function in ((even, "sin"), (odd, "cos"))
    ]
    power = row(sign("−"), number(2), INDEX, sign("/"), name("d"))
    w = row(W, sign("="), sup(number(10000), power))
    told = r"PE(p, 2i) = \sin(p\,\omega_i), \quad PE(p, 2i + 1) = \cos(p\,\omega_i), \quad \omega_i = 10000^{-2i/d}"
    words = "Sinusoidal positions are computed from p alone, so that there is no last one."
    return Formula("mathematics-sinusoidal", words, lines(*made, w), told, error)


def rotation(error: str) -> Formula:
    """One step for all positions."""
    kw = row(STEP, W)
    turned = matrix((applied("cos", kw), applied("sin", kw)), (row(sign("−"), applied("sin", kw)), applied("cos", kw)))
    r = row(name("R"), bracketed(STEP))
    left = row(name("PE"), bracketed(PLACE, sign("+"), STEP), sign("="), r, name("PE"), bracketed(PLACE))
    pair = row(sub(name("R"), INDEX), bracketed(STEP), sign("="), turned)
    told = r"PE(p + k) = R(k)\,PE(p), \quad R_i(k) = \begin{pmatrix} \cos k\omega_i & \sin k\omega_i \\ "
    told += r"-\sin k\omega_i & \cos k\omega_i \end{pmatrix}"
    words = "k further on is the same rotation at every p, pair by pair: trained positions and others alike."
    return Formula("mathematics-rotation", words, lines(left, pair), told, error)


def kernel(error: str) -> Formula:
    """Products of positions."""
    t, s = name("t"), name("s")
    left = row(sub(name("P"), t), sign("·"), sub(name("P"), s))
    right = row(total(INDEX), name("cos"), bracketed(W, bracketed(t, sign("−"), s)))
    told = r"P_t \cdot P_s = \sum_i \cos\left(\omega_i (t - s)\right)"
    words = "So how like each other two positions are depends on their distance alone."
    return Formula("mathematics-kernel", words, row(left, sign("="), right), told, error)


def lookup(error: str = "") -> Formula:
    """Learned positions."""
    e, q = name("E"), name("q")
    loss = frac(row(sign("∂"), name("L")), row(sign("∂"), sub(e, q)))
    first = row(sub(name("P"), PLACE), sign("="), sub(e, PLACE))
    never = row(loss, sign("="), number(0), gap(), text("for every position q that no training example has"))
    told = r"P_p = E_p, \qquad \frac{\partial L}{\partial E_q} = 0 \text{ for every } q \text{ that no example has}"
    words = (
        "A learned encoding is looked up in a table. A row that was never looked up met no gradient: it is as drawn."
    )
    return Formula("mathematics-learned", words, lines(first, never), told, error)


def multiset(error: str = "") -> Formula:
    """Nothing but which numbers there are."""
    x = [sub(name("x"), number(1)), sign(","), sign("…"), sign(","), sub(name("x"), name("n"))]
    pi = [sub(name("x"), row(name("π"), bracketed(each))) for each in (number(1), name("n"))]
    moved = row(name("f"), bracketed(pi[0], sign(","), sign("…"), sign(","), pi[1]))
    made = row(name("f"), bracketed(*x), sign("="), moved, gap(), text("for every permutation π"))
    told = r"f(x_1, \dots, x_n) = f(x_{\pi(1)}, \dots, x_{\pi(n)}) \text{ for every permutation } \pi"
    words = (
        "Without positions, attention that looks both ways treats all places alike, and a symmetric pooling forgets "
        "which is which: such a model is a function of the multiset of its numbers, and cannot tell a sequence from "
        "the same numbers in order."
    )
    return Formula("mathematics-multiset", words, made, told, error)
