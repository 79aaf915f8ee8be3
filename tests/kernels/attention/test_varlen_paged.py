"""attention over a paged cache and over varlen sequences: plans, tables, facades, what a bad table may do."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable import errors
from portable.backends.cuda.backend import CudaBackend
from portable.conformance.cases import inputs
from portable.conformance.cases.generate import cases
from portable.conformance.judge import reference
from portable.dispatch import dispatcher
from portable.kernels.attention.planning import max_tiles
from portable.kernels.attention.semantics.torch_impl import attention_paged, attention_varlen
from portable.kernels.attention.semantics.varlen import bounds
from portable.kernels.attention.sm80 import plan as sm80
from portable.kernels.attention.triton import plan as triton_plan
from portable.kernels.attention.triton import tiles as triton_tiles
from portable.plan import Call, Plan, Rejected, TensorMap
from portable.runtime import build
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS, call_of
from tests.kernels.attention.triton.test_plans import RDNA3
from tests.kernels.matmul.test_plans import H200
from tests.kernels.plan_parts import accepted, arguments_of

TABLES = ("varlen_bounds", "varlen_tiles")


def half(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def whole(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.int32, device="meta")


def paged(implementation: str, Z: int = 4, W: int = 512, S: int = 16, **params: Any) -> Call:
    q, cache, table = half(Z, 1, 32, 128), half(1000, S, 8, 128), whole(Z, W)
    return call_of("attention_paged", implementation, H200, q, cache, cache, table, whole(Z), **params)


def number(plan: Plan, launch: int, name: str) -> Any:
    return arguments_of(plan.launches[launch])[name].value


PLANNERS = {"mma": sm80.decode, "tma": sm80.decode_tma, "triton": triton_plan.decode}
CONTIGUOUS = {"decode": triton_plan.decode, "decode_tma": sm80.decode_tma}


@pytest.mark.parametrize("name", PLANNERS)
def test_chunks_follow_from_a_sequence_alone(name):
    """Neither the batch nor the table's width is in what a chunk is made of, nor in how it is divided: Triton
    divides its only chunk as its merge does."""
    chunk = paged(name).config["CHUNK"]
    several = (1, 128), (1, 4096), (64, 512), (7, 65536), *([] if name == "triton" else [(3, 1)])
    plans = [accepted(PLANNERS[name](paged(name, Z=Z, W=W))) for Z, W in several]
    first = plans[0]
    for plan in plans:
        assert [number(plan, i, "max_splits") for i in (0, 1)] == [number(first, 0, "max_splits")] * 2
        assert [dict(each.kernel.constants)["CHUNK"] for each in plan.launches[1:]] == [chunk]  # type: ignore[union-attr]
        kinds = [each.kernel for each in plan.launches]
        assert kinds == [each.kernel for each in first.launches]


@pytest.mark.parametrize("name", PLANNERS)
def test_partial_sums_stay_within_bounds(name):
    plan = accepted(PLANNERS[name](paged(name, Z=64, W=65536)))
    slots = number(plan, 0, "splits")
    assert slots <= 2 * H200.multiprocessors // 8
    sizes = {space.name: space.shape for space in plan.workspaces}
    assert sizes["o_partial"] == (64, 32, 1, slots, 128)
    assert sizes["max_partial"] == sizes["sum_partial"] == (64, 32, 1, slots)
    assert plan.launches[1].grid[0] == 64 * 32


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_one_chunk_of_a_contiguous_cache_needs_no_merge(name):
    q, k = half(2, 8, 1, 64), half(2, 2, 100, 64)
    assert len(accepted(CONTIGUOUS[name](call_of("attention", name, H200, q, k, k))).launches) == 1
    call = call_of("attention", name, H200, q, k, k, None, torch.empty(8, device="meta"))
    assert len(accepted(CONTIGUOUS[name](call)).launches) == 2


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_many_queries_are_left_to_the_dense_kernels(name):
    call = call_of("attention", name, H200, half(2, 8, 17, 64), half(2, 2, 100, 64), half(2, 2, 100, 64))
    assert isinstance(CONTIGUOUS[name](call), Rejected)


@pytest.mark.parametrize(
    ("arch", "names"), [("sm_90a", ("tma", "decode_tma")), ("sm_80", ("triton", "decode"))]
)
def test_which_is_asked_first(arch, names):
    backend = CudaBackend(CudaBackend.__init__.__globals__["Path"](portable.backends.cuda.__path__[0]))
    for op, name in zip(("attention_paged", "attention"), names, strict=True):
        able = (
            each.name
            for each in registry.spec(op).implementations
            if any(backend.arch_matches(one, arch) for one in each.requires.arch or ("*",))
        )
        assert next(able) == name


def test_no_queries_are_no_programs():
    """`explain` plans them too."""
    q, cache, k = half(4, 0, 32, 128), half(9, 16, 8, 128), half(2, 2, 40, 64)
    for name, planner in PLANNERS.items():
        call = call_of("attention_paged", name, H200, q, cache, cache, whole(4, 64), whole(4))
        assert 0 in accepted(planner(call)).launches[0].grid
    for name, planner in CONTIGUOUS.items():
        assert (
            0 in accepted(planner(call_of("attention", name, H200, half(2, 4, 0, 64), k, k))).launches[0].grid
        )


def test_what_the_cuda_kernel_declines():
    assert "pages of 17 keys" in str(sm80.decode(paged("mma", S=17)))
    q, cache = half(2, 1, 8, 20), half(9, 16, 2, 20)
    call = call_of("attention_paged", "mma", H200, q, cache, cache, whole(2, 4), whole(2))
    assert "aligned pieces" in str(sm80.decode(call))


def tensor_map(plan: Plan, name: str) -> TensorMap:
    found = dict(plan.launches[0].args)[name]
    assert isinstance(found, TensorMap)
    return found


@pytest.mark.parametrize("page", [16, 48, 64, 1024])
def test_a_bulk_copy_stays_in_its_page(page):
    plan = accepted(sm80.decode_tma(paged("tma", S=page)))
    assert dict(plan.launches[0].kernel.defines)["PAGE"] == page  # type: ignore[union-attr]
    for name in ("map_k", "map_v"):
        found = tensor_map(plan, name)
        assert found.sizes == (128, 8, page, 1000) and found.box == (64, 1, sm80.DECODE_KEYS, 1)
        assert found.strides == (256, 2048, page * 2048) and page % sm80.DECODE_KEYS == 0


def test_a_contiguous_cache_is_one_page_a_sequence():
    """Of any strides: here sequences of (keys, heads, columns) in a longer cache."""
    k = half(3, 1000, 2, 64)[:, :900].transpose(1, 2)
    plan = accepted(sm80.decode_tma(call_of("attention", "decode_tma", H200, half(3, 8, 1, 64), k, k)))
    found = tensor_map(plan, "map_k")
    assert found.sizes == (64, 2, 900, 3) and found.strides == (128, 256, 256000)


def test_what_the_copy_engine_declines():
    def reason(cache: torch.Tensor) -> str:
        q = half(2, 1, 8, cache.shape[-1])
        return str(
            sm80.decode_tma(call_of("attention_paged", "tma", H200, q, cache, cache, whole(2, 4), whole(2)))
        )

    assert "pages of 17 keys" in reason(half(9, 17, 2, 64))
    assert "multiples of 16 bytes" in reason(half(9, 16, 2, 20))
    assert "multiples of 16 bytes" in reason(half(9, 16, 2, 68)[..., :64])
    assert "a stride of 0" in reason(half(1, 16, 2, 64).expand(9, 16, 2, 64))
    assert "a stride of 0" in reason(half(9, 16, 1, 64).expand(9, 16, 2, 64))
    assert "no keys" in reason(half(0, 16, 2, 64))
    assert "Plan" in reason(half(1, 16, 2, 64))


@pytest.mark.parametrize("stages", [2, 6])
@pytest.mark.parametrize("head", [8, 64, 128, 192, 256])
def test_bulk_tiles_fit(head, stages):
    q, cache = half(4, 1, 12, head), half(100, 64, 6, head)
    call = call_of("attention_paged", "tma", H200, q, cache, cache, whole(4, 64), whole(4))
    config = {**call.config, "STAGES": stages}
    plan = sm80.decode_tma(Call(call.tensors, call.params, call.axes, H200, config))
    kernel: Any = accepted(plan).launches[0].kernel
    made = dict(kernel.defines)
    assert made["STAGES"] >= 2 and made["WARPS"] == (4 if head == 256 else 8)
    beside = 128 * made["WARPS"] + 8 * made["STAGES"] * made["WARPS"]
    assert kernel.shared + beside <= H200.shared_memory


@pytest.mark.parametrize("head", [64, 128, 256])
def test_tiles_fit_every_gpu(head):
    backend = CudaBackend(CudaBackend.__init__.__globals__["Path"](portable.backends.cuda.__path__[0]))
    for device in backend.targets():
        base = paged("mma")
        q, cache = half(4, 1, 8, head), half(100, 16, 2, head)
        call = call_of("attention_paged", "mma", H200, q, cache, cache, whole(4, 64), whole(4))
        plan = sm80.decode(Call(call.tensors, call.params, call.axes, device, base.config))
        if isinstance(plan, Plan):
            kernel = plan.launches[0].kernel
            assert kernel.shared + 128 * dict(kernel.defines)["WARPS"] <= device.shared_memory  # type: ignore[union-attr]
            assert dict(kernel.defines)["STAGES"] >= 2  # type: ignore[union-attr]


def varlen(C: int = 9, M: int = 1000, N: int = 1200, op: str = "attention_varlen", **params: Any) -> Call:
    q, k = half(M, 8, 64), half(N, 2, 64)
    if op == "attention_varlen":
        return call_of(op, "triton", H200, q, k, k, whole(C), whole(C), **params)
    lse = torch.empty(8, M, device="meta")
    return call_of(op, "triton", H200, q, q, k, k, q, lse, whole(C), whole(C), **params)


def test_entries_hold_every_cut_of_the_tokens():
    """However the offsets lie, the tiles of all sequences find their places, and none reaches another's."""
    generator = torch.Generator().manual_seed(1)
    for tile in (16, 64, 128):
        for _ in range(200):
            count = int(torch.randint(1, 12, (), generator=generator))
            total = int(torch.randint(0, 600, (), generator=generator))
            offsets = torch.randint(-50, 700, (count,), generator=generator)
            cuts = [0, *bounds(offsets, total).tolist(), total]
            entries, end = max_tiles(total, count, tile), 0
            for z, (first, last) in enumerate(itertools.pairwise(cuts)):
                assert first // tile + z >= end
                end = first // tile + z + -(-(last - first) // tile)
                assert end <= (entries if z == count else last // tile + z + 1)
            assert end <= entries


def test_varlen_grids():
    plan = accepted(triton_plan.forward(varlen()))
    tile = dict(plan.launches[2].kernel.constants)["BLOCK_M"]  # type: ignore[union-attr]
    assert [each.kernel.name for each in plan.launches] == [*TABLES, "attention_forward"]
    assert [each.grid for each in plan.launches[:2]] == [(10, 1, 1), (10, 1, 1)]
    assert plan.launches[2].grid == ((1000 // 128 + 10) * (128 // tile) * 8, 1, 1)
    plan = accepted(triton_plan.backward(varlen(op="attention_varlen_backward")))
    names = [each.kernel.name for each in plan.launches]
    assert names == [*TABLES, "attention_bwd_preprocess", "attention_bwd_dkdv", "attention_bwd_dq"]
    tile = dict(plan.launches[3].kernel.constants)["BLOCK_N"]  # type: ignore[union-attr]
    assert plan.launches[1].grid == (10, 2, 1)
    assert plan.launches[3].grid == ((1200 // 128 + 10) * (128 // tile) * 2, 1, 1)
    for each in plan.launches:
        given = [name for name, _ in each.args if "." not in name]
        fixed = dict(each.kernel.constants)  # type: ignore[union-attr]
        assert given == [name for name in each.kernel.function.arg_names if name not in fixed]  # type: ignore[union-attr]


def test_a_descriptor_ends_with_its_sequence():
    """Token t of a sequence of `rows` from `first` on lies where the engine's sum of coordinates and strides,
    of 64 bits, points; the row behind the last one is beyond the dimension."""
    call = varlen(op="attention_varlen_backward", causal=True)
    launch = accepted(triton_plan.backward(call)).launches[3]
    for name in ("q", "do", "k", "v", "dk", "dv"):
        found = dict(launch.args)[name]
        assert isinstance(found, TensorMap) and len(found.sizes) == 5
        row, head = (2 * step for step in call[name].strides[:2])
        for first, rows, token in ((0, 1, 0), (0, 1000, 999), (37, 500, 0), (2**28, 1, 0), (5, 2**28, 70)):
            at = (3, triton_tiles.FAR.value - rows + token, 1, first + rows, triton_tiles.FAR.value)
            assert all(0 <= x < size for x, size in zip(at, found.sizes, strict=True))
            assert at[1] + rows - token == found.sizes[1]
            place = at[0] * 2 + sum(x * step for x, step in zip(at[1:], found.strides, strict=True))
            assert place % 2**64 == (first + token) * row + head + 6
        assert all(0 < step < 2**40 and step % 16 == 0 for step in found.strides)
        assert all(size < 2**31 for size in found.sizes)


def test_varlen_scores_are_computed_again_with_the_dense_tiles():
    for heads in (64, 128):
        q, k = half(1000, 8, heads), half(1000, 2, heads)
        lse = torch.empty(8, 1000, device="meta")
        call = call_of("attention_varlen_backward", "triton", H200, q, q, k, k, q, lse, whole(9), whole(9))
        keys, queries = accepted(triton_plan.backward(call)).launches[3:]
        for launch in (keys, queries):
            fixed = dict(launch.kernel.constants)  # type: ignore[union-attr]
            assert fixed["bias_ptr"] is None and fixed.get("ds") is None and "tiles_ptr" not in fixed


def test_heads_that_the_registers_of_gfx11_do_not_hold_are_refused():
    """As the dense kernels, which these are."""
    for op, planner, most in (
        ("attention_varlen", triton_plan.forward, 128),
        ("attention_varlen_backward", triton_plan.backward, 64),
    ):
        for heads, fits in ((most, True), (most + 8, False)):
            q, k = half(1000, 8, heads), half(1000, 2, heads)
            more = (q, torch.empty(8, 1000, device="meta")) if "backward" in op else ()
            given = ([q] if more else []) + [q, k, k, *more, whole(9), whole(9)]
            answer = planner(replace(call_of(op, "triton", H200, *given), device=RDNA3))
            assert isinstance(answer, Plan) if fits else "registers" in str(answer)


def test_too_many_tokens_are_refused():
    for op, planner in (
        ("attention_varlen", triton_plan.forward),
        ("attention_varlen_backward", triton_plan.backward),
    ):
        assert "tokens" in str(planner(varlen(M=2**28 + 1, op=op)))
        assert "tokens" in str(planner(varlen(C=2**28 + 1, op=op)))
        assert "blocks" in str(planner(varlen(M=2**27, C=2**27, op=op)))


@pytest.mark.slow
def test_they_compile():
    backend = CudaBackend(CudaBackend.__init__.__globals__["Path"](portable.backends.cuda.__path__[0]))
    call = varlen(causal=True, window_left=5)
    for launch in accepted(triton_plan.forward(call)).launches:
        dtypes = {name: info.dtype for name, info in call.tensors.items() if info is not None}
        build.code_object(launch, dtypes | {"bounds": "int32", "q_tiles": "int32"}, backend, H200)
    for name in ("mma", "tma"):
        plan = accepted(PLANNERS[name](paged(name)))
        assert backend.resources(build.code_object(plan.launches[0], {}, backend, H200)).spills == 0


# What they mean -----------------------------------------------------------------------------------


def test_one_sequence_is_attention():
    q, k = torch.randn(7, 4, 16), torch.randn(9, 2, 16)
    offsets = torch.tensor([0, 7]), torch.tensor([0, 9])
    o, lse = attention_varlen(q, k, k, *(x.to(torch.int32) for x in offsets), **DEFAULTS | {"causal": True})
    expected, sums = dispatcher.op("attention")(
        q.transpose(0, 1), k.transpose(0, 1), k.transpose(0, 1), causal=True
    )
    torch.testing.assert_close(o, expected.transpose(0, 1))
    torch.testing.assert_close(lse, sums)


def test_pages_are_looked_up():
    keys, values = torch.randn(1, 2, 37, 16), torch.randn(1, 2, 37, 8)
    table = torch.tensor([[5, 0, 3, -9]], dtype=torch.int32)
    caches = []
    for x in (keys, values):
        cache = torch.full((6, 16, 2, x.shape[-1]), float("nan"))
        padded = torch.cat([x, torch.full((1, 2, 11, x.shape[-1]), float("nan"))], 2)[0].transpose(0, 1)
        cache[table[0, :3].long()] = padded.unflatten(0, (3, 16))
        caches.append(cache)
    q = torch.randn(1, 2, 4, 16)
    o, lse = attention_paged(q, caches[0], caches[1], table, torch.tensor([37], dtype=torch.int32))
    expected, sums = dispatcher.op("attention")(q.transpose(1, 2), keys, values, causal=True)
    torch.testing.assert_close(o, expected.transpose(1, 2))
    torch.testing.assert_close(lse, sums)


def test_offsets_are_brought_into_order():
    assert bounds(torch.tensor([-3, 5, 2, 900, 7]), 10).tolist() == [0, 5, 5, 10, 10]


def test_what_people_call():
    q, k = torch.randn(5, 4, 16), torch.randn(5, 2, 16)
    offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
    o, lse = portable.attention_varlen(q, k, k, offsets, offsets, 3, 3, causal=True, return_lse=True)
    assert o.shape == (5, 4, 16) and lse.shape == (4, 5)
    windowed = portable.attention_varlen(q, k, k, offsets, offsets, 3, 3, window=(1, 0))
    torch.testing.assert_close(windowed[3:4], portable.attention_varlen(
        q[3:4], k[2:4], k[2:4], offsets[:2].clamp(max=1), offsets[:2], causal=True))  # fmt: skip
    cache, table = torch.randn(3, 16, 2, 16), torch.zeros(2, 1, dtype=torch.int32)
    o = portable.attention_paged(q[:2, None], cache, cache, table, torch.tensor([3, 0], dtype=torch.int32))
    assert o.shape == (2, 1, 4, 16) and not o[1].any()


def test_windows_and_sinks_in_words():
    q, offsets = torch.randn(5, 4, 16).bfloat16(), torch.tensor([0, 2, 5], dtype=torch.int32)
    varlen = functools.partial(portable.attention_varlen, q, q, q, offsets, offsets)
    assert torch.equal(varlen(window=(-1, 0)), varlen(causal=True))
    assert torch.equal(varlen(window=[1, None], causal=True), varlen(window=1, causal=True))
    sinks = torch.randn(4)
    assert torch.equal(varlen(sinks=sinks.bfloat16()), varlen(sinks=sinks.bfloat16().float()))
    table, lens = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
    paged = functools.partial(portable.attention_paged, q[None], q[None], q[None], table, lens)
    assert torch.equal(paged(window=(2, 0)), paged(window=2))
    for call, op in ((varlen, "attention_varlen"), (paged, "attention_paged")):
        for wrong in (True, -2, (1,), (1, -2), 0.5):
            with pytest.raises(errors.ParameterError, match=f"{op}.*window"):
                call(window=wrong)


def test_gradients_reach_every_input():
    sizes = ((7, 4, 3), (9, 2, 3), (9, 2, 2))
    q, k, v = (torch.randn(size, dtype=torch.float64) for size in sizes)
    sinks = torch.randn(4, dtype=torch.float64)
    offsets_q, offsets_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 3, 6], [1, 4, 6, 9]))
    leaves = [x.requires_grad_() for x in (q, k, v, sinks)]
    op = dispatcher.op("attention_varlen")

    def call(q, k, v, sinks):
        o, lse = op(q, k, v, offsets_q, offsets_k, sinks, causal=True)
        return o, lse[:, :6]  # the last token is of no sequence

    assert torch.autograd.gradcheck(call, leaves)


# The suite's integers -----------------------------------------------------------------------------


@pytest.fixture
def unanswered(monkeypatch):
    """Questions without the reference's answers."""
    monkeypatch.setattr(reference, "_outputs", lambda *_, **__: {})


@pytest.mark.parametrize("op", ["attention_paged", "attention_varlen", "attention_varlen_backward"])
def test_integers_are_a_function_of_the_case(op, unanswered):
    spec = registry.spec(op)
    several = [case for case in cases(spec, "smoke") if 0 not in dict(case.shape.axes).values()][:6]
    drawn = []
    for case in several:
        one, two = reference.materialize(case, spec), reference.materialize(case, spec)
        assert one.sha256 == two.sha256
        for name, field in spec.inputs.items():
            if field.dtype == "int32":
                assert one.inputs[name].tensor.dtype == torch.int32
                drawn.append(one.sha256[name])
    assert len(set(drawn)) > len(drawn) // 2


def test_bad_tables_are_among_the_cases(unanswered):
    spec, low, high, long = registry.spec("attention_paged"), 0, 0, 0
    for case in cases(spec, "smoke"):
        if min(dict(case.shape.axes).values()) == 0:
            continue
        made, axes = reference.materialize(case, spec).inputs, dict(case.shape.axes)
        lengths, table = made["seq_lens"].tensor, made["block_table"].tensor
        low += int((lengths < 0).sum())
        long += int((lengths > axes["W"] * axes["S"]).sum())
        used = torch.arange(axes["W"]) * axes["S"] < lengths[:, None]
        high += int((((table >= axes["P"]) | (table < 0)) & used).sum())
    assert low and long and high


def test_integers_have_a_poison():
    tensor, buffer = inputs.fenced((4,), torch.int32, "cpu")
    assert inputs.fence_intact(tensor, buffer)
    buffer[0] = 3
    assert not inputs.fence_intact(tensor, buffer)
    assert tensor.shape == (4,)
