"""The verb view: what it says, what it opens, which port it takes, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest
from programs import CLEARHEAD, ROOT, one_line, run
from test_view_server import made

from clearhead.cli import main

VIEW = [*CLEARHEAD, "view"]


def begun(command, cwd, **environment) -> subprocess.Popen:
    """A process that serves, and its first line, in `.address`."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        command, cwd=cwd, env={**settings, **environment}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    line = process.stdout.readline()
    if not line.startswith("http://"):
        process.kill()
        raise AssertionError(f"{line}{process.communicate()}")
    assert line.endswith("/  (Ctrl-C ends it)\n")
    process.address = line.split()[0]
    return process


def ended(process, by=signal.SIGTERM, status=0) -> tuple[str, str, float]:
    """What else it said, and the seconds that it took to end."""
    began = time.monotonic()
    process.send_signal(by)
    try:
        said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == status, said
    assert "Traceback" not in said[1]
    return *said, time.monotonic() - began


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    made("plain").save(place / "a")
    made("odd").save(place / "b")
    return place


def about(address):
    with urllib.request.urlopen(f"{address}api/about", timeout=30) as answer:
        return json.load(answer)


@contextmanager
def taken_port():
    """A port that somebody listens at."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize(
    ("by", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow)],
)
def test_it_serves_runs_and_ends_when_told(folder, by, status):
    process = begun([*VIEW, "a", "b", "--no-open"], folder)
    tabs = about(process.address)["tabs"]
    assert [(tab["id"], tab["name"], tab["heads"]) for tab in tabs] == [
        ("a", "a", 8),
        ("b", "b", 4),
    ]
    with urllib.request.urlopen(f"{process.address}api/b/1.1/tile/max/0/0/0", timeout=30) as answer:
        assert len(answer.read()) == 1 << 17
    out, err, seconds = ended(process, by, status)
    assert out == ""
    assert err == ("" if status == 0 else "clearhead view: interrupted\n")
    assert seconds < 4  # on a machine that does other things too; a second, where it does not


def test_it_ends_while_it_computes(folder):
    process = begun([*VIEW, "--no-open"], folder, XDG_CACHE_HOME=str(folder / "cache"))
    assert [tab["id"] for tab in about(process.address)["tabs"]] == ["tiny-en", "textbook"]
    out, err, seconds = ended(process)
    assert (out, err) == ("", "")
    assert seconds < 4


def test_with_no_run_it_shows_the_model_in_the_box(folder):
    process = begun([*VIEW, "--no-open"], folder, XDG_CACHE_HOME=str(folder / "cache"))
    try:
        until = time.monotonic() + 60
        while not (tab := about(process.address)["tabs"][0])["ready"] and time.monotonic() < until:
            time.sleep(0.1)
        assert (tab["heads"], tab["keep"]) == (18, "qk")
        assert tab["checked"].startswith("3 calls replayed")
        assert tab["tokens"] <= 256
    finally:
        ended(process)


def test_it_opens_the_browser_unless_told_not_to(folder):
    browser = folder / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport pathlib, sys\npathlib.Path('opened').write_text(sys.argv[1])\n"
    )
    browser.chmod(0o755)
    process = begun([*VIEW, "a"], folder, BROWSER=str(browser))
    until = time.monotonic() + 20
    opened = folder / "opened"
    while not (opened.exists() and opened.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    ended(process)
    assert opened.read_text() == process.address
    opened.unlink()
    process = begun([*VIEW, "a", "--no-open"], folder, BROWSER=str(browser))
    ended(process)
    assert not opened.exists()


def test_a_busy_port_is_one_line_that_offers_another(folder):
    with taken_port() as port:
        line = one_line(run([*VIEW, "a", "--no-open", "--port", port], folder, status=2))
    assert line.startswith(f"clearhead view: port {port} at 127.0.0.1 cannot be had (")
    offered = int(line.split("; --port ")[1].removesuffix(" is free"))
    assert port < offered <= port + 100
    process = begun([*VIEW, "a", "--no-open", "--port", str(offered)], folder)
    assert process.address == f"http://127.0.0.1:{offered}/"
    ended(process)


@pytest.mark.slow
def test_two_without_a_port_take_two(folder):
    one = begun([*VIEW, "a", "--no-open"], folder)
    other = begun([*VIEW, "b", "--no-open"], folder)
    try:
        assert one.address != other.address
        assert about(one.address)["tabs"][0]["id"] == "a"
        assert about(other.address)["tabs"][0]["id"] == "b"
    finally:
        ended(one)
        ended(other)


def test_where_others_can_come_it_says_so(folder):
    process = begun([*VIEW, "a", "--no-open", "--host", "0.0.0.0"], folder)
    assert about(process.address)["tabs"][0]["id"] == "a"
    _, err, _ = ended(process)
    assert err == "note: at 0.0.0.0 others can reach this server too, and read the runs\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere is no run: there is no such folder"),
        (["."], ". is no run: there is no run.json in it"),
        (["a", "--port", "0"], "--port must be from 1 to 65535; got 0"),
        (["a", "--port", "65536"], "--port must be from 1 to 65535; got 65536"),
        (["a", "--port", "x"], "argument --port: invalid int value: 'x'"),
        (["a", "--host", "nowhere.invalid"], "cannot listen at nowhere.invalid: "),
        (["a", "--host", ""], "--host is empty"),
        ([""], "the name of a directory is empty"),
    ],
)
def test_mistakes_are_one_line(arguments, words, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["view", *arguments, "--no-open"]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
