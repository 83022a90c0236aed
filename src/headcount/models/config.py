"""What a model can be told to be."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from headcount.config import NameIn, config, misfit
from headcount.encodings import Count, EncodingSettings
from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.registry import Registry

POOLINGS = Registry("headcount.models.poolings")
MOST = 1024
"""Layers of a stack, and heads of a layer."""
Layers = Annotated[int, Field(ge=1, le=MOST)]


def _listed(names: Any) -> Any:
    """`E0H1,X1H2` as a list; heads by their names."""
    if isinstance(names, str):
        names = [] if names == "none" else [name for name in names.split(",") if name.strip()]
    if isinstance(names, (list, tuple)):
        return [str(name) if isinstance(name, HeadId) else name for name in names]
    return names


def _in_full(names: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, in order, by its long name."""
    try:
        return tuple(str(head) for head in sorted({HeadId.parse(name) for name in names}))
    except InputError as error:
        raise ValueError("; ".join([error.what, *error.advice])) from error


HeadNames = Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_in_full)]


@config
class StackConfig(EncodingSettings):
    """What the layers of any model have in common."""

    d_model: Count = 128
    """Width of the residual stream."""
    n_heads: Annotated[int, Field(ge=1, le=MOST)] = 4
    """Heads in each attention block."""
    d_ff: Count = 512
    """Width of the feed-forward layers."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each block (pre) or after the residual sum (post, as the 2017 paper)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of activations dropped in training."""
    softmax: Literal["plain", "log-length"] = "plain"
    """Plain, or scores multiplied by a learned multiple of the log of how many tokens are visible."""
    window: Count | None = None
    """Self-attention looks no farther than this many tokens; none: everywhere. GIVES locality away."""
    pruned: HeadNames = ()
    """Heads that are cut out, by name, such as E0H1,X1H2."""

    @field_validator("n_heads")
    @classmethod
    def _divides(cls, n_heads: int, info: ValidationInfo) -> int:
        d_model = info.data.get("d_model", n_heads)
        if d_model % n_heads:
            allowed = [n for n in range(1, min(d_model, MOST) + 1) if d_model % n == 0]
            raise ValueError(f"must divide d_model ({d_model}): {', '.join(map(str, allowed))}")
        return n_heads

    @model_validator(mode="after")
    def _had_them(self) -> Self:
        whole = {str(site.head(i)) for site in self.sites for i in range(self.n_heads)}
        if missing := [name for name in self.pruned if name not in whole]:
            ends = [dict.fromkeys(site.head(i).short for i in (0, self.n_heads - 1)) for site in self.sites]
            there = ", ".join(" to ".join(each) for each in ends)
            raise misfit("pruned", self.pruned, f"no head {', '.join(missing)}; there are: {there}")
        return self

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """Every attention site, also one whose heads are all cut out."""
        return ()

    def weight_bytes(self, n_tokens: int) -> int:
        """About what a model of this shape takes in single precision, with a vocabulary of so many tokens."""
        attention, feed_forward = 4 * self.d_model**2, 2 * self.d_model * self.d_ff
        return 4 * (len(self.sites) * (attention + feed_forward) + (n_tokens + self.n_positions) * self.d_model)

    def row_bytes(self, n_tokens: int) -> int:
        """The least that a forward pass over one sequence of so many tokens keeps for the backward pass."""
        return 4 * len(self.sites) * n_tokens * (8 * self.d_model + 2 * self.d_ff)

    def kept(self, site: HeadSite) -> tuple[int, ...]:
        """Which of a site's heads are there."""
        return tuple(i for i in range(self.n_heads) if str(site.head(i)) not in self.pruned)


@config
class EncoderDecoderConfig(StackConfig):
    """Shape of the model."""

    n_encoder_layers: Layers = 2
    """Encoder layers."""
    n_decoder_layers: Layers = 2
    """Decoder layers."""

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """Encoder first, then the decoder's own attention, then its cross-attention."""
        encoder = [HeadSite("encoder", i, "self") for i in range(self.n_encoder_layers)]
        decoder = [HeadSite("decoder", i, kind) for kind in ("self", "cross") for i in range(self.n_decoder_layers)]
        return (*encoder, *decoder)


@config
class ClassifierConfig(StackConfig):
    """Shape of the model."""

    d_model: Count = 64
    """Width of the residual stream."""
    d_ff: Count = 256
    """Width of the feed-forward layers."""
    n_layers: Layers = 2
    """Layers."""
    causal: bool = False
    """No token looks ahead."""
    pooling: Annotated[str, NameIn(POOLINGS)] = "max"
    """How a sequence becomes one vector."""
    numbers: Literal["table", "fourier"] = "fourier"
    """Numbers enter by a free vector each, or by waves of their value, which know that 54 is near 55."""
    random_positions: Count | None = None
    """Give the tokens a random subset of this many ids, in order; none: count from 0."""
    n_positions: Count = 16
    """Rows of a learned position table."""
    past_table: Literal["error", "clamp", "untrained"] = "untrained"
    """What a learned table does past its end: refuse, repeat its last row, or go on with rows as they are drawn."""

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """One in each layer."""
        return tuple(HeadSite("layer", i, "self") for i in range(self.n_layers))


MODEL_CONFIGS: dict[str, type[StackConfig]] = {"sequence": EncoderDecoderConfig, "class": ClassifierConfig}
"""Which model, by what the task asks for."""
