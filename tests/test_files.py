"""Whole files or none."""

import errno
import fcntl
import json
import math
import os
import sys

import pytest

from clearhead import files


def test_files_are_written_and_replaced(tmp_path):
    files.make_directory(tmp_path / "a" / "b")
    files.write_files(tmp_path / "a" / "b", {"x": b"1", "y": b"2"})
    files.write_files(tmp_path / "a" / "b", {"x": b"3"})
    assert {p.name: p.read_bytes() for p in (tmp_path / "a" / "b").iterdir()} == {
        "x": b"3",
        "y": b"2",
    }


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_files(tmp_path, {"x": b""})
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_failure_leaves_nothing_new(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "y").mkdir()
    with pytest.raises(IsADirectoryError, match="y was not written"):
        files.write_files(tmp_path, {"x": b"new", "y": b"new"})
    assert (tmp_path / "x").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "y"]


def test_a_move_that_fails_takes_the_others_back(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"old")
    moves = []

    def replace(part, target):
        moves.append(target)
        if len(moves) == 2:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        os.rename(part, target)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(OSError, match=r"b was not written \(Device or resource busy\)"):
        files.write_files(tmp_path, {"a": b"new", "b": b"new", "c": b"new"})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"old"}


def test_a_file_where_a_directory_should_be(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(FileExistsError, match=r"nothing can be written there \(it is a file\)"):
        files.make_directory(tmp_path / "x")
    with pytest.raises(NotADirectoryError, match="choose another"):
        files.make_directory(tmp_path / "x" / "below")


def test_a_lock_keeps_others_out_while_it_is_held(tmp_path):
    lock = tmp_path / ".lock"
    with files.alone(lock, "busy"):
        with pytest.raises(BlockingIOError, match="busy") as told, files.alone(lock, "busy"):
            pass
        assert told.value.filename == str(tmp_path)
    with files.alone(lock, "busy"):
        pass


def test_where_there_are_no_locks_nobody_is_kept_out(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with files.alone(tmp_path / ".lock", "busy"), files.alone(tmp_path / ".lock", "busy"):
        pass
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with files.alone(tmp_path / ".lock", "busy"), files.alone(tmp_path / ".lock", "busy"):
        pass


def test_json_is_strict_and_ascii():
    text = files.json_text({"token": "caf\u00e9 \U0001f408 \ud800", "none": None})
    assert text.isascii()
    assert json.loads(text)["token"] == "caf\u00e9 \U0001f408 \ud800"
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            files.json_text({"x": bad})
