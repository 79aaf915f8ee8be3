"""Wrong rope, rope_qkv and qk_norm_rope."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right, wide

NORMED = "qk_norm_rope/qk_norm_rope.cu"
CPP, HEADS, TRITON = "rope/rope.cu", "rope/heads.h", "rope/triton_impl.py"


def _rope(q, k, cos, sin, positions, interleaved):
    return right("rope")(q, k, cos, sin, positions, interleaved=interleaved)


@mutant("rope", "rotated the other way")
def other_way(q, k, cos, sin, positions, interleaved):
    return _rope(q, k, cos, -sin, positions, interleaved)


@mutant("rope", "the sine's sign in the first of a pair alone")
def one_sign(q, k, cos, sin, positions, interleaved):
    """A reflection: the second of each pair is as it should be."""
    one, other = (_rope(q, k, cos, each, positions, interleaved) for each in (-sin, sin))
    columns = torch.arange(q.shape[-1])
    first = (columns % 2 == 0 if interleaved else columns < cos.shape[-1]) & (columns < 2 * cos.shape[-1])
    return tuple(torch.where(first, a, b) for a, b in zip(one, other, strict=True))


@mutant("rope", "interleaved pairs for halves")
def neighbours(q, k, cos, sin, positions, interleaved):
    return _rope(q, k, cos, sin, positions, True)


@mutant("rope", "halves for interleaved pairs")
def halves(q, k, cos, sin, positions, interleaved):
    return _rope(q, k, cos, sin, positions, False)


@mutant("rope", "halves of the whole head, not of its rotated columns")
def halves_of_the_head(q, k, cos, sin, positions, interleaved):
    pairs, size = cos.shape[1], q.shape[-1]
    if interleaved or size % 2:
        return _rope(q, k, cos, sin, positions, interleaved)
    columns = torch.arange(size)
    half = size // 2
    order = torch.cat(
        [columns[:pairs], columns[half : half + pairs], columns[pairs:half], columns[half + pairs :]]
    )
    back = order.argsort()
    made = _rope(q[..., order], k[..., order], cos, sin, positions, False)
    return tuple(each[..., back].contiguous() for each in made)


@mutant("rope", "columns that are not rotated left out")
def no_rest(q, k, cos, sin, positions, interleaved):
    made = _rope(q, k, cos, sin, positions, interleaved)
    for each in made:
        each[..., 2 * cos.shape[1] :] = 0
    return made


@mutant("rope", "positions ignored")
def no_positions(q, k, cos, sin, positions, interleaved):
    rows = None if positions is None else torch.arange(q.shape[1]).expand(positions.shape) % len(cos)
    return _rope(q, k, cos, sin, rows, interleaved)


@mutant("rope", "positions of the first sequence for all")
def first_positions(q, k, cos, sin, positions, interleaved):
    same = positions if positions is None or not len(positions) else positions[:1].expand(positions.shape)
    return _rope(q, k, cos, sin, same, interleaved)


@mutant("rope", "k as it came")
def keys_left(q, k, cos, sin, positions, interleaved):
    return _rope(q, k, cos, sin, positions, interleaved)[0], k.clone()


@mutant("rope", "k rotated by the tokens of q's heads")
def keys_by_row(q, k, cos, sin, positions, interleaved):
    """Rows of k counted with q's number of heads."""
    if positions is None or not k.numel() or not q.numel():
        return _rope(q, k, cos, sin, positions, interleaved)
    rows = torch.arange(k.shape[0] * k.shape[1]) * k.shape[2] // q.shape[2]
    wrong = positions.flatten()[rows].view(positions.shape)
    return _rope(q, k, cos, sin, positions, interleaved)[0], _rope(q, k, cos, sin, wrong, interleaved)[1]


@mutant("rope", "tables rounded to the type of q")
def narrow_tables(q, k, cos, sin, positions, interleaved):
    cos, sin = (each.to(q.dtype).to(each.dtype) for each in (cos, sin))
    return _rope(q, k, cos, sin, positions, interleaved)


