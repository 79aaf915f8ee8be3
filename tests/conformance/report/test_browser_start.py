"""A browser that does not come up is an error, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import browser


def test_a_silent_browser_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(browser, "PATIENCE", 0.3)
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nwhile read -r line <&3; do :; done\n")
    mute.chmod(0o755)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError, match="says nothing"):
        browser.Browser(str(mute), tmp_path)
    assert set(os.listdir("/proc/self/fd")) == before
    assert not [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if str(mute).encode() in _text(entry)]


def _text(entry):
    try:
        return entry.read_bytes()
    except OSError:  # ended meanwhile
        return b""
