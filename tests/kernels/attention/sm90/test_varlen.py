"""attention over varlen sequences by wgmma: plans, and the walk over tiles that are found on the GPU."""

from __future__ import annotations

import itertools
import random
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from portable.backends.cuda.backend import CudaBackend
from portable.kernels.attention.planning import max_tiles
from portable.kernels.attention.semantics.varlen import bounds
from portable.kernels.attention.sm90 import plan as sm90
from portable.plan import Call, Launch, Pointer
from portable.runtime import build
from portable.spec import registry
from tests.kernels.attention.calls import call_of
from tests.kernels.attention.sm90.test_fwd import H200, build_folder
from tests.kernels.plan_parts import accepted, arguments_of, defines, native_kernel, reason

SOURCE = registry.spec("attention").folder / "device/varlen_tiles.cu"


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def whole(n: int) -> torch.Tensor:
    return meta(n, dtype=torch.int32)


def forward(
    C: int = 9, M: int = 1000, N: int = 1200, H: int = 8, G: int = 2, D: int = 128, E: int | None = None,
    dtype: torch.dtype = torch.bfloat16, sinks: bool = False, **given: Any,
) -> Call:  # fmt: skip
    q, k, v = (meta(n, h, d, dtype=dtype) for n, h, d in ((M, H, D), (N, G, D), (N, G, E or D)))
    sink = meta(H, dtype=torch.float32) if sinks else None
    given = {"config": {}, **given}
    return call_of("attention_varlen", "wgmma", H200, q, k, v, whole(C), whole(C), sink, **given)


def backward(
    C: int = 9, M: int = 1000, N: int = 1200, H: int = 8, G: int = 2, D: int = 128, E: int | None = None,
    dtype: torch.dtype = torch.bfloat16, dlse: bool = False, **given: Any,
) -> Call:  # fmt: skip
    q, k, v, o = (
        meta(n, h, d, dtype=dtype) for n, h, d in ((M, H, D), (N, G, D), (N, G, E or D), (M, H, E or D))
    )
    lse = meta(H, M, dtype=torch.float32)
    tensors = o, q, k, v, o, lse, whole(C), whole(C), lse if dlse else None
    return call_of("attention_varlen_backward", "wgmma", H200, *tensors, **{"config": {}, **given})


def number(launch: Launch, name: str) -> Any:
    return arguments_of(launch)[name].value


# Plans --------------------------------------------------------------------------------------------


