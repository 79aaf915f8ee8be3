"""One spec per op, several implementations of each, and the best one for the GPU that is there.

    import portable
    c = portable.matmul(a, b)
    print(portable.explain("matmul", a, b))

`portable.ops()` lists the ops; `portable.<op>` is one. Importing starts no driver and prints nothing.
"""

from __future__ import annotations

from typing import Any

from portable import errors
from portable.catalog import functions as _functions
from portable.catalog import load_module as _load_module
from portable.catalog import public_ops as ops
from portable.choose import Explanation
from portable.dispatch import explain
from portable.dispatch import op as _op
from portable.machine import device
from portable.machine import selection as _selection
from portable.settings import using

__version__ = "0.1.0"
__all__ = ["Explanation", "device", "errors", "explain", "ops", "using"]

_selection()  # looks at files and the torch build; an error waits for the first call


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'portable' has no attribute {name!r}")
    file = _functions().get(name)
    found = globals()[name] = _op(name) if file is None else getattr(_load_module(file), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *ops(), *_functions()})
