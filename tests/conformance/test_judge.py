"""The judge is judged: correct kernels in any order of summation pass, every mutant is rejected."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.cases import inputs
from portable.conformance.judge.bound import (
    Tolerance,
    bound,
    deterministic,
    integers_exact,
    judge,
    spacing,
    ulp,
)

SEEDS = 20
M, N, K = 33, 40, 257
ROWS, LENGTH = 24, 1000
EPS = 1e-2
ROW_TOLERANCE = Tolerance(0.51, 8 + 2 * math.sqrt(LENGTH), torch.float32)


def draw(
    seed: int, name: str, shape: tuple[int, ...], dtype: torch.dtype, values: str = "normal"
) -> torch.Tensor:
    text = str(dtype).removeprefix("torch.")
    return inputs.make(f"judge/{seed}", name, shape, text, values, "contiguous", int(name == "b")).tensor


def matmul_oracle(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Tolerance]:
    wide_a, wide_b = a.double(), b.double()
    rss = (wide_a.square() @ wide_b.square()).sqrt()
    return wide_a @ wide_b, rss, Tolerance(0.51, 2 * math.sqrt(a.shape[1]), torch.float32)


def truncated(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round towards zero instead of to nearest."""
    near = wide.to(dtype)
    over = near.double().abs() > wide.double().abs()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near)