@mutant("rope", "products rounded before their sum")
def rounded_products(q, k, cos, sin, positions, interleaved):
    none = torch.zeros_like(sin)
    one = _rope(q, k, cos, none, positions, interleaved)
    two = _rope(q, k, torch.zeros_like(cos), sin, positions, interleaved)
    return tuple(
        torch.cat([a[..., :n] + b[..., :n], a[..., n:]], -1)
        for a, b, n in zip(one, two, [2 * cos.shape[1]] * 2, strict=True)
    )


@mutant("rope_backward", "rotated as the forward pass does")
def forward_again(dq_rotated, dk_rotated, cos, sin, positions, interleaved):
    return right("rope_backward")(dq_rotated, dk_rotated, cos, -sin, positions, interleaved=interleaved)


def _normed(x, weight, eps, columns=None):
    """x * rsqrt(mean(x^2) + eps) * weight, the mean of the first `columns`."""
    mean = wide(x)[..., :columns].square().mean(-1, keepdim=True)
    return wide(x) * torch.rsqrt(mean + eps) * wide(weight)


def _rotated(q, k, like, cos, sin, positions, interleaved):
    """rope of q and k in float32, rounded to the type of `like`."""
    kind = torch.promote_types(q.dtype, cos.dtype)
    made = _rope(q.to(kind), k.to(kind), cos.to(kind), sin.to(kind), positions, interleaved)
    return tuple(each.to(like.dtype) for each in made)


@mutant("qk_norm_rope", "mean of the rotated columns alone")
def mean_of_the_rotated(q, k, q_weight, k_weight, cos, sin, positions, eps, interleaved):
    columns = 2 * cos.shape[1]
    both = _normed(q, q_weight, eps, columns), _normed(k, k_weight, eps, columns)
    return _rotated(*both, q, cos, sin, positions, interleaved)


@mutant("qk_norm_rope", "rotated before the norm's weight")
def weight_last(q, k, q_weight, k_weight, cos, sin, positions, eps, interleaved):
    ones = torch.ones_like(q_weight)
    both = _rotated(_normed(q, ones, eps), _normed(k, ones, eps), wide(q), cos, sin, positions, interleaved)
    return tuple((x * wide(w)).to(q.dtype) for x, w in zip(both, (q_weight, k_weight), strict=True))


@mutant("qk_norm_rope", "q's weight for k")
def one_weight(q, k, q_weight, k_weight, cos, sin, positions, eps, interleaved):
    both = _normed(q, q_weight, eps), _normed(k, q_weight, eps)
    return _rotated(*both, q, cos, sin, positions, interleaved)


@mutant("qk_norm_rope", "norm rounded before it is rotated")
def rounded_norm(q, k, q_weight, k_weight, cos, sin, positions, eps, interleaved):
    both = _normed(q, q_weight, eps).to(q.dtype), _normed(k, k_weight, eps).to(q.dtype)
    return _rotated(*both, q, cos, sin, positions, interleaved)


@mutant("qk_norm_rope", "norm over all heads")
def norm_of_all_heads(q, k, q_weight, k_weight, cos, sin, positions, eps, interleaved):
    def own(x, weight):
        mean = wide(x).square().mean((-2, -1), keepdim=True)
        return wide(x) * torch.rsqrt(mean + eps) * wide(weight)

    return _rotated(own(q, q_weight), own(k, k_weight), q, cos, sin, positions, interleaved)


@mutant("qk_norm_rope", "the default's eps instead of the argument")
def default_eps(q, k, q_weight, k_weight, cos, sin, positions, eps, interleaved):
    both = _normed(q, q_weight, 1e-6), _normed(k, k_weight, 1e-6)
    return _rotated(*both, q, cos, sin, positions, interleaved)


JOINED, OWN = "rope_qkv_backward", "rope_qkv/triton_impl.py"


@mutant("rope_qkv", "values rotated too")
def values_rotated(q, k, v, cos, sin, positions, interleaved):
    made = right("rope_qkv")(q, k, v, cos, sin, positions, interleaved=interleaved)
    return *made[:2], _rope(v, v, cos, sin, positions, interleaved)[0]


@mutant("rope_qkv", "keys in the place of values")
def keys_for_values(q, k, v, cos, sin, positions, interleaved):
    made = right("rope_qkv")(q, k, v, cos, sin, positions, interleaved=interleaved)
    return *made[:2], made[1].clone()


