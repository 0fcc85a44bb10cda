"""Functions that stand in for others for a while, wherever those are known by name.

Code that was loaded earlier may have taken a function under a name of its own, `from torch.nn
.functional import multi_head_attention_forward as mha`: such names are found and replaced too. In a
model, and in the code that it is made of, so are those inside a dict, a list, a tuple, a partial,
default arguments and closures.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

Function = Callable[..., Any]
Wanted = Mapping[int, tuple[Function, Function]]  # by the id of what is to be replaced
Get = Callable[[], Any]
Put = Callable[[Any], None]

# Tables of torch's own compilers name functions by what they are; a name in there is no call.
PRIVATE = ("torch._", "torch.fx", "torch.overrides", "torch.jit", "clearhead.capture")
CALLED = ("torch._C._nn",)  # of those, what people do call
HOLDERS = (dict, list, tuple, partial, FunctionType, MethodType, staticmethod, classmethod)
EVERY = frozenset(vars(nn.Module()))  # tables that every module has
LIBRARIES = ("builtins", "torch", "transformers")  # none of ours is held so in their own code
DEEP, FEW = 3, 256  # how far inside each other these are searched, and of how many entries


class Patches:
    """What has been replaced, and how to put it back."""

    def __init__(self) -> None:
        self._back: list[Callable[[], None]] = []
        self._held: dict[Function, int] = {}  # stand-ins: how many references they are to have,
        self._taken = False  # and whether there were more
        self._before: dict[int, Function] = {}  # what each stands for, by its id

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Replace an attribute of a class, a module or an instance."""
        before = vars(owner)[name]
        if before is not ours:
            setattr(owner, name, ours)
            get = partial(vars(owner).get, name)
            self._back.append(partial(_put_back, get, partial(setattr, owner, name), ours, before))

    def everywhere(self, stand_ins: Mapping[Function, Function], model: nn.Module) -> None:
        """Replace functions under every name that a loaded module or a part of `model` has."""
        wanted = {id(before): (before, ours) for before, ours in stand_ins.items()}
        self._before |= {id(ours): before for before, ours in stand_ins.items()}
        self._taken = self._is_taken()
        for module in list(sys.modules.values()):
            if _has_one_of(wanted, module):
                name = str(getattr(module, "__name__", ""))
                if name in CALLED or not name.startswith(PRIVATE):
                    self._search(module, wanted)
        for owner in _made_of(model):
            self._search(owner, wanted)
            self._search_inside(owner, wanted)
        self._held |= dict.fromkeys(stand_ins.values(), 0)

    def settle(self) -> None:
        """Count what refers to ours, after `everywhere` and with nothing of it at hand any more."""
        self._held = {ours: sys.getrefcount(ours) for ours in self._held}

    def _is_taken(self) -> bool:
        """Whether somebody else refers to ours by now."""
        counts = {ours: sys.getrefcount(ours) for ours in self._held}
        return self._taken or any(count > self._held[ours] for ours, count in counts.items())

    def _search(self, owner: Any, wanted: Wanted) -> None:
        if not isinstance(owner, type) and not _has_one_of(wanted, owner):
            return
        for name, value in list(vars(owner).items()):
            is_static = type(value) is staticmethod  # isinstance would wake lazy ones
            found = wanted.get(id(value.__func__ if is_static else value))
            if found is not None:
                try:
                    self.put(owner, name, staticmethod(found[1]) if is_static else found[1])
                except (AttributeError, TypeError):  # a built-in module that is closed to us
                    continue

    def _search_inside(self, owner: Any, wanted: Wanted) -> None:
        for name, value in list(vars(owner).items()):
            if type(value) in HOLDERS and name not in EVERY and not name.startswith("__"):
                new = self._within(value, wanted, DEEP)
                if new is not value:
                    self.put(owner, name, new)

    def _within(self, value: Any, wanted: Wanted, deep: int) -> Any:
        """What is to be in the place of a value: its stand-in, or itself with those inside."""
        found, kind = wanted.get(id(value)), type(value)
        if found is not None:
            return found[1]
        if not deep or kind not in HOLDERS or id(value) in self._before:
            return value
        if kind in (staticmethod, classmethod, MethodType):
            self._within(value.__func__, wanted, deep)
        elif kind is partial:
            self._replace(partial(getattr, value, "func"), partial(_set, value), wanted, deep)
        elif kind is FunctionType:
            for name in ("__defaults__", "__kwdefaults__"):
                self._replace(*_attribute(value, name), wanted, deep)
            for cell in value.__closure__ or ():
                self._replace(*_attribute(cell, "cell_contents"), wanted, deep)
        elif len(value) > FEW:
            return value
        elif kind is tuple:
            new = tuple(self._within(x, wanted, deep - 1) for x in value)
            return value if all(map(is_, new, value)) else new
        else:
            for key in list(value) if kind is dict else range(len(value)):
                get, put = partial(value.__getitem__, key), partial(value.__setitem__, key)
                self._replace(get, put, wanted, deep)
        return value

    def _replace(self, get: Get, put: Put, wanted: Wanted, deep: int) -> None:
        try:
            value = get()
        except ValueError:  # a cell that is empty as yet
            return
        new = self._within(value, wanted, deep - 1)
        if new is not value:
            put(new)
            self._back.append(partial(_put_back, get, put, new, value))

    def undo(self) -> None:
        """Put everything back, and in modules that were loaded meanwhile what they took from us."""
        if self._is_taken():
            self._sweep()
        while self._back:
            self._back.pop()()
        self._held, self._before, self._taken = {}, {}, False

    def _sweep(self) -> None:
        for module in list(sys.modules.values()):
            if _has_one_of(self._before, module):
                for name, value in list(vars(module).items()):
                    if id(value) in self._before:
                        setattr(module, name, self._before[id(value)])


def _has_one_of(wanted: Mapping[int, Any], owner: Any) -> bool:
    """Whether a module or an instance has one of them as an attribute: nearly none, and quick."""
    names = getattr(owner, "__dict__", {})
    return not wanted.keys().isdisjoint(map(id, list(names.values())))


def _put_back(get: Get, put: Put, ours: Any, before: Any) -> None:
    """Where somebody has replaced ours meanwhile, it stays."""
    with suppress(LookupError, ValueError):
        if get() is ours:
            put(before)


def _attribute(owner: Any, name: str) -> tuple[Get, Put]:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def _set(held: "partial[Any]", function: Function) -> None:
    held.__setstate__((function, held.args, held.keywords, vars(held)))  # type: ignore[attr-defined]


def _made_of(model: nn.Module) -> Iterator[Any]:
    """The parts of a model, their classes and the modules that define these, unless a library."""
    parts = list(model.modules())
    kinds = {kind for part in parts for kind in type(part).__mro__}
    kinds = {kind for kind in kinds if kind.__module__.split(".")[0] not in LIBRARIES}
    yield from parts
    yield from kinds
    for name in {kind.__module__ for kind in kinds}:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and not name.startswith(PRIVATE):
            yield module


def loaded(module: str, names: Iterable[str]) -> list[Function]:
    """Those functions of a module that are there, if anybody has imported it."""
    found = sys.modules.get(module)
    return [] if found is None else [vars(found)[n] for n in names if callable(vars(found).get(n))]
