"""The emulator's native library in the cache: checked before it is loaded, made again where it is wrong."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from portable.backends.rocm.emulator import native_build

WRONG = {
    "nothing there": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "torn": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "text": lambda file: file.write_bytes(b"hello"),
    "flipped bits": lambda file: file.write_bytes(flipped(file.read_bytes())),
    "a link": lambda file: linked(file),
    "a FIFO": lambda file: (file.unlink(), os.mkfifo(file)),
    "a directory": lambda file: (file.unlink(), file.mkdir()),
}


def flipped(data: bytes) -> bytes:
    changed, draw = bytearray(data), random.Random(1)
    for _ in range(300):
        changed[draw.randrange(len(data) // 4, len(data) * 3 // 4)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def linked(file: Path) -> None:
    elsewhere = file.with_name("elsewhere")
    os.rename(file, elsewhere)
    file.symlink_to(elsewhere)


@pytest.fixture(scope="module")
def image() -> bytes:
    return native_build.image()


@pytest.fixture
def cache(tmp_path, monkeypatch, image):
    """A new cache folder; compiling takes no time and is counted."""
    compiled: list[Path] = []

    def compile_(sources: list[Path], target: Path) -> None:
        compiled.append(target)
        target.write_bytes(image)

    monkeypatch.setattr(native_build, "_compile", compile_)
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "cache", compiled


def load() -> native_build.Library:
    """As a new process does."""
    return native_build.library.__wrapped__()


def stored(folder: Path) -> Path:
    (file,) = (file for file in folder.iterdir() if file.stat().st_size)
    return file


def test_it_is_compiled_once_and_loaded_as_it_was_hashed(cache):
    folder, compiled = cache
    assert load().ops and load().ops
    assert len(compiled) == 1
    assert stored(folder).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_file_is_made_again_and_never_loaded(cache, how, image):
    folder, compiled = cache
    load()
    file = stored(folder)
    WRONG[how](file)
    assert load().ops and native_build.image() == image
    if how == "a directory":  # nothing can take its place: the library is built for this process
        assert len(compiled) == 3
    else:
        assert len(compiled) == 2 and file.is_file() and not file.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="not as root: only root gives files away")
def test_a_file_of_another_user_is_made_again(cache):
    folder, compiled = cache
    load()
    file = stored(folder)
    os.chown(file, 65534, 65534)
    assert load().ops
    assert len(compiled) == 2 and file.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("how", ["a link", "a FIFO"])
def test_its_lock_is_no_way_into_another_file(cache, tmp_path, how):
    folder, _ = cache
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock = folder / ".emulator-lock"
    lock.symlink_to(victim) if how == "a link" else os.mkfifo(lock)
    assert load().ops
    assert victim.read_text() == "precious"


def test_a_cache_that_cannot_be_written_leaves_it_in_the_temporary_folder(cache, tmp_path, monkeypatch):
    _, compiled = cache
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert load().ops and load().ops
    assert len(compiled) == 1
    own = tmp_path / f"portable-{os.getuid()}"
    own.chmod(0o777)  # others could put a file there: it is not used
    assert load().ops
    assert len(compiled) == 2
