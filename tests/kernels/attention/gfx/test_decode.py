"""Decode and paged attention on AMD's matrix units: plans, what emulated GPUs answer, offsets past 2^31."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import portable
from portable.backends.rocm.backend import TARGETS
from portable.dispatch import dispatcher, pins
from portable.kernels.attention.gfx import plan as gfx_plan
from portable.kernels.attention.params import LAYOUT
from portable.kernels.attention.semantics import paged as paged_semantics
from portable.kernels.attention.semantics import reference
from portable.kernels.attention.sm80 import plan as sm80
from portable.kernels.attention.triton import plan as triton_plan
from portable.plan import Call, NativeKernel, Plan, Rejected
from portable.runtime import detect
from tests.kernels.attention.calls import call_of
from tests.kernels.matmul.test_plans import H200
from tests.kernels.plan_parts import accepted, arguments_of

DEVICES = {device.arch: device for device in TARGETS}
FAR = 2**31


def half(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def whole(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.int32, device="meta")


def paged(
    Z: int = 4, M: int = 1, H: int = 32, G: int = 8, D: int = 128, E: int = 128, P: int = 1000, S: int = 16,
    W: int = 512, arch: str = "gfx942", sinks: bool = False, **params: Any,
) -> Call:  # fmt: skip
    name = "mfma" if arch.startswith("gfx9") else "wmma"
    last = torch.empty(H, device="meta") if sinks else None
    caches = half(P, S, G, D), half(P, S, G, E)
    return call_of(
        "attention_paged",
        name,
        DEVICES[arch],
        half(Z, M, H, D),
        *caches,
        whole(Z, W),
        whole(Z),
        last,
        **params,
    )


def number(plan: Plan, launch: int, name: str) -> Any:
    return arguments_of(plan.launches[launch])[name].value


def kernel(plan: Plan, launch: int) -> NativeKernel:
    found = plan.launches[launch].kernel
    assert isinstance(found, NativeKernel)
    return found


# Plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", DEVICES)
def test_chunks_follow_from_a_sequence_alone(arch):
    """Neither the batch nor the table's width is in what a chunk is made of."""
    several = (1, 128), (1, 4096), (64, 512), (7, 65536)
    plans = [accepted(gfx_plan.decode(paged(Z=Z, W=W, arch=arch))) for Z, W in several]
    for plan in plans:
        most = 2 * DEVICES[arch].multiprocessors // 8
        assert [number(plan, 0, "max_splits"), number(plan, 1, "max_splits")] == [most] * 2
        assert [each.kernel for each in plan.launches] == [each.kernel for each in plans[0].launches]
        assert 1 <= number(plan, 0, "splits") <= most


def test_grids_and_workspaces():
    plan = accepted(gfx_plan.decode(paged(Z=3, M=5, H=32, G=8, E=40, W=512)))
    splits = number(plan, 0, "splits")
    assert splits == 512 * 16 // 1024 and number(plan, 0, "tiles") == 2  # 20 queries of a key head
    assert plan.launches[0].grid == (3 * 8 * 2 * splits, 1, 1) and kernel(plan, 0).threads == 256
    assert plan.launches[1].grid == (3 * 5 * 32, 2, 1)
    sizes = {space.name: space.shape for space in plan.workspaces}
    assert sizes == {
        "o_partial": (3, 32, 5, splits, 40),
        "max_partial": (3, 32, 5, splits),
        "sum_partial": (3, 32, 5, splits),
    }
    assert kernel(accepted(gfx_plan.decode(paged(arch="gfx1100"))), 0).threads == 128


def test_nothing_to_do():
    assert accepted(gfx_plan.decode(paged(Z=0))).launches[0].grid[0] == 0
    assert accepted(gfx_plan.decode(paged(M=0))).launches[1].grid[0] == 0
    assert number(accepted(gfx_plan.decode(paged(P=0))), 0, "seqlen_k") == 0
    assert number(accepted(gfx_plan.decode(paged(W=0))), 0, "splits") == 1


