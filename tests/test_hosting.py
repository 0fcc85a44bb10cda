"""Somebody's code in a process of its own: whatever it does, the caller goes on."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import ROOT
from torch import nn

from clearhead.checker import wire
from clearhead.checker.calls import Failure, Local, Reply, Request, Stub, about, stand_in
from clearhead.checker.host import Host, split
from clearhead.checker.hosting import Hosted, NotLoaded
from clearhead.checker.process import Heard
from clearhead.checker.surroundings import as_it_was

FILE = '''\
import ctypes, os, random, subprocess, sys, time
from dataclasses import dataclass
import numpy as np
import torch
from torch import nn, softmax

print("this file prints while it is loaded")

def attend(q, k, v, mask=None, *, scale: float = 0.5, **rest):
    """Weights and values.

    True = may attend."""
    w = softmax(q @ k.mT * scale, -1)
    return w @ v, w

def hang(q):
    print("before it hangs")
    while True:
        q + 1

def leave(q, status=0):
    if status:
        os._exit(status)
    return q

def crash(q):
    ctypes.string_at(0)

def forge(q):
    for fd in range(3, 12):
        try:
            os.write(fd, b"clearhd1" + b"\\xff" * 64)
        except OSError:
            pass
    time.sleep(9)

def flood(q, size):
    print("first")
    for _ in range(size):
        print("x" * 2**20)
    return q

def flood_below(q, size):
    for _ in range(size):
        os.write(1, b"x" * 2**20)
    return q

def speak(q):
    print("one"); print("two", file=sys.stderr); os.write(1, b"three\\n")
    subprocess.run([sys.executable, "-S", "-c", "print('four')"])
    return q

def descend(q):
    return descend(q)

def inner(q):
    return 1 // (q.sum() * 0).int()

def outer(q):
    return inner(q)

def stop(q):
    os.kill(os.getpid(), 19)

def twice(q):
    from clearhead.checker.calls import Reply
    from clearhead.checker.wire import pack
    for fd in range(3, 12):
        try:
            os.write(fd, pack(Reply()))
        except OSError:
            pass
    return q

def fork(q):
    return torch.tensor(os.fork())

def wreck(q, deep):
    q *= 2
    deep[1].zero_()
    torch.rand(1); np.random.rand(); random.random()
    torch.set_num_threads(3); torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(True)
    return q

def quit_(q):
    sys.exit("enough")

def interrupt(q):
    raise KeyboardInterrupt

def ask(q):
    return input("which? ")

def numbers(q):
    assert isinstance(q, np.ndarray)
    return {"a": q[::-1], "b": 0.5, "c": [[1.0, 2.0], [3.0, 4.0]], "d": None}

@dataclass
class Answer:
    out: torch.Tensor
    words: str

def answer(q):
    return Answer(q, "words")

def nothing(q):
    return None

def words(q):
    return "words"

def settings(module, q):
    return q * module.groups * module.config.factor, module.training

def child(q):
    words = [sys.executable, "-S", "-c", "import time; time.sleep(99)"]
    return torch.tensor(subprocess.Popen(words).pid)

def hold(q):
    time.sleep(0.2)
    return q

class Config:
    n_head, name = 2, "small"

class Mine(nn.Module):
    """My words."""
    def __init__(self, width, heads=2, dropout=0.5):
        super().__init__()
        self.heads, self.config = heads, Config()
        self.c_attn = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("shift", torch.zeros(width))
        self.dropout = nn.Dropout(dropout)
    def forward(self, x, mask=None):
        """Its words."""
        return self.dropout(self.c_attn(x) * self.gain + self.shift)

class Plain:
    def forward(self, q):
        return q

def make_mine():
    return Mine(4)

def anything() -> nn.Module:
    return Mine(4)

def get_scale():
    return torch.tensor(0.5)

def in_lists(q):
    return [(q, "words"), {"deep": [q + 1, None]}, 2, True]

def spectrum(q):
    return torch.fft.fft(q).conj(), q.to_sparse(), nn.Parameter(q)

def nowhere(q):
    return torch.empty(3, device="meta")

def small(q):
    return q.to(torch.uint16)

def much(q):
    return torch.zeros(2**27)

@torch.jit.script
def scripted(q: torch.Tensor, scale: float = 1.0):
    return q * scale

@torch.no_grad()
def decorated(q, scale=1.0):
    return q * scale

_private = lambda q: q
number = 7
'''
LINES = FILE.splitlines()


def line(text):
    return next(at for at, each in enumerate(LINES, 1) if text in each)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("their folder é") / "their file.py"
    path.write_text(FILE, "utf-8")
    return path


@pytest.fixture(scope="module")
def subject(file):
    with Hosted(str(file), limit=20) as hosted:
        yield hosted


@pytest.fixture
def q():
    return torch.arange(12.0).reshape(3, 4) / 7


def called(subject, name, *arguments, **more):
    subject.take(name)
    return subject.call(Request(arguments, **more))


@pytest.fixture
def refused(monkeypatch, tmp_path):
    """Why a text cannot be loaded, found in this process: it needs no other one."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    said = os.open(os.devnull, os.O_WRONLY)
    host = Host(said)

    def load(text, file="theirs.py", target=None, **take):
        if text is not None:
            (tmp_path / file).write_text(text, "utf-8")
        with as_it_was():
            answer = host.do(
                {"do": "load", "target": str(tmp_path / file) if target is None else target}
            )
            if answer is None:
                answer = host.do({"do": "take", "name": "", "keywords": {}} | take)
        sys.modules.pop("theirs", None)
        return answer

    yield load
    os.close(said)


