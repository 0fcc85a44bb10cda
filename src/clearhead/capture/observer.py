"""Watching a model: where calls of attention are heard, and what becomes of each.

Nothing about the model is switched. Its functions are called with the very arguments that it gave
them; afterwards the same q, k and v are looked at by the engine. Which module is calling is known
from nn.Module.__call__, for which a function stands in too, since hooks would turn PyTorch's fast
paths off.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.capture import entries
from clearhead.capture.entries import Only, Reader
from clearhead.capture.inputs import AttentionInputs, Unreadable, check_told, of_weights
from clearhead.capture.keeping import Wanted, call_of, count_check, name_of, versions
from clearhead.capture.looking import check, look
from clearhead.capture.masks import MaskCache
from clearhead.capture.passes import SEQUENCES, Pass, Sequences, Site, take_tokens, tokens_of
from clearhead.capture.patches import Function, Patches
from clearhead.run import Run
from clearhead.run.calls import Call, Check
from clearhead.run.writer import RunWriter
from clearhead.stats import HeadStats

LEFT_OUT = "left out: see the notes"  # why a call was not verified

Adapter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], AttentionInputs]
Each = Callable[[Call, AttentionInputs], None]


@dataclass
class _Thread(threading.local):
    """Which modules are being called, outermost first, and whether what they do is heard."""

    stack: list[str] = field(default_factory=list)
    deaf: int = 0
    current: Pass | None = None
    bare: bool = False  # modules are called without their hooks, which have run


class Observer:
    """A context manager that fills a Run with what a model does inside it."""

    def __init__(
        self, model: nn.Module, wanted: Wanted, out: Path | None,
        adapters: Mapping[type[nn.Module], Adapter], each: Each | None,
    ) -> None:  # fmt: skip
        self._wanted, self._out, self._adapters, self._each = wanted, out, dict(adapters), each
        self._model = weakref.ref(model)
        self._names = {id(part): name for name, part in model.named_modules()}
        self._patches, self._masks, self._thread = Patches(), MaskCache(), _Thread()
        self._open, self._passes, self._sequences = False, 0, Sequences()
        self._lock = threading.RLock()
        self._writer: RunWriter | None = None
        self._refused: dict[str, str] = {}  # module or place -> why, of its first call
        self._calls: list[Call] = []
        self._latest: dict[int, Call] = {}  # by layer, of those whose q and k are kept
        self.run = Run(
            model=name_of(model), sites=[], calls=self._calls, versions=versions(),
            keep=wanted.keep,
        )  # fmt: skip

    # In and out -----------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        model = self._model()
        if model is None:
            raise ValueError("the model is gone already: give it a name, and observe that")
        if self._passes or not self._names:
            raise ValueError("this observation has ended: call observe(model) for another")
        if self._out is not None:
            self._writer = RunWriter(self._out)
        self._open = True
        try:
            self._patches.put(nn.Module, "__call__", self._calling(nn.Module.__call__))
            stand_ins = {f: self._standing_in(f, how, only) for f, how, only in entries.known()}
            self._patches.everywhere(stand_ins, model)
            interface = sys.modules.get("transformers.modeling_utils")
            if interface is not None:
                cls = interface.AttentionInterface
                self._patches.put(cls, "get_interface", self._looking_up(cls.get_interface))
        except BaseException:
            self._close()
            raise
        return self.run

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        model = self._model()
        self._close()
        try:
            if kind is None:
                if not self.run.n_calls:
                    raise ValueError(self._why_nothing(model))
                if self._writer is not None:
                    self._writer.finish(self.run)
        finally:
            if self._writer is not None:
                self._writer.close()

    def _close(self) -> None:
        self._patches.sweep()
        self._patches.undo()
        self._open = False  # a stand-in that somebody still has does nothing more
        self._names, self._masks = {}, MaskCache()
        self._adapters = {}
        for where, why in self._refused.items():
            self.run.notes.append(f"{where} was not observed: {why}")

    def _why_nothing(self, model: nn.Module | None) -> str:
        what = "nothing" if model is None else f"{type(model).__name__}"
        if self._refused:
            (where, why), *more = self._refused.items()
            rest = f" (and {len(more)} more places)" if more else ""
            return f"no attention of {what} could be observed: {where}: {why}{rest}"
        if not self._passes:
            return f"{what} was not called inside `with observe(...)`, so there is nothing to see"
        if not self._wanted.everything:
            return f"{what} has no attention in the layers or heads that were asked for"
        compiled = ""
        if "torch._dynamo" in sys.modules:
            compiled = ". Of a compiled model, observe what torch.compile returned"
        times = f"{self._passes} time{'s' * (self._passes != 1)}"
        return (
            f"{what} was called {times} and never reached scaled_dot_product_attention, "
            "nn.MultiheadAttention or transformers' attention interface. If it computes "
            "softmax(q k') v by hand, say how with observe(model, adapters={...}), see "
            f"docs/observing.md{compiled}"
        )

    # What stands in -------------------------------------------------------------------------------

    def _standing_in(self, before: Function, reader: Reader, only: Only | None = None) -> Function:
        """What calls `before`, and then has the call read by `reader`."""

        @wraps(before)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if not self._hears() or (only is not None and not only(args, kwargs)):
                return before(*args, **kwargs)
            with self._quiet():
                result = before(*args, **kwargs)
            self._saw(reader, result, args, kwargs)
            return result

        return entries.uncompiled(stand_in)

    def _looking_up(self, before: Function) -> Function:
        """transformers' get_interface, which then returns a recorder around what it found."""

        @wraps(before)
        def get_interface(table: Any, name: str, default: Function) -> Function:
            found: Function = before(table, name, default)
            if not self._open:
                return found
            return self._standing_in(found, entries.of_interface_named(name or "eager"))

        return get_interface

    def _calling(self, before: Function) -> Function:
        """nn.Module.__call__, which knows who is calling."""

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            name = self._names.get(id(module))
            if name is not None and self._thread.bare:
                return module.forward(*args, **kwargs)
            if name is None or self._thread.deaf:
                return before(module, *args, **kwargs)
            stack = self._thread.stack
            if stack:
                stack.append(name)
                try:
                    result = before(module, *args, **kwargs)
                    self._ask_adapter(module, args, kwargs, result)
                finally:
                    stack.pop()
                return result
            if _in_backward():  # a checkpoint computed again: it has been seen
                with self._quiet():
                    return before(module, *args, **kwargs)
            current = self._thread.current = Pass(self._passes, tokens_of(args, kwargs))
            self._passes += 1
            stack.append(name)
            try:
                result = before(module, *args, **kwargs)
                self._ask_adapter(module, args, kwargs, result)
                if not current.counts and not self._refused:
                    self._ask_for_weights(module, args, kwargs)
            finally:
                stack.clear()
            return result

        return call

    def _hears(self) -> bool:
        return self._open and bool(self._thread.stack) and not self._thread.deaf

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        self._thread.deaf += 1
        try:
            yield
        finally:
            self._thread.deaf -= 1

    @contextmanager
    def _without_hooks(self) -> Iterator[None]:
        self._thread.bare = True
        try:
            yield
        finally:
            self._thread.bare = False

    # What was seen --------------------------------------------------------------------------------

    def _ask_adapter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        adapter = self._adapters.get(type(module))
        if adapter is not None:
            self._saw(lambda made, *_: check_told(adapter(module, args, kwargs, made)), result)

    def _ask_for_weights(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Of a transformers model that bypasses every known function, its own weights."""
        library = sys.modules.get("transformers.modeling_utils")
        if library is None or not isinstance(module, library.PreTrainedModel):
            return
        given = (*args, *kwargs.values())
        if module.training or any(hasattr(x, "get_seq_length") for x in given):
            return  # a cache: a second pass would add to it
        with torch.no_grad(), torch.random.fork_rng(), self._quiet(), self._without_hooks():
            again = module.forward(*args, **{**kwargs, "output_attentions": True})
        mask = kwargs.get("attention_mask")
        real = mask.bool() if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None
        for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
            for n, weights in enumerate(getattr(again, name, None) or ()):
                self._thread.stack.append(f"{name}.{n}")
                self._saw(of_weights, weights, kwargs={"real": real})
                self._thread.stack.pop()

    def _saw(
        self, reader: Reader, result: Any, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Have a call read, checked, looked at and kept."""
        current, module = self._thread.current, self._thread.stack[-1]
        assert current is not None
        site = current.site(module)
        if site not in self.run.sites:
            self.run.sites.append(site)
        layer = self.run.sites.index(site)
        if not self._wanted.site(layer, module):
            return
        with self._quiet(), self._lock, torch.no_grad():
            try:
                inputs = reader(
                    result, entries.is_cross(module), self._masks, *args, **(kwargs or {})
                )
                inputs = _in_one_dtype(inputs)
                call = self._look(inputs, current, layer, site)
            except OSError:  # a folder to write to that refuses
                raise
            except Exception as error:  # whatever goes wrong here is none of the model's business
                kind = "" if isinstance(error, Unreadable) else f"{type(error).__name__}: "
                where = module or type(self._model()).__name__
                self._refused.setdefault(where, f"{kind}{error}")
                count_check(self.run, where, Check(0, 0.0, 0.0, LEFT_OUT))
                return
            if self._each is not None:
                self._each(call, inputs)

    def _look(self, inputs: AttentionInputs, current: Pass, layer: int, site: Site) -> Call:
        # What is sampled depends on what is read, and not on how often this program has looked.
        first = float(inputs.q.detach().flatten()[0]) if inputs.q.numel() else 0.0
        seed = f"{layer}.{current.number}.{first}"
        not_asked = Check(0, 0.0, 0.0, "not asked for")
        looked = look(inputs, self._wanted.rows, seed)
        done = check(inputs, looked, seed) if self._wanted.verify else not_asked
        place = self._sequences.place(inputs, current, site)
        take_tokens(current, self.run.tokens)
        where = (current, layer, site, place)
        call = call_of(inputs, looked, done, self._wanted, where, self._latest.get(layer))
        return self._kept(call, looked.stats)

    def _kept(self, call: Call, stats: HeadStats) -> Call:
        run = self.run
        if self._writer is not None:
            call = self._writer.add(call)
        run.n_calls += 1
        before = run.stats.get(call.layer)
        run.stats[call.layer] = stats if before is None else before.merge(stats)
        if run.keep == "qk":
            self._latest[call.layer] = call
        if self._writer is not None or run.keep == "qk" or call.sequence < SEQUENCES:
            self._calls.append(call)
        else:
            count_check(run, call.module, call.check)
        return call


# Parts of these -----------------------------------------------------------------------------------


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _in_one_dtype(inputs: AttentionInputs) -> AttentionInputs:
    """The inputs as the call computed with them: autocast gives all of them the output's dtype."""
    dtype = inputs.q.dtype if inputs.made is None else inputs.made.dtype
    q, k, v = (x.to(dtype) for x in (inputs.q, inputs.k, inputs.v))
    return replace(inputs, q=q, k=k, v=v)
