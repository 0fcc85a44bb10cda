"""Attention from scratch that you can read, check and see.

Importing clearhead is light: torch comes in when a name that needs it is first used.

    import clearhead as ch
    ch.scratch.multi_head_attention(...)      the seven functions of the teaching file
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearhead import scratch as scratch

__version__ = "0.1.0"
__all__ = ["__version__", "scratch"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return import_module(f"clearhead.{name}")
    raise AttributeError(f"clearhead has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
