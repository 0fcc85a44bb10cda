"""What is asked of somebody's attention and what came of it: the records, and a call made here.

    Request --perform(target, .)--> Reply         in this process
    target --about--> About                       its parameters, source, weights and settings

A Request and a Reply hold tensors, numbers and words and nothing that runs, so that both can travel
to another process and back (`hosting.py`). A call can spoil nothing: it gets copies.
"""

import linecache
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.checker.about import About as About
from clearhead.checker.about import Own as Own
from clearhead.checker.about import Parameter as Parameter
from clearhead.checker.about import Text as Text
from clearhead.checker.about import about as about
from clearhead.checker.about import file_of
from clearhead.checker.answers import Unusable, kept, settled, shape_of, tensors_in
from clearhead.checker.surroundings import as_it_was, captured, random_states, same_states, stir

MESSAGE = 300  # characters that are kept of an error


@dataclass(frozen=True)
class Stub:
    """Stands for an object that is handed over, as a `module` or a `config`: it becomes an
    nn.Module in eval mode with these attributes (numbers, words, tensors, lists, Stubs)."""

    attributes: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Request:
    """A call: what goes in, and what is to come out besides the answer.

    arguments, keywords  Tensor, None, bool, int, float, str, Stub, and lists of these
    numpy                tensors go in as arrays (bfloat16 as float32) and come out as tensors
    parameters           stand in a module's parameters and buffers of that name for this call alone
    push                 of the shape of a tensor that comes out, the first one: the gradients of
                         (out * push).sum() are asked for
    times                calls one after the other, each with fresh copies
    of                   which of the tensors that come out is pushed at
    """

    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    numpy: bool = False
    parameters: dict[str, Tensor] | None = None
    push: Tensor | None = None
    times: int = 1
    of: int = 0


@dataclass(frozen=True)
class Failure:
    """Why there is no answer. line and source are of the person's own file, where it is known."""

    kind: Literal["raised", "hung", "died", "loading", "returned"]
    message: str
    line: int | None = None
    source: str = ""


@dataclass(frozen=True, eq=False)
class Reply:
    """What came of a Request.

    answers          the tensors of each call's answer, in order
    shape_of_answer  "tensor", "array", "float", "tuple", "list", "dict", or the name of a class
    gradients        of the first call: "0", "1" by position ("1.0" in a list), keyword names, and
                     "parameters.NAME"; None where none came through
    changed          arguments and parameters, named likewise, that a call wrote into
    random           whether a global random state (torch, numpy, random) moved
    printed          the beginning of what came on stdout and stderr
    seconds          of all calls together
    """

    answers: tuple[tuple[Tensor, ...], ...] = ()
    shape_of_answer: str = ""
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    random: bool = False
    printed: str = ""
    seconds: float = 0.0
    failure: Failure | None = None


class Subject(Protocol):
    """Somebody's attention, wherever it runs."""

    @property
    def about(self) -> About: ...
    def call(self, request: Request) -> Reply: ...
    def close(self) -> None: ...


