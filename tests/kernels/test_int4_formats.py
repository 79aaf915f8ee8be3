"""portable.unpack_int4 and pack_int4: each format element by element, by formulas of its own, and back."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import pytest
import torch

from portable import errors, int4_mm, pack_int4, unpack_int4

N, K, G = 24, 64, 4
GROUP = K // G
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def integers(high, *shape, seed=0, low=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def words(*shape, seed=0):
    return integers(2**31, *shape, seed=seed, low=-(2**31)).to(torch.int32)


def scales(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(9)) + 0.5


def nibble(word, place):
    return (int(word) % 2**32 // 16**place) % 16


def meaning(w):
    """float64 numbers of a weight as int4_mm takes it, by a product with the identity."""
    return int4_mm(torch.eye(2 * w.weight.shape[1]), *w[:4]).double().T


@pytest.mark.parametrize("format", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_gptq(format, shuffled):
    qweight, qzeros, scale = words(K // 8, N), words(G, N // 8, seed=1), scales(G, N)
    g_idx = torch.arange(K) // GROUP
    if shuffled:
        g_idx = g_idx[torch.randperm(K, generator=torch.Generator().manual_seed(2))]
    w = unpack_int4(format, qweight, scale, qzeros, g_idx if shuffled else None)
    ref = torch.zeros(N, K, dtype=torch.float64)
    for n in range(N):
        for k in range(K):
            zero = nibble(qzeros[g_idx[k], n // 8], n % 8) + (format == "gptq")
            ref[n, k] = (nibble(qweight[k // 8, n], k % 8) - zero) * scale[g_idx[k], n].double()
    order = torch.arange(K) if w.permutation is None else w.permutation
    assert (w.permutation is None) == (not shuffled)
    torch.testing.assert_close(meaning(w), ref[:, order], rtol=1e-6, atol=0)
    x = torch.randn(3, K, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        int4_mm(x[:, order], *w[:4]).double(), x.double() @ ref.T, rtol=1e-4, atol=1e-3
    )
    if not shuffled:
        assert all(map(torch.equal, pack_int4(format, *w[:4]), (qweight, scale, qzeros)))


def test_a_zero_point_stored_as_15_by_gptq_s_v1_is_16():
    w = unpack_int4("gptq", words(K // 8, N), scales(G, N), torch.full((G, N // 8), -1, dtype=torch.int32))
    assert w.zero_point is not None and (w.zero_point == 16).all()


def test_awq():
    qweight, qzeros, scale = words(K, N // 8), words(G, N // 8, seed=1), scales(G, N)
    w = unpack_int4("awq", qweight, scale, qzeros)
    ref = torch.zeros(N, K, dtype=torch.float64)
    for k in range(K):
        for block in range(N // 8):
            for place, column in enumerate(AWQ):
                n = 8 * block + column
                zero = nibble(qzeros[k // GROUP, block], place)
                ref[n, k] = (nibble(qweight[k, block], place) - zero) * scale[k // GROUP, n].double()
    torch.testing.assert_close(meaning(w), ref, rtol=1e-6, atol=0)
    assert all(map(torch.equal, pack_int4("awq", *w[:4]), (qweight, scale, qzeros)))


def test_compressed_tensors():
    packed, scale = words(N, K // 8), scales(N, G)
    zeros = words(N // 8, G, seed=1)
    w = unpack_int4("compressed-tensors", packed, scale, zeros)
    ref = torch.zeros(N, K, dtype=torch.float64)
    for n in range(N):
        for k in range(K):
            zero = nibble(zeros[n // 8, k // GROUP], n % 8)
            ref[n, k] = (nibble(packed[n, k // 8], k % 8) - zero) * scale[n, k // GROUP].double()
    torch.testing.assert_close(meaning(w), ref, rtol=1e-6, atol=0)
    assert all(map(torch.equal, pack_int4("compressed-tensors", *w[:4]), (packed, scale, zeros)))
    symmetric = unpack_int4("compressed-tensors", packed, scale)
    assert symmetric.zero_point is None and pack_int4("compressed-tensors", *symmetric[:4])[2] is None


def test_torchao():
    qdata, scale = integers(128, N, K // 2, low=-128).to(torch.int8), scales(G, N)
    offset = torch.randn(G, N, generator=torch.Generator().manual_seed(4))
    w = unpack_int4("torchao", qdata, scale, offset)
    ref = torch.zeros(N, K, dtype=torch.float64)
    for n in range(N):
        for k in range(K):
            code = nibble(qdata[n, k // 2], k % 2)
            signed = code - 16 if code > 7 else code
            ref[n, k] = signed * scale[k // GROUP, n].double() + offset[k // GROUP, n].double()
    torch.testing.assert_close(meaning(w), ref, rtol=1e-5, atol=1e-5)
    assert all(map(torch.equal, pack_int4("torchao", *w[:4]), (qdata, scale, offset)))


def fragment(lane, place):
    """(k, column) in a fragment of 16 k and 8 columns of mma.m16n8k16, of a lane's element 0 to 3."""
    return 2 * (lane % 4) + place % 2 + 8 * (place // 2), lane // 4


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_tinygemm(inner):
    n_, k_, groups = 16, 256, 4
    packed = words(n_ // 8, k_ // (16 * inner), 32, inner // 2)
    pairs = torch.randn(groups, n_, 2, generator=torch.Generator().manual_seed(4)).bfloat16()
    w = unpack_int4("tinygemm", packed, pairs)
    ref = torch.full((n_, k_), torch.nan, dtype=torch.float64)
    for (tile, super_, lane, word), value in zip(
        torch.cartesian_prod(*map(torch.arange, packed.shape)).tolist(), packed.flatten(), strict=True
    ):
        for place in range(8):  # of the elements of two fragments, the even ones first
            element = (2 * place) % 8 + place // 4
            k, column = fragment(lane, element % 4)
            k += 16 * (super_ * inner + 2 * word + element // 4)
            n = 8 * tile + column
            s, z = pairs[k // (k_ // groups), n].double()
            ref[n, k] = (nibble(value, place) - 8) * s + z
    x = torch.eye(k_)
    found = int4_mm(x, w.weight, w.scale.float(), w.zero_point, w.offset.float()).double().T
    torch.testing.assert_close(found, ref, rtol=1e-5, atol=1e-5)
    made = pack_int4("tinygemm", *w[:4], inner_k_tiles=inner)
    assert torch.equal(made[0], packed) and torch.equal(made[1], pairs) and made[2] is None


TORCHS_OWN = {
    2: "9ce403a8f8fb9271bcc31c483fb50165b5a048dfe3763b71555c764adecc5e26",
    4: "c6df5f2f17a49bea88b51876d3628bed651b3f10413c7170d56bb1d768119ea8",
    8: "cff4b5347acdb0e91c52fc3071fab708e338a3418d1d93a052f1585c23a31f13",
}
"""SHA-256 of what torch 2.11's _convert_weight_to_int4pack made of the same codes on an H200 (2026-11-27)."""


@pytest.mark.parametrize("inner", TORCHS_OWN)
def test_tinygemm_has_the_bytes_of_torch_s_own_on_a_gpu(inner):
    n_, k_ = 64, 512
    weight = (torch.arange(n_ * k_ // 2) * 2654435761 >> 7 & 255).to(torch.uint8).view(n_, k_ // 2)
    made, _, _ = pack_int4("tinygemm", weight, torch.ones(n_, k_ // 64), inner_k_tiles=inner)
    assert hashlib.sha256(made.numpy().tobytes()).hexdigest() == TORCHS_OWN[inner]


def test_tinygemm_has_8_inner_tiles_where_none_are_named_and_zeros_for_no_offset():
    weight, scale = words(8, 64, seed=3).byte(), scales(8, 2)
    packed, pairs, _ = pack_int4("tinygemm", weight, scale)
    assert packed.shape == (1, 1, 32, 4)
    assert torch.equal(pairs[..., 0], scale.T) and not pairs[..., 1].any()


@pytest.mark.parametrize("groups", [1, 4])
def test_marlin(groups):
    n_, k_ = 128, 64
    packed, scale = words(k_ // 16, 2 * n_), scales(groups, n_)
    zeros = words(groups, n_ // 8, seed=1)
    w = unpack_int4("marlin", packed, scale, zeros)
    ref = torch.full((n_, k_), torch.nan, dtype=torch.float64)
    for row in range(k_ // 16):
        for at in range(2 * n_):  # 64 columns are 128 words: a lane's four are 16 columns each
            lane, word = at % 128 // 4, at % 4
            for place in range(8):
                element = (2 * place) % 8 + place // 4
                k, column = fragment(lane, element % 4)
                n = at // 128 * 64 + 16 * word + 8 * (element // 4) + column
                group = (16 * row + k) // (k_ // groups)
                # Column n of 64 is at 8 * (n % 8) + n // 8; a scale of one group by pairs, of 32.
                eighth = n // 64 * 64 + 8 * (n % 8) + n % 64 // 8
                paired = n // 32 * 32 + 8 * (n % 8 // 2) + 2 * (n % 32 // 8) + n % 2
                zero = nibble(zeros[group, eighth // 8], AWQ.index(eighth % 8))
                s = scale[group, paired if groups == 1 else eighth].double()
                ref[n, 16 * row + k] = (nibble(packed[row, at], place) - zero) * s
    torch.testing.assert_close(meaning(w), ref, rtol=1e-6, atol=0)
    assert all(map(torch.equal, pack_int4("marlin", *w[:4]), (packed, scale, zeros)))
    symmetric = unpack_int4("marlin", packed, scale)
    assert symmetric.zero_point is None and pack_int4("marlin", *symmetric[:4])[2] is None


def test_one_weight_has_one_meaning_in_every_format_that_holds_it():
    weight, scale = words(64, 64, seed=5).byte(), scales(64, 4)
    for format in ("gptq", "gptq_v2", "awq", "compressed-tensors", "torchao", "tinygemm", "marlin"):
        w = unpack_int4(format, *pack_int4(format, weight, scale))
        torch.testing.assert_close(meaning(w), meaning(Plain(weight, scale)), rtol=0, atol=0)


class Plain(NamedTuple):
    weight: torch.Tensor
    scale: torch.Tensor
    zero_point: None = None
    offset: None = None


@pytest.mark.parametrize(
    "error, says, call",
    [
        (errors.ParameterError, "format' is 'hqq'; expected one of 'gptq'",
         lambda: unpack_int4("hqq", words(8, N), scales(G, N))),
        (errors.RankError, r"scale' has 2 dimensions.*3, scales_and_zeros \(K / group, N, 2\)",
         lambda: unpack_int4("tinygemm", words(3, 1, 32, 2), scales(G, N))),
        (errors.ShapeError, r"scale' has shape \(24, 4, 2\); expected \(64 / group, 24, 2\)",
         lambda: unpack_int4("tinygemm", words(3, 1, 32, 2), scales(N, G, 2))),
        (errors.ShapeError, r"scale' has shape \(4, 24, 1\); expected \(64 / group, 24, 2\)",
         lambda: unpack_int4("tinygemm", words(3, 1, 32, 2), scales(G, N, 1))),
        (errors.ParameterError, "zero_point' is 'a tensor'; expected None: format 'tinygemm' has it in scale",
         lambda: unpack_int4("tinygemm", words(3, 1, 32, 2), scales(G, N, 2), scales(G, N))),
        (errors.RankError, "weight' has 2 dimensions.*4, ",
         lambda: unpack_int4("tinygemm", words(8, N), scales(G, N, 2))),
        (errors.ShapeError, r"weight' has shape \(3, 1, 32, 3\); expected .*inner 2, 4 or 8",
         lambda: unpack_int4("tinygemm", words(3, 1, 32, 3), scales(G, N, 2))),
        (errors.ShapeError, r"weight' has shape \(4, 48\); expected .*N a multiple of 64",
         lambda: unpack_int4("marlin", words(4, 2 * N), scales(G, N))),
        (errors.ShapeError, r"scale' has shape \(64, 4\); expected \(64 / group, 64\)",
         lambda: unpack_int4("marlin", words(4, 128), scales(64, G))),
        (errors.ParameterError, "g_idx' is 'a tensor'; expected None, as format 'marlin'",
         lambda: unpack_int4("marlin", words(4, 128), scales(G, 64), None, torch.arange(K))),
        (errors.ShapeError, "weight' has shape .*N a multiple of 64",
         lambda: pack_int4("marlin", words(N, 32).byte(), scales(N, G))),
        (errors.ShapeError, "weight' has shape .*K a multiple of 128",
         lambda: pack_int4("tinygemm", words(N, 32).byte(), scales(N, G))),
        (errors.ParameterError, "inner_k_tiles' is 3; expected 2, 4 or 8",
         lambda: pack_int4("tinygemm", words(N, 32).byte(), scales(N, G), inner_k_tiles=3)),
        (errors.ParameterError, "inner_k_tiles' is 2; expected None, for format 'awq'",
         lambda: pack_int4("awq", words(N, 32).byte(), scales(N, G), inner_k_tiles=2)),
        (errors.ParameterError, "zero_point' is 'a tensor'; expected None: format 'tinygemm' has no integer",
         lambda: pack_int4("tinygemm", words(N, 32).byte(), scales(N, G), torch.full((N, G), 3).byte())),
        (errors.DtypeError, "weight' has dtype torch.int64; expected torch.int32",
         lambda: unpack_int4("awq", words(8, N).long(), scales(G, N))),
        (errors.RankError, "weight' has 1 dimensions", lambda: unpack_int4("awq", words(8), scales(G, N))),
        (errors.ShapeError, r"scale' has shape \(24, 4\); expected \(64 / group, 24\)",
         lambda: unpack_int4("gptq", words(8, N), scales(N, G))),
        (errors.ShapeError, r"zero_point' has shape \(3, 4\); expected \(4, 3\)",
         lambda: unpack_int4("gptq", words(8, N), scales(G, N), words(3, 4))),
        (errors.ParameterError, "g_idx' is 'a tensor of others'; expected the numbers 0 to 3, each 16 times",
         lambda: unpack_int4("gptq", words(8, N), scales(G, N), None, torch.zeros(K, dtype=torch.int32))),
        (errors.ParameterError, "g_idx' is 'a tensor'; expected None, as format 'awq'",
         lambda: unpack_int4("awq", words(K, 3), scales(G, N), None, torch.arange(K))),
        (errors.ParameterError, "zero_point' is .*from 1 to 16 for format 'gptq'",
         lambda: pack_int4("gptq", words(N, 32).byte(), scales(N, G), torch.zeros(N, G).byte())),
        (errors.ParameterError, "zero_point' is .*from 0 to 15 for format 'awq'",
         lambda: pack_int4("awq", words(N, 32).byte(), scales(N, G), torch.full((N, G), 16).byte())),
        (errors.ParameterError, "offset' is .*integer zero points",
         lambda: pack_int4("awq", words(N, 32).byte(), scales(N, G), None, scales(N, G))),
        (errors.ShapeError, "weight' has shape .*N a multiple of 8",
         lambda: pack_int4("awq", words(5, 32).byte(), scales(5, G))),
    ],
)  # fmt: skip
def test_what_they_refuse_and_say(error, says, call):
    with pytest.raises(error, match=says):
        call()
