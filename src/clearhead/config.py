"""How an attention module attends: a small record instead of a dozen arguments."""

from dataclasses import dataclass

from clearhead.rotary import PAIRINGS
from clearhead.rule import Rule


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding: the first d_rotary numbers of a head (all, unless given)."""

    base: float = 10000.0
    d_rotary: int | None = None
    pairing: str = "halves"

    def __post_init__(self) -> None:
        if self.pairing not in PAIRINGS:
            raise ValueError(f"pairing must be one of {', '.join(PAIRINGS)}; got {self.pairing!r}")


@dataclass(frozen=True)
class AttentionConfig:
    """How a MultiHeadAttention attends. Every field may be left out.

    n_kv_heads  key and value heads, n_heads unless given; 1 is multi-query attention
    d_head      numbers in a head, d_model / n_heads unless given
    d_context   numbers in an embedding of `context`, for cross-attention; d_model unless given
    bias        whether the projections of q, k and v have one
    out_bias    whether that of the output has one; as `bias` unless given
    causal, window, softcap, scale
                as in Rule
    alibi       ALiBi, with the slopes of its paper
    sinks       one learned logit a head, which takes weight and gives nothing
    qk_norm     RMS norm of each query and key, with a learned gain, before positions
    rotary      rotary position embedding
    dropout     probability of dropping a weight in training; figures and maps never notice
    """

    n_kv_heads: int | None = None
    d_head: int | None = None
    d_context: int | None = None
    bias: bool = False
    out_bias: bool | None = None
    causal: bool = False
    window: int | tuple[int, int] | None = None
    softcap: float | None = None
    scale: float | None = None
    alibi: bool = False
    sinks: bool = False
    qk_norm: bool = False
    rotary: Rotary | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        Rule(scale=self.scale, causal=self.causal, window=self.window, softcap=self.softcap)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {self.dropout}")

    @property
    def ordered(self) -> bool:
        """Whether it matters where queries and keys stand, which only makes sense in one text."""
        return self.causal or self.alibi or self.window is not None or self.rotary is not None


def check_sizes(d_model: int, n_heads: int, n_kv_heads: int, config: AttentionConfig) -> int:
    """The size of a head; raises ValueError where sizes do not fit."""
    if min(d_model, n_heads, n_kv_heads) < 1:
        raise ValueError(
            f"d_model, n_heads and n_kv_heads must be at least 1; got {d_model}, {n_heads} and "
            f"{n_kv_heads}"
        )
    if n_heads % n_kv_heads:
        raise ValueError(
            f"n_heads must be a multiple of n_kv_heads; got {n_heads} and {n_kv_heads}"
        )
    if config.d_head is None and d_model % n_heads:
        raise ValueError(
            f"d_model {d_model} cannot be split over {n_heads} heads; say d_head in the config"
        )
    d_head = d_model // n_heads if config.d_head is None else config.d_head
    if d_head < 1:
        raise ValueError(f"d_head must be at least 1; got {d_head}")
    if config.rotary is not None:
        d_rotary = d_head if config.rotary.d_rotary is None else config.rotary.d_rotary
        if d_rotary % 2 or not 2 <= d_rotary <= d_head:
            raise ValueError(
                f"rotary turns pairs: d_rotary must be even, from 2 to d_head {d_head}; "
                f"got {d_rotary}"
            )
    return d_head