def chunked(
    a: torch.Tensor, b: torch.Tensor, step: int, partial: torch.dtype = torch.float32
) -> torch.Tensor:
    """The product in chunks of K, partial sums kept in `partial`."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=partial)
    for k in range(0, a.shape[1], step):
        total = (total.float() + a[:, k : k + step].float() @ b[k : k + step].float()).to(partial)
    return total.to(a.dtype)


CORRECT_MATMUL: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "library": lambda a, b: (a.float() @ b.float()).to(a.dtype),
    "chunks of 16": lambda a, b: chunked(a, b, 16),
    "one k at a time": lambda a, b: chunked(a, b, 1),
    "backwards": lambda a, b: chunked(a.flip(1), b.flip(0), 8),
    "split in two": lambda a, b: (
        a[:, :128].float() @ b[:128].float() + a[:, 128:].float() @ b[128:].float()
    ).to(a.dtype),
}
MUTANT_MATMUL: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "off-by-one mask": lambda a, b: (
        torch.cat([a[:, :-1], a[:, -2:-1]], 1).float().matmul(b.float()).to(a.dtype)
    ),
    "dropped k": lambda a, b: (a[:, :-1].float() @ b[:-1].float()).to(a.dtype),
    "missed tile": lambda a, b: torch.nn.functional.pad(
        (a[:32].float() @ b.float()).to(a.dtype), (0, 0, 0, M - 32)
    ),
    "transposed tile": lambda a, b: (a.float() @ b.float()).to(a.dtype).flip(1),
    "zeros": lambda a, b: torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype),
    "echo": lambda a, b: a[:, : b.shape[1]].clone(),
}
NARROW_MUTANT_MATMUL: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "accumulate in the narrow type": lambda a, b: chunked(a, b, 16, a.dtype),
    "split-K partials in the narrow type": lambda a, b: (
        (a[:, :128].float() @ b[:128].float()).to(a.dtype)
        + (a[:, 128:].float() @ b[128:].float()).to(a.dtype)
    ),
    "truncation": lambda a, b: truncated(a.double() @ b.double(), a.dtype),
}


def tf32(x: torch.Tensor) -> torch.Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kernel", list(CORRECT_MATMUL))
def test_correct_products_pass(kernel: str, dtype: torch.dtype):
    for seed in range(SEEDS):
        a, b = draw(seed, "a", (M, K), dtype), draw(seed, "b", (K, N), dtype)
        ref, rss, tolerance = matmul_oracle(a, b)
        verdict = judge(CORRECT_MATMUL[kernel](a, b), ref, rss, tolerance, dtype, bias=True)
        assert verdict.state == "Pass", str(verdict)
        assert 0 < verdict.worst <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kernel", list(MUTANT_MATMUL))
def test_wrong_products_are_rejected(kernel: str, dtype: torch.dtype):
    for seed in range(SEEDS):
        a, b = draw(seed, "a", (M, K), dtype), draw(seed, "b", (K, N), dtype)
        ref, rss, tolerance = matmul_oracle(a, b)
        verdict = judge(MUTANT_MATMUL[kernel](a, b), ref, rss, tolerance, dtype)
        assert verdict.state == "Fail.value" and verdict.first is not None, str(verdict)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", list(NARROW_MUTANT_MATMUL))
def test_narrow_products_are_rejected(kernel: str, dtype: torch.dtype):
    for seed in range(SEEDS):
        a, b = draw(seed, "a", (M, K), dtype), draw(seed, "b", (K, N), dtype)
        ref, rss, tolerance = matmul_oracle(a, b)
        assert not judge(NARROW_MUTANT_MATMUL[kernel](a, b), ref, rss, tolerance, dtype).passed


def test_tf32_products_are_rejected_in_float32():
    for seed in range(SEEDS):
        a, b = draw(seed, "a", (M, K), torch.float32), draw(seed, "b", (K, N), torch.float32)
        ref, rss, tolerance = matmul_oracle(a, b)
        assert not judge(tf32(a) @ tf32(b), ref, rss, tolerance, torch.float32).passed


@pytest.mark.parametrize("values", ["small_integers", "ties"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_integers_are_exact(values: str, dtype: torch.dtype):
    for seed in range(SEEDS):
        a, b = draw(seed, "a", (M, K), dtype, values), draw(seed, "b", (K, N), dtype, values)
        ref, rss, tolerance = matmul_oracle(a, b)
        assert integers_exact(ref, [a, b], torch.float32)
        good = (a.float() @ b.float()).to(dtype)
        assert judge(good, ref, rss, tolerance, dtype, exact=True).passed
        if values == "ties" and dtype is torch.bfloat16:
            away = (good.double() - ref).abs() > 0
            assert away.double().mean() > 0.1
            half_away = torch.where(
                ref.abs() > good.double().abs(),
                torch.nextafter(good, torch.where(ref > 0, torch.inf, -torch.inf).to(dtype)),
                good,
            )
            assert not judge(half_away, ref, rss, tolerance, dtype, exact=True).passed


def test_integers_exact_knows_where_it_does_not_hold():
    x = torch.arange(32.0)
    assert not integers_exact(torch.softmax(x.double(), 0), [x], torch.float32)
    assert not integers_exact(x.double()[:4], [x], torch.float32)
    assert not integers_exact(x.double(), [x * 2**20], torch.float32)


def rms_oracle(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


def rms_fast(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    parts = wide.square().reshape(ROWS, 8, -1).sum(-1).sum(-1, keepdim=True)
    return (wide * (parts / LENGTH + EPS).rsqrt() * weight.float()).to(x.dtype)


def rms_mutants() -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    def wide(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.float(), x.float().square().mean(-1, keepdim=True)

    def eps_outside(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        value, mean = wide(x)
        return (value / (mean.sqrt() + EPS) * weight.float()).to(x.dtype)

    def half_a_wave(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        value = x.float()
        mean = value[:, : LENGTH // 2].square().mean(-1, keepdim=True)
        return (value * (mean + EPS).rsqrt() * weight.float()).to(x.dtype)

    def short_mask(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        value = x.float()
        mean = value[:, :-1].square().sum(-1, keepdim=True) / LENGTH
        return (value * (mean + EPS).rsqrt() * weight.float()).to(x.dtype)

    def rounded_early(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        value, mean = wide(x)
        return (value * (mean + EPS).rsqrt()).to(x.dtype) * weight

    return {
        "eps outside the root": eps_outside,
        "half a wave": half_a_wave,
        "off-by-one mask": short_mask,
        "rounded before the weight": rounded_early,
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_row_norms(dtype: torch.dtype):
    mutants = rms_mutants()
    killed = dict.fromkeys(mutants, 0)
    for seed in range(SEEDS):
        x, weight = draw(seed, "x", (ROWS, LENGTH), dtype), draw(seed, "w", (LENGTH,), dtype)
        ref = rms_oracle(x, weight)
        verdict = judge(rms_fast(x, weight), ref, None, ROW_TOLERANCE, dtype, bias=True)
        assert verdict.state == "Pass", str(verdict)
        for name, mutant in mutants.items():
            killed[name] += not judge(mutant(x, weight), ref, None, ROW_TOLERANCE, dtype).passed
    survivors = {name for name, count in killed.items() if count < SEEDS}
    allowed = {"rounded before the weight"} if dtype is torch.float32 else set()
    assert survivors <= allowed, killed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_softmax_masks(dtype: torch.dtype):
    for seed in range(SEEDS):
        x = draw(seed, "x", (ROWS, LENGTH), dtype)
        ref = torch.softmax(x.double(), -1)
        assert judge(torch.softmax(x.float(), -1).to(dtype), ref, None, ROW_TOLERANCE, dtype).passed
        one_more = torch.softmax(torch.nn.functional.pad(x.float(), (0, 1)), -1)[:, :-1].to(dtype)
        verdict = judge(one_more, ref, None, ROW_TOLERANCE, dtype)
        if dtype is not torch.bfloat16:  # one term in 1 500 lies under a bfloat16 rounding
            assert not verdict.passed
        assert not judge(x, ref, None, ROW_TOLERANCE, dtype).passed
        assert not judge(torch.zeros_like(x), ref, None, ROW_TOLERANCE, dtype).passed


def one(value: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([value], dtype=dtype)


@pytest.mark.parametrize("got, ref, passes", [
    (math.nan, math.nan, True), (1.0, math.nan, False), (math.nan, 1.0, False),
    (math.inf, math.inf, True), (-math.inf, math.inf, False), (65504.0, math.inf, False),
    (math.inf, 70000.0, True), (65504.0, 70000.0, False), (-math.inf, 70000.0, False),
    (math.inf, 65519.0, True), (65504.0, 65519.0, True), (math.inf, 60000.0, False),
    (0.0, 2.0**-26, True), (0.0, 2.0**-14, False),
])  # fmt: skip
def test_nonfinite_rule_in_float16(got: float, ref: float, passes: bool):
    verdict = judge(one(got, torch.float16), one(ref, torch.float64), None,
                    Tolerance(0.51, 8, torch.float32), torch.float16)  # fmt: skip
    assert verdict.passed is passes, str(verdict)


@pytest.mark.parametrize("got, ref, passes", [
    (math.inf, 46127.0, True), (-math.inf, 46127.0, True), (-math.inf, -46127.0, True),
    (math.nan, 46127.0, False), (-math.inf, 70000.0, True), (-math.inf, 1e7, False), (65504.0, 1e7, False),
    (-math.inf, math.inf, False),
])  # fmt: skip
def test_an_infinity_of_either_sign_passes_within_the_bound(got: float, ref: float, passes: bool):
    """Where terms cancel, a bound may be wider than float16: here 1e12 * 8 * 2^-23, about 954,000."""
    verdict = judge(one(got, torch.float16), one(ref, torch.float64), one(1e12, torch.float64),
                    Tolerance(0.51, 8, torch.float32), torch.float16)  # fmt: skip
    assert verdict.passed is passes, str(verdict)


def test_an_infinity_passes_where_no_rounding_is_allowed():
    """0 units of an infinite reference are no number, and no bound to hold anything against."""
    exact = Tolerance(0.0, 0.0, torch.float32)
    for got, ref, passes in (
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (-math.inf, -math.inf, True),
    ):
        assert (
            judge(one(got, torch.float32), one(ref, torch.float64), None, exact, torch.float32).passed
            is passes
        )


def test_shape_dtype_and_message():
    tolerance = Tolerance(0.51, 8, torch.float32)
    ref = torch.ones(2, 3, dtype=torch.float64)
    assert judge(torch.ones(3, 2), ref, None, tolerance, torch.float32).state == "Fail.shape"
    assert judge(torch.ones(2, 3), ref, None, tolerance, torch.float16).state == "Fail.dtype"
    got = torch.ones(2, 3)
    got[1, 2] = 1.5
    verdict = judge(got, ref, None, tolerance, torch.float32)
    assert verdict.wrong == 1 and verdict.first is not None and verdict.first.index == (1, 2)
    text = str(verdict)
    for part in ("[1, 2]", "got 1.5", "expected 1", "bound", "ULP", "1 of 6"):
        assert part in text


def test_empty_outputs_pass():
    verdict = judge(
        torch.empty(0, 4), torch.empty(0, 4, dtype=torch.float64), None, ROW_TOLERANCE, torch.float32
    )
    assert verdict.state == "Pass"


def test_bound_near_zero_pays_for_one_rounding_per_step():
    limit = bound(torch.zeros(1, dtype=torch.float64), None, Tolerance(0.5, 4, torch.float32), torch.float32)
    assert float(limit) == pytest.approx((1 + 8 * 16) * 2.0**-149)


def test_two_runs():
    first = torch.tensor([1.0, math.nan, 3.0])
    assert deterministic(first, first.clone()) is None
    verdict = deterministic(first, torch.tensor([1.0, math.nan, 3.5]))
    assert verdict is not None and verdict.state == "Fail.nondeterministic" and "[2]" in verdict.note
    assert (verdict.wrong, verdict.count, verdict.pattern) == (1, 3, "one element, [2]")
    assert str(verdict) == (
        "Fail.nondeterministic: two runs on the same bytes differ: 3 then 3.5 at [2]; 1 of 3 elements wrong; "
        "wrong: one element, [2]"
    )


def test_two_runs_that_differ_in_what_does_not_compare():
    first = torch.zeros(4, 6)
    second = first.clone()
    second[:, 1::2] = -0.0
    verdict = deterministic(first, second)
    assert verdict is not None and (verdict.wrong, verdict.count) == (12, 24)
    assert "a zero's sign" in str(verdict) and verdict.pattern == "every second column from 1 on"
    strided = torch.zeros(6, 4).T
    assert deterministic(strided, first) is None and deterministic(strided, second) is not None
    narrow = deterministic(first, second.half())
    assert narrow is not None and "shapes or dtypes" in str(narrow)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_unit_in_the_last_place(dtype: torch.dtype, data: st.DataObject):
    """The distance of the two numbers of the type nearest to a value, from the type's own numbers."""
    info = torch.finfo(dtype)
    number = one(data.draw(st.floats(-info.max, info.max, width=64, allow_subnormal=True)), dtype)
    up, down = (torch.nextafter(number, torch.full_like(number, each)) for each in (math.inf, -math.inf))
    steps = [abs(float(other.double() - number.double())) for other in (up, down) if bool(other.isfinite())]
    assert ulp(float(number), dtype) == min(steps)
    if len(steps) == 2 and abs(steps[0]) < math.inf:
        between = (float(number.double()) + float(up.double())) / 2
        if between not in (float(number.double()), float(up.double())):
            assert ulp(between, dtype) == steps[0]


