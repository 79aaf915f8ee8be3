"""The kernels of the memory tests: a case is a piece of assembly and a rule for results and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from instructions import Suite, Text, memory, run_kernel, seed, spelling, waits, wave

SUITE = Suite("memory_ops")
SIZE = 8192  # bytes of the data block
RANDOM = seed("memory")
DATA = bytes(RANDOM.getrandbits(8) for _ in range(SIZE))
CASES: list[Case] = []


@dataclass(frozen=True)
class Case:
    """A kernel on one wave. s[4:5] is the data block, s[6:7] the results, v0 the lane, v1 = 4 * lane.
    `rule(data, lane)` returns the dwords that the lane stores; it may change `data`, lanes run in order."""

    name: str
    arch: str
    words: int
    rule: Callable[[bytearray, int], list[int]]
    waves: int = 1


def case(name, archs, body, words, rule, covers, lds=0, scratch=0, result=40, waves=1):
    """`body` leaves its results in v40 and up; it may be a function of the architecture."""
    for arch in archs:
        CASES.append(Case(name, arch, words, rule, waves))

        def make(arch):
            text: str = body if isinstance(body, str) else body(arch)
            if arch == "gfx1201":
                text = text.replace("s[12:15], 0 offen", "s[12:15], null offen")
            stores = ""
            for i in range(words):
                stores += f"{spelling('global_store_dword', arch)} v2, v{result + i}, s[6:7] offset:{4 * i}\n"
            return Text(
                name,
                PROLOGUE.replace("WAIT", waits(arch))
                + text.replace("WAIT", waits(arch))
                + waits(arch)
                + stores
                + waits(arch),
                wave(arch),
                lds,
                scratch,
            )

        SUITE.kernel((arch,), make, *covers)


PROLOGUE = "s_load_dwordx4 s[4:7], s[0:1], 0x0\nWAIT\nv_lshlrev_b32 v1, 2, v0\nv_lshlrev_b32 v2, 6, v0\n"


def word(data, at, size=4):
    return int.from_bytes(data[at : at + size], "little")


def compare_case(item: Case, start: bytes) -> None:
    """Run a case and compare what every lane stored and every byte of the data block."""
    lanes = wave(item.arch) * item.waves
    # The data block's first bytes are a fence: addresses may be a little below where the case starts.
    blocks = [memory(SIZE, start), memory(lanes * 64)]
    run_kernel(SUITE, item.arch, item.name, blocks, 1, lanes)
    data = bytearray(start)
    wrong = []
    got = bytes(blocks[1])
    for lane in range(lanes):
        want = item.rule(data, lane)
        found = [word(got, 64 * lane + 4 * i) for i in range(item.words)]
        if want[: item.words] != found:
            wrong.append(f"  lane {lane}: expected {[hex(x) for x in want]}, got {[hex(x) for x in found]}")
    after = bytes(blocks[0])
    changed = [] if after == data else [i for i in range(SIZE) if after[i] != data[i]]
    if changed:
        i = changed[0] & ~3
        wrong.append(
            f"  memory differs at {len(changed)} bytes, "
            f"first {changed[0]:#x}: expected {data[i : i + 16].hex()}, got {after[i : i + 16].hex()}"
        )
    assert not wrong, f"{item.arch} {item.name}: {len(wrong)} wrong\n" + "\n".join(wrong[:8])
