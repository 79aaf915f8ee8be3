"""The toy op on the CPU backend, its folder on the search path; the process's device put back."""

from __future__ import annotations

import os
from unittest import mock

import pytest

from portable.dispatch import dispatcher
from portable.runtime import detect
from portable.spec import registry
from tests.op_folders import fresh

from . import toy_norm


@pytest.fixture
def device_of_command():
    """A command makes its device the process's, by variables that other programs get too: put back."""
    with mock.patch.dict(os.environ):
        yield
    detect.reset()


@pytest.fixture(scope="module")
def norm(tmp_path_factory):
    """`toy_norm` as an op of the catalogue, once per module; yields its spec."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PORTABLE_KERNEL_PATH", str(toy_norm.write(tmp_path_factory.mktemp("ops"))))
    patch.setenv("PORTABLE_BACKEND", "cpu")
    patch.setattr(dispatcher.torch_library, "define", lambda *args: None)
    patch.setattr(dispatcher.torch_library, "define_out", lambda *args: None)
    patch.setattr(dispatcher, "_ops", {})
    fresh()
    yield registry.spec("toy_norm")
    patch.undo()
    vars(__import__("portable")).pop("toy_norm", None)
    fresh()
