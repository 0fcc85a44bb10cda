"""A mask that somebody has: what it lets through, in words, and how `Rule(mask=...)` reads it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checker.diagnosis import Convention, Diagnosis, Found, Tried
from clearhead.checker.line import Mistake
from clearhead.checker.lines import MASK, sizes_only
from clearhead.checker.mistakes.triangles import ADDED, MISTAKES, NAN, NOT_LOW
from clearhead.checker.told import Told

LOW = -1e4  # what is above it is not low enough to hide
MADE = ("mask-inverted", "mask-transposed", "window-both-sides", "mask-future-one",
        "mask-past-one", "mask-diagonal")  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What one (T, S) map of True = may look is: words, and the mistakes in it."""

    words: tuple[str, ...]
    causal: bool
    mistake: Mistake | None = None
    note: str = ""


def diagnose_mask(tensor: Tensor, told: Told) -> Diagnosis:
    """What a mask (T, S), or with axes before it such as (B, H, T, S), says, and what is wrong.

    ValueError where it is no mask: fewer than two axes, or no numbers in it.
    """
    if tensor.ndim < 2 or not tensor.numel() or tensor.is_complex():
        raise ValueError(
            f"a mask is (T, S) or (B, H, T, S), of bool or numbers: got {list(tensor.shape)} of "
            f"{str(tensor.dtype).removeprefix('torch.')}"
        )
    form, numbers = form_of(tensor, told)
    sees = sees_of(tensor, form)
    maps = sees.reshape(-1, *sees.shape[-2:])
    different = torch.unique(maps, dim=0)
    each = [described(one, told) for one in different[:8]]
    found = list(numbers)
    for one in each:
        if one.mistake is not None and all(one.mistake.name != known.name for known in found):
            found.append(_found(one.mistake, one.note, "it is what this mistake gives, exactly"))
    if told.causal and not any(one.causal or one.mistake for one in each):
        missing = next(m for m in MISTAKES if m.name == "mask-missing")
        found.append(_found(missing, "", "it is to be causal, and lets queries see the future"))
    if told.window is not None and not found:
        found += [f for f in (_of_window(one, told.window) for one in different[:8]) if f][:1]
    mistakes = tuple(f for f in found if not f.caution or told.strict)
    cautions = tuple(f for f in found if f.caution and not told.strict)
    return Diagnosis(
        target="mask",
        kind="mask",
        verdict="wrong" if mistakes else "right",
        mistakes=mistakes,
        cautions=cautions,
        conventions=tuple(_conventions(tensor, form, different, each)),
        tried=(Tried("the mask", f"{len(different)} different map(s)",
                     "wrong" if mistakes else "right"),),
        remarks=tuple(_remarks(form, maps)),
        pictures={"mask": maps[0].double()},
    )  # fmt: skip


def _of_window(sees: Tensor, window: int) -> Found | None:
    """What is wrong with a map that is to be causal with this window; None where nothing is."""
    if _equal(sees, {}, window):
        return None
    own = next((w for w in _windows(sees) if w is not None and _equal(sees, {}, w)), None)
    near = {window + 1: "window-one-more", window - 1: "window-one-less"}
    name = near.get(own or 0, "window-missing")
    mistake = next(m for m in MISTAKES if m.name == name)
    shows = "no window at all" if own is None else f"a window of {own} keys"
    return _found(mistake, f"it is {shows}", f"a window of {window} keys was asked for")


def form_of(tensor: Tensor, told: Told) -> tuple[str, list[Found]]:
    """ "attend", "hide" or "additive", and what its numbers do wrong."""
    numbers, found = tensor.double(), []
    if bool(numbers.isnan().any()):
        found.append(_found(NAN, f"{int(numbers.isnan().sum())} of {numbers.numel()} numbers", ""))
    below = numbers[numbers < 0]
    if below.numel():
        if float(below.max()) > LOW:
            found.append(_found(NOT_LOW, f"{float(below.max()):g}", "numbers in it are not 0 and "
                                "not below -10,000"))  # fmt: skip
        return "additive", found
    if told.mask == "additive" and tensor.dtype is not torch.bool:
        found.append(_found(ADDED, "", "it is to be added, and holds no number below 0"))
    elif tensor.is_floating_point():
        found.append(_found(
            ADDED, "", "it holds 0 and 1 as floats: code that adds a float mask, as torch's "
            "scaled_dot_product_attention does, hides nothing with it", caution=True,
        ))  # fmt: skip
    return ("hide" if told.mask in ("hide", "hidden") else "attend"), found


