"""attention_fp8: its facade, what it refuses, its bound, and the plans of its kernels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import portable
import portable.backends.cuda as cuda
from portable import errors
from portable.backends.cuda.backend import CudaBackend
from portable.kernels._lib import minifloat
from portable.kernels.attention.semantics import fp8
from portable.kernels.attention.sm90 import plan_fp8
from portable.kernels.attention.triton import plan as triton_plan
from portable.plan import Call, TensorMap
from portable.runtime import build
from tests.kernels.attention.calls import call_of
from tests.kernels.attention.gfx.test_decode import DEVICES
from tests.kernels.matmul.test_plans import H200
from tests.kernels.plan_parts import accepted, arguments_of, reason

FP8, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


def codes(*shape: int, kind: torch.dtype = FP8, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(kind)


def given(kind: torch.dtype = FP8, **changes: Any) -> dict[str, Any]:
    made = {
        "q": codes(2, 4, 33, 64, kind=kind), "k": codes(2, 2, 70, 64, kind=kind, seed=1),
        "v": codes(2, 2, 70, 32, kind=kind, seed=2), "q_scale": torch.tensor([[0.5, 2.0], [1.0, 0.25]]),
        "k_scale": torch.tensor([[1.5, 0.5], [2.0, 1.0]]), "v_scale": torch.tensor([[3.0, 0.25], [1.0, 0.5]]),
    }  # fmt: skip
    return made | changes


def wide(call: dict[str, Any]) -> dict[str, Any]:
    found = {name: call[name].float() for name in "qkv"}
    for name in "kv":
        found[name] = found[name] * call[f"{name}_scale"][..., None, None]
    found["q"] = found["q"] * call["q_scale"].repeat_interleave(2, -1)[..., None, None]
    return found


@pytest.mark.parametrize("kind", [FP8, FNUZ])
@pytest.mark.parametrize(
    "params", [{}, {"causal": True}, {"window": (20, 3), "softcap": 5.0}, {"scale": 0.3}]
)
def test_it_is_attention_of_the_numbers_times_scales(kind, params):
    call = given(kind)
    o, lse = portable.attention_fp8(**call, **params, return_lse=True)
    expected = portable.attention(**wide(call), **params, return_lse=True)
    assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32
    torch.testing.assert_close(o.float(), expected[0], atol=0.02, rtol=0.01)
    torch.testing.assert_close(lse, expected[1])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_the_scale_of_all_heads(shape):
    names = ("q_scale", "k_scale", "v_scale")
    one, filled = (given() | {name: torch.full(s, 0.3) for name in names} for s in (shape, (2, 2)))
    assert torch.equal(portable.attention_fp8(**one), portable.attention_fp8(**filled))


def test_the_result_s_type_is_said():
    assert portable.attention_fp8(**given(), output_dtype=torch.float16).dtype == torch.float16
    with pytest.raises(errors.ParameterError, match=r"'output_dtype' is torch\.float32.*bfloat16 or"):
        portable.attention_fp8(**given(), output_dtype=torch.float32)


REFUSED = [
    ({"q_scale": None}, errors.NotATensorError, "'q_scale'.*one for each batch and key head"),
    ({"k_scale": 0.5}, errors.NotATensorError, "'k_scale' is a float"),
    (
        {"q_scale": torch.ones(2, 4)},
        errors.ShapeError,
        r"'q_scale' has shape \(2, 4\).*one element, or \(2, 2\)",
    ),
    ({"v_scale": torch.ones(2)}, errors.ShapeError, r"'v_scale' has shape \(2,\)"),
    ({"v_scale": torch.ones(2, 2).double()}, errors.DtypeError, "'v_scale' has dtype float64"),
    ({"q": torch.randn(2, 4, 33, 64).bfloat16()}, errors.DtypeError, "'q' has dtype bfloat16"),
    ({"v": codes(2, 2, 70, 32, kind=FNUZ)}, errors.DtypeError, "'v' has dtype float8_e4m3fnuz"),
    ({"k": codes(2, 3, 70, 64)}, errors.ShapeError, "'q_scale'"),
]


@pytest.mark.parametrize(("changes", "error", "says"), REFUSED)
def test_mistakes_are_sentences(changes, error, says):
    with pytest.raises(error, match=says):
        portable.attention_fp8(**given(**changes))


def test_flash_attention_s_names_get_a_hint():
    call = given()
    call["q_descale"] = call.pop("q_scale")
    with pytest.raises(TypeError, match="It is q_scale here"):
        portable.attention_fp8(**call)


def test_there_is_no_gradient():
    scale = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(errors.UnsupportedGradientError):
        portable.attention_fp8(**given(v_scale=scale)).sum().backward()


@pytest.mark.parametrize("seed", range(3))
def test_p_in_e4m3_is_within_the_bound_and_one_bit_less_is_not(seed):
    """Of few keys P's rounding shows: half of 2^-3 of a term passes, half of 2^-2 does not."""
    q, k, v = (codes(1, 2, n, 64, seed=3 * seed + i).double() for i, n in enumerate((200, 4, 4)))
    ones = torch.ones(1, 2, dtype=torch.float64)
    params = {"causal": False, "scale": None, "window_left": None, "window_right": None, "softcap": None}
    types = {"T": "float8_e4m3fn", "R": "bfloat16", "acc": "float32"}
    limits = fp8.error_scale(q, k, v, ones, ones, ones, types=types, **params)["o"] * 2.0**-23
    scores = q @ k.mT / 8
    p = (scores - scores.amax(-1, keepdim=True)).exp()
    exact = p @ v / p.sum(-1, keepdim=True)
    for kind, fits in (("float8_e4m3fn", True), ("float8_e5m2", False)):
        rounded = minifloat.rounded(p * 256, kind) / 256
        error = (rounded @ v / p.sum(-1, keepdim=True) - exact).abs()
        assert bool((error <= limits).all()) == fits


