"""What sortedness data can be told to be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from headcount.config import config, suggestion
from headcount.tasks._orders import KINDS

Count = Annotated[int, Field(ge=0)]


@config
class SortednessConfig:
    """The data."""

    n_values: Annotated[int, Field(ge=2, le=100_000)] = 100
    """Numbers run from 0 to one less than this."""
    shortest: Annotated[int, Field(ge=2)] = 8
    """Shortest sequence in training."""
    longest: Annotated[int, Field(ge=2, le=100_000)] = 16
    """Longest sequence in training."""
    negatives: str = "shuffle:1,transpositions:1,displaced:1,adjacent:3"
    """Kinds of unsorted example and how often each: shuffle, transpositions, displaced, adjacent."""
    balance: Literal["exact", "coin"] = "exact"
    """Half of each set and of each fresh batch is sorted, exactly or by the toss of a coin."""
    matched: bool = False
    """Pairs: each unsorted sequence comes with its own sorted self."""
    distinct: bool = False
    """No number twice in a sequence, where it is no longer than there are numbers."""
    narrow: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the sequences whose numbers come from a narrow range: ties and small steps, as in long sequences."""
    n_train: Count = 0
    """Train on a fixed set of this many sequences; 0 draws fresh ones at every step."""
    n_validation: Annotated[int, Field(ge=2)] = 2000
    """Held-out sequences that training is watched with."""
    n_test: Annotated[int, Field(ge=2)] = 2000
    """Held-out sequences that the finished model is tested on."""
    split_seed: int = 0
    """Decides what is held out; apart from --seed, so that runs with different seeds share a test set."""
    padding_is_zero: bool = False
    """FAULT of the older reports: short sequences are filled up with the number 0, which is not masked."""

    @field_validator("longest")
    @classmethod
    def _not_below_shortest(cls, longest: int, info: ValidationInfo) -> int:
        if longest < info.data.get("shortest", longest):
            raise ValueError(f"is below shortest ({info.data['shortest']}): lower shortest, or raise longest")
        return longest

    @field_validator("negatives")
    @classmethod
    def _are_kinds(cls, text: str) -> str:
        kind_shares(text)
        return text

    @field_validator("narrow")
    @classmethod
    def _not_distinct(cls, narrow: float, info: ValidationInfo) -> float:
        if narrow and info.data.get("distinct"):
            raise ValueError("a narrow range has too few different numbers: leave --distinct or --narrow out")
        return narrow

    @field_validator("matched")
    @classmethod
    def _not_by_coin(cls, matched: bool, info: ValidationInfo) -> bool:
        if matched and info.data.get("balance") == "coin":
            raise ValueError("matched pairs are balanced as they are: leave --balance exact")
        return matched


def kind_shares(text: str) -> dict[str, float]:
    """The share of each kind of unsorted example.

    >>> kind_shares("shuffle,adjacent:3")
    {'shuffle': 0.25, 'adjacent': 0.75}
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        kind, _, weight = (piece.strip() for piece in part.partition(":"))
        if kind not in KINDS:
            raise ValueError(f"no kind {kind!r}; {suggestion(kind, tuple(KINDS))}")
        if kind in weights:
            raise ValueError(f"{kind} is named twice: write {kind}:2 to have it twice as often")
        try:
            weights[kind] = float(weight or 1)
        except ValueError:
            raise ValueError(f"{weight!r} is not how often {kind} should come: write {kind}:2") from None
        if not 0 < weights[kind] < float("inf"):
            raise ValueError(f"{kind} should come more often than never: write {kind}:1, or leave it out")
    total = sum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}
