"""adamw in Triton: a program takes a chunk of one tensor, or of a tensor of a table."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.plans.row_class import AMD, MAX_GRID
from portable.kernels._lib.triton.rows import UNFUSED, divisible, setting, warps
from portable.kernels.adamw.chunks import CHUNK
from portable.kernels.adamw.native import TENSORS, numbers, steps, stochastic, unit_of, wrapped
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

PER_THREAD = 8
PER_THREAD_AND_FEW_REGISTERS, FEW_REGISTERS = 4, 64
"""On NVIDIA's GPUs, where elements are neighbours and neither scaled nor rounded by chance: 8 elements take
109 to 122 registers, so that a multiprocessor of Hopper has 512 threads; with 4 and so many it has 1024."""
NUMBERS = ("beta2", "rest1", "rest2", "eps", "weight_decay", "beta1_bits", "beta2_bits", "seed")


@triton.jit
def power(base_bits, exponent):
    """base^exponent in float64 by squaring, as the C++ kernel has it."""
    factor = base_bits.to(tl.float64, bitcast=True)
    result = factor * 0.0 + 1.0
    while exponent > 0:
        result = tl.where((exponent & 1) == 1, result * factor, result)
        factor *= factor
        exponent = exponent >> 1
    return result


@triton.jit
def rounded_by(x, sixteen_bits):
    """float32 as the bfloat16 above or below; an infinity and a NaN as they are."""
    bits = x.to(tl.uint32, bitcast=True)
    finite = (bits & 0x7F800000) != 0x7F800000
    moved = ((bits + sixteen_bits) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where(finite, moved, x)


@triton.jit
def random_words(start, number, step, seed, BLOCK: tl.constexpr):
    """The word of each of BLOCK elements from `start` on, a multiple of 4: four elements share a counter."""
    group = start // 4 + tl.arange(0, BLOCK // 4)
    zero = (group * 0).to(tl.uint32)
    c0, c1 = (group & 0xFFFFFFFF).to(tl.uint32), (group >> 32).to(tl.uint32)
    c2, c3 = zero + number.to(tl.uint32), zero + step.to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, c0, c1, c2, c3)  # pyright: ignore[reportGeneralTypeIssues]
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def step_chunk(
    param_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, param_step, grad_step, exp_avg_step, exp_avg_sq_step,
    start, count, decay, step_size, inverse_root2, scale, number, t,
    beta2, rest1, rest2, eps, seed,
    SCALED: tl.constexpr, MAXIMIZE: tl.constexpr, STOCHASTIC: tl.constexpr,
    UNIT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`count` elements, whose first is element `start` of the tensor and at the pointers; with UNIT > 1 they
    are neighbours, the pointers aligned and `count` a multiple of it."""
    for base in range(0, CHUNK, BLOCK):
        at = base + tl.arange(0, BLOCK)
        mask = at < divisible(count, UNIT)
        if UNIT > 1:
            ps, gs, ms, vs = param_ptr + at, grad_ptr + at, exp_avg_ptr + at, exp_avg_sq_ptr + at
        else:
            far = at.to(tl.int64)
            ps, gs = param_ptr + far * param_step, grad_ptr + far * grad_step
            ms, vs = exp_avg_ptr + far * exp_avg_step, exp_avg_sq_ptr + far * exp_avg_sq_step
        p = tl.load(ps, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(gs, mask=mask, other=0.0).to(tl.float32)
        m = tl.load(ms, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(vs, mask=mask, other=0.0).to(tl.float32)
        if SCALED:
            g = tl.div_rn(g, g * 0.0 + scale)
        if MAXIMIZE:
            g = -g
        decayed = tl.fma(-decay, p, p)
        m = tl.fma(rest1, g - m, m)
        v = tl.fma(rest2 * g, g, beta2 * v)
        denominator = tl.fma(tl.sqrt_rn(v), inverse_root2, eps)
        p = tl.fma(-step_size, tl.div_rn(m, denominator), decayed)
        if STOCHASTIC:
            words = random_words(start + base, number, t, seed, BLOCK)
            if param_ptr.dtype.element_ty == tl.bfloat16:
                p = rounded_by(p, words & 0xFFFF)
            if exp_avg_sq_ptr.dtype.element_ty == tl.bfloat16:
                v = rounded_by(v, words >> 16)
        tl.store(ps, p.to(param_ptr.dtype.element_ty), mask=mask)
        tl.store(ms, m.to(exp_avg_ptr.dtype.element_ty), mask=mask)
        tl.store(vs, v.to(exp_avg_sq_ptr.dtype.element_ty), mask=mask)


@triton.jit
def factors(step_ptr, lr_ptr, weight_decay, beta1_bits, beta2_bits):
    """What a step makes of the parameters for one tensor: lr * weight_decay, lr / (1 - beta1^t),
    1 / sqrt(1 - beta2^t) and t."""
    t = tl.load(step_ptr).to(tl.int32)
    lr = tl.load(lr_ptr)
    correction1 = (1.0 - power(beta1_bits, t)).to(tl.float32)
    correction2 = (1.0 - power(beta2_bits, t)).to(tl.float32)
    return lr * weight_decay, tl.div_rn(lr, correction1), tl.div_rn(1.0, tl.sqrt_rn(correction2)), t


@triton.jit
def adamw_one(
    param_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, step_ptr, lr_ptr, grad_scale_ptr, found_inf_ptr,
    size, number, param_step, grad_step, exp_avg_step, exp_avg_sq_step,
    beta2, rest1, rest2, eps, weight_decay, beta1_bits, beta2_bits, seed,
    SCALED: tl.constexpr, FOUND_INF: tl.constexpr, MAXIMIZE: tl.constexpr, STOCHASTIC: tl.constexpr,
    UNIT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * CHUNK
    count = tl.minimum(size - start, CHUNK).to(tl.int32)
    if FOUND_INF:
        count = tl.where(tl.load(found_inf_ptr) == 0, count, 0)
    scale = 1.0
    if SCALED:
        scale = tl.load(grad_scale_ptr)
    decay, step_size, inverse_root2, t = factors(  # pyright: ignore[reportGeneralTypeIssues]
        step_ptr, lr_ptr, weight_decay, beta1_bits, beta2_bits
    )
    if (UNIT > 1) and (count % UNIT == 0):
        step_chunk(
            param_ptr + start, grad_ptr + start, exp_avg_ptr + start, exp_avg_sq_ptr + start, 1, 1, 1, 1,
            start, count, decay, step_size, inverse_root2, scale, number, t,
            beta2, rest1, rest2, eps, seed, SCALED, MAXIMIZE, STOCHASTIC, UNIT, CHUNK, BLOCK,
        )  # fmt: skip
    else:
        step_chunk(
            param_ptr + start * param_step, grad_ptr + start * grad_step,
            exp_avg_ptr + start * exp_avg_step, exp_avg_sq_ptr + start * exp_avg_sq_step,
            param_step, grad_step, exp_avg_step, exp_avg_sq_step,
            start, count, decay, step_size, inverse_root2, scale, number, t,
            beta2, rest1, rest2, eps, seed, SCALED, MAXIMIZE, STOCHASTIC, 1, CHUNK, BLOCK,
        )  # fmt: skip


@triton.jit
def adamw_table(
    param_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, step_ptr, lr_ptr, grad_scale_ptr, found_inf_ptr,
    tensors_ptr, chunks_ptr, param_step, grad_step, exp_avg_step, exp_avg_sq_step,
    beta2, rest1, rest2, eps, weight_decay, beta1_bits, beta2_bits, seed,
    SCALED: tl.constexpr, FOUND_INF: tl.constexpr, MAXIMIZE: tl.constexpr, STOCHASTIC: tl.constexpr,
    UNIT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = chunks_ptr + tl.program_id(0).to(tl.int64) * 2
    row = tensors_ptr + tl.load(chunk).to(tl.int64) * 7
    start = divisible(tl.load(chunk + 1).to(tl.int64), CHUNK)
    size, at_param, at_grad = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    at_exp_avg, at_exp_avg_sq, at_step, number = (
        tl.load(row + 3), tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    )  # fmt: skip
    count = tl.minimum(size - start, CHUNK).to(tl.int32)
    if FOUND_INF:
        count = tl.where(tl.load(found_inf_ptr) == 0, count, 0)
    if count > 0:
        scale = 1.0
        if SCALED:
            scale = tl.load(grad_scale_ptr)
        decay, step_size, inverse_root2, t = factors(  # pyright: ignore[reportGeneralTypeIssues]
            step_ptr + at_step, lr_ptr, weight_decay, beta1_bits, beta2_bits
        )
        together = at_param | at_grad | at_exp_avg | at_exp_avg_sq | count
        if (UNIT > 1) and (together % UNIT == 0):
            step_chunk(
                param_ptr + (divisible(at_param, UNIT) + start),
                grad_ptr + (divisible(at_grad, UNIT) + start),
                exp_avg_ptr + (divisible(at_exp_avg, UNIT) + start),
                exp_avg_sq_ptr + (divisible(at_exp_avg_sq, UNIT) + start), 1, 1, 1, 1,
                start, count, decay, step_size, inverse_root2, scale, number, t,
                beta2, rest1, rest2, eps, seed, SCALED, MAXIMIZE, STOCHASTIC, UNIT, CHUNK, BLOCK,
            )  # fmt: skip
        else:
            step_chunk(
                param_ptr + (at_param + start) * param_step, grad_ptr + (at_grad + start) * grad_step,
                exp_avg_ptr + (at_exp_avg + start) * exp_avg_step,
                exp_avg_sq_ptr + (at_exp_avg_sq + start) * exp_avg_sq_step,
                param_step, grad_step, exp_avg_step, exp_avg_sq_step,
                start, count, decay, step_size, inverse_root2, scale, number, t,
                beta2, rest1, rest2, eps, seed, SCALED, MAXIMIZE, STOCHASTIC, 1, CHUNK, BLOCK,
            )  # fmt: skip


def _launch(call: Call, function: Any, own: list[tuple[str, Argument]], blocks: int) -> Launch:
    unit, block = unit_of(call), setting(call, "TILE")
    constants: dict[str, Any] = {
        "SCALED": call.has("grad_scale"),
        "FOUND_INF": call.has("found_inf"),
        "MAXIMIZE": call.params["maximize"],
        "STOCHASTIC": stochastic(call),
        "UNIT": unit,
        "CHUNK": CHUNK,
        "BLOCK": block,
    }
    args: list[tuple[str, Argument]] = [(f"{name}_ptr", Pointer(name, unit > 1)) for name in TENSORS]
    args += [("step_ptr", Pointer("step")), ("lr_ptr", Pointer("lr"))]
    for name in ("grad_scale", "found_inf"):
        if call.has(name):
            args.append((f"{name}_ptr", Pointer(name)))
        else:
            constants[f"{name}_ptr"] = None
    per_thread, options = PER_THREAD, UNFUSED
    plain = not constants["SCALED"] and not constants["STOCHASTIC"]
    if call.device.vendor != AMD and unit > 1 and plain:
        per_thread, options = PER_THREAD_AND_FEW_REGISTERS, (*UNFUSED, ("maxnreg", FEW_REGISTERS))
    kernel = TritonKernel(
        function, tuple(constants.items()), warps(call.device, block // per_thread), options=options
    )
    return Launch(kernel, (blocks, 1, 1), (*args, *own, *steps(call), *numbers(call)))


def forward(call: Call) -> Plan | Rejected:
    """Plan the step of one tensor."""
    size = call.axes["N"]
    if ceil_div(size, CHUNK) > MAX_GRID:
        return Rejected(f"{size} elements: more than {MAX_GRID} programs of {CHUNK}")
    own: list[tuple[str, Argument]] = [
        ("size", Scalar("i64", size)), ("number", Scalar("i32", wrapped(call.params["number"]))),
    ]  # fmt: skip
    return Plan((_launch(call, adamw_one, own, ceil_div(size, CHUNK)),))


def multi_tensor(call: Call) -> Plan | Rejected:
    """Plan the step of the tensors of a table: a program per chunk."""
    own: list[tuple[str, Argument]] = [("tensors_ptr", Pointer("tensors")), ("chunks_ptr", Pointer("chunks"))]
    return Plan((_launch(call, adamw_table, own, call.axes["C"]),))
