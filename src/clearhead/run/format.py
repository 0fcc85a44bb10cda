"""What a run.json may say: its types, its sizes, and that its parts fit each other.

docs/run-format.md says what is in it.
"""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.engine.inputs import DTYPES
from clearhead.rule import Rule
from clearhead.run.calls import FIGURES, KEPT, Call, Check

FORMAT, VERSION = "clearhead run", 1
RUN = "run.json"
READ = ("texts", "windows", "tokens")  # of a corpus, how many
DATA = re.compile(r"data-[0-9a-f]{16}")
LARGEST = 1 << 30  # bytes of a run.json
MOST = 1 << 40  # no size, position or count is larger
NAMES: dict[str, torch.dtype] = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}

Kind = Callable[[Any], bool]


def read_json(path: Path) -> dict[str, Any]:
    """The run.json of a run, checked. Raises ValueError for one that is none, OSError."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is no file, but a link or a folder or the like")
    if (size := found.st_size) > LARGEST:
        raise ValueError(f"{path} has {size:,} bytes, far more than a run has to say")
    try:
        said = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no whole JSON: {error}") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError(f"{path} is not the run.json of a {FORMAT}")
    version = said.get("version")
    if type(version) is not int or version != VERSION:
        newer = type(version) is int and version > VERSION
        hint = "; a newer clearhead wrote it" if newer else ""
        raise ValueError(f"{path} is of version {version!r}; this clearhead reads {VERSION}{hint}")
    try:
        check_said(said)
    except ValueError as error:
        raise ValueError(f"{path} is damaged or was not written by clearhead: {error}") from error
    return said


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def check_said(said: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the first, where a run.json says what no Run says."""
    for name, kind in _SAID.items():
        _need(name in said and kind(said[name]), name, said.get(name))
    read = said.get("read", {})  # a run need not say
    _need(read == {} or _record(**dict.fromkeys(READ, _count))(read), "read", read)
    n_layers = len(said["sites"])
    for name in (*said["stats"]["of"], *(call.get("layer") for call in said["calls"])):
        layer = int(name) if isinstance(name, str) else name
        _need(_count(layer) and layer < n_layers, "layer", layer)
    seen = set()
    for n, call in enumerate(said["calls"]):
        for name, kind in _CALL.items():
            _need(name in call and kind(call[name]), f"calls[{n}].{name}", call.get(name))
        _check_call(f"calls[{n}]", call)
        place = call["layer"], call["number"]
        _need(place not in seen, f"calls[{n}], a second one of layer and forward pass", place)
        seen.add(place)


def _check_call(where: str, call: Mapping[str, Any]) -> None:
    _, H, G, T, S, _ = call["shape"]
    _need(call["held_from"] <= S, f"{where}.held_from", call["held_from"])
    _need(G >= 1 and H % G == 0, f"{where}.shape", call["shape"])
    heads, names = call["heads"], call["tensors"]
    fits = heads is None or (len(set(heads)) == len(heads) and all(h < H for h in heads))
    _need(fits and (heads != [] or "q" not in names), f"{where}.heads", heads)
    known = {*FIGURES, *KEPT, "rows", *(f"rule.{name}" for name in RULE_TENSORS)}
    _need(len(set(names)) == len(names) and known.issuperset(names), f"{where}.tensors", names)
    _need((call["rows"] is None) == ("rows" not in names), f"{where}.rows", call["rows"])
    _need(call["rows"] is None or call["rows"] <= T, f"{where}.rows", call["rows"])
    rule = call["rule"]
    _need(rule.keys() <= _RULE_NUMBERS.keys(), f"{where}.rule", list(rule))
    for name, value in rule.items():
        _need(_RULE_NUMBERS[name](value), f"{where}.rule.{name}", value)
    rule_numbers(rule)  # that they fit each other
    _need(not ("offset" in rule and "rule.offset" in names), f"{where}.rule.offset", "given twice")
    check = call["check"]
    _need(check.keys() == CHECK.keys(), f"{where}.check", check)
    for name, kind in CHECK.items():
        _need(kind(check[name]), f"{where}.check.{name}", check[name])


def _need(holds: bool, where: str, seen: object) -> None:
    if not holds:
        text = repr(seen)
        raise ValueError(f"{where} is {text if len(text) < 60 else text[:57] + '...'}")


def _count(x: object) -> bool:
    return type(x) is int and 0 <= x <= MOST


def _whole(x: object) -> bool:
    return type(x) is int and -MOST <= x <= MOST


def _number(x: object) -> bool:
    return isinstance(x, int | float) and not _flag(x) and abs(x) <= 1e308


def _text(x: object) -> bool:
    return type(x) is str


def _flag(x: object) -> bool:
    return type(x) is bool


def _or_none(kind: Kind) -> Kind:
    return lambda x: x is None or kind(x)


def _list(kind: Kind, size: int | None = None) -> Kind:
    return lambda x: type(x) is list and (size is None or len(x) == size) and all(map(kind, x))


def _table(kind: Kind, key: str = ".*") -> Kind:
    fits = re.compile(key, re.DOTALL).fullmatch
    return lambda x: type(x) is dict and all(fits(k) and kind(v) for k, v in x.items())


