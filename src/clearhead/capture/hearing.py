"""Who listens in this process, and what they hear: calls of modules, functions and operators.

Functions of ours stand in for others while anybody listens, the same ones for everybody: compiled
code that was made meanwhile finds them again, and whoever stops first takes nothing from the rest.
They step aside for a compiler, which sees what it would have seen.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from clearhead.capture import entries
from clearhead.capture.entries import Only, Reader
from clearhead.capture.operators import Operators
from clearhead.capture.patches import Function, Patches

Call = Callable[..., Any]
OURS = "__clearhead__"  # marks what stands in, which somebody may have put back after us


class Listener(Protocol):
    """Who is told of what happens while it listens."""

    def hears(self) -> bool:
        """Whether a call of attention that is made now, in this thread, is its business."""

    def saw(
        self, reader: Reader, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Such a call was made."""

    def answer(self, reader: Reader, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What such a call returns without being made; None where it has to be made."""

    def called(
        self, go_on: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What go_on(module, *args, **kwargs) returns: a module is called."""


class _Thread(threading.local):
    deaf: int = 0
    bare: bool = False  # modules are called without their hooks, which have run


_here = _Thread()
_lock = threading.RLock()
_listeners: tuple[Listener, ...] = ()
_patches, _operators = Patches(), Operators()


# Beginning and ending -----------------------------------------------------------------------------


def listen(listener: Listener, model: nn.Module) -> None:
    """From now on the listener hears. `model` may hold functions under names of its own."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
        try:
            if len(_listeners) == 1:
                _patches.put(nn.Module, "__call__", _calling(nn.Module.__call__))
                _operators.put({name: _kernel(how) for name, how in entries.OPERATORS.items()})
            _find_names(model)
            _patches.settle()
            library = sys.modules.get("transformers.modeling_utils")
            table = getattr(library, "AttentionInterface", None)
            if hasattr(table, "get_interface"):
                _patches.put(table, "get_interface", _looking_up(vars(table)["get_interface"]))
        except BaseException:
            leave(listener)
            raise


def _find_names(model: nn.Module) -> None:
    known = entries.functions(by_name=not _operators.there)
    _patches.everywhere({f: _standing_in(f, how, only) for f, how, only in known}, model)


def leave(listener: Listener) -> None:
    """The listener hears no more. With the last one everything is put back."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one is not listener)
        if not _listeners:
            _operators.undo()
            _patches.undo()


@contextmanager
def quiet() -> Iterator[None]:
    """Nobody hears what happens inside, in this thread."""
    _here.deaf += 1
    try:
        yield
    finally:
        _here.deaf -= 1


@contextmanager
def without_hooks() -> Iterator[None]:
    """Modules are called without their hooks inside, in this thread."""
    _here.bare = True
    try:
        yield
    finally:
        _here.bare = False


@contextmanager
def aside() -> Iterator[None]:
    """What is computed inside is neither heard nor traced nor counted by anybody."""
    jit: Any = torch._C  # where not all is typed
    tracing = jit._get_tracing_state()
    if tracing is not None:
        jit._set_tracing_state(None)
    try:
        with quiet(), _disable_current_modes(), torch._C.DisableTorchFunction():
            yield
    finally:
        if tracing is not None:
            jit._set_tracing_state(tracing)


# What stands in -----------------------------------------------------------------------------------


def _hear(before: Call, reader: Reader, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call `before`, and tell those who hear it; or what one answers who listens alone."""
    listening = [] if _here.deaf else [one for one in _listeners if one.hears()]
    if not listening:
        return before(*args, **kwargs)
    if len(_listeners) == 1:
        answer = listening[0].answer(reader, args, kwargs)
        if answer is not None:
            return answer
    with quiet():
        result = before(*args, **kwargs)
    for one in listening:
        one.saw(reader, result, args, kwargs)
    return result


@cache
def _standing_in(before: Function, reader: Reader, only: Only | None = None) -> Function:
    """What stands in for a function: of its calls those that `only` picks are heard."""

    @wraps(before)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or (only is not None and not only(args, kwargs)):
            return before(*args, **kwargs)
        return _hear(before, reader, args, kwargs)

    # torch.jit.script takes the function itself.
    vars(stand_in).update({"__script_if_tracing_wrapper": True, "__original_fn": before})
    return stand_in


@cache
def _looking_up(before: Function) -> Function:
    """transformers' get_interface, which then returns what stands in for what it found."""
    if OURS in vars(before):
        return before

    @wraps(before)
    def get_interface(table: Any, name: str, default: Function) -> Function:
        found: Function = before(table, name, default)
        if torch.compiler.is_compiling() or not _listeners:
            return found
        reader = entries.of_interface_named(name or "eager")

        @wraps(found)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return _hear(found, reader, args, kwargs)

        return stand_in

    vars(get_interface)[OURS] = True
    return get_interface


@cache
def _calling(before: Function) -> Function:
    """nn.Module.__call__, through everybody who listens."""
    if OURS in vars(before):
        return before

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return before(module, *args, **kwargs)
        if _here.bare:
            return module.forward(*args, **kwargs)
        if _here.deaf:
            return before(module, *args, **kwargs)
        return _through(_listeners, before, module, args, kwargs)

    vars(call)[OURS] = True
    return call


def _through(
    listeners: tuple[Listener, ...], before: Call, module: nn.Module, args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """A module is called, which everybody who listens is told of."""
    if not listeners:
        return before(module, *args, **kwargs)
    *others, last = listeners
    if not others:
        return last.called(before, module, args, kwargs)

    def go_on(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return _through(tuple(others), before, module, args, kwargs)

    return last.called(go_on, module, args, kwargs)


def _kernel(reader: Reader) -> Callable[[Call], Call]:
    """What stands before a kernel of torch, given that kernel."""

    def standing_before(before: Call) -> Call:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            return _hear(before, reader, args, kwargs)

        return kernel

    return standing_before
