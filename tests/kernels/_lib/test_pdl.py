"""Programmatic dependent launch: which kernels use it, and that they wait before they touch memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from portable.backends.cuda.backend import CudaBackend
from portable.backends.cuda.disassembly import mnemonics
from portable.commands import check
from portable.kernels.matmul.simt import simt_plan
from portable.kernels.matmul.sm90 import realigned_plan, skinny_plan, splitk_plan, wgmma_plan
from portable.kernels.matmul.triton import plan
from portable.plan import Launch, NativeKernel, Plan, Rejected, TritonKernel
from portable.runtime import build
from portable.spec import registry
from tests.kernels.matmul.test_plans import H200, half, make_call

# PTX's griddepcontrol.wait and launch_dependents, and what touches global memory, in Hopper's machine code.
WAIT, RELEASE = "ACQBULK", "PREEXIT"
TOUCHES = ("LDG", "LD.E", "STG", "ST.E", "UTMALDG", "UTMASTG", "LDGSTS", "ATOM", "RED")

FLOAT32 = ("matmul_transpose", "matmul_simt_tma")
FEW = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 256, "GROUP_M": 1, "num_warps": 4, "num_stages": 4}
MANY = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 4}


def wide(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def launches(planned: Plan | Rejected) -> tuple[Launch, ...]:
    assert isinstance(planned, Plan), planned
    return planned.launches


def triton_launches(a: torch.Tensor, b: torch.Tensor, config: dict[str, Any]) -> tuple[Launch, ...]:
    return launches(plan.plan(replace(make_call(a, b), config=config)))


PDL_LAUNCHES = {
    "one tile a block": lambda: launches(wgmma_plan.plan(make_call(half(1024, 1024), half(1024, 1024)))),
    "many tiles": lambda: launches(wgmma_plan.plan(make_call(half(4096, 512), half(512, 4096)))),
    "tiles divided in clusters": lambda: launches(
        splitk_plan.plan(make_call(half(256, 4096), half(4096, 256)))
    ),
    "divided tiles": lambda: launches(splitk_plan.plan(make_call(half(512, 16384), half(16384, 512)))),
    "realigned": lambda: launches(realigned_plan.plan(make_call(half(1111, 3333), half(3333, 2222)))),
    "few rows": lambda: launches(skinny_plan.plan(make_call(half(16, 8192), half(8192, 8192)))),
    "few rows, k in parts": lambda: launches(skinny_plan.plan(make_call(half(16, 4096), half(4096, 4096)))),
    "float32": lambda: launches(simt_plan.plan(make_call(wide(4096, 512), wide(512, 4096)))),
    "Triton, descriptors": lambda: triton_launches(half(4096, 512), half(512, 4096), MANY),
    "Triton, pointers": lambda: triton_launches(half(16, 8192), half(8192, 8192), FEW),
}


def compiled(launch: Launch) -> list[str]:
    """The names of a launch's machine instructions, in order."""
    backend = CudaBackend(registry.vendors()["cuda"])
    names = ("a", "b", "c", "a_realigned", "b_realigned", "a_transposed", "b_transposed")
    dtype = "float32" if launch.kernel.name in FLOAT32 else "bfloat16"
    code = build.code_object(launch, dict.fromkeys(names, dtype), backend, H200)
    assert code.pdl == launch.kernel.pdl
    return mnemonics(code.binary)


@pytest.mark.slow
@pytest.mark.parametrize("case", PDL_LAUNCHES)
def test_a_pdl_kernel_waits_before_it_touches_memory(case):
    for launch in PDL_LAUNCHES[case]():
        assert launch.kernel.pdl
        code = compiled(launch)
        first = min(i for i, name in enumerate(code) if name.startswith(TOUCHES))
        assert RELEASE in code and code.index(WAIT) < first


@pytest.mark.slow
@pytest.mark.parametrize("op", registry.op_folders())
def test_every_op_waits_before_it_touches_memory(op):
    """The kernels of the op's demo call, or of its first bench call. A weight that is promised to be constant
    is the exception."""
    found = [
        job for job in check.jobs([op], check.targets(["sm_90a"]), quick=True) if isinstance(job, check.Job)
    ]
    for job in found:
        if job.launch.kernel.pdl and job.implementation != "skinny_constant_weight":
            binary = build.code_object(job.launch, dict(job.dtypes), job.backend, job.device).binary
            code = mnemonics(binary)
            first = min(i for i, name in enumerate(code) if name.startswith(TOUCHES))
            assert code.index(WAIT) < first, job.kernel


def test_what_a_decode_step_launches_uses_pdl():
    ops = (
        "rms_norm",
        "fused_add_rms_norm",
        "rope",
        "kv_cache_write",
        "qk_norm_rope_kv_write",
        "gated_activation",
    )
    for op in ops:
        found = check.jobs([op], check.targets(["sm_90a"]), quick=True)
        jobs = [job for job in found if isinstance(job, check.Job)]
        assert {job.implementation for job in jobs} >= {"cpp", "triton"}, op
        assert all(job.launch.kernel.pdl for job in jobs), op


def test_no_pdl_with_several_blocks_a_multiprocessor():
    """2026-11-22, H200: two blocks a multiprocessor, with PDL 16x14336x4096 0.92 of torch, without 1.04."""
    (several,) = launches(skinny_plan.plan(make_call(half(64, 8192), half(8192, 28672))))
    assert isinstance(several.kernel, NativeKernel) and not several.kernel.pdl
    defines = dict(several.kernel.defines)
    assert (defines["RESIDENT"], defines["CONSTANT_W"]) == (2, 0)
    (few,) = triton_launches(half(16, 4096), half(4096, 14336), {**FEW, "BLOCK_K": 64})
    assert isinstance(few.kernel, TritonKernel) and not few.kernel.pdl
    assert dict(few.kernel.constants)["PDL"] is False


def test_the_second_launch_of_divided_tiles_does_not_crowd():
    """Its PDL blocks would all start on the multiprocessors that the first leaves idle. 2026-11-22, H200:
    512x512x16384 0.80 of torch so, 0.86 spread evenly."""
    _, total = launches(splitk_plan.plan(make_call(half(512, 16384), half(16384, 512))))
    assert isinstance(total.kernel, NativeKernel)
    blocks = total.grid[0] * total.grid[1]
    each = H200.shared_memory // total.kernel.shared
    assert blocks == 256 and each == 2