class Local:
    """A target that is called in this process, a module in eval mode."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target
        self.about = about(target)

    def call(self, request: Request) -> Reply:
        if not isinstance(self.target, nn.Module):
            return perform(self.target, request)
        modes = [(part, part.training) for part in self.target.modules()]
        try:
            return perform(self.target.eval(), request)
        finally:
            for part, training in modes:
                part.training = training

    def close(self) -> None:
        pass


def perform(
    target: Callable[..., Any], request: Request, fd: int | None = None, file: str = ""
) -> Reply:
    """Make the calls of a request in this process, and leave the process as it was.

    fd takes what is printed as well; file is the person's own, the target's where nothing is said.
    Whatever is raised, SystemExit included, is a Failure; KeyboardInterrupt goes through.
    ValueError: parameters for what is no module or has none of that name.
    """
    check(target, request)
    done, failure = Doing(target, request), None
    with as_it_was(), captured(fd) as printed:
        stir()
        before = random_states()
        try:
            done.all_of_it()
        except KeyboardInterrupt:
            raise
        except Unusable as error:
            failure = Failure("returned", str(error))
        except BaseException as error:
            failure = failure_of(error, file or file_of(target))
        moved = not same_states(before, random_states())
    return Reply(
        answers=tuple(done.answers),
        shape_of_answer=done.shape,
        gradients=done.gradients,
        changed=tuple(sorted(done.changed)),
        random=moved,
        printed=printed.text(),
        seconds=done.seconds,
        failure=failure,
    )


def check(target: Any, request: Request) -> None:
    """ValueError where `parameters` cannot be put into the target."""
    if request.parameters is None:
        return
    if not isinstance(target, nn.Module):
        raise ValueError(f"parameters are for a module, and this is a {type(target).__name__}")
    named = (target.named_parameters, target.named_buffers)
    known = [name for each in named for name, _ in each(remove_duplicate=False)]
    if unknown := [name for name in request.parameters if name not in known]:
        raise ValueError(f"the module has no {', '.join(unknown)}; it has {', '.join(known)}")


class Doing:
    """A request under way: how far it came is kept, whatever happens."""

    def __init__(self, target: Callable[..., Any], request: Request) -> None:
        self.target, self.request = target, request
        self.answers: list[tuple[Tensor, ...]] = []
        self.shape = ""
        self.gradients: dict[str, Tensor | None] = {}
        self.changed: set[str] = set()
        self.seconds = 0.0

    def all_of_it(self) -> None:
        wanted = self.request.push is not None
        for at in range(self.request.times):
            with torch.inference_mode(False), torch.set_grad_enabled(wanted):
                self.once(wanted and at == 0)

    def once(self, wanted: bool) -> None:
        request, handed = self.request, Handed(self.request)
        arguments = [handed.make(each, str(at)) for at, each in enumerate(request.arguments)]
        keywords = {name: handed.make(each, name) for name, each in request.keywords.items()}
        parameters = handed.parameters(self.target)
        began = time.perf_counter()
        try:
            if parameters and isinstance(self.target, nn.Module):
                answer = torch.func.functional_call(
                    self.target, parameters, tuple(arguments), keywords
                )
            else:
                answer = self.target(*arguments, **keywords)
        finally:
            self.seconds += time.perf_counter() - began
        self.changed |= handed.changed()
        self.shape = shape_of(answer)
        live = tensors_in(answer)
        self.answers.append(kept(live))
        if request.push is not None and wanted:
            self.gradients = dict.fromkeys(handed.floating)
            self.gradients |= pushed(live[request.of], request.push, handed.leaves)


class Handed:
    """Copies that one call gets, and which of them are leaves of its gradients."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.leaves: dict[str, Tensor] = {}
        self.floating: list[str] = []
        self.copies: list[tuple[str, Tensor, Any]] = []

    def make(self, value: Any, name: str) -> Any:
        """What goes in for a value of a request."""
        if isinstance(value, Tensor):
            copy = self.copy(value, name, self.request.numpy)
            self.copies.append((name.split(".")[0], value, copy))
            return copy
        if isinstance(value, Stub):
            return stand_in(value)
        if isinstance(value, list):
            return [self.make(each, f"{name}.{at}") for at, each in enumerate(value)]
        return value

    def copy(self, value: Tensor, name: str, numpy: bool) -> Any:
        plain = value.detach().clone()
        if value.is_floating_point():
            self.floating.append(name)
        if numpy:
            return (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()
        if self.request.push is None or not value.is_floating_point():
            return plain
        self.leaves[name] = plain.requires_grad_()
        return plain.clone()  # no leaf, so that a call may write into it

    def parameters(self, target: Any) -> dict[str, Any]:
        """What stands in the places of a module's parameters, {} where its own do."""
        if not isinstance(target, nn.Module):
            return {}
        given = self.request.parameters or {}
        if self.request.push is not None:
            given = {**dict(target.named_parameters()), **given}
        made = {}
        for name, tensor in given.items():
            made[name] = self.copy(tensor, f"parameters.{name}", numpy=False)
            self.copies.append((f"parameters.{name}", tensor, made[name]))
        return made

    def changed(self) -> set[str]:
        return {name for name, was, now in self.copies if not same_content(was, now)}


def stand_in(value: Any) -> Any:
    """The object that a Stub stands for."""
    if isinstance(value, list):
        return [stand_in(each) for each in value]
    if not isinstance(value, Stub):
        return value.detach().clone() if isinstance(value, Tensor) else value
    module = nn.Module().eval()
    for name, each in value.attributes.items():
        setattr(module, name, stand_in(each))
    return module


def pushed(out: Tensor, push: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor | None]:
    if out.shape != push.shape:
        raise Unusable(f"returned {list(out.shape)} first, and the push is {list(push.shape)}")
    if not out.requires_grad or not leaves:
        return dict.fromkeys(leaves)
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        out, list(leaves.values()), push.to(out), allow_unused=True
    )
    return {
        name: None if each is None else settled(each)
        for name, each in zip(leaves, found, strict=True)
    }


def same_content(was: Tensor, now: Any) -> bool:
    """Bit by bit, so that a NaN is itself; an array is compared as what it was made from."""
    if isinstance(now, np.ndarray):
        was_here = (was.float() if was.dtype is torch.bfloat16 else was).detach().numpy()
        return was_here.shape == now.shape and was_here.tobytes() == now.tobytes()
    if was.shape != now.shape or was.dtype != now.dtype:
        return False
    return torch.equal(bits(was.detach()), bits(now.detach()))


def bits(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)


def failure_of(
    error: BaseException, file: str, kind: Literal["raised", "loading"] = "raised"
) -> Failure:
    """An error in one line, with the deepest line of the person's own file that led to it."""
    line = None
    if isinstance(error, SyntaxError) and same_file(error.filename or "", file):
        line = error.lineno
    trace = error.__traceback__
    while trace is not None and not isinstance(error, SyntaxError):
        if same_file(trace.tb_frame.f_code.co_filename, file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return Failure(kind, words_of(error), line, source_line(file, line))


def same_file(one: str, other: str) -> bool:
    if not one or not other:
        return False
    return os.path.normcase(os.path.realpath(one)) == os.path.normcase(other)


def source_line(file: str, line: int | None) -> str:
    return "" if line is None else linecache.getline(file, line).strip()


def words_of(error: BaseException) -> str:
    """The name of an error and the first line of what it says."""
    try:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        first = next((line.strip() for line in str(said).splitlines() if line.strip()), "")
    except BaseException:  # an error of somebody's own may fail to say what it is
        first = ""
    name = type(error).__name__
    return f"{name}: {first}"[:MESSAGE] if first else name
