"""Plans of attention_varlen_backward's wgmma for heads above 128, and the turns that the GPU finds."""

from __future__ import annotations

import bisect
import itertools
import random
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from portable.backends.cuda.backend import CudaBackend
from portable.kernels.attention.planning import max_tiles
from portable.kernels.attention.sm90 import plan as sm90
from portable.kernels.attention.sm90.plan import TILE
from portable.plan import Plan, Pointer
from portable.runtime import build
from tests.kernels.attention.sm90.test_fwd import H200, build_folder
from tests.kernels.attention.sm90.test_varlen import (
    backward,
    cuts,
    defines,
    number,
    reason,
)
from tests.kernels.plan_parts import accepted, arguments_of, native_kernel


def wide(**given: Any) -> Plan:
    sizes: dict[str, Any] = {"D": 192, "E": 128}
    return accepted(sm90.backward(backward(**(sizes | given))))


def test_tables_places_and_statistics_then_two_launches_a_turn():
    plan = wide()
    assert [each.kernel.name for each in plan.launches] == [
        "attention_varlen_tiles", "attention_varlen_workspace_offsets", "attention_bwd_preprocess_sm90",
        "attention_bwd_hdim256", "attention_bwd_dq_hdim256",
    ]  # fmt: skip
    rows, keys, places = max_tiles(1000, 9, 64), max_tiles(1200, 9, 64), max_tiles(1000, 9, 128)
    assert [each.grid[0] for each in plan.launches] == [1, 1, rows * 8, keys * 2, places * 8]
    sizes = {space.name: space.shape for space in plan.workspaces}
    assert sizes["stats"] == (8, rows, 128) and sizes["tile_list"] == (keys, 2)
    assert sizes["workspace_offsets"] == (10,) and sizes["chunk_layout"] == (4,) and "dq_accum" not in sizes
    assert all(defines(each)["VARLEN"] == 1 for each in plan.launches[1:])
    assert number(plan.launches[0], "of_keys") == 1 and number(plan.launches[0], "tile") == TILE


def test_heads_of_128_stay_with_the_narrow_kernels():
    assert "attention_bwd_sm90" in [each.kernel.name for each in wide(D=128, E=128).launches]
    assert "attention_bwd_hdim256" in [each.kernel.name for each in wide(D=64, E=136).launches]


def test_what_is_left_to_others():
    assert "up to 256" in reason(sm90.backward(backward(D=250)))
    assert "bytes a block of keys" in reason(sm90.backward(backward(M=2**17, N=2**17, D=256)))
    assert "chunks" in reason(sm90.backward(backward(M=2**16, N=2**16, H=128, G=128, D=256)))
    assert "blocks of scores" in reason(sm90.backward(backward(M=2**22, N=2**22, D=256)))
    call = replace(backward(D=256), device=replace(H200, shared_memory=160 * 1024))
    assert "shared memory" in reason(sm90.backward(call))


def test_what_is_kept_is_bounded():
    for tokens, H, G in ((32768, 16, 8), (16384, 128, 128)):
        plan = wide(M=tokens, N=tokens, H=H, G=G)
        kept = next(each for each in plan.workspaces if each.name == "ds_workspace")
        assert kept.shape[0] * TILE * TILE * 2 <= 9 << 27
    small = next(each for each in wide(M=64, N=64, C=2).workspaces if each.name == "ds_workspace")
    assert small.shape[0] <= 3 * 8


def test_every_launch_fits_in_shared_memory():
    for D, E in itertools.product((8, 128, 192, 256), repeat=2):
        if max(D, E) > 128:
            assert all(native_kernel(each).shared <= H200.shared_memory for each in wide(D=D, E=E).launches)


# What the GPU finds ------------------------------------------------------------------------------


class Row(NamedTuple):
    """Gradients of scores of one block of keys and query head, in a turn."""

    begin: int
    size: int


