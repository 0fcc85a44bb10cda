"""The engine's output in place of the original's: where it may go, and how it must lie.

In a place's first calls both are computed, and each is proved against the exact weights. A proof
holds for calls of the same kind: the same function, sizes, dtypes and arguments given, and the same
kind of rule. From then on the engine answers, and the original is not called.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.capture import inputs as reading
from clearhead.capture import modules
from clearhead.capture.entries import Reader, of_interface_named
from clearhead.capture.inputs import AttentionInputs
from clearhead.capture.looking import Looked, check
from clearhead.capture.passes import Site
from clearhead.engine import native
from clearhead.rule import Rule
from clearhead.run import Run
from clearhead.run.calls import Check

PROVED = 2  # calls of one kind, in one place, before the engine answers
REPLACED = "the engine's output put in place of the original's, not compared"


@dataclass(frozen=True, eq=False)
class Given:
    """What a function was called with: a call (B, H, T, D), (H, T, D) or (T, D) of attention.

    shape is that of the output, (..., T, Dv); `also` what else tells kinds of calls apart.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    others: tuple[object, ...]
    dropout: float = 0.0
    grouped: bool = True
    also: Hashable = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.q.shape[:-1], self.v.shape[-1])

    @property
    def plain(self) -> bool:
        """Whether its output is all that anybody wants of it, and only numbers flow."""
        tensors = [x for x in (self.q, self.k, self.v, *self.others) if isinstance(x, Tensor)]
        if self.dropout or not all(_is_plain(x) for x in tensors):
            return False
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return False
        return self.fits and not native.is_followed()

    @property
    def fits(self) -> bool:
        """Whether the shapes are those of one call, without axes that broadcast."""
        q, k, v = self.q, self.k, self.v
        if not (2 <= q.ndim <= 4 and q.ndim == k.ndim == v.ndim and q.numel() and k.numel()):
            return False
        if k.shape[:-1] != v.shape[:-1] or k.shape[-1] != q.shape[-1] or not v.numel():
            return False
        if self.grouped and q.ndim > 2:
            return q.shape[:-3] == k.shape[:-3] and q.shape[-3] % k.shape[-3] == 0
        return q.shape[:-2] == k.shape[:-2]

    @property
    def kind(self) -> Hashable:
        q, k, v = self.q, self.k, self.v
        others = tuple(x.dtype if isinstance(x, Tensor) else x is None for x in self.others)
        cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        heads = (q.shape[-3], k.shape[-3]) if q.ndim > 2 else ()
        alone = q.shape[-2] == 1  # a lone query lies in memory either way
        sizes = (q.ndim, *heads, q.shape[-1], v.shape[-1], alone)
        return sizes, (q.dtype, k.dtype, v.dtype), others, cast, self.also


@dataclass(frozen=True)
class Entry:
    """A function that can be answered.

    given   what it was called with, by its own parameters
    tensor  the output (..., T, Dv) in what it returned; None where it returned more
    wrap    what it returns, of that output
    """

    given: Callable[..., Given]
    tensor: Callable[[Any], Tensor | None]
    wrap: Callable[[Tensor], Any]


# The functions ------------------------------------------------------------------------------------


