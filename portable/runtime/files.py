"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 atomically: a temporary file beside `path`, flushed, then renamed over it.
    A link stays one, a file keeps its mode, and what is no file (/dev/null, a pipe) is written to.
    Raises OSError, and leaves the old file, where it cannot be written."""
    if _special(path):
        with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
        return
    target = Path(os.path.realpath(path))
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name[:40], suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


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
