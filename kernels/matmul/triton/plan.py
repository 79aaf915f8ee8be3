"""One matrix product in Triton for every layout, dtype and vendor, with linear's epilogue.

Where TMA can load the operands, `descriptors.py` plans the call. Elsewhere each program of `matmul_tile`
computes one BLOCK_M x BLOCK_N tile of one matrix of the batch, with loads through pointers. `align_copy.py`
transposes operands first where that pays. Compiled code depends on dtype, layouts (which stride is 1), the
alignment class UNIT, whether K fills its last block, whether a stride exceeds 32 bits, the epilogue and the
config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import MAX_GRID, divisible
from portable.kernels.matmul.problem import Operand, Problem, from_matmul
from portable.kernels.matmul.triton.align_copy import realigned
from portable.kernels.matmul.triton.descriptors import c_columns, plan_descriptors, unfit, uses_pdl
from portable.kernels.matmul.triton.tile import activate, bias_of, store_both, tile_starts
from portable.layout import ceil_div
from portable.plan import Argument, Call, Device, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
COMPILER = ("num_warps", "num_stages")
ASYNC_COPY = "knob.amd.use_async_copy"  # a pipelined loop's loads go straight to LDS
# Elsewhere precision="tf32" runs IEEE products, which are more accurate.
TF32_ARCHES = ("sm_", "gfx942")


@triton.jit
def matmul_tile(
    a_ptr, a_row, a_col, a_outer, a_inner,
    b_ptr, b_row, b_col, b_outer, b_inner,
    c_ptr, c_row, c_col, c_outer, c_inner,
    bias_ptr, z_ptr, M, N, K, tiles, inner_batch,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, C_UNIT: tl.constexpr,
    UNIT: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """One tile of c = activation(a @ b + bias), and of the optional preactivation z, which has c's layout and
    no batch. A_UNIT, B_UNIT and C_UNIT name the index with unit stride ("row", "col" or None); that stride is
    the constant 1. GATED: c = activation(a @ gate) * (a @ up); b is gate, and up lies b_outer further."""
    enter_pdl(PDL)
    pid = tl.program_id(0)
    batch = (pid // tiles).to(tl.int64)
    pid = pid % tiles
    outer = batch // inner_batch
    inner = batch % inner_batch
    a_ptr += outer * divisible(a_outer, UNIT) + inner * divisible(a_inner, UNIT)
    b_ptr += outer * divisible(b_outer, UNIT) + inner * divisible(b_inner, UNIT)
    c_ptr += outer * divisible(c_outer, UNIT) + inner * divisible(c_inner, UNIT)

    start_m, start_n = tile_starts(pid, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    if A_UNIT == "col":
        a_row = divisible(a_row, UNIT)
        K = divisible(K, UNIT)
    else:
        a_col = divisible(a_col, UNIT)
        M = divisible(M, UNIT)
    if B_UNIT == "col":
        b_row = divisible(b_row, UNIT)
        N = divisible(N, UNIT)
    else:
        b_col = divisible(b_col, UNIT)
        K = divisible(K, UNIT)
    if C_UNIT == "col":
        c_row = divisible(c_row, UNIT)
        N = divisible(N, UNIT)

    # Tile bases are 64-bit; offsets within a tile only where a stride is too large for 32 bits.
    a_ptr += start_m.to(tl.int64) * a_row
    b_ptr += start_n.to(tl.int64) * b_col
    start = start_m.to(tl.int64) * c_row + start_n.to(tl.int64) * c_col
    c_ptr += start
    a_step = BLOCK_K * a_col
    b_step = BLOCK_K * b_row
    to_up = divisible(b_outer, UNIT)
    if not WIDE:
        a_row, a_col = narrow(a_row), narrow(a_col)
        b_row, b_col = narrow(b_row), narrow(b_col)
        c_row, c_col = narrow(c_row), narrow(c_col)
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    in_m = (offs_m < M - start_m)[:, None]
    in_n = (offs_n < N - start_n)[None, :]
    a_ptrs = a_ptr + (offs_m[:, None] * a_row + offs_k[None, :] * a_col)
    b_ptrs = b_ptr + (offs_k[:, None] * b_row + offs_n[None, :] * b_col)

    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if GATED:
        total_up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs, mask=in_m, other=0.0)
            b = tl.load(b_ptrs, mask=in_n, other=0.0)
        else:
            a = tl.load(a_ptrs, mask=in_m & (offs_k < K - k)[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=in_n & (offs_k < K - k)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        if GATED:
            if EVEN_K:
                b = tl.load(b_ptrs + to_up, mask=in_n, other=0.0)
            else:
                b = tl.load(b_ptrs + to_up, mask=in_n & (offs_k < K - k)[:, None], other=0.0)
            total_up = tl.dot(a, b, total_up, input_precision=PRECISION)
        a_ptrs += a_step
        b_ptrs += b_step

    if bias_ptr is not None:
        total += bias_of(bias_ptr + start_n, offs_n, N - start_n)[None, :]
    dtype: tl.constexpr = c_ptr.dtype.element_ty
    if z_ptr is None:
        within = offs_m[:, None] * c_row + offs_n[None, :] * c_col
        result = activate(total, ACTIVATION, dtype)
        if GATED:
            result *= total_up
        tl.store(c_ptr + within, result.to(dtype), mask=in_m & in_n)
    else:
        store_both(z_ptr + start, c_ptr, c_row, c_col, total, offs_m, 0, M - start_m, N - start_n, ACTIVATION,
                   EPILOGUE_SUBTILE)  # fmt: skip


@triton.jit
def narrow(stride):
    """A stride as a 32-bit integer; constants, and strides of 1, stay as they are."""
    return tl.cast(stride, tl.int32)


def plan(call: Call) -> Plan | Rejected:
    """Plan c = a @ b for the spec's a [*batch_a, M, K], b [*batch_b, K, N], c [*batch, M, N]."""
    problem = from_matmul(call)
    return problem if isinstance(problem, Rejected) else plan_problem(problem, call)


