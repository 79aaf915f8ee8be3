"""The plan of attention_varlen_backward on Hopper's tensor cores for heads above 128: the dense kernels, and
turns that varlen_workspace_offsets.cu finds on the card."""

from __future__ import annotations

from portable.kernels.attention.packed import entries_of, plan_tables, tables
from portable.kernels.attention.problem import Problem
from portable.kernels.attention.sm90 import bwd_hdim256_plan as wide
from portable.kernels.attention.sm90.bwd_arguments import HERE, MOST_BLOCKS, prepare
from portable.kernels.attention.sm90.bwd_hdim256_plan import CONSUMERS, SLOPES, TILE, TOGETHER
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

# Of gradients of scores at a time: those of a query head over 32768 tokens, causal, in one sequence. Measured
# 2026-11-22 on a long tail of 74 lengths in 32768 tokens, 1, 1.125, 2 and 4 GiB, of the dense kernel for the
# same work: heads of 192 and 128, causal 0.86, 0.87, 0.85, 0.87, full 0.86, 0.90, 0.87, 0.85; of 256, causal
# 0.91, 0.91, 0.91, 0.92, full 0.86, 0.88, 0.94, 0.95.
_KEPT_BYTES = 9 << 27
_MOST_SLOPES = 2**30  # blocks of scores of a head are counted in 32 bits
# Of keys in a part of a head, at the longest lengths. Measured 2026-11-22, 8 heads of 256 on one, 32768
# tokens causal, of which 36 blocks are a part: one sequence 0.89 of Triton, a long tail 1.77; 72 blocks, one
# sequence of 65536, 1.49.
_FEWEST_BLOCKS = 32
_MOST_TURNS = 512  # of which most are empty where sequences are short: 6 us each


