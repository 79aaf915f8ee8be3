"""What tests of kernels share."""

from __future__ import annotations

import pytest
import torch

from portable import machine, settings


@pytest.fixture
def card(monkeypatch):
    """Makes an emulated card the active one, until the test ends."""
    pytest.importorskip("ziglang")
    pytest.importorskip("elftools")

    def assign(arch: str) -> None:
        for name, value in {"BACKEND": "rocm", "EMULATE": "1", "ROCM_ARCH": arch}.items():
            monkeypatch.setenv(f"PORTABLE_{name}", value)
        settings.reload()
        machine.reset()

    yield assign
    monkeypatch.undo()
    settings.reload()
    machine.reset()


@pytest.fixture(autouse=True)
def one_thread():
    """Of torch: where two processes of tests share two cores, threads of both wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
