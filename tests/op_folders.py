"""Ops that a test writes, in folders on the search path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import portable
from portable.dispatch import dispatcher, pins
from portable.runtime import build, detect
from portable.spec import registry


def fresh() -> None:
    """Forget what was found on the search paths and in the environment."""
    registry.clear_caches()
    pins.reload()
    detect.reset()
    dispatcher.clear_caches()
    build.clear_caches()


@contextlib.contextmanager
def on_search_path(root: Path, ops: Mapping[str, Mapping[str, str]]) -> Iterator[Path]:
    """The files of each op in a folder of `root`, which is the search path; on the CPU backend."""
    for op, files in ops.items():
        (root / op).mkdir(parents=True)
        for name, text in files.items():
            (root / op / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PORTABLE_KERNEL_PATH", str(root))
        patch.setenv("PORTABLE_BACKEND", "cpu")
        fresh()
        yield root
    for name in [each for each in vars(portable) if each.removesuffix("_backward") in ops]:
        delattr(portable, name)
    fresh()
