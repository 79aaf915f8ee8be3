"""The disk cache: whole files or none, verified when read, shared by processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from portable.runtime import disk_cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_what_was_written_is_read(folder):
    name = disk_cache.key("source", b"defines")
    assert disk_cache.read(name) is None
    disk_cache.write(name, b"machine code")
    assert disk_cache.read(name) == b"machine code"
    assert disk_cache.get(name, lambda: pytest.fail("built again")) == b"machine code"
    assert [file.name for file in folder.iterdir()] == [name]


def test_keys_keep_their_parts_apart():
    assert disk_cache.key("ab", "c") != disk_cache.key("a", "bc")


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d[:10], lambda d: b"", lambda d: d[:-1] + b"!"]
)
def test_a_torn_or_damaged_file_is_built_again(folder, damage):
    name = disk_cache.key("x")
    disk_cache.write(name, b"machine code")
    file = folder / name
    file.write_bytes(damage(file.read_bytes()))
    assert disk_cache.read(name) is None
    assert disk_cache.get(name, lambda: b"again") == b"again"
    assert disk_cache.read(name) == b"again"


def test_a_link_a_pipe_and_a_file_of_another_user_are_not_read_but_replaced(folder, tmp_path):
    """2026-11-22: a FIFO hung for ever, and what another user had written was loaded."""
    name = disk_cache.key("x")
    file = disk_cache.write(name, b"not to be trusted")
    assert file is not None
    file.rename(tmp_path / "elsewhere")

    def link():
        file.symlink_to(tmp_path / "elsewhere")

    def other_owner():
        disk_cache.write(name, b"not to be trusted")
        os.chown(file, 65534, 65534)

    for make in (link, lambda: os.mkfifo(file), *([other_owner] if os.geteuid() == 0 else [])):
        make()
        assert disk_cache.read(name) is None
        assert disk_cache.get(name, lambda: b"built") == b"built"
        assert file.lstat().st_uid == os.geteuid() and disk_cache.read(name) == b"built"
        file.unlink()
    assert disk_cache.get(".", lambda: b"built") == b"built"


def test_a_child_forked_while_a_lock_is_held_does_not_keep_it(folder):
    folder.mkdir()
    with disk_cache.locked("lock", folder):
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
    with open(folder / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises BlockingIOError where it is held
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_folder_that_cannot_be_written_turns_the_cache_off(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(blocked / "below"))
    assert disk_cache.write("name", b"x") is None
    assert disk_cache.get("name", lambda: b"built") == b"built"


def test_processes_that_write_at_once_leave_one_whole_file(folder):
    # By its file: two imports of torch would take longer than all the writing.
    code = (
        "import runpy, sys; write = runpy.run_path(sys.argv[1])['write']\n"
        "for i in range(200): write('k', bytes([i % 251]) * 100_000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, disk_cache.__file__]) for _ in range(2)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        payload = disk_cache.read("k")
        if payload is not None:
            seen += 1
            assert len(payload) == 100_000 and len(set(payload)) == 1
    assert all(writer.returncode == 0 for writer in writers) and seen
    assert [file.name for file in folder.iterdir()] == ["k"]