def test_units_where_a_type_has_none():
    beyond = torch.tensor([1e6, 65504.0, 65536.0, 0.0, -0.0, math.inf, math.nan], dtype=torch.float64)
    units = spacing(beyond, torch.float16)
    assert units[:5].tolist() == [32.0, 32.0, 32.0, 2.0**-24, 2.0**-24]
    assert spacing(torch.ones(3, 1, dtype=torch.float64).expand(3, 4), torch.float32).shape == (3, 4)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_error_in_ulp_keeps_its_sign(sign: int):
    tolerance = Tolerance(0.51, 64, torch.float32)
    ref = torch.tensor([3.0, -3.0, 5.0], dtype=torch.float64)
    got = ref.float()
    got[1] += sign * 3 * 2.0**-22  # three units
    got[2] -= sign * 2 * 2.0**-21  # two, the other way
    verdict = judge(got, ref, None, tolerance, torch.float32)
    assert verdict.passed and verdict.ulp == 3 * sign
    rounded = judge(torch.tensor([1.0]).bfloat16(), torch.tensor([1.001], dtype=torch.float64), None,
                    tolerance, torch.bfloat16)  # fmt: skip
    assert rounded.ulp == pytest.approx(-0.001 * 2**7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_what_is_not_finite_does_not_move_the_figures_of_the_rest(dtype: torch.dtype):
    """A row of NaN, Inf and overflow takes another way through the judge."""
    tolerance = Tolerance(0.51, 8, torch.float64 if dtype is torch.float64 else torch.float32)
    ref = draw(0, "x", (16, 5), torch.float32).double() * 1.1
    got = ref.to(dtype) if dtype is not torch.float64 else ref * (1 + 2.0**-52)
    specials = torch.tensor([[math.nan, math.inf, -math.inf, 0.0, 1.7e308]], dtype=torch.float64)
    plain = judge(got, ref, None, tolerance, dtype)
    longer = judge(torch.cat([got, specials.to(dtype)]), torch.cat([ref, specials]), None, tolerance, dtype)
    assert plain.passed and longer.passed and plain.worst > 0
    assert (plain.worst, plain.max_abs, plain.ulp) == (longer.worst, longer.max_abs, longer.ulp)


def test_a_failing_verdict_is_one_paragraph_that_says_everything():
    tolerance = Tolerance(0.51, 8, torch.float32)
    ref = torch.ones(4, 128, dtype=torch.float64) * 1.5
    got = ref.float()
    got[:, -1] = 2.0
    text = str(judge(got, ref, None, tolerance, torch.float32))
    assert text == (
        "Fail.value; 4 of 512 elements wrong; first wrong element [0, 127]: got 2, expected 1.5, "
        "|error| 0.5 > bound 1.52e-06 (4.19e+06 ULP); wrong: the last column of every row"
    )
    got[:, -1] = math.nan
    verdict = judge(got, ref, None, tolerance, torch.float32)
    assert verdict.state == "Fail.nonfinite" and verdict.pattern == "the last column of every row"
    assert "got nan, expected 1.5; wrong: the last" in str(verdict)
    exact = judge(ref.float() + 2.0**-23, ref, None, tolerance, torch.float32, exact=True)
    assert exact.wrong == 512 and exact.pattern == "every element" and "(1 ULP)" in str(exact)
    assert "\n" not in text and judge(ref.float(), ref, None, tolerance, torch.float32).pattern == ""


def test_a_leaning_error_is_a_quality_warning():
    wide = draw(0, "x", (64, 1000), torch.float32).double()
    near = wide.to(torch.bfloat16)
    tolerance = Tolerance(1.0, 8, torch.float32)
    assert judge(near, wide, None, tolerance, torch.bfloat16, bias=True).state == "Pass"
    assert judge(truncated(wide, torch.bfloat16), wide, None, tolerance, torch.bfloat16, bias=True).state == (
        "QualityWarning"
    )