def _found(m: Mistake, note: str, why: str, caution: bool = False) -> Found:
    return Found(m.name, m.family, m.title, m.does, m.mend, note, "certain", why, m.also,
                 caution=caution)  # fmt: skip


def sees_of(tensor: Tensor, form: str) -> Tensor:
    """True where a query may look."""
    numbers = tensor.double()
    if form == "additive":
        return ~(numbers < 0)
    return numbers == 0 if form == "hide" else numbers != 0


# In words ---------------------------------------------------------------------------------------


def described(sees: Tensor, told: Told) -> Seen:
    """A (T, S) map, in words: as a whole first, then as something gone wrong, then in parts."""
    T = sees.shape[0]
    if told.causal is not False and (whole := _triangle(sees)):
        return Seen(whole, True)
    if bool(sees.all()):
        return Seen(("every query sees every key",), causal=T == 1)
    if T > 1 and told.causal is not False and bool(sees.any()):
        for name in MADE:
            mistake = next(m for m in MISTAKES if m.name == name)
            for note, changes in mistake.variants:
                for window in _windows(sees):
                    if window is None and name.startswith("window"):
                        continue
                    if _equal(sees, changes, window):
                        words = mistake.title + (f", window of {window} keys" if window else "")
                        return Seen((words,), False, mistake, note)
    return _in_parts(sees)


