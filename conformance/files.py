"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 atomically: a temporary file beside `path`, flushed, then renamed over it.
    A link stays one, and what is no file (/dev/null, a pipe) is written to.
    Raises OSError, and leaves the old file, where it cannot be written."""
    target = Path(os.path.realpath(path))
    if _special(target):
        with open(target, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
        return
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name[:40], suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def try_write(path: str | os.PathLike[str]) -> None:
    """Raise the OSError that `write_text` to `path` would, as far as it can be known; writes nothing."""
    target = Path(os.path.realpath(path))
    if _special(target):
        return
    with tempfile.TemporaryFile(dir=target.parent):
        pass


def _special(target: Path) -> bool:
    """Whether it is there and no file, but may be written to. Raises IsADirectoryError for a folder."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return not stat.S_ISREG(mode)
