"""Tabs: the runs that are shown, each of which may still be on its way."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from clearhead import __version__
from clearhead.run import Run
from clearhead.viewer.jobs import Abandoned
from clearhead.viewer.places import Atlas, Refused
from clearhead.viewer.words import METRICS, ROLES, WHERE
from clearhead.views.heads import CAVEAT

Progress = Callable[[float, str], None]  # how much is done, in 0..1, and what


def about(tabs: Iterable["Tab"]) -> dict[str, Any]:
    """What the page is told first: the runs, and the words for what it shows of them."""
    return {"tabs": [tab.about() for tab in tabs], "version": __version__, "metrics": METRICS,
            "roles": ROLES, "sources": WHERE, "caveat": CAVEAT}  # fmt: skip


class Tab:
    """One run that is shown, or will be: `load` is called in the background, once.

    id       its name in addresses
    load     gives the run; it may call what it is given with how much is done, and what
    command  what would keep q and k, where the run has none
    """

    def __init__(self, id: str, name: str, load: Callable[[Progress], Run], command: str) -> None:
        self.id, self.name, self.command = id, name, command
        self._load = load
        self._atlas: Atlas | None = None
        self._why: str | None = None
        self._done, self._what = 0.0, ""
        self._closed = False
        self.thread: threading.Thread | None = None

    @classmethod
    def of(cls, id: str, name: str, run: Run, command: str) -> "Tab":
        """A tab whose run is there."""
        tab = cls(id, name, lambda progress: run, command)
        tab.prepare()
        return tab

    def start(self) -> None:
        """Load it in the background, if it is not there."""
        if self._atlas is None:
            self.thread = threading.Thread(target=self.prepare, daemon=True)
            self.thread.start()

    def close(self) -> None:
        """Give up loading it, at the next step of that."""
        self._closed = True

    def prepare(self) -> None:
        try:
            self._atlas = Atlas(self._load(self._progress), self.command)
        except Exception as error:
            self._why = _line(error)

    def _progress(self, done: float, what: str) -> None:
        self._done, self._what = done, what
        if self._closed:
            raise Abandoned

    def atlas(self) -> Atlas:
        """Its run. Raises Refused while that is on its way, and where it cannot be had."""
        if self._why is not None:
            raise Refused(500, f"{self.name} could not be prepared: {self._why}")
        if self._atlas is None:
            raise Refused(503, f"{self.name} is being prepared: {self._done:.0%}")
        return self._atlas

    def about(self) -> dict[str, Any]:
        said = {"id": self.id, "name": self.name, "ready": self._atlas is not None,
                "progress": 1.0 if self._atlas is not None else self._done,
                "what": self._what, "command": self.command}  # fmt: skip
        if self._why is not None:
            said["error"] = self._why
        if self._atlas is None:
            return said
        try:
            return said | self._atlas.about()
        except (OSError, ValueError) as error:  # its files have changed since; others are whole
            return said | {"ready": False, "error": _line(error)}


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
