"""Files written whole or not at all, and read back; gzip where the name ends in .gz."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tempfile
import zlib
from pathlib import Path

MOST_BYTES = 1 << 28
"""Of a compressed file's text: a core record of an op set ten times as large."""


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file, decompressed where it begins as gzip does. Raises OSError where it cannot be
    read, ValueError where it is no UTF-8, a damaged gzip file, or one of more than MOST_BYTES."""
    content = Path(path).read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"damaged gzip file: {error}") from error
        if len(content) > MOST_BYTES:
            raise ValueError(f"a gzip file of more than {MOST_BYTES >> 20} MiB of text")
    return content.decode("utf-8")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 atomically: a temporary file beside `path`, flushed, then renamed over it. A name
    that ends in .gz is compressed, the same bytes for the same text. A link stays one, a file keeps its mode,
    and what is no file (/dev/null, a pipe) is written to. Raises OSError, and leaves the old file, where it
    cannot be written."""
    content = text.encode("utf-8", errors="backslashreplace")
    if os.fspath(path).endswith(".gz"):
        content = _compressed(content)
    if _special(path):
        with open(path, "wb") as file:
            file.write(content)
        return
    target = Path(os.path.realpath(path))
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name[:40], suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _compressed(content: bytes) -> bytes:
    """As gzip, without a name, a time or, as Python 3.11's and 3.12's `gzip.compress` has it, a system."""
    made = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=0) as file:
        file.write(content)
    return made.getvalue()


def try_write(path: str | os.PathLike[str]) -> None:
    """Raise the OSError that `write_text` to `path` would, as far as it can be known; writes nothing."""
    if not _special(path):
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
            pass


def _special(path: str | os.PathLike[str]) -> bool:
    """Whether it is there and no file, but may be written to. Raises IsADirectoryError for a folder."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    return not stat.S_ISREG(mode)
