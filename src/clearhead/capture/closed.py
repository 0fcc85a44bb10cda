"""Where nothing was heard, and why: in modules without their Python, or in all of a model.

Whoever attends in a compiled or scripted module through an operator is heard. What a compiler has
taken apart is not, and so a part that was silent is named.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from clearhead.capture.keeping import Wanted
from clearhead.run import Run

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


def why_nothing(
    what: str, places: Sequence[tuple[str, str]], passes: int, run: Run, wanted: Wanted
) -> str:
    """Why no call of a model was observed; `places` where some were refused or not heard."""
    if places:
        (where, why), *more = places
        rest = f" (and {len(more)} more places)" if more else ""
        return f"no attention of {what} could be observed: {where or what}: {why}{rest}"
    compiled = ""
    if "torch._dynamo" in sys.modules:
        compiled = ". Of a compiled model, observe what torch.compile returned"
    if not passes:
        return (
            f"{what} was not called inside `with observe(...)`, so there is nothing to see"
            f"{compiled}"
        )
    if not wanted.everything:
        known = ", ".join(repr(module) for module, _ in run.sites[:4])
        known += ", ..." if len(run.sites) > 4 else ""
        return (
            f"{what} has no attention in the layers or heads that were asked for; it has "
            f"{len(run.sites)} layers: {known}"
        )
    times = f"{passes} time{'s' * (passes != 1)}"
    return (
        f"{what} was called {times} and never reached scaled_dot_product_attention, "
        "nn.MultiheadAttention or transformers' attention interface. If it computes "
        "softmax(q k') v by hand, say how with observe(model, adapters={...}), see "
        f"docs/observing.md{compiled}"
    )
