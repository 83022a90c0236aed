"""The settings of a model's architecture."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from headcount.config import NameIn, config, misfit
from headcount.encodings import Count, EncodingSettings
from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.registry import Registry

POOLINGS = Registry("headcount.models.poolings")
MOST = 1024
"""Largest number of layers in a stack, and of heads in a layer."""
Layers = Annotated[int, Field(ge=1, le=MOST)]


def _listed(names: Any) -> Any:
    """Return the head names in a text such as `E0H1,X1H2`; other values, such as a list, are returned as they are."""
    if isinstance(names, str):
        names = [] if names == "none" else [name for name in names.split(",") if name.strip()]
    if isinstance(names, (list, tuple)):
        return [str(name) if isinstance(name, HeadId) else name for name in names]
    return names


def _in_full(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the long names of heads, such as `encoder.0.self.1` for `E0H1`, sorted and without duplicates."""
    try:
        return tuple(str(head) for head in sorted({HeadId.parse(name) for name in names}))
    except InputError as error:
        raise ValueError("; ".join([error.what, *error.advice])) from error


HeadNames = Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_in_full)]


@config
class StackConfig(EncodingSettings):
    """The settings that classifiers and encoder-decoders share, such as widths, heads and encoding."""

    d_model: Count = 128
    """Width of the residual stream."""
    n_heads: Annotated[int, Field(ge=1, le=MOST)] = 4
    """Number of heads in each attention block."""
    d_ff: Count = 512
    """Width of the feed-forward layers."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each block (pre) or after the residual sum (post, as in the 2017 paper)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of activations dropped in training."""
    softmax: Literal["plain", "log-length"] = "plain"
    """Plain softmax, or attention scores multiplied by a learned factor times the log of the number of visible keys."""
    window: Count | None = None
    """Largest distance between a query and the keys that it sees (none: unlimited). This gives the model locality."""
    pruned: HeadNames = ()
    """Names of the heads that are cut out, such as E0H1,X1H2."""

    @field_validator("n_heads")
    @classmethod
    def _divides(cls, n_heads: int, info: ValidationInfo) -> int:
        d_model = info.data.get("d_model", n_heads)
        if d_model % n_heads:
            allowed = [n for n in range(1, min(d_model, MOST) + 1) if d_model % n == 0]
            raise ValueError(
                f"must divide d_model ({d_model}) without remainder; allowed are {', '.join(map(str, allowed))}"
            )
        return n_heads

    @model_validator(mode="after")
    def _require_pruned_heads(self) -> Self:
        heads = {str(site.head(i)) for site in self.sites for i in range(self.n_heads)}
        if missing := [name for name in self.pruned if name not in heads]:
            ranges = [dict.fromkeys(site.head(i).short for i in (0, self.n_heads - 1)) for site in self.sites]
            known = ", ".join(" to ".join(ends) for ends in ranges)
            raise misfit("pruned", self.pruned, f"no head {', '.join(missing)}; the heads are: {known}")
        return self

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """All attention blocks (sites), including blocks whose heads are all cut out."""
        return ()

    def weight_bytes(self, n_tokens: int) -> int:
        """Estimate the size in bytes of a model's weights in single precision; its vocabulary has `n_tokens` tokens."""
        attention, feed_forward = 4 * self.d_model**2, 2 * self.d_model * self.d_ff
        return 4 * (len(self.sites) * (attention + feed_forward) + (n_tokens + self.n_positions) * self.d_model)

    def row_bytes(self, n_tokens: int) -> int:
        """Return a lower bound of the bytes that a forward pass over `n_tokens` positions keeps for gradients."""
        return 4 * len(self.sites) * n_tokens * (8 * self.d_model + 2 * self.d_ff)

    def kept(self, site: HeadSite) -> tuple[int, ...]:
        """Return the indices of the heads of an attention block that are not cut out."""
        return tuple(i for i in range(self.n_heads) if str(site.head(i)) not in self.pruned)


@config
class EncoderDecoderConfig(StackConfig):
    """The architecture of an encoder-decoder: layers, heads, widths, encoding and normalisation."""

    n_encoder_layers: Layers = 2
    """Number of encoder layers."""
    n_decoder_layers: Layers = 2
    """Number of decoder layers."""

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """All attention blocks: encoder self-attention, then decoder self-attention, then decoder cross-attention."""
        encoder = [HeadSite("encoder", i, "self") for i in range(self.n_encoder_layers)]
        decoder = [HeadSite("decoder", i, kind) for kind in ("self", "cross") for i in range(self.n_decoder_layers)]
        return (*encoder, *decoder)


@config
class ClassifierConfig(StackConfig):
    """The architecture of a classifier: an encoder, a pooling over positions, and a linear layer."""

    d_model: Count = 64
    """Width of the residual stream."""
    d_ff: Count = 256
    """Width of the feed-forward layers."""
    n_layers: Layers = 2
    """Number of layers."""
    causal: bool = False
    """Causal mask: no token attends to later tokens."""
    pooling: Annotated[str, NameIn(POOLINGS)] = "max"
    """Pooling of the sequence into one vector."""
    numbers: Literal["table", "fourier"] = "fourier"
    """Embedding of numbers: one learned vector each (table), or sines of the value, so that 54 is close to 55."""
    random_positions: Count | None = None
    """Give tokens random position ids below this number, in ascending order (none: the ids 0, 1, 2, ...)."""
    n_positions: Count = 16
    """Number of rows of a learned position table."""
    past_table: Literal["error", "clamp", "untrained"] = "untrained"
    """What a learned table does past its end: raise an error, repeat its last row, or use untrained random rows."""

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """The attention blocks of the classifier: one self-attention block per layer."""
        return tuple(HeadSite("layer", i, "self") for i in range(self.n_layers))


@config
class DecoderOnlyConfig(StackConfig):
    """The architecture of a decoder-only model: layers of causal self-attention over the question and the answer."""

    d_model: Count = 64
    """Width of the residual stream."""
    d_ff: Count = 256
    """Width of the feed-forward layers."""
    n_layers: Layers = 1
    """Number of layers."""
    position_ids: str = "order"
    """Position ids of the tokens: their order, or ids that the task knows, such as coupled. Those GIVE structure."""
    random_start: Count | None = None
    """Begin the ids at a random number below this one in training, so that longer sums have no new ids; none: at 0."""
    window: Count | None = None
    """Largest difference of position ids between a query and the keys that it sees; none: unlimited. GIVES locality."""

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """The attention blocks of the model: one self-attention block per layer."""
        return tuple(HeadSite("layer", i, "self") for i in range(self.n_layers))


MODEL_CONFIGS: dict[str, type[StackConfig]] = {
    "encoder-decoder": EncoderDecoderConfig,
    "decoder-only": DecoderOnlyConfig,
    "classifier": ClassifierConfig,
}
"""Maps each kind of model to its settings class."""
