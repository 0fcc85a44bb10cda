"""Calls of the native kernel whose every array ends, or begins, at a page that nobody may touch.

A program, since a read beyond an array ends it: `python fenced.py [LIBRARY] SET`.
"""

import ctypes
import mmap
import sys

import torch
from chance import randn
from fuzz import use
from torch import Tensor

from clearhead import Rule, attention
from clearhead.engine import native

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)


def fenced(x: Tensor, at_end: bool) -> Tensor:
    """A copy whose last byte is the last before such a page, or its first the first behind one."""
    size = x.numel() * x.element_size()
    if not size:
        return x
    room = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, room + 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (start, start + PAGE + room):
        if LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    begin = PAGE + (room - size if at_end else 0)
    made = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=begin)
    return made.view(x.shape).copy_(x)


def call(dtype: torch.dtype, D: int, Dv: int, T: int, S: int, put) -> list[Tensor]:
    q, k, v = (
        put(randn(2, n, rows, size, seed=n + size, dtype=dtype))
        for n, rows, size in ((4, T, D), (2, S, D), (2, S, Dv))
    )
    found = []
    for rule in (
        {},
        {
            "window": (S // 2, S // 3), "mask": put(randn(2, 4, T, S) > -1), "softcap": 2.0,
            "bias": put(randn(2, 4, T, S, seed=1, dtype=dtype)), "sinks": put(randn(4)),
        },
        {
            "causal": True, "key_mask": put(randn(2, S) > -1), "alibi": put(randn(4).abs()),
            "query_mask": put(randn(2, T) > -1), "bias": put(randn(S, seed=2, dtype=dtype)),
            "segments": put(torch.arange(2 * S).view(2, S) // 40),
        },
    ):  # fmt: skip
        a = attention(q, k, v, Rule(**rule), impl="native", distance=True)
        found += [x for x in vars(a).values() if isinstance(x, Tensor)]
    return found


def main(library: str, number: str) -> None:
    use(library, int(number))
    torch.set_num_threads(1)
    new_empty, rule_of, calls = Tensor.new_empty, native._rule, 0
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for D, Dv, T, S in ((1, 3, 5, 150), (3, 17, 49, 7), (17, 63, 1, 130), (63, 1, 33, 97)):
            wanted = call(dtype, D, Dv, T, S, lambda x: x)
            for at_end in (True, False):

                def put(x: Tensor, at_end: bool = at_end) -> Tensor:
                    return fenced(x, at_end)

                Tensor.new_empty = lambda *a, put=put, **b: put(new_empty(*a, **b))
                native._rule = lambda bound, put=put: {n: put(x) for n, x in rule_of(bound).items()}
                got = call(dtype, D, Dv, T, S, put)
                Tensor.new_empty, native._rule = new_empty, rule_of
                for one, other in zip(got, wanted, strict=True):
                    assert torch.equal(one.nan_to_num(1.25), other.nan_to_num(1.25))
                    calls += 1
    print(f"{calls} results are the same")


if __name__ == "__main__":
    main(*sys.argv[1:])
