"""What an argument is made of: ours in somebody's layout and form."""

from typing import Any

import torch
from torch import Tensor

from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Stub
from clearhead.checker.problem import Problem, Turn


class _LeftOut:
    pass


LEFT_OUT = _LeftOut()


def formed(sees: Tensor, form: str) -> Tensor:
    """A mask of True = may look, in another form."""
    if form == "attend":
        return sees.contiguous()
    if form == "hide":
        return (~sees).contiguous()
    if form == "ones":
        return sees.float().contiguous()
    return torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)


def laid(ours: Tensor, layout: str) -> Tensor:
    """(B, H, T, D) or (B, T, M) in another layout, float32."""
    axes = "BHTD" if ours.ndim == 4 else "BTM"
    for letter in axes:
        if letter not in layout and ours.shape[axes.index(letter)] != 1:
            raise Unanswerable(f"{layout} has no axis {letter}")
    kept = [letter for letter in axes if letter in layout]
    for letter in axes:
        if letter not in kept:
            ours = ours.select(axes.index(letter), 0)
            axes = axes.replace(letter, "")
    order = [kept.index(letter) for letter in layout]
    return ours.permute(order).contiguous().float()


def cosines(role: str, p: Problem, table: str) -> Tensor:
    """cos or sin of the angles of all positions: (T, D) or (T, D/2)."""
    turn, (_, T, _) = p.turn or Turn(), p.sizes
    D = p.head_size
    angles = torch.arange(T)[:, None] * turn.base ** (-2.0 * torch.arange(D // 2) / D).double()
    if table != "half":
        twice = table == "halves"
        angles = torch.cat((angles, angles), 1) if twice else angles.repeat_interleave(2, 1)
    return (angles.cos() if role == "cos" else angles.sin()).float()


def module_of(p: Problem) -> Stub:
    """What transformers hand to their eager functions as `module`."""
    settings: dict[str, Any] = {
        "num_key_value_groups": p.H // p.G, "is_causal": False, "head_dim": p.head_size,
        "scaling": p.head_size**-0.5, "attention_dropout": 0.0, "layer_idx": 0,
        "softcap": p.softcap, "attn_logit_softcapping": p.softcap,
    }  # fmt: skip
    if p.sinks is not None:
        settings["sinks"] = p.sinks.float()
    return Stub({**settings, "config": Stub(dict(settings))})
