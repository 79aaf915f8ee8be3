"""What tests of kernels share."""

from __future__ import annotations

import pytest

from portable.dispatch import pins
from portable.runtime import detect


@pytest.fixture
def emulate(monkeypatch):
    """Makes an emulated GPU the active one, until the test ends."""

    def assign(arch: str) -> None:
        for name, value in {"BACKEND": "rocm", "EMULATE": "1", "ROCM_ARCH": arch}.items():
            monkeypatch.setenv(f"PORTABLE_{name}", value)
        pins.reload()
        detect.reset()

    yield assign
    monkeypatch.undo()
    pins.reload()
    detect.reset()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What runs on an emulated GPU is `slow`: in `make test` the smoke tier runs every kernel there."""
    for item in items:
        if "emulate" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
