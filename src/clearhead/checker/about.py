"""What can be said of somebody's function, class or module before it is called: `about`."""

import ast
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

Plain = None | bool | int | float | str | list[Any]  # what goes through JSON as it is
Kind = Literal["positional", "keyword", "var"]

KINDS: dict[Any, Kind] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "var",
    inspect.Parameter.VAR_KEYWORD: "var",
}
STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
SCRIPTED = "_torchdynamo_inline"  # where torch.jit.script keeps what it was given
CONFIGS = ("config", "cfg", "conf", "args", "hparams", "params")
SETTINGS = ("training", "dump_patches", "call_super_init")  # every module's, and no one's choice


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function. What takes all the rest keeps its stars: "*args", "**kwargs"."""

    name: str
    kind: Kind
    required: bool
    default: Plain  # None also where it is nothing that JSON could hold
    annotation: str  # "" where there is none
    role: str = ""  # what it turned out to be for, where its name says nothing


@dataclass(frozen=True)
class Own:
    """A tensor that a module holds. owner is the class of the part that holds it, as "Linear";
    where the module holds it itself, "Parameter" or "Buffer"."""

    name: str
    shape: tuple[int, ...]
    owner: str
    buffer: bool = False


@dataclass(frozen=True)
class Text:
    """A piece of somebody's file."""

    first_line: int
    source: str


@dataclass(frozen=True)
class About:
    """What is known of a target without calling it.

    parameters  those of `forward` for a module, of `__init__` for a class
    doc         for a module, the class's own words and those of `forward`
    source      text of the function or class, "" where there is none
    own         a module's parameters, then its buffers
    helpers     texts of the functions in the same file that it uses
    attributes  a module's numbers and words, those of its config as "config.name", and what its
                parts say of heads as "part.name"
    """

    name: str
    kind: Literal["function", "module", "class"]
    parameters: tuple[Parameter, ...] = ()
    doc: str = ""
    source: str = ""
    file: str = ""
    first_line: int = 0
    own: tuple[Own, ...] = ()
    attributes: dict[str, bool | int | float | str] = field(default_factory=dict)
    helpers: tuple[Text, ...] = ()


def about(target: Any, name: str | None = None) -> About:
    """Describe a function, a class or a module. `name` is what it is called where it was found."""
    written = written_as(target)
    doc, source, line = "", "", 0
    if inspect.isclass(written):
        texts = [each.__doc__ for each in (written, vars(written).get("forward")) if each]
        doc = "\n".join(inspect.cleandoc(text) for text in texts if text)
    elif isinstance(written.__doc__, str):
        doc = inspect.cleandoc(written.__doc__)
    try:
        lines, line = inspect.getsourcelines(written)
        source = "".join(lines)
    except (OSError, TypeError):
        pass  # it was typed in, or is compiled
    return About(
        name=name or str(getattr(target, "__name__", type(target).__name__)),
        kind=kind_of(target),
        parameters=tuple(parameters_of(target)),
        doc=doc,
        source=source,
        file=file_of(target),
        first_line=line,
        own=tuple(tensors_of(target)) if isinstance(target, nn.Module) else (),
        attributes=attributes_of(target) if isinstance(target, nn.Module) else {},
        helpers=tuple(helpers_of(written, source)),
    )


def helpers_of(written: Any, source: str) -> Iterator[Text]:
    """The functions in the same file that a text names, and those that they name."""
    module = sys.modules.get(getattr(written, "__module__", None) or "")
    there = getattr(written, "__globals__", None) or (vars(module) if module else {})
    known, left = {id(written)}, [source]
    while left:
        for name in re.findall(r"\b[A-Za-z_]\w*(?=\()", left.pop()):
            found = there.get(name)
            if not inspect.isfunction(found) or id(found) in known:
                continue
            known.add(id(found))
            if file_of(found) == file_of(written):
                with suppress(OSError, TypeError):
                    lines, first = inspect.getsourcelines(found)
                    left.append("".join(lines))
                    yield Text(first, left[-1])


def kind_of(target: Any) -> Literal["function", "module", "class"]:
    if inspect.isclass(target):
        return "class"
    return "module" if isinstance(target, nn.Module) else "function"


