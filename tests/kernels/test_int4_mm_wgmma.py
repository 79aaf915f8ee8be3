"""int4_mm's plans for Hopper's wgmma: tiles, chunks of groups, what they decline; compiled, not run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from portable.backends.cuda.disassembly import mnemonics
from portable.kernels.int4_mm.sm90 import wgmma_plan, widened_plan
from portable.layout import TensorInfo
from portable.plan import Call, Device, NativeKernel, Plan, Rejected
from portable.runtime import build, detect
from portable.spec import registry
from tests.kernels.plan_parts import arguments_of, launch_of, native_kernel, scalar

HOPPER = Device("cuda", "sm_90a", "NVIDIA H200", 0, 132, 32, 227 * 1024)
EXTRAS = {"zero_point": "uint8", "offset": "bfloat16", "bias": "bfloat16"}


def call_of(rows, n, groups, half, given=(), **config) -> Call:
    """Of bfloat16, with those of zero_point, offset and bias that are given."""
    shapes = {
        "x": (rows, 2 * groups * half),
        "weight": (n, groups, half),
        "scale": (n, groups),
        "y": (rows, n),
    }
    types = {"x": "bfloat16", "weight": "uint8", "scale": "bfloat16", "y": "bfloat16"}
    tensors: dict[str, TensorInfo | None] = {}
    for name, shape in shapes.items():
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        tensors[name] = TensorInfo(shape, tuple(strides), types[name])
    for name, dtype in EXTRAS.items():
        shape, strides = ((n,), (1,)) if name == "bias" else ((n, groups), (groups, 1))
        tensors[name] = TensorInfo(shape, strides, dtype) if name in given else None
    return Call(tensors, {}, {"N": n, "G": groups, "P": half}, HOPPER, config)


def changed(call: Call, name: str, **change) -> Call:
    info = call.tensors[name]
    assert info is not None
    return replace(call, tensors={**call.tensors, name: replace(info, **change)})


def launches_of(plan):
    assert isinstance(plan, Plan), plan
    return plan.launches


def defines_of(call: Call) -> dict[str, int | str]:
    return dict(launch_of(wgmma_plan.wgmma(call)).kernel.defines)


@pytest.mark.parametrize(
    "half, chunk, chunks", [(64, 128, 1), (32, 64, 1), (96, 64, 3), (16, 32, 1), (48, 32, 3), (2048, 128, 32)]
)
def test_a_chunk_is_the_longest_that_divides_a_group(half, chunk, chunks):
    launch = launch_of(wgmma_plan.wgmma(call_of(256, 512, 2, half)))
    assert dict(launch.kernel.defines)["CHUNK"] == chunk and scalar(launch, "chunks") == chunks


def test_few_rows_or_columns_take_small_tiles():
    assert defines_of(call_of(64, 14336, 32, 64))["TILE_M"] == 64
    assert defines_of(call_of(256, 14336, 32, 64))["TILE_M"] == 128
    assert (
        defines_of(call_of(256, 4096, 112, 64))["TILE_M"] == 64
    )  # 64 tiles of 128 rows for 132 multiprocessors
    assert defines_of(call_of(64, 14336, 32, 64, TILE_M=128))["TILE_M"] == 128


def test_blocks_are_persistent_and_load_no_rows_outside_x():
    launch = launch_of(wgmma_plan.wgmma(call_of(4096, 14336, 32, 64)))
    assert launch.grid == (132, 1, 1) and scalar(launch, "tiles") == 32 * 112
    few = launch_of(wgmma_plan.wgmma(call_of(17, 64, 2, 64)))
    assert few.grid == (1, 1, 1) and dict(few.kernel.defines)["BOX_ROWS"] == 24


def test_x_is_summed_over_chunks_for_an_offset_alone():
    plan = wgmma_plan.wgmma(call_of(130, 512, 3, 96, ("offset",), TILE_M=128))
    assert isinstance(plan, Plan)
    sums, product = plan.launches
    assert sums.kernel.name == "chunk_sums" and sums.grid == (17, 1, 1)
    (space,) = plan.workspaces
    assert space.shape == (9, 256) and scalar(product, "pitch") == 256  # to the end of the tiles
    alone = wgmma_plan.wgmma(call_of(130, 512, 3, 96, ("zero_point", "bias")))
    assert isinstance(alone, Plan) and len(alone.launches) == 1 and not alone.workspaces


def test_a_single_row_s_stride_is_not_tma_s():
    call = changed(call_of(1, 64, 2, 64), "x", strides=(3, 1))
    assert arguments_of(launch_of(wgmma_plan.wgmma(call)))["map_x"].strides == (512, 512, 512)


@pytest.mark.parametrize(
    "call, says",
    [
        (call_of(0, 64, 2, 64), "nothing to multiply"),
        (call_of(4, 0, 2, 64), "nothing to multiply"),
        (call_of(4, 64, 2, 0), "nothing to multiply"),
        (call_of(4, 64, 2, 33), "groups of 66 k: not a multiple of 32"),
        (call_of(4, 65, 2, 64), "N = 65 is no multiple of 8"),
        (changed(call_of(4, 64, 2, 64), "x", strides=(260, 1)), "rows of x .* 260 apart"),
        (changed(call_of(4, 64, 2, 64), "x", strides=(0, 1)), "rows of x .* 0 apart"),
        (changed(call_of(4, 64, 2, 64), "x", alignment=2), "base aligned to 16 bytes; that of x"),
        (changed(call_of(4, 64, 2, 64), "weight", alignment=8), "that of weight"),
        (changed(call_of(4, 64, 2, 64), "scale", strides=(2**26, 1)), "places in scale exceed 32 bits"),
    ],
)
def test_what_it_declines(call, says):
    plan = wgmma_plan.wgmma(call)
    assert isinstance(plan, Rejected) and re.search(says, plan.reason), plan


@pytest.mark.parametrize(
    "rows, n, groups, half, parts, stages",
    [
        (64, 4096, 32, 64, 4, 4),
        (64, 8192, 64, 64, 2, 16),
        (128, 4096, 112, 64, 4, 14),
        (65, 136, 12, 64, 6, 1),
        (40, 72, 1, 1024, 8, 1),
        (33, 14336, 32, 64, 1, 16),  # tiles that fill the GPU
    ],
)
def test_k_is_shared_where_tiles_do_not_fill_the_gpu(rows, n, groups, half, parts, stages):
    plan = wgmma_plan.splitk(call_of(rows, n, groups, half))
    assert isinstance(plan, Plan)
    product, *reduction = plan.launches
    assert (scalar(product, "k_splits"), scalar(product, "split_stages")) == (parts, stages)
    tiles = -(-n // 128) * -(-rows // int(dict(native_kernel(product).defines)["TILE_M"]))
    assert scalar(product, "tiles") == tiles * parts and product.grid == (min(tiles * parts, 132), 1, 1)
    assert (parts - 1) * stages * 256 < 2 * groups * half <= parts * stages * 256  # every part has some
    assert len(reduction) == len(plan.workspaces) == (parts > 1)
    if parts > 1:
        assert reduction[0].kernel.name == "matmul_splitk_reduce" and reduction[0].grid[0] == tiles
        assert (scalar(reduction[0], "m"), scalar(reduction[0], "n")) == (n, rows)


def test_split_k_is_not_taken_for_what_other_kernels_do_better():
    few = wgmma_plan.splitk(call_of(32, 4096, 32, 64))
    many = wgmma_plan.splitk(call_of(4096, 4096, 32, 64))
    assert isinstance(few, Rejected) and few.reason == "32 rows: mma is faster up to 32"
    assert isinstance(many, Rejected) and many.reason.startswith("split-K not needed: 1024 tiles for 132")


@pytest.mark.parametrize("given", [(), tuple(EXTRAS)])
@pytest.mark.parametrize("half", [16, 32, 64])
@pytest.mark.parametrize("rows", [64, 128])
def test_stages_fit_shared_memory(rows, half, given):
    kernel = wgmma_plan.wgmma(call_of(512, 512, 4, half, given, TILE_M=rows))
    assert isinstance(kernel, Plan) and isinstance(kernel.launches[-1].kernel, NativeKernel)
    found = kernel.launches[-1].kernel
    assert int(dict(found.defines)["STAGES"]) >= 4 and found.shared <= HOPPER.shared_memory


@pytest.mark.slow
@pytest.mark.parametrize("given", [(), ("zero_point",), ("offset",), tuple(EXTRAS)])
@pytest.mark.parametrize("half", [16, 32, 64])
@pytest.mark.parametrize("rows", [64, 128])
def test_a_consumer_s_sums_and_numbers_fit_its_registers(rows, half, given):
    backend = detect.backend_class("cuda")(registry.vendors()["cuda"])
    call = call_of(512, 512, 4, half, given, TILE_M=rows)
    types = {name: each.dtype for name, each in call.tensors.items() if each}
    types |= {"chunk_sums": "float32", "partials": "float32"}
    plan, shared = wgmma_plan.wgmma(call), wgmma_plan.splitk(call_of(rows, 512, 4, 256, given, TILE_M=rows))
    assert isinstance(plan, Plan) and isinstance(shared, Plan) and len(shared.launches) > len(plan.launches)
    for launch in (*plan.launches, *shared.launches):
        code = build.code_object(launch, types, backend, HOPPER)
        found = backend.resources(code)
        assert found.spills == found.stack == 0
        if launch.kernel.name == "int4_mm_wgmma":
            names = mnemonics(code.binary)
            # 16 products of 16 k for each 256 k, and codes in vectors of 16 bytes.
            assert sum(each.startswith("HGMMA") for each in names) == 16
            assert sum(each == "LDS.128" for each in names) >= 16


def widened(rows=4096, n=14336, groups=32, half=64, given=(), **config):
    return widened_plan.widened(call_of(rows, n, groups, half, given, **config))


def test_numbers_of_many_rows_are_made_once():
    plan = widened(given=("zero_point", "bias"))
    assert isinstance(plan, Plan)
    codes, product = plan.launches
    assert [launch.kernel.name for launch in plan.launches] == ["widen_codes", "int4_mm_widened"]
    assert [(space.shape, space.dtype) for space in plan.workspaces] == [
        ((14336, 4096), "bfloat16"),
        ((32, scalar(product, "pitch")), "float32"),
    ]
    assert codes.grid == (1792, 4, 1) and scalar(codes, "group") == 128 and scalar(product, "chunks") == 1
    maps = {name: arguments_of(product)[name].tensor for name in ("map_numbers", "map_x", "map_y")}
    assert maps == {"map_numbers": "numbers", "map_x": "x", "map_y": "y"}
    whole = widened(groups=1, half=2048)
    assert isinstance(whole, Plan) and scalar(whole.launches[1], "chunks") == 32


@pytest.mark.parametrize(
    "change, says",
    [
        ({"rows": 256}, "256 rows: numbers made once take"),
        ({"half": 32}, "groups of 64 k: not a multiple of 128"),
        ({"given": ("offset",)}, "an offset: wgmma adds its part"),
        ({"n": 14337}, "no multiple of 8"),
    ],
)
def test_what_widened_leaves_to_wgmma(change, says):
    plan = widened(**change)
    assert isinstance(plan, Rejected) and says in plan.reason


@pytest.mark.slow
@pytest.mark.parametrize("given", [(), ("zero_point", "bias")])
def test_the_products_of_a_chunk_are_waited_for_once(given):
    backend = detect.backend_class("cuda")(registry.vendors()["cuda"])
    call = call_of(4096, 14336, 32, 64, given)
    types = {name: each.dtype for name, each in call.tensors.items() if each}
    types |= {"numbers": "bfloat16", "scales": "float32"}
    for launch in launches_of(widened_plan.widened(call)):
        code = build.code_object(launch, types, backend, HOPPER)
        found = backend.resources(code)
        assert found.spills == found.stack == 0
        if launch.kernel.name == "int4_mm_widened":
            assert native_kernel(launch).shared <= HOPPER.shared_memory
            names = mnemonics(code.binary)
            # Eight for each chunk; serialised, each product would have a wait of its own.
            assert sum(each.startswith("HGMMA") for each in names) == 8
            assert sum(each.startswith("WARPGROUP") for each in names) == 4
