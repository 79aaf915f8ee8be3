"""One spec per op, several implementations of each, and the best one for the GPU that is there.

    import portable
    c = portable.matmul(a, b)
    print(portable.explain("matmul", a, b))

`portable.ops()` lists the ops; `portable.<op>` is one. Importing starts no driver and prints nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

from portable import errors
from portable.dispatch.dispatcher import explain
from portable.dispatch.dispatcher import op as _op
from portable.dispatch.pins import using
from portable.dispatch.select import Explanation
from portable.runtime.detect import device
from portable.runtime.detect import selection as _selection
from portable.runtime.emulate import emulated
from portable.spec.registry import functions as _functions
from portable.spec.registry import load_module as _load_module
from portable.spec.registry import public_ops as ops

__version__ = "0.1.0"
__all__ = ["Explanation", "device", "emulated", "errors", "explain", "ops", "using"]

_selection()  # looks at files and the torch build; an error waits for the first call


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'portable' has no attribute {name!r}")
    if name in ("conformance", "integrations", "quantization", "testing"):  # imported when used
        return importlib.import_module(f"portable.{name}")
    if name == "aten":
        found = globals()[name] = importlib.import_module("portable.dispatch.aten").aten
        return found
    if name == "quantize_":
        found = globals()[name] = importlib.import_module("portable.quantization").quantize_
        return found
    file = _functions().get(name)
    found = globals()[name] = _op(name) if file is None else getattr(_load_module(file), name)
    return found


def __dir__() -> list[str]:
    return sorted(
        {*__all__, "aten", "integrations", "quantization", "quantize_", "testing", *ops(), *_functions()}
    )