def written_as(target: Any) -> Any:
    """The function or class whose text this is: inside of decorators, partials and instances."""
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, nn.Module):
        return type(target)
    target = inspect.unwrap(getattr(target, SCRIPTED, target))
    return target if inspect.isroutine(target) or inspect.isclass(target) else type(target)


def file_of(target: Any) -> str:
    """The file that the target was written in, "" where there is none."""
    try:
        file = inspect.getsourcefile(written_as(target))
    except TypeError:
        return ""
    return os.path.realpath(file) if file else ""


def parameters_of(target: Any) -> Iterator[Parameter]:
    called: Callable[..., Any] = getattr(target, SCRIPTED, target)
    if isinstance(target, nn.Module):
        called = target.forward
    try:
        signature = inspect.signature(called)
    except (ValueError, TypeError):
        yield from documented(called)
        return
    for name, one in signature.parameters.items():
        none = one.default is inspect.Parameter.empty
        yield Parameter(
            name=STARS.get(one.kind, "") + name,
            kind=KINDS[one.kind],
            required=none and one.kind not in STARS,
            default=None if none else plain(one.default),
            annotation=words_of(one.annotation),
        )


def documented(compiled: Any) -> Iterator[Parameter]:
    """Parameters of what is compiled, as the first line of its words has them: f(a, b=None)."""
    first = (getattr(compiled, "__doc__", None) or "").strip().partition(")")[0]
    name, _, inside = first.partition("(")
    if not name.strip().isidentifier():
        return
    try:
        call = ast.parse(f"def f({inside}): pass").body[0]
    except SyntaxError:
        return
    assert isinstance(call, ast.FunctionDef)
    names = call.args.args
    defaults = [None] * (len(names) - len(call.args.defaults)) + list(call.args.defaults)
    alone = zip(call.args.kwonlyargs, call.args.kw_defaults, strict=True)
    for one, default in [*zip(names, defaults, strict=True), *alone]:
        with suppress(ValueError):
            value = None if default is None else plain(ast.literal_eval(default))
            yield Parameter(one.arg, "positional" if one in names else "keyword", default is None,
                            value, "")  # fmt: skip


def words_of(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def plain(value: Any) -> Plain:
    """A default as JSON holds it; None where it cannot."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return None


def tensors_of(module: nn.Module) -> Iterator[Own]:
    for named, own in ((module.named_parameters, "Parameter"), (module.named_buffers, "Buffer")):
        for name, tensor in named():
            path = name.rpartition(".")[0]
            owner = public_name(module.get_submodule(path)) if path else own
            yield Own(name, tuple(tensor.shape), owner, buffer=own == "Buffer")


def public_name(module: nn.Module) -> str:
    """A class's name; for what torch derives for itself, the name of what users know."""
    kinds = type(module).__mro__ if type(module).__module__.startswith("torch.nn.") else ()
    known = [kind.__name__ for kind in kinds if getattr(nn, kind.__name__, None) is kind]
    return known[0] if known else type(module).__name__


def attributes_of(module: nn.Module) -> dict[str, bool | int | float | str]:
    found = dict(numbers_and_words(vars(module)))
    for path, part in module.named_modules():
        counts = [n for n in numbers_and_words(vars(part)) if path and "head" in n[0]]
        found |= {f"{path}.{name}": each for name, each in counts}
    for config in filter(None, (getattr(module, name, None) for name in CONFIGS)):
        for layer in [*reversed(type(config).__mro__), config]:
            inside = layer if isinstance(layer, dict) else getattr(layer, "__dict__", {})
            if not any(layer is each for each in (object, dict, nn.Module)):
                found |= {f"config.{name}": value for name, value in numbers_and_words(inside)}
    return found


def numbers_and_words(names: Any) -> Iterator[tuple[str, bool | int | float | str]]:
    for name, value in names.items():
        hidden = not isinstance(name, str) or name.startswith("_") or name in SETTINGS
        if not hidden and isinstance(value, (bool, int, float, str)):
            yield name, plain(value)  # type: ignore[misc]
