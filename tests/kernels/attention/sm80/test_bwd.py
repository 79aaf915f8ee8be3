"""Plans of the attention gradients' mma.sync kernels: who is served, with which tiles; that all compile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from portable.backends.cuda.backend import OTHERS, TARGETS, CudaBackend
from portable.kernels.attention.params import UNBOUNDED
from portable.kernels.attention.planning import DK, DK_DV, DQ, DV, Accumulators
from portable.kernels.attention.sm80 import plan as sm80
from portable.kernels.attention.sm80.plan import HEAD_UNIT, BackwardTile
from portable.layout import ceil_div
from portable.plan import Call, Pointer, Scalar
from portable.runtime import build
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS, WINDOWS_OF_300_BY_500
from tests.kernels.attention.sm90.test_bwd import changed, info
from tests.kernels.attention.sm90.test_bwd import make_call as hopper_call
from tests.kernels.attention.sm90.test_fwd import build_folder
from tests.kernels.plan_parts import accepted, arguments_of, reason

DEVICES = {device.arch: device for device in TARGETS + OTHERS}


def padded(size: int) -> int:
    return ceil_div(size, HEAD_UNIT) * HEAD_UNIT


def make_call(*sizes: Any, arch: str = "sm_80", **options: Any) -> Call:
    return replace(hopper_call(*sizes, **options), device=DEVICES[arch])


def make_varlen_call(
    M: int, N: int, H: int, G: int, D: int, E: int | None = None, C: int = 5, arch: str = "sm_80",
    config: Any = None, **params: Any,
) -> Call:  # fmt: skip
    E = E or D
    shapes = {
        "do": (M, H, E), "q": (M, H, D), "k": (N, G, D), "v": (N, G, E), "o": (M, H, E),
        "dq": (M, H, D), "dk": (N, G, D), "dv": (N, G, E),
    }  # fmt: skip
    tensors: dict[str, Any] = {name: info(shape) for name, shape in shapes.items()}
    tensors |= {"lse": info((H, M), "float32"), "dlse": None}
    tensors |= {name: info((C,), "int32") for name in ("cu_seqlens_q", "cu_seqlens_k")}
    axes = {"C": C, "M": M, "N": N, "H": H, "G": G, "D": D, "E": E}
    return Call(tensors, DEFAULTS | params, axes, DEVICES[arch], config or {})


def planned(call: Call) -> Any:
    return accepted(sm80.backward(call))


def part_of(launch: Any) -> Accumulators:
    found = dict(launch.kernel.defines)
    return Accumulators(*(bool(found[name]) for name in ("KEYS", "SUM_D", "SUM_E")))


def tile_of(launch: Any) -> BackwardTile:
    found = dict(launch.kernel.defines)
    return BackwardTile(found["STEP"], found["WARPS"], found["M_TILES"])


def walks(call: Call) -> dict[Accumulators, Any]:
    """The launches of sm80/bwd.cu by what they make."""
    launches = [each for each in planned(call).launches if each.kernel.entry == "attention_bwd_sm80"]
    return {part_of(each): each for each in launches}


def arguments(call: Call, part: Accumulators) -> dict[str, Any]:
    return arguments_of(walks(call)[part])


def test_the_launches_and_what_lies_between_them():
    call = make_call(3, 8, 2, 300, 500, 128)
    plan = planned(call)
    names = ["attention_bwd_preprocess", "attention_bwd_sm80", "attention_bwd_sm80"]
    assert [launch.kernel.name for launch in plan.launches] == names
    assert [part_of(launch) for launch in plan.launches[1:]] == [DK_DV, DQ]
    assert plan.launches[0].grid == (24 * 19, 1, 1)
    for launch, lines, heads in zip(plan.launches[1:], (500, 300), (6, 24), strict=True):
        assert launch.grid == (-(-lines // tile_of(launch).rows) * heads, 1, 1)
    assert [(w.name, w.shape, w.dtype) for w in plan.workspaces] == [("stats", (24 * 300 + 32, 2), "float32")]


@pytest.mark.parametrize(
    ("D", "E", "parts"),
    [
        (128, 128, [DK_DV, DQ]),
        (192, 64, [DK_DV, DQ]),
        (192, 65, [DK, DV, DQ]),
        (256, 256, [DK, DV, DQ]),
    ],
)
def test_wide_heads_make_dk_and_dv_apart(D, E, parts):
    found = walks(make_call(1, 2, 1, 300, 300, D, E))
    assert list(found) == parts
    for part, launch in found.items():
        args = arguments_of(launch)
        made = [part.owns_keys and part.d, part.owns_keys and part.e, not part.owns_keys]
        assert [isinstance(args[name], Pointer) for name in ("dk", "dv", "dq")] == made


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("E", [1, 7, 64, 72, 128, 200, 256])
@pytest.mark.parametrize("D", [1, 13, 40, 64, 96, 128, 192, 256])
def test_every_head_size_fits_every_gpu(D, E, arch):
    for options in ({}, {"softcap": 3.0, "bias": True, "dtype": "float16"}):
        call = make_call(2, 2, 1, 300, 300, D, E, arch=arch, **options)
        for part, launch in walks(call).items():
            found = dict(launch.kernel.defines)
            assert D <= found["HEAD_D"] < D + 16 and E <= found["HEAD_E"] < E + 16
            assert found["HEAD_D"] % 16 == found["HEAD_E"] % 16 == 0
            assert launch.kernel.threads == 32 * found["WARPS"]
            assert launch.kernel.shared == tile_of(launch).shared(part, padded(D), padded(E))
            assert launch.kernel.shared <= DEVICES[arch].shared_memory


def test_two_blocks_fit_a_multiprocessor_of_sm_80():
    for D in (64, 128):
        for launch in walks(make_call(2, 2, 1, 300, 300, D)).values():
            assert 2 * (launch.kernel.shared + 1024) <= 164 * 1024


def test_memory_holds_two_steps_and_then_the_results():
    tile = BackwardTile(32, 4, 1)
    assert tile.shared(DK_DV, 128, 64) == 64 * (272 + 144) + 2 * 32 * (272 + 144 + 8)
    assert tile.shared(DQ, 128, 64) == 64 * (272 + 144 + 8) + 2 * 32 * (272 + 144)
    assert tile.shared(DV, 128, 64) == 64 * 272 + 2 * 32 * (272 + 144 + 8)
    assert BackwardTile(16, 4, 2).shared(DV, 16, 256) == 128 * 528


def test_few_lines_take_one_group():
    found = walks(make_call(1, 2, 2, 64, 65, 64))
    assert dict(found[DQ].kernel.defines)["M_TILES"] == 1
    assert dict(found[DK_DV].kernel.defines)["M_TILES"] == 2


def test_arguments_of_both_walks():
    call = make_call(3, 8, 2, 300, 500, 128, 64, causal=True, dlse=True)
    keys, queries = arguments(call, DK_DV), arguments(call, DQ)
    for args, results in ((keys, ("dk", "dv")), (queries, ("dq",))):
        for name in ("k", "v", "q", "do", *results):
            field = "dout" if name == "do" else name
            assert args[field].tensor == name
            columns = 64 if name in ("v", "do", "dv") else 128
            rows, count = (500, 2) if name in ("k", "v", "dk", "dv") else (300, 8)
            found = [args[f"{field}_{step}"].value for step in ("batch", "head", "row")]
            assert found == [count * rows * columns, rows * columns, columns]
        sizes = {"qheads_per_kvhead": 4, "seqlen_q": 300, "seqlen_k": 500, "head_dim": 128, "head_dim_v": 64}
        assert {name: args[name].value for name in sizes} == sizes
        assert args["bias"] == Scalar("i64", 0)
    assert (keys["kv_heads"].value, queries["heads"].value) == (2, 8)
    assert (keys["lines"].value, queries["lines"].value) == (6, 24)
    for part, args, lines in ((DK_DV, keys, 500), (DQ, queries, 300)):
        launch = walks(call)[part]
        assert args["tiles"].value == -(-lines // tile_of(launch).rows)
        assert launch.grid == (args["tiles"].value * args["lines"].value, 1, 1)
    assert queries["dv"] == Scalar("i64", 0)
    assert all(arg.kind == "i64" for name, arg in keys.items() if name.endswith(("_batch", "_head", "_row")))
    rows = arguments_of(planned(call).launches[0])
    assert [rows[name].tensor for name in ("dout", "o", "lse", "dlse")] == ["do", "o", "lse", "dlse"]
    assert rows["head_dim_v"].value == 64 and rows["tiles"].value == 19


@pytest.mark.parametrize(("given", "left", "right"), WINDOWS_OF_300_BY_500)
def test_which_keys_a_query_sees(given, left, right):
    for launch in walks(make_call(1, 2, 2, 300, 500, 64, **given)).values():
        args = arguments_of(launch)
        assert (args["left"].value, args["right"].value) == tuple(
            UNBOUNDED if side is None else side for side in (left, right)
        )


def test_varlen_windows_are_those_of_each_sequence():
    for launch in walks(make_varlen_call(300, 500, 2, 2, 64, causal=True, window_left=7)).values():
        args = arguments_of(launch)
        assert (args["left"].value, args["right"].value) == (7, 0)


@pytest.mark.parametrize(
    ("given", "to_score", "cap"),
    [
        ({}, 1 / 8, 0.0),
        ({"scale": 0.0}, 0.0, 0.0),
        ({"scale": -0.5}, -0.5, 0.0),
        ({"softcap": 20.0, "scale": -0.5}, 2 * -0.5 / 20, 20.0),
    ],
)
def test_scores_are_powers_of_two(given, to_score, cap):
    for launch in walks(make_call(1, 1, 1, 8, 8, 64, **given)).values():
        args = arguments_of(launch)
        assert args["score_scale"].value == pytest.approx(to_score * math.log2(math.e))
        assert args["softcap_log2"].value == pytest.approx(cap * math.log2(math.e))
        assert args["scale"].value == given.get("scale", 1 / 8)
        assert dict(launch.kernel.defines)["SOFTCAP"] == ("softcap" in given)


def test_bias_types_and_dlse_reach_the_kernels():
    call = make_call(3, 2, 2, 64, 70, 64, bias=True, dtype="float16")
    for launch in walks(call).values():
        args, found = arguments_of(launch), dict(launch.kernel.defines)
        assert found["BIAS"] == 1 and found["ELEMENT"] == "f16" and args["bias"].tensor == "bias"
        assert [args[f"bias_{side}"].value for side in ("batch", "head", "row")] == [2 * 64 * 70, 64 * 70, 70]
    for given in (False, True):
        rows = planned(make_call(1, 2, 2, 64, 64, 64, dlse=given)).launches[0]
        assert dict(rows.kernel.defines)["DLSE"] == given
        assert hasattr(arguments_of(rows)["dlse"], "tensor") == given


def widths(call: Call) -> list[tuple[int, ...]]:
    """How wide rows are read and written: for statistics, dk with dv, dq."""
    return [
        tuple(value for name, value in launch.kernel.defines if name in ("COPY_BYTES", "STORE_BYTES"))
        for launch in planned(call).launches
    ]


def test_rows_that_are_not_aligned_are_copied_by_the_element():
    call = make_call(1, 2, 1, 9, 9, 64)
    assert widths(call) == [(16,), (16, 16), (16, 16)]
    for name, expected in (
        ("do", [(2,), (2, 16), (2, 16)]),
        ("o", [(2,), (16, 16), (16, 16)]),
        ("q", [(16,), (2, 16), (2, 16)]),
        ("dv", [(16,), (16, 2), (16, 16)]),
        ("dq", [(16,), (16, 16), (16, 2)]),
    ):
        assert widths(changed(call, name, alignment=8)) == expected
    assert widths(changed(call, "k", strides=(0, 0, 68, 1))) == [(16,), (2, 16), (2, 16)]


def test_a_head_size_of_any_number_may_lie_in_aligned_rows():
    call = make_call(1, 2, 2, 9, 9, 61)
    assert widths(call) == [(2,), (2, 2), (2, 2)]
    for name in ("do", "q", "k", "v", "o", "dq", "dk", "dv"):
        call = changed(call, name, strides=(2 * 9 * 64, 9 * 64, 64, 1))
    assert widths(call) == [(16,), (16, 2), (16, 2)]


def test_strides_of_one_row_do_not_matter():
    call = make_call(1, 1, 1, 1, 50, 64)
    for name in ("q", "do", "o", "dq"):
        call = changed(call, name, strides=(3, 5, 7, 1))
    assert widths(call) == [(16,), (16, 16), (16, 16)]


def test_nothing_to_read_leaves_zeros_to_write():
    grids = lambda *sizes: [launch.grid[0] for launch in planned(make_call(*sizes)).launches]  # noqa: E731
    assert grids(0, 2, 2, 129, 8, 64) == [0, 0, 0]
    assert grids(1, 2, 2, 0, 8, 64) == [0, 2, 0]
    assert grids(1, 2, 2, 5, 0, 64) == [2, 0, 2]


def test_dk_and_dv_share_a_table_where_their_tiles_are_alike():
    plan = planned(make_varlen_call(300, 500, 8, 2, 256, C=5))
    table, walk = "attention_varlen_tiles", "attention_bwd_sm80"
    assert [launch.kernel.name for launch in plan.launches[1:]] == [table, walk, walk, table, walk]
    for at, each in ((1, 2), (1, 3), (4, 5)):
        assert dict(plan.launches[at].args)["tile"].value == tile_of(plan.launches[each]).rows


def test_sequences_have_a_table_before_each_walk():
    plan = planned(make_varlen_call(300, 500, 8, 2, 128, C=5, causal=True))
    names = ["attention_bwd_preprocess"] + ["attention_varlen_tiles", "attention_bwd_sm80"] * 2
    assert [launch.kernel.name for launch in plan.launches] == names
    spaces = {w.name: w.shape for w in plan.workspaces}
    assert spaces["stats"] == (8 * 300 + 32, 2) and spaces["bounds"] == (6, 4)
    for table, walk, of_keys in ((*plan.launches[1:3], True), (*plan.launches[3:5], False)):
        args = dict(table.args)
        assert args["of_keys"].value == of_keys and args["tile"].value == tile_of(walk).rows
        assert args["backwards"].value == (not of_keys)  # a sequence's last queries see most keys
        heads = 2 if of_keys else 8
        assert walk.grid[0] == ((500 if of_keys else 300) // tile_of(walk).rows + 6) * heads
        assert walk.grid[0] // heads <= spaces["tile_list"][0]
        assert dict(walk.kernel.defines)["VARLEN"] == 1
        for name in ("bounds", "tile_list", "tile_counts"):
            assert arguments_of(walk)[name].tensor == name


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (make_call(1, 1, 1, 8, 8, 64, dtype="float32"), "float32"),
        (make_call(1, 1, 1, 8, 8, 64, scale=math.nan), "scale"),
        (make_call(1, 1, 1, 8, 8, 64, scale=1e31), "scale"),
        (make_call(1, 1, 1, 8, 8, 64, softcap=1e-35), "scale"),
        (make_call(1, 1, 1, 8, 8, 64, softcap=0.0), "softcap"),
        (make_call(1, 1, 1, 2**29, 8, 64), "more than"),
        (make_call(2**24, 1, 1, 8192, 8, 64), "one launch"),
        (changed(make_call(1, 1, 1, 8, 8, 64), "q", strides=(512, 512, 1, 8)), "stride"),
        (make_call(1, 1, 1, 8, 8, 256, config={"WARPS": 8}), "bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_others(call, word):
    assert word in reason(sm80.backward(call))


def test_config_is_heeded():
    config = {"STEP": 16, "WARPS": 8, "M_TILES": 1, "DQ_STEP": 48, "DQ_WARPS": 2, "DQ_M_TILES": 2}
    found = walks(make_call(1, 1, 1, 300, 300, 64, config=config))
    assert tile_of(found[DK_DV]) == BackwardTile(16, 8, 1) and tile_of(found[DQ]) == BackwardTile(48, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
@pytest.mark.parametrize(
    "call",
    [
        make_call(1, 2, 1, 300, 300, 64, causal=True),
        make_call(1, 2, 1, 300, 300, 128, window_left=5, softcap=5.0, bias=True, dtype="float16"),
        make_call(1, 2, 1, 300, 300, 253, dlse=True),
        make_varlen_call(300, 300, 2, 1, 128, causal=True),
    ],
    ids=["64", "128, window, cap, bias", "253", "varlen 128"],
)
def test_it_compiles_with_little_spilled(call, arch):
    """What the walk over heads needs, at most: read once a step."""
    backend = CudaBackend(build_folder())
    call = replace(call, device=DEVICES[arch])
    plan = planned(call)
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    dtypes |= {w.name: w.dtype for w in plan.workspaces}
    for launch in plan.launches:
        resources = backend.resources(build.code_object(launch, dtypes, backend, DEVICES[arch]))
        assert resources.stack <= 32 and resources.spills == 0


@pytest.mark.parametrize("op", ["attention_backward", "attention_varlen_backward"])
def test_the_specs_list_it_behind_triton_from_sm_80_on(op):
    implementations = registry.spec(op).implementations
    names = [each.name for each in implementations]
    assert names.index("triton") < names.index("mma") < names.index("torch")
    pattern = (implementations[names.index("mma")].requires.arch or ("",))[0]
    backend = CudaBackend(build_folder())
    assert {arch: backend.arch_matches(pattern, arch) for arch in ("sm_75", "sm_80", "sm_90a", "sm_120")} == {
        "sm_75": False, "sm_80": True, "sm_90a": True, "sm_120": True,
    }  # fmt: skip