# --- plans ------------------------------------------------------------------------------------------------


def made_call(
    device: Any = H200, implementation: str = "wgmma", kind: torch.dtype = FP8, *, B: int = 2, H: int = 8,
    G: int = 2, M: int = 300, N: int = 500, D: int = 128, E: int = 128, one_scale: bool = False,
    config: dict[str, Any] | None = None, **params: Any,
) -> Call:  # fmt: skip
    def meta(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    scale = torch.empty((), device="meta").expand(B, G) if one_scale else torch.empty(B, G, device="meta")
    tensors = meta(B, H, M, D), meta(B, G, N, D), meta(B, G, N, E), scale, scale, scale
    params = {"output_dtype": "bfloat16"} | params
    return call_of("attention_fp8", implementation, device, *tensors, config=config, **params)


def test_values_are_transposed_and_then_read():
    plan = accepted(plan_fp8.forward(made_call()))
    transposed, main = plan.launches
    assert [each.kernel.name for each in plan.launches] == ["attention_fp8_values", "attention_fwd_fp8_sm90"]
    assert transposed.grid == (2 * 2 * 4, 1, 1)  # blocks of 128 of 500 keys
    assert [(w.name, w.shape, w.dtype) for w in plan.workspaces] == [
        ("v_tiles", (16, 128, 128), "float8_e4m3fn")
    ]
    args = arguments_of(main)
    assert args["map_v"] == TensorMap(
        "v_tiles", "float8_e4m3fn", (128, 128, 16, 1), (128, 1 << 14, 1 << 18), (128, 128, 1, 1)
    )
    assert args["map_q"].dtype == "float8_e4m3fn" and args["map_q"].box == (128, 192, 1, 1)
    assert args["map_k"].strides == (128, 128 * 500, 128 * 1000)
    assert args["value_tiles"].value == 4
    assert main.kernel.shared <= H200.shared_memory


@pytest.mark.parametrize(("one", "steps"), [(False, (2, 1)), (True, (0, 0))])
def test_steps_of_scales(one, steps):
    for planner, name in ((plan_fp8.forward, "wgmma"), (triton_plan.forward, "triton")):
        args = arguments_of(accepted(planner(made_call(implementation=name, one_scale=one))).launches[-1])
        for scale in ("q_scale", "k_scale", "v_scale"):
            assert (args[f"{scale}_batch"].value, args[f"{scale}_head"].value) == steps


@pytest.mark.parametrize(("M", "consumers"), [(1, 2), (128, 2), (129, 3), (4096, 3)])
def test_few_queries_take_two_consumers(M, consumers):
    main = accepted(plan_fp8.forward(made_call(M=M))).launches[1]
    assert dict(main.kernel.defines)["CONSUMERS"] == consumers and main.kernel.threads == 128 * (
        1 + consumers
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"E": 144}, "the head size of v, 144, is above 128"),
        ({"D": 40}, "the head size of q and k, 40, is no multiple of 16"),
        ({"E": 72}, "the head size of v, 72, is no multiple of 16"),
        ({"N": 0}, "no keys to copy"),
        ({"softcap": 1e-38}, "leaves float32"),
    ],
)
def test_what_wgmma_leaves_to_triton(changes, why):
    assert re.search(why, reason(plan_fp8.forward(made_call(**changes))))


@pytest.mark.parametrize("kind", [FP8, FNUZ])
def test_triton_says_how_it_reads_codes(kind):
    for device in (H200, DEVICES["gfx942"]):
        call = made_call(device, "triton", kind)
        kernel = accepted(triton_plan.forward(call)).launches[0].kernel
        constants = dict(kernel.constants)
        assert constants["FORMAT"] is not None and not constants["SCALE_IN_EXPONENT"]
        assert constants["CONVERT"] == (device is H200 and kind == FP8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        made_call(causal=True),
        made_call(M=70, D=64, E=64, window_left=30, softcap=20.0),
        made_call(D=256),
        made_call(config={"TILE_N": 96, "CONSUMERS": 2, "OVERLAP": 1, "STAGES": 4}),
    ],
)
def test_it_compiles_without_spills(call):
    backend = CudaBackend(Path(cuda.__path__[0]))
    plan = accepted(plan_fp8.forward(call))
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    dtypes |= {w.name: w.dtype for w in plan.workspaces}
    for launch in plan.launches:
        assert backend.resources(build.code_object(launch, dtypes, backend, H200)).stack == 0
