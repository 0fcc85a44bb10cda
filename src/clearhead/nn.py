"""The attention module: learned projections, positions and a cache around the engine.

What scratch.py teaches, in the shape in which models use it. The names of its parameters are those
of Llama's attention, so that its weights can be loaded as they are:

    q_proj.weight  (H D, d_model)        k_proj.weight, v_proj.weight  (G D, d_context or d_model)
    o_proj.weight  (d_model, H D)        q_proj.bias, ... where there is a bias
    q_norm.weight, k_norm.weight  (D,)   with qk_norm
    sinks  (H,)                          with sinks

Letters: B batch, T queries, S keys, H query heads, G key heads, D head size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from clearhead.cache import KVCache
from clearhead.config import AttentionConfig, Rotary, check_sizes
from clearhead.engine import Attended, attention, output
from clearhead.map import AttentionMap
from clearhead.rotary import apply_rotary, rotary_cos_sin
from clearhead.rule import Rule, alibi_slopes, shape_of

NEEDS = ("none", "stats", "map")


@dataclass(frozen=True, eq=False)
class AttentionOutput:
    """What a module returns: out (B, T, d_model), and what need= asked for, or None."""

    out: Tensor
    attended: Attended | None = None
    map: AttentionMap | None = None

    def __repr__(self) -> str:
        return f"AttentionOutput(out {shape_of(self.out)}, {self.attended!r}, {self.map!r})"


class MultiHeadAttention(nn.Module):
    """Multi-head attention on the engine: exact, in O(T) memory, and open to be looked at.

        q, k, v = x W_q, x W_k, x W_v       out = attention(q, k, v, rule) W_o

        attend = MultiHeadAttention(512, 8, AttentionConfig(causal=True))
        attend(x).out, attend(x, need="stats").attended.entropy

    x is (B, T, d_model), or (T, d_model); keys and values come from `context` (B, S, d_context)
    where it is given. Projections start as torch's Linear starts them, sinks at 0.

    Raises ValueError for sizes that do not fit.
    """

    def __init__(self, d_model: int, n_heads: int, config: AttentionConfig | None = None) -> None:
        super().__init__()
        self.d_model, self.n_heads = d_model, n_heads
        self.config = c = AttentionConfig() if config is None else config
        self.n_kv_heads = n_heads if c.n_kv_heads is None else c.n_kv_heads
        self.d_head = check_sizes(d_model, n_heads, self.n_kv_heads, c)
        d_context = d_model if c.d_context is None else c.d_context
        wide, narrow = n_heads * self.d_head, self.n_kv_heads * self.d_head
        self.q_proj = nn.Linear(d_model, wide, c.bias)
        self.k_proj = nn.Linear(d_context, narrow, c.bias)
        self.v_proj = nn.Linear(d_context, narrow, c.bias)
        self.o_proj = nn.Linear(wide, d_model, c.bias if c.out_bias is None else c.out_bias)
        self.q_norm = nn.RMSNorm(self.d_head, eps=1e-6) if c.qk_norm else None
        self.k_norm = nn.RMSNorm(self.d_head, eps=1e-6) if c.qk_norm else None
        self.sinks = nn.Parameter(torch.zeros(n_heads)) if c.sinks else None

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        cache: KVCache | None = None,
        need: str = "none",
    ) -> AttentionOutput:
        """Attend, within x or from x to `context`.

        key_mask  (B, S) bool, True = a real token; in self-attention the queries that it leaves
                  out are left out of the figures too
        cache     what earlier calls have seen; x then holds the new tokens alone, and key_mask
                  theirs
        need      "none": the output alone; "stats": also Attended, with the figures of every row;
                  "map": also the lazy map of weights. The figures are those of the weights before
                  dropout
        """
        if need not in NEEDS:
            raise ValueError(f"need must be one of {', '.join(NEEDS)}; got {need!r}")
        flat = x.ndim == 2
        x = x[None] if flat else x
        context = context[None] if context is not None and flat and context.ndim == 2 else context
        self._check(x, context, key_mask, cache)
        source = x if context is None else context
        q = self._heads(self.q_proj(x), self.n_heads, self.q_norm)  # (B, H, T, D)
        k = self._heads(self.k_proj(source), self.n_kv_heads, self.k_norm)  # (B, G, S, D)
        v = self._heads(self.v_proj(source), self.n_kv_heads)
        first = 0 if cache is None else cache.length
        if self.config.rotary is not None:
            q, k = (self._turned(y, first, self.config.rotary) for y in (q, k))
        query_mask = key_mask if context is None else None
        c = self.config
        grown = None
        if cache is not None:
            grown = cache.grown(k, v, key_mask)
            k, v, key_mask = grown
        slopes = alibi_slopes(self.n_heads).to(x.device) if c.alibi else None
        rule = Rule(
            scale=c.scale, causal=c.causal, window=c.window, softcap=c.softcap, alibi=slopes,
            sinks=self.sinks, key_mask=key_mask, query_mask=query_mask,
        )  # fmt: skip
        dropout = c.dropout if self.training else 0.0
        attended, seen = None, None
        if need == "none":
            mixed = output(q, k, v, rule, dropout=dropout)
        else:
            attended = attention(q, k, v, rule, dropout=dropout)
            assert attended.out is not None
            mixed = attended.out
            seen = AttentionMap(q, k, rule, lse=attended) if need == "map" else None
        if cache is not None and grown is not None:  # now that nothing can fail any more
            cache.keep(grown, x.shape[1], self._before())
        out = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return AttentionOutput(out[0] if flat else out, attended, seen)

    def extra_repr(self) -> str:
        default = vars(AttentionConfig())
        said = [f"{n}={v}" for n, v in vars(self.config).items() if v != default[n]]
        return ", ".join([f"{self.d_model}, {self.n_heads} heads", *said])

    def _heads(self, x: Tensor, n: int, norm: nn.RMSNorm | None = None) -> Tensor:
        """(B, T, n D) as (B, n, T, D)."""
        x = x.unflatten(-1, (n, self.d_head))
        if norm is not None:  # in the dtype of its gain, which autocast leaves alone
            x = norm(x.to(norm.weight.dtype)).to(x.dtype)
        return x.transpose(1, 2)

    def _turned(self, x: Tensor, first: int, rotary: Rotary) -> Tensor:
        d_rotary = self.d_head if rotary.d_rotary is None else rotary.d_rotary
        positions = torch.arange(first, first + x.shape[2], device=x.device)
        cos, sin = rotary_cos_sin(positions, d_rotary, rotary.base)
        return apply_rotary(x, cos, sin, rotary.pairing, d_rotary)

    def _before(self) -> int | None:
        """How many keys before its own a query sees; None is all of them."""
        window = self.config.window
        if isinstance(window, tuple):
            return window[0]
        return None if window is None else window - 1

    def _check(
        self, x: Tensor, context: Tensor | None, key_mask: Tensor | None, cache: KVCache | None
    ) -> None:
        if x.ndim != 3 or x.shape[-1] != self.d_model:
            raise ValueError(
                f"x must be (B, T, {self.d_model}) or (T, {self.d_model}); got {shape_of(x)}"
            )
        if context is not None:
            d_context = self.k_proj.in_features
            if context.ndim != 3 or context.shape[::2] != (x.shape[0], d_context):
                raise ValueError(
                    f"context must be (B, S, {d_context}) with the batch size of x, "
                    f"{x.shape[0]}; got {shape_of(context)}"
                )
            if self.config.ordered:
                raise ValueError(
                    "this module looks at positions (causal, window, alibi or rotary), which mean "
                    "nothing between two texts: make one without them for cross-attention"
                )
        elif self.config.d_context not in (None, self.d_model):
            raise ValueError(
                f"this module reads a context of {self.config.d_context} numbers: give context="
            )
        keys = (x if context is None else context).shape[:2]
        if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != keys):
            raise ValueError(
                f"key_mask must be bool and (B, S) = {tuple(keys)}, True for a real token; got "
                f"{key_mask.dtype} {shape_of(key_mask)}"
            )
        if cache is not None and (context is not None or not self.config.causal):
            raise ValueError(
                "a cache is for decoding with causal self-attention; "
                + ("there is a context" if context is not None else "this module is not causal")
            )

    # From torch and back --------------------------------------------------------------------------

    @classmethod
    def from_torch(
        cls, module: nn.MultiheadAttention, config: AttentionConfig | None = None
    ) -> "MultiHeadAttention":
        """The same attention with the weights of a torch.nn.MultiheadAttention, copied.

        `config` may add what torch's module has told in its call (causal, say); its sizes, bias and
        dropout are the module's. Ours takes the batch first, whatever batch_first was. Raises
        ValueError for add_bias_kv, add_zero_attn and kdim != vdim, which ours does not have.
        """
        has = [
            name
            for name, there in (
                ("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn),
                ("kdim != vdim", module.kdim != module.vdim),
            )
            if there
        ]  # fmt: skip
        if has:
            raise ValueError(f"nn.MultiheadAttention with {', '.join(has)} has no equal here")
        bias = module.in_proj_bias is not None
        new = cls(
            module.embed_dim, module.num_heads,
            replace(
                AttentionConfig() if config is None else config,
                n_kv_heads=None, d_head=None, bias=bias, out_bias=bias, dropout=module.dropout,
                d_context=None if module.kdim == module.embed_dim else module.kdim,
            ),
        )  # fmt: skip
        like = module.out_proj.weight
        new.to(like.device, like.dtype).train(module.training)
        with torch.no_grad():
            for ours, theirs in _pairs(new, module):
                ours.copy_(theirs)
        return new

    def to_torch(self) -> nn.MultiheadAttention:
        """A batch-first torch.nn.MultiheadAttention with the same weights, copied.

        Causality is an argument of its call. Raises ValueError for what it cannot do.
        """
        c = self.config
        cannot = [
            name
            for name, there in (
                ("n_kv_heads", self.n_kv_heads != self.n_heads),
                ("d_head", self.d_head * self.n_heads != self.d_model),
                ("window", c.window is not None), ("softcap", c.softcap is not None),
                ("scale", c.scale is not None), ("alibi", c.alibi), ("sinks", c.sinks),
                ("qk_norm", c.qk_norm), ("rotary", c.rotary is not None),
                ("bias != out_bias", c.out_bias not in (None, c.bias)),
            )
            if there
        ]  # fmt: skip
        if cannot:
            raise ValueError(f"nn.MultiheadAttention cannot do {', '.join(cannot)}")
        new = nn.MultiheadAttention(
            self.d_model, self.n_heads, dropout=c.dropout, bias=c.bias, kdim=c.d_context,
            vdim=c.d_context, batch_first=True,
        )  # fmt: skip
        like = self.o_proj.weight
        new.to(like.device, like.dtype).train(self.training)
        with torch.no_grad():
            for ours, theirs in _pairs(self, new):
                theirs.copy_(ours)
        return new


def _pairs(
    ours: MultiHeadAttention, theirs: nn.MultiheadAttention
) -> Iterator[tuple[Tensor, Tensor]]:
    """Our parameters, each with the one of torch's module that is the same: views."""
    if theirs.kdim == theirs.vdim == theirs.embed_dim:
        weights = theirs.in_proj_weight.chunk(3)
    else:
        weights = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
    linears = ours.q_proj, ours.k_proj, ours.v_proj
    yield from zip((linear.weight for linear in linears), weights, strict=True)
    yield ours.o_proj.weight, theirs.out_proj.weight
    if ours.config.bias:
        biases = theirs.in_proj_bias.chunk(3)
        yield from zip((linear.bias for linear in linears), biases, strict=True)
        yield ours.o_proj.bias, theirs.out_proj.bias
