"""Suggest "did you mean ...?" in errors about a name that is not known, such as a misspelt encoding or flag.

Suggestions for the names of heads are in `heads`, because they follow from the grammar of these names.
"""

import difflib
from collections.abc import Iterable

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "sinusoidal": ("sin", "cos", "sin/cos", "sin-cos", "sincos", "sine", "sinus", "fourier", "vaswani"),
    "rotary": ("rope", "roformer"),
    "none": ("nope", "no", "off", "nopos"),
    "learned": ("absolute", "abs", "learnable", "trained", "table", "embedding", "lookup", "gpt2", "bert"),
    "relative": ("shaw", "rel", "rpe"),
    "alibi-symmetric": ("alibi-bidirectional",),
    "mean": ("average", "avg"),
    "first": ("cls",),
    "zero": ("zeros", "knockout", "zero-ablation"),
    "resample": ("resampling", "interchange", "swap", "random", "resample-ablation"),
    "addition": ("add", "adder", "sum", "sums"),
    "sortedness": ("sort", "sorted", "sorter", "sorting"),
    "predict": ("answer", "infer", "ask", "generate"),
    "evaluate": ("eval", "test", "accuracy", "score"),
    "heads": ("attention", "attn", "show", "plot", "draw", "list"),
    "ablate": ("ablation", "knockout"),
    "prune": ("cut", "remove"),
    "audit": ("check", "lint"),
    "stretch": ("extrapolate", "lengths"),
    "adapt": ("adapter", "scaffold", "init"),
    "teacher-forced": ("forced",),
    "free-running": ("free", "decoded"),
}
"""Maps the name of a part, such as `rotary`, to synonyms, such as `rope`, which "did you mean" suggestions know."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with the known name closest to `name`, or a list of all known names if none is close.

    >>> suggestion("rope", ["learned", "rotary"]), suggestion("predit", ["audit", "predict"])
    ("did you mean 'rotary'?", "did you mean 'predict'?")
    """
    names, lower = list(known), str(name).lower()
    synonyms = [known_name for known_name in names if lower in OTHER_NAMES.get(known_name, ())]
    near = synonyms or difflib.get_close_matches(str(name), names, n=1) or difflib.get_close_matches(lower, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names) or 'none'}"
