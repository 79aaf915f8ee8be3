"""A toy op, y = 2 x, with CUDA kernels that kill, hang and starve a GPU.

Not part of the tests, which have no GPU; on a machine with one:

    python tests/conformance/toy_gpu_faults.py FOLDER
    PORTABLE_KERNEL_PATH=FOLDER portable-conformance run --device cuda --ops toy_gpu_faults --timeout 20 \
        --record conformance/results/h200/faults.json.gz

The record of an H200 is there; tests/test_figures.py holds it to EXPECTED.
"""

from __future__ import annotations

import sys
from pathlib import Path

EXPECTED = {
    "right": "Pass",
    "illegal_address": "Crash",
    "spins": "Timeout",
    "out_of_memory": "ResourceError",
    "writes_behind": "Fail.bounds_write",
    "too_much_shared_memory": "Crash",
    "last": "Pass",
}
"""Every implementation, in the order in which they run, and the worst state of its cases."""

SPEC = """
schema_version: 1
op: toy_gpu_faults
summary: y = 2 x.
axes: {{N: 1..}}
leading: same
types:
  - {{T: float32, acc: float32}}
inputs:
  x: {{shape: ["...", N], dtype: T, layout: any}}
outputs:
  y: {{shape: ["...", N], dtype: T}}
reference: {{entry: "reference.py:toy_gpu_faults"}}
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
def toy_gpu_faults(x):
    return 2 * x
"""

IMPLEMENTATIONS = '''
import cupy, torch

SOURCE = r"""
extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
extern "C" __global__ void illegal_address(const float* x, float* y, int n) {
    *(volatile float*)0x10 = x[0];
}
extern "C" __global__ void spins(const float* x, float* y, int n) {
    while (((volatile float*)y)[0] != 12345.f);
}
"""

def launch(name, x, extra=0, **options):
    x = x.contiguous()
    y = torch.empty_like(x)
    kernel = cupy.RawModule(code=SOURCE).get_function(name)
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    blocks = ((x.numel() + 255) // 256,)
    with stream:
        kernel(blocks, (256,), (x.data_ptr(), y.data_ptr(), cupy.int32(x.numel() + extra)), **options)
    return y

def right(x):
    return launch("twice", x)

last = right

def illegal_address(x):
    return launch("illegal_address", x)

def spins(x):
    return launch("spins", x)

def out_of_memory(x):
    return torch.empty(1 << 42, device=x.device)

def writes_behind(x):
    return launch("twice", x, extra=3)

def too_much_shared_memory(x):
    return launch("twice", x, shared_mem=1 << 20)
'''


def write(root: Path) -> Path:
    """The op's folder below `root`; answers `root`, for PORTABLE_KERNEL_PATH."""
    folder = root / "toy_gpu_faults"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'  - {{name: {name}, run: "torch_impl.py:{name}", language: torch}}' for name in EXPECTED]
    (folder / "spec.yaml").write_text(SPEC.format(implementations="\n".join(lines)))
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "torch_impl.py").write_text(IMPLEMENTATIONS)
    return root


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
