"""How this attention does what others do otherwise: the table of a report."""

from collections.abc import Iterator, Mapping

from clearhead.checker.diagnosis import Convention
from clearhead.checker.manners import MASKING
from clearhead.checker.matching import Explanation
from clearhead.checker.trying import Attempt

AXES = {"B": "batch", "H": "heads", "T": "tokens", "D": "d_head", "V": "d_v", "M": "d_model",
        "O": "d_out", "W": "heads x d_v", "S": "keys"}  # fmt: skip
MASKS = {
    "attend": "True = may look",
    "ones": "1 = may look, 0 = may not",
    "hide": "True = hidden (as nn.MultiheadAttention has it)",
    "additive": "added to the scores: 0 = may look, -inf = hidden",
}


def conventions(attempt: Attempt, explanation: Explanation, kind: str) -> Iterator[Convention]:
    """A line for each question on which right implementations differ."""
    manner, reading = attempt.manner, explanation.reading
    made = {each.mistake.name: each for each in explanation.made}
    families = {each.mistake.family for each in explanation.made}
    takes = manner.takes
    answered = {one.probe.name for one in attempt.asked}
    what = "q, k, v" if kind == "sdp" else "x"
    yield Convention("layout", f"{what} {_axes(manner.layout)}, output {_axes(manner.order)}"
                     + (" (numpy)" if manner.numpy else ""),
                     "guessed" if attempt.instead else "right" if manner.layout in
                     ("BHTD", "HTD", "TD", "BTM", "TM") else "different")  # fmt: skip
    yield Convention("scale", _scale(made, reading.scale), _state("scale", families))
    if MASKING & takes:
        state = _state("mask", families)
        if state == "right" and manner.mask in ("hide", "additive"):
            state = "different"
        inverted = "inverted: True or 1 " + ("shows" if manner.mask == "hide" else "hides")
        how = inverted if "mask-inverted" in made else MASKS[manner.mask]
        if state == "mistake" and "mask-inverted" not in made:
            how += f"; {_title(explanation, 'mask')}"
        yield Convention("mask", how, state)
    yield _causal(explanation, takes, made)
    if "causal, more keys" in answered or (reading.causal and "more keys than queries" in answered):
        at = "bottom-right: the last query sees all keys" if reading.align == "end" \
            else "top-left: query i sees keys 0 to i (as torch's is_causal)"  # fmt: skip
        yield Convention("more keys than queries", at,
                         "right" if reading.align == "end" else "different")  # fmt: skip
    windowed = reading.window is not None or "window" in families
    if "window of 3" in answered or windowed:
        whole = "W keys, the query's own included" + ", and no future" * reading.past
        yield Convention("window", whole if "window" not in families
                         else _title(explanation, "window"),
                         _state("window", families))  # fmt: skip
    if "shared key heads" in answered or manner.G != manner.H:
        yield Convention("shared key heads", "grouped: query head h reads key head h // (H / G)"
                         if "shared key heads" not in families
                         else _title(explanation, "shared key heads"),
                         _state("shared key heads", families))  # fmt: skip
    if "softcap" in answered or reading.softcap is not None:
        yield Convention("softcap", "cap * tanh(score / cap), after the scale and before the mask"
                         if "softcap" not in families
                         else _title(explanation, "softcap"),
                         _state("softcap", families))  # fmt: skip
    if any(one.probe.problem.sinks is not None for one in attempt.asked):
        yield Convention("sinks", "one more outcome of the softmax, whose weight is dropped"
                         if "sinks" not in families else "not in the softmax",
                         _state("sinks", families))  # fmt: skip
    if reading.turn is not None:
        yield Convention("rotary", f"{reading.turn.pairing}, base {reading.turn.base:g}",
                         _state("rotary", families))  # fmt: skip
    if manner.kind == "teach":
        yield Convention("projections", "x @ W.T, as nn.Linear keeps them" if manner.turned
                         else "x @ W", "different" if manner.turned else "right")  # fmt: skip
    if manner.places is not None:
        names = ", ".join(place.name for place in manner.places.found)
        yield Convention("projections", names + (" (q, k, v of each head side by side)"
                         if manner.places.by_head else ""))  # fmt: skip
    if manner.weights_place is not None:
        yield Convention("returns", f"output {'first' if manner.place == 0 else 'second'}, "
                         f"weights {_axes(manner.weights_order)}")  # fmt: skip


def _axes(order: str) -> str:
    return "(" + ", ".join(AXES.get(letter, letter) for letter in order) + ")"


def _state(family: str, families: set[str]) -> str:
    return "mistake" if family in families else "right"


def _title(explanation: Explanation, family: str) -> str:
    """What is wrong of this family."""
    return next(m.mistake.title for m in explanation.made if m.mistake.family == family)


def _scale(made: Mapping[str, object], own: float | None) -> str:
    words = {
        "scale-missing": "none", "scale-model-width": "1/sqrt(d_model)",
        "scale-no-root": "1/d_head",
        "scale-multiplied": "sqrt(d_head)", "scale-one-side": "1/d_head^(1/4)",
        "scale-after-softmax": "1/sqrt(d_head), after the softmax",
        "scale-by-length": "1/sqrt(length)", "scale-by-heads": "1/sqrt(heads)",
    }  # fmt: skip
    found = [word for name, word in words.items() if name in made]
    return found[0] if found else "1/sqrt(d_head)" if own is None else f"{own:g}, as told"


def _causal(explanation: Explanation, takes: set[str], made: Mapping[str, object]) -> Convention:
    reading = explanation.reading
    if reading.causal:
        if "mask-missing" in made:
            return Convention("causal", "promised, and not done", "mistake")
        if any(name.startswith("mask") for name in made):
            how = f"always, by a mask of its own; {_title(explanation, 'mask')}"
            return Convention("causal", how, "mistake")
        return Convention("causal", "always: it makes its own mask", "right")
    if "causal" in takes:
        wrong = any(name.startswith("mask") for name in made)
        return Convention("causal", "when the flag is set", "mistake" if wrong else "right")
    if {"mask", "bias"} & takes:
        return Convention("causal", "as the mask says")
    return Convention("causal", "no: every query sees every key", "right")