# What it says about itself


def test_lists_what_the_file_itself_defines(subject):
    names = [each.name for each in subject.list()]
    assert names[:3] == ["attend", "hang", "leave"]
    assert names[-3:] == ["scripted", "decorated", "_private"]
    assert {"Mine", "make_mine", "anything"} < set(names)
    assert not {"softmax", "Answer", "Plain", "Config", "number"} & set(names)


def test_about_a_function(subject, file):
    known = subject.take("attend")
    assert known.kind == "function" and known.file == os.path.realpath(file)
    assert known.first_line == line("def attend") and known.source.startswith("def attend(q")
    assert known.doc == "Weights and values.\n\nTrue = may attend."
    q, _, _, mask, scale, rest = known.parameters
    assert (q.name, q.kind, q.required, q.default, q.annotation) == (
        *("q", "positional", True, None, ""),
    )
    assert (mask.required, mask.default) == (False, None)
    assert (scale.kind, scale.required, scale.default) == ("keyword", False, 0.5)
    assert scale.annotation == "float"
    assert (rest.name, rest.kind, rest.required) == ("**rest", "var", False)


def test_about_a_class_and_what_is_built_of_it(subject):
    listed = next(each for each in subject.list() if each.name == "Mine")
    assert listed.kind == "class"
    assert [each.name for each in listed.parameters] == ["width", "heads", "dropout"]
    known = subject.take("Mine", {"width": 3, "heads": 5})
    assert known.kind == "module" and [each.name for each in known.parameters] == ["x", "mask"]
    assert known.doc == "My words.\nIts words."
    assert [(own.name, own.shape, own.owner, own.buffer) for own in known.own] == [
        ("gain", (3,), "Parameter", False),
        ("c_attn.weight", (3, 3), "Linear", False),
        ("c_attn.bias", (3,), "Linear", False),
        ("shift", (3,), "Buffer", True),
    ]
    assert known.attributes == {"heads": 5, "config.n_head": 2, "config.name": "small"}


