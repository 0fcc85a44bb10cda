"""Attention in one's own test-suite: `assert_attention`.

from clearhead.testing import assert_attention

def test_my_attention():
    assert_attention(my_attention, causal=True)
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from clearhead.checker.checks import check
from clearhead.checker.diagnosis import Diagnosis
from clearhead.views.diagnosis import lines

__all__ = ["assert_attention"]


def assert_attention(
    fn: Callable[..., Any] | nn.Module | str, causal: bool | None = None,
    window: int | None = None, **told: Any,
) -> Diagnosis:  # fmt: skip
    """Pass if it is right, and fail with the report of `clearhead check` if it is not.

    fn      a function or module, called in this process, or "file.py:name", in one of its own
    causal, window, and the rest of what `clearhead.check` takes: what it should do, where its
            arguments do not say so; strict=True fails for cautions too

    Returns the diagnosis. Raises AssertionError, with the name of each mistake and the smallest
    failing input; and also where it could not be tried, since nothing is known of it then.
    """
    __tracebackhide__ = True  # pytest shows the test, and not this line
    found = check(fn, causal=causal, window=window, **told)
    if not found.ok:
        raise AssertionError("\n".join(lines(found)))
    return found
