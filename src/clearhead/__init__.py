"""Attention from scratch that you can read, check and see.

Importing clearhead is light: torch comes in when a name that needs it is first used.

    import clearhead as ch
    ch.scratch.multi_head_attention(...)      the seven functions of the teaching file
    ch.attention(q, k, v, ch.Rule(causal=True))      exact, in O(T) memory, with every diagnostic
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearhead import scratch as scratch
    from clearhead.cache import KVCache as KVCache
    from clearhead.capture import AttentionInputs as AttentionInputs
    from clearhead.capture import observe as observe
    from clearhead.checker.checks import check as check
    from clearhead.checker.checks import check_against as check_against
    from clearhead.checker.diagnosis import Diagnosis as Diagnosis
    from clearhead.config import AttentionConfig as AttentionConfig
    from clearhead.config import Rotary as Rotary
    from clearhead.engine import Attended as Attended
    from clearhead.engine import attention as attention
    from clearhead.gpt import GPTConfig as GPTConfig
    from clearhead.gpt import TinyGPT as TinyGPT
    from clearhead.inspection import name_heads as name_heads
    from clearhead.map import AttentionMap as AttentionMap
    from clearhead.nn import AttentionOutput as AttentionOutput
    from clearhead.nn import MultiHeadAttention as MultiHeadAttention
    from clearhead.rule import Rule as Rule
    from clearhead.run import Run as Run
    from clearhead.run import load as load
    from clearhead.stats import HeadStats as HeadStats

__version__ = "0.1.0"
__all__ = [
    "Attended",
    "AttentionConfig",
    "AttentionInputs",
    "AttentionMap",
    "AttentionOutput",
    "Diagnosis",
    "GPTConfig",
    "HeadStats",
    "KVCache",
    "MultiHeadAttention",
    "Rotary",
    "Rule",
    "Run",
    "TinyGPT",
    "__version__",
    "attention",
    "check",
    "check_against",
    "load",
    "name_heads",
    "observe",
    "scratch",
]

_HOME = {
    "Attended": "engine",
    "AttentionConfig": "config",
    "AttentionInputs": "capture",
    "AttentionMap": "map",
    "AttentionOutput": "nn",
    "Diagnosis": "checker.diagnosis",
    "GPTConfig": "gpt",
    "HeadStats": "stats",
    "KVCache": "cache",
    "MultiHeadAttention": "nn",
    "Rotary": "config",
    "Rule": "rule",
    "Run": "run",
    "TinyGPT": "gpt",
    "attention": "engine",
    "check": "checker.checks",
    "check_against": "checker.checks",
    "load": "run",
    "name_heads": "inspection",
    "observe": "capture",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"clearhead.{_HOME[name]}"), name)
    if name in __all__:
        return import_module(f"clearhead.{name}")
    raise AttributeError(f"clearhead has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