def test_a_config_may_be_a_stub():
    class Configured(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config, self.width = config, config.inner.width

        def forward(self, x):
            return x * self.config.factor

    config = Stub({"factor": torch.tensor(2.0), "inner": Stub({"width": 3}), "name": "s"})
    local = Local(Configured(stand_in(config)))
    assert local.about.attributes == {"width": 3, "config.name": "s"}
    assert local.call(Request((torch.ones(1),))).answers[0][0].item() == 2


def test_functions_that_say_so_make_modules(subject):
    assert subject.take("make_mine").kind == "module"
    assert subject.take("anything").kind == "module"
    assert subject.take("get_scale").kind == "function"
    assert subject.call(Request()).answers[0][0].item() == 0.5
    assert subject.take("Plain").kind == "function"
    assert subject.take("_private").name == "_private"


def test_a_fresh_module_has_the_same_weights(subject, q):
    first, second = (called(subject, "make_mine", q).answers[0][0] for _ in range(2))
    assert torch.equal(first, second)


# What comes of a call


@pytest.mark.quick
def test_answers_gradients_and_words_come_back(subject, q):
    subject.take("attend")
    push = torch.ones(3, 4)
    reply = subject.call(Request((q, q), {"v": q, "scale": 0.25}, push=push, times=2))
    leaves = [q.clone().requires_grad_() for _ in range(3)]
    weights = torch.softmax(leaves[0] @ leaves[1].mT * 0.25, -1)
    (weights @ leaves[2]).sum().backward()
    assert reply.failure is None and reply.shape_of_answer == "tuple" and len(reply.answers) == 2
    assert torch.equal(reply.answers[0][1], weights.detach())
    assert list(reply.gradients) == ["0", "1", "v"]
    for found, leaf in zip(reply.gradients.values(), leaves, strict=True):
        torch.testing.assert_close(found, leaf.grad)
    assert reply.changed == () and not reply.random and reply.printed == ""
    assert 0 < reply.seconds < 20


def test_what_it_wrote_into_and_what_it_moved_is_said_and_undone(subject, q):
    before = q.clone(), torch.get_rng_state(), torch.get_num_threads()
    others = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    for one in (subject, Local(their_wreck())):
        reply = (
            called(one, "wreck", q, [1, q]) if one is subject else one.call(Request((q, [1, q])))
        )
        assert reply.failure is None
        assert reply.changed == ("0", "1") and reply.random
        assert torch.equal(reply.answers[0][0], 2 * before[0])
    assert torch.equal(q, before[0]) and torch.equal(torch.get_rng_state(), before[1])
    assert random.getstate() == others[0]
    assert np.array_equal(np.random.get_state()[1], others[1])  # noqa: NPY002
    assert torch.get_num_threads() == before[2] and torch.get_default_dtype() == torch.float32
    again = called(subject, "wreck", q, [1, q], push=torch.ones(3, 4))
    assert torch.equal(again.gradients["0"], torch.full((3, 4), 2.0))
    assert again.gradients["1.1"] is None
    assert not called(subject, "nothing", q).random


def test_each_random_state_is_watched():
    for move in (random.random, lambda: np.random.rand(1), lambda: torch.rand(1)):  # noqa: NPY002
        assert Local(lambda q: (move(), q)).call(Request((torch.ones(1),))).random  # noqa: B023


def test_a_module_here_is_called_in_eval_mode_and_left_in_its_own():
    module = nn.Sequential(nn.Dropout(0.9), nn.Linear(3, 3), nn.Dropout(0.9).eval())
    reply = Local(module).call(Request((torch.ones(3),), times=2))
    assert torch.equal(*(answer[0] for answer in reply.answers)) and not reply.random
    assert [part.training for part in module.modules()] == [True, True, True, False]


def test_here_the_users_ctrl_c_goes_through():
    def call(q):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Local(call).call(Request((torch.ones(1),)))


def test_a_fork_that_comes_back_says_nothing(subject, q):
    assert gone(int(called(subject, "fork", q).answers[0][0]))
    for _ in range(5):
        weights = called(subject, "attend", q, q, q).answers[0][1]
        torch.testing.assert_close(weights.sum(-1), torch.ones(3))


def their_wreck():
    names = {"torch": torch, "np": np, "random": random}
    text = FILE[FILE.index("def wreck") : FILE.index("def quit_")]
    exec(compile(text, "theirs.py", "exec"), names)
    return names["wreck"]


def test_parameters_stand_in_for_one_call(subject, q):
    subject.take("Mine", {"width": 4})
    weight, shift = torch.eye(4), torch.ones(4)
    given = {"c_attn.weight": weight, "c_attn.bias": torch.zeros(4), "shift": shift}
    first = subject.call(Request((q,)))
    reply = subject.call(Request((q,), parameters=given, push=torch.ones(3, 4)))
    assert torch.equal(reply.answers[0][0], q + 1)  # no dropout: it is in eval mode
    assert set(reply.gradients) == {
        *("0", "parameters.c_attn.weight", "parameters.c_attn.bias", "parameters.gain"),
        "parameters.shift",
    }
    torch.testing.assert_close(reply.gradients["parameters.c_attn.weight"], q.sum(0).expand(4, 4))
    assert torch.equal(subject.call(Request((q,))).answers[0][0], first.answers[0][0])
    with pytest.raises(ValueError, match=r"has no c_attn\.wight; it has gain, c_attn\.weight"):
        subject.call(Request((q,), parameters={"c_attn.wight": weight}))
    assert subject.call(Request((q,))).failure is None
    subject.take("attend")
    with pytest.raises(ValueError, match="parameters are for a module"):
        subject.call(Request((q, q, q), parameters=given))


def test_arrays_go_in_and_tensors_come_out(subject, q):
    reply = called(subject, "numbers", q, numpy=True, push=q)
    out, number, table = reply.answers[0]
    assert torch.equal(out, q.flip(0)) and number.item() == 0.5 and table.shape == (2, 2)
    assert reply.shape_of_answer == "dict" and reply.gradients == {"0": None}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_tensors_of_all_kinds_travel(subject, dtype):
    for shape in ((), (0, 3), (2, 3)):
        tensor = torch.ones(shape).to(dtype)
        reply = called(subject, "_private", tensor)
        assert reply.answers[0][0].dtype == dtype and torch.equal(reply.answers[0][0], tensor)


def test_records_and_stubs(subject, q):
    assert called(subject, "answer", q).shape_of_answer == "Answer"
    stub = Stub({"groups": 3, "config": Stub({"factor": 2.0})})
    out, training = called(subject, "settings", stub, q).answers[0]
    assert torch.equal(out, q * 3 * 2) and not training


def failure(subject, name, *arguments):
    return called(subject, name, *arguments).failure


def test_what_is_no_answer(subject, q):
    assert failure(subject, "nothing", q) == Failure("returned", "returned None")
    assert failure(subject, "words", q) == Failure("returned", "returned a str")


def test_tensors_are_taken_out_of_what_holds_them(subject, q):
    first, second, two, true = called(subject, "in_lists", q).answers[0]
    assert torch.equal(first, q) and torch.equal(second, q + 1) and two == 2 and true
    wave, sparse, parameter = called(subject, "spectrum", q).answers[0]
    assert torch.equal(wave, torch.fft.fft(q).conj()) and torch.equal(sparse, q)
    assert torch.equal(parameter, q)


def test_what_cannot_be_handed_over_is_said(subject, q):
    for name, words in [
        ("nowhere", "a tensor that cannot be read: Cannot copy out of meta"),
        ("small", "what cannot be handed over: torch.uint16 is not among"),
        ("much", "what cannot be handed over: 512 MiB, and 256 MiB go through"),
    ]:
        said = failure(subject, name, q)
        assert said.kind == "returned" and said.message.startswith(f"returned {words}")


def test_a_decorated_function_is_still_itself(subject, q):
    for name in ("scripted", "decorated"):
        known = subject.take(name)
        assert [(one.name, one.default) for one in known.parameters] == [
            *(("q", None), ("scale", 1.0)),
        ]
        assert f"def {name}" in known.source
        assert torch.equal(subject.call(Request((q, 2.0))).answers[0][0], 2 * q)


def test_torchs_own_attention_by_the_name_of_its_module():
    own = {own.name: own.owner for own in about(nn.MultiheadAttention(4, 2)).own}
    assert own["in_proj_weight"] == "Parameter" and own["out_proj.weight"] == "Linear"


def test_what_is_raised_has_a_line(subject, q):
    assert failure(subject, "attend", q, q[:, :2], q) == Failure(
        "raised",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 2x3)",
        line("w = softmax"),
        "w = softmax(q @ k.mT * scale, -1)",
    )
    deep = failure(subject, "descend", q)
    assert deep.message.startswith("RecursionError: maximum recursion depth")
    assert deep.line == line("return descend")
    assert failure(subject, "quit_", q).message == "SystemExit: enough"
    assert failure(subject, "interrupt", q).message == "KeyboardInterrupt"
    assert failure(subject, "ask", q).message.startswith("EOFError")
    assert failure(subject, "outer", q).line == line("return 1 //"), "the deepest of two"
    few = failure(subject, "attend", q)
    assert few.message.startswith("TypeError: attend() missing 2 required") and few.line is None


