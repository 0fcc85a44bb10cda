"""Calls of the native kernel whose every array ends, or begins, at a page that nobody may touch.

A program, since a read beyond an array ends it: `python fenced.py LIBRARY SET DTYPE...`.
"""

import ctypes
import mmap
import sys

import torch
from chance import randn
from fuzz import use
from torch import Tensor

from clearhead import AttentionMap, Rule, attention
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
    g = put(randn(2, 4, T, Dv, seed=5, dtype=dtype))
    entropy = put(randn(2, 4, T, seed=6, dtype=torch.promote_types(dtype, torch.float32)))
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
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        a = attention(*leaves, Rule(**rule), impl="native", distance=True, received=True)
        found += [x.detach() for x in vars(a).values() if isinstance(x, Tensor)]
        found += torch.autograd.grad([a.out, a.entropy], leaves, [g, entropy])
        whole = AttentionMap(q, k, Rule(**rule))
        found += [whole.dense(), whole.scores[:, :, T // 2 :, S // 2 :]]
    return found


def main(library: str, number: str, *dtypes: str) -> None:
    use(library, int(number))
    torch.set_num_threads(1)
    makers = [(Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like"), (torch, "zeros_like")]
    made_by = [(where, name, getattr(where, name)) for where, name in makers]
    rule_of, calls = native._rule, 0
    for dtype in (getattr(torch, name) for name in dtypes):
        for D, Dv, T, S in ((1, 3, 5, 150), (3, 17, 49, 7), (17, 63, 1, 130), (63, 1, 33, 97)):
            wanted = call(dtype, D, Dv, T, S, lambda x: x)
            for at_end in (True, False):

                def put(x: Tensor, at_end: bool = at_end) -> Tensor:
                    return fenced(x, at_end)

                for where, name, make in made_by:
                    setattr(where, name, lambda *a, put=put, make=make, **b: put(make(*a, **b)))
                native._rule = lambda *a, put=put: {n: put(x) for n, x in rule_of(*a).items()}
                got = call(dtype, D, Dv, T, S, put)
                native._rule = rule_of
                for where, name, make in made_by:
                    setattr(where, name, make)
                for one, other in zip(got, wanted, strict=True):
                    assert torch.equal(one.nan_to_num(1.25), other.nan_to_num(1.25))
                    calls += 1
    print(f"{calls} results are the same")


if __name__ == "__main__":
    main(*sys.argv[1:])
