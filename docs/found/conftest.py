"""FlagGems 5.0.2 for the tests here, with the device functions of its own GPU.

Its AMD backend leaves `triton_extra_name` out, and CUDA's functions, which no AMD GPU has, are taken in their
place: a finding of its own (README.md). Here the name is put in before FlagGems is imported.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def flag_gems() -> Any:
    """The module; skips the test where it is not installed."""
    found = importlib.util.find_spec("flag_gems")
    if found is None or found.origin is None:
        pytest.skip("needs flag_gems")
    if "flag_gems" not in sys.modules:
        sys.path.append(str(Path(found.origin).parent / "runtime" / "backend"))
        importlib.import_module("_amd").vendor_info.triton_extra_name = "hip"
    return importlib.import_module("flag_gems")
