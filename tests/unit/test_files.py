"""Writing results: whole or not there, and never at the cost of what the path leads to."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from sparsekit.errors import UsageError
from sparsekit.files import expanded, parse_json, replace_file


def write(file: Path, text: str) -> None:
    replace_file(file, lambda path: path.write_text(text))


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path):
    file = tmp_path / "result"
    write(file, "new")
    assert file.read_text() == "new"
    file.chmod(0o600)
    write(file, "newer")
    assert file.read_text() == "newer"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("relative", [True, False])
def test_a_symlink_stays_and_its_target_is_replaced(tmp_path, relative):
    (tmp_path / "data").mkdir()
    target, link, again = tmp_path / "data" / "t", tmp_path / "link", tmp_path / "again"
    link.symlink_to("data/t" if relative else target)
    again.symlink_to("link")
    write(again, "before there was a target")
    held = target.open()
    write(again, "after")
    assert held.read() == "before there was a target"  # replaced at one stroke, not overwritten
    assert target.read_text() == "after"
    assert link.is_symlink()
    assert again.is_symlink()


def test_a_fifo_is_written_through(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()), daemon=True)
    reader.start()
    write(fifo, "result\n")
    reader.join(timeout=20)
    assert read == ["result\n"]
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [fifo]


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for target in (tmp_path, tmp_path / "no" / "folder", tmp_path / "loop", tmp_path / ("n" * 300)):
        with pytest.raises(UsageError, match="cannot write"):
            write(target, "x")


@pytest.mark.parametrize("path", ["~no_such_user/x", "/tmp/" + "n" * 300, "/tmp/a\0b"])
def test_what_is_no_path_is_said_by_the_name_the_user_knows(path):
    with pytest.raises(UsageError, match=r"VARIABLE .* is no path"):
        expanded(path, "VARIABLE")


def test_json_that_is_none_or_nested_without_end_is_a_value_error():
    assert parse_json('{"a": [1]}') == {"a": [1]}
    for text in ("{", b"\xff", "[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)
