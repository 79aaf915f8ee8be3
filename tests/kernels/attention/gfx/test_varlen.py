"""Packed sequences on AMD's matrix units: tables of tiles before the dense kernels; emulated runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable.backends.rocm import compile as hip
from portable.backends.rocm.backend import TARGETS
from portable.backends.rocm.emulator.main_loop import main_loop
from portable.dispatch import dispatcher
from portable.kernels.attention.gfx import plan as gfx_plan
from portable.kernels.attention.semantics import varlen
from portable.plan import Call, Launch, Plan, Pointer, Rejected
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS
from tests.kernels.attention.sm90.test_fwd import heads, info
from tests.kernels.plan_parts import accepted, arguments_of, defines, native_kernel

DEVICES = {target.arch: target for target in TARGETS}
NAMES = {"gfx942": "mfma", "gfx1100": "wmma"}


def call(M: int, N: int, C: int, arch: str = "gfx942", D: int = 64, **given: Any) -> Call:
    """A call of attention_varlen and of its gradient at once."""
    H, G = 4, 2
    q, k, lse = heads(M, H, D), heads(N, G, D), heads(H, M, dtype=torch.float32)
    made = dict.fromkeys(("q", "o", "do", "dq"), q) | dict.fromkeys(("k", "v", "dk", "dv"), k)
    made |= {name: heads(C, dtype=torch.int32) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    tensors = {name: info(x) for name, x in (made | {"lse": lse}).items()}
    axes = {"C": C, "H": H, "G": G, "M": M, "N": N, "D": D, "E": D}
    return Call(tensors | {"sinks": None, "dlse": None}, {**DEFAULTS, **given}, axes, DEVICES[arch], {})


def numbers(launch: Launch) -> dict[str, Any]:
    return {name: each.value for name, each in arguments_of(launch).items() if not isinstance(each, Pointer)}  # type: ignore[union-attr]


def covered(table: Launch, walk: Launch, tokens: int, lines: int, count: int, of: int, plan: Plan) -> None:
    """A block for each tile that there may be, and room for it in the table that is made just before."""
    tiles = tokens // lines + count + 1
    assert table.grid == (1, 1, 1) and walk.grid == (tiles * of, 1, 1)
    assert numbers(table)["tile"] == lines and numbers(walk)["tiles"] == tiles
    assert numbers(table)["count"] == numbers(walk)["offsets"] == count
    spaces = {each.name: each.shape for each in plan.workspaces}
    assert spaces["bounds"] == (count + 1, 4) and spaces["tile_list"][0] >= tiles
    args = arguments_of(walk)
    for name in ("bounds", "tile_list", "tile_counts"):
        assert args[name] == Pointer(name, True)


@pytest.mark.parametrize("count", [1, 9, 65536])
@pytest.mark.parametrize("arch", DEVICES)
def test_a_table_and_then_the_dense_kernel(arch, count):
    plan = accepted(gfx_plan.forward(call(1000, 700, count, arch, causal=True, window_left=7)))
    table, main = plan.launches
    found, args = defines(main), numbers(main)
    lines = found["WAVES"] // found["WAVES_E"] * found["TILES_PER_WAVE"] * 16
    covered(table, main, 1000, lines, count, 4, plan)
    assert numbers(table)["of_keys"] == 0 and found["VARLEN"] == 1
    assert (args["left"], args["right"]) == (7, 0)  # from each sequence's own diagonal
    assert (args["q_row"], args["q_head"], args["lse_head"]) == (256, 64, 1000)


@pytest.mark.parametrize("count", [1, 9, 65536])
@pytest.mark.parametrize("arch", DEVICES)
def test_a_table_before_each_walk_of_the_gradient(arch, count):
    plan = accepted(gfx_plan.backward(call(1000, 700, count, arch, causal=True, window_left=7)))
    rows, of_keys, keys, of_queries, queries = plan.launches
    assert [native_kernel(each).entry.removeprefix("attention_") for each in plan.launches] == [
        "bwd_preprocess",
        *("varlen_tiles", "bwd_dkdv"),
        *("varlen_tiles", "bwd_dq"),
    ]
    for table, walk, tokens, of_heads in ((of_keys, keys, 700, 2), (of_queries, queries, 1000, 4)):
        found = defines(walk)
        covered(table, walk, tokens, found["WAVES"] * found["TILES_PER_WAVE"] * 16, count, of_heads, plan)
        assert (numbers(walk)["left"], numbers(walk)["right"]) == (7, 0) and found["VARLEN"] == 1
    assert (numbers(of_keys)["of_keys"], numbers(of_queries)["of_keys"]) == (1, 0)
    assert not any(isinstance(each, Pointer) and "cu_" in each.tensor for each in arguments_of(rows).values())


@pytest.mark.parametrize(("D", "tables"), [(256, 3), (160, 2)])
def test_dk_and_dv_share_a_table_where_their_tiles_are_alike(D, tables):
    """Large heads on RDNA: a launch for each; the table in force is always that of the launch's own tile."""
    plan = accepted(gfx_plan.backward(call(1000, 700, 9, "gfx1100", D=D)))
    table, made, walks = None, 0, 0
    for launch in plan.launches[1:]:
        if native_kernel(launch).entry == "attention_varlen_tiles":
            table, made = launch, made + 1
            continue
        found, of_keys = defines(launch), defines(launch)["OWNS_KEYS"]
        assert table is not None and numbers(table)["of_keys"] == of_keys
        sizes = (700, 2) if of_keys else (1000, 4)
        covered(table, launch, sizes[0], found["WAVES"] * found["TILES_PER_WAVE"] * 16, 9, sizes[1], plan)
        walks += 1
    assert (made, walks) == (tables, 3)


