"""The disk cache of compiled code, shared by processes.

One file per entry: a header with the format's version and the payload's SHA-256, then the machine code. Files
are written beside their name and renamed into place, so a reader sees a whole file or none. Only a regular
file of this user (or of root, who prepares images) is read, never through a link; what is not that, or does
not verify, is rebuilt. Where the directory cannot be written the cache is off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_MAGIC = b"portable-kernel-1\n"
# A FIFO would be waited for without O_NONBLOCK. What a system lacks is 0.
_SAFE = sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))


def directory() -> Path:
    """`PORTABLE_CACHE_DIR`, else `$XDG_CACHE_HOME/portable`, else `~/.cache/portable`."""
    chosen = os.environ.get("PORTABLE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "portable"


def key(*parts: str | bytes) -> str:
    """A file name that changes when any part does."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _open(path: Path, flags: int) -> int:
    """A descriptor of a regular file of this user or root. Raises OSError for a link and all else."""
    descriptor = os.open(path, flags | _SAFE, 0o600)
    found = os.fstat(descriptor)
    own = not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)
    if not (stat.S_ISREG(found.st_mode) and own):
        os.close(descriptor)
        raise PermissionError(f"{path} is no regular file of this user")
    return descriptor


def read(name: str, folder: Path | None = None) -> bytes | None:
    """The payload stored under `name` in `folder` (the cache's own), None where there is none to trust."""
    try:
        with open(_open((folder or directory()) / name, os.O_RDONLY), "rb") as file:
            data = file.read()
    except OSError:
        return None
    head = len(_MAGIC)
    payload = memoryview(data)[head + 32 :]
    if data[:head] != _MAGIC or hashlib.sha256(payload).digest() != data[head : head + 32]:
        return None
    return bytes(payload)


def write(name: str, payload: bytes, folder: Path | None = None) -> Path | None:
    """Store `payload`; returns its file's path, or None where the directory cannot be written."""
    folder = folder or directory()
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{name[:16]}-", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
        os.replace(temporary, folder / name)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return None
    return folder / name


def get(name: str, build: Callable[[], bytes], folder: Path | None = None) -> bytes:
    """The payload under `name`, built and stored where it is not there yet."""
    payload = read(name, folder)
    if payload is None:
        payload = build()
        write(name, payload, folder)
    return payload


def writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, which is made where it is not there."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


@contextlib.contextmanager
def locked(name: str, folder: Path) -> Iterator[None]:
    """The block of one process at a time, of those that hold the lock `name`.

    It saves work and protects nothing: `write` leaves a whole file without it. So where no lock can be had
    (the name is a link, a FIFO or a file of another user) the block runs at once.
    """
    try:
        descriptor = _open(folder / name, os.O_RDWR | os.O_CREAT)
    except OSError:
        yield
        return
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if fcntl is not None:  # a child forked meanwhile has the descriptor too, and would keep the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
