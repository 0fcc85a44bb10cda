"""Somebody's attention, made of our own line with mistakes in it, in three styles of calling.

What stands here is called as people call theirs: by arguments alone, with no word about the steps.
"""

import torch
from torch import nn

from clearhead.checker import steps
from clearhead.checker.problem import Problem, Projections, Turn
from clearhead.checker.told import usual_slopes

STYLES = ("function", "teaching", "module")
TELLS = {"rotary": {"rotary": "halves"}, "window": {"window": 3}, "ALiBi": {"alibi": True},
         "softcap": {"softcap": 1.5}}  # fmt: skip


def run(problem, changes):
    work = steps.ATTENTION.run(problem, changes)
    hidden = ~work.visible.any(dim=-1) if hasattr(work, "visible") else None
    out = work.out
    if hidden is not None and bool(hidden.any()):
        out = out.nan_to_num(0.0)
    return out.float(), work.reported.float()


def function(changes):
    """f(q, k, v, ...): a mask, the causal flag and every other part of a rule as an argument."""

    def attention(q, k, v, attn_mask=None, is_causal=False, scale=None, window=None, softcap=None,
                  sinks=None, slopes=None):  # fmt: skip
        """q, k and v are (B, H, T, D); True in attn_mask may attend."""
        window = None if window is None else int(window)
        problem = Problem(
            q.double(), k.double(), v.double(), H=q.shape[1], G=k.shape[1], causal=is_causal,
            mask=attn_mask, window=window, scale=scale, softcap=softcap,
            sinks=None if sinks is None else sinks.double(),
            slopes=None if slopes is None else slopes.double(),
        )  # fmt: skip
        return run(problem, changes)

    return attention


def inside(changes, **rule):
    """f(q, k, v): causal, and what else is told, inside."""

    def causal_attention(q, k, v):
        """q, k and v are (B, H, T, D)."""
        slopes = usual_slopes(q.shape[1]) if rule.get("alibi") else None
        turn = Turn(rule["rotary"]) if "rotary" in rule else None
        problem = Problem(
            q.double(), k.double(), v.double(), H=q.shape[1], G=k.shape[1], causal=True,
            slopes=slopes, turn=turn, window=rule.get("window"), softcap=rule.get("softcap"),
        )  # fmt: skip
        return run(problem, changes)

    return causal_attention


def teaching(changes):
    """f(x, W_Q, W_K, W_V, W_O, n_heads, mask), for one text."""

    def multi_head_attention(x, W_Q, W_K, W_V, W_O, n_heads, mask):
        W = Projections(W_Q.double(), W_K.double(), W_V.double(), W_O.double())
        problem = Problem(x=x.double()[None], W=W, H=n_heads, G=n_heads, mask=mask.bool())
        out, weights = run(problem, changes)
        return out[0], weights[0]

    return multi_head_attention


class Module(nn.Module):
    """x -> out with four projections, causal inside."""

    def __init__(self, changes, n_heads=4, n_kv_heads=4, d_model=24, **rule):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.rule, self.changes = n_heads, n_kv_heads, rule, changes
        width = d_model // n_heads * n_kv_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, width, bias=False)
        self.v_proj = nn.Linear(d_model, width, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        W = Projections(*(part.weight.double().mT for part in
                          (self.q_proj, self.k_proj, self.v_proj, self.o_proj)))  # fmt: skip
        rule = self.rule
        problem = Problem(
            x=x.double(), W=W, H=self.n_heads, G=self.n_kv_heads, causal=True,
            turn=Turn(rule["rotary"]) if "rotary" in rule else None, window=rule.get("window"),
            slopes=usual_slopes(self.n_heads) if rule.get("alibi") else None,
            softcap=rule.get("softcap"),
        )  # fmt: skip
        return run(problem, self.changes)[0]


def subject(style, mistake, changes):
    """Somebody's attention with this mistake, and what they would tell of it."""
    told = TELLS.get(mistake.family, {})
    if style == "teaching":
        return teaching(changes), {}
    if style == "module":
        shared = mistake.family == "shared key heads" or mistake.name == "rotary-over-heads"
        return Module(changes, n_kv_heads=2 if shared else 4, **told), {**told, "causal": True}
    if "rotary" in told:
        return inside(changes, **told), told
    return function(changes), {"mask": "attend"}


def empty_rows_are(value, attention):
    """The same attention whose rows of nothing hold `value` in all places."""

    def attend(q, k, v, mask=None):
        """q, k and v are (B, H, T, D)."""
        out, weights = attention(q, k, v, mask)
        nothing = (
            ~torch.as_tensor(mask).expand(weights.shape).any(dim=-1) if mask is not None else None
        )
        if nothing is not None:
            out = out.masked_fill(nothing[..., None], value)
        return out

    return attend
