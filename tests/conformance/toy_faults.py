"""A toy op, y = 2 x, with implementations that kill, hang and starve the process that runs them."""

from __future__ import annotations

from pathlib import Path

EXPECTED = {
    "right": "Pass",
    "segfault": "Crash",
    "exit": "Crash",
    "hang": "Timeout",
    "out_of_memory": "ResourceError",
    "device_memory": "ResourceError",
    "raises": "Crash",
    "wrong": "Fail.value",
    "reads": "Crash",
    "chatty": "Pass",
    "last": "Pass",
}
"""Every implementation, in the order in which they run, and the worst state of its cases."""

SPEC = """
schema_version: 1
op: toy_faults
summary: y = 2 x.
axes: {{N: 1..}}
leading: same
types:
  - {{T: float32, acc: float32}}
inputs:
  x: {{shape: ["...", N], dtype: T, layout: any}}
outputs:
  y: {{shape: ["...", N], dtype: T}}
reference: {{entry: "reference.py:toy_faults"}}
tolerance:
  y: {{result_ulp: 0.51, accumulation_ulp: "1"}}
cost: {{flops: "B * N", roof: vector}}
cases:
  - {{N: 5, leading: [2]}}
  - {{N: 64, leading: [3]}}
implementations:
{implementations}
"""

REFERENCE = """
def toy_faults(x):
    return 2 * x
"""

IMPLEMENTATIONS = '''
import ctypes, os, sys, time, torch

def right(x):
    return 2 * x

last = right

def segfault(x):
    return ctypes.string_at(0)

def exit(x):
    os.write(2, b"the driver gave up\\n")
    os._exit(7)

def hang(x):
    """Says so in a file, for who waits for it; "no": for once it does not."""
    sign = os.environ.get("TOY_FAULTS_HANG", os.devnull)
    if sign == "no":
        return 2 * x
    open(sign, "w").write(str(os.getpid()))
    time.sleep(3600)

def out_of_memory(x):
    raise MemoryError

def device_memory(x):
    return torch.empty(1 << 60)

def raises(x):
    raise RuntimeError("an illegal memory access was encountered")

def wrong(x):
    y = 2 * x
    y[..., -1] += 1
    return y

def reads(x):
    return float(input()) * x

def chatty(x):
    print('{"result": "not for you"}', flush=True)
    os.write(1, b"printed by a kernel\\n")
    return 2 * x
'''


def write(root: Path) -> Path:
    """The op's folder below `root`; answers `root`, for PORTABLE_KERNEL_PATH."""
    folder = root / "toy_faults"
    folder.mkdir(parents=True)
    lines = [f'  - {{name: {name}, run: "torch_impl.py:{name}", language: torch}}' for name in EXPECTED]
    (folder / "spec.yaml").write_text(SPEC.format(implementations="\n".join(lines)))
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "torch_impl.py").write_text(IMPLEMENTATIONS)
    return root
