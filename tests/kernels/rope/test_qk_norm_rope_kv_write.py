"""qk_norm_rope_kv_write against the two ops that it fuses, and before attention over the cache."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors
from portable.dispatch import dispatcher
from portable.kernels.qk_norm_rope_kv_write import baseline, native
from portable.plan import Call, Device, TensorInfo

from ..plan_parts import launch_of, reason


def tensors(dtype: torch.dtype, sequences: int = 2, tokens: int = 3) -> dict[str, torch.Tensor]:
    angle = 7 * torch.rand(40, 16)
    made = {
        "q": torch.randn(sequences, tokens, 4, 32), "k": torch.randn(sequences, tokens, 2, 32),
        "v": torch.randn(sequences, tokens, 2, 24), "q_weight": torch.randn(32), "k_weight": torch.randn(32),
        "cos": angle.cos(), "sin": angle.sin(),
        "k_cache": torch.randn(5, 8, 2, 32), "v_cache": torch.randn(5, 8, 2, 24),
    }  # fmt: skip
    slots = torch.randperm(40)[: sequences * tokens].view(sequences, tokens)
    slots[0, 1] = -1
    return {name: each.to(dtype) for name, each in made.items()} | {"slots": slots}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_it_is_qk_norm_rope_and_kv_cache_write(dtype, interleaved):
    given = tensors(dtype)
    given["positions"] = torch.randint(40, given["slots"].shape)
    expected = given["k_cache"].clone(), given["v_cache"].clone()
    names = ("q", "k", "q_weight", "k_weight", "cos", "sin", "positions")
    q, k = portable.qk_norm_rope(*(given[name] for name in names), eps=1e-5, interleaved=interleaved)
    flat = k.flatten(0, 1), given["v"].flatten(0, 1)
    portable.kv_cache_write(*flat, *expected, given["slots"].flatten())
    got = portable.qk_norm_rope_kv_write(**given, eps=1e-5, interleaved=interleaved)
    assert torch.equal(got, q)
    assert torch.equal(given["k_cache"], expected[0]) and torch.equal(given["v_cache"], expected[1])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("implementation, arch", [("torch", None), ("cpp", "gfx942"), ("triton", "gfx942")])
def test_without_weights_it_is_rope_and_kv_cache_write(implementation, arch, interleaved, request):
    if arch:
        request.getfixturevalue("emulate")(arch)
    given = tensors(torch.bfloat16)
    del given["q_weight"], given["k_weight"]
    expected = given["k_cache"].clone(), given["v_cache"].clone()
    with portable.using(qk_norm_rope_kv_write=implementation):
        got = portable.qk_norm_rope_kv_write(**given, interleaved=interleaved)
    q, k = portable.rope(*(given[name] for name in ("q", "k", "cos", "sin")), interleaved=interleaved)
    portable.kv_cache_write(k.flatten(0, 1), given["v"].flatten(0, 1), *expected, given["slots"].flatten())
    assert torch.equal(got, q)
    assert torch.equal(given["k_cache"], expected[0]) and torch.equal(given["v_cache"], expected[1])


def test_weights_come_together():
    given = tensors(torch.float32)
    del given["k_weight"]
    with pytest.raises(errors.PortableError, match="q_weight and k_weight, or neither"):
        portable.qk_norm_rope_kv_write(**given)


def test_flat_tokens_of_one_projection_are_views():
    """As engines have them: q, k and v side by side in a row, one position and one slot per token."""
    own = tensors(torch.float32, 1, 6)
    qkv = torch.cat([own[name][0].flatten(1) for name in ("q", "k", "v")], -1)
    parts = qkv.split([128, 64, 48], -1)
    views = {n: each.view(1, 6, -1, size) for n, each, size in zip("qkv", parts, (32, 32, 24), strict=True)}
    given = {**own, **views}
    names = list(dispatcher.op("qk_norm_rope_kv_write").spec.inputs)
    call = [given.get(name) for name in names]
    assert dispatcher.op("qk_norm_rope_kv_write")._compiled(call, [1e-6, False], None)._as_is
    caches = own["k_cache"].clone(), own["v_cache"].clone()
    expected = portable.qk_norm_rope_kv_write(**{**own, "k_cache": caches[0], "v_cache": caches[1]})
    assert torch.equal(portable.qk_norm_rope_kv_write(**given), expected)
    assert torch.equal(own["k_cache"], caches[0]) and torch.equal(own["v_cache"], caches[1])


def test_it_has_no_gradient():
    given = tensors(torch.float32)
    given["q"].requires_grad_()
    before = given["k_cache"].clone()
    with pytest.raises(errors.UnsupportedGradientError, match="'k_cache' is written in place"):
        portable.qk_norm_rope_kv_write(**given)
    assert torch.equal(given["k_cache"], before)
    with torch.no_grad():
        assert not portable.qk_norm_rope_kv_write(**given).requires_grad


def test_a_compiled_program_sees_the_write_and_the_result():
    def program(given):
        rotated = portable.qk_norm_rope_kv_write(**given)
        return rotated * 2, given["k_cache"].sum()

    torch._dynamo.reset()
    given = tensors(torch.float32)
    own = {name: each.clone() for name, each in given.items()}
    expected = program(own)
    got = torch.compile(program, fullgraph=True, backend="aot_eager")(given)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert torch.equal(given["v_cache"], own["v_cache"])


def test_slots_of_timings_are_by_sequence():
    facts = {"Z": 4, "M": 8, "N": 16, "S": 4, "I": "int32"}
    found = baseline.derived({"k": torch.empty(0)}, facts)["slots"]
    assert found.shape == (4, 8) and found.dtype == torch.int32 and len(found.unique()) == 32


DEVICE = Device("cuda", "sm_90a", "H200", multiprocessors=132)


def planned(v_size=64, cache_strides=None, pages=4):
    def info(shape, strides=None, kind="bfloat16"):
        dense = [1] * len(shape)
        for i in reversed(range(len(shape) - 1)):
            dense[i] = dense[i + 1] * shape[i + 1]
        return TensorInfo(shape, tuple(strides or dense), kind)

    axes = {"Z": 1, "M": 8, "H": 4, "G": 2, "D": 64, "C": 32, "P": 8, "E": v_size, "N": pages, "S": 16}
    tensors = {
        "q": info((1, 8, 4, 64)), "k": info((1, 8, 2, 64)), "v": info((1, 8, 2, v_size)),
        "q_weight": info((64,)), "k_weight": info((64,)), "cos": info((8, 32)), "sin": info((8, 32)),
        "k_cache": info((pages, 16, 2, 64), cache_strides), "v_cache": info((pages, 16, 2, v_size)),
        "slots": info((1, 8), kind="int64"), "positions": None, "q_rotated": info((1, 8, 4, 64)),
    }  # fmt: skip
    return native.forward(Call(tensors, {"eps": 1e-6, "interleaved": False}, axes, DEVICE, {}))


def test_vectors_where_the_caches_are_aligned_too():
    def vector(**changes):
        return dict(launch_of(planned(**changes)).kernel.defines)["VEC"]

    assert vector() == 8 and vector(v_size=60) == 1
    assert vector(cache_strides=(2048, 64, 1024, 1)) == 8 and vector(cache_strides=(2052, 128, 64, 1)) == 1
    assert "2 apart" in reason(planned(cache_strides=(4096, 256, 128, 2)))
    assert "slots: their numbers are 32-bit" in reason(planned(pages=1 << 28))
