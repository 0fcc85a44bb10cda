"""Modules that run without their Python, compiled or scripted: which of them nothing was heard of.

Whoever attends in them through an operator is heard. What a compiler has taken apart is not, and so
a part that was silent is named.
"""

from dataclasses import dataclass, field

import torch
from torch import nn

COMPILED = "OptimizedModule"  # the class of what torch.compile returns for a module
FEW = 4  # modules that are named

KINDS = {
    "compiled": "compiled by torch.compile, and no attention was heard in it; if it attends, "
                "observe it as it was before (model._orig_mod)",
    "scripted": "made by torch.jit, and no attention was heard in it; if it attends, observe the "
                "module that it was made of",
}  # fmt: skip


def kind_of(module: nn.Module) -> str | None:
    """The kind of a module whose Python does not run, or None."""
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted"
    compiled = type(module).__name__ == COMPILED
    return "compiled" if compiled or module._compiled_call_impl is not None else None


@dataclass
class Closed:
    """Of the modules that were called, by name: whether something was heard in them."""

    heard: dict[str, bool] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def called(self, name: str, module: nn.Module, heard: bool) -> None:
        kind = kind_of(module)
        if kind is not None:
            self.kinds[name] = kind
            self.heard[name] = heard or self.heard.get(name, False)

    def silent(self) -> list[tuple[str, str]]:
        """(names, why) for each kind."""
        found = []
        for kind, why in KINDS.items():
            names = [n for n, k in self.kinds.items() if k == kind and not self.heard[n]]
            if names:
                more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
                found.append((f"{', '.join(names[:FEW])}{more}", why))
        return found