def plan_wide_varlen(call: Call, problem: Problem) -> Plan | Rejected:
    """Tables of tiles, places of what is kept, statistics; then per turn dk, dv and the gradients of scores,
    and dq. Lengths are not known here: there are as many turns as any lengths may need, of which those that
    the card finds no work for end at once."""
    count, share = call.axes["C"], problem.share
    reach = wide.most_blocks(problem)
    most = most_kept(problem, count, reach)
    if most > _MOST_SLOPES:
        return Rejected(f"up to {most} blocks of scores a head exceed {_MOST_SLOPES}")
    slots = min(_KEPT_BYTES // (SLOPES * 2), most * share * problem.G)
    turns = turns_of(problem.G, share, most, reach, slots)
    if turns is None:
        return Rejected(f"gradients of scores take up to {share * reach * SLOPES * 2} bytes a block of keys")
    if turns > _MOST_TURNS:
        return Rejected(f"gradients of scores may take {turns} turns")
    rows, places = (entries_of(problem.M, count, tile) for tile in (TILE, CONSUMERS * TILE))
    key_blocks = entries_of(problem.N, count, TILE)
    if max(rows * problem.H, key_blocks * problem.G) > MOST_BLOCKS:
        return Rejected(f"more than {MOST_BLOCKS} tiles")
    defines = wide.defines_of(problem, ragged=True)
    main, of_dq = wide.kernels_of(problem, defines, call.device.shared_memory)
    if main.shared > call.device.shared_memory:
        return Rejected(f"it takes {main.shared} bytes of shared memory")
    of_main, of_second = wide.numbers_of(call, problem)
    together = max(1, (call.config.get("GROUP") or TOGETHER) // problem.G)
    launches = [
        plan_tables(call, problem, TILE, of_keys=True, together=together, backwards=False),
        _places(problem, defines, of_main, count, reach, slots),
        prepare(problem, defines, rows, ("stats",), _numbers(count=count, lines=rows)),
    ]
    for turn in range(turns):
        key_heads = max(1, problem.G // (turn + 1))  # as many as are left to the turn-th of equal turns
        launches += [
            Launch(
                main,
                (key_blocks * key_heads, 1, 1),
                (
                    *wide.maps(problem, "q", "k", "v", "do", "dk", "dv"),
                    ("stats", Pointer("stats", True)),
                    ("kept", Pointer("kept", True)),
                    ("bounds", Pointer("bounds")),
                    ("tile_list", Pointer("tiles")),
                    ("counts", Pointer("counts")),
                    *_POINTERS,
                    *_tokens(problem, "dk", "dv"),
                    *_numbers(number=turn, count=count, rows=rows, reach=reach)[1:],
                    *of_main,
                ),
            ),
            Launch(
                of_dq,
                (places * key_heads * share, 1, 1),
                (
                    *wide.maps(problem, "k", "dq"),
                    ("kept", Pointer("kept", True)),
                    ("sums", Pointer("sums", True) if most * share > slots else Scalar("i64", 0)),
                    ("bounds", Pointer("bounds")),
                    *_POINTERS,
                    *_tokens(problem, "dq"),
                    *_numbers(number=turn, count=count, tiles=places, reach=reach)[1:],
                    *of_second,
                ),
            ),
        ]
    spaces = (
        Workspace("stats", (problem.H, rows, TILE * 2), "float32"),
        Workspace("kept", (slots, SLOPES), problem.dtype),
        Workspace("places", (count + 1,), "int32"),
        Workspace("layout", (4,), "int32"),
        *tables(call, problem.N, TILE),
    )
    if most * share > slots:
        held = share * places * CONSUMERS * TILE * wide.padded(problem.D)
        spaces += (Workspace("sums", (held,), "float32"),)
    return Plan(tuple(launches), spaces)


def most_kept(problem: Problem, count: int, reach: int) -> int:
    """The most blocks of scores of a query head that any offsets lead to."""
    M, N, sequences = problem.M, problem.N, max(count - 1, 0)
    rest, blocks = TILE - 1, N // TILE + sequences
    bounds = [reach * blocks, (M * N + rest * (M + N) + rest * rest * sequences) // (TILE * TILE)]
    if problem.left is None and problem.right is not None:
        # Of a row after the first seen by all, one block less than of the one before it; at its end 2, and
        # what the right shows beyond the diagonal. No cut of M x N into sequences leaves more than one does.
        seen = M * N - M * M // 2 if M <= N else N * N // 2
        beside = blocks * (2 - (-problem.right // TILE))
        bounds.append((seen + rest * N) // (TILE * TILE) + sequences + 2 + beside)
    return max(1, min(bounds))


def turns_of(groups: int, share: int, most: int, reach: int, slots: int) -> int | None:
    """The most turns of `slots` blocks of scores; None where those of a part of a head would be too small."""
    room = slots // share
    if most <= room:
        return -(-groups // min(groups, room // most))
    if room < _FEWEST_BLOCKS * reach:
        return None
    return groups * -(-most // (room - reach))


_POINTERS: tuple[tuple[str, Argument], ...] = (("places", Pointer("places")), ("layout", Pointer("layout")))


def _numbers(**values: int) -> tuple[tuple[str, Argument], ...]:
    return ("bounds", Pointer("bounds")), *((name, Scalar("i32", value)) for name, value in values.items())


def _tokens(problem: Problem, *names: str) -> tuple[tuple[str, Argument], ...]:
    """Gradients in memory, whose strides and columns follow all of them."""
    of = [(name, problem.heads[name]) for name in names]
    strides = [(f"{name}_{side}", getattr(each, side)) for name, each in of for side in ("head", "row")]
    columns = {name: problem.E if name == "dv" else problem.D for name in names}
    return (
        *((name, Pointer(name, True)) for name in names),
        *((name, Scalar("i64", value)) for name, value in strides),
        *((f"{name}_columns", Scalar("i32", value)) for name, value in columns.items()),
    )


def _places(
    problem: Problem, defines: tuple[tuple[str, int | str], ...], of_main: tuple[tuple[str, Argument], ...],
    count: int, reach: int, slots: int,
) -> Launch:  # fmt: skip
    kernel = NativeKernel(
        HERE / "varlen_workspace_offsets.cu", "attention_backward_wide_places", 256, defines
    )
    values = {"count": count, "groups": problem.G, "share": problem.share, "reach": reach, "slots": slots}
    written = ((name, Pointer(name, True)) for name in ("places", "layout"))
    given = ((name, Scalar("i32", value)) for name, value in values.items())
    sides = (each for each in of_main if each[0] in ("left", "right"))
    return Launch(kernel, (1, 1, 1), (("bounds", Pointer("bounds")), *written, *given, *sides))