def test_two_launches_forward():
    plan = accepted(sm90.forward(forward(causal=True)))
    table, main = plan.launches
    assert [each.kernel.name for each in plan.launches] == ["attention_varlen_tiles", "attention_fwd_sm90"]
    pack = defines(main)["PACK_GQA"]
    tile = 64 * defines(main)["CONSUMERS"] // pack
    assert table.grid == (1, 1, 1) and main.grid == (min(max_tiles(1000, 9, tile) * 8 // pack, 132), 1, 1)
    assert number(table, "tile") == tile and number(table, "of_keys") == 0
    assert defines(main)["VARLEN"] == 1 and native_kernel(main).shared <= H200.shared_memory
    sizes = {space.name: space.shape for space in plan.workspaces}
    assert sizes == {
        "bounds": (10, 4), "ranks": (10,), "firsts": (11,), "tile_counts": (2,),
        "tile_list": (max_tiles(1000, 9, tile), 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "pack"),
    [
        ({}, 4),
        ({"G": 8}, 1),
        ({"H": 6}, 1),
        ({"H": 12}, 2),
        ({"H": 32, "G": 2}, 4),
        ({"D": 64}, 4),
        ({"D": 256, "H": 4}, 2),
    ],
)
def test_heads_of_one_key_head_share_a_tile(given, pack):
    """A warp's 16 rows are of one head; TMA loads all heads of the queries as one box."""
    main = accepted(sm90.forward(forward(**given, causal=True))).launches[1]
    rows = 64 * defines(main)["CONSUMERS"]
    assert defines(main)["PACK_GQA"] == pack and rows // pack % 16 == 0
    args = arguments_of(main)
    assert args["map_q"].box == (64, rows // pack, pack, 1)  # type: ignore[union-attr]
    assert args["map_k"].box[2] == args["map_v"].box[2] == 1  # type: ignore[union-attr]


def test_heads_that_do_not_step_have_tiles_of_their_own():
    """Their map has one head, of which a box of several would bring zeros."""
    call = forward(causal=True)
    q = call.tensors["q"]
    assert q is not None
    still = {**call.tensors, "q": replace(q, strides=(q.strides[0], 0, q.strides[2]))}
    main = accepted(sm90.forward(replace(call, tensors=still))).launches[1]
    assert defines(main)["PACK_GQA"] == 1 and arguments_of(main)["map_q"].sizes[2] == 1  # type: ignore[union-attr]


def test_four_launches_backward():
    plan = accepted(sm90.backward(backward(D=128)))
    names = [each.kernel.name for each in plan.launches]
    assert names == [
        "attention_varlen_tiles",
        "attention_bwd_preprocess_sm90",
        "attention_bwd_sm90",
        "attention_bwd_postprocess_sm90",
    ]
    lines = max_tiles(1000, 9, 64)
    grids = [each.grid[0] for each in plan.launches]
    assert grids == [1, lines * 8, max_tiles(1200, 9, 128) * 2, lines * 8]
    sizes = {space.name: space.shape for space in plan.workspaces}
    assert sizes["stats"] == (8, lines, 128) and sizes["dq_accum"] == (8, lines, 64 * 128)
    assert sizes["tile_list"] == (max_tiles(1200, 9, 128), 2) and "claimed" not in sizes
    assert all(defines(each)["VARLEN"] == 1 for each in plan.launches[1:])
    assert native_kernel(plan.launches[2]).shared <= H200.shared_memory


def test_a_block_has_its_own_tile_of_keys():
    """A claimed one's sequence is not uniform to ptxas, which then keeps all products apart."""
    for D in (64, 128):
        assert defines(accepted(sm90.backward(backward(D=D))).launches[2])["PERSISTENT"] == 0


@pytest.mark.parametrize(("G", "together"), [(1, 8), (2, 4), (8, 1), (32, 1)])
def test_eight_key_heads_are_walked_together(G, together):
    table = accepted(sm90.backward(backward(H=64, G=G))).launches[0]
    assert number(table, "together") == together
    assert number(table, "of_keys") == 1 and number(table, "tile") == 128


def test_offsets_are_read_on_the_gpu_alone():
    """Every number of the plan follows from shapes: equal for all offsets. Sequences get their bits whatever
    stands beside them, for tiles do not follow from how many tokens there are."""
    tiles = set()
    for C, M in ((2, 100), (9, 4096), (300, 1 << 17)):
        main = accepted(sm90.forward(forward(C=C, M=M, N=M))).launches[1]
        tiles.add((defines(main)["CONSUMERS"], defines(main)["TILE_N"]))
    assert len(tiles) == 1
    for launch in accepted(sm90.forward(forward())).launches:
        names = [each.tensor for each in arguments_of(launch).values() if isinstance(each, Pointer)]
        assert ("cu_seqlens_q" in names) == (launch.kernel.name == "attention_varlen_tiles")


@pytest.mark.parametrize(
    ("given", "backwards", "reach"),
    [
        ({}, 0, 2**31 - 1),
        ({"causal": True}, 1, 2**31 - 1),
        ({"causal": True, "window_left": 100}, 0, 132),
        ({"window_left": 3, "window_right": 2}, 0, 37),
    ],
)
def test_dear_tiles_first(given, backwards, reach):
    table = accepted(sm90.forward(forward(**given))).launches[0]
    assert number(table, "backwards") == backwards and number(table, "reach") == reach


def test_maps_are_of_all_tokens():
    main = accepted(sm90.forward(forward())).launches[1]
    args = arguments_of(main)
    assert args["map_q"].sizes == (128, 1000, 8, 1) and args["map_q"].strides[:2] == (2 * 8 * 128, 2 * 128)
    assert args["map_v"].sizes == (128, 1200, 2, 1)
    assert args["qheads_per_kvhead"].value == 4 and args["heads"].value == 8 and args["offsets"].value == 9
    assert args["lse_head"].value == 1000 and args["lse_row"].value == 1


def test_no_queries_launch_no_tiles():
    assert accepted(sm90.forward(forward(M=0))).launches[1].grid == (0, 1, 1)


def test_what_is_left_to_others():
    assert "no keys" in reason(sm90.forward(forward(N=0)))
    assert "multiple of 8" in reason(sm90.forward(forward(D=40, E=7)))
    for scale in (0.0, -0.25):
        assert "scale" in reason(sm90.forward(forward(scale=scale)))
    assert "more than" in reason(sm90.forward(forward(M=2**28 + 1)))
    assert "tiles exceed" in reason(sm90.forward(forward(M=2**27, H=1024)))
    call = forward()
    tensors = dict(call.tensors)
    tensors["k"] = replace(call["k"], alignment=8)
    assert "k has rows" in reason(sm90.forward(replace(call, tensors=tensors)))
    assert "0 queries" in reason(sm90.backward(backward(M=0)))
    assert "0 keys" in reason(sm90.backward(backward(N=0)))
    assert "up to 256" in reason(sm90.backward(backward(D=250)))
    assert "blocks" in reason(sm90.backward(backward(M=2**27, H=1024, G=1)))


@pytest.mark.parametrize("op", ["attention_varlen", "attention_varlen_backward"])
def test_the_spec_lists_it_first(op):
    assert registry.spec(op).implementations[0].name == "wgmma"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "most_stack"),
    [
        (forward(causal=True), 64),
        (forward(D=64, causal=True, window_left=5, softcap=5.0, sinks=True), 256),
        (forward(D=256), 64),
        (backward(D=128, causal=True, dlse=True), 0),
        (backward(D=64, dtype=torch.float16), 0),
    ],
    ids=["128", "window, cap, sinks", "256", "gradient 128", "gradient 64"],
)
def test_they_compile(call, most_stack):
    backend = CudaBackend(build_folder())
    plan = accepted(sm90.backward(call) if "do" in call.tensors else sm90.forward(call))
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    dtypes |= {w.name: w.dtype for w in plan.workspaces}
    for launch in plan.launches:
        code = build.code_object(launch, dtypes, backend, H200)
        assert code.threads == native_kernel(launch).threads and code.shared == native_kernel(launch).shared
        if launch is not plan.launches[0]:
            assert backend.resources(code).stack <= most_stack


# The walk -----------------------------------------------------------------------------------------


def cuts(offsets: list[int], total: int) -> list[int]:
    """Where sequences begin, with what lies before the first and behind the last."""
    return [0, *bounds(torch.tensor(offsets), total).tolist(), total]


def walk(launch: Launch, cu_q: list[int], cu_k: list[int]) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """What varlen_tiles.cu makes: the sequences' bounds, and the tiles in order."""
    names = "tile", "of_keys", "reach", "together", "backwards"
    tile, of_keys, reach, together, backwards = (number(launch, name) for name in names)
    q, k = cuts(cu_q, number(launch, "queries")), cuts(cu_k, number(launch, "keys"))
    pairs = zip(itertools.pairwise(q), itertools.pairwise(k), strict=True)
    sequences = [(*one, *other) for one, other in pairs]

    def cost(z: int) -> int:
        begin, end, there, until = sequences[z]
        outside = z in (0, len(sequences) - 1)
        return 0 if outside else min(end - begin if of_keys else until - there, reach).bit_length()

    ranks = sorted(range(len(sequences)), key=lambda z: -cost(z))
    lengths = {z: s[3] - s[2] if of_keys else s[1] - s[0] for z, s in enumerate(sequences)}
    tiles: list[tuple[int, int]] = []
    sections = (
        equals[first : first + together]
        for equals in (list(each) for _, each in itertools.groupby(ranks, cost))
        for first in range(0, len(equals), together)
    )
    for section in sections:
        for number_ in range(max(-(-lengths[z] // tile) for z in section)):
            for z in section:
                count = -(-lengths[z] // tile)
                if number_ < count:
                    tiles.append((z, count - 1 - number_ if backwards else number_))
    return np.array(sequences, np.int32), tiles


def claimed(tiles: int, heads: int, blocks: int, order: random.Random) -> list[tuple[int, int]]:
    """(place of the tile, head) in the order in which blocks take them, which ask in any order."""
    taken, count, rounds = [], 0, [0] * blocks
    asking = list(range(blocks))
    while asking:
        block = order.choice(asking)
        index = (block, 2 * blocks - 1 - block)[rounds[block]] if rounds[block] < 2 else 2 * blocks + count
        count += rounds[block] >= 2
        rounds[block] += 1
        if index < tiles * heads:
            taken.append((index // heads, index % heads))
        else:
            asking.remove(block)
    return taken


OFFSETS = [
    ([0, 5, 6, 306, 370, 499], [0, 5, 6, 306, 370, 499]),
    ([7, 7, 300, 300, 900, 1000], [0, 1200, 1200, 1200, 1200, 1200]),
    ([0], [0]),
    ([3, -9, 5000, 12, 40, 999, 20], [1200, 3, 0, 9, 9, 1500, -2]),
    ([0, 1000], [0, 1200]),
    (list(range(0, 1000, 3)), list(range(0, 1200, 3))[:334]),
]


def launches(C: int, **given: Any) -> list[Launch]:
    calls = forward(C=C, **given), backward(C=C, H=4, G=1, **given), backward(C=C, H=4, G=4, **given)
    plans = sm90.forward(calls[0]), *(sm90.backward(each) for each in calls[1:])
    return [accepted(plan).launches[0] for plan in plans]


@pytest.mark.parametrize("given", [{}, {"causal": True}, {"window_left": 50, "window_right": 9}], ids=str)
@pytest.mark.parametrize(("cu_q", "cu_k"), OFFSETS)
def test_every_tile_of_every_sequence_is_taken_once(cu_q, cu_k, given):
    for launch in launches(len(cu_q), **given):
        sequences, tiles = walk(launch, cu_q, cu_k)
        side, tile = 2 * number(launch, "of_keys"), number(launch, "tile")
        total = number(launch, "keys") if side else number(launch, "queries")
        covered = np.zeros(total, np.int64)
        for z, place in tiles:
            begin, end = sequences[z, side : side + 2]
            covered[begin + place * tile : min(begin + (place + 1) * tile, end)] += 1
        assert (covered == 1).all() and len(tiles) <= max_tiles(total, len(cu_q), tile)
        for blocks in (1, 7, 132):
            taken = claimed(len(tiles), 3, blocks, random.Random(blocks))
            assert sorted(taken) == [(i, head) for i in range(len(tiles)) for head in range(3)]


@pytest.mark.parametrize(("cu_q", "cu_k"), OFFSETS)
def test_blocks_of_keys_follow_those_that_they_wait_for(cu_q, cu_k):
    """dq's sums go in the order of the keys: a tile may wait for earlier ones of its sequence alone."""
    for launch in launches(len(cu_q), window_left=50, window_right=9)[1:]:
        seen: dict[int, int] = {}
        for z, block in walk(launch, cu_q, cu_k)[1]:
            assert block == seen.get(z, 0)
            seen[z] = block + 1


def test_the_longest_come_first():
    lengths = [64, 700, 33, 300, 1]
    offsets = [0, *itertools.accumulate(lengths)]
    launch = accepted(sm90.forward(forward(C=6, M=2000, N=2000, causal=True))).launches[0]
    tiles = walk(launch, offsets, offsets)[1]
    order = list(dict.fromkeys(z for z, _ in tiles))
    assert order == [2, 4, 1, 3, 5, 6]  # what lies behind the last offset sees nothing
    last = -(-700 // number(launch, "tile")) - 1
    assert [place for z, place in tiles if z == 2] == list(range(last, -1, -1))


def test_lines_have_room_for_every_sequence():
    """Blocks of queries of a sequence begin at its first query / QUERIES + its number (`line_of`)."""
    generator = random.Random(2)
    for size in (64, 128):
        for _ in range(200):
            offsets = [generator.randint(-50, 700) for _ in range(generator.randint(1, 12))]
            total, end = generator.randint(0, 600), 0
            for z, (first, last) in enumerate(itertools.pairwise(cuts(offsets, total))):
                assert first // size + z >= end
                end = first // size + z + -(-(last - first) // size)
            assert end <= max_tiles(total, len(offsets), size)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_the_tables_as_the_kernel_makes_them(arch):
    """Emulated: varlen_tiles.cu uses what every vendor's prelude.h has."""
    from portable.backends.rocm import compile as rocm
    from portable.backends.rocm.emulator.code_object import CodeObject
    from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch
    from portable.backends.rocm.emulator.launch import launch as run

    kernel = CodeObject(rocm.compile(SOURCE, (), arch)).kernels["attention_varlen_tiles"]
    for (cu_q, cu_k), given in itertools.product(OFFSETS, ({"causal": True},)):
        for launch in launches(len(cu_q), **given):
            sequences, tiles = walk(launch, cu_q, cu_k)
            most = max_tiles(1200, len(cu_q), number(launch, "tile"))
            shapes = {
                "bounds": sequences.shape, "ranks": (len(sequences),), "firsts": (len(sequences) + 1,),
                "tile_list": (most, 2), "tile_counts": (2,),
            }  # fmt: skip
            arrays = {"cu_seqlens_q": np.array(cu_q, np.int32), "cu_seqlens_k": np.array(cu_k, np.int32)}
            arrays |= {name: np.full(shape, -77, np.int32) for name, shape in shapes.items()}
            kernarg = b"".join(
                struct.pack("<Q", arrays[name].ctypes.data) if isinstance(each, Pointer)
                else struct.pack("<i", each.value)  # type: ignore[union-attr]
                for name, each in launch.args
            )  # fmt: skip
            buffers = [Buffer(name, x.ctypes.data, x.nbytes, name in shapes) for name, x in arrays.items()]
            run(KernelLaunch(kernel, (1, 1, 1), (256, 1, 1), 0, kernarg, buffers))
            assert np.array_equal(arrays["bounds"], sequences)
            assert arrays["tile_counts"].tolist() == [len(tiles), 0]
            assert [tuple(each) for each in arrays["tile_list"][: len(tiles)].tolist()] == tiles
