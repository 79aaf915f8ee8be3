"""A made-up op with tunables, in a folder of its own, for what tunes and files configs."""

from __future__ import annotations

import textwrap

import pytest

from portable.configs import lookup
from portable.spec import registry
from tests.op_folders import fresh

SPEC = """
schema_version: 1
op: product
summary: c = a @ b.
axes: {M: 0.., N: 0.., K: 0..}
leading: broadcast
types:
  - {T: bfloat16, R: bfloat16, acc: float32}
  - {T: float32, R: float32, acc: float32}
inputs:
  a: {shape: ["...", M, K], dtype: T, layout: matrix}
  b: {shape: ["...", K, N], dtype: T, layout: matrix}
params:
  precision: {type: choice, choices: [ieee, tf32], default: ieee, keyword: true}
outputs:
  c: {shape: ["...", M, N], dtype: R}
reference: {entry: "reference.py:product", error_scale: "reference.py:error_scale"}
tolerance:
  c: {result_ulp: 0.51, accumulation_ulp: "2 * sqrt(K) + K / 16"}
cost: {flops: "2 * B * M * N * K", roof: matrix}
cases:
  - {M: 8, N: 8, K: 8}
bench:
  - {M: 2048, N: 1024, K: 512}
implementations:
  - {name: tiles, plan: "tiles.py:plan", sources: [tiles.cu], language: cuda,
     tunables: {BLOCK_M: [16, 32, 64, 128, 256], BLOCK_N: [32, 64, 128, 256], BLOCK_K: [16, 32, 64, 128],
                GROUP_M: [4, 8], num_warps: [4, 8], num_stages: [2, 3, 4], vendors_own: [0, 1]},
     default: {BLOCK_M: 128, BLOCK_N: 64, BLOCK_K: 16, GROUP_M: 8, num_warps: 8, num_stages: 2}}
  - {name: apart, plan: "tiles.py:plan", sources: [tiles.cu], language: cuda, batch_invariant: false,
     tunables: {BLOCK_M: [64, 128]}, default: {BLOCK_M: 64}}
  - {name: torch, run: "torch_impl.py:product", language: torch}
"""

PLAN = """
from pathlib import Path
from portable.plan import Launch, NativeKernel, Plan, Pointer, Rejected

SOURCE = Path(__file__).with_name("tiles.cu")

def plan(call):
    c = {"BLOCK_N": 64, "BLOCK_K": 16, "GROUP_M": 8, "num_warps": 4, "num_stages": 2, **call.config}
    shared = (c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_K"] * 2 * c["num_stages"]
    if shared > call.device.shared_memory:
        return Rejected(f"needs {shared} bytes of shared memory")
    out = call["c"].shape
    blocks = -(-out[-2] // c["BLOCK_M"]) * -(-out[-1] // c["BLOCK_N"])
    kernel = NativeKernel(SOURCE, "tiles", 32 * c["num_warps"], tuple(c.items()), shared)
    return Plan((Launch(kernel, (blocks, 1, 1), tuple((name, Pointer(name)) for name in "abc")),))
"""

KERNEL = """
extern "C" __global__ void tiles(const void* a, const void* b, void* c) {}
"""

REFERENCE = """
def product(a, b, *, precision="ieee"):
    return a @ b

def error_scale(a, b, *, precision="ieee"):
    return {"c": (a.square() @ b.square()).sqrt()}
"""


@pytest.fixture
def product(tmp_path, monkeypatch):
    """The op `product` on the search path, and a user's folder of configs that is empty."""
    folder = tmp_path / "ops" / "product"
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "tiles.py").write_text(PLAN)
    (folder / "tiles.cu").write_text(KERNEL)
    (folder / "reference.py").write_text(textwrap.dedent(REFERENCE))
    (folder / "torch_impl.py").write_text("def product(a, b, precision='ieee'):\n    return a @ b\n")
    monkeypatch.setenv("PORTABLE_KERNEL_PATH", str(tmp_path / "ops"))
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PORTABLE_TUNED_DIR", str(tmp_path / "mine"))
    _fresh()
    yield registry.spec("product")
    monkeypatch.undo()
    _fresh()


def _fresh() -> None:
    fresh()
    lookup.entries.cache_clear()
