"""Where a module keeps its projections: found by their names, or else by their shapes and order."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checker.about import About, Own
from clearhead.checker.problem import Problem
from clearhead.checker.signature import plain, role_of

PARTS = ("q", "k", "v", "o")
# What a part of a module is called, beside the names of arguments.
CALLED = {
    "q": "query q toq queries lq linq linearq queryproj queryprojection queryprojectionlayer",
    "k": "key k tok keys lk link lineark keyproj keyprojection",
    "v": "value v tov values lv linv linearv valueproj valueprojection",
    "o": "proj dense out o fc fcout linear toout final projection outputprojection attnout output"
    " wo outputproj resproj outprojection linearout unifyheads lo lino ow combine mix",
    "qkv": "qkv toqkv wqkv qkvproj querykeyvalue attn inproj inprojweight cattn qkvprojection"
    " fused projin qkvlinear",
    "kv": "kv tokv kvproj wkv keyvalue",
}
PART = {name: part for part, names in CALLED.items() for name in names.split()}
WEIGHT = {"W_Q": "q", "W_K": "k", "W_V": "v", "W_O": "o", "W_QKV": "qkv"}


@dataclass(frozen=True)
class Place:
    """One matrix of the module: which projections lie in it, side by side, and how."""

    name: str
    parts: tuple[str, ...]
    out_in: bool  # (out, in), as nn.Linear has it
    head: int | None = None  # of a module that keeps each head's matrices by themselves
    bias: str | None = None
    stacked: bool = False  # (heads, in, out of one head), for o (heads, d_head, M)


@dataclass(frozen=True)
class Places:
    """All projections of a module, and the sizes that follow from their shapes."""

    found: tuple[Place, ...]
    M: int
    H: int
    G: int
    D: int
    Dv: int
    by_head: bool = False  # a fused matrix holds q, k, v of head 0, then those of head 1, ...
    sinks: str | None = None

    @property
    def output(self) -> bool:
        return any("o" in place.parts for place in self.found)

    @property
    def biased(self) -> tuple[bool, ...]:
        """Whether q, k, v and o have a bias."""
        return tuple(
            any(part in place.parts and place.bias for place in self.found) for part in PARTS
        )

    def filled(self, problem: Problem) -> dict[str, Tensor]:
        """The module's parameters, holding the projections of this problem."""
        W = problem.W
        assert W is not None
        ours = {"q": W.q, "k": W.k, "v": W.v, "o": W.o}
        shifts = dict(zip(PARTS, W.biases or (), strict=False))
        made: dict[str, Tensor] = {}
        for place in self.found:
            blocks = [self._block(ours[part], part, place) for part in place.parts]
            if place.stacked:
                made[place.name] = self._stacked(blocks[0], place).contiguous().float()
                continue
            joined = self._joined(blocks)
            made[place.name] = (joined.mT if place.out_in else joined).contiguous().float()
            if place.bias is not None:
                rows = [self._block(shifts[part][None], part, place) for part in place.parts]
                made[place.bias] = self._joined(rows)[0].contiguous().float()
        if self.sinks is not None and problem.sinks is not None:
            made[self.sinks] = problem.sinks.float()
        return made

    def _block(self, matrix: Tensor | None, part: str, place: Place) -> Tensor:
        assert matrix is not None
        if place.head is None:
            return matrix
        width = matrix.shape[1] // (self.H if part == "q" else self.G)
        return matrix[:, place.head * width : (place.head + 1) * width]

    def _stacked(self, matrix: Tensor, place: Place) -> Tensor:
        if place.parts == ("o",):
            return matrix.reshape(self.H, -1, matrix.shape[1])
        heads = self.H if place.parts == ("q",) else self.G
        return matrix.reshape(matrix.shape[0], heads, -1).permute(1, 0, 2)

    def _joined(self, blocks: list[Tensor]) -> Tensor:
        if self.by_head and len(blocks) == 3:
            cut = [block.reshape(block.shape[0], self.H, -1) for block in blocks]
            return torch.cat(cut, dim=2).flatten(1)
        return torch.cat(blocks, dim=1)


def others(places: Places, about: About) -> list[str]:
    """Parameters of a module that are no projections: a norm, or an MLP."""
    known = {name for place in places.found for name in (place.name, place.bias)} | {places.sinks}
    return [own.name for own in about.own if not own.buffer and own.name not in known]


def find(about: About, H: int | None = None, G: int | None = None) -> list[Places]:
    """Ways to read a module's matrices as projections, the likeliest first; none: an empty list."""
    matrices = [own for own in about.own if not own.buffer and len(own.shape) in (2, 3)]
    named = [(own, *_part_of(own)) for own in matrices]
    known = [(own, part, head) for own, part, head in named if part is not None]
    if not {"qkv"} & {part for _, part, _ in known} and not _whole(known):
        known = list(_by_order(matrices))
    if not known:
        return []
    heads = H or _setting(about, "n_heads") or _per_head(known) or _stacked_heads(known)
    sinks = next((o.name for o in about.own if role_of(_last(o.name)) == "sinks"), None)
    ways = []
    known_to_be = _orientation(known)
    for count in (heads,) if heads or _setting(about, "d_head") else (4, 1, 2, 8):
        for out_in in (False, True) if known_to_be is None else (known_to_be,):
            places = tuple(_place(own, part, head, out_in, about) for own, part, head in known)
            ways.append(_sized(places, about, count, G or _setting(about, "n_kv"), sinks))
    made = [way for way in dict.fromkeys(ways) if way is not None]
    return [*made, *(replace(way, by_head=True) for way in made if _fused(way))]


