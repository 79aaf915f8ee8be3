"""Stand-ins for liger-kernel, flag-gems and quack-kernels, which need a GPU.

The functions have the signatures and checks of liger-kernel 0.8.5, flag-gems 5.0.2 and quack-kernels 0.6.5
(read on 2026-11-21; of quack's gemm and gemm_act the arguments that matter here), and compute in torch what
those document. Each library is a dictionary of its modules' members by module name.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def stats_of(x, eps, centred):
    x = x.float()
    mean = x.mean(-1) if centred else torch.zeros_like(x[..., 0])
    return mean, torch.rsqrt((x - mean[..., None]).square().mean(-1) + eps)


def normed(x, mean, rstd):
    return (x.float() - mean.reshape(*x.shape[:-1], 1)) * rstd.reshape(*x.shape[:-1], 1)


def scaled(n, weight, bias=None):
    y = n if weight is None else n * weight.float()
    return y if bias is None else y + bias.float()


def norm_grads(dy, x, weight, mean, rstd, centred):
    n, r = normed(x, mean, rstd), rstd.reshape(*x.shape[:-1], 1)
    g = scaled(dy.float(), weight)
    own = g.mean(-1, keepdim=True) if centred else 0
    dx = r * (g - own - n * (g * n).mean(-1, keepdim=True))
    width = x.shape[-1]
    return dx.to(x.dtype), (dy * n).reshape(-1, width).sum(0), dy.reshape(-1, width).sum(0)


def silu_grads(gate, up, dy):
    s = torch.sigmoid(gate)
    return dy * up * s * (1 + gate * (1 - s)), dy * gate * s


def softmax_grad(dy, y):
    return y * (dy - (dy * y).sum(-1, keepdim=True))


def function_of(forward):
    """An autograd Function of which only `apply` is used."""
    return type("Function", (), {"apply": staticmethod(forward)})


def liger():
    def rms_norm_forward(X, W, eps, offset, casting_mode, row_mode):
        assert casting_mode == "gemma" and offset == 0.0 and row_mode is None
        rows = X.view(-1, X.shape[-1])
        mean, rstd = stats_of(rows, eps, False)
        y = scaled(normed(rows, mean, rstd), W).to(X.dtype)
        return y.view(X.shape), rows, rstd, 64, 4, 1

    def rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
        return rms_norm_forward(X, W, eps, offset, casting_mode, row_mode)[0]

    def rms_norm_backward(
        dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode, needs_dw=None
    ):
        assert (X.dim(), casting_mode, BLOCK_SIZE, num_warps, in_place) == (2, 1, 64, 4, False)
        dx, dw, _ = norm_grads(dY.view(X.shape), X, W, torch.zeros_like(RSTD), RSTD, False)
        return dx.view(dY.shape), None if W is None else dw

    def fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=False):
        assert not in_place
        return rms_norm(X + R, W, eps, offset, casting_mode), X + R

    def rope(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
        """In place where heads lie behind tokens; tables hold every column twice."""
        assert position_ids is None and cos.shape == (q.shape[2], q.shape[3])
        for x in (q, k):
            half = x.shape[-1] // 2
            x.copy_(x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin)
        return q, k

    def layer_norm_forward(X, W, B, eps):
        rows = X.view(-1, X.shape[-1])
        mean, rstd = stats_of(rows, eps, True)
        y = scaled(normed(rows, mean, rstd), W, B).to(X.dtype)
        assert X.shape[-1] == W.shape[0] and B.stride(0) == 1
        return y.view(X.shape), rows, mean, rstd, 64, 4

    def layer_norm_backward(dY, X, W, B, Mean, RSTD, needs_dw=None, needs_db=None):
        dx, dw, db = norm_grads(dY.view(X.shape), X, W, Mean, RSTD, True)
        return dx.view(dY.shape), dw, db

    def silu_mul(a, b, gate_multiplier=1.0, down_multiplier=1.0):
        return F.silu(a) * b

    def softmax_forward(x):
        return torch.softmax(x, -1), 64, 4, False

    def softmax_backward(dy, y, BLOCK_SIZE, num_warps, multi_block_launch):
        assert (BLOCK_SIZE, num_warps, multi_block_launch) == (64, 4, False)
        return softmax_grad(dy, y)

    def swiglu_fused_gate_up_backward(y, dc, in_place=False):
        half = y.shape[-1] // 2
        gate, up = y.view(-1, 2 * half).chunk(2, -1)
        return torch.cat(silu_grads(gate, up, dc.view(-1, half)), -1)

    return {
        "liger_kernel": {},
        "liger_kernel.ops": {
            "LigerRMSNormFunction": function_of(rms_norm), "rms_norm_forward": rms_norm_forward,
            "rms_norm_backward": rms_norm_backward, "layer_norm_forward": layer_norm_forward,
            "LigerLayerNormFunction": function_of(lambda X, W, B, eps: layer_norm_forward(X, W, B, eps)[0]),
            "layer_norm_backward": layer_norm_backward, "LigerSiLUMulFunction": function_of(silu_mul),
            "LigerFusedAddRMSNormFunction": function_of(fused_add_rms_norm),
            "LigerRopeFunction": function_of(rope),
            "LigerSoftmaxFunction": function_of(lambda input_: softmax_forward(input_)[0]),
        },
        "liger_kernel.ops.softmax": {
            "_softmax_forward": softmax_forward, "_softmax_backward": softmax_backward
        },
        "liger_kernel.ops.swiglu": {"swiglu_fused_gate_up_backward": swiglu_fused_gate_up_backward},
    }  # fmt: skip


def flag_gems():
    def rms_norm_forward(x, normalized_shape, weight, eps=1e-5):
        mean, rstd = stats_of(x, eps, False)
        return scaled(normed(x, mean, rstd), weight.contiguous()).to(x.dtype), rstd.reshape(-1)

    def rms_norm(x, normalized_shape, weight, eps=1e-5):
        return rms_norm_forward(x, normalized_shape, weight, eps)[0]

    def rms_norm_backward(dy, x, inv_rms, normalized_shape, weight, eps=1e-5):
        dx, dw, _ = norm_grads(dy, x, weight, torch.zeros_like(inv_rms), inv_rms, False)
        return dx, dw.to(x.dtype)

    def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
        mean, rstd = (each.to(input.dtype) for each in stats_of(input, eps, True))
        y = scaled(normed(input, mean, rstd), weight, bias).to(input.dtype)
        return y, mean.reshape(-1), rstd.reshape(-1)

    def layer_norm_backward(
        grad_out, input, normalized_shape, mean, rstd, weight=None, bias=None, output_mask=None
    ):
        assert output_mask is not None
        assert input.shape[0] == mean.numel()  # it takes the first dimension for the number of rows
        grads = norm_grads(grad_out, input, weight, mean, rstd, True)
        return tuple(grad if asked else None for grad, asked in zip(grads, output_mask, strict=True))

    def softmax(self, dim, half_to_float=False):
        return torch.softmax(self, dim)

    def softmax_backward(grad_output, output, dim, input_dtype):
        return torch.ops.aten._softmax_backward_data(grad_output, output, dim, input_dtype)

    def mm(a, b):
        assert a.dim() == b.dim() == 2
        return a @ b

    def bmm(A, B):
        assert A.dim() == B.dim() == 3
        return A @ B

    def addmm(bias, mat1, mat2, *, beta=1, alpha=1):
        return torch.addmm(bias, mat1, mat2)

    def gelu(self, *, approximate="none"):
        return F.gelu(self, approximate=approximate)

    def gelu_backward(grad_output, self, *, approximate="none"):
        return torch.ops.aten.gelu_backward(grad_output, self, approximate=approximate)

    def silu_backward(grad_output, self):
        return torch.ops.aten.silu_backward(grad_output, self)

    def threshold_backward(grad_output, self, threshold):
        return torch.ops.aten.threshold_backward(grad_output, self, threshold)

    def silu_and_mul_grad_kernel(x, y, dgrad):
        return silu_grads(x, y, dgrad)

    top = [rms_norm_forward, rms_norm, rms_norm_backward, layer_norm, layer_norm_backward, softmax,
           softmax_backward, mm, bmm, addmm, gelu, gelu_backward, silu_backward,
           threshold_backward]  # fmt: skip
    return {
        "flag_gems": {
            **{each.__name__: each for each in top},
            "silu_and_mul": lambda A, B: F.silu(A) * B,
            "relu": lambda self: torch.relu(self),
            "silu": lambda self: F.silu(self),
        },
        "flag_gems.fused": {},
        "flag_gems.fused.silu_and_mul": {"silu_and_mul_grad_kernel": silu_and_mul_grad_kernel},
    }


def quack():
    def rmsnorm(
        x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
        prenorm=False, weight_offset=0.0,
    ):  # fmt: skip
        return rmsnorm_fwd(x, weight, eps=eps)[0]

    def rmsnorm_fwd(
        x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
        store_rstd=False, weight_offset=0.0,
    ):  # fmt: skip
        mean, rstd = stats_of(x, eps, False)
        return scaled(normed(x, mean, rstd), weight).to(x.dtype), x, rstd if store_rstd else None

    def rmsnorm_bwd(
        x, weight, dout, rstd, dresidual_out=None, has_bias=False, has_residual=False, weight_offset=0.0
    ):
        assert x.dim() in (2, 3) and rstd is not None
        dx, dw, _ = norm_grads(dout, x, weight, torch.zeros_like(rstd), rstd, False)
        return dx, None if weight is None else dw, None, None

    def layernorm_fwd(x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False):
        assert x.dim() == 2, "Input must be 2D"
        assert weight.dtype == torch.float32, "Weight must be float32"
        mean, rstd = stats_of(x, eps, True)
        y = scaled(normed(x, mean, rstd), weight, bias).to(x.dtype)
        return (y, rstd, mean) if return_rstd and return_mean else y

    def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
        assert x.dim() == 2, "Input must be 2D"
        dx, dw, db = norm_grads(dout, x, weight, mean, rstd, True)
        return dx, dw, db if has_bias else None

    def softmax(x):
        assert x.dim() == 2, "Input must be 2D"
        return torch.softmax(x, -1)

    def softmax_bwd(dy, y):
        assert dy.dim() == 2 and y.dim() == 2
        return softmax_grad(dy, y)

    def gemm(A, B, out=None, bias=None, alpha=1.0, tuned=True):
        return A @ B if bias is None else torch.addmm(bias, A, B)

    def gemm_act(A, B, C=None, bias=None, activation=None, alpha=1.0, store_preact=True, tuned=True):
        assert activation is not None
        z = gemm(A, B, bias=bias)
        acts = {
            "relu": torch.relu, "silu": F.silu, "gelu_erf": F.gelu,
            "gelu_tanh_approx": lambda z: F.gelu(z, approximate="tanh"),
        }  # fmt: skip
        return z if store_preact else None, acts[activation](z)

    return {
        "quack": {"rmsnorm": rmsnorm, "softmax": softmax},
        "quack.rmsnorm": {
            "rmsnorm_fwd": rmsnorm_fwd, "rmsnorm_bwd": rmsnorm_bwd, "layernorm_fwd": layernorm_fwd,
            "layernorm_bwd": layernorm_bwd,
        },
        "quack.softmax": {"softmax_bwd": softmax_bwd},
        "quack.gemm_interface": {"gemm": gemm, "gemm_act": gemm_act},
    }  # fmt: skip
