"""Wrong steps of AdamW."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right, truncated

OP, MANY = "adamw", "adamw_multi_tensor"
CPP, TRITON = f"{OP}/{OP}.cu", f"{OP}/triton_impl.py"


def _step(**given):
    right(OP)(**given)


def _skipped(found_inf, **_):
    return found_inf is not None and found_inf.item() != 0


@mutant(OP, "weight decay after the update")
def decay_last(**given):
    _step(**{**given, "weight_decay": 0.0})
    if not _skipped(**given):
        given["param"].sub_(given["lr"] * given["weight_decay"] * given["param"])


@mutant(OP, "weight decay in the gradient, as Adam's")
def decay_in_gradient(**given):
    grad, scale = given["grad"], given["grad_scale"]
    more = given["weight_decay"] * given["param"] * (1 if scale is None else scale)
    grad = grad + (-more if given["maximize"] else more).to(grad.dtype)
    _step(**{**given, "grad": grad, "weight_decay": 0.0})


@mutant(OP, "weight decay without the learning rate")
def decay_alone(**given):
    _step(**{**given, "weight_decay": given["weight_decay"] / given["lr"].item()})


@mutant(OP, "no bias correction")
def no_correction(**given):
    _step(**{**given, "step": torch.full_like(given["step"], 1e7)})


@mutant(OP, "a step counted twice")
def twice(**given):
    _step(**{**given, "step": given["step"] + 1})


@mutant(OP, "betas exchanged")
def exchanged(**given):
    _step(**{**given, "beta1": given["beta2"], "beta2": given["beta1"]})


@mutant(OP, "maximize left out")
def minimize(**given):
    _step(**{**given, "maximize": False})


@mutant(OP, "gradients multiplied by the scale")
def multiplied(**given):
    scale = given["grad_scale"]
    _step(**{**given, "grad_scale": None if scale is None else 1 / scale})


@mutant(OP, "written although an overflow was found")
def overflow(**given):
    _step(**{**given, "found_inf": None})


@mutant(OP, "the first moment not written")
def not_written(**given):
    _step(**{**given, "exp_avg": given["exp_avg"].clone()})


@mutant(OP, "the parameter cut to bfloat16")
def cut(**given):
    param = given["param"]
    if param.dtype != torch.bfloat16 or given["stochastic_rounding"]:
        return _step(**given)
    wide = param.float()
    _step(**{**given, "param": wide})
    param.copy_(truncated(wide, torch.bfloat16))
    return None


@mutant(OP, "stochastic rounding left out")
def to_nearest(**given):
    _step(**{**given, "stochastic_rounding": False})


@mutant(OP, "stochastic rounding without the tensor's number")
def unnumbered(**given):
    _step(**{**given, "number": 0})


@mutant(MANY, "every tensor with the first one's step")
def one_step(**given):
    tensors = given["tensors"].clone()
    tensors[:, 5] = tensors[:1, 5]
    right(MANY)(**{**given, "tensors": tensors})


@mutant(MANY, "the first chunk of a tensor alone")
def first_chunks(**given):
    chunks = given["chunks"]
    right(MANY)(**{**given, "chunks": chunks[chunks[:, 1] == 0]})


source(
    *(OP, "cpp", "gfx942", "eps within the root"),
    Edit(CPP, "math_fma(math_sqrt(v), f.inverse_root2, own.eps)", "math_sqrt(v + own.eps) * f.inverse_root2"),
)
source(
    *(OP, "cpp", "gfx942", "the second moment of g instead of g^2"),
    Edit(CPP, "math_fma(own.rest2 * g, g, own.beta2 * e.v)", "math_fma(own.rest2, g, own.beta2 * e.v)"),
)
source(
    *(OP, "cpp", "gfx942", "the second correction without its root"),
    Edit(CPP, "math_sqrt(correction2)", "correction2"),
)
source(
    *(OP, "cpp", "gfx942", "a power of beta rounded to float32"),
    Edit(CPP, "static_cast<float>(1.0 - power(own.beta2_bits, t))",
         "1.0f - static_cast<float>(power(own.beta2_bits, t))"),
)  # fmt: skip
source(
    *(OP, "cpp", "gfx942", "the same random bits for all elements"),
    Edit(CPP, "int64_t group = (start + base + i) >> 2;", "int64_t group = 0;"),
)
source(
    *(OP, "cpp", "gfx942", "one word of the four"),
    Edit(CPP, "e[i + j].p = rounded_by(e[i + j].p, random.w[j] & 0xffffu)",
         "e[i + j].p = rounded_by(e[i + j].p, random.w[0] & 0xffffu)"),
)  # fmt: skip
source(
    *(OP, "cpp", "gfx1100", "random bits of one chunk for all"),
    Edit(CPP, "int64_t group = (start + base + i) >> 2;", "int64_t group = (base + i) >> 2;"),
)
source(
    *(OP, "cpp", "gfx942", "a chunk past the end"),
    Edit(CPP, "size - start < CHUNK ? static_cast<int>(size - start) : CHUNK", "CHUNK"),
)
source(
    *(MANY, "cpp", "gfx942", "the first moment where the parameter is"),
    Edit(CPP, "exp_avg += tensor[3] * exp_avg_step", "exp_avg += tensor[1] * exp_avg_step"),
)
source(
    *(MANY, "cpp", "gfx942", "the table's numbers left out of the random bits"),
    Edit(CPP, "static_cast<int>(tensor[6])", "0"),
)
source(
    *(OP, "triton", "gfx942", "words of four elements in another order"),
    Edit(TRITON, "tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))",
         "tl.interleave(tl.interleave(w0, w1), tl.interleave(w2, w3))"),
)  # fmt: skip
source(
    *(OP, "triton", "gfx942", "the moment's increment twice"),
    Edit(TRITON, "m = tl.fma(rest1, g - m, m)", "m = tl.fma(2 * rest1, g - m, m)"),
)
source(
    *(MANY, "triton", "gfx942", "unaligned tensors taken for aligned"),
    Edit(TRITON, "at_param | at_grad | at_exp_avg | at_exp_avg_sq | count", "count"),
)
