"""Observing a model: every attention call that it makes, as it makes it, and nothing of it changed.

`observe` is the door. hearing.py knows who listens; operators.py has torch's operators heard and
patches.py puts functions in place of others and back, those of entries.py; inputs.py and modules.py
read what a call was given; masks.py finds the Rule behind a mask; looking.py has the engine look,
and proves that what it saw is the call; replacing.py says where its output may go in place of the
original's; passes.py knows where in a sequence a call stands, keeping.py what is kept of it,
closed.py where nothing was heard; observer.py holds these together.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from torch import nn

from clearhead.capture.inputs import AttentionInputs
from clearhead.capture.keeping import Wanted, by_layer, shown
from clearhead.capture.observer import Adapter, Each, Observer
from clearhead.cells import is_integer

__all__ = ["Adapter", "AttentionInputs", "Observer", "observe"]

KEEPS = ("stats", "qk")


def observe(
    model: nn.Module, *, keep: str = "stats", layers: Collection[int | str] | None = None,
    heads: Collection[int | str] | None = None, rows: int | None = None,
    out: str | Path | None = None, verify: bool = True,
    adapters: Mapping[type[nn.Module], Adapter] | None = None,
    each: Each | None = None, replace: bool = False,
) -> Observer:  # fmt: skip
    """Watch every attention call of a model, any PyTorch or transformers model, as it is.

        with observe(model) as run:
            model(**inputs)
        run.heads()                             one record a head
        run.map("3.5")                          with keep="qk": any weight of that head, exactly

    The model computes what it would have computed anyway, bit for bit: no hook is set, no
    configuration, mask, kernel or random number is touched, and everything is back in its place
    afterwards, whatever happened. Each call is then looked at by the engine, in memory that grows
    with its length, and proved on 64 of its rows: the engine's own output is compared with what
    the model got. A call that fails is left out, and run.notes says which, with both numbers.

    keep      "stats": figures of rows and statistics of heads. "qk": q and k of every call too,
              in the model's dtype, which run.map needs
    layers    only these, by number (in the order of their first calls) or by module name
    heads     only these, by number, or by name as in "3.5"
    rows      look at a sample of so many queries, against all the keys that they may see
    out       a folder: each call is written as it happens, and nothing is gathered in memory
    verify    whether to compare
    adapters  for modules that compute softmax(q k') v by hand: by class, a function
              (module, args, kwargs, result) -> clearhead.AttentionInputs
    each      called with every Call and its inputs, while it is being looked at
    replace   for speed: put the engine's output in place of the original's, which is then not
              called, where two calls of the same kind before it, in the same place, agreed.
              Outputs move by rounding: 4e-7 of 3.7 in float32 (1,024 tokens), the last digit
              in bfloat16;
              Call.check says of such a call that it was not compared, run.notes how many there
              were, and what was left as it is. Where there are gradients, dropout or a GPU, and
              while two watch, everything is as without

    Raises ValueError for wrong arguments and, at the end, if no call was seen, saying why; OSError
    for a disk that refuses.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"observe takes a torch.nn.Module; got {type(model).__name__}")
    if keep not in KEEPS:
        raise ValueError(f'keep must be "stats" or "qk"; got {keep!r}')
    if rows is not None and (not is_integer(rows) or rows < 1):
        raise ValueError(f"rows must be at least 1, or None for all; got {rows!r}")
    if isinstance(layers, str | int) or isinstance(heads, str | int):
        raise TypeError(
            f'layers and heads are lists, such as [0, 3] or ["3.5"]; got {layers or heads!r}'
        )
    if layers is not None:
        layers = [shown(layer) if isinstance(layer, str) else layer for layer in layers]
    if replace and not (rows is None and verify):
        raise ValueError(
            "replace=True puts the engine's output of all rows in the model, once it is proved: "
            f"it needs rows=None and verify=True; got rows={rows!r} and verify={verify!r}"
        )
    wanted = Wanted(keep, layers, by_layer(heads), rows, verify, replace)
    return Observer(model, wanted, None if out is None else Path(out), adapters or {}, each)
