"""The disk cache of compiled kernels, shared by processes.

One file per kernel: a header with the format's version and the payload's SHA-256, then the machine
code. Files are written beside their name and renamed into place, so a reader sees a whole file or
none; a file that does not verify is rebuilt. Where the directory cannot be written the cache is off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_MAGIC = b"portable-kernel-1\n"


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


def read(name: str) -> bytes | None:
    """The payload stored under `name`, or None where there is none that verifies."""
    try:
        data = (directory() / name).read_bytes()
    except OSError:
        return None
    head = len(_MAGIC)
    payload = data[head + 32 :]
    if data[:head] != _MAGIC or hashlib.sha256(payload).digest() != data[head : head + 32]:
        return None
    return payload


def write(name: str, payload: bytes) -> Path | None:
    """Store `payload`; returns its file's path, or None where the directory cannot be written."""
    folder = directory()
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


def get(name: str, build: Callable[[], bytes]) -> bytes:
    """The payload under `name`, built and stored where it is not there yet."""
    payload = read(name)
    if payload is None:
        payload = build()
        write(name, payload)
    return payload
