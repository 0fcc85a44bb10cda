"""What is kept of a call: which layers and heads, q and k, and the Rule without what is T x S."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module

import torch
from torch import Tensor, nn

from clearhead.capture.inputs import AttentionInputs
from clearhead.capture.looking import Looked
from clearhead.capture.passes import Pass, Site
from clearhead.rule import Rule
from clearhead.run import Run
from clearhead.run.calls import Call, Check

ANY = -1  # a layer: heads that are named by their number alone


@dataclass(frozen=True)
class Wanted:
    """What is to be looked at and kept, as `observe` was asked; None is all of it."""

    keep: str
    layers: Collection[int | str] | None
    heads: dict[int, tuple[int, ...]] | None
    rows: int | None
    verify: bool
    replace: bool = False

    @property
    def everything(self) -> bool:
        return self.layers is None and self.heads is None

    def site(self, layer: int, module: str) -> bool:
        """Whether calls of this layer are looked at."""
        if self.heads is not None and layer not in self.heads and ANY not in self.heads:
            return False
        return self.layers is None or layer in self.layers or module in self.layers

    def heads_of(self, layer: int, n_heads: int) -> tuple[int, ...] | None:
        """Which heads of a layer to keep q and k of. ValueError for one that is none."""
        if self.heads is None:
            return None
        heads = tuple(sorted({*self.heads.get(layer, ()), *self.heads.get(ANY, ())}))
        if bad := [h for h in heads if not 0 <= h < n_heads]:
            raise ValueError(f"it has heads 0 to {n_heads - 1}, and {bad[0]} was asked for")
        return heads


def by_layer(heads: Collection[int | str] | None) -> dict[int, tuple[int, ...]] | None:
    """Heads named "3.5", or 5 in any layer, by their layers. ValueError for other names."""
    if heads is None:
        return None
    found: dict[int, list[int]] = {}
    for head in heads:
        said = f"{ANY}.{head}" if isinstance(head, int) else str(head)
        layer, _, number = said.partition(".")
        named = isinstance(head, int) or (said == head and layer.isdecimal())
        if not (named and number.isdecimal()):
            raise ValueError(f'a head is named by its layer and number, "3.5"; got {head!r}')
        found.setdefault(int(layer), []).append(int(number))
    return {layer: tuple(numbers) for layer, numbers in found.items()}


def call_of(
    inputs: AttentionInputs, looked: Looked, check: Check, wanted: Wanted,
    where: tuple[Pass, int, Site, tuple[int, int]], before: Call | None,
) -> Call:  # fmt: skip
    """The record of a call that was looked at. `where`: its pass, layer, place, first row and key.

    `before` is the latest call there whose q and k were kept: keys that it holds already are not
    kept again. Without maps to be kept, a mask or bias that had to be taken as it is goes: it is
    T x S.
    """
    current, layer, (module, index), (first_row, key_start) = where
    (B, H, T, D), (G, S) = inputs.q.shape, inputs.k.shape[1:3]
    rows = None
    if looked.spans != [(0, T)]:
        rows = torch.cat([torch.arange(*span) for span in looked.spans])
    heads, tensors, rule = wanted.heads_of(layer, H), dict(looked.figures), on_cpu(inputs.rule)
    held_from = 0
    if wanted.keep == "qk":
        tensors |= _q_and_k(inputs, heads, rows)
        held_from = _held_from(tensors["k"], before, current, first_row - key_start)
        tensors["k"] = tensors["k"][:, :, held_from:].clone()
    else:
        rule = replace(rule, mask=None, bias=None)
    return Call(
        module=module, index=index, layer=layer, number=current.number, entry=inputs.entry,
        shape=(B, H, G, T, S, D), Dv=inputs.v.shape[-1], rule=rule, key_start=key_start,
        first_row=first_row, sequence=current.sequence or 0, rows=rows, heads=heads,
        dtype=str(inputs.q.dtype).removeprefix("torch."), impl=looked.attended.impl,
        cross=inputs.cross, mask_bytes=inputs.mask_bytes, tensors=tensors, check=check,
        held_from=held_from,
    )  # fmt: skip


def _q_and_k(
    inputs: AttentionInputs, heads: tuple[int, ...] | None, rows: Tensor | None
) -> dict[str, Tensor]:
    """q of the heads and rows that are wanted, and k of the key heads that they read, each once."""
    q, k = inputs.q.detach(), inputs.k.detach()
    if heads is not None:
        group = q.shape[1] // k.shape[1]
        q, k = q[:, list(heads)], k[:, sorted({h // group for h in heads})]
    if rows is not None:
        q = q[:, :, rows.to(q.device)]
    return {"q": q.cpu().clone(), "k": k.cpu()}


def _held_from(k: Tensor, before: Call | None, current: Pass, new: int) -> int:
    """Where the keys begin that the call before does not hold: `new`, if it holds the others."""
    if before is None or before.sequence != current.sequence or before.cross or new < 1:
        return 0
    held = before.tensors["k"]
    same = held.shape[:2] == k.shape[:2] and torch.equal(held[:, :, -1], k[:, :, new - 1])
    return new if same and before.rows is None else 0


def count_check(run: Run, name: str, check: Check) -> None:
    """Remember the check of a call that is not kept, with those of its module."""
    for n, (module, known) in enumerate(run.checked):
        if module == name and known.why == check.why:
            run.checked[n] = (module, known.merge(check))
            return
    run.checked.append((name, check))


def on_cpu(rule: Rule) -> Rule:
    moved = {
        f.name: value.detach().cpu()
        for f in fields(rule)
        if isinstance(value := getattr(rule, f.name), Tensor)
    }
    return replace(rule, **moved) if moved else rule  # type: ignore[arg-type]


def shown(name: str) -> str:
    """A name as one line of text: what is no character that shows, spelled out."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def name_of(model: nn.Module) -> str:
    """The class of a model and, of one that was loaded, its name."""
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    return shown(f"{type(model).__name__} {path}" if path else type(model).__name__)


class Lost(Mapping[str, Tensor]):
    """Tensors that were not kept in the end: looking at one says why, in a ValueError."""

    def __init__(self, names: Iterable[str], why: str) -> None:
        self._names, self._why = tuple(names), why

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        raise ValueError(self._why)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def versions() -> dict[str, str]:
    """Of what computed this."""
    from clearhead import __version__

    found = {"clearhead": __version__, "torch": str(torch.__version__)}
    if "transformers" in sys.modules:
        found["transformers"] = str(import_module("transformers").__version__)
    return found
