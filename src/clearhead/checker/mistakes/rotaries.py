"""Mistakes in a function that turns pairs of numbers by their positions."""

import torch
from torch import Tensor

from clearhead.checker import lines, steps
from clearhead.checker.line import Mistake, Step, Work, one
from clearhead.checker.mistakes.positions import ROTARY

OTHER = {"halves": "interleaved", "interleaved": "halves"}


def _none_handed(work: Work) -> None:
    """LookupError where tables are handed over, so that nobody can make the mistake."""
    if work.p.table:
        raise LookupError("the angles are handed over")


def _placed(shift: int = 0, ignored: bool = False) -> Step:
    def place(work: Work) -> None:
        _none_handed(work)
        lines.place(work)
        if ignored:
            if work.p.positions is None:
                work.positions = torch.arange(len(work.positions))
                return
            work.positions = torch.arange(len(work.p.positions))
        work.positions = work.positions + shift

    return place


def _backwards(work: Work) -> None:
    _none_handed(work)
    lines.place(work)
    work.positions = work.positions.flip(0)


def sped(base: float | None = None, power: float = 2.0, first: int = 0, flip: bool = False,
         deaf: bool = False) -> Step:  # fmt: skip
    """Other speeds; deaf: of a base that was handed over nothing is heard."""

    def speed(work: Work) -> None:
        _none_handed(work)
        own = lines.turn_of(work).base
        if deaf:
            D = work.p.q.shape[-1]
            work.speeds = own ** (-2.0 * torch.arange(D // 2).double() / D)
            return
        speeds = lines.speeds(work, base or own, power, first)
        work.speeds = speeds.flip(0) if flip else speeds

    return speed


def _equal_speeds(work: Work) -> None:
    _none_handed(work)
    lines.speed(work)
    work.speeds = torch.ones_like(work.speeds)


def _along(axis: int) -> Step:
    def angle(work: Work) -> None:
        _none_handed(work)
        n = work.p.q.shape[axis]
        shape = [1, 1, 1]
        shape[axis] = n
        work.angles = torch.arange(n).double().view(*shape, 1) * work.speeds

    return angle


def _scaled(by: float) -> Step:
    def wave(work: Work) -> None:
        work.cos, work.sin = (by * work.angles).cos(), (by * work.angles).sin()

    return wave


def _exchanged(work: Work) -> None:
    work.cos, work.sin = work.angles.sin(), work.angles.cos()


def _opposite(work: Work) -> None:
    work.cos, work.sin = work.angles.cos(), -work.angles.sin()


def _applied(how: object) -> Step:
    """how(x, cos, sin, pairing) in place of the rotation."""

    def apply(work: Work) -> None:
        pairing = lines.turn_of(work).pairing
        work.turned = [how(x, work.cos, work.sin, pairing) for x in (work.p.q, work.p.k)]  # type: ignore[operator]

    return apply


def _other_pairs(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    return steps.turned(x, cos, sin, OTHER[pairing])


def mixture(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """Tables as for other pairs than those that are turned."""
    a, b = steps.parted(x, pairing)
    table = OTHER[pairing]
    return x * steps.joined(cos, cos, table) + steps.joined(-b, a, pairing) * steps.joined(
        sin, sin, table
    )


def _other_mixture(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    return mixture(x, cos, sin, OTHER[pairing])


def _put_back(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """Pairs of one kind, put back as those of the other."""
    a, b = steps.parted(x, pairing)
    return steps.joined(a * cos - b * sin, a * sin + b * cos, OTHER[pairing])


def _other_put_back(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    return _put_back(x, cos, sin, OTHER[pairing])


def _unturned(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    return x


def _some_pairs(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """The first half of the pairs, the others as they were."""
    a, b = steps.parted(x, pairing)
    n = (a.shape[-1] + 1) // 2
    still = torch.arange(a.shape[-1]) >= n
    cos, sin = torch.where(still, 1.0, cos), torch.where(still, 0.0, sin)
    return steps.joined(a * cos - b * sin, a * sin + b * cos, pairing)


def _first_numbers(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """The first D/2 numbers turned among themselves, by the angles of the first pairs."""
    D = x.shape[-1]
    if D % 4:
        raise LookupError("half of it has no pairs")
    front = steps.turned(x[..., : D // 2], cos[..., : D // 4], sin[..., : D // 4], pairing)
    return torch.cat((front, x[..., D // 2 :]), dim=-1)


def _first_numbers_own(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """The first D/2 numbers as a rotary of D/2 has it: every other speed."""
    D = x.shape[-1]
    if D % 4:
        raise LookupError("half of it has no pairs")
    front = steps.turned(x[..., : D // 2], cos[..., ::2], sin[..., ::2], pairing)
    return torch.cat((front, x[..., D // 2 :]), dim=-1)


def _pair(first: str, second: str) -> object:
    """(a, b) -> something else than a rotation."""

    def how(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
        a, b = steps.parted(x, pairing)
        made = {
            "a": a + 0 * cos, "b": b + 0 * cos, "ac": a * cos, "bc": b * cos,
            "ac-bs": a * cos - b * sin, "ac+bs": a * cos + b * sin, "as+bc": a * sin + b * cos,
            "bc-as": b * cos - a * sin, "as-bc": a * sin - b * cos,
        }  # fmt: skip
        return steps.joined(made[first], made[second], pairing)

    return how


def _overwritten(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """The second number is made of the first one's new value."""
    a, b = steps.parted(x, pairing)
    a = a * cos - b * sin
    return steps.joined(a, a * sin + b * cos, pairing)


def _added(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    return x + steps.joined(sin.expand_as(cos), cos, pairing)


def _handed_on(first: int, second: int) -> Step:
    """0 and 1: q and k turned, 2 and 3: as they came."""

    def which(work: Work) -> None:
        if not work.p.twins:
            raise LookupError("there is only one")
        each = [*work.turned, work.p.q, work.p.k]
        work.out = torch.stack((each[first], each[second]))

    return which


NOT_KEPT = Mistake(
    "rotary-not-a-rotation", "rotary: pairs", "pairs do not keep their length: it is no rotation",
    "A score no longer depends on the distance alone, and grows or fades with the position.",
    "(a, b) -> (a cos - b sin, a sin + b cos), from the old a and b both",
    (
        ("both signs are plus", {"apply": _applied(_pair("ac+bs", "as+bc"))}),
        ("both signs are minus", {"apply": _applied(_pair("ac-bs", "bc-as"))}),
        ("the second number is the first one's", {"apply": _applied(_pair("ac-bs", "ac+bs"))}),
        ("the new first number is used for the second", {"apply": _applied(_overwritten)}),
        ("only the first number of a pair", {"apply": _applied(_pair("ac-bs", "b"))}),
        ("only the second number of a pair", {"apply": _applied(_pair("a", "as+bc"))}),
        ("the sines are left out", {"apply": _applied(_pair("ac", "bc"))}),
        ("sines and cosines are added", {"apply": _applied(_added)}),
    ),
    look=ROTARY + r"|\*",
)  # fmt: skip

BASE = Mistake(
    "rotary-base", "rotary: speeds", "the base of the angles is another one",
    "All pairs turn at another speed than the weights were trained with, unless they were trained "
    "so: then say which base it is.",
    "take the base that the weights were trained with (rope_theta; 10,000 if nothing is said)",
    (("the one that is handed over is not used", {"speed": sped(deaf=True)}),),
    look=ROTARY,
)  # fmt: skip

MISTAKES = (
    Mistake(
        "rotary-missing", "rotary: pairs", "nothing is turned",
        "The head cannot tell near from far: order comes from the causal mask alone.",
        "(a, b) -> (a cos - b sin, a sin + b cos)",
        one(apply=_applied(_unturned)), look=ROTARY + "|return",
    ),
    Mistake(
        "rotary-pairing", "rotary: pairs",
        "the pairs are other ones than the angles or weights expect",
        "Halves (n, n + d/2) and interleaved (2n, 2n + 1) are both in use; weights or tables made "
        "for one are wrong with the other, though nothing raises an error.",
        "cat((freqs, freqs)) and rotate_half go together, and so do repeat_interleave(2) and pairs "
        "of neighbors",
        (
            ("the other kind of pairs", {"apply": _applied(_other_pairs)}),
            ("tables for one kind of pairs, used with the other", {"apply": _applied(mixture)}),
            ("tables for one kind of pairs, used with the other ",
             {"apply": _applied(_other_mixture)}),
            ("taken as one kind of pairs, put back as the other", {"apply": _applied(_put_back)}),
            ("taken as one kind of pairs, put back as the other ",
             {"apply": _applied(_other_put_back)}),
        ),
        look=ROTARY + r"|::2|chunk|cat|stack|split",
    ),
    Mistake(
        "rotary-sign", "rotary: angles", "the angles have the other sign",
        "Scores depend on j - i where they should on i - j. From scratch it works as well; "
        "trained weights do not fit.",
        "(a, b) -> (a cos - b sin, a sin + b cos)",
        one(wave=_opposite), look=ROTARY + r"|-\w",
    ),
    Mistake(
        "rotary-from-one", "rotary: positions", "positions begin at 1, not at 0",
        "Alone it changes no score; beside a cache or other people's keys, it does.",
        "torch.arange(T)",
        one(place=_placed(shift=1)), look=r"arange|position|\+ ?1",
    ),
    BASE,
    Mistake(
        "rotary-frequency", "rotary: speeds", "the frequencies are not base^(-2n/d)",
        "The pairs turn at other speeds than they should: far positions are confused.",
        "base ** (-torch.arange(0, d, 2) / d)",
        (
            ("base^(-n/d)", {"speed": sped(power=1.0)}),
            ("base^(-4n/d)", {"speed": sped(power=4.0)}),
            ("base^(2n/d): they grow", {"speed": sped(power=-2.0)}),
            ("they begin with n = 1", {"speed": sped(first=1)}),
            ("in reverse order", {"speed": sped(flip=True)}),
            ("all of them 1", {"speed": _equal_speeds}),
        ),
        look=ROTARY,
    ),
    Mistake(
        "rotary-over-heads", "rotary: angles",
        "the angle runs along another axis than that of tokens",
        "Every token of a head is turned alike: there are no positions at all.",
        "positions run along the axis of tokens; mind (B, T, H, D) and (B, H, T, D)",
        (("heads", {"angle": _along(1)}), ("batch", {"angle": _along(0)})),
        look=ROTARY + "|transpose|shape",
    ),
    Mistake(
        "rotary-exchanged", "rotary: angles", "sine and cosine are exchanged",
        "Position 0 is turned by a right angle, and all others backwards from there.",
        "(a, b) -> (a cos - b sin, a sin + b cos)",
        one(wave=_exchanged), look="cos|sin",
    ),
    Mistake(
        "rotary-twice", "rotary: angles", "the angles are twice what they should be, or half of it",
        "It is as if it were applied twice: every distance looks doubled.",
        "apply it once",
        (("twice", {"wave": _scaled(2.0)}), ("half", {"wave": _scaled(0.5)})), look=ROTARY,
    ),
    Mistake(
        "rotary-partial", "rotary: pairs", "only half of the pairs are turned",
        "The others know no positions. Some models mean it so; then it has to be said.",
        "turn all d/2 pairs",
        (
            ("the first half of the pairs", {"apply": _applied(_some_pairs)}),
            ("the first half of the numbers", {"apply": _applied(_first_numbers)}),
            ("the first half of the numbers, as a head of d/2",
             {"apply": _applied(_first_numbers_own)}),
        ),
        look=ROTARY + r"|//|:",
    ),
    NOT_KEPT,
    Mistake(
        "rotary-queries-only", "rotary: which", "only queries or only keys are turned",
        "Scores depend on the absolute position of one side instead of the distance.",
        "turn both, q and k",
        (("queries", {"which": _handed_on(0, 3)}), ("keys", {"which": _handed_on(2, 1)}),
         ("the queries, returned twice", {"which": _handed_on(0, 0)})),
        look=ROTARY + "|return",
    ),
    Mistake(
        "rotary-swapped", "rotary: which", "keys are returned first and queries second",
        "Whoever unpacks them as q and k has them exchanged.",
        "return q, k",
        one(which=_handed_on(1, 0)), look="return",
    ),
    Mistake(
        "rotary-offset", "rotary: positions", "the positions that are handed over are not used",
        "With a cache a decoded token believes to be the first: all distances are wrong.",
        "angles are positions times speeds",
        (("", {"place": _placed(ignored=True)}),
         ("they are counted from 1", {"place": _placed(ignored=True, shift=1)})),
        look="arange|position",
    ),
    Mistake(
        "rotary-backwards", "rotary: positions", "the last token has the first position",
        "Distances have the other sign, and a longer text moves every position.",
        "torch.arange(T)",
        one(place=_backwards), look="arange|flip|position",
    ),
)  # fmt: skip