def plan_problem(problem: Problem, call: Call) -> Plan | Rejected:
    """The launches of a canonical problem, with the tile and compiler options of `call.config`."""
    if problem.c.unit_stride == "row" and problem.transposable:
        problem = problem.transposed()
    if None in (problem.a.unit_stride, problem.b.unit_stride):
        return Rejected("an operand has no unit stride in either of its last two dimensions")
    problem, copies = realigned(problem, call)
    found = plan_descriptors(problem, call) if unfit(problem, call) is None else plan_pointers(problem, call)
    if isinstance(found, Rejected) or not copies:
        return found
    launches = tuple(each.launch for each in copies)
    spaces = tuple(each.workspace for each in copies)
    return Plan((*launches, *found.launches), (*spaces, *found.workspaces))


def plan_pointers(problem: Problem, call: Call) -> Plan | Rejected:
    """One launch of `matmul_tile`."""
    unit = unit_of(problem)
    config = fitted(call.config, unit, call.device)
    needed = shared_bytes(problem, config, call.device)
    config["BLOCK_N"] = c_columns(problem, config)
    block_m, block_n, block_k = (config[name] for name in TILE[:3])
    tiles = ceil_div(problem.M, block_m) * ceil_div(problem.N, block_n)
    if rejected := too_large((problem.M, problem.N, problem.K), tiles * problem.batches, needed, call.device):
        return rejected

    pdl = uses_pdl(call.device, needed)
    operands = (problem.a, problem.b, problem.c)
    tf32 = problem.precision == "tf32" and call.device.arch.startswith(TF32_ARCHES)
    optional = (("bias_ptr", problem.bias), ("z_ptr", problem.preactivation))
    absent = [(name, None) for name, tensor in optional if not tensor]
    constants = [
        *layout_constants(problem, unit, block_k),
        *absent,
        ("ACTIVATION", problem.activation),
        # With the addresses of both stores at once, the unaligned class spilled 152 bytes a thread.
        ("EPILOGUE_SUBTILE", max(1, block_n // 32) if unit == 1 and arch_number(call.device) else 1),
        ("PRECISION", "tf32" if tf32 else "ieee"),
        *((name, config[name]) for name in TILE),
        ("PDL", pdl),
        ("GATED", problem.gated),
    ]
    options = [(name, value) for name, value in config.items() if name not in TILE + COMPILER]
    if unit > 1 and arch_number(call.device):
        # Without it ptxas aims for a higher occupancy and spills 8 to 24 bytes in some layouts. (The
        # unaligned class is the opposite: with more registers it hoists too many loads.)
        options.append(("maxnreg", 248))  # 255 leaves sm_100 one register short for silu
    warps, stages = (config[name] for name in COMPILER)
    if call.device.arch == "gfx950" and block_m * block_n >= 256 * 128:
        if unit > 1 and straight_to_lds(problem, config):
            options.append((ASYNC_COPY, True))
        else:
            stages = min(stages, 2)  # a third one is for what goes straight to LDS
    if call.device.arch == "gfx1100" and problem.dtype == "float32":
        stages = 1  # of two, Triton 3.6 and 3.7 leave out the wait for the stores to LDS (docs/found/)
    if unit == 1 and arch_number(call.device):
        # Measured by compiling, 2026-11-21: 24 bytes of stack in float32 with two stages, none with one;
        # 8 in float16 on sm_100 with four warps, none with room for 160 registers.
        if problem.dtype == "float32":
            stages = 1
        elif warps == 4 and arch_number(call.device) >= 100:
            options.append(("maxnreg", 160))
    kernel = TritonKernel(matmul_tile, tuple(constants), warps, stages, tuple(options))
    args: list[tuple[str, Argument]] = []
    for name, x in zip("abc", operands, strict=True):
        args += operand_args(name, x, aligned=unit > 1)
    if problem.bias:
        args.append(("bias_ptr", Pointer(problem.bias, unit > 1)))
    if problem.preactivation:
        args.append(("z_ptr", Pointer(problem.preactivation, unit > 1)))
    sizes = {"M": problem.M, "N": problem.N, "K": problem.K, "tiles": tiles, "inner_batch": problem.batch[1]}
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    return Plan((Launch(kernel, (tiles * problem.batches, 1, 1), tuple(args)),))


def too_large(
    sizes: Sequence[int], tiles: int, shared: int, device: Device, step: int = 256
) -> Rejected | None:
    """Why a product of sizes M, N and K, of so many tiles and bytes of shared memory, is beyond the kernel or
    the GPU; a tile or step along k has at most `step` rows or columns."""
    if max(sizes) > 2**31 - 1 - step:
        return Rejected("row and column indices exceed 32 bits")
    if tiles > MAX_GRID:
        return Rejected(f"{tiles} tiles exceed a grid of {MAX_GRID}")
    if shared > device.shared_memory:
        most = device.shared_memory
        return Rejected(f"the config needs {shared} bytes of shared memory; {device.arch} has {most}")
    return None


def layout_constants(problem: Problem, unit: int, block_k: int) -> list[tuple[str, Any]]:
    """What a tile's kernel is compiled for: which strides are 1, UNIT, EVEN_K, WIDE."""
    operands = (problem.a, problem.b, problem.c)
    return [
        *((f"{name}_{x.unit_stride}", 1) for name, x in zip("abc", operands, strict=True) if x.unit_stride),
        *((f"{name}_UNIT", x.unit_stride) for name, x in zip("ABC", operands, strict=True)),
        ("UNIT", unit),
        ("EVEN_K", problem.K % block_k == 0),
        ("WIDE", any(256 * max(x.row, x.col) >= 2**31 for x in operands)),
    ]


def straight_to_lds(problem: Problem, config: Mapping[str, Any]) -> bool:
    """Whether loads may skip registers: of whole tiles, and of as many steps as the loop loads before it.

    By the timing model, 2026-11-23, 4096^3 nn on gfx950: 145.5 us through registers, 127.9 straight to LDS,
    104.6 with three stages. Off by default in Triton 3.7. A load whose mask leaves a wave nothing is jumped
    over there, and the waits count it all the same: the emulated GPU faults 136x136x72, and 256x256x32 in
    three stages."""
    block_m, block_n, block_k = (config[name] for name in TILE[:3])
    whole = problem.M % block_m == 0 and problem.N % block_n == 0 and problem.K % block_k == 0
    return whole and max(1, config["num_stages"] - 1) * block_k <= problem.K


def operand_args(name: str, x: Operand, aligned: bool) -> list[tuple[str, Argument]]:
    """Pointer and strides of one operand; a unit stride is a constant of the kernel instead."""
    strides = [("row", x.row), ("col", x.col), ("outer", x.batch[0]), ("inner", x.batch[1])]
    args: list[tuple[str, Argument]] = [(f"{name}_ptr", Pointer(x.tensor, aligned))]
    return args + [(f"{name}_{key}", Scalar("i64", value)) for key, value in strides if key != x.unit_stride]


def unit_of(problem: Problem) -> int:
    """Elements of a in 16 bytes if every row of every operand starts and ends at a multiple of so many
    and of 16 bytes, else 1."""
    unit = 16 // problem.a.itemsize
    lengths = {
        problem.K if problem.a.unit_stride == "col" else problem.M,
        problem.N if problem.b.unit_stride == "col" else problem.K,
        problem.N,
    }
    aligned = (
        problem.c.unit_stride == "col"
        and all(x.aligned_to(16) and x.leading % unit == 0 for x in (problem.a, problem.b, problem.c))
        and problem.bias_alignment >= 16
    )
    return unit if aligned and all(length % unit == 0 for length in lengths) else 1


def fitted(config: Mapping[str, Any], unit: int, device: Device) -> dict[str, Any]:
    """The config, with BLOCK_K halved (16 at least) in the unaligned class until a thread loads at most 16
    elements at a time, and then BLOCK_N where there are 4 warps: each element needs a 64-bit pointer and a
    mask of its own, and a thread would spill one or the other."""
    config = dict(config)
    while crowded(config, unit, device) and config["BLOCK_K"] > 16:
        config["BLOCK_K"] //= 2
    if crowded(config, unit, device) and config["num_warps"] == 4:
        config["BLOCK_N"] //= 2
    return config


def crowded(config: Mapping[str, Any], unit: int, device: Device) -> bool:
    """Whether a thread loads more than 16 elements at a time, each with a pointer of its own."""
    threads = config["num_warps"] * device.warp_size
    return unit == 1 and (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] > 16 * threads


def shared_bytes(problem: Problem, config: Mapping[str, Any], device: Device) -> int:
    """An upper bound of the load pipeline's shared memory: the tiles of a and b in flight.

    Where copies into shared memory are asynchronous and the dot reads it while they run (sm_90 on,
    gfx950) there are `num_stages` of each, elsewhere one fewer, as one is held in registers or already
    consumed; gfx950 adds padding of up to 1/16 against bank conflicts.
    """
    stages = config["num_stages"]
    padded = device.arch == "gfx950"
    buffers = stages if padded or arch_number(device) >= 90 else max(1, stages - 1)
    elements = (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * buffers
    return (elements + (elements // 16 if padded else 0)) * problem.a.itemsize


def arch_number(device: Device) -> int:
    """90 of sm_90a, 100 of sm_100; 0 of an architecture not named so."""
    digits = device.arch.removeprefix("sm_").rstrip("af")
    return int(digits) if digits.isdigit() else 0
