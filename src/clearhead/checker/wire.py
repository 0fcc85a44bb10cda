"""Records on a pipe: JSON for what is said, plain bytes for tensors. What is read never runs.

    frame    magic, length of the JSON, length of the rest, JSON, bytes of the tensors
    JSON     {"said": value, "tensors": [[dtype, shape], ...]}

Whoever reads trusts nobody: what is longer than `MOST`, is not the records that it claims to be, or
has another number of bytes than its shapes need, is Garbage.
"""

import dataclasses
import json
import math
import struct
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from clearhead.checker.calls import (
    About,
    Failure,
    Own,
    Parameter,
    Reply,
    Request,
    Stub,
    Text,
)

MOST = 256 * 2**20  # bytes of a frame
HEAD = struct.Struct("<8sQQ")
MAGIC = b"clearhd1"
RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (About, Failure, Own, Parameter, Reply, Request, Stub, Text)
}
DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}


class Garbage(ValueError):
    """What came is no frame, or not of the records that it should be of."""


class TooLong(ValueError):
    """A value needs more bytes than a frame may have."""


def pack(value: Any) -> bytes:
    """A value as a frame: records of this package, tensors, tuples, lists, dicts and plain values.

    TypeError: it is none of these. TooLong: it needs more than MOST bytes.
    """
    tensors: list[Tensor] = []
    said = lower(value, tensors)
    for tensor in tensors:
        if str(tensor.dtype) not in DTYPES:
            raise TypeError(f"{tensor.dtype} is not among {', '.join(DTYPES)}")
    shapes = [[str(tensor.dtype), list(tensor.shape)] for tensor in tensors]
    text = json.dumps({"said": said, "tensors": shapes}).encode()
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if len(text) + size > MOST:
        raise TooLong(f"{(len(text) + size) / 2**20:.0f} MiB, and {MOST // 2**20} MiB go through")
    return b"".join([HEAD.pack(MAGIC, len(text), size), text, *map(bytes_of, tensors)])


def lower(value: Any, tensors: list[Tensor]) -> Any:
    """A value as JSON has it, its tensors by number."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        tensors.append(value.detach().cpu().contiguous())
        return {"tensor": len(tensors) - 1}
    if isinstance(value, list):
        return [lower(each, tensors) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [lower(each, tensors) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[name, lower(each, tensors)] for name, each in value.items()]}
    if type(value).__name__ in RECORDS and dataclasses.is_dataclass(value):
        names = [part.name for part in dataclasses.fields(value)]
        fields = [[name, lower(getattr(value, name), tensors)] for name in names]
        return {"record": type(value).__name__, "fields": fields}
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def receive(read: Callable[[int], bytes]) -> bytes | None:
    """The next frame from a pipe, None where the pipe has ended. Garbage: it is no frame."""
    head = exactly(read, HEAD.size)
    if not head:
        return None
    if len(head) < HEAD.size:
        raise Garbage("the pipe ended within a frame")
    magic, text, size = HEAD.unpack(head)
    if magic != MAGIC:
        raise Garbage(f"it begins with {head[:8]!r}")
    if text + size > MOST:
        raise Garbage(f"it says that it is {text + size} bytes long")
    body = exactly(read, text + size)
    if len(body) < text + size:
        raise Garbage("the pipe ended within a frame")
    return head + body


def exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """So many bytes, or fewer where the pipe has ended."""
    parts, missing = [], size
    while missing and (part := read(min(missing, 2**20))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def unpack(frame: bytes, hint: Any = Any) -> Any:
    """The value of a frame, which must be what `hint` says, as tuple[About, ...] | Failure."""
    try:
        _, text, _ = HEAD.unpack_from(frame)
        whole = json.loads(frame[HEAD.size : HEAD.size + text])
        tensors = tensors_of(whole["tensors"], bytearray(frame[HEAD.size + text :]))
        value = higher(whole["said"], tensors)
    except Garbage:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise Garbage(f"it does not hold together ({type(error).__name__})") from None
    if not fits(value, hint):
        raise Garbage(f"it is no {hint}")
    return value


def tensors_of(shapes: Any, data: bytearray) -> list[Tensor]:
    tensors, start = [], 0
    for name, shape in shapes:
        if not fits(shape, list[int]) or any(not 0 <= size < 2**40 for size in shape):
            raise Garbage(f"a tensor of shape {str(shape)[:80]}")
        dtype, count = DTYPES[name], math.prod(shape)
        if start + count * dtype.itemsize > len(data):
            raise Garbage(f"a tensor of shape {shape}, and {len(data) - start} bytes for it")
        if count:
            part = data[start : start + count * dtype.itemsize]
            tensors.append(torch.frombuffer(part, dtype=dtype).reshape(shape))
        else:
            tensors.append(torch.empty(shape, dtype=dtype))
        start += count * dtype.itemsize
    if start != len(data):
        raise Garbage(f"{len(data) - start} bytes more than its tensors need")
    return tensors


def higher(said: Any, tensors: list[Tensor]) -> Any:
    """What `lower` made lower; Garbage where it made nothing like it."""
    if isinstance(said, list):
        return [higher(each, tensors) for each in said]
    if not isinstance(said, dict):
        return said
    if "tensor" in said:
        return tensors[said["tensor"]]
    if "tuple" in said:
        return tuple(higher(each, tensors) for each in said["tuple"])
    if "dict" in said:
        return {name: higher(each, tensors) for name, each in said["dict"]}
    record = RECORDS[said["record"]]
    fields = {name: higher(each, tensors) for name, each in said["fields"]}
    hints = get_type_hints(record)
    if set(fields) != set(hints):
        raise Garbage(f"a {said['record']} of {', '.join(map(str, fields))}")
    for name, value in fields.items():
        if not fits(value, hints[name]):
            raise Garbage(f"a {said['record']} whose {name} is a {type(value).__name__}")
    return record(**fields)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what a type hint says, all the way down."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inside)
    if origin is Literal:
        return isinstance(value, str) and value in inside
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(each, inside[0]) for each in value)
    if origin is list:
        return isinstance(value, list) and all(fits(each, inside[0]) for each in value)
    if origin is dict:
        sound = isinstance(value, dict) and all(fits(key, inside[0]) for key in value)
        return sound and all(fits(each, inside[1]) for each in value.values())
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, NoneType if hint is None else hint)
