"""The server of the viewer: who may ask, the page's own files, a port, a beginning and an end.

Nothing but a browser that was sent here by this page, or by nobody, is answered: the Host header
must be one of the server's own names, so that no name of somebody else's can be led here, and a
request that another site began is refused. Every answer says what a browser may do with it.
"""

import errno
import socket
import threading
import time
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.viewer.asking import failure, short
from clearhead.viewer.endpoints import BUDGET, Endpoints
from clearhead.viewer.tabs import Tab

WEB = Path(__file__).parent / "web"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
LOCAL = "127.0.0.1"
ANYWHERE = ("0.0.0.0", "::")
PATIENCE = 0.5  # seconds that its end waits for what is under way
THREADS = 8  # that one pass over a head uses, at most
FIRST, PORTS = 8000, 100  # where a free port is looked for, and how many are tried
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; font-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets through what this page asks for, and says on every answer what it is."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self.app, self.port = app, port
        self.names = {LOCAL, "localhost", "[::1]", _in_address(host).lower()}
        self.anywhere = host in ANYWHERE
        if self.anywhere:
            self.names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self.refusal(scope)
        extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await (self.app if refusal is None else refusal)(scope, receive, send_with_headers)

    def refusal(self, scope: Scope) -> Response | None:
        found: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        hosts = found.get("host", [])
        if len(hosts) != 1 or not self.is_ours(hosts[0]):
            ours = ", ".join(f"{name}:{self.port}" for name in sorted(self.names))
            return failure(421, f"this server answers to {ours}; the request was for "
                           f"{short(', '.join(hosts)) if hosts else 'no host'}")  # fmt: skip
        if scope["method"] not in ("GET", "HEAD"):
            return failure(405, f"nothing can be changed here: GET, not {short(scope['method'])}")
        if scope["path"].startswith("/api"):
            sites = found.get("sec-fetch-site", [])
            origins = found.get("origin", [])
            strange = [site for site in sites if site not in ("same-origin", "none")]
            strange += [origin for origin in origins if origin != f"http://{hosts[0]}"]
            if strange:
                return failure(403, "another site may not read this: open the page itself")
        return None

    def is_ours(self, host: str) -> bool:
        """Whether a Host header is one of this server's names, with its port."""
        name, port = host.lower(), "80"
        if not name.endswith("]") and ":" in name:
            name, _, port = name.rpartition(":")
        if port != str(self.port):
            return False
        if name in self.names:
            return True
        if not self.anywhere:
            return False
        try:  # a number cannot be led elsewhere, as a name can
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


async def page(request: Request) -> Response:
    """A file of the page. They lie in one folder, and nothing else has an address."""
    name = request.path_params.get("name") or "index.html"
    files = {path.name: path for path in WEB.iterdir() if path.suffix in KINDS}
    if (path := files.get(name)) is None or path.is_symlink():
        return failure(404, f"there is no {short(name)} here")
    return Response(path.read_bytes(), media_type=KINDS[path.suffix])


async def _trouble(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    why = f"there is no {short(request.url.path)} here" if status == 404 else str(error)
    return failure(status, why)


class Server:
    """The viewer of some tabs at a port, in a thread of its own.

        with Server(tabs, listen(8000)) as server:
            server.address

    What is being computed when it ends is given up at its next step. While it runs, torch computes
    each tile on one core, and different tiles on different ones: cores that wait for each other
    within a tile take ten times as long where somebody else uses one of them.
    """

    def __init__(
        self, tabs: list[Tab], listening: socket.socket, host: str = LOCAL, budget: int = BUDGET
    ) -> None:
        self.tabs, self.host = tabs, host
        self.port = int(listening.getsockname()[1])
        self._n_threads = torch.get_num_threads()
        self.endpoints = Endpoints(tabs, budget, min(self._n_threads, THREADS))
        routes = [*self.endpoints.routes(), Route("/", page), Route("/{name}", page)]
        handlers: dict[Any, Any] = {HTTPException: _trouble, Exception: _trouble}
        pages = Starlette(routes=routes, exception_handlers=handlers)
        pages.router.redirect_slashes = False
        app = Guard(pages, host, self.port)
        self._listening = listening
        self._uvicorn = uvicorn.Server(uvicorn.Config(
            app, log_config=None, log_level="critical", access_log=False, lifespan="off",
            server_header=False, http="h11", ws="none", timeout_keep_alive=60, backlog=256,
        ))  # fmt: skip
        self._thread = threading.Thread(
            target=self._uvicorn.run, args=([listening],), name="viewer", daemon=True
        )

    @property
    def address(self) -> str:
        """Where the page is."""
        name = LOCAL if self.host in ANYWHERE else _in_address(self.host)
        return f"http://{name}:{self.port}/"

    def __enter__(self) -> "Server":
        torch.set_num_threads(1)  # for the threads that begin now
        self._thread.start()
        for tab in self.tabs:
            tab.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.endpoints.workers.close()
        for tab in self.tabs:
            tab.close()
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        until = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._listening.close()
        torch.set_num_threads(self._n_threads)

    @property
    def busy(self) -> bool:
        """Whether something that it began still runs."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def _threads(self) -> list[threading.Thread]:
        tabs = [tab.thread for tab in self.tabs if tab.thread is not None]
        return [self._thread, *self.endpoints.workers.threads, *tabs]


def listen(port: int | None, host: str = LOCAL) -> socket.socket:
    """A socket that listens at a port; at the first free one from FIRST up, where port is None.

    Raises OSError where the port cannot be had.
    """
    if port is not None:
        return _bound(host, port)
    for one in range(FIRST, FIRST + PORTS):
        try:
            return _bound(host, one)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise OSError(errno.EADDRINUSE, f"no port from {FIRST} to {FIRST + PORTS - 1} is free")


def free_port(after: int, host: str = LOCAL) -> int | None:
    """The next port that nobody listens at; None if none of the next hundred is free."""
    for port in range(after + 1, min(after + 1 + PORTS, 1 << 16)):
        try:
            _bound(host, port).close()
        except OSError:
            continue
        return port
    return None


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(256)
    except OSError:
        found.close()
        raise
    return found


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def ids_of(names: Sequence[str]) -> list[str]:
    """A name for addresses for each tab, of letters, digits, dots and dashes, no two alike."""
    found: list[str] = []
    for name in names:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
        plain = plain.strip(".-")[:60] or "run"
        n, one = 1, plain
        while one in (*found, "about"):
            n += 1
            one = f"{plain}-{n}"
        found.append(one)
    return found
