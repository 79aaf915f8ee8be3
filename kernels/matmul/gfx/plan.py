"""Plans for the matrix-core kernels of AMD's GPUs: mfma.hip (CDNA) and wmma.hip (RDNA 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from portable import dtypes
from portable.kernels.matmul.gfx.align_copy import copied
from portable.kernels.matmul.gfx.tile_cost import Tile, clocks
from portable.kernels.matmul.launch_args import ACTIVATIONS, ceil, gated_define, preactivation_define
from portable.kernels.matmul.problem import Problem, for_call
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_FOLDER = Path(__file__).resolve().parent
MFMA, WMMA = _FOLDER / "mfma.hip", _FOLDER / "wmma.hip"
_HALVES = ("bfloat16", "float16")
# Sizes and tile coordinates are 32-bit; a grid dimension counts fewer than 2^32 threads.
_MAX_EXTENT = 2**31 - 256
_MAX_TILES = 2**32 // 512 - 1
_MAX_BATCHES_Y = 2**15

FEW_ROWS, _LARGE, _SMALL = Tile(32, 128, 64, 1), Tile(128, 128, 32, 2), Tile(64, 64, 64, 2)


def plan_mfma(problem: Problem, call: Call) -> Plan | Rejected:
    """CDNA's matrix cores: bfloat16 or float16, any layout with a unit stride, any batch. Operands that are
    not aligned are copied first where that takes less time."""
    device, found = call.device, None
    if unfit(problem) is None and not aligned(problem):
        found = copied(problem, device, aligned, lambda product: least_clocks(product, device))
    if found is None:
        return _plan(problem, call, MFMA, "matmul_mfma", mfma_tile)
    names = [each.name for each in found.workspaces]
    tile_for = partial(mfma_tile, copies=names)
    made = _plan(found.problem, call, MFMA, "matmul_mfma", tile_for)
    if isinstance(made, Rejected):
        return made
    return Plan((*found.launches, *made.launches), found.workspaces)


def least_clocks(product: Problem, device: Device) -> float:
    """Those of the best tile of aligned operands, in one part."""
    return min(clocks(tile, product, device)[0] for tile in ALIGNED)


def plan_wmma(problem: Problem, call: Call) -> Plan | Rejected:
    """RDNA's matrix units: bfloat16 or float16, any layout with a unit stride, any batch."""
    return _plan(problem, call, WMMA, "matmul_wmma", wmma_tile)


mfma, wmma = for_call(plan_mfma), for_call(plan_wmma)


# Tiles of aligned operands. Which of them computes an element of c does not change its bits.
ALIGNED = (
    Tile(256, 256, 64, 2, threads=512, aligned=True, ping_pong=True),
    Tile(256, 128, 64, 4, threads=512, aligned=True, ping_pong=True),
    Tile(128, 256, 64, 2, threads=512, aligned=True, ping_pong=True),
    Tile(128, 128, 64, 2, aligned=True, ping_pong=True),
    _SMALL._replace(aligned=True),
    FEW_ROWS._replace(aligned=True),
)
# Of others, with the share of the matrix peak that a full GPU reaches by them, both estimates.
_ANY = ((_LARGE, 0.69), (_SMALL, 0.35))


def mfma_tile(problem: Problem, device: Device, copies: Collection[str] = ()) -> Tile:
    """The tile of the least estimated clocks (tile_cost.py). Of operands that are not aligned the one whose
    rounds over the multiprocessors take the least time, and 32x128 for up to 32 rows."""
    if aligned(problem, copies):
        return min(ALIGNED, key=lambda tile: clocks(tile, problem.product, device))
    if problem.M <= 32:
        return FEW_ROWS

    def time(choice: tuple[Tile, float]) -> float:
        tile, share = choice
        tiles = ceil(problem.M, tile.m) * ceil(problem.product.N, tile.n) * problem.batches
        return ceil(tiles, device.multiprocessors) * tile.m * tile.n / share

    tile, _ = min(_ANY, key=time)
    return _deeper(tile, device)


def aligned(problem: Problem, copies: Collection[str] = ()) -> bool:
    """Whether 16-byte loads with 31-bit offsets reach a and b from each tile's corner; `copies` names those
    that are copies, with room behind every line."""
    if problem.K == 0:
        return False
    for operand, lines, along_k in problem.sides:
        if not operand.aligned_to(16):
            return False
        # A buffer ends at a multiple of 4 bytes, and K-major lines at one of 16: no load is in part zero.
        if problem.K % 8 if along_k else lines % 2 and operand.tensor not in copies:
            return False
        reach = 256 * operand.leading + problem.K if along_k else (problem.K + 128) * operand.leading
        if problem.gated and operand is problem.b:
            reach += operand.batch[0]
        if (reach + lines) * operand.itemsize >= 2**31:
            return False
    return True


# RDNA's tiles, of four waves.
WMMA_FEW_ROWS, WMMA_LARGE, WMMA_SMALL = (tile._replace(threads=128) for tile in (FEW_ROWS, _LARGE, _SMALL))


