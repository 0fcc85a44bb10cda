"""`check`: is this attention right, and if not, what exactly is wrong with it?

target -> Local, or Hosted in a process of its own -> diagnose -> Diagnosis
"""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import torch
from torch import nn

from clearhead.checker import building
from clearhead.checker.about import About, about
from clearhead.checker.calls import Failure, Local, Subject, stand_in
from clearhead.checker.diagnosing import diagnose
from clearhead.checker.diagnosis import Diagnosis
from clearhead.checker.host import split
from clearhead.checker.hosting import Hosted, NotLoaded
from clearhead.checker.manners import LAYOUTS
from clearhead.checker.peers import Comparison, compare
from clearhead.checker.problem import Turn
from clearhead.checker.saying import words_of
from clearhead.checker.signature import KINDS, kind_of, roles
from clearhead.checker.told import Told

ALIGNS = {"bottom-right": "end", "top-left": "start"}
MASKS = ("attend", "hide", "additive")
PAIRINGS = ("halves", "interleaved")
_NAMES = ("kind", "layout", "causal", "mask", "align", "window", "softcap", "scale", "alibi",
          "rotary", "rotary_base", "heads", "kv_heads", "values", "strict")  # fmt: skip


def check(
    target: str | Callable[..., Any] | nn.Module,
    *,
    kind: str | None = None,
    layout: str | None = None,
    causal: bool | None = None,
    mask: str | None = None,
    align: str | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    alibi: bool = False,
    rotary: str | None = None,
    rotary_base: float = 10000.0,
    heads: int | None = None,
    kv_heads: int | None = None,
    values: Mapping[str, Any] | None = None,
    strict: bool = False,
    limit: float = 10.0,
) -> Diagnosis:
    """Say what somebody's attention computes, and name what is wrong with it.

    target   a function, an nn.Module or a class of one, which is called here, in this process; or
             "file.py:name" or "package.module:name", which runs in a process of its own
    kind     what it is, found out where nothing is said: "sdp" for f(q, k, v, ...), "teach" for
             f(x, W_Q, W_K, W_V, ...), "module" for x -> out, "entropy", "rotary", "mask"
    layout   of q, k and v: "BHTD", "BTHD", "HTD", "BTD", "TD"; or of x: "BTM", "TM"

    What it should do, where its arguments do not say it:

    causal           whether no query may see the future
    mask             what a mask means: "attend" (True may look), "hide" (True may not), "additive"
    align            with more keys than queries: "bottom-right" or "top-left"
    window, softcap  W keys, the query's own included; the cap of scores
    scale, alibi     another scale than 1/sqrt(d_head); the usual slopes
    rotary           the pairs that are turned inside: "halves" or "interleaved", with rotary_base
    heads, kv_heads  of a module or function whose settings do not say it
    values           for parameters whose names say nothing
    strict           cautions count as mistakes
    limit            seconds that loading and each call may take in a process of its own

    It is tried on some ten small inputs, and its answers are held against dense float64: against
    what is right, against every mistake that we know, and against every two of them at once. Its
    inputs, its weights and the global random state are afterwards what they were.

    Raises ValueError for what cannot be meant. What cannot be loaded or called is no error: the
    verdict is "untried", and `trouble` says why.
    """
    told = told_of(
        kind=kind, layout=layout, causal=causal, mask=mask, align=align, window=window,
        softcap=softcap, scale=scale, alibi=alibi, rotary=rotary, rotary_base=rotary_base,
        heads=heads, kv_heads=kv_heads, values=values, strict=strict,
    )  # fmt: skip
    if isinstance(target, str):
        found = check_file(target, told, limit)
        if len(found) > 1:
            names = ", ".join(each.target for each in found)
            raise ValueError(f"{target} has several that look like attention: {names}. Name one: "
                             f"{target}:{found[0].target}")  # fmt: skip
        return found[0]
    if not callable(target):
        raise ValueError(
            f"check takes a function, a module or 'file.py:name'; got {type(target).__name__}"
        )
    if isinstance(target, type):
        return _class_here(target, told)
    return diagnose(Local(target), told)


def check_against(
    one: str | Callable[..., Any] | nn.Module, other: str | Callable[..., Any] | nn.Module,
    limit: float = 10.0, **told: Any,
) -> Comparison:  # fmt: skip
    """Two implementations, of any kinds, on the same inputs: where they first differ, by how much,
    and whether that is rounding. Arguments as in `check`."""
    known = told_of(**{**dict.fromkeys(_NAMES), "alibi": False, "rotary_base": 10000.0,
                       "strict": False, **told})  # fmt: skip
    with opened(one, known, limit) as a, opened(other, known, limit) as b:
        found = compare(a, b, known)
        if found.a == found.b:
            names = [each if isinstance(each, str) else f"{found.a} ({which})"
                     for each, which in ((one, "A"), (other, "B"))]  # fmt: skip
            found = found.called(*names)
        return found


def check_file(target: str, told: Told, limit: float = 10.0) -> list[Diagnosis]:
    """One diagnosis for what the target names, or for all in the file that looks like attention."""
    began = monotonic()
    with Hosted(target, limit) as subject:
        try:
            chosen = _chosen(subject, target, told)
            found = [_hosted(subject, each, told) for each in chosen]
            if split(target)[1] or all(each.verdict == "untried" for each in found):
                return found
            return [one for one, what in zip(found, chosen, strict=True) if _counts(one, what)]
        except NotLoaded as error:
            return [_unloaded(target, error.failure, monotonic() - began)]


