"""The store: whole or absent, checked on every read, safe from others, sound under races."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from sparsekit.digest import sha256_of
from sparsekit.errors import StoreError
from sparsekit.model.artifact import EntryRecord, Manifest, canonical_json
from sparsekit.store import local, staging
from sparsekit.store.local import Store, read_artifact
from sparsekit.store.maintain import damaged, entries, parse_age, parse_size, prunable
from sparsekit.store.open import open_store


def manifest_for(name: str, cubin: bytes) -> Manifest:
    sha256 = sha256_of(cubin)
    identity = {"kernel": name, "arch": "sm_80", "toolchain": {"id": "nvrtc-13.0.88"}}
    record = EntryRecord(
        entry="go", cubin="kernel.cubin", cubin_sha256=sha256, params=(), promises=(), threads=32,
        cluster=None, dynamic_shared_bytes=0, static_shared_bytes=0, registers=8, local_bytes=0,
        spill_store_bytes=0, spill_load_bytes=0, code_bytes=128, text_sha256=sha256,
    )  # fmt: skip
    key = sha256_of(canonical_json(identity))
    return Manifest(key, identity, (record,), {"go": "kernel.ptx"})


def publish(store: Store, name: str = "k", cubin: bytes = b"\x7fELF code") -> str:
    manifest = manifest_for(name, cubin)
    with store.building(manifest.key) as stage:
        (stage / "kernel.cubin").write_bytes(cubin)
        (stage / "kernel.ptx").write_text("// ptx")
        store.publish(stage, manifest)
    return manifest.key


@pytest.fixture
def notes():
    return []


@pytest.fixture
def store(tmp_path, notes):
    return Store(tmp_path / "store", notes.append)


def rubbish(store: Store) -> list[str]:
    folder = store.root / "staging"
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def test_what_is_published_is_read_back(store):
    key = publish(store)
    artifact = store.get(key)
    assert artifact is not None
    assert artifact.cubin("go") == b"\x7fELF code"
    assert artifact.ptx("go") == "// ptx"
    assert artifact.manifest == manifest_for("k", b"\x7fELF code")
    assert rubbish(store) == []


def test_absent_is_none(store):
    assert store.get("0" * 64) is None


def test_sha256sum_checks_an_entry_by_hand(store):
    folder = store.folder(publish(store))
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0


DAMAGE = {
    "empty cubin": lambda f: (f / "kernel.cubin").write_bytes(b""),
    "half a cubin": lambda f: (f / "kernel.cubin").write_bytes(b"\x7fEL"),
    "flipped byte": lambda f: (f / "kernel.cubin").write_bytes(b"\x7fELF cOde"),
    "flipped manifest": lambda f: _flip(f / "manifest.json"),
    "flipped sums": lambda f: _flip(f / "SHA256SUMS"),
    "zeroed manifest": lambda f: (f / "manifest.json").write_bytes(bytes(200)),
    "manifest nested without end": lambda f: _with_manifest(f, b"[" * 100_000),
    "no manifest": lambda f: (f / "manifest.json").unlink(),
    "no sums": lambda f: (f / "SHA256SUMS").unlink(),
    "no cubin": lambda f: (f / "kernel.cubin").unlink(),
    "empty folder": lambda f: [p.unlink() for p in f.iterdir()],
    "file as a link": lambda f: _to_link(f / "kernel.cubin"),
    "folder as a link": lambda f: _to_link(f),
    "file instead of folder": lambda f: (shutil.rmtree(f), f.write_text("x")),
}


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _with_manifest(folder: Path, content: bytes) -> None:
    """Another manifest, whose digest stands in the sums."""
    old, sums = folder / "manifest.json", folder / "SHA256SUMS"
    digests = [sha256_of(data) for data in (old.read_bytes(), content)]
    old.write_bytes(content)
    sums.write_text(sums.read_text().replace(*digests))


def _to_link(path: Path) -> None:
    moved = path.with_name(path.name + ".moved")
    path.rename(moved)
    path.symlink_to(moved)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_said_and_rebuilt(damage, store, notes):
    key = publish(store)
    DAMAGE[damage](store.folder(key))
    assert store.get(key) is None
    assert len(notes) == 1
    assert "damaged" in notes[0]
    assert publish(store) == key
    assert store.get(key) is not None
    assert len(notes) == 1


def test_swapped_entries_are_found(store, notes):
    first, second = publish(store, "a", b"\x7fELF a"), publish(store, "b", b"\x7fELF b")
    a, b, aside = store.folder(first), store.folder(second), store.root / "aside"
    a.rename(aside)
    b.rename(a)
    aside.rename(b)
    assert store.get(first) is None
    assert store.get(second) is None
    assert "another key" in notes[0]


def test_manifest_of_one_build_with_the_cubin_of_another(store, notes):
    key = publish(store)
    folder = store.folder(key)
    (folder / "kernel.cubin").write_bytes(b"\x7fELF other")
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    fixed = [f"{sha256_of((folder / s[66:]).read_bytes())}  {s[66:]}" for s in sums]
    (folder / "SHA256SUMS").write_text("\n".join(fixed) + "\n")
    assert store.get(key) is None
    assert "is not the cubin" in notes[0]


def test_strangers_in_an_entry_are_ignored(store, tmp_path):
    key = publish(store)
    (store.folder(key) / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (store.folder(key) / "evil.pkl").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    assert set(store.get(key).files) == {"kernel.cubin", "kernel.ptx", "manifest.json"}
    assert not (tmp_path / "ran").exists()


def test_folders_are_closed_to_others_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        store = open_store(tmp_path / "a" / "store", pytest.fail)
        key = publish(store)
    finally:
        os.umask(before)
    for folder in (store.root, store.folder(key), store.folder(key).parent, store.root / "staging"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_store_that_others_may_write_is_refused(tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(StoreError, match="chmod 700"):
        open_store(root, pytest.fail)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_store_of_another_user_is_refused(tmp_path):
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)
    with pytest.raises(StoreError, match="belongs to user 12345"):
        open_store(root, pytest.fail)


@pytest.mark.parametrize("part", ["v1", "staging"])
def test_parts_that_others_may_write_are_refused(part, store):
    publish(store)
    folder = store.root / part
    folder.chmod(0o777)
    with pytest.raises(StoreError, match=f"{part} may be written by others"):
        open_store(store.root, pytest.fail)
    elsewhere = store.root / "elsewhere"
    folder.rename(elsewhere)
    elsewhere.chmod(0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(StoreError, match=f"{part} is a symbolic link"):
        open_store(store.root, pytest.fail)


@pytest.mark.parametrize("level", ["entry", "prefix"])
def test_an_entry_that_others_may_write_is_no_entry(level, store, notes):
    key = publish(store)
    folder = store.folder(key) if level == "entry" else store.folder(key).parent
    folder.chmod(0o770)
    assert Store(store.root, notes.append).get(key) is None
    assert "may be written by others (mode 770)" in notes[0]
    assert store.get(publish(store)) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_an_entry_of_another_user_is_no_entry(store, notes):
    key = publish(store)
    os.chown(store.folder(key), 12345, 12345)
    assert Store(store.root, notes.append).get(key) is None
    assert "belongs to user 12345" in notes[0]


def test_a_store_that_cannot_be_made_is_replaced_with_one_warning(tmp_path, notes):
    (tmp_path / "file").write_text("")
    store = open_store(tmp_path / "file" / "store", notes.append)
    assert store.get(publish(store)) is not None
    assert len(notes) == 1
    assert "SPARSEKIT_CACHE_DIR" in notes[0]


def test_a_read_only_store_is_read_and_built_beside(tmp_path, notes, monkeypatch):
    filled = Store(tmp_path / "store", pytest.fail)
    key = publish(filled)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    store = open_store(tmp_path / "store", notes.append)
    assert store.get(key) is not None
    other = publish(store, "other", b"\x7fELF other")
    assert store.get(other) is not None
    assert not filled.has(other)
    assert len(notes) == 1


def test_the_loser_of_a_race_takes_the_winner(store):
    manifest = manifest_for("k", b"\x7fELF code")
    with staging.staged_folder(store._staging(), manifest.key) as stage:
        for name, content in (("kernel.cubin", b"\x7fELF code"), ("kernel.ptx", b"// ptx")):
            (stage / name).write_bytes(content)
        publish(store)  # another process was quicker
        artifact = store.publish(stage, manifest)
    assert artifact.folder == store.folder(manifest.key)
    assert rubbish(store) == []


def test_the_loser_keeps_its_own_bytes_while_the_winner_is_not_visible(store, monkeypatch):
    manifest = manifest_for("k", b"\x7fELF code")
    publish(store)
    monkeypatch.setattr(store, "get", lambda key: None)
    with staging.staged_folder(store._staging(), manifest.key) as stage:
        for name, content in (("kernel.cubin", b"\x7fELF code"), ("kernel.ptx", b"// ptx")):
            (stage / name).write_bytes(content)
        assert store.publish(stage, manifest).cubin("go") == b"\x7fELF code"


def test_tidying_that_fails_does_not_fail_the_build(store, monkeypatch):
    def busy(*args, **kwargs):
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(os, "rmdir", busy)
    assert store.get(publish(store)) is not None


def test_a_full_disk_is_one_error_and_leaves_nothing(store, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        publish(store)
    assert rubbish(store) == []
    assert list(entries(store.root)) == []


def test_dead_builders_are_swept(store):
    folder = store._staging()
    key = "ab" * 32
    (folder / f"{key}.lock").touch()
    staging.aside(folder, key).mkdir()
    assert rubbish(open_store(store.root, pytest.fail)) == []


def test_a_living_builder_is_left_alone(store):
    key = "cd" * 32
    with store.building(key) as stage:
        (stage / "kernel.cubin").write_bytes(b"half")
        publish(open_store(store.root, pytest.fail))
        assert (stage / "kernel.cubin").read_bytes() == b"half"


def test_a_builder_that_waited_in_vain_for_the_lock_is_left_alone(store, monkeypatch):
    key = "ef" * 32
    monkeypatch.setattr(staging, "_WAIT_S", 0.0)
    with staging.key_lock(store._staging(), key):
        building = store.building(key)
        stage = building.__enter__()
    (stage / "kernel.cubin").write_bytes(b"half")
    open_store(store.root, pytest.fail)
    assert (stage / "kernel.cubin").read_bytes() == b"half"
    building.__exit__(None, None, None)
    assert rubbish(store) == []


def test_a_lock_is_removed_by_who_holds_it(store, monkeypatch):
    """Else it could be another's by then, who would hold a lock that nobody sees."""
    lock = store._staging() / f"{'ab' * 32}.lock"
    lock.touch()
    taken, unlink = [], Path.unlink

    def look(path, missing_ok=False):
        with path.open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken.append(path)
            except BlockingIOError:
                pass
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    staging.sweep(store._staging())
    assert not lock.exists()
    with staging.key_lock(store._staging(), "cd" * 32):
        pass
    assert taken == []


