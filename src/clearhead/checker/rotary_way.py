"""One way of calling a function that turns pairs by their positions."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.checker import lines
from clearhead.checker.about import About, Parameter
from clearhead.checker.arguments import LEFT_OUT
from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Reply, Request
from clearhead.checker.crafts import OfTensors, called, required
from clearhead.checker.lines import Rotation
from clearhead.checker.probes import Probe
from clearhead.checker.problem import Problem, Turn
from clearhead.checker.signature import plain, role_of, roles
from clearhead.checker.told import Reading

KNOWN = {"cos", "sin", "positions", "base", "size", "d_head", "d_model", "n_heads", "axis"}


def _tensors(about: About) -> list[Parameter]:
    """What is to be turned: x, or q and k."""
    plain_ = [p for p in required(about) if plain(p.name) not in ("freqscis", "freqs", "cis")]
    named = [p for p in plain_ if role_of(p.name) in ("q", "k", "x")]
    return (named or [p for p in plain_ if role_of(p.name) not in KNOWN][:1] or plain_[:1])[:2]


@dataclass(frozen=True, eq=False)
class RotaryWay(OfTensors):
    """table: what cosines are handed over; wide: their axes, "" (T, ..), "B" (B, T, ..), and with
    "H" one of size 1 where the heads are."""

    about: About
    values: dict[str, Any]
    layout: str = "BHTD"
    numpy: bool = False
    table: str = ""
    wide: str = ""
    D: int = 8

    @property
    def twins(self) -> bool:
        return {"q", "k"} <= set(roles(self.about.parameters)) or len(_tensors(self.about)) == 2

    def request(self, probe: Probe, **rest: Any) -> Request:
        p = probe.problem
        assert isinstance(p, Rotation)
        unnamed = iter(_tensors(self.about))
        where = dict(zip((p.name for p in unnamed), ("q", "k"), strict=False))

        def value(role: str | None, parameter: Parameter) -> Any:
            name = plain(parameter.name)
            if parameter.name in where:
                tensor = getattr(p, where[parameter.name])
                return self.laid(tensor).float()
            if role in ("cos", "sin") and (parameter.required or self.table):
                return self.cosines(role, p)
            if name in ("freqscis", "freqs", "cis"):
                angles = self.angles(p)
                return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
            if role == "positions" and (parameter.required or "positions" in probe.hands):
                return torch.arange(p.sizes[1]) if p.positions is None else p.positions
            if role == "base" and (parameter.required or "base" in probe.hands):
                return p.own_base if p.own_base is not None else 10000.0
            if not parameter.required:
                return LEFT_OUT
            sizes = {"d_head": self.D, "d_model": self.D, "size": p.sizes[1], "n_heads": p.H}
            if role in sizes:
                return sizes[role]
            raise Unanswerable(
                f"nobody knows what {parameter.name!r} is: --set {parameter.name}=VALUE"
            )

        return called(self.about, value, self.values, numpy=self.numpy, **rest)

    def angles(self, p: Rotation) -> Tensor:
        work = lines.ROTARY.run(Reading(turn=p.turn or Turn()).of(p), {})
        angles: Tensor = work.angles
        return angles

    def cosines(self, role: str, p: Rotation) -> Tensor:
        angles = self.angles(p)
        if self.table == "halves":
            angles = torch.cat((angles, angles), dim=-1)
        elif self.table == "interleaved":
            angles = angles.repeat_interleave(2, dim=-1)
        table = (angles.cos() if role == "cos" else angles.sin()).float()
        if "B" in self.wide:
            table = table.expand(p.q.shape[0] if "B" in self.layout else 1, *table.shape)  # type: ignore[union-attr]
        if "H" in self.wide:
            table = table.unsqueeze(self.layout.index("H"))
        return table.contiguous()

    def laid(self, x: Tensor) -> Tensor:
        """(B, H, T, D) in this way's layout; the first of what has no axis."""
        x = x if x.ndim == 4 else x[0]
        for axis, letter in ((1, "H"), (0, "B")):
            if letter not in self.layout:
                x = x.select(axis, 0)
        have = [letter for letter in "BHTD" if letter in self.layout]
        return x.permute([have.index(letter) for letter in self.layout]).contiguous()

    def read(self, reply: Reply, probe: Probe, call: int = 0) -> Tensor:
        p, tensors = probe.problem, reply.answers[call]
        wanted = 2 if self.twins else 1
        if len(tensors) == 1 and self.twins and tensors[0].ndim == len(self.layout) + 1:
            tensors = tuple(tensors[0])
        if len(tensors) != wanted:
            raise Unanswerable(f"{len(tensors)} tensors came back where {wanted} were due")
        return torch.stack([self.ours(each, p) for each in tensors])

    def ours(self, there: Tensor, p: Problem) -> Tensor:
        sizes = dict(zip("BHTD", p.q.shape, strict=True))  # type: ignore[union-attr]
        due = tuple(sizes[letter] for letter in self.layout)
        if there.is_complex() or tuple(there.shape) != due:
            raise Unanswerable(f"the answer is {list(there.shape)} where {list(due)} was due")
        have = self.layout
        for letter in "HB":
            if letter not in have:
                there, have = there[None], letter + have
        return there.permute([have.index(letter) for letter in "BHTD"]).double()

    def theirs(self, ours: Tensor, reply: Reply) -> Tensor:
        return self.laid(ours[0]).to(reply.answers[0][0].dtype)

    def inputs(self, probe: Probe) -> tuple[tuple[str, Tensor], ...]:
        p = probe.problem
        assert isinstance(p, Rotation) and p.q is not None and p.k is not None
        names = [("q", p.q), ("k", p.k)] if p.twins else [("x", p.q)]
        made = [(name, each[0, 0]) for name, each in names]
        if p.positions is not None:
            made.append(("positions", p.positions))
        return tuple(made)
