"""A run as one page that works from disk, with no server: clearhead report RUN --interactive.

The page carries q, k and lse as bytes, and computes every weight by itself (web/softmax.js). Where
that would be too large it carries the map of each head pooled, and the figures of its rows; where
that is too large, too, the figures alone.

Letters: B batch, H heads, T queries, S keys, D head size.
"""

import gzip
import hashlib
import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.cells import readable
from clearhead.engine.tiles import LogSum
from clearhead.files import write_files
from clearhead.map import AttentionMap
from clearhead.run import Run
from clearhead.viewer import bundle, pyramid
from clearhead.viewer.places import Atlas, Where
from clearhead.viewer.tabs import Tab, about
from clearhead.views import heads

MOST = 64 << 20  # bytes of a page, unless asked for more
IN_A_NOTEBOOK = 6 << 20
OVERVIEWS = (512, 256, 128)  # pixels to a side of a pooled map at most, the finest that have room
FRAME = 300_000  # bytes of a page without data, and more
KINDS = {
    torch.float32: "f4", torch.float64: "f8", torch.float16: "f2", torch.bfloat16: "b2",
    torch.bool: "u1", torch.int32: "i4",
}  # fmt: skip
START = """
import { startApp } from "./main.js";
import { packedSource } from "./packed.js";
if (location.protocol === "about:") { // a frame of a notebook: links are not the notebook's
  const base = document.createElement("base");
  base.href = location.href;
  document.head.append(base);
}
const textOf = (id) => document.getElementById(id).textContent;
startApp(packedSource(JSON.parse(textOf("said")), (n) => textOf(`blob-${n}`)));
"""