def test_a_lock_of_another_is_not_removed_by_name(store):
    lock = store._staging() / f"{'ab' * 32}.lock"
    with staging.key_lock(store._staging(), "ab" * 32):
        lock.unlink()
        lock.touch()  # another's, after a sweep of an older release
    assert lock.exists()


@pytest.fixture
def replaced_while_read(store, monkeypatch) -> str:
    """The key of an entry that another takes the place of when it is first read."""
    key = publish(store)
    parse, replaced = local._parse_sums, []

    def replace(content):
        if not replaced:
            replaced.append(True)
            store.remove(key)
            publish(store, "k", b"\x7fELF newer")
        return parse(content)

    monkeypatch.setattr(local, "_parse_sums", replace)
    return key


def test_an_entry_that_is_replaced_while_it_is_read(store, notes, replaced_while_read):
    assert store.get(replaced_while_read).cubin("go") == b"\x7fELF newer"
    assert store.has(replaced_while_read)
    assert notes == []


def test_an_entry_that_is_replaced_while_it_is_verified(store, replaced_while_read):
    assert list(damaged(store.root)) == []
    assert store.get(replaced_while_read).cubin("go") == b"\x7fELF newer"


def test_a_damaged_entry_that_another_process_builds_is_left_to_it(store, notes):
    key = publish(store)
    DAMAGE["half a cubin"](store.folder(key))
    with staging.key_lock(store._staging(), key):
        assert store.get(key) is None
        assert store.has(key)
    assert notes == []
    assert store.get(key) is None
    assert not store.has(key)