def _fused(way: Places) -> bool:
    return way.H > 1 and any(place.parts == ("q", "k", "v") for place in way.found)


def _whole(known: list[tuple[Own, str, int | None]]) -> bool:
    parts = {part for _, part, _ in known}
    return {"q", "k", "v"} <= parts or {"q", "kv"} <= parts


def _last(name: str) -> str:
    """The telling word of a parameter's path: "q_proj" of "attn.q_proj.weight"."""
    words = [word for word in name.split(".") if not word.isdigit()]
    if len(words) > 1 and words[-1] in ("weight", "bias"):
        words = words[:-1]
    return words[-1] if words else ""


def _part_of(own: Own) -> tuple[str | None, int | None]:
    last = _last(own.name)
    part = WEIGHT.get(role_of(last) or "") or PART.get(plain(last))
    number = re.search(r"\.(\d+)\.", own.name)
    head = int(number[1]) if number and part in ("q", "k", "v") else None
    return part, head


def _by_order(matrices: list[Own]) -> Iterator[tuple[Own, str, int | None]]:
    """Four matrices alike are q, k, v and o; three are q, k, v; one three times as wide is all."""
    shapes = [own.shape for own in matrices]
    if len(matrices) in (3, 4) and len(set(shapes[:3])) == 1:
        yield from zip(matrices, PARTS, [None] * 4, strict=False)
    elif len(matrices) in (1, 2) and 3 * min(shapes[0]) == max(shapes[0]):
        yield from zip(matrices, ("qkv", "o"), [None] * 2, strict=False)


def _per_head(known: list[tuple[Own, str, int | None]]) -> int | None:
    numbers = [head for _, _, head in known if head is not None]
    return max(numbers) + 1 if numbers else None


def _stacked_heads(known: list[tuple[Own, str, int | None]]) -> int | None:
    return next(
        (own.shape[0] for own, part, _ in known if part == "q" and len(own.shape) == 3), None
    )


def _setting(about: About, role: str) -> int | None:
    for name, value in about.attributes.items():
        if role_of(name.rpartition(".")[2]) == role and type(value) is int:
            return value
    return None


def _orientation(known: list[tuple[Own, str, int | None]]) -> bool | None:
    """Whether the module's own matrices are (out, in), where one that is not square tells."""
    for own, part, _ in known:
        if own.owner == "Parameter" and len(own.shape) == 2 and own.shape[0] != own.shape[1]:
            return _tall(own, part)
    return None


def _tall(own: Own, part: str) -> bool:
    """Whether (out, in) is what this shape says: several matrices side by side, or one head's."""
    wide = own.shape[0] > own.shape[1]
    return wide if part in ("qkv", "kv", "o") else not wide


def _place(own: Own, part: str, head: int | None, out_in: bool, about: About) -> Place:
    parts = {"qkv": ("q", "k", "v"), "kv": ("k", "v")}.get(part, (part,))
    if "Linear" in own.owner:
        out_in = True
    elif own.owner == "Conv1D":
        out_in = False
    elif own.shape[0] != own.shape[1]:
        out_in = _tall(own, part)
    names = {o.name for o in about.own}
    stem = own.name
    wanted = [
        stem.removesuffix("weight") + "bias" if stem.endswith("weight") else "",
        stem.replace("W", "b", 1), stem.replace("w", "b", 1), f"{stem}_bias",
    ]  # fmt: skip
    bias = next((w for w in wanted if w in names and w != stem), None)
    return Place(own.name, parts, out_in, head, bias, stacked=len(own.shape) == 3)


def _sized(
    places: tuple[Place, ...], about: About, H: int | None, G: int | None, sinks: str | None
) -> Places | None:
    """The sizes of M, H, G and D; None where the shapes do not go together."""
    shapes = {own.name: own.shape for own in about.own}
    width: dict[str, int] = {}
    M = 0
    for place in places:
        rows, columns = shapes[place.name][-2:]
        out, into = (rows, columns) if place.out_in else (columns, rows)
        if place.stacked:
            out, into = columns * shapes[place.name][0], rows
        if place.parts == ("o",):
            continue
        M = M or into
        if into != M:
            return None
        for part in place.parts:
            share = out // len(place.parts) * (H or 1 if place.head is not None else 1)
            width[part] = share
            width[f"{part} of {len(place.parts)}"] = out
    if not {"q", "k", "v"} <= set(width):
        return None
    size = _setting(about, "d_head")
    H = H or (width["q"] // size if size else 1)
    if width.get("q of 3") == 3 * M:
        G = H
    elif "q of 3" in width and G and G != H:  # one matrix for H query heads and G key heads
        D = width["q of 3"] // (H + 2 * G)
        width = {"q": H * D, "k": G * D, "v": G * D}
    if width["q"] % H:
        return None
    D = width["q"] // H
    G = G or max(width["k"] // D, 1)
    if width["k"] != G * D or width["v"] % G:
        return None
    return Places(places, M, H, G, D, width["v"] // G, sinks=sinks)
