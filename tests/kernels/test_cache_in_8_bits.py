"""attention_paged and kv_cache_write over a cache in 8 bits: facades, plans, and one with the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import portable
from portable import errors
from portable.kernels._lib.cache_scales import FORMATS
from portable.kernels.attention.gfx import plan as gfx
from portable.kernels.attention.sm80 import plan as sm80
from portable.kernels.attention.triton import plan as triton_plan
from portable.plan import Call, Plan, Scalar, TensorMap
from tests.kernels.attention.calls import call_of
from tests.kernels.attention.gfx.test_decode import DEVICES
from tests.kernels.matmul.test_plans import H200
from tests.kernels.plan_parts import accepted, arguments_of

FP8 = torch.float8_e4m3fn


def cache(heads: int = 2, kind: torch.dtype = FP8, seed: int = 0) -> torch.Tensor:
    return torch.randn(10, 16, heads, 64, generator=torch.Generator().manual_seed(seed)).to(kind)


def given(**changes: Any) -> dict[str, Any]:
    made = {
        "q": torch.randn(3, 1, 8, 64, generator=torch.Generator().manual_seed(9)).bfloat16(),
        "k_cache": cache(), "v_cache": cache(seed=1),
        "block_table": torch.arange(12, dtype=torch.int32).view(3, 4) % 10,
        "seq_lens": torch.tensor([60, 0, 7], dtype=torch.int32),
        "k_scale": torch.tensor([0.5, 2.0]), "v_scale": torch.tensor([3.0, 0.25]),
    }  # fmt: skip
    return made | changes


@pytest.mark.parametrize("kind", FORMATS)
def test_it_is_attention_of_the_numbers_times_scales(kind):
    call = given(k_cache=cache(kind=kind), v_cache=cache(kind=kind, seed=1))
    o, lse = portable.attention_paged(**call, return_lse=True)
    wide = {name: call[name].float() * call[f"{name[0]}_scale"][:, None] for name in ("k_cache", "v_cache")}
    rest = {name: call[name] for name in ("block_table", "seq_lens")}
    expected = portable.attention_paged(call["q"].float(), **wide, **rest, return_lse=True)
    assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32
    torch.testing.assert_close(o.float(), expected[0], atol=0.03, rtol=0.01)
    torch.testing.assert_close(lse, expected[1])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_the_scale_of_all_heads(shape):
    one = {name: torch.full(shape, 0.3) for name in ("k_scale", "v_scale")}
    filled = {name: torch.full((2,), 0.3) for name in one}
    assert torch.equal(portable.attention_paged(**given(**one)), portable.attention_paged(**given(**filled)))
    assert torch.equal(written(**one)[0].view(torch.uint8), written(**filled)[0].view(torch.uint8))


REFUSED = [
    ({"k_scale": None}, errors.ParameterError, "'k_scale' is None.*the caches have 8 bits"),
    ({"v_scale": None}, errors.ParameterError, "'v_scale' is None.*the caches have 8 bits"),
    ({"k_scale": torch.ones(3)}, errors.ShapeError, r"'k_scale' has shape \(3,\).*one element, or \(2,\)"),
    ({"v_scale": torch.ones(2, 1)}, errors.ShapeError, r"'v_scale' has shape \(2, 1\)"),
    ({"k_scale": 2.0}, errors.NotATensorError, "'k_scale' is a float.*of one for each key head"),
    ({"v_scale": torch.ones(2).double()}, errors.DtypeError, "'v_scale' has dtype float64"),
    ({"v_cache": cache(kind=torch.float8_e5m2)}, errors.DtypeError, "'v_cache' has dtype float8_e5m2"),
    ({"v_cache": cache(kind=torch.bfloat16)}, errors.DtypeError, "'v_cache' has dtype bfloat16"),
    ({"k_cache": cache(kind=torch.bfloat16)}, errors.DtypeError, "'k_cache' has dtype bfloat16"),
    (
        {"k_cache": cache(kind=torch.bfloat16), "v_cache": cache(kind=torch.bfloat16)},
        errors.ParameterError,
        "'k_scale' is.*None, as the caches have no type of 8 bits",
    ),
]


@pytest.mark.parametrize(("changes", "error", "says"), REFUSED)
def test_what_both_refuse(changes, error, says):
    with pytest.raises(error, match=says):
        portable.attention_paged(**given(**changes))
    with pytest.raises(error, match=says):
        written(**changes)


def test_queries_of_float32_are_refused():
    with pytest.raises(errors.DtypeError, match="'q' has dtype float32"):
        portable.attention_paged(**given(q=torch.randn(3, 1, 8, 64)))


def written(**changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    k, v = (torch.randn(5, 2, 64, generator=generator).bfloat16() for _ in range(2))
    call = {
        "k": k, "v": v, "k_cache": cache(), "v_cache": cache(seed=1),
        "slots": torch.tensor([3, 17, -1, 159, 40]),
        "k_scale": torch.tensor([0.5, 0.02]), "v_scale": torch.tensor([0.03, 0.25]),
    } | changes  # fmt: skip
    assert portable.kv_cache_write(**call) is None
    return call["k_cache"], call["v_cache"]


def test_what_is_written_is_what_quantize_fp8_makes():
    k_cache, v_cache = written()
    generator = torch.Generator().manual_seed(3)
    for own, before, scale in (
        (k_cache, cache(), (0.5, 0.02)),
        (v_cache, cache(seed=1), (0.03, 0.25)),
    ):
        rows = torch.randn(5, 2, 64, generator=generator).bfloat16()
        expected = before.view(torch.uint8).flatten(0, 1).clone()
        for head, each in enumerate(scale):
            q, _ = portable.quantize_fp8(rows[:, head].contiguous(), "tensor", scale=torch.tensor(each))
            expected[[3, 17, 159, 40], head] = q.view(torch.uint8)[[0, 1, 3, 4]]
        assert torch.equal(own.view(torch.uint8).flatten(0, 1), expected)


def test_attention_reads_what_was_written():
    generator = torch.Generator().manual_seed(5)
    k, v = (torch.randn(40, 2, 64, generator=generator).bfloat16() for _ in range(2))
    scales = {"k_scale": torch.tensor([0.01, 0.02]), "v_scale": torch.tensor(0.015)}
    caches = {name: torch.zeros(4, 16, 2, 64).to(FP8) for name in ("k_cache", "v_cache")}
    portable.kv_cache_write(k, v, **caches, slots=torch.arange(40), **scales)
    q = torch.randn(1, 1, 8, 64, generator=generator).bfloat16()
    table = {"block_table": torch.arange(4, dtype=torch.int32)[None], "seq_lens": torch.tensor([40]).int()}
    got = portable.attention_paged(q, **caches, **table, **scales)
    exact = portable.attention(q.movedim(1, 2), k.movedim(0, 1)[None], v.movedim(0, 1)[None])
    torch.testing.assert_close(got.movedim(1, 2).float(), exact.float(), atol=0.05, rtol=0.1)


def test_only_queries_have_a_gradient():
    call = given()
    call["q"].requires_grad_()
    portable.attention_paged(**call).float().sum().backward()
    assert call["q"].grad is not None and call["q"].grad.isfinite().all()
    with pytest.raises(errors.UnsupportedGradientError, match="k_scale"):
        portable.attention_paged(**given(k_scale=torch.ones(2, requires_grad=True))).float().sum().backward()


@pytest.mark.slow
def test_compiled_without_a_break():
    call = given(k_scale=torch.tensor(0.5))
    compiled = torch.compile(portable.attention_paged, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**call), portable.attention_paged(**call))


# Plans --------------------------------------------------------------------------------------------


def paged(
    implementation: str, D: int = 128, M: int = 1, H: int = 32, kind: torch.dtype = FP8,
    one_scale: bool = False, cache_of: torch.Tensor | None = None, device: Any = H200,
    page: int = 16,
) -> Call:  # fmt: skip
    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    own = empty(1000, page, 8, D, dtype=kind) if cache_of is None else cache_of
    scale = empty(1, dtype=torch.float32).expand(8) if one_scale else empty(8, dtype=torch.float32)
    table, lens = empty(4, 512, dtype=torch.int32), empty(4, dtype=torch.int32)
    q = empty(4, M, H, D)
    return call_of("attention_paged_fp8", implementation, device, q, own, own, table, lens, scale, scale)


def defines(plan: Plan) -> dict[str, Any]:
    return dict(plan.launches[0].kernel.defines)  # type: ignore[union-attr]


@pytest.mark.parametrize(("size", "columns"), [(128, 128), (64, 64), (256, 256), (80, 80)])
def test_a_bulk_copy_has_128_codes(size, columns):
    plan = accepted(sm80.decode_tma(paged("tma", D=size)))
    found = dict(plan.launches[0].args)["map_k"]
    assert isinstance(found, TensorMap) and found.dtype == "float8_e4m3fn"
    assert found.sizes == (columns, 8, 16, 1000) and found.box == (128, 1, 16, 1)
    assert found.strides == (size, 8 * size, 128 * size)


def test_what_is_compiled_in():
    made = defines(accepted(sm80.decode_tma(paged("tma"))))
    assert made["FORMAT"] == "Minifloat<8,3,7,126,127,false>" and made["ELEMENT"] == "bf16"
    wide = defines(accepted(sm80.decode_tma(paged("tma", D=256))))
    assert wide["WARPS"] * wide["STAGES"] * 16 * 512 < H200.shared_memory
    hip = defines(accepted(gfx.decode(paged("mfma", kind=FORMATS[2], device=DEVICES["gfx942"]))))
    assert hip["FORMAT"] == "Minifloat<8,3,8,127,128,true>" and not hip["SCALE_ONLY"]
    kernel: Any = accepted(triton_plan.decode(paged("triton"))).launches[0].kernel
    constants = dict(kernel.constants)
    assert constants["FORMAT"] == (8, 3, 7, 126, 127, 0) and constants["CONVERT"]
    fnuz: Any = accepted(triton_plan.decode(paged("triton", kind=FORMATS[2]))).launches[0].kernel
    assert not dict(fnuz.constants)["CONVERT"]


def test_eight_rows_a_tile():
    """Two tiles of CUDA's kernel read a key head's cache where more than 8 queries share it."""
    for rows, tiles in ((1, 1), (2, 1), (3, 2), (4, 2)):
        plan = accepted(sm80.decode_tma(paged("tma", M=rows)))
        assert arguments_of(plan.launches[0])["tiles"] == Scalar("i32", tiles)


@pytest.mark.parametrize("name", ["tma", "mma", "triton"])
def test_one_scale_has_no_step(name):
    planner = {"tma": sm80.decode_tma, "mma": sm80.decode, "triton": triton_plan.decode}[name]
    for one, step in ((True, 0), (False, 1)):
        found = arguments_of(accepted(planner(paged(name, one_scale=one))).launches[0])
        for scale in ("k_scale", "v_scale"):
            assert found[f"{scale}_head"].value == step


def test_what_the_cuda_kernels_decline():
    assert "aligned pieces of 16 bytes" in str(sm80.decode(paged("mma", D=24)))
    assert "multiples of 16 bytes" in str(sm80.decode_tma(paged("tma", D=24)))
    assert "pages of 17 keys" in str(sm80.decode(paged("mma", page=17)))
    apart = torch.empty(1000, 16, 8, 136, dtype=FP8, device="meta")[..., :128]
    assert "multiples of 16 bytes" in str(sm80.decode_tma(paged("tma", cache_of=apart)))
