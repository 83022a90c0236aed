"""Enumerate the contexts of a classifier with windowed attention, and compute its answer in each of them.

The context of a position is the tokens that it can see. In a model with one layer and a window of 1, position i sees
the tokens i-1, i and i+1, and nothing else:

    numbers      3 5 4 9
    contexts     [- 3 5] [3 5 4] [5 4 9] [4 9 -]        - is outside of the sequence

If attention depends on distances only, equal contexts have equal outputs at any position of any sequence. A finite
table of all contexts then determines the model's answers at every length. `ContextShape.of` says how wide contexts are,
or why a model has no bounded contexts. `context_leads` computes the lead of one context: the logit of the first class
minus that of the last class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from headcount.encodings.base import Positions
from headcount.hooks.gates import eval_mode
from headcount.models.attention import KeyValueCache, MultiHeadAttention
from headcount.models.masking import AttentionMask
from headcount.models.transformer import Classifier, Layer
from headcount.tasks.base import ClassTask, Task
from headcount.training.device import workers

MOST_CONTEXTS = 5_000_000
"""Largest number of contexts that are enumerated; a context is the tokens that one position can see."""
AT_ONCE = 2**11
"""Number of contexts (the tokens that one position sees) per forward pass."""
Contexts = Int[Tensor, "context place"]


class Undecidable(Exception):
    """Raised with the reason why a model's answers cannot be decided from its contexts (what each position can see)."""


@dataclass(frozen=True)
class ContextShape:
    """How many tokens to the left and to the right each position of a model can see: the shape of its context."""

    left: int
    right: int
    n_tokens: int
    """The number of different tokens; in a context, this number also marks places outside of the sequence."""

    @classmethod
    def on_task(cls, model: object, task: Task) -> ContextShape:
        """Return the shape of a model's contexts (what each position can see).

        Raise `Undecidable` if contexts do not decide the model's answers, or the right answers of its task.
        """
        if not isinstance(model, Classifier) or task.output_type != "class":
            raise Undecidable("only classifiers that headcount trained have contexts that can be enumerated")
        shape = cls.of(model, len(task.tokens) - 1)  # all but the padding
        if cast(ClassTask, task).allowed_neighbours is None:
            raise Undecidable(f"neighbours alone do not decide the class of an example of {task.name}")
        return shape

    @classmethod
    def of(cls, model: Classifier, n_tokens: int) -> ContextShape:
        """Return the shape of a model's contexts (what each position can see).

        Raise `Undecidable` with the reason if contexts are not bounded, or do not decide the model's answers.
        """
        config = model.config
        causal = config.causal or model.positions.forces_causal
        left = config.n_layers * (config.window or 0)
        shape = cls(left, 0 if causal else left, n_tokens)
        has_bias = model.positions.is_bias_of_distance
        reasons = {
            "the model has no attention window, so every position sees the whole sequence": config.window is None,
            "the model's positions are random": config.random_positions is not None,
            f"the model's encoding ({config.encoding}) is not a bias of the distance": not has_bias,
            f"the model's softmax ({config.softmax}) is not the plain softmax": config.softmax != "plain",
            "the model does not mask padding": model.pad_id is None,
            "the model has more than two classes": model.to_logits.out_features != 2,
            f"no exact decision is known for the model's pooling ({config.pooling})": not model.pooling.combines,
        }
        if model.pooling.combines == "max" and not _first_class_rises(model):
            reasons["a larger score does not raise the logit of the model's first class"] = True
        if (reason := next((text for text, holds in reasons.items() if holds), None)) is not None:
            raise Undecidable(reason)
        if shape.n_contexts > MOST_CONTEXTS:
            raise Undecidable(f"the model has {shape.n_contexts:,} contexts (at most {MOST_CONTEXTS:,} are enumerated)")
        return shape

    @property
    def width(self) -> int:
        """The number of tokens in a context: tokens to the left, the position's own token, and tokens to the right."""
        return self.left + 1 + self.right

    @property
    def n_contexts(self) -> int:
        """The number of different contexts, including the shorter contexts at both ends of a sequence."""
        return sum(self.n_tokens ** (left + 1 + right) for left, right in self.borders())

    def borders(self) -> Iterator[tuple[int, int]]:
        """Yield all pairs (left, right) of how many tokens a position may see on each side; fewer near the ends."""
        yield from product(range(self.left + 1), range(self.right + 1))

    def block(self, left: int, right: int) -> tuple[int | slice, ...]:
        """Return the index, in a table of all contexts, of those with `left` and `right` tokens beside the position."""
        inside = (slice(0, self.n_tokens),) * (left + 1 + right)
        return (*[self.n_tokens] * (self.left - left), *inside, *[self.n_tokens] * (self.right - right))


