"""Watching a model: what becomes of each call of attention that is heard.

Nothing about the model is switched. Its functions are called with the very arguments that it gave
them; afterwards the same q, k and v are looked at by the engine. Which module is calling is known
from nn.Module.__call__, for which a function stands in too, since hooks would turn PyTorch's fast
paths off.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.capture import hearing
from clearhead.capture.closed import COMPILED, Closed
from clearhead.capture.entries import Reader
from clearhead.capture.inputs import AttentionInputs, Caller, Unreadable, check_told, of_weights
from clearhead.capture.keeping import (
    Lost,
    Wanted,
    call_of,
    count_check,
    name_of,
    shown,
    versions,
)
from clearhead.capture.looking import check, look
from clearhead.capture.masks import MaskCache
from clearhead.capture.passes import SEQUENCES, Pass, Sequences, Site, take_tokens, tokens_of
from clearhead.run import Run
from clearhead.run.calls import Call, Check
from clearhead.run.writer import RunWriter
from clearhead.stats import HeadStats

LEFT_OUT = "left out: see the notes"  # why a call was not verified

Adapter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], AttentionInputs]
Each = Callable[[Call, AttentionInputs], None]


@dataclass
class _Thread(threading.local):
    """Which modules are being called, outermost first, and the pass that it is."""

    stack: list[Caller] = field(default_factory=list)
    current: Pass | None = None


class Observer:
    """A context manager that fills a Run with what a model does inside it.

    passes   how many there were; whoever numbers them sets it to the number of the next
    refused  module or place -> why it was not observed, of its first call
    """

    def __init__(
        self, model: nn.Module, wanted: Wanted, out: Path | None,
        adapters: Mapping[type[nn.Module], Adapter], each: Each | None,
    ) -> None:  # fmt: skip
        self._wanted, self._out, self._adapters, self._each = wanted, out, dict(adapters), each
        self._model = weakref.ref(model)
        self._names = {id(part): shown(name) for name, part in model.named_modules()}
        self._masks, self._thread, self._closed = MaskCache(), _Thread(), Closed()
        self._open, self._sequences = False, Sequences()
        self._lock = threading.RLock()
        self._writer: RunWriter | None = None
        self._calls: list[Call] = []
        self._latest: dict[int, Call] = {}  # by layer, of those whose q and k are kept
        self.passes = 0
        self.refused: dict[str, str] = {}
        self.run = Run(
            model=name_of(model), sites=[], calls=self._calls, versions=versions(),
            keep=wanted.keep,
        )  # fmt: skip

    def go_on_from(self, before: Run, refused: Mapping[str, str]) -> None:
        """Add to what was found before, by an observer of statistics alone."""
        for name in ("sites", "n_calls", "stats", "checked"):
            setattr(self.run, name, getattr(before, name))
        self.refused.update(refused)

    # In and out -----------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        model = self._model()
        if model is None:
            raise ValueError("the model is gone already: give it a name, and observe that")
        if self.passes or not self._names:
            raise ValueError("this observation has ended: call observe(model) for another")
        if self._out is not None:
            self._writer = RunWriter(self._out)
        self._open = True
        try:
            hearing.listen(self, model)
        except BaseException:
            self._close()
            raise
        return self.run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        model = self._model()
        self._close()
        try:
            if kind is None:
                if not self.run.n_calls:
                    raise ValueError(self._why_nothing(model))
                if self._writer is not None:
                    self._writer.finish(self.run)
        except BaseException as failure:
            error = failure
            raise
        finally:
            if self._writer is not None:
                if error is not None:
                    self._lose(error)
                self._writer.close()

    def _close(self) -> None:
        hearing.leave(self)
        self._open = False
        self._names, self._masks = {}, MaskCache()
        self._adapters = {}
        for where, why in (*self.refused.items(), *self._closed.silent()):
            name = where or type(self._model()).__name__
            self.run.notes.append(f"{name} was not observed: {why}")

    def _lose(self, error: BaseException) -> None:
        """What was written on the way is gone again: whoever looks for it is told why."""
        why = (
            f"nothing was kept in {self._out}: the observation ended with "
            f"{type(error).__name__}, and a run is whole or not there"
        )
        for n, call in enumerate(self._calls):
            with suppress(OSError, ValueError):  # its rule is read from the disk
                self._calls[n] = replace(call, tensors=Lost(call.tensors, why))

    def _why_nothing(self, model: nn.Module | None) -> str:
        what = "nothing" if model is None else f"{type(model).__name__}"
        silent = [(where or what, why) for where, why in self._closed.silent()]
        if places := [*self.refused.items(), *silent]:
            (where, why), *more = places
            rest = f" (and {len(more)} more places)" if more else ""
            return f"no attention of {what} could be observed: {where}: {why}{rest}"
        compiled = ""
        if "torch._dynamo" in sys.modules:
            compiled = ". Of a compiled model, observe what torch.compile returned"
        if not self.passes:
            return (
                f"{what} was not called inside `with observe(...)`, so there is nothing to see"
                f"{compiled}"
            )
        if not self._wanted.everything:
            known = ", ".join(repr(module) for module, _ in self.run.sites[:4])
            known += ", ..." if len(self.run.sites) > 4 else ""
            return (
                f"{what} has no attention in the layers or heads that were asked for; it has "
                f"{len(self.run.sites)} layers: {known}"
            )
        times = f"{self.passes} time{'s' * (self.passes != 1)}"
        return (
            f"{what} was called {times} and never reached scaled_dot_product_attention, "
            "nn.MultiheadAttention or transformers' attention interface. If it computes "
            "softmax(q k') v by hand, say how with observe(model, adapters={...}), see "
            f"docs/observing.md{compiled}"
        )

    # What is heard --------------------------------------------------------------------------------

    def hears(self) -> bool:
        return self._open and bool(self._thread.stack) and not _in_backward()

    def called(
        self, go_on: Callable[..., Any], module: nn.Module, args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """nn.Module.__call__, which knows who is calling."""
        name = self._names.get(id(module))
        if name is None and type(module).__name__ == COMPILED:
            name = self._names.get(id(module._orig_mod))
        if name is None:
            return go_on(module, *args, **kwargs)
        stack, current = self._thread.stack, self._thread.current
        outermost = not stack
        if outermost:
            if _in_backward():  # a checkpoint computed again: it has been seen
                with hearing.quiet():
                    return go_on(module, *args, **kwargs)
            if current is None or not current.goes_on_with(name):
                current = self._thread.current = self._begin(name, module, args, kwargs)
        assert current is not None
        before = current.heard
        transformed = torch._C._functorch.maybe_current_level() is not None
        stack.append(Caller(name, args, kwargs, transformed))
        try:
            result = go_on(module, *args, **kwargs)
            adapter = self._adapters.get(type(module))
            if adapter is not None:
                told = adapter
                self.saw(lambda made, *_: check_told(told(module, args, kwargs, made)), result)
            if outermost and current.heard == before and not self.refused:
                self._ask_for_weights(module, args, kwargs)
            self._closed.called(name, module, current.heard > before)
        finally:
            stack.pop()
        return result

    def _begin(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Pass:
        tokens = None
        with suppress(Exception), hearing.aside():
            tokens = tokens_of(module, args, kwargs, part=bool(name))
        self.passes += 1
        return Pass(self.passes - 1, tokens, part=name)

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
        alone = torch.random.fork_rng()
        with torch.no_grad(), alone, hearing.quiet(), hearing.without_hooks():
            again = module.forward(*args, **{**kwargs, "output_attentions": True})
        mask = kwargs.get("attention_mask")
        real = mask.bool() if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None
        for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
            for n, weights in enumerate(getattr(again, name, None) or ()):
                self._thread.stack.append(Caller(f"{name}.{n}"))
                self.saw(of_weights, weights, kwargs={"real": real})
                self._thread.stack.pop()

    def saw(
        self, reader: Reader, result: Any, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Have a call read, checked, looked at and kept."""
        current, caller = self._thread.current, self._thread.stack[-1]
        assert current is not None
        site = current.site(caller.name)
        if site not in self.run.sites:
            self.run.sites.append(site)
        layer = self.run.sites.index(site)
        if not self._wanted.site(layer, caller.name):
            return
        with hearing.aside(), self._lock, torch.no_grad():
            try:
                if caller.transformed:
                    raise Unreadable("inside torch.func (grad, vmap, ...) nothing can be looked at")
                inputs = _in_one_dtype(reader(result, caller, self._masks, *args, **(kwargs or {})))
                call = self._look(inputs, current, layer, site)
            except OSError:  # a folder to write to that refuses
                raise
            except Exception as error:  # whatever goes wrong here is none of the model's business
                kind = "" if isinstance(error, Unreadable) else f"{type(error).__name__}: "
                where = caller.name or type(self._model()).__name__
                self.refused.setdefault(where, f"{kind}{' '.join(str(error).split())}")
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
        take_tokens(current, self.run.tokens, inputs.q.shape[0], inputs.q.shape[2])
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