@pytest.mark.parametrize(
    ("given", "backwards"),
    [({}, 0), ({"causal": True}, 1), ({"window_right": 5}, 1), ({"causal": True, "window_left": 5}, 0)],
)
def test_tiles_with_most_keys_come_first(given, backwards):
    forward = accepted(gfx_plan.forward(call(1000, 700, 9, **given))).launches
    _, of_keys, _, of_queries, _ = accepted(gfx_plan.backward(call(1000, 700, 9, **given))).launches
    assert numbers(forward[0])["backwards"] == numbers(of_queries)["backwards"] == backwards
    assert numbers(of_keys)["backwards"] == 0


@pytest.mark.parametrize("plan", [gfx_plan.forward, gfx_plan.backward])
def test_numbers_beyond_32_bits_are_refused(plan):
    for M, C, says in ((2**28 + 1, 2, "268435456"), (8, 2**28 + 1, "sequences")):
        found = plan(call(M, 8, C))
        assert isinstance(found, Rejected) and says in found.reason


@pytest.mark.parametrize("op", ["attention_varlen", "attention_varlen_backward"])
def test_what_the_spec_lists_is_what_is_built(op):
    """Sources are what a kernel's cache key and a wheel are made of."""
    plan = gfx_plan.forward if op == "attention_varlen" else gfx_plan.backward
    built = {native_kernel(each).source.name for each in accepted(plan(call(64, 64, 3))).launches}
    for each in registry.spec(op).implementations:
        if each.languages == ("hip",):
            assert built == {source.name for source in each.sources}


# Emulated -----------------------------------------------------------------------------------------

H, G, D = 2, 1, 24


@pytest.mark.slow
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_main_loop_is_that_of_dense_heads(arch, D):
    packed = native_kernel(accepted(gfx_plan.forward(call(500, 700, 9, arch, D, causal=True))).launches[-1])
    assert dict(packed.defines)["VARLEN"] == 1
    dense = replace(packed, defines=tuple((dict(packed.defines) | {"VARLEN": 0}).items()))
    first, second = (
        main_loop(hip.compile(each.source, each.defines, arch), each.entry) for each in (packed, dense)
    )
    assert first is not None and first == second


