"""Notes beside the artifacts: a damaged one is no note, and a lost one costs nothing but time."""

from __future__ import annotations

import os

from sparsekit.store.notes import Notes, note_key

KEY = note_key("sass", "1", "digest")


def test_kept_and_found(tmp_path):
    notes = Notes(tmp_path)
    assert notes.get(KEY) is None
    notes.put(KEY, {"a": [1, None, "x"]})
    assert Notes(tmp_path).get(KEY) == {"a": [1, None, "x"]}
    assert note_key("sass", "2", "digest") != KEY


def test_damage_is_absence(tmp_path):
    notes = Notes(tmp_path)
    notes.put(KEY, {"registers": 32})
    (file,) = tmp_path.glob("notes/*/*.json")
    for text in (file.read_text().replace("32", "31"), "", "[]", "{", "[" * 100_000):
        file.write_text(text)
        assert notes.get(KEY) is None


def test_clearing(tmp_path):
    notes = Notes(tmp_path)
    notes.put(KEY, 1)
    notes.clear(older_than_s=60)
    assert notes.get(KEY) == 1
    (file,) = tmp_path.glob("notes/*/*.json")
    os.utime(file, (0, 0))
    notes.clear(older_than_s=60)
    assert notes.get(KEY) is None
    notes.put(KEY, 1)
    notes.clear()
    assert notes.get(KEY) is None


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "notes").write_text("a file")
    notes = Notes(tmp_path)
    notes.put(KEY, 1)
    assert notes.get(KEY) is None