def test_what_is_compiled_in():
    def defines(**call: Any) -> dict[str, Any]:
        return dict(kernel(accepted(gfx_plan.decode(paged(**call))), 0).defines)

    assert defines() == {
        "ELEMENT": "bf16", "D": 128, "E": 128, "PAGE": 16, "CHUNK": 1024, "LEFT": 0, "RIGHT": 0, "SOFTCAP": 0,
        "SINKS": 0, "SCALE_ONLY": 1, "PARAMS_LAYOUT": LAYOUT,
    }  # fmt: skip
    assert defines(M=2)["RIGHT"] == 1 and defines(window_left=3)["LEFT"] == 1
    assert defines(softcap=5.0, S=1, D=13, E=7) == {
        "ELEMENT": "bf16", "D": 13, "E": 7, "PAGE": 1, "CHUNK": 1024, "LEFT": 0, "RIGHT": 0, "SOFTCAP": 1,
        "SINKS": 0, "SCALE_ONLY": 0, "PARAMS_LAYOUT": LAYOUT,
    }  # fmt: skip


def contiguous(M: int = 1, bias: torch.Tensor | None = None, **params: Any) -> Plan | Rejected:
    q, k = half(2, 8, M, 64), half(2, 2, 100, 64)
    call = call_of("attention", "decode_mfma", DEVICES["gfx942"], q, k, k, bias, **params)
    return gfx_plan.decode(call)


def test_few_queries_over_a_contiguous_cache():
    first = accepted(contiguous(2, causal=True))
    assert dict(kernel(first, 0).defines)["PAGE"] == 0 and number(first, 0, "block_table") == 0
    assert [number(first, 0, name) for name in ("k_batch", "k_head", "k_row")] == [12800, 6400, 64]
    assert number(first, 0, "right") == 0 and dict(kernel(first, 0).defines)["RIGHT"] == 1
    assert "more than 64 queries" in str(contiguous(17))
    assert "no bias" in str(contiguous(1, half(2, 8, 1, 100)))


def test_what_is_declined():
    assert "32-bit" in str(gfx_plan.decode(paged(W=2**21, S=1024)))
    assert "one launch" in str(gfx_plan.decode(paged(Z=1, M=2**28, D=1, E=1)))
    assert "one launch" in str(gfx_plan.decode(paged(Z=2**20, W=8, D=1, E=1)))


# What an emulated GPU answers --------------------------------------------------------------------


@pytest.fixture
def emulated(monkeypatch):
    """Chooses an emulated GPU; all as it was at the end."""

    def choose(arch: str) -> None:
        monkeypatch.setenv("PORTABLE_BACKEND", "rocm")
        monkeypatch.setenv("PORTABLE_ROCM_ARCH", arch)
        pins.reload()
        detect.reset()

    yield choose
    monkeypatch.undo()
    pins.reload()
    detect.reset()


def on(arch: str, op: str = "attention_paged") -> str:
    name = "mfma" if arch.startswith("gfx9") else "wmma"
    return name if op == "attention_paged" else f"decode_{name}"


def run(op: str, name: str, *tensors: torch.Tensor | None, **params: Any) -> tuple[torch.Tensor, ...]:
    with portable.using(**{op: name}):
        return dispatcher.op(op)(*tensors, **params)