def _record(**kinds: Kind) -> Kind:
    return lambda x: type(x) is dict and all(n in x and kind(x[n]) for n, kind in kinds.items())


def _scalar(x: object) -> bool:
    return x is None or _text(x) or _flag(x) or _number(x)


def _role(x: object) -> bool:
    if not isinstance(x, dict) or not all(map(_scalar, x.values())):
        return False
    numbers = all(_or_none(_number)(x.get(name)) for name in ("mass", "uniform"))
    return numbers and _or_none(_text)(x.get("role"))


_INDEX = "0|[1-9][0-9]{0,12}"
CHECK: dict[str, Kind] = {
    "rows": _count, "worst": _or_none(_number), "allowed": _number, "why": _or_none(_text),
    "calls": _count,
}  # fmt: skip
_SAID: dict[str, Kind] = {
    "data": lambda x: _text(x) and DATA.fullmatch(x) is not None,
    "model": _text,
    "keep": _text,
    "n_calls": _count,
    "sites": _list(lambda x: type(x) is list and len(x) == 2 and _text(x[0]) and _count(x[1])),
    "versions": _table(_text),
    "notes": _list(_text),
    "roles": _table(_role),
    "pieces": _table(_text, _INDEX),
    "checked": _list(
        lambda x: type(x) is list and len(x) == 2 and _text(x[0]) and _record(**CHECK)(x[1])
    ),
    "stats": _record(of=_table(_count, _INDEX), bytes=_count),
    "tokens": _record(of=_table(_list(_count, 2), _INDEX), bytes=_count),
    "calls": _list(lambda x: type(x) is dict),
}
_CALL: dict[str, Kind] = {
    "layer": _count, "number": _count, "entry": _text, "shape": _list(_count, 6), "Dv": _count,
    "rule": lambda x: type(x) is dict, "key_start": _count, "held_from": _count,
    "first_row": _count, "sequence": _count, "rows": _or_none(_count),
    "heads": _or_none(_list(_count)),
    "dtype": lambda x: _text(x) and x in NAMES, "impl": _text, "cross": _flag,
    "mask_bytes": _count, "check": lambda x: type(x) is dict, "tensors": _list(_text),
    "bytes": _count,
}  # fmt: skip
_RULE_NUMBERS: dict[str, Kind] = {
    "scale": _number, "causal": _flag, "offset": _whole, "softcap": _number,
    "window": lambda x: _count(x) or _list(_count, 2)(x),
}  # fmt: skip
RULE_TENSORS = (
    "offset", "alibi", "sinks", "key_mask", "query_mask", "segments", "mask", "bias",
)  # fmt: skip


# From what it says to records ---------------------------------------------------------------------


def rule_numbers(said: Mapping[str, Any]) -> Rule:
    """The rule of a call without its tensors. Raises ValueError where there is no such rule."""
    window = said.get("window")
    try:
        return Rule(**{**said, "window": tuple(window) if isinstance(window, list) else window})
    except TypeError as error:
        raise ValueError(str(error)) from error


def check_of(said: Mapping[str, Any]) -> Check:
    worst = math.inf if said["worst"] is None else said["worst"]  # JSON has no infinity
    return Check(said["rows"], worst, said["allowed"], said["why"], said["calls"])


# From records to what it says ---------------------------------------------------------------------


def said_of(call: Call, names: tuple[str, ...]) -> dict[str, Any]:
    """A call as run.json has it."""
    return {
        "layer": call.layer,
        "number": call.number,
        "sequence": call.sequence,
        "entry": call.entry,
        "impl": call.impl,
        "shape": [int(n) for n in call.shape],
        "Dv": int(call.Dv),
        "dtype": call.dtype,
        "key_start": int(call.key_start),
        "held_from": int(call.held_from),
        "first_row": int(call.first_row),
        "rows": None if call.rows is None else len(call.rows),
        "heads": None if call.heads is None else [int(h) for h in call.heads],
        "cross": call.cross,
        "mask_bytes": int(call.mask_bytes),
        "rule": _said_of_rule(call.rule),
        "check": said_of_check(call.check),
        "tensors": list(names),
    }


def _said_of_rule(rule: Rule) -> dict[str, Any]:
    """The numbers of a rule that are not left out."""
    said: dict[str, Any] = {}
    for name in ("scale", "softcap"):
        if (x := getattr(rule, name)) is not None:
            said[name] = float(x)
    if rule.causal:
        said["causal"] = True
    if rule.offset is not None and not isinstance(rule.offset, Tensor):
        said["offset"] = int(rule.offset)
    if isinstance(rule.window, tuple):
        said["window"] = [int(n) for n in rule.window]
    elif rule.window is not None:
        said["window"] = int(rule.window)
    return said


def finite(role: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {
        key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in role.items()
    }


def said_of_check(check: Check) -> dict[str, Any]:
    worst = float(check.worst) if check.worst < math.inf else None
    return {
        "rows": int(check.rows), "worst": worst, "allowed": float(check.allowed),
        "why": check.why, "calls": int(check.calls),
    }  # fmt: skip