def test_what_is_printed_is_kept_in_part(subject, q):
    assert called(subject, "speak", q).printed == "one\ntwo\nthree\nfour\n"
    assert subject.call(Request((q, q))).printed == ""
    much = called(subject, "flood", q, 64)
    assert much.printed.startswith("first\nxxx") and len(much.printed) == 2_000
    assert len(called(subject, "flood_below", q, 64).printed) == 2_000
    assert called(subject, "_private", q).printed == ""


def test_what_is_heard_takes_little_memory_whatever_comes():
    read, write = os.pipe()
    heard = Heard(read, b"MARK")
    for part in (b"one", b"M", b"AR", b"K", b"x" * 2**20, b"MAR"):
        os.write(write, part)
        time.sleep(0.02)
    assert heard.part() == "one"
    os.close(write)
    printed, trace = heard.last_words()
    os.close(read)
    assert printed == "x" * 2_000 and trace == ""
    assert len(heard.head) <= 8_000 and len(heard.tail) <= 65_536
    assert heard.tail.endswith(b"xMAR")


@pytest.mark.slow
def test_a_gigabyte_is_printed(subject, q):
    for name in ("flood", "flood_below"):
        reply = called(subject, name, q, 1024)
        assert reply.failure is None and len(reply.printed) == 2_000


