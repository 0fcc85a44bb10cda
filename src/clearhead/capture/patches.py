"""Functions that stand in for others for a while, wherever those are known by name.

Code that was loaded earlier may have taken a function under a name of its own, `from torch.nn
.functional import scaled_dot_product_attention as sdpa`: such names are found and replaced too.
"""

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

Function = Callable[..., Any]

# Tables of torch's own compilers name functions by what they are; a name in there is no call.
PRIVATE = ("torch._", "torch.fx", "torch.overrides", "torch.jit", "clearhead.capture")
GONE: "weakref.WeakKeyDictionary[Any, Any]" = (
    weakref.WeakKeyDictionary()
)  # stand-ins closed: before
CALLED = ("torch._C._nn",)  # of those, what people do call


class Patches:
    """What has been replaced, and how it was before."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Replace an attribute of a class or a module."""
        before = vars(owner)[name]
        setattr(owner, name, ours)
        self._done.append((owner, name, before, ours))

    def everywhere(self, stand_ins: Mapping[Function, Function], model: nn.Module) -> None:
        """Replace functions under every name that a loaded module or a part of `model` has."""
        wanted = {id(before): (before, ours) for before, ours in stand_ins.items()}
        for module in list(sys.modules.values()):
            name = str(getattr(module, "__name__", ""))
            if name in CALLED or not name.startswith(PRIVATE):
                self._search(module, wanted)
        parts = list(model.modules())
        for owner in {kind for part in parts for kind in type(part).__mro__}:
            self._search(owner, wanted)
        for part in parts:
            self._search(part, wanted)

    def _search(self, owner: Any, wanted: Mapping[int, tuple[Function, Function]]) -> None:
        names = getattr(owner, "__dict__", {})
        plain = wanted.keys().isdisjoint(map(id, list(names.values())))  # nearly always, and quick
        if plain and not isinstance(owner, type):  # a class may hold one as a static method
            return
        for name, value in list(names.items()):
            is_static = type(value) is staticmethod  # isinstance would wake lazy ones
            found = wanted.get(id(value.__func__ if is_static else value))
            if found is not None:
                try:
                    self.put(owner, name, staticmethod(found[1]) if is_static else found[1])
                except (AttributeError, TypeError):  # a built-in module that is closed to us
                    continue

    def undo(self) -> None:
        """Put everything back.

        Where somebody else has replaced ours in the meantime, another observer that began later,
        what it puts back is what was there before us.
        """
        for _, _, before, ours in self._done:
            if not isinstance(ours, staticmethod):
                GONE[ours] = before
        while self._done:
            owner, name, before, ours = self._done.pop()
            if vars(owner).get(name) is ours:
                while not isinstance(before, staticmethod) and before in GONE:
                    before = GONE[before]
                setattr(owner, name, before)

    def sweep(self) -> None:
        """Find what modules that were loaded meanwhile took from us, to be put back as well."""
        ours = {id(new): old for _, _, old, new in self._done}
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            if ours.keys().isdisjoint(map(id, list(names.values()))):
                continue
            known = {name for owner, name, *_ in self._done if owner is module}
            found = [(n, x) for n, x in names.items() if id(x) in ours and n not in known]
            self._done += [(module, name, ours[id(x)], x) for name, x in found]


def loaded(module: str, names: Iterable[str]) -> list[Function]:
    """Those functions of a module that are there, if anybody has imported it."""
    found = sys.modules.get(module)
    return [] if found is None else [vars(found)[n] for n in names if callable(vars(found).get(n))]