def filled(S: int, lengths: list[int], G: int, D: int, E: int) -> tuple[torch.Tensor, ...]:
    """Caches whose every key that no sequence has is NaN, a table that is garbage behind each sequence."""
    W = max(-(-length // S) for length in lengths) + 1
    counts = [-(-length // S) for length in lengths]
    generator = torch.Generator().manual_seed(2)
    pages = torch.randperm(sum(counts) + 1, generator=generator).to(torch.int32)
    table = torch.full((len(lengths), W), 2**31 - 1, dtype=torch.int32)
    k = torch.full((sum(counts) + 1, S, G, D), torch.nan, dtype=torch.bfloat16)
    v = torch.full((sum(counts) + 1, S, G, E), torch.nan, dtype=torch.bfloat16)
    given = 0
    for z, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        table[z, :count] = pages[given : given + count]
        given += count
        for n in range(length):
            at = table[z, n // S], n % S
            k[at] = torch.randn(G, D, generator=generator).bfloat16()
            v[at] = torch.randn(G, E, generator=generator).bfloat16()
    return k, v, table, torch.tensor(lengths, dtype=torch.int32)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_pages(emulated, arch):
    """Lengths of 0, of less than the queries, of whole pages and one more, of two chunks; and the same bits
    for a sequence that is alone, with a narrower table."""
    emulated(arch)
    k, v, table, lens = filled(16, [1100, 0, 37, 2, 48], G=1, D=40, E=72)
    q = torch.randn(5, 3, 7, 40).bfloat16()  # 21 columns: two tiles
    sinks = torch.randn(7)
    o, lse = run("attention_paged", on(arch), q, k, v, table, lens, sinks)
    wide = (q.double(), k.nan_to_num(7.0).double(), v.nan_to_num(7.0).double())
    expected, sums = paged_semantics.reference_forward(*wide, table, lens, sinks.double(), softcap=None)
    torch.testing.assert_close(o.double(), expected, rtol=1e-2, atol=5e-3)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-5, atol=1e-5)
    for z in (0, 2):
        need = -(-int(lens[z]) // 16)
        own = slice(z, z + 1)
        own_table = table[own, :need].contiguous()
        alone = run("attention_paged", on(arch), q[own], k, v, own_table, lens[own], sinks)
        assert torch.equal(alone[0][0], o[z]) and torch.equal(alone[1][0], lse[z])


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_a_window_and_a_cap_over_odd_pages(emulated, arch):
    emulated(arch)
    k, v, table, lens = filled(7, [300, 19], G=2, D=13, E=29)
    q = torch.randn(2, 2, 2, 13).bfloat16() * 4
    params = {"window_left": 50, "softcap": 3.0, "scale": -0.5}
    o, lse = run("attention_paged", on(arch), q, k, v, table, lens, None, **params)
    wide = (q.double(), k.nan_to_num(7.0).double(), v.nan_to_num(7.0).double())
    expected, sums = paged_semantics.reference_forward(*wide, table, lens, **params)
    torch.testing.assert_close(o.double(), expected, rtol=1e-2, atol=5e-3)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_few_queries_of_attention(emulated, arch):
    emulated(arch)
    q, k, v = (torch.randn(2, heads, rows, 64).bfloat16() for heads, rows in ((4, 3), (2, 150), (2, 150)))
    params: dict[str, Any] = {"window_left": 100, "window_right": 1}
    o, lse = run("attention", on(arch, "attention"), q, k, v, **params)
    expected, sums = reference.attention(q.double(), k.double(), v.double(), **params)
    torch.testing.assert_close(o.double(), expected, rtol=1e-2, atol=5e-3)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-5, atol=1e-5)


# Offsets past 2^31 elements -----------------------------------------------------------------------


def far(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor of which memory holds only what is touched."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    assert span > FAR
    return torch.empty(span, dtype=torch.bfloat16).as_strided(shape, strides)


APART = {
    "pages": (FAR // 2 + 64, 32, 16, 1),
    "keys": (16, FAR // 3 + 64, 48, 1),
    "heads": (64, 16, FAR + 64, 1),
}


@pytest.mark.parametrize(
    ("name", "apart"), [("mfma", "pages"), ("mfma", "keys"), ("mfma", "heads"), ("triton", "pages")]
)
def test_a_cache_of_more_than_2_31_elements(emulated, name, apart):
    """Pages, keys of a page, or heads, so far apart that an offset in 32 bits is another one."""
    emulated("gfx942")
    shape, strides = (3, 4, 2, 16), APART[apart]
    k, v = (far(shape, strides) for _ in range(2))
    near = [torch.randn(shape).bfloat16() for _ in range(2)]
    for to, values in zip((k, v), near, strict=True):
        to.copy_(values)
    table, lens = torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.tensor([11], dtype=torch.int32)
    q = torch.randn(1, 1, 2, 16).bfloat16()
    o, lse = run("attention_paged", name, q, k, v, table, lens)
    expected, sums = run("attention_paged", name, q, *near, table, lens)
    torch.testing.assert_close(o, expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse, sums)


@pytest.mark.parametrize("row", [2**24 - 8, 2**24])
def test_keys_on_both_sides_of_an_offset_in_32_bits(emulated, row):
    """Whole tiles and a last one, of rows whose offsets in a tile are added by the load, or not."""
    emulated("gfx942")
    strides = (168 * row, 168 * row, row, 1)
    k, v = (far((1, 1, 168, 16), strides) for _ in range(2))
    near = [torch.randn(1, 1, 168, 16).bfloat16() for _ in range(2)]
    for to, values in zip((k, v), near, strict=True):
        to.copy_(values)
    q = torch.randn(1, 1, 2, 16).bfloat16()
    found, wanted = (run("attention", "decode_mfma", q, *cache) for cache in ((k, v), near))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_vector_pipe_is_idle_most_of_the_memorys_time(emulated, arch, D):
    """A token of eight query heads that share a KV head; what a split does once is in it."""
    emulated(arch)
    q, k, v = (torch.randn(1, H, n, D).bfloat16() for H, n in ((8, 1), (1, 4096), (1, 4096)))
    with detect.main_backend().trace() as traces:
        run("attention", "decode_mfma", q, k, v)
    bound = traces[0].bound
    assert bound is not None and bound.roof == "memory" and bound.share > 0.99
    cycles = {pipe.name: pipe.cycles for pipe in bound.pipes}
    assert cycles["vector"] < 0.22 * cycles["memory"]
    loads = traces[0].figures["memory"]["global loads"]
    assert loads["sectors"] == loads["fewest_sectors"]


def test_the_cuda_plan_takes_such_caches_too():
    """decode.cu multiplies a page, a row and a head by strides of 64 bits (their width is asserted above)."""
    q, cache = half(1, 1, 8, 64), half(2**22, 16, 8, 64)
    assert cache.numel() > FAR
    call = call_of("attention_paged", "mma", H200, q, cache, cache, whole(1, 64), whole(1))
    given = arguments_of(accepted(sm80.decode(call)).launches[0])
    for name in ("k_batch", "k_head", "k_row", "v_batch", "v_head", "v_row", "block_table_row"):
        assert given[name].kind == "i64"


def test_triton_widens_what_it_multiplies_by_a_stride():
    call = call_of(
        "attention_paged", "triton", H200, half(1, 1, 8, 64), half(2**22, 16, 8, 64), half(2**22, 16, 8, 64),
        whole(1, 64), whole(1),
    )  # fmt: skip
    given = dict(accepted(triton_plan.decode(call)).launches[0].args)
    assert given["k_page"].value == 16 * 8 * 64 and given["o_batch"].kind == "i64"  # type: ignore[union-attr]


# The compiler -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "gfx1201"])
def test_registers_and_lds(arch):
    """No spills or scratch at the largest heads, two blocks a compute unit."""
    from portable.backends.rocm import compile, metadata

    built = kernel(accepted(gfx_plan.decode(paged(D=256, E=256, arch=arch))), 0)
    found = metadata.resources(compile.compile(built.source, built.defines, arch))["attention_decode"]
    assert found["vgpr_spills"] == found["scratch"] == 0 and found["lds"] <= 32 * 1024
    assert found["vgprs"] + found["agprs"] <= 256