@mutant(JOINED, "rotated as the forward pass does")
def joined_forward(dq_rotated, dk_rotated, dv_copied, cos, sin, positions, interleaved):
    given = dq_rotated, dk_rotated, dv_copied, cos, -sin, positions
    return right(JOINED)(*given, interleaved=interleaved)


@mutant(JOINED, "values before keys")
def values_before_keys(dq_rotated, dk_rotated, dv_copied, cos, sin, positions, interleaved):
    given = dq_rotated, dk_rotated, dv_copied, cos, sin, positions
    heads = dq_rotated.shape[2], dk_rotated.shape[2], dk_rotated.shape[2]
    q, k, v = right(JOINED)(*given, interleaved=interleaved).split(heads, 2)
    return torch.cat((q, v, k), 2)


source(
    *("rope", "cpp", "gfx942", "the sine's sign in the first of a pair"),
    Edit(HEADS, "math_fma(-b, s, a * c)", "math_fma(b, s, a * c)"),
)
source(
    *("rope", "cpp", "gfx942", "halves of the whole head"),
    Edit(
        CPP,
        "INTERLEAVED ? 2 * $column + VEC : pairs + $column",
        "INTERLEAVED ? 2 * $column + VEC : size / 2 + $column",
    ),
)
source(
    *("rope", "cpp", "gfx942", "positions ignored"),
    Edit(CPP, "#if INDEX\n", "#if 0\n"),
)
source(
    *("rope", "cpp", "gfx942", "columns that are not rotated left out"),
    Edit(CPP, "rest.store(all.to(head) + column);", ""),
)
source(
    *("rope", "cpp", "gfx1100", "one token past the end written"),
    Edit(CPP, "if ($token >= tokens) return;", "if ($token > tokens) return;"),
)
source(
    *("rope_backward", "cpp", "gfx942", "rotated as the forward pass does"),
    Edit(HEADS, "BACKWARD ? -sine[$i] : sine[$i]", "sine[$i]"),
)
source(
    *("rope", "triton", "gfx942", "keys in the place of q's heads"),
    Edit(TRITON, "(block - q_blocks) * HEADS", "block * HEADS"),
)
source(
    *("rope", "triton", "gfx942", "tokens beyond the last are not masked"),
    Edit(TRITON, "inside = $token < tokens", "inside = $token <= tokens"),
)
source(
    *("qk_norm_rope", "cpp", "gfx942", "half of each head left out of the sum"),
    Edit(NORMED, "$i < 2 * VEC; ++$i) squares", "$i < VEC; ++$i) squares"),
)
source(
    *("qk_norm_rope", "cpp", "gfx942", "q's weight for k"),
    Edit(NORMED, "$head < q_heads ? q_low[$i] : k_low[$i]", "q_low[$i]"),
)
source(
    *("qk_norm_rope", "triton", "gfx942", "mean of the rotated columns alone"),
    Edit(TRITON, "squares += tl.sum($rest * $rest, axis=2, keep_dims=True)", "squares += 0.0"),
)
source(
    *("rope_qkv", "cpp", "gfx942", "values rotated too"),
    Edit(CPP, "!VALUES || $head + $c * SLOTS < rotated", "true"),
)
source(
    *("rope_qkv", "cpp", "gfx1100", "values with the steps of keys"),
    Edit(CPP, "$v + ($head - rotated) * v_stride", "$v + ($head - rotated) * k_stride"),
)
source(
    *(JOINED, "cpp", "gfx942", "values over the keys"),
    Edit(CPP, "$v_copied + v_first + token * v_row", "$v_copied + k_first + token * v_row"),
)
source(
    *(JOINED, "cpp", "gfx942", "columns of values that are not rotated left out"),
    Edit(CPP, "int $heads = VALUES ? rotated + k_heads : rotated", "int $heads = rotated"),
)
source(
    *(JOINED, "triton", "gfx942", "keys over the queries"),
    Edit(OWN, "divisible(k_first, UNIT) + ", ""),
)
source(
    *("rope_qkv", "triton", "gfx942", "values from the first columns"),
    Edit(OWN, "block - q_blocks - k_blocks", "0"),
)
