"""How somebody's attention is to be called, and how its answer is to be read.

A `Manner` turns a `Problem` into a `Request` and a `Reply` into an `Answer` of our own axes. Sizes
of different axes differ in every problem, so that an axis of an answer is known by its size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checker.about import About, Parameter
from clearhead.checker.arguments import LEFT_OUT, cosines, formed, laid, module_of
from clearhead.checker.axes import Answer, Unanswerable, letters, named, orders, ours
from clearhead.checker.calls import Reply, Request, Stub
from clearhead.checker.problem import Problem, Projections
from clearhead.checker.projections import Places
from clearhead.checker.signature import plain, roles

LAYOUTS = {"sdp": ("BHTD", "BTHD", "HTD", "BTD", "TD", "THD"), "teach": ("TM", "BTM"),
           "module": ("BTM", "TM", "TBM")}  # fmt: skip
NOTHING = frozenset[str]()
PADDING = {"hidden", "keep"}  # a mask of keys alone, as a key padding mask
MASKING = {"mask", "bias"} | PADDING
USUAL = {"hidden": "hide", "keep": "attend"}  # what True means in a mask of keys of that name
# What keys and values are made of where that is not x. It is handed x: attention to itself.
CONTEXT = {"context", "ctx", "memory", "encoderhiddenstates", "encoderoutput", "encoutput"}


@dataclass(frozen=True, eq=False)
class Manner:
    """One way of calling.

    mask     what a mask is made of: "attend" and "hide" (bool), "ones" (0 and 1 in floats),
             "additive" (0 and -inf)
    axes     of a mask: 2 for (T, S) where one is enough for the batch, 3 for (B, T, S), 4 for
             (B, 1, T, S), 1 for (B, S)
    padding  what a mask of keys beside another one is made of
    table    a table of cosines: "halves" and "interleaved" of width D, "half" of D/2
    turned   weights are handed over as (out, in), as nn.Linear has them
    square   of one head they are (M, M)
    order    axes of the output; place and weights_place say where in the answer they are
    """

    about: About
    kind: str
    layout: str
    mask: str = "attend"
    axes: int = 2
    padding: str = "hide"
    table: str = "halves"
    numpy: bool = False
    turned: bool = False
    square: bool = False
    places: Places | None = None
    H: int = 1
    G: int = 1
    place: int = 0
    order: str = ""
    weights_place: int | None = None
    weights_order: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    # Asking -----------------------------------------------------------------------------------

    def request(self, problem: Problem, hands: frozenset[str] = NOTHING, **rest: Any) -> Request:
        """The call that asks this; `hands` names what is handed over as an argument."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        stopped = False
        for parameter, role in self.handed:
            if parameter.kind == "var":
                stopped = stopped or not parameter.name.startswith("**")
                continue
            if parameter.name in self.values:
                value = self.values[parameter.name]
            else:
                value = self._value(role, parameter, problem, hands)
            if value is LEFT_OUT:
                stopped = stopped or parameter.kind == "positional"
            elif parameter.kind == "keyword" or stopped:
                keywords[parameter.name] = value
            else:
                positional.append(value)
        parameters = None
        if self.places is not None and problem.W is not None:
            parameters = self.places.filled(problem)
        return Request(tuple(positional), keywords, numpy=self.numpy, parameters=parameters, **rest)

    def words(self, problem: Problem, hands: frozenset[str]) -> str:
        """The call as somebody would write it: f(q, k, v, is_causal=True)."""
        said = []
        request = self.request(problem, hands)
        for name, _, value in self._named(request):
            short = name if isinstance(value, Tensor) else (
                "a module" if isinstance(value, Stub) else repr(value))  # fmt: skip
            said.append(f"{name}={short}" if name in request.keywords else short)
        return f"{self.about.name}({', '.join(said)})"

    def masks(self, request: Request) -> list[tuple[str, Tensor]]:
        """The masks in a request under their own names, (T, S) or (1, S), of the first text and
        head."""
        found = []
        for name, role, value in self._named(request):
            if role in MASKING and isinstance(value, Tensor):
                per_text = role in PADDING
                value = value[:1] if per_text else value.reshape(-1, *value.shape[-2:])[0]
                found.append((name, value if value.ndim == 2 else value[None]))
        return found

    def _named(self, request: Request) -> Iterator[tuple[str, str | None, Any]]:
        """What is handed over, with the parameter's name and what that is for."""
        handed = [(p.name, role) for p, role in self.handed if p.kind != "var"]
        for (name, role), value in zip(handed, request.arguments, strict=False):
            yield name, role, value
        for name, value in request.keywords.items():
            yield name, dict(handed).get(name), value

    @property
    def handed(self) -> list[tuple[Parameter, str | None]]:
        """Each parameter and what it is for: by its name, or by its place among those whose names
        say nothing."""
        wanted = ("q", "k", "v") if self.kind == "sdp" else ("x",)
        unnamed = iter([role for role in wanted if role not in self.known.values()])
        found = []
        for parameter in self.about.parameters:
            role = "x" if parameter.name in self.contexts else self.known.get(parameter.name)
            told = parameter.name in self.values or parameter.kind == "var"
            if role is None and parameter.required and not told:
                role = next(unnamed, None)
            found.append((parameter, role))
        return found

    @property
    def own_names(self) -> dict[str, str]:
        """What this attention calls q, k, v, x, ..."""
        found: dict[str, str] = {}
        for parameter, role in self.handed:
            if role is not None:
                found.setdefault(role, parameter.name)
        return found

    @property
    def sources(self) -> dict[str, str]:
        """Of what is made of embeddings: the parameters that queries, keys and values are made of,
        where these are several; {} where x is all there is."""
        known = {role: name for name, role in self.known.items()}
        if self.kind == "sdp" or self.places is None:
            return {}
        if {"q", "k", "v"} <= set(known):
            return {part: known[part] for part in "qkv"}
        if self.contexts and "x" in known:
            return {"q": known["x"], "k": self.contexts[0], "v": self.contexts[0]}
        return {}

    def sourced(self, request: Request, inputs: Mapping[str, Tensor]) -> Request:
        """The request with these (B, T, M) handed over to the parameters of these names."""
        names = [p.name for p in self.about.parameters if p.kind != "var"]
        given = {name: self._laid_out(x) for name, x in inputs.items()}
        return replace(
            request,
            arguments=tuple(given.get(name, value) for name, value in
                            zip(names, request.arguments, strict=False)),
            keywords={name: given.get(name, value) for name, value in request.keywords.items()},
        )  # fmt: skip

    @property
    def known(self) -> dict[str, str]:
        """What each parameter is for whose name says it; weights do not go into attention."""
        found = roles(self.about.parameters)
        return {name: role for role, name in found.items() if role != "weights"}

    @property
    def takes(self) -> set[str]:
        """What its parameters are for, but for those whose values were told."""
        return {role for name, role in self.known.items() if name not in self.values}

    @property
    def contexts(self) -> list[str]:
        """The parameters beside x that keys and values are made of: they get x as well."""
        required = [p.name for p in self.about.parameters if p.required and self.kind != "sdp"]
        return [name for name in required if plain(name) in CONTEXT]

    def _value(
        self, role: str | None, parameter: Parameter, problem: Problem, hands: frozenset[str]
    ) -> Any:
        _, T, S = problem.sizes
        required, p = parameter.required, problem
        if role in ("q", "k", "v"):
            source = getattr(p, role)
            if p.x is not None:
                return self._laid_out(p.x)
            return self._laid_out(source)
        if role == "x" and p.x is not None:
            return self._laid_out(p.x)
        if role in ("W_Q", "W_K", "W_V", "W_O", "W_QKV") and p.W is not None:
            return self._weight(role, p.W)
        if role in MASKING:
            return self._mask(role, parameter, problem, hands)
        if role == "module":
            return module_of(problem)
        numbers: dict[str, Any] = {
            "n_heads": p.H, "n_kv": p.G, "d_head": p.head_size, "d_model": p.width,
            "size": T, "dropout": 0.0, "training": False, "average": False, "told": True,
            "gqa": p.H != p.G,
        }  # fmt: skip
        if role == "told" and (required or parameter.default is False):
            return True
        if role in ("average", "training") or (role == "gqa" and p.H != p.G):
            return numbers[role]
        if role == "causal":
            return "causal" in hands
        handed: dict[str, Any] = {
            "window": p.window, "softcap": p.softcap, "scale": p.scale,
            "sinks": None if p.sinks is None else p.sinks.float(),
            "slopes": None if p.slopes is None else p.slopes.float(),
        }  # fmt: skip
        if role in handed and (role in hands or (required and handed[role] is not None)):
            return handed[role]
        if role in ("cos", "sin"):
            return cosines(role, p, self.table)
        if role == "scale" and required:
            return p.head_size**-0.5
        if role == "n_heads" or (role == "n_kv" and p.G != p.H):
            return numbers[role]
        if not required:
            return LEFT_OUT
        if role in numbers:
            return numbers[role]
        if role in handed and "None" in parameter.annotation:
            return None
        if role == "window":
            return T + S
        raise Unanswerable(
            f"the parameter {parameter.name!r} is not known: its name says nothing of what it is "
            f"for. Give it a value: --set {parameter.name}=VALUE"
        )

    def _laid_out(self, ours: Tensor) -> Tensor:
        return laid(ours, self.layout)

    def laid_gradient(self, role: str, ours: Tensor) -> Tensor:
        """A gradient of ours with respect to an argument, in that argument's layout."""
        if role.startswith("W_"):
            return (ours.mT if self.turned else ours).float()
        return self._laid_out(ours)

    def _weight(self, role: str, W: Projections) -> Tensor:
        if role == "W_O" and W.o is None:
            raise Unanswerable("no W_O here")
        alone = {"W_Q": W.q, "W_K": W.k, "W_V": W.v, "W_O": W.o}
        whole = [W.q, W.k, W.v] if role == "W_QKV" else [alone[role]]
        joined = torch.cat([part for part in whole if part is not None], dim=1)
        return (joined.mT if self.turned else joined).contiguous().float()

    def _mask(
        self, role: str, parameter: Parameter, problem: Problem, hands: frozenset[str]
    ) -> Any:
        B, T, S = problem.sizes
        if "bias" in hands and problem.bias is not None and role in ("mask", "bias"):
            return problem.bias.float()
        if role in PADDING and "padding" not in hands:
            none = torch.ones(B, S, dtype=torch.bool)
            return formed(none, self.padding) if parameter.required else LEFT_OUT
        sees = problem.mask if "mask" in hands else None
        if sees is None:
            if not parameter.required:
                return LEFT_OUT
            if "None" in parameter.annotation:
                return None
            sees = torch.ones(T, S, dtype=torch.bool)
        if role in PADDING:
            return formed(sees.expand(B, 1, T, S)[:, 0, 0], self.padding)
        if "padding" in hands and PADDING & self.takes:
            return None if parameter.required else LEFT_OUT
        if self.axes == 1:
            return formed(sees.expand(B, 1, T, S)[:, 0, 0], self.mask)
        form = "additive" if role == "bias" and self.mask in ("attend", "ones") else self.mask
        several = sees.ndim == 4 and sees.shape[0] > 1
        if self.axes == 2 and several and self.kind == "teach":
            raise Unanswerable("this mask has no axis for the batch")
        if self.axes == 2 and not several:
            sees = sees.reshape(sees.shape[-2:])
        else:
            sees = sees if sees.ndim == 4 else sees[None, None]
            if self.axes == 3 or ("H" not in self.layout and self.kind == "sdp"):
                sees = sees[:, 0].expand(-1, T, S)
        return formed(sees, form)

    # Reading ----------------------------------------------------------------------------------

    def learn(self, reply: Reply, problem: Problem) -> "Manner":
        """This manner with what a first answer shows of the order of things in it."""
        tensors = reply.answers[0]
        sizes = letters(problem)
        wanted = "BHTV" if problem.x is None else "BTO"
        found = [(at, order) for at, t in enumerate(tensors) for order in orders(t, wanted, sizes)]
        if not found:
            seen = ", ".join(str(list(t.shape)) for t in tensors)
            raise Unanswerable(
                f"the answer has no tensor of the output's sizes: got {seen}, and "
                f"{named(wanted, sizes)} were asked for"
            )
        same = self.layout.replace("D", "V")
        place, order = next((f for f in found if f[1] == same), found[0])
        maps = [
            (at, order)
            for at, t in enumerate(tensors)
            if at != place
            for axes in ("BHTS", "BTS", "HTS", "TS")
            for order in orders(t, axes, sizes)
        ]
        weights_place, weights_order = maps[0] if maps else (None, "")
        return replace(
            self, place=place, order=order,
            weights_place=weights_place, weights_order=weights_order,
        )  # fmt: skip

    def read(self, reply: Reply, problem: Problem, call: int = 0) -> Answer:
        """The answer in our own axes. Unanswerable if it has other sizes than it should."""
        tensors, sizes = reply.answers[call], letters(problem)
        if self.place >= len(tensors):
            raise Unanswerable("the answer has fewer tensors than before")
        out = ours(tensors[self.place], self.order, "BHTV" if problem.x is None else "BTO", sizes)
        weights = None
        if self.weights_place is not None and self.weights_place < len(tensors):
            axes = "BHTS" if "H" in self.weights_order or self.H == 1 else "BTS"
            weights = ours(tensors[self.weights_place], self.weights_order, axes, sizes)
        return Answer(out, weights)

    def theirs(self, ours: Tensor) -> Tensor:
        """An output of our axes as this attention returns it: a gradient to be pushed back."""
        axes = "BHTV" if ours.ndim == 4 else "BTO"
        if "W" in self.order:
            B, H, T, V = ours.shape
            merged = ours.transpose(1, 2).reshape(B, T, H * V)
            return merged if "B" in self.order else merged[0]
        for letter in axes:
            if letter not in self.order:
                ours, axes = ours.select(axes.index(letter), 0), axes.replace(letter, "")
        return ours.permute([axes.index(letter) for letter in self.order]).contiguous().float()
