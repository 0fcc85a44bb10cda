"""What a request says, checked, and what an answer says: numbers, records, or one line."""

import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from clearhead.viewer import pyramid
from clearhead.viewer.jobs import Abandoned
from clearhead.viewer.places import Refused
from clearhead.views.terminal import Terminal

NUMBER = re.compile(r"0|[1-9][0-9]{0,11}")
HEAD = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")

Array = NDArray[Any]
Answer = Callable[[Request], Awaitable[Response]]

# What comes in ------------------------------------------------------------------------------------


def query(request: Request, *names: str) -> dict[str, str]:
    """The parameters of a request, each of which must be one of these and come once."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            takes = ", ".join(names) or "none"
            raise Refused(400, f"there is no parameter {short(name)} here; there are {takes}")
        if name in found:
            raise Refused(400, f"{name} is given twice")
        found[name] = value
    return found


def number(given: Mapping[str, str], name: str, default: int | None) -> Any:
    """A whole number from 0 up, or the default. Raises Refused."""
    value = given.get(name)
    if value is None:
        return default
    if not NUMBER.fullmatch(value):
        raise Refused(400, f"{name} must be a whole number of 0 or more; got {short(value)}")
    return int(value)


def needed(given: Mapping[str, str], name: str) -> int:
    if name not in given:
        raise Refused(400, f"{name} is missing")
    return int(number(given, name, None))


def reduced_by(name: str) -> str:
    if name not in pyramid.REDUCE:
        raise Refused(404, f"a pixel is max or mean of its weights; got {short(name)}")
    return name


def short(text: str) -> str:
    return ascii(text if len(text) <= 40 else f"{text[:40]}...")


# What goes out ------------------------------------------------------------------------------------


def failure(status: int, why: str) -> Response:
    return JSONResponse({"error": " ".join(why.split())}, status)


def json_of(value: Any) -> Response:
    return Response(json.dumps(value, allow_nan=False), media_type="application/json")


def binary(array: Array) -> Response:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    shape = ",".join(map(str, array.shape))
    return Response(little.tobytes(), media_type="application/octet-stream",
                    headers={"X-Shape": shape})  # fmt: skip


def told(answer: Answer) -> Answer:
    """An endpoint that tells in one line what went wrong."""

    async def run(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as refused:
            return failure(refused.status, str(refused))
        except Abandoned:
            return failure(503, "given up: whoever asked has gone, or the server ends")
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            Terminal(sys.stderr).line(f"{request.url.path}: {' '.join(why.split())}")
            return failure(500, why)

    return run