# What kills it


@pytest.mark.quick
def test_a_fresh_process_follows_one_that_hung_or_died(file, q):
    with Hosted(f"{file}:hang", limit=2) as hosted:
        assert hosted.about.name == "hang"
        began = time.monotonic()
        reply = hosted.call(Request((q,)))
        assert time.monotonic() - began < 6
        assert reply.failure.kind == "hung" and reply.failure.message == "no answer after 2 s"
        assert reply.failure.line in (line("while True"), line("q + 1"))
        assert reply.printed == "before it hangs\n"
        hosted.take("leave")
        assert hosted.call(Request((q, 3))).failure == Failure("died", "ended with exit status 3")
        assert hosted.call(Request((q,))).failure is None, "the same name, in a fresh process"
        for name, words, at in [
            ("crash", "ended with signal 11 (SIGSEGV)", line("string_at")),
            ("forge", "sent what is no answer", None),
        ]:
            assert called(hosted, "attend", q, q, q).failure is None, "it goes on"
            reply = called(hosted, name, q)
            assert reply.failure.kind == "died" and words in reply.failure.message
            assert reply.failure.line == at
        began = time.monotonic()
        reply = hosted.call(Request((q,)))
        assert time.monotonic() - began < 0.5  # too little to start one in
        assert "not asked again after 4 processes; the last: sent" in reply.failure.message
        with pytest.raises(NotLoaded, match="not asked again"):
            hosted.take("attend")


