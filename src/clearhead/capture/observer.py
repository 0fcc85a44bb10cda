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
from clearhead.capture.closed import COMPILED, Closed, why_nothing
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
from clearhead.capture.looking import Looked, check, look
from clearhead.capture.masks import MaskCache
from clearhead.capture.passes import SEQUENCES, Pass, Sequences, take_tokens, tokens_of
from clearhead.capture.replacing import REPLACED, Proofs, Replacing, prove
from clearhead.run import Run
from clearhead.run.calls import Call, Check
from clearhead.run.writer import RunWriter

NOT_ASKED = Check(0, 0.0, 0.0, "not asked for")
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
        self._replacing = Replacing() if wanted.replace else None
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
                    what = "nothing" if model is None else type(model).__name__
                    places = [*self.refused.items(), *self._closed.silent()]
                    run, wanted = self.run, self._wanted
                    raise ValueError(why_nothing(what, places, self.passes, run, wanted))
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
        if self._replacing is not None and self.run.n_calls:
            self.run.notes += self._replacing.notes(self.run, type(self._model()).__name__)

    def _lose(self, error: BaseException) -> None:
        """What was written on the way is gone again: whoever looks for it is told why."""
        why = (
            f"nothing was kept in {self._out}: the observation ended with "
            f"{type(error).__name__}, and a run is whole or not there"
        )
        for n, call in enumerate(self._calls):
            with suppress(OSError, ValueError):  # its rule is read from the disk
                self._calls[n] = replace(call, tensors=Lost(call.tensors, why))

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

    def answer(self, reader: Reader, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The engine's output in a call's place, looked at and kept; None: it has to be made."""
        current, caller, replacing = self._thread.current, self._thread.stack[-1], self._replacing
        if replacing is None or current is None or caller.transformed:
            return None
        found = replacing.answering(current.next_site(caller.name), reader, args, kwargs)
        if found is None:
            return None
        with hearing.aside(), self._lock, torch.no_grad():
            try:
                inputs = _in_one_dtype(reader(found.stand_in, caller, self._masks, *args, **kwargs))
                if not found.proofs.holds(inputs.rule):
                    return None
                looked = look(inputs, None, "", output=True)
                if not found.fits(looked):
                    return None
                assert looked.attended.out is not None
                result = found.result(looked.attended.out)
            except Exception:  # the call is made, then, and shows what is wrong with it
                return None
            replacing.count += 1
        inputs = replace(inputs, made=looked.attended.out)
        self._settle(current, caller, lambda _: (inputs, looked, Check(0, 0.0, 0.0, REPLACED)))
        return result

    def saw(
        self, reader: Reader, result: Any, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Have a call read, checked, looked at and kept."""
        current, caller, given = self._thread.current, self._thread.stack[-1], kwargs or {}
        assert current is not None
        proofs = None
        if self._replacing is not None and not caller.transformed:
            site = current.next_site(caller.name)
            proofs = self._replacing.proofs_of(site, reader, result, args, given)

        def found(layer: int) -> tuple[AttentionInputs, Looked, Check]:
            if caller.transformed:
                raise Unreadable("inside torch.func (grad, vmap, ...) nothing can be looked at")
            inputs = _in_one_dtype(reader(result, caller, self._masks, *args, **given))
            return inputs, *self._look(inputs, layer, current, caller, proofs)

        self._settle(current, caller, found)

    def _settle(
        self, current: Pass, caller: Caller,
        found: Callable[[int], tuple[AttentionInputs, Looked, Check]],
    ) -> None:  # fmt: skip
        """A call takes its place, and what is found in it is kept, if it is wanted."""
        site = current.site(caller.name)
        if site not in self.run.sites:
            self.run.sites.append(site)
        layer = self.run.sites.index(site)
        if not self._wanted.site(layer, caller.name):
            return
        with hearing.aside(), self._lock, torch.no_grad():
            try:
                inputs, looked, done = found(layer)
                place = self._sequences.place(inputs, current, site)
                take_tokens(current, self.run.tokens, inputs.q.shape[0], inputs.q.shape[2])
                where, before = (current, layer, site, place), self._latest.get(layer)
                call = self._kept(
                    call_of(inputs, looked, done, self._wanted, where, before), looked
                )
            except OSError:  # a folder to write to that refuses
                raise
            except Exception as error:  # whatever goes wrong here is none of the model's business
                kind = "" if isinstance(error, Unreadable) else f"{type(error).__name__}: "
                name = caller.name or type(self._model()).__name__
                self.refused.setdefault(name, f"{kind}{' '.join(str(error).split())}")
                if self._replacing is not None:
                    self._replacing.failed.setdefault(caller.name, "")
                count_check(self.run, name, Check(0, 0.0, 0.0, LEFT_OUT))
                return
            if self._each is not None:
                self._each(call, inputs)

    def _look(
        self, inputs: AttentionInputs, layer: int, current: Pass, caller: Caller,
        proofs: Proofs | None,
    ) -> tuple[Looked, Check]:  # fmt: skip
        # What is sampled depends on what is read, and not on how often this program has looked.
        first = float(inputs.q[0, 0, 0, 0]) if inputs.q.numel() else 0.0
        seed, wanted = f"{layer}.{current.number}.{first}", self._wanted
        if proofs is None or self._replacing is None or not proofs.lacks(inputs.rule):
            looked = look(inputs, wanted.rows, seed)
            asked = check(inputs, looked, seed) if wanted.verify else NOT_ASKED
            return looked, asked
        looked = look(inputs, None, seed, output=True)
        done = check(inputs, looked, seed)
        try:
            prove(proofs, inputs, looked, done, seed)
        except Unreadable as error:
            self._replacing.failed[caller.name] = str(error)
        return looked, done

    def _kept(self, call: Call, looked: Looked) -> Call:
        run, stats = self.run, looked.stats
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
