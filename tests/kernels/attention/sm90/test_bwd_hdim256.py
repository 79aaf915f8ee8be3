"""Plans of attention_backward's wgmma kernels for heads above 128: turns, what is kept, what is rejected."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import portable.backends.cuda as cuda
from portable.backends.cuda.backend import CudaBackend
from portable.kernels.attention.params import of_call
from portable.kernels.attention.sm90 import plan as sm90
from portable.kernels.attention.sm90.plan import TILE, Chunk, chunks_of, held, most_blocks
from portable.plan import Call, Pointer
from portable.runtime import build
from tests.kernels.attention.sm90.test_bwd import H200, make_call, planned
from tests.kernels.plan_parts import arguments_of, reason


def test_statistics_then_two_launches_a_turn():
    plan = planned(make_call(3, 8, 2, 300, 500, 192, 128))
    assert [launch.kernel.name for launch in plan.launches] == [
        "attention_bwd_preprocess_sm90", "attention_bwd_hdim256", "attention_bwd_dq_hdim256"
    ]  # fmt: skip
    assert [launch.grid[0] for launch in plan.launches] == [24 * 5, 6 * 8, 24 * 3]
    assert {w.name: (w.shape, w.dtype) for w in plan.workspaces} == {
        "stats": ((24, 5, 2 * TILE), "float32"),
        "ds_workspace": ((24, 8, 5, TILE * TILE), "bfloat16"),
    }


@pytest.mark.parametrize("slots", [3, 8, 9, 16, 24, 1000])
@pytest.mark.parametrize(("lines", "key_blocks"), [(1, 1), (1, 8), (5, 8), (6, 8), (7, 3)])
def test_turns_take_every_block_once_and_fit(monkeypatch, lines, key_blocks, slots):
    monkeypatch.setattr(sm90, "_FEWEST_BLOCKS", 2)
    turns = list(chunks_of(lines, key_blocks, slots))
    taken = [
        (line, block)
        for turn in turns
        for line in range(turn.line, turn.line + turn.lines)
        for block in range(turn.block, turn.block + turn.blocks)
    ]
    assert sorted(taken) == list(itertools.product(range(lines), range(key_blocks)))
    assert all(turn.lines * turn.blocks <= slots for turn in turns)
    # The first is the largest, and those of a head follow one another: dq's sums are made for it.
    assert all(turn.lines <= turns[0].lines and turn.blocks <= turns[0].blocks for turn in turns)
    for before, turn in itertools.pairwise(turns):
        assert turn.block == 0 or turn == Chunk(before.line, 1, before.block + before.blocks, turn.blocks)


def test_heads_that_do_not_fit_take_turns(monkeypatch):
    call = make_call(2, 8, 4, 1000, 1000, 256)
    kept = 2 * 16 * 16 * TILE * TILE * 2  # of a key head
    monkeypatch.setattr(sm90, "_DS_BYTES", 3 * kept)
    plan = planned(call)
    mains = plan.launches[1::2]
    assert [arguments_of(launch)["line"].value for launch in mains] == [0, 3, 6]
    assert [launch.grid[0] for launch in mains] == [3 * 16, 3 * 16, 2 * 16]
    assert [launch.grid[0] for launch in plan.launches[2::2]] == [6 * 8, 6 * 8, 4 * 8]
    assert {w.name: w.shape[0] for w in plan.workspaces}["ds_workspace"] == 6
    assert "dq_accum" not in {w.name for w in plan.workspaces}


def test_blocks_of_keys_take_turns_where_a_head_does_not_fit(monkeypatch):
    call = make_call(1, 2, 1, 1000, 1000, 256)
    row = 2 * 16 * TILE * TILE * 2  # of a block of keys
    monkeypatch.setattr(sm90, "_DS_BYTES", 6 * row)
    assert "a block of keys" in reason(sm90.backward(call))  # turns of less than a GPU's worth of blocks
    monkeypatch.setattr(sm90, "_FEWEST_BLOCKS", 6)
    plan = planned(call)
    mains = [arguments_of(launch) for launch in plan.launches[1::2]]
    assert [(x["block"].value, x["blocks"].value) for x in mains] == [(0, 6), (6, 6), (12, 4)]
    spaces = {w.name: w for w in plan.workspaces}
    assert spaces["dq_accum"].shape == (2 * 1024 * 256,) and spaces["dq_accum"].dtype == "float32"
    assert all(
        arguments_of(launch)["dq_accum"] == Pointer("dq_accum", True) for launch in plan.launches[2::2]
    )


def test_what_is_kept_is_at_most_a_gibibyte():
    for call in (
        make_call(4, 16, 8, 8192, 8192, 256),
        make_call(1, 128, 128, 16384, 16384, 192, 128),
        make_call(1, 2, 2, 65536, 65536, 192, 128),
    ):
        kept = next(w for w in planned(call).workspaces if w.name == "ds_workspace")
        size = 2
        for each in kept.shape:
            size *= each
        assert size <= 1 << 30
    assert "a block of keys" in reason(sm90.backward(make_call(1, 8, 1, 65536, 65536, 256)))


def seen_blocks(M: int, N: int, left: int, right: int, block: int) -> int:
    """Blocks of queries that see any of a block of keys, as sm90/bwd.h's Sight counts them."""
    offset, first = N - M, block * TILE
    last = min(first + TILE, N) - 1
    lowest = max(0, (first - offset - right) // TILE)
    highest = min(-(-M // TILE) - 1, (last - offset + left) // TILE)
    return max(0, highest - lowest + 1)


@pytest.mark.parametrize(("M", "N"), [(640, 640), (1000, 517), (517, 1000), (64, 65)])
def test_a_window_keeps_no_more_blocks_than_it_shows(M, N):
    for left, right in itertools.product((0, 1, 2, 63, 64, 65, 100, 500), (0, 1, 2, 63, 64)):
        problem = of_call(make_call(1, 1, 1, M, N, 256, window_left=left, window_right=right))
        most = most_blocks(problem)
        found = [seen_blocks(M, N, left, right, block) for block in range(-(-N // TILE))]
        assert max(found) <= most <= max(found) + 2 or problem.left is None or problem.right is None


@pytest.mark.parametrize(
    ("D", "E", "columns", "stages"),
    [(192, 128, (192, 128), 3), (256, 256, (256, 256), 2), (136, 8, (192, 64), 3), (72, 200, (128, 256), 3)],
)
def test_heads_are_padded_to_64s(D, E, columns, stages):
    plan = planned(make_call(1, 2, 2, 200, 100, D, E))
    main = dict(plan.launches[1].kernel.defines)
    assert (main["HEAD_D"], main["HEAD_E"], main["STAGES"]) == (*columns, stages)
    args = arguments_of(plan.launches[1])
    assert [args[f"map_{name}"].sizes[0] for name in ("q", "k", "dk")] == [D, D, D]
    assert [args[f"map_{name}"].sizes[0] for name in ("v", "dout", "dv")] == [E, E, E]
    assert dict(plan.launches[0].kernel.defines)["HEAD"] >= columns[1]


@pytest.mark.slow
def test_registers_hold_rows_beside_the_sums():
    assert (held(192, 128), held(128, 192)) == (192, 128)
    assert held(256, 256) == 64
    for columns, sums in itertools.product((64, 128, 192, 256), repeat=2):
        assert held(columns, sums) % 16 == 0 and held(columns, sums) // 4 + sums // 2 <= 144


def test_it_fits_in_shared_memory():
    for D, E in itertools.product((8, 128, 192, 256), repeat=2):
        if max(D, E) > 128:
            launches = planned(make_call(1, 2, 2, 200, 100, D, E)).launches
            assert all(launch.kernel.shared <= H200.shared_memory for launch in launches)
    call = replace(make_call(1, 2, 2, 64, 64, 256), device=replace(H200, shared_memory=160 * 1024))
    assert "shared memory" in reason(sm90.backward(call))


def test_what_is_left_to_others():
    assert "multiples of 8 up to 256" in reason(sm90.backward(make_call(1, 2, 2, 64, 64, 264)))
    assert "multiples of 8 up to 256" in reason(sm90.backward(make_call(1, 2, 2, 64, 64, 250)))
    assert "bias" in reason(sm90.backward(make_call(1, 2, 2, 64, 64, 256, bias=True)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        make_call(1, 4, 2, 200, 300, 192, 128, causal=True, dlse=True),
        make_call(1, 4, 2, 200, 300, 256, dtype="float16"),
        make_call(1, 4, 2, 200, 300, 256, softcap=20.0),
    ],
)
def test_it_compiles_with_nothing_spilled(call: Call):
    backend = CudaBackend(Path(cuda.__path__[0]))
    plan = planned(call)
    dtypes: dict[str, Any] = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    dtypes |= {w.name: w.dtype for w in plan.workspaces}
    for launch in plan.launches:
        code = build.code_object(launch, dtypes, backend, H200)
        assert code.threads == launch.kernel.threads and code.shared == launch.kernel.shared
        assert backend.resources(code).stack == 0