def wmma_tile(problem: Problem, device: Device) -> Tile:
    """128x128 where that gives every multiprocessor a block, 64x64 else; 32x128 for up to 32 rows."""
    if problem.M <= 32:
        return WMMA_FEW_ROWS
    many = ceil(problem.M, 128) * ceil(problem.product.N, 128) * problem.batches >= device.multiprocessors
    return WMMA_LARGE if many else WMMA_SMALL


def _far(problem: Problem, tile: Tile) -> bool:
    """Whether an element of a tile of a or b lies 2^32 bytes or more from its corner."""
    lines = max(tile.m, tile.n, tile.k)
    leading = max(problem.a.leading, problem.b.leading)
    apart = problem.b.batch[0] if problem.gated else 0
    return ((leading + 1) * lines + apart) * problem.a.itemsize > 2**32


def _deeper(tile: Tile, device: Device) -> Tile:
    """128x128x64 takes 64 KB of LDS for its two stages: only where two blocks still fit."""
    return tile._replace(k=64) if tile == _LARGE and device.shared_memory >= 128 * 1024 else tile


def unfit(problem: Problem) -> Rejected | None:
    """Why neither kernel takes it, but for its number of tiles."""
    if problem.dtype not in _HALVES:
        return Rejected(f"{problem.dtype} is not supported by this kernel; bfloat16 and float16 are")
    for operand in (problem.a, problem.b):
        if operand.unit_stride is None:
            return Rejected(f"neither rows nor columns of {operand.tensor} are contiguous")
    if max(problem.M, problem.product.N, problem.K) > _MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {_MAX_EXTENT}")
    if problem.gated and problem.b.unit_stride == "col":
        return Rejected(f"the rows of {problem.b.tensor}, gate's and up's, must be contiguous")
    return None


def row_major(problem: Problem) -> Problem:
    """The same product with c's rows contiguous, where it can be turned."""
    return problem.transposed() if problem.c.unit_stride == "row" and problem.transposable else problem


def _plan(
    problem: Problem, call: Call, source: Path, entry: str, tile_for: Callable[[Problem, Device], Tile]
) -> Plan | Rejected:
    if (reason := unfit(problem)) is not None:
        return reason
    problem = row_major(problem)
    found = launch(problem, source, entry, tile_for(problem, call.device))
    return found if isinstance(found, Rejected) else Plan((found,))


def launch(
    problem: Problem, source: Path, entry: str, tile: Tile, *, k_step: int | None = None
) -> Launch | Rejected:
    """With `k_step`, the batch is the parts of split-K (output.h)."""
    a, b, c = problem.a, problem.b, problem.c
    tiles_m, tiles_n = ceil(problem.M, tile.m), ceil(problem.product.N, tile.n)
    if tiles_m * tiles_n > _MAX_TILES:
        return Rejected(f"{tiles_m * tiles_n} tiles exceed a grid of {_MAX_TILES} blocks")
    batches_y = min(problem.batches, _MAX_BATCHES_Y)
    batches_z = ceil(problem.batches, batches_y)
    if batches_z > _MAX_BATCHES_Y:
        return Rejected(f"{problem.batches} matrices in the batch exceed {_MAX_BATCHES_Y**2}")
    kernel = NativeKernel(
        source,
        entry,
        tile.threads,
        defines=(
            ("T", dtypes.of(problem.dtype).c),
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("TILE_K", tile.k),
            ("WAVES_M", tile.waves_m),
            ("THREADS", tile.threads),
            ("ALIGNED", int(tile.aligned)),
            ("PING_PONG", int(tile.ping_pong)),
            *((("FAR", int(_far(problem, tile))),) if source == WMMA else ()),
            ("A_K_MAJOR", int(a.unit_stride == "col")),
            ("B_K_MAJOR", int(b.unit_stride == "row")),
            ("C_ROW_MAJOR", int(c.unit_stride == "col")),
            ("BIAS", int(problem.bias is not None)),
            ("ACTIVATION", ACTIVATIONS[problem.activation]),
            *((("SPLIT_K", 1),) if k_step is not None else ()),
            *preactivation_define(problem),
            *gated_define(problem),
        ),
    )
    integers = {
        "M": problem.M,
        "N": problem.N,
        "K": problem.K,
        **({} if k_step is None else {"k_step": k_step}),
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "batches": problem.batches,
        "batches_y": batches_y,
        "batches_inner": problem.batch[1],
    }
    strides = {
        "a_leading": a.leading,
        "b_leading": b.leading,
        "c_row": c.row,
        "c_col": c.col,
        "a_outer": a.batch[0],
        "a_inner": a.batch[1],
        "b_outer": b.batch[0],
        "b_inner": b.batch[1],
        "c_outer": c.batch[0],
        "c_inner": c.batch[1],
    }
    bias: Argument = Scalar("i64", 0) if problem.bias is None else Pointer(problem.bias)
    args: tuple[tuple[str, Argument], ...] = (
        ("a", Pointer(a.tensor)),
        ("b", Pointer(b.tensor)),
        ("c", Pointer(c.tensor)),
        *(("z", Pointer(name)) for name in (problem.preactivation,) if name is not None),
        ("bias", bias),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
        *((name, Scalar("i64", value)) for name, value in strides.items()),
    )
    return Launch(kernel, (tiles_m * tiles_n, batches_y, batches_z), args)