def layers_of(model: Classifier) -> list[Layer]:
    """Return the layers of a classifier, from the first to the last."""
    return [layer for layer in model.layers if isinstance(layer, Layer)]


def _first_class_rises(model: Classifier) -> bool:
    weight = model.to_logits.weight.detach()
    return bool(weight[0, 0] > weight[-1, 0])


def enumerate_contexts(n_tokens: int, width: int, at_once: int = AT_ONCE) -> Iterator[Contexts]:
    """Yield all sequences of `width` tokens in lexicographic order, in blocks of `at_once` sequences."""
    total = n_tokens**width
    places = n_tokens ** np.arange(width - 1, -1, -1)
    for start in range(0, total, at_once):
        numbers = np.arange(start, min(start + at_once, total))
        yield torch.from_numpy(numbers[:, None] // places % n_tokens)


def lead_table(model: Classifier, shape: ContextShape, *, all_cores: bool = True) -> NDArray[np.float32]:
    """Return a table of the lead of every context: the logit of the first class minus that of the last class.

    The table is indexed by the tokens that a position sees; for example, [- 3 5] has the index (n_tokens, 3, 5).
    Indices that are no context hold NaN. Without `all_cores`, one core computes the table.
    """
    pool = workers(model, most=None if all_cores else 1)
    table = np.full((shape.n_tokens + 1,) * shape.width, np.nan, dtype=np.float32)
    with eval_mode(model, gradients=False) as device, pool as compute:
        for left, right in shape.borders():
            width = left + 1 + right

            def leads(tokens: Contexts, left: int = left) -> NDArray[np.float32]:
                return context_leads(model, tokens.to(device), left).cpu().numpy()

            blocks = list(compute(leads, enumerate_contexts(shape.n_tokens, width)))
            table[shape.block(left, right)] = np.concatenate(blocks).reshape((shape.n_tokens,) * width)
    return table


@torch.inference_mode()
def context_leads(model: Classifier, tokens: Contexts, centre: int) -> Float[Tensor, " context"]:
    """Return the lead of each context: the logit of the first class minus that of the last class.

    `tokens` [context, place] are the contexts, and only the output at the place `centre` is pooled. To save time, the
    last layer computes one query and the keys in its window. In a model with one layer, keys and values depend on the
    token only, so they are computed once per token.
    """
    where = Positions.in_order(tokens.shape[1], tokens.device)._replace(padded=False)
    encoding, width = model.positions, model.config.window or 0
    causal = model.config.causal or encoding.forces_causal
    embedded = model.tokens(torch.arange(model.pad_id or 0, device=tokens.device)[None])[0]
    masking = AttentionMask(None, causal, width, encoding, queries=where, keys=where, padding="none")
    x, (*layers, last) = embedded[tokens], layers_of(model)
    for layer in layers:
        x = layer(x, masking=masking)
    keys = slice(max(0, centre - width), centre + 1 if causal else centre + width + 1)
    attention, residual = last.self_attention.attention, last.self_attention.residual
    cache, seen = KeyValueCache(), x[:, keys]
    if not layers and isinstance(attention, MultiHeadAttention):
        normed = residual.norm(embedded) if residual.pre else embedded
        cache.key, cache.value = (
            project(normed).unflatten(-1, (-1, attention.d_head))[tokens[:, keys]].transpose(1, 2)
            for project in (attention.key, attention.value)
        )
    elif residual.pre:
        seen = residual.norm(seen)
    query_at, key_at = (where._replace(ids=where.ids[:, part]) for part in (slice(centre, centre + 1), keys))
    masking = AttentionMask(encoding=encoding, queries=query_at, keys=key_at, padding="none")
    x = residual(x[:, centre : centre + 1], lambda query: attention(query, seen, masking=masking, cache=cache))
    x = model.norm(last.feed_forward(x))
    logits = model.to_logits(model.pooling(x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)))
    return logits[:, 0] - logits[:, -1]
