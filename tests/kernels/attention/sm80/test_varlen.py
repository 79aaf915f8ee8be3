"""Plans of varlen sequences by mma.sync: the table of tiles, then the dense kernel's source on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from portable.backends.cuda.backend import OTHERS, TARGETS, CudaBackend
from portable.kernels.attention.planning import max_tiles
from portable.kernels.attention.sm80 import plan as sm80
from portable.plan import Launch, Pointer, Rejected, Scalar
from portable.runtime import build
from portable.spec import registry
from tests.kernels.attention.sm90.test_fwd import build_folder
from tests.kernels.attention.sm90.test_varlen import (
    OFFSETS,
    defines,
    forward,
    number,
    walk,
)
from tests.kernels.plan_parts import accepted, arguments_of, native_kernel

DEVICES = {device.arch: device for device in TARGETS + OTHERS}


def main_of(**call: Any) -> Launch:
    table, main = accepted(sm80.forward(forward(**call))).launches
    assert (table.kernel.name, main.kernel.name) == ("attention_varlen_tiles", "attention_fwd_sm80")
    return main


def tile_m(launch: Launch) -> int:
    found = defines(launch)
    return 16 * found["WARPS"] * found["M_TILES"]


def test_a_block_for_every_tile_that_there_may_be():
    plan = accepted(sm80.forward(forward(C=9, M=1000, H=8, causal=True)))
    table, main = plan.launches
    assert table.grid == (1, 1, 1)
    assert main.grid == (max_tiles(1000, 9, tile_m(main)) * 8, 1, 1)
    assert number(table, "tile") == tile_m(main) and number(table, "of_keys") == 0
    assert defines(main)["VARLEN"] == 1 and number(main, "offsets") == 9
    spaces = {space.name for space in plan.workspaces}
    used = {
        arg.tensor
        for each in plan.launches
        for arg in arguments_of(each).values()
        if isinstance(arg, Pointer)
    }
    assert spaces <= used
    values = {name: arg.value for name, arg in arguments_of(main).items() if isinstance(arg, Scalar)}
    assert not any(value for name, value in values.items() if name.endswith("_batch"))
    assert (values["q_row"], values["q_head"]) == (8 * 128, 128)
    assert (values["lse_row"], values["lse_head"]) == (1, 1000)


@pytest.mark.parametrize(("cu_q", "cu_k"), OFFSETS)
def test_blocks_cover_every_query_of_every_head_once(cu_q, cu_k):
    """As `one_tile_a_block` reads the table: heads of a tile follow one another, blocks beyond idle."""
    table, main = accepted(sm80.forward(forward(C=len(cu_q), H=3, G=3, causal=True))).launches
    sequences, tiles = walk(table, cu_q, cu_k)
    size, covered = tile_m(main), np.zeros((3, 1000), int)
    for block in range(main.grid[0]):
        if block // 3 < len(tiles):
            z, place = tiles[block // 3]
            begin, end = sequences[z, :2]
            covered[block % 3, begin + place * size : min(begin + (place + 1) * size, end)] += 1
    assert (covered == 1).all() and len(tiles) * 3 <= main.grid[0]


@pytest.mark.parametrize(("D", "tile"), [(64, 64), (128, 48), (256, 64)])
def test_how_keys_are_walked_does_not_hang_on_the_other_sequences(D, tile):
    """A second group of queries changes no row's bits; keys of a step would."""
    for C, M in ((2, 1), (2, 5000), (300, 5000), (65, 64)):
        assert defines(main_of(C=C, M=M, D=D))["TILE_N"] == tile


@pytest.mark.parametrize(
    ("C", "M", "groups"), [(2, 64, 1), (2, 65, 2), (65, 4096, 1), (64, 4096, 2), (1, 65, 2)]
)
def test_tiles_are_small_where_sequences_are_short(C, M, groups):
    assert defines(main_of(C=C, M=M))["M_TILES"] == groups


@pytest.mark.parametrize(
    ("given", "backwards"),
    [({}, 0), ({"causal": True}, 1), ({"causal": True, "window_left": 9}, 0), ({"window_right": 0}, 1)],
)
def test_the_dearest_tiles_of_a_sequence_come_first(given, backwards):
    table = accepted(sm80.forward(forward(**given))).launches[0]
    assert number(table, "backwards") == backwards


def test_sinks_rows_of_any_alignment_and_offsets_of_none():
    assert defines(main_of(sinks=True))["SINKS"] == 1
    assert defines(accepted(sm80.forward(forward(D=61, E=24))).launches[1])["COPY_BYTES"] == 2
    moved = replace(forward(), tensors={**forward().tensors, "v": replace(forward()["v"], alignment=2)})
    assert defines(accepted(sm80.forward(moved)).launches[1])["COPY_BYTES"] == 2
    assert main_of(C=1).grid[0] > 0


def test_nothing_to_do():
    assert main_of(M=0).grid == (0, 1, 1)
    assert main_of(N=0).grid[0] > 0  # zeros and -inf are to be written


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (forward(dtype=torch.float32), "float32"),
        (forward(M=2**28 + 1), "tokens"),
        (forward(C=2**28 + 1), "sequences"),
        (forward(M=2**27, H=4096, G=1), "one launch"),
        (forward(scale=1e31), "scale"),
        (forward(softcap=1e-35), "scale"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_others(call, word):
    plan = sm80.forward(call)
    assert isinstance(plan, Rejected) and word in plan.reason


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
@pytest.mark.parametrize(
    "call",
    [
        {"D": 64, "window_left": 5, "window_right": 5, "softcap": 5.0, "sinks": True},
        {"D": 128, "causal": True},
        {"D": 128, "C": 300},
        {"D": 256, "window_left": 9, "scale": -1.0},
    ],
    ids=str,
)
def test_it_compiles_without_spills(call, arch):
    backend, asked = CudaBackend(build_folder()), forward(**{"C": 3, **call})
    plan = accepted(sm80.forward(asked))
    dtypes = {name: x.dtype for name, x in asked.tensors.items() if x is not None}
    dtypes |= {space.name: space.dtype for space in plan.workspaces}
    resources = backend.resources(build.code_object(plan.launches[1], dtypes, backend, DEVICES[arch]))
    assert resources.stack == 0 and resources.spills == 0
    assert native_kernel(plan.launches[1]).shared <= DEVICES[arch].shared_memory


def test_the_spec_lists_it_behind_triton_from_sm_80_on():
    implementations = registry.spec("attention_varlen").implementations
    names = [each.name for each in implementations]
    assert names.index("wgmma") < names.index("triton") < names.index("mma") < names.index("torch")
    assert implementations[names.index("mma")].requires.arch == ("sm_80+",)