def _sdpa(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Given:  # fmt: skip
    grouped = enable_gqa and query.ndim == 4
    given = Given(query, key, value, (attn_mask,), dropout_p, grouped)
    if not given.plain:
        return given
    asked: Any = (query, key, value, attn_mask, dropout_p, is_causal)
    with torch._C.DisableTorchFunction():  # how the output lies is each kernel's own affair
        backend = torch._fused_sdp_choice(*asked, scale=scale, enable_gqa=enable_gqa)
    return replace(given, also=("sdpa", backend, is_causal))


def _interface(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None = None, dropout: float = 0.0, scaling: float | None = None,
    is_causal: bool | None = None, **more: Any,
) -> Given:  # fmt: skip
    named = tuple(sorted(name for name, x in more.items() if x is not None))
    others = (attention_mask, *more.values())
    return Given(query, key, value, others, dropout, also=("interface", named))


def _output(
    q: Tensor, k: Tensor, v: Tensor, rule: Rule | None = None, *, dropout: float = 0.0
) -> Given:  # fmt: skip
    others = () if rule is None else (rule.bias, rule.sinks)
    return Given(q, k, v, others, dropout, also="output")


def _of_pair(result: Any) -> Tensor | None:
    pair = isinstance(result, tuple) and len(result) == 2 and result[1] is None
    return result[0].transpose(1, 2) if pair else None


ENTRIES: dict[Reader, Entry] = {
    reading.of_sdpa: Entry(_sdpa, lambda out: out, lambda out: out),
    of_interface_named("sdpa"): Entry(
        _interface, _of_pair, lambda out: (out.transpose(1, 2), None)
    ),
    reading.of_output: Entry(_output, lambda out: out, lambda out: out),
}

# What is heard and never answered, by who reads it.
LEFT: dict[Reader, str] = {
    modules.of_encoder_layer: "the fast path of nn.TransformerEncoderLayer",
    modules.of_native: "the fast path of nn.MultiheadAttention",
    modules.of_multi_head: "nn.MultiheadAttention with weights asked for",
    of_interface_named("eager"): "eager attention",
    reading.of_flash: "the fused kernels of compiled code",
    reading.of_efficient: "the fused kernels of compiled code",
    reading.of_engine: "clearhead.attention",
}
SLOW = "torch.backends.mha.set_fastpath_enabled(False)"  # the modules call the operator, then


# What was proved ----------------------------------------------------------------------------------


@dataclass
class Proofs:
    """Of the calls of one kind in one place: dtype and order of the axes of what they returned, and
    how many were proved, by the kind of their rule."""

    dtype: torch.dtype
    order: tuple[int, ...]
    blank: bool = False  # rows that see nothing were 0 in both
    count: Counter[Hashable] = field(default_factory=Counter)
    given_up: set[Hashable] = field(default_factory=set)

    def lacks(self, rule: Rule) -> bool:
        """Whether calls of this kind of rule are still to be proved."""
        kind = _kind_of(rule)
        return kind not in self.given_up and self.count[kind] < PROVED

    def holds(self, rule: Rule) -> bool:
        kind = _kind_of(rule)
        return kind not in self.given_up and self.count[kind] >= PROVED


@dataclass(frozen=True, eq=False)
class Answering:
    """A call that may be answered, with the proofs of its kind."""

    entry: Entry
    given: Given
    proofs: Proofs

    @property
    def stand_in(self) -> Any:
        """Something of the shape of what would be returned, for a reader, and of no size."""
        given = torch.empty((), dtype=self.proofs.dtype, device=self.given.q.device)
        return self.entry.wrap(given.expand(self.given.shape))

    def fits(self, looked: Looked) -> bool:
        """Whether the model would make the same of every row."""
        if self.proofs.blank or bool((looked.attended.visible > 0).all()):
            return True
        self.proofs.given_up.add(_kind_of(looked.attended.rule))
        return False

    def result(self, out: Tensor) -> Any:
        """What the function would have returned: the same dtype, shape and order in memory."""
        out, order = out.reshape(self.given.shape), self.proofs.order
        back = sorted(range(len(order)), key=order.__getitem__)
        return self.entry.wrap(out.permute(order).contiguous().permute(back))


def prove(proofs: Proofs, call: AttentionInputs, looked: Looked, done: Check, seed: str) -> None:
    """Hold the engine's own output of a call against the weights, as the model's was.

    Raises Unreadable where it differs.
    """
    out, made, kind = looked.attended.out, call.made, _kind_of(call.rule)
    if not done.ok or out is None or made is None:
        return
    check(replace(call, made=out), looked, f"{seed} again")
    blank = looked.attended.visible == 0
    if bool(blank.any()):
        proofs.blank = torch.equal(made[blank], out[blank])
        if not proofs.blank:
            proofs.given_up.add(kind)
    proofs.count[kind] += 1


class Replacing:
    """In which places the engine may answer.

    count   calls that it answered
    failed  a module -> why it does not answer there
    """

    def __init__(self) -> None:
        self._proofs: dict[tuple[Site, Hashable], Proofs] = {}
        self._gradients = False  # whether they kept a call from being answered
        self._left: set[str] = set()  # of LEFT, what was called
        self.count = 0
        self.failed: dict[str, str] = {}

    def answering(
        self, site: Site, reader: Reader, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Answering | None:
        """A call of a kind that was proved in this place."""
        entry = ENTRIES.get(reader)
        if entry is None or site[0] in self.failed:
            return None
        given = _given(entry, args, kwargs)
        proofs = self._proofs.get((site, given.kind)) if given is not None else None
        return None if given is None or proofs is None else Answering(entry, given, proofs)

    def proofs_of(
        self, site: Site, reader: Reader, result: Any, args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Proofs | None:  # fmt: skip
        """Those that a call belongs to which was made, if its kind can be answered at all."""
        entry = ENTRIES.get(reader)
        if entry is None and (what := LEFT.get(reader)):
            self._left.add(what)
        if entry is None or site[0] in self.failed:
            return None
        given = _given(entry, args, kwargs)
        self._gradients |= given is None and torch.is_grad_enabled()
        made = None if given is None else entry.tensor(result)
        if given is None or made is None or tuple(made.shape) != given.shape:
            return None
        now = made.dtype, _order_of(made)
        proofs = self._proofs.get((site, given.kind))
        if proofs is None or (proofs.dtype, proofs.order) != now:
            proofs = self._proofs[site, given.kind] = Proofs(*now)
        return proofs

    def notes(self, run: Run, model: str) -> list[str]:
        """What to say of it at the end; `model` names what has no name of its own."""
        failed = [(name or model, why) for name, why in self.failed.items() if why]
        found = [f"{name} was not replaced: {why}" for name, why in failed]
        why = ["gradients were on, which torch.no_grad() turns off"] if self._gradients else []
        if left := " and ".join(sorted(self._left)):
            off = f"; {SLOW} turns it off" if "fast path" in left else ""
            said = f"replace=True leaves {left} as it is{off}"
            why, found = [*why, said], [*([said] if self.count else []), *found]
        if not self.count:
            because = f": {'; '.join(why)}" if why else ""
            return [f"no call was replaced{because}", *found]
        slow = "" if native.library() else ", by no native kernel, and so hardly any faster"
        calls = f"{self.count} of {run.n_calls} calls were"
        return [f"{calls} replaced: the model went on with the engine's output{slow}", *found]


# Parts of these -----------------------------------------------------------------------------------


def _given(entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given | None:
    """What a call was given, where the engine could answer it."""
    try:
        given = entry.given(*args, **kwargs)
        return given if given.plain else None
    except (TypeError, AttributeError, IndexError):  # it was called otherwise
        return None


def _is_plain(x: Tensor) -> bool:
    return type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu" and not x.is_nested


def _kind_of(rule: Rule) -> Hashable:
    """Which fields of a rule say something."""
    said = ((f.name, getattr(rule, f.name)) for f in fields(rule))
    return tuple(name for name, x in said if x is not None and x is not False)


def _order_of(x: Tensor) -> tuple[int, ...]:
    """The axes of a tensor as they lie in memory, the outermost first."""
    return tuple(sorted(range(x.ndim), key=x.stride().__getitem__, reverse=True))