@pytest.mark.slow
def test_one_that_stands_still_or_speaks_unasked(file, q):
    with Hosted(str(file), limit=2) as hosted:
        assert called(hosted, "stop", q).failure == Failure("hung", "no answer after 2 s")
        assert called(hosted, "twice", q).answers == (), "a reply of its own"
        time.sleep(0.3)
        failure = hosted.call(Request((q,))).failure
        assert failure == Failure("died", "sent what is no answer: nobody had asked")
        assert called(hosted, "attend", q, q, q).failure is None


def gone(pid, seconds=5.0):
    """Whether a process ends in time; what nobody has waited for counts as ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_nothing_is_left_when_it_is_closed_or_broken_off(file, subject, q):
    with Hosted(f"{file}:child", limit=30) as hosted:
        pid = int(hosted.call(Request((q,))).answers[0][0])
        own = hosted._process.popen.pid
        assert not gone(pid, 0.1) and not gone(own, 0.1)
        hosted.take("hang")
        watch = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
        heard = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            watch.start()
            with pytest.raises(KeyboardInterrupt):
                hosted.call(Request((q,)))
        finally:
            signal.signal(signal.SIGINT, heard)
        assert gone(own, 0.5) and gone(pid)
        replies = []
        both = [
            threading.Thread(target=lambda one: replies.append(called(one, "hold", q)), args=[each])
            for each in (hosted, subject)
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert [each.failure for each in replies] == [None, None], "two at once"
        own = hosted._process.popen.pid
        assert not gone(own, 0.1)
    assert gone(own, 0.5)


PARENT = """
import sys, torch
from clearhead.checker.calls import Request
from clearhead.checker.hosting import Hosted
with Hosted(sys.argv[1], limit=60) as hosted:
    hosted.take("child")
    pid = int(hosted.call(Request((torch.ones(1),))).answers[0][0])
    print(hosted._process.popen.pid, pid, flush=True)
    hosted.take("hang")
    hosted.call(Request((torch.ones(1),)))
"""


def test_nothing_is_left_when_the_caller_is_killed(file):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(file)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    with parent:
        own, pid = map(int, parent.stdout.readline().split())
        time.sleep(0.3)
        assert not gone(own, 0.1) and not gone(pid, 0.1)
        parent.kill()
    assert gone(own) and gone(pid)


# What cannot be loaded


@pytest.mark.parametrize(
    ("text", "message", "at", "source"),
    [
        ("x = 1\ndef f(:\n  pass", "SyntaxError: invalid syntax", 2, "def f(:"),
        ("import torch\nimport torsh", "ModuleNotFoundError: No module named 'torsh'", 2, None),
        ("def f():\n    1 / 0\nf()", "ZeroDivisionError: division by zero", 2, "1 / 0"),
        ("import sys\n\nsys.exit(2)", "SystemExit: 2", 3, "sys.exit(2)"),
        ("size = input('size? ')", "EOFError: EOF when reading a line", 1, None),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", 1, None),
        ("from .near import f", "ImportError: attempted relative import", 1, None),
        ("x = '\0'", "", None, ""),
    ],
)
def test_a_file_that_fails(refused, text, message, at, source):
    failure = refused(text)
    assert failure.kind == "loading" and failure.message.startswith(message)
    if at is not None:
        assert (failure.line, failure.source) == (at, source or text.splitlines()[at - 1])


THEIRS = """
T = 3
class Needs:
    def __init__(self, size): self.size = size