class Found:
    """What attention_varlen_workspace_offsets makes of lengths, and the turns that kernels make of that."""

    def __init__(self, plan: Plan, queries: list[int], keys: list[int]):
        launch = plan.launches[1]
        self.groups, self.share, self.reach, slots = (
            number(launch, name) for name in ("kv_heads", "qheads_per_kvhead", "reach", "slots")
        )
        left, right = number(launch, "left"), number(launch, "right")
        outside = (0, len(queries) - 1)
        self.key_blocks = [-(-n // TILE) for n in keys]
        self.before: list[list[int]] = []  # in the rows before each block of keys, and in all
        for z, (m, n) in enumerate(zip(queries, keys, strict=True)):
            most = 0 if z in outside else min(-(-m // TILE), self.reach)
            late = 2**29 if left < 2**29 else -(-(n - m + right) // TILE)
            rows = [most - min(most, max(0, row - late)) for row in range(self.key_blocks[z])]
            self.before.append([0, *itertools.accumulate(rows)])
        sizes = [before[-1] for before in self.before]
        self.places = [0, *itertools.accumulate(sizes)][:-1]
        self.all, room = sum(sizes), slots // self.share
        if self.all <= room:
            turns = -(-self.groups // (min(self.groups, room // self.all) if self.all else self.groups))
            self.lines, self.parts, self.each, self.part = -(-self.groups // turns), 1, self.all, self.all
        else:
            self.lines, self.each, self.part = 1, room, room - self.reach
            self.parts = -(-self.all // self.part)

    def heads(self, turn: int) -> range:
        line = turn // self.parts * self.lines
        return range(line, max(line, min(line + self.lines, self.groups)))

    def begin(self, z: int, part: int) -> int:
        if part in (0, self.parts):
            return part and self.key_blocks[z]
        return bisect.bisect_left(self.before[z][:-1], part * self.part - self.places[z])

    def blocks(self, turn: int, z: int) -> range:
        part = turn % self.parts
        return range(self.begin(z, part), self.begin(z, part + 1))

    def row(self, turn: int, z: int, block: int, head: int) -> Row:
        first = self.places[z] - turn % self.parts * self.part
        begin, end = self.before[z][block : block + 2]
        return Row(head * self.each + first + begin, end - begin)


def drawn(order: random.Random, total: int, count: int) -> list[int]:
    cu = sorted(order.choices(range(total + 1), k=count))
    begins = cuts(cu, total)
    return [end - begin for begin, end in itertools.pairwise(begins)]


@pytest.mark.parametrize("given", [{}, {"causal": True}, {"causal": True, "window_left": 100}], ids=str)
@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 2), (7, 7)])
@pytest.mark.parametrize("kept", [40, 100, 400, 10**6])
def test_every_block_of_keys_has_one_turn_and_a_place_of_its_own(monkeypatch, H, G, kept, given):
    monkeypatch.setattr(sm90, "_VARLEN_DS_BYTES", kept * TILE * TILE * 2)
    monkeypatch.setattr(sm90, "_VARLEN_FEWEST_BLOCKS", 2)
    order = random.Random(kept + H)
    for count in (1, 2, 3, 9):
        M, N = (order.choice((1, 64, 300, 640)) for _ in range(2))
        plan = wide(C=count, M=M, N=N, H=H, G=G, **given)
        mains, of_dq = plan.launches[3::2], plan.launches[4::2]
        slots = next(each for each in plan.workspaces if each.name == "ds_workspace").shape[0]
        for _ in range(5):
            queries, keys = drawn(order, M, count), drawn(order, N, count)
            found, taken = Found(plan, queries, keys), []
            summed = any(space.name == "dq_accum" for space in plan.workspaces)
            assert found.parts == 1 or summed
            for turn, (main, dq) in enumerate(zip(mains, of_dq, strict=True)):
                heads = found.heads(turn)
                assert sum(found.key_blocks) * len(heads) <= main.grid[0]
                places = max_tiles(M, count, 2 * TILE)
                assert places * len(heads) * (H // G) <= dq.grid[0]
                rows: list[Row] = []
                for z, group in itertools.product(range(count + 1), heads):
                    for block in found.blocks(turn, z):
                        taken.append((z, group, block))
                        first = (group - heads.start) * (H // G)
                        rows += [found.row(turn, z, block, first + each) for each in range(H // G)]
                ends = [0, *(row.begin + row.size for row in sorted(rows) if row.size), slots]
                begins = [row.begin for row in sorted(rows) if row.size]
                assert all(end <= begin for end, begin in zip(ends, [*begins, slots], strict=False))
                assert ends[-2] <= slots
            everything = (
                (z, group, block)
                for z in range(count + 1)
                for group in range(G)
                for block in range(found.key_blocks[z])
            )
            assert sorted(taken) == sorted(everything)


@pytest.mark.parametrize(("M", "N"), [(640, 640), (1000, 517), (130, 2000)])
def test_no_offsets_lead_to_more_than_is_planned_for(M, N):
    order = random.Random(M)
    sides = ({}, {"causal": True}, {"window_right": 200}, {"window_left": 70, "window_right": 3})
    for count, given in itertools.product((2, 3, 12, 80), sides):
        plan = wide(C=count, M=M, N=N, H=1, G=1, **given)
        slots = number(plan.launches[1], "slots")
        for _ in range(20):
            assert Found(plan, drawn(order, M, count), drawn(order, N, count)).all <= slots


@pytest.mark.parametrize(("M", "N"), [(640, 640), (1000, 517), (517, 1000)])
@pytest.mark.parametrize("given", [{"causal": True}, {"window_right": 70}, {}], ids=str)
def test_a_row_holds_the_blocks_of_queries_that_see_its_keys(M, N, given):
    found = Found(wide(C=2, M=M, N=N, **given), [0, M, 0], [0, N, 0])
    right = 0 if "causal" in given else given.get("window_right", 2**29)
    for block, (begin, end) in enumerate(itertools.pairwise(found.before[1])):
        lowest = max(0, (block * TILE - (N - M) - right) // TILE)  # as sm90/bwd.h's BwdSeqlenInfo
        assert end - begin == max(0, -(-M // TILE) - lowest)


# Kernels ------------------------------------------------------------------------------------------


def test_gradients_are_told_where_they_lie():
    args = arguments_of(wide(D=192, E=136).launches[3])
    assert args["dk"] == Pointer("dk") and args["dv"] == Pointer("dv")
    names = ("dk_head", "dk_row", "head_dim", "dv_head", "dv_row", "head_dim_v")
    assert [args[name].value for name in names] == [192, 2 * 192, 192, 136, 2 * 136, 136]


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [{"D": 256, "causal": True, "dlse": True}, {"dtype": torch.float16}, {"D": 256, "softcap": 20.0}],
    ids=str,
)
def test_it_compiles_with_nothing_spilled(given):
    backend = CudaBackend(build_folder())
    call = backward(**({"D": 192, "E": 128} | given if "D" not in given else given))
    plan = accepted(sm90.backward(call))
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    dtypes |= {w.name: w.dtype for w in plan.workspaces}
    for launch in plan.launches[1:]:
        code = build.code_object(launch, dtypes, backend, H200)
        assert code.threads == native_kernel(launch).threads and code.shared == native_kernel(launch).shared
        assert backend.resources(code).stack == 0
