"""The addresses under /api: what each takes, what it refuses, who computes.

Every parameter is checked before anything is computed; what is wrong is told in one line of JSON,
{"error": ...}, with a status of 4xx. docs/viewer.md lists them.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from clearhead.viewer import pyramid
from clearhead.viewer.asking import (
    HEAD,
    Answer,
    Array,
    binary,
    json_of,
    needed,
    number,
    query,
    reduced_by,
    short,
    told,
)
from clearhead.viewer.jobs import Abandoned, Job, Workers
from clearhead.viewer.places import Atlas, Refused, Where
from clearhead.viewer.pyramid import Cache
from clearhead.viewer.tabs import Tab, about

BUDGET = 512 << 20  # bytes of tiles and curves that are kept


@dataclass(frozen=True, eq=False)
class _Asked:
    """What most requests name: a run, a head of it, a sequence and a batch element."""

    tab: Tab
    atlas: Atlas
    where: Where
    head: str = ""

    @property
    def key(self) -> tuple[str, str, Where]:
        return self.tab.id, self.head, self.where


class Endpoints:
    """What is answered, over some tabs: what is kept takes `budget` bytes, a pass over a head some
    `threads`."""

    def __init__(self, tabs: list[Tab], budget: int = BUDGET, threads: int = 1) -> None:
        self.tabs = {tab.id: tab for tab in tabs}
        self.cache, self.threads = Cache(budget), threads
        self.workers = Workers()

    def routes(self) -> list[Route]:
        head = "/api/{tab}/{head}"
        paths: dict[str, Answer] = {
            "/api/about": self.about,
            "/api/{tab}/grid": self.grid,
            "/api/{tab}/tokens": self.tokens,
            "/api/{tab}/search": self.search,
            "/api/{tab}/link": self.link,
            head: self.head,
            f"{head}/tile/{{reduce}}/{{z}}/{{ty}}/{{tx}}": self.tile,
            f"{head}/cells": self.cells,
            f"{head}/rows": self.rows,
            f"{head}/received": self.received,
            f"{head}/row/{{i}}": self.row,
            f"{head}/column/{{j}}": self.column,
            f"{head}/progress/{{reduce}}": self.progress,
        }
        return [Route(path, told(answer), methods=["GET"]) for path, answer in paths.items()]

    # The run ------------------------------------------------------------------------------------

    async def about(self, request: Request) -> Response:
        query(request)
        return json_of(about(self.tabs.values()))

    async def grid(self, request: Request) -> Response:
        query(request)
        atlas = self._tab(request).atlas()
        return json_of(await self._quick(request, None, lambda job: atlas.grid()))

    async def tokens(self, request: Request) -> Response:
        given = query(request, "seq", "batch", "from", "to")
        asked = self._asked(request, given, headless=True)
        first, stop = number(given, "from", 0), number(given, "to", None)
        return json_of(
            await self._quick(
                request, None, lambda job: asked.atlas.tokens(asked.where, first, stop)
            )
        )

    async def search(self, request: Request) -> Response:
        given = query(request, "seq", "batch", "q")
        asked = self._asked(request, given, headless=True)
        wanted = given.get("q", "")
        return json_of(
            await self._quick(request, None, lambda job: asked.atlas.search(asked.where, wanted))
        )

    async def link(self, request: Request) -> Response:
        given = query(request, "seq", "batch", "i", "j")
        asked = self._asked(request, given, headless=True)
        i, j = needed(given, "i"), needed(given, "j")
        key = ("link", *asked.key, i, j)
        return json_of(
            await self._slow(
                request, key, lambda job: asked.atlas.link(i, j, asked.where, job.step), "all heads"
            )
        )

    # A head -------------------------------------------------------------------------------------

    async def head(self, request: Request) -> Response:
        asked = self._asked(request, query(request, "seq", "batch"))
        return json_of(
            await self._quick(request, None, lambda job: asked.atlas.head(asked.head, asked.where))
        )

    async def tile(self, request: Request) -> Response:
        asked = self._asked(request, query(request, "seq", "batch"))
        reduce = reduced_by(request.path_params["reduce"])
        z, ty, tx = (needed(request.path_params, name) for name in ("z", "ty", "tx"))
        key = ("tile", *asked.key, reduce)
        found = self._kept(key, z, ty, tx)
        if found is None:
            opened = await self._quick(
                request, ("open", *asked.key), lambda job: asked.atlas.open(asked.head, asked.where)
            )
            T, S = opened.map.shape[-2:]
            _check_tile(z, ty, tx, T, S)
            if z < pyramid.base_level(T, S):
                exact = partial(self._exact, asked, reduce, z, ty, tx)
                found = await self._quick(request, (*key, z, ty, tx), exact)
            else:
                whole = partial(self._pass, asked, reduce)
                made = await self._slow(request, key, whole, f"reading {T:,} rows")
                found = pyramid.cut(made[z], ty, tx)
        return binary(found)

    def _kept(self, key: tuple[Any, ...], z: int, ty: int, tx: int) -> Array | None:
        """A tile that was computed before, or lies in a level that was."""
        found = self.cache.get((*key, z, ty, tx))
        if found is not None or (level := self.cache.get((*key, z))) is None:
            return found
        high, wide = (pyramid.n_tiles(size, 0) for size in level.shape)
        return pyramid.cut(level, ty, tx) if ty < high and tx < wide else None

    def _pass(self, asked: _Asked, reduce: str, job: Job) -> dict[int, Array]:
        """The levels from base to top, which are kept too, the coarsest longest."""
        amap = asked.atlas.open(asked.head, asked.where).whole
        made = pyramid.levels(amap, reduce, job.step, self.threads)
        for z, level in made.items():
            self.cache.put(("tile", *asked.key, reduce, z), level)
        return made

    def _exact(self, asked: _Asked, reduce: str, z: int, ty: int, tx: int, job: Job) -> Array:
        amap = asked.atlas.open(asked.head, asked.where).map
        tile = pyramid.exact_tile(amap, reduce, z, ty, tx)
        self.cache.put(("tile", *asked.key, reduce, z, ty, tx), tile)
        return tile

    async def cells(self, request: Request) -> Response:
        given = query(request, "seq", "batch", "i0", "i1", "j0", "j1")
        asked = self._asked(request, given)
        i0, i1, j0, j1 = (needed(given, name) for name in ("i0", "i1", "j0", "j1"))
        span = i0, i1, j0, j1
        return await self._array(
            request, None, lambda job: asked.atlas.cells(asked.head, span, asked.where)
        )

    async def rows(self, request: Request) -> Response:
        asked = self._asked(request, query(request, "seq", "batch"))
        return await self._array(
            request, ("rows", *asked.key), lambda job: asked.atlas.figures(asked.head, asked.where)
        )

    async def received(self, request: Request) -> Response:
        asked = self._asked(request, query(request, "seq", "batch"))
        key = ("received", *asked.key)
        found = self.cache.get(key)
        if found is None:

            def work(job: Job) -> Array:
                amap = asked.atlas.open(asked.head, asked.where).whole
                total = pyramid.received(amap, job.step, self.threads)
                self.cache.put(key, total)
                return total

            found = await self._slow(request, key, work, "adding up what keys receive")
        return binary(found)

    async def row(self, request: Request) -> Response:
        asked = self._asked(request, query(request, "seq", "batch"))
        i = needed(request.path_params, "i")
        return await self._array(
            request, None, lambda job: asked.atlas.row(asked.head, i, asked.where)
        )

    async def column(self, request: Request) -> Response:
        asked = self._asked(request, query(request, "seq", "batch"))
        j = needed(request.path_params, "j")
        return await self._array(
            request, None, lambda job: asked.atlas.column(asked.head, j, asked.where)
        )

    async def progress(self, request: Request) -> Response:
        asked = self._asked(request, query(request, "seq", "batch"))
        what = request.path_params["reduce"]
        key = ("received", *asked.key) if what == "received" else None
        job = self.workers.find(key or ("tile", *asked.key, reduced_by(what)))
        if job is None:
            return json_of({"done": 1.0, "what": ""})
        return json_of({"done": job.done, "what": job.what})

    # How they come about ------------------------------------------------------------------------

    def _tab(self, request: Request) -> Tab:
        name = request.path_params["tab"]
        if (tab := self.tabs.get(name)) is None:
            raise Refused(
                404, f"there is no run {short(name)} here; there are {', '.join(self.tabs)}"
            )
        return tab

    def _asked(self, request: Request, given: dict[str, str], headless: bool = False) -> _Asked:
        tab = self._tab(request)
        name = "" if headless else request.path_params["head"]
        if not headless and not HEAD.fullmatch(name):
            raise Refused(
                404, f"a head is named by layer and number, such as 3.5; got {short(name)}"
            )
        atlas = tab.atlas()
        where = atlas.where(number(given, "seq", None), number(given, "batch", None))
        return _Asked(tab, atlas, where, name)

    async def _array(
        self, request: Request, key: tuple[Any, ...] | None, work: Callable[[Job], Any]
    ) -> Response:
        return binary(await self._quick(request, key, work))

    async def _quick(
        self, request: Request, key: tuple[Any, ...] | None, work: Callable[[Job], Any]
    ) -> Any:
        """The result of work that takes a moment, in a thread; alone where it has no key."""
        return await self._result(request, object() if key is None else key, work, "", False)

    async def _slow(
        self, request: Request, key: tuple[Any, ...], work: Callable[[Job], Any], what: str
    ) -> Any:
        return await self._result(request, key, work, what, True)

    async def _result(
        self, request: Request, key: Any, work: Callable[[Job], Any], what: str, slow: bool
    ) -> Any:
        """What the work gives, unless whoever asked goes away before."""
        job = self.workers.join(key, work, what, slow)
        finished, gone = _finished(job), asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait((finished, gone), return_when=asyncio.FIRST_COMPLETED)
            if not job.future.done():
                raise Abandoned
            return job.future.result()
        finally:
            self.workers.leave(job)
            gone.cancel()


def _finished(job: Job) -> "asyncio.Future[None]":
    """Done when the job is, and nothing to it: others may wait for the job too."""
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not finished.done():
            finished.set_result(None)

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(finish)

    job.future.add_done_callback(tell)
    return finished


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_tile(z: int, ty: int, tx: int, T: int, S: int) -> None:
    if z > (top := pyramid.top_level(T, S)):
        raise Refused(404, f"the levels of this map are 0 to {top}; got {z}")
    high, wide = pyramid.n_tiles(T, z), pyramid.n_tiles(S, z)
    if ty >= high or tx >= wide:
        raise Refused(404, f"level {z} has {high} x {wide} tiles; got row {ty}, column {tx}")