def check_files(
    paths: list[Path], told: Told, limit: float, workers: int
) -> Iterator[tuple[Path, list[Diagnosis]]]:
    """The same for many files, several at once, in their order."""
    # In processes of their own: what is compared takes as long as what is asked.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin) as pool:
        waiting = [(path, pool.submit(check_file, str(path), told, limit)) for path in paths]
        try:
            for path, future in waiting:
                yield path, future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    """In a process of the pool: one thread, deaf to Ctrl-C, and gone when its parent is."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


@contextmanager
def opened(
    target: str | Callable[..., Any] | nn.Module, told: Told, limit: float
) -> Iterator[Subject]:
    """A subject for one target, built where it is a class. NotLoaded, ValueError."""
    if isinstance(target, str):
        with Hosted(target, limit) as subject:
            chosen = _chosen(subject, target, told)
            if len(chosen) > 1:
                names = ", ".join(each.name for each in chosen)
                raise ValueError(f"{target} has several: {names}. Name one: {target}:NAME")
            _take(subject, chosen[0], told)
            yield subject
    else:
        yield Local(_built(target, told) if isinstance(target, type) else target)


def told_of(rotary: str | None, rotary_base: float, heads: int | None, kv_heads: int | None,
          values: Mapping[str, Any] | None, **rest: Any) -> Told:  # fmt: skip
    known = {
        "kind": KINDS, "mask": MASKS, "align": tuple(ALIGNS),
        "layout": tuple(dict.fromkeys(each for several in LAYOUTS.values() for each in several)),
    }  # fmt: skip
    for name, choices in known.items():
        if rest[name] is not None and rest[name] not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}; got {rest[name]!r}")
    if rotary is not None and rotary not in PAIRINGS:
        raise ValueError(f"rotary must be one of {', '.join(PAIRINGS)}; got {rotary!r}")
    for name, number in (("window", rest["window"]), ("heads", heads), ("kv_heads", kv_heads)):
        if number is not None and (type(number) is not int or number < 1):
            raise ValueError(f"{name} must be a whole number from 1 on; got {number!r}")
    for name in ("softcap", "scale"):
        if rest[name] is not None and not 0 < rest[name] < float("inf"):
            raise ValueError(f"{name} must be a number above 0; got {rest[name]!r}")
    rest["align"] = ALIGNS.get(rest["align"] or "")
    turn = None if rotary is None else Turn(rotary, rotary_base)
    return Told(turn=turn, n_heads=heads, n_kv=kv_heads, values=values or {}, **rest)


# What is meant ----------------------------------------------------------------------------------


def _chosen(subject: Hosted, target: str, told: Told) -> list[About]:
    """What the target names; of a whole file, all that looks like attention."""
    if not split(target)[1]:
        found = [each for each in subject.list() if _looks_like_it(each, told)]
        if not found:
            names = ", ".join(each.name for each in subject.list()) or "no function at all"
            raise NotLoaded(Failure(
                "loading", f"nothing in it looks like attention (it has {names}): name what is "
                "meant, file.py:name, or say --kind",
            ))  # fmt: skip
        return found
    return [subject.look()]


def _counts(found: Diagnosis, about: About) -> bool:
    """Of a whole file: what was tried, and what could not be and is meant to be attention. What
    else could not be called is a helper."""
    takes = set(roles(about.parameters))
    meant = about.kind == "class" or {"q", "k", "v"} <= takes or {"W_Q", "W_K", "W_V"} <= takes
    return found.verdict != "untried" or meant or "NotImplementedError" in found.trouble


def _looks_like_it(found: About, told: Told) -> bool:
    """Whether a function or class of a file is worth asking, where none is named."""
    if found.kind == "class":
        named = re.search(r"attention|attn|head|mha|gqa|mqa", found.name, re.I)
        does = re.search(r"softmax|scaled_dot_product|MultiheadAttention", found.source)
        return bool(does or (named and "def forward" in found.source))
    kind = kind_of(found)
    helper = kind == "rotary" and not re.search(r"rotary|rope|emb", found.name, re.I)
    if kind == "entropy":
        helper = not re.search(r"entrop|^h$|(^|_)ent(_|$)", f"{found.name} {found.doc}", re.I)
    return kind is not None and not helper and not found.name.startswith("_")


def _hosted(subject: Hosted, chosen: About, told: Told) -> Diagnosis:
    began = monotonic()
    try:
        _take(subject, chosen, told)
        return replace(diagnose(subject, told), target=chosen.name)
    except NotLoaded as error:
        return _unloaded(chosen.name, error.failure, monotonic() - began)
    except LookupError as error:
        failure = Failure("loading", str(error))
        return _unloaded(chosen.name, failure, monotonic() - began)


def _take(subject: Hosted, chosen: About, told: Told) -> About:
    given = building.keywords(chosen, told) if chosen.kind == "class" else {}
    return subject.take(chosen.name, given)


def _class_here(target: type, told: Told) -> Diagnosis:
    try:
        made = _built(target, told)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        return _unloaded(target.__name__, Failure("loading", words), 0.0)
    return diagnose(Local(made), told)


def _built(target: type, told: Told) -> Any:
    given = building.keywords(about(target), told)
    return target(**{name: stand_in(value) for name, value in given.items()})


def _unloaded(target: str, failure: Failure, seconds: float) -> Diagnosis:
    at = None if failure.line is None else (failure.line, failure.source)
    return Diagnosis(target, "", "untried", trouble=words_of(failure), trouble_at=at,
                     seconds=seconds)  # fmt: skip
