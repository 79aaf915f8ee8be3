"""portable.unpack_int4 and pack_int4: each format element by element, by formulas of its own, and back."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "error, says, call",
    [
        (errors.ParameterError, "format' is 'marlin'; expected one of 'gptq'",
         lambda: unpack_int4("marlin", words(8, N), scales(G, N))),
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