def test_a_builder_repairs_under_its_own_lock(store, notes):
    key = publish(store)
    DAMAGE["half a cubin"](store.folder(key))
    with store.building(key):
        assert store.get(key) is None
    assert len(notes) == 1
    assert not store.has(key)


def test_damage_in_a_read_only_store_is_said_once(tmp_path, notes, monkeypatch):
    filled = Store(tmp_path / "store", pytest.fail)
    key = publish(filled)
    DAMAGE["half a cubin"](filled.folder(key))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    store = open_store(tmp_path / "store", notes.append)

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    assert store.get(key) is None
    assert store.get(key) is None
    assert [n for n in notes if "damaged" in n and str(filled.root) in n] == notes[1:]
    assert len(notes) == 2


def test_file_systems_without_locks(store, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert store.get(publish(store)) is not None


_BUILDER = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
from test_store import Store, publish
store = Store(Path(sys.argv[1]), lambda text: print("NOTE", text))
for i in range(8):
    key = publish(store, f"k{{i}}", b"\\x7fELF" + bytes([i]) * 1000)
    assert store.get(key) is not None
"""


def test_many_processes_build_the_same_eight_entries(tmp_path):
    script = _BUILDER.format(root=str(ROOT), tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(tmp_path / "store")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    for _ in range(3):
        running = [
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
            )
            for _ in range(12)
        ]
        for process in running:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert out == ""
        store = Store(tmp_path / "store", pytest.fail)
        assert len(list(entries(store.root))) == 8
        assert list(damaged(store.root)) == []
        assert rubbish(store) == []
        shutil.rmtree(tmp_path / "store")


def test_relocation(store, tmp_path):
    key = publish(store)
    shutil.move(store.root, tmp_path / "moved")
    assert Store(tmp_path / "moved", pytest.fail).get(key) is not None
    text = (tmp_path / "moved" / "v1" / key[:2] / key / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["schema"] == 1


def test_pruning_takes_the_old_and_then_the_oldest(store):
    keys = [publish(store, f"k{i}", b"\x7fELF" + bytes([i]) * 100) for i in range(4)]
    now = time.time()
    for age_d, key in zip((40, 20, 10, 0), keys, strict=True):
        os.utime(store.folder(key), (now - age_d * 86400,) * 2)
    assert [e.key for e in prunable(store.root, parse_age("30d"), None)] == keys[:1]
    one = next(iter(entries(store.root))).bytes
    assert {e.key for e in prunable(store.root, None, 2 * one)} == set(keys[:2])


def test_ages_and_sizes():
    assert (parse_age("90m"), parse_age("2d"), parse_age("1.5h")) == (5400, 172800, 5400)
    assert (parse_size("2K"), parse_size("1GiB"), parse_size("500 MB"), parse_size("7")) == (
        2048, 1 << 30, 500 << 20, 7,
    )  # fmt: skip


def test_reading_needs_no_store(store):
    folder = store.folder(publish(store))
    assert read_artifact(folder).manifest.arch == "sm_80"
