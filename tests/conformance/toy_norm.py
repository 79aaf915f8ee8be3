"""A toy op with one right and many wrong implementations, each wrong in a way seen in real kernels."""

from __future__ import annotations

from pathlib import Path

RIGHT = ("plain", "reordered", "backwards")
EXPECTED = {
    **dict.fromkeys(RIGHT, "Pass"),
    "narrow_only": "NotSupported",
    "eps_outside_root": "Fail.value",
    "short_mask": "Fail.value",
    "long_mask": "Fail.nonfinite",
    "half_wave": "Fail.value",
    "narrow_accumulation": "Fail.value",
    "truncation": "Fail.value",
    "rounded_before_weight": "Fail.value",
    "ignores_weight": "Fail.value",
    "ignores_strides": "Fail.nonfinite",
    "zeros": "Fail.value",
    "echo": "Fail.value",
    "unwritten_tail": "Fail.nonfinite",
    "stale_workspace": "Fail.nondeterministic",
    "wrong_shape": "Fail.shape",
    "wrong_dtype": "Fail.dtype",
    "writes_its_input": "Fail.bounds_write",
    "crash": "Crash",
}
"""Every implementation and the worst state that its cases must come to."""

SPEC = """
schema_version: 1
op: toy_norm
summary: y = x * rsqrt(mean(x^2) + eps) * weight, rounded once.
axes: {{N: 1..}}
leading: same
types:
  - {{T: bfloat16, acc: float32}}
  - {{T: float32, acc: float32}}
inputs:
  x: {{shape: ["...", N], dtype: T, layout: any}}
  weight: {{shape: [N], dtype: T, layout: any}}
params:
  eps: {{type: float, default: 0.05, keyword: true}}
outputs:
  y: {{shape: ["...", N], dtype: T, out: true}}
reference: {{entry: "reference.py:toy_norm"}}
tolerance:
  y: {{result_ulp: 0.51, accumulation_ulp: "4 + sqrt(N)"}}
cost: {{flops: "4 * B * N", roof: vector}}
cases:
  - {{N: 129, leading: [7]}}
  - {{N: 1000, leading: [24]}}
demo: {{N: 64, leading: [4]}}
bench:
  - {{N: 64, leading: [4]}}
implementations:
{implementations}
"""

REFERENCE = """
import torch

def toy_norm(x, weight, *, eps=0.05):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
"""

IMPLEMENTATIONS = '''
import torch

calls = 0

def root(x, eps):
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

def plain(x, weight, eps):
    return (x.float() * root(x.float(), eps) * weight.float()).to(x.dtype)

def reordered(x, weight, eps):
    """Sums in chunks of 32, as warps would."""
    total = sum(part.float().square().sum(-1, keepdim=True) for part in x.split(32, -1))
    return (x.float() * (torch.rsqrt(total / x.shape[-1] + eps) * weight.float())).to(x.dtype)

def backwards(x, weight, eps):
    total = x.float().flip(-1).square().cumsum(-1)[..., -1:]
    return (x.float() * torch.rsqrt(total / x.shape[-1] + eps) * weight.float()).to(x.dtype)

narrow_only = plain

def eps_outside_root(x, weight, eps):
    wide = x.float()
    return (wide / (wide.square().mean(-1, keepdim=True).sqrt() + eps) * weight.float()).to(x.dtype)

def short_mask(x, weight, eps):
    total = x[..., :-1].float().square().sum(-1, keepdim=True)
    return (x.float() * torch.rsqrt(total / x.shape[-1] + eps) * weight.float()).to(x.dtype)

def long_mask(x, weight, eps):
    """Reads one element past the end of each row: poison at the last one."""
    rows = x.as_strided((*x.shape[:-1], x.shape[-1] + 1), x.stride())
    total = rows.float().square().sum(-1, keepdim=True)
    return (x.float() * torch.rsqrt(total / x.shape[-1] + eps) * weight.float()).to(x.dtype)

def half_wave(x, weight, eps):
    """A reduction whose last step, across 32 lanes of 64, is missing."""
    lanes = torch.arange(x.shape[-1]) % 64 < 32
    total = (x.float().square() * lanes).sum(-1, keepdim=True)
    return (x.float() * torch.rsqrt(total / x.shape[-1] + eps) * weight.float()).to(x.dtype)

def narrow_accumulation(x, weight, eps):
    total = torch.zeros_like(x[..., :1], dtype=torch.bfloat16)
    for part in x.split(8, -1):
        total = (total + part.float().square().sum(-1, keepdim=True)).to(torch.bfloat16)
    return (x.float() * torch.rsqrt(total.float() / x.shape[-1] + eps) * weight.float()).to(x.dtype)

def truncation(x, weight, eps):
    wide = x.double() * root(x.double(), eps) * weight.double()
    near = wide.to(x.dtype)
    over = near.double().abs() > wide.abs()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near)

def rounded_before_weight(x, weight, eps):
    return (x.float() * root(x.float(), eps)).to(torch.bfloat16).to(x.dtype) * weight

def ignores_weight(x, weight, eps):
    return (x.float() * root(x.float(), eps)).to(x.dtype)

def ignores_strides(x, weight, eps):
    """Walks memory as if rows followed each other."""
    flat = x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())
    return plain(flat, weight, eps)

def zeros(x, weight, eps):
    return torch.zeros(x.shape, dtype=x.dtype)

def echo(x, weight, eps):
    return x.clone()

def unwritten_tail(x, weight, eps):
    out = torch.empty(x.shape, dtype=x.dtype)
    whole = x.shape[-1] // 32 * 32
    out[..., :whole] = plain(x, weight, eps)[..., :whole]
    return out

def stale_workspace(x, weight, eps):
    """Every second call adds what the one before left: within the bound, but not the same bits."""
    global calls
    calls += 1
    wide = x.float() * root(x.float(), eps) * weight.float()
    return (wide * (1 + 2e-7 * (calls % 2))).to(x.dtype)

def wrong_shape(x, weight, eps):
    return plain(x, weight, eps)[..., :-1]

def wrong_dtype(x, weight, eps):
    return plain(x, weight, eps).half()

def writes_its_input(x, weight, eps):
    y = plain(x, weight, eps)
    x.add_(1)
    return y

def crash(x, weight, eps):
    raise RuntimeError("an illegal memory access was encountered")
'''


def write(root: Path) -> Path:
    """The op's folder below `root`; answers `root`, for PORTABLE_KERNEL_PATH."""
    folder = root / "toy_norm"
    folder.mkdir(parents=True)
    lines = [
        f'  - {{name: {name}, run: "torch_impl.py:{name}", language: torch'
        + (", requires: {T: [bfloat16]}}" if name == "narrow_only" else "}")
        for name in EXPECTED
    ]
    (folder / "spec.yaml").write_text(SPEC.format(implementations="\n".join(lines)))
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "torch_impl.py").write_text(IMPLEMENTATIONS)
    return root