def operands(M: int, N: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    shapes = (M, H, D), (N, G, D), (N, G, D), (M, H, D)
    return tuple(torch.randn(shape).bfloat16() for shape in shapes)


def compare(assign: Callable[[str], None], arch: str, offsets: Any, dense: Any, M: int, N: int, **given: Any):
    """o, lse and gradients on the GPU against float64, with `dense` offsets for the same sequences."""
    q, k, v, do = operands(M, N)
    given = DEFAULTS | given
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in offsets)
    exact_q, exact_k = (torch.tensor(x, dtype=torch.int32) for x in dense)
    wide = (q.double(), k.double(), v.double())
    o, lse = varlen.reference_forward(*wide, exact_q, exact_k, None, **given)
    back = do, q, k, v, o.bfloat16(), lse.float()
    do64, q64, k64, v64, o64, lse64 = (x.double() for x in back)
    exact = do64, q64, k64, v64, o64, lse64
    gradients = varlen.reference_backward(*exact, exact_q, exact_k, None, **given)
    assign(arch)
    with portable.using(attention_varlen=NAMES[arch], attention_varlen_backward=NAMES[arch]):
        found = dispatcher.op("attention_varlen")(q, k, v, cu_q, cu_k, **given)
        grads = dispatcher.op("attention_varlen_backward")(*back, cu_q, cu_k, **given)
    torch.testing.assert_close(found[1].double(), lse, atol=1e-3, rtol=1e-3)
    for one, right in zip((found[0], *grads), (o, *gradients), strict=True):
        assert (one.double() - right).norm() < 8e-3 * right.norm()
        assert not one[(right == 0).all((1, 2))].any()
    return found, grads


@pytest.mark.parametrize("arch", NAMES)
def test_empty_sequences_and_tokens_of_none(emulate, arch):
    """Sequences without queries or without keys, tokens of none before and behind."""
    offsets = [3, 30, 30, 110, 140], [0, 33, 40, 40, 170]
    (o, lse), (dq, dk, dv) = compare(emulate, arch, offsets, offsets, 150, 175, causal=True)
    for place in (slice(3), slice(30, 30), slice(140, 150)):
        assert not o[place].any() and not dq[place].any() and (lse[:, place] == -torch.inf).all()
    assert not dk[33:40].any() and not dv[33:40].any() and not dk[170:].any()


@pytest.mark.parametrize("arch", NAMES)
def test_offsets_out_of_order(emulate, arch):
    """An offset counts as at least those before it, and as within the tokens."""
    offsets = [-9, 40, 12, 90, 5000, 70], [2, -1, 60, 30, 100, 2**31 - 1]
    dense = [0, 40, 40, 90, 150, 150], [2, 2, 60, 60, 100, 175]
    compare(emulate, arch, offsets, dense, 150, 175, window_left=20, window_right=9)


@pytest.mark.parametrize("arch", NAMES)
def test_tens_of_thousands_of_sequences(emulate, arch):
    """Each wave and each block walked all the offsets once: 65,535 did not end within minutes."""
    places = (7, 3000, 4095, 4096, 20000, 20001, 65534)
    lengths = ((40, 33), (1, 64), (0, 9), (70, 0), (16, 17), (3, 5), (20, 30))
    counts = torch.zeros(2, 65536, dtype=torch.int32)
    for place, (queries, keys) in zip(places, lengths, strict=True):
        counts[0, place + 1], counts[1, place + 1] = queries, keys
    dense = torch.cat([torch.zeros(2, 1, dtype=torch.int64), torch.tensor(lengths).T.cumsum(1)], 1)
    compare(emulate, arch, counts.cumsum(1).tolist(), dense.tolist(), 155, 160, causal=True)