@dataclass(frozen=True)
class Page:
    """A page, and what it carries.

    kind   "exact": q, k and lse; "pooled": overviews and figures of rows; "curves": these alone
    side   pixels of an overview to a side, at most
    whole  bytes that q, k and lse would take, about; 0 where the run has none
    """

    text: str
    kind: str
    side: int
    whole: int

    @property
    def nbytes(self) -> int:
        return len(self.text)  # it is ASCII but for a few signs

    def said(self) -> str:
        """What it carries, in one line, for before it is written."""
        size = readable(self.nbytes)
        if self.kind == "exact":
            return f"{size}, with q, k and lse: every weight, exactly"
        what = "the figures of rows, no maps"
        if self.kind == "pooled":
            what = f"maps pooled to {self.side} x {self.side} at most and the figures of rows"
        if not self.whole:
            return f"{size}, with {what}: the run keeps no q and k"
        more = -(-self.whole // (1 << 20))
        return f"{size}, with {what}; every weight takes {readable(self.whole)}: --max-mb {more}"


def make_page(run: Run, name: str, command: str, most: int = MOST) -> Page:
    """The page of a run, of the first kind of which it takes `most` bytes at most.

    `name` is what it is called there, `command` what shows it whole. Raises ValueError where even
    the figures of its rows take more.
    """
    sizes = estimate(run)
    fits = [kind for kind, n_bytes in sizes.items() if n_bytes <= most]
    if not fits:
        raise ValueError(
            f"a page of {run.model} takes {readable(sizes['curves', 0])} for the figures of its "
            f"rows alone, and {readable(most)} are allowed: allow more (--max-mb), or look with "
            "`clearhead view`"
        )
    kind, side = fits[0]
    packed = _Packed(Atlas(run, command), kind, side)
    said = about([Tab.of("run", name, run, command)])
    said["tabs"][0]["crowded"] = kind == "curves" and ("exact", OVERVIEWS[0]) in sizes
    data = packed.data() | {"about": said, "grid": packed.grid()}
    code = bundle.script("main", START)
    text = bundle.page(f"{name} · clearhead", code, data, packed.blobs)
    return Page(text, kind, side, sizes.get(("exact", OVERVIEWS[0]), 0))


def write_page(page: Page, path: Path) -> None:
    """Write it, whole or not at all. Raises OSError."""
    write_files(path.parent, {path.name: page.text.encode("utf-8")})


def estimate(run: Run) -> dict[tuple[str, int], int]:
    """About how many bytes a page of each kind and side takes, what shows most first."""
    figures = exact = 0
    maps = dict.fromkeys(OVERVIEWS, 0)
    for call in run.calls:
        B, H, _, T, S, _ = call.shape
        T = T if call.rows is None else len(call.rows)
        figures += 16 * B * H * T
        if call.has_map:
            rule = call.rule
            exact += 8 * B * H * T + sum(call.tensors[n].nbytes for n in ("q", "k"))
            exact += call.mask_bytes if rule.mask is None else rule.mask.numel()
            for side in OVERVIEWS:
                z = pyramid.level_within(T, S, side)
                pixels = (-(-T >> z)) * (-(-S >> z))
                maps[side] += B * (4 * len(call.kept_heads) * pixels + 4 * H * S)
                if side == OVERVIEWS[0] and z > 1:
                    exact += B * 4 * len(call.kept_heads) * pixels
    sizes = {("curves", 0): figures}
    if any(call.has_map for call in run.calls):
        pooled = {("pooled", side): n + figures for side, n in maps.items()}
        sizes = {("exact", OVERVIEWS[0]): exact + figures, **pooled, **sizes}
    frame = FRAME + 12 * sum(ids.numel() for ids in run.tokens.values())
    return {kind: frame + n * 4 // 3 for kind, n in sizes.items()}


# Packing ------------------------------------------------------------------------------------------


class _Packed:
    """What the page carries of a run: records, and the bytes that they name by number."""

    def __init__(self, atlas: Atlas, kind: str, side: int) -> None:
        self.atlas, self.kind, self.side = atlas, kind, side
        self.blobs: list[bytes] = []
        self._kinds: list[dict[str, Any]] = []
        self._known: dict[tuple[str, bytes], int] = {}
        self._pieces: dict[str, int] = {}

    def data(self) -> dict[str, Any]:
        texts, maps = [], {}
        for said in self.atlas.sequences():
            for batch in range(said["batches"]):
                where = Where(said["seq"], batch)
                texts.append(self._text(where))
                layers = {c.layer for c in self.atlas.run.calls if c.sequence == where.seq}
                for head in self.atlas.grid()["heads"]:
                    if head["layer"] in layers:
                        maps[f"{head['head']}/{where.seq}/{batch}"] = self._head(
                            head["head"], where
                        )
        if not texts:
            texts.append(self._text(Where(min(self.atlas.run.tokens, default=0), 0)))
        return {
            "texts": texts, "maps": maps, "blobs": self._kinds, "kind": self.kind,
            "pieces": list(self._pieces),
        }  # fmt: skip

    def grid(self) -> dict[str, Any]:
        found = self.atlas.grid()
        for head in found["heads"]:
            head["hasMap"] = head["hasMap"] and self.kind != "curves"
        return found

    def _text(self, where: Where) -> dict[str, Any]:
        texts = self.atlas.texts(where)
        ids = [self._pieces.setdefault(text, len(self._pieces)) for text in texts]
        return {"seq": where.seq, "batch": where.batch, "ids": ids}

    def _head(self, name: str, where: Where) -> dict[str, Any]:
        info = self.atlas.head(name, where)
        found: dict[str, Any] = {"info": info, "curves": self._add(self.atlas.figures(name, where))}
        info["hasMap"] = info["hasMap"] and self.kind != "curves"
        if not info["hasMap"]:
            return found
        amap = self.atlas.open(name, where).map
        z = pyramid.level_within(info["T"], info["S"], self.side)
        if self.kind == "exact":
            found["packed"] = self._exact(amap)
        else:
            info |= {"finest": z, "exact": False}
            found["received"] = self._add(pyramid.received(amap, lambda done: None))
        if z > 1 or self.kind == "pooled":
            pooled = {reduce: pyramid.exact_level(amap, reduce, z) for reduce in pyramid.REDUCE}
            n, m = pooled["max"].shape
            found["overview"] = {"z": z, "rows": n, "columns": m} | {
                reduce: self._add(codes) for reduce, codes in pooled.items()
            }
        return found

    def _exact(self, amap: AttentionMap) -> dict[str, Any]:
        """What web/softmax.js takes of a map (1, 1, T, S)."""
        q, k, bound = amap._q[0, 0], amap._k[0, 0], amap._bound
        lse, rule, documents = amap._lse_of(0, bound.T), bound.rule, bound.documents
        of_head = [None if x is None else float(x[0]) for x in (rule.alibi, rule.sinks)]
        return {
            "T": bound.T, "S": bound.S, "D": q.shape[1], "q": self._add(q), "k": self._add(k),
            "lse": self._add(lse.high[0, 0]), "low": self._add(_low(lse)),
            "scale": bound.scale, "softcap": rule.softcap, "slope": of_head[0], "sink": of_head[1],
            "offset": bound.offsets[0], "before": bound.before, "after": bound.after,
            "real": None if rule.key_mask is None else self._add(rule.key_mask[0]),
            "realRows": None if rule.query_mask is None else self._add(rule.query_mask[0]),
            "mine": None if documents is None else self._add(documents[0][0].int()),
            "numbers": None if documents is None else self._add(bound.numbers[0].int()),
            "mask": self._table(rule.mask), "bias": self._table(_hiding(rule.bias)),
        }  # fmt: skip

    def _table(self, x: Tensor | None) -> dict[str, Any] | None:
        """A mask or bias (.., T or 1, S or 1) of one head."""
        if x is None:
            return None
        x = x[(None,) * (4 - x.ndim)][0, 0]
        for axis in (0, 1):
            if x.stride(axis) == 0:
                x = x.narrow(axis, 0, 1)
        return {"data": self._add(x), "rows": x.shape[0], "columns": x.shape[1]}

    def _add(self, x: Tensor | NDArray[Any]) -> int:
        """The number of the blob that holds an array; the same bytes are held once."""
        if isinstance(x, Tensor):
            x = x.detach().cpu().contiguous()
            kind = KINDS[x.dtype]
            content = (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy().tobytes()
        else:
            kind, content = {"f": "f4", "u": "u2"}[x.dtype.kind], np.ascontiguousarray(x).tobytes()
        key = (kind, hashlib.sha256(content).digest())
        if key not in self._known:
            small = gzip.compress(content, 6, mtime=0)
            pressed = len(small) < 0.95 * len(content)
            self._known[key] = len(self.blobs)
            self.blobs.append(small if pressed else content)
            self._kinds.append({"kind": kind, "gzip": pressed})
        return self._known[key]


def _low(lse: LogSum) -> Tensor:
    low = lse.low[0, 0]
    return torch.where(lse.high[0, 0].isfinite(), low, torch.zeros_like(low))


def _hiding(bias: Tensor | None) -> Tensor | None:
    """A bias in float32 or wider, in which -inf alone hides."""
    if bias is None:
        return None
    hidden = bias <= torch.finfo(bias.dtype).min
    wide = bias if bias.dtype == torch.float64 else bias.float()
    return wide.masked_fill(hidden, -torch.inf)


# In a notebook ------------------------------------------------------------------------------------


def notebook_html(run: Run) -> str:
    """What a notebook shows of a run: the page, where it is small, and else its table of heads."""
    wanted = next(iter(estimate(run).values()))
    if wanted <= IN_A_NOTEBOOK and run.stats:
        page = make_page(run, run.model, 'observe(model, keep="qk")', IN_A_NOTEBOOK)
        return (
            '<iframe sandbox="allow-scripts allow-downloads" title="clearhead: the heads of '
            f'{html.escape(run.model)}" style="width:100%;height:760px;border:1px solid #8884;'
            f'border-radius:6px" srcdoc="{html.escape(page.text)}"></iframe>'
        )
    lines = heads.table(run)
    if run.stats:
        lines += ["", f"A page to walk through would take {readable(wanted)} here.",
                  'run.save("runs/a"), then: clearhead view runs/a']  # fmt: skip
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"