def attention(q): return q
def other(q): return q
def make_one(size): return None
"""


@pytest.mark.parametrize(
    ("take", "message"),
    [
        ({"name": "attenton"}, "theirs.py has no 'attenton'; it has attention"),
        ({"name": "zzz"}, "theirs.py has no 'zzz'; it has attention, other, make_one"),
        ({}, "name what is meant: theirs.py has attention, other, make_one"),
        ({"name": "T"}, "T in theirs.py is a int, nothing to call"),
        ({"name": "Needs", "keywords": {"size": 3}}, "a Needs cannot be called: it has no forward"),
        ({"name": "other", "keywords": {"n": 3}}, "other is a function: it is not built with n"),
        (
            {"name": "Needs"},
            "TypeError: Needs.__init__() missing 1 required positional argument: 'size'",
        ),
    ],
)
def test_names_that_are_not_there_or_cannot_be_called(refused, take, message):
    assert refused(THEIRS, **take) == Failure("loading", message)


def test_an_error_within_a_constructor_has_a_line(refused):
    text = "class A:\n    def __init__(self, n):\n        self.size = n.width\n"
    failure = refused(text, name="A", keywords={"n": Stub({"depth": 1})})
    assert (failure.kind, failure.line) == ("loading", 3) and "width" in failure.message


def test_an_empty_file(refused):
    assert refused("").message == "name what is meant: theirs.py has nothing"
    assert refused("", name="f").message.endswith("it defines no function or module")


def test_the_only_function_needs_no_name(refused):
    assert refused("import math\nfrom torch import softmax\ndef f(q): return q").name == "f"


def test_a_module_of_a_package(refused, tmp_path, monkeypatch):
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "near.py").write_text("def scale(q): return q")
    (package / "attention.py").write_text("from .near import scale\ndef f(q): return scale(q)")
    monkeypatch.chdir(tmp_path)
    known = refused(None, target="their_package.attention:f")
    assert (known.name, known.file) == ("f", os.path.realpath(package / "attention.py"))
    for name in [name for name in sys.modules if name.startswith("their_package")]:
        del sys.modules[name]


def test_files_and_modules_that_are_not_there(refused, tmp_path):
    (tmp_path / "attention.py").write_text("")
    near = f"there is no file {tmp_path}{os.sep}atention.py; near it: attention.py"
    for target, message in [
        (tmp_path / "atention.py", near),
        (tmp_path / "no" / "where.py", f"there is no folder {tmp_path}{os.sep}no"),
        (tmp_path, "is a folder; name a file in it"),
        ("torch.nn.none:f", "there is no module 'torch.nn.none'"),
        ("nowhere_at_all:f", "there is no module 'nowhere_at_all'"),
        ("", "there is no module ''"),
        ("no where", "there is no module 'no where'"),
    ]:
        failure = refused(None, target=str(target))
        assert failure.kind == "loading" and message in failure.message


@pytest.mark.parametrize(
    ("target", "place", "name"),
    [
        ("a.py:f", "a.py", "f"),
        ("a.py", "a.py", ""),
        ("a.b:C.f", "a.b", "C.f"),
        ("C:\\x\\a.py", "C:\\x\\a.py", ""),
        ("C:\\x\\a.py:f", "C:\\x\\a.py", "f"),
    ],
)
def test_a_target_is_a_place_and_a_name(target, place, name):
    assert split(target) == (place, name)


def test_what_hangs_or_dies_while_it_is_loaded(tmp_path):
    path = tmp_path / "theirs.py"
    path.write_text("print('x' * 10**7)\nimport time\ntime.sleep(99)\n")
    with Hosted(str(path), limit=1) as hosted:
        for _ in range(2):  # the second time nothing is started
            began = time.monotonic()
            with pytest.raises(NotLoaded, match=r"after 1 s while .* \(line 3: time") as e:
                hosted.list()
        assert time.monotonic() - began < 0.5
        assert (e.value.failure.kind, e.value.failure.line) == ("loading", 3)
    path.write_text("import os\nprint('so long', flush=True)\nos._exit(7)")
    with Hosted(f"{path}:f") as hosted, pytest.raises(NotLoaded) as e:
        hosted.call(Request())
    assert e.value.failure.message == (
        "ended with exit status 7 while it was loaded; it said last: so long"
    )


# What it sends


def framed(said, tensors=(), data=b""):
    text = json.dumps({"said": said, "tensors": list(tensors)}).encode()
    return wire.HEAD.pack(wire.MAGIC, len(text), len(data)) + text + data


def reply(**fields):
    whole = {name: wire.lower(getattr(Reply(), name), []) for name in Reply.__annotations__}
    return {"record": "Reply", "fields": [[*pair] for pair in {**whole, **fields}.items()]}


NESTED: list = []
for _ in range(900):
    NESTED = [NESTED]


def test_what_a_reply_is_goes_through():
    assert isinstance(wire.unpack(framed(reply()), Reply), Reply)
    tensor = {"tuple": [{"tuple": [{"tensor": 0}]}]}
    sent = framed(reply(answers=tensor), [["torch.float32", [2]]], b"\0" * 8)
    assert torch.equal(wire.unpack(sent, Reply).answers[0][0], torch.zeros(2))
    half = torch.arange(6.0).to(torch.bfloat16).reshape(2, 3).mT
    for value in ((half, None), [1, "\ud800", 2.5, True], {"a": float("inf"), "b": Stub({})}):
        again = wire.unpack(wire.pack(value))
        assert str(again) == str(value)


@pytest.mark.parametrize(
    "sent",
    [
        framed("a word"),
        framed(None),
        framed(reply(printed=3)),
        framed(reply(answers=[])),
        framed(reply(answers={"tuple": [{"tuple": ["no tensor"]}]})),
        framed(reply(gradients={"dict": [["0", 1]]})),
        framed(reply(failure={"record": "Stub", "fields": [["attributes", {"dict": []}]]})),
        framed(reply(more=1)),
        framed({"record": "Reply", "fields": []}),
        framed({"record": "Path", "fields": []}),
        framed({"record": ["Reply"], "fields": []}),
        framed({"tensor": 0}),
        framed({"tuple": 7}),
        framed({"anything": 7}),
        framed(reply(), [["torch.float32", [2]]], b"\0" * 7),
        framed(reply(), [["torch.float32", [2]]], b"\0" * 9),
        framed(reply(), [["torch.float32", [-2, -1]]], b"\0" * 8),
        framed(reply(), [["torch.float32", [2**62, 4]]]),
        framed(reply(), [["torch.float32", [0, 2**62]]]),
        framed(reply(), [["torch.float32", [0, 2**39, 2**39]]]),
        framed(reply(), [["torch.qint8", [1]]], b"\0"),
        framed(reply(), [["torch.float32", "12"]]),
        framed(reply(), 7 * [[]]),
        framed(NESTED)[:-1] + b"]",
        wire.HEAD.pack(wire.MAGIC, 4, 0) + b"\xff\xfe{}",
        wire.HEAD.pack(wire.MAGIC, 3, 0) + b"[1]",
        wire.HEAD.pack(wire.MAGIC, 100_000, 0) + b"[" * 100_000,
    ],
)
def test_what_no_reply_is_does_not(sent):
    with pytest.raises(wire.Garbage):
        wire.unpack(sent, Reply)


def test_frames_that_are_none_are_not_waited_for():
    for sent in [
        b"GET / HTTP/1.1\r\n\r\n" + b"\0" * 99,
        b"clearhd0" + framed(reply())[8:],
        wire.HEAD.pack(wire.MAGIC, 2**63, 2**63),
        wire.HEAD.pack(wire.MAGIC, wire.MOST, 1),
        wire.HEAD.pack(wire.MAGIC, 10, 0) + b"{}",
        framed(reply())[:-1],
        wire.MAGIC,
    ]:
        with pytest.raises(wire.Garbage):
            wire.receive(io.BytesIO(sent).read)
    assert wire.receive(io.BytesIO(b"").read) is None


def test_what_is_too_long_is_not_sent(monkeypatch):
    monkeypatch.setattr(wire, "MOST", 1000)
    with pytest.raises(wire.TooLong, match="MiB go through"):
        wire.pack(torch.zeros(1000))


def test_what_cannot_be_sent(subject, q):
    subject.take("_private")
    with pytest.raises(TypeError, match="a set cannot be sent"):
        subject.call(Request((q, {1})))
    assert called(subject, "_private", q).failure is None