def _windows(sees: Tensor) -> list[int | None]:
    """No window, and those that could have left as many keys as some row has."""
    seen, S = sees.sum(dim=-1), sees.shape[1]
    most, least = int(seen.max()), int(seen.min())
    likely = {n + d for n in (most, S - least, (most + 1) // 2) for d in (-1, 0, 1)}
    return [None, *sorted(n for n in likely if 0 < n < S)]


def _equal(sees: Tensor, changes: object, window: int | None, align: str = "end") -> bool:
    T, S = sees.shape
    work = MASK.run(sizes_only(T, S, window=window, align=align), changes)  # type: ignore[arg-type]
    return torch.equal(work.out != 0, sees)


def _triangle(sees: Tensor) -> tuple[str, ...]:
    """Words for what is causal, with a window or without, and nothing else; () for the rest."""
    T, S = sees.shape
    for align in ("end", "start") if T != S else ("end",):
        for window in _windows(sees):
            if _equal(sees, {}, window, align):
                where = "" if T == S else (", the last query sees the last key" if align == "end"
                                           else ", query i begins at key i (top-left)")  # fmt: skip
                band = f"a window of {window} keys, the query's own included"
                return ("causal: no query sees the future" + where, *([band] if window else []))
    return ()


def _in_parts(sees: Tensor) -> Seen:
    """Padding, documents, and the rest by counting."""
    T, S = sees.shape
    words: list[str] = []
    columns = sees.any(dim=0)
    left = int(columns.int().argmax()) if bool(columns.any()) else S
    right = int(columns.flip(0).int().argmax()) if bool(columns.any()) else 0
    if 0 < left < S:
        words.append(f"padding on the left: nobody sees the first {left} of {S} keys")
    if right:
        words.append(f"padding on the right: nobody sees the last {right} of {S} keys")
    empty = ~sees.any(dim=-1)
    inner = sees[~empty][:, left : S - right] if left < S else sees[:0]
    rows = (~empty).nonzero()[:, 0]
    aligned = T != S or torch.equal(rows - left, torch.arange(len(rows)))
    square = inner.shape[0] == inner.shape[1] and aligned
    causal = False
    if not bool(columns.any()):
        words.append("no query sees anything")
    elif bool(inner.all()):
        words.append("every query sees every key" + (" that is no padding" if words else ""))
    elif square and (whole := _triangle(inner)):
        causal = True
        words += whole
    elif T == S and _padded_triangle(sees, left, right):
        causal = True
        words.append("causal: no query sees the future")
    elif (documents := _documents(sees)) is not None:
        causal = documents[1]
        words.append(documents[0])
    else:
        share = 100 * float(sees.double().mean())
        causal = T <= S and not bool((sees & _future(T, S)).any())
        words.append(f"{share:.0f} % of all pairs are visible" + (", none of them in the future"
                     if causal else ""))  # fmt: skip
    if bool(empty.any()) and bool(columns.any()):
        words.append(f"queries that see nothing: {_numbers(empty)}")
    return Seen(tuple(words), causal)


def _future(T: int, S: int) -> Tensor:
    return torch.arange(S) > torch.arange(T)[:, None] + S - T


def _padded_triangle(sees: Tensor, left: int, right: int) -> bool:
    """Causal, and the padded keys hidden from all, padded queries included."""
    T, S = sees.shape
    kept = ~_future(T, S)
    kept[:, :left] = False
    kept[:, S - right :] = False
    return torch.equal(kept, sees)


def _documents(sees: Tensor) -> tuple[str, bool] | None:
    """Texts side by side that do not see each other."""
    T, S = sees.shape
    if T != S or not bool(sees.diagonal().all()):
        return None
    starts = [0, *(i for i in range(1, T) if not bool(sees[i, i - 1]))]
    number = torch.zeros(T, dtype=torch.long)
    for start in starts[1:]:
        number[start:] += 1
    same = number[:, None] == number
    lengths = ", ".join(str(n) for n in torch.bincount(number).tolist())
    for causal in (True, False):
        if len(starts) > 1 and torch.equal(sees, same & ~_future(T, S) if causal else same):
            how = "causal in each" if causal else "all of each see all of it"
            return f"{len(starts)} documents of {lengths} tokens, {how}", causal
    return None


def _numbers(rows: Tensor) -> str:
    """Which ones, "0 to 2, 7"."""
    at = rows.nonzero()[:, 0].tolist()
    text = ", ".join(str(n) for n in at[:12])
    if len(at) > 2 and at == list(range(at[0], at[-1] + 1)):
        return f"{at[0]} to {at[-1]}"
    return text + (f" and {len(at) - 12} more" if len(at) > 12 else "")


# The report -------------------------------------------------------------------------------------


def _conventions(
    tensor: Tensor, form: str, different: Tensor, each: list[Seen]
) -> Iterator[Convention]:
    kind = str(tensor.dtype).removeprefix("torch.")
    words = {"attend": "True or 1 = may look", "hide": "True or 1 = hidden",
             "additive": "added to the scores: 0 = may look"}[form]  # fmt: skip
    yield Convention("values", f"{words} ({kind})", "right" if form == "attend" else "different")
    axes = {2: "(T, S)", 3: "(B, T, S)", 4: "(B, H, T, S)"}.get(tensor.ndim, "(.., T, S)")
    yield Convention("shape", f"{axes} = {list(tensor.shape)}")
    for at, one in enumerate(each):
        name = "lets through" if len(each) == 1 else f"lets through ({at + 1} of {len(different)})"
        yield Convention(name, "; ".join(one.words), "mistake" if one.mistake else "right")
    inverted = [one.mistake is not None and one.mistake.name == "mask-inverted" for one in each]
    if all(inverted) and form != "additive":
        form = "attend" if form == "hide" else "hide"
    ours = {
        "attend": "Rule(mask=mask)" if tensor.dtype is torch.bool else "Rule(mask=mask.bool())",
        "hide": "Rule(mask=~mask)" if tensor.dtype is torch.bool else "Rule(mask=mask == 0)",
        "additive": "Rule(mask=mask >= 0)",
    }[form]
    yield Convention("as a Rule", ours + ": True = may look")


def _remarks(form: str, maps: Tensor) -> Iterator[str]:
    seen = maps.sum(dim=-1)
    read = {"additive": "a sum", "hide": "True = hidden", "attend": "True = may look"}[form]
    least, most = int(seen.min()), int(seen.max())
    yield f"queries see {least} to {most} of {maps.shape[-1]} keys, read as {read}"
