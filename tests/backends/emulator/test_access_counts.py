"""LDS cycles and bank conflicts of single accesses, and lines and sectors of global ones, by their addresses.

The expected conflicts are published measurements where there are some: rocprof's counters on MI300X for
reads by stride (nod-ai/amd-shark-ai, docs/empirical-lds/cdna3info.md, over 64 reads), and Triton's swizzles
of which ROCm/gfx950-gluon-tutorials says that they are free."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from instructions import ARCHS, Suite, Text, run_kernel, waits, wave

SUITE = Suite("access_counts")
LDS_BYTES = 32768
BYTES = {"b32": 4, "b64": 8, "b96": 12, "b128": 16}
START = (
    "s_load_dwordx4 s[4:7], s[0:1], 0x0\nWAIT\n"
    "v_lshlrev_b32 v1, 2, v0\nglobal_load_dword v3, v1, s[4:5]\nWAIT\n"
)
DATA = "".join(f"v_mov_b32 v{n}, 7\n" for n in range(4, 8))
STORES = {1: "byte", 2: "short", 4: "dword", 8: "dwordx2", 16: "dwordx4"}


def registers(nbytes: int) -> str:
    words = max(nbytes // 4, 1)
    return "v4" if words == 1 else f"v[4:{3 + words}]"


BODIES = {f"read_{width}": f"ds_read_{width} {registers(n)}, v3\n" for width, n in BYTES.items()}
BODIES |= {f"write_{width}": f"ds_write_{width} v3, {registers(n)}\n" for width, n in BYTES.items()}
BODIES |= {f"store_{n}": f"global_store_{kind} v3, {registers(n)}, s[6:7]\n" for n, kind in STORES.items()}
BODIES["add"] = "ds_add_u32 v3, v4\n"
BODIES["bpermute"] = "ds_bpermute_b32 v4, v3, v4\n"
for name, body in BODIES.items():

    def make(arch: str, name: str = name, body: str = body) -> Text:
        text = START.replace("WAIT", waits(arch)) + DATA + body + waits(arch)
        return Text(name, text, wave(arch), LDS_BYTES)

    SUITE.kernel(ARCHS, make)
DMA = {"gfx90a": "dword", "gfx942": "dword", "gfx950": "dwordx4"}
for arch, kind in DMA.items():
    kept = "lds" if arch == "gfx90a" else ""
    name = f"global_load_{kind}" if kept else f"global_load_lds_{kind}"
    text = START.replace("WAIT", waits(arch)) + f"s_mov_b32 m0, 0\ns_nop 0\n{name} v3, s[6:7] {kept}\n"
    SUITE.kernel((arch,), lambda arch, text=text: Text("dma", text + waits(arch), 64, LDS_BYTES))


def aligned(data: bytes) -> Any:
    """A copy that starts a cache line."""
    block = (ctypes.c_ubyte * (len(data) + 128))()
    at = -ctypes.addressof(block) % 128
    block[at : at + len(data)] = data
    return (ctypes.c_ubyte * len(data)).from_buffer(block, at)


def counters(arch: str, name: str, addresses: list[int]):
    given = b"".join(address.to_bytes(4, "little") for address in addresses)
    return run_kernel(SUITE, arch, name, [aligned(given), aligned(bytes(65536))], 1, wave(arch), count=True)


def busy(arch: str, name: str, addresses: list[int], kind: str = "") -> tuple[int, int]:
    """(conflicts, cycles) of one access."""
    kind = kind or f"{name.split('_')[0]}s"
    found = counters(arch, name, addresses).lds()
    assert all(not total["lanes"] for other, total in found.items() if other != kind)
    assert found[kind]["lanes"] == len(addresses)
    return found[kind]["conflicts"], found[kind]["cycles"]


def strided(arch: str, stride: int) -> list[int]:
    return [lane * stride for lane in range(wave(arch))]


def rows(arch: str, key, row_bytes: int = 128) -> list[int]:
    """16-byte pieces of 16 rows, swizzled: lane l reads piece l / 16 of row l % 16."""
    return [
        lane % 16 * row_bytes + ((lane // 16 ^ key(lane % 16)) * 16) % row_bytes for lane in range(wave(arch))
    ]


# Per read: the counter over 64 reads, / 64.
MEASURED = {
    "b32": {4: 0, 8: 2, 16: 6, 32: 14, 64: 30, 128: 62, 256: 62, 512: 62},
    "b64": {8: 0, 16: 4, 32: 12, 64: 28, 128: 60, 256: 60, 512: 60},
    "b128": {16: 0, 32: 8, 64: 24, 128: 56, 256: 56, 512: 56},
}


@pytest.mark.parametrize("width", MEASURED)
def test_reads_by_stride_as_measured_on_mi300x(width):
    without = {"b32": 2, "b64": 4, "b128": 8}[width]  # 128 bytes a clock
    for stride, conflicts in MEASURED[width].items():
        assert busy("gfx942", f"read_{width}", strided("gfx942", stride)) == (conflicts, without + conflicts)


@pytest.mark.parametrize(
    "arch, banks, cycles",
    [
        ("gfx950", 64, {"b32": 2, "b64": 2, "b128": 4}),
        ("gfx1100", 32, {"b32": 1, "b64": 2, "b128": 4}),
        ("gfx1201", 32, {"b32": 1, "b64": 2, "b128": 4}),
    ],
)
def test_the_stride_of_all_banks_is_the_worst(arch, banks, cycles):
    for width, free in cycles.items():
        assert busy(arch, f"read_{width}", strided(arch, BYTES[width])) == (0, free)
        for stride in (4 * banks, 8 * banks):
            assert busy(arch, f"read_{width}", strided(arch, stride))[1] == wave(arch)
        assert busy(arch, f"read_{width}", strided(arch, 2 * banks))[1] == wave(arch) // 2


@pytest.mark.parametrize(
    "arch, name, together, apart",
    [
        ("gfx942", "read_b128", [(0, 3), (0, 20), (4, 16), (12, 27), (40, 60)], [(0, 4), (8, 24), (0, 32)]),
        ("gfx942", "write_b128", [(0, 7), (24, 31), (56, 63)], [(0, 20), (7, 8), (0, 32)]),
        ("gfx950", "read_b128", [(0, 12), (0, 27), (4, 31), (36, 51)], [(0, 4), (12, 16), (0, 32)]),
        ("gfx950", "read_b96", [(0, 20), (4, 16)], [(0, 4), (0, 12)]),
        ("gfx950", "read_b64", [(0, 31), (32, 63)], [(0, 32), (31, 32)]),
        ("gfx950", "write_b64", [(0, 15), (48, 63)], [(0, 16), (31, 32)]),
        ("gfx1100", "read_b128", [(0, 20), (12, 24)], [(0, 4), (8, 16)]),
        ("gfx1201", "read_b128", [(0, 4), (24, 31)], [(0, 20), (7, 8)]),
        ("gfx1201", "read_b64", [(0, 15), (16, 31)], [(0, 16), (15, 16)]),
    ],
)
def test_which_lanes_wait_for_each_other(arch, name, together, apart):
    def conflicts(pair):
        return busy(
            arch, name, [256 * (lane == pair[1]) + 16 * (lane not in pair) for lane in range(wave(arch))]
        )[0]

    assert [conflicts(pair) for pair in together] == [1] * len(together)
    assert [conflicts(pair) for pair in apart] == [0] * len(apart)


def test_swizzles_that_are_known_to_be_free():
    by_row, by_two = (lambda row: row & 7), (lambda row: row >> 1 & 7)
    assert busy("gfx942", "read_b128", rows("gfx942", by_row)) == (0, 8)
    assert busy("gfx942", "read_b128", rows("gfx942", by_two)) == (8, 16)  # two ways
    assert busy("gfx950", "read_b128", rows("gfx950", by_two)) == (0, 4)


@pytest.mark.parametrize("arch", ARCHS)
def test_lanes_of_one_word_share_it_but_for_atomics(arch):
    same = [128] * wave(arch)
    assert busy(arch, "read_b128", same)[0] == busy(arch, "write_b32", same)[0] == 0
    assert busy(arch, "add", same, "atomics")[1] == wave(arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_written_in_order_has_no_conflict(arch):
    lanes = wave(arch)
    for width, nbytes in BYTES.items():
        conflicts, cycles = busy(arch, f"write_{width}", strided(arch, nbytes))
        assert (conflicts, cycles) == (0, lanes * (16 if width == "b96" else nbytes) // 128)
    assert busy(arch, "bpermute", strided(arch, 4), "exchanges") == (0, lanes * 4 // 128)


def test_only_reads_of_gfx950_have_64_banks():
    apart = [lane // 2 * 8 + lane % 2 * 128 for lane in range(32)] + [1024] * 32
    assert busy("gfx950", "read_b64", apart)[0] == 0
    assert busy("gfx950", "write_b64", apart)[0] > 0 and busy("gfx942", "read_b64", apart)[0] > 0


@pytest.mark.parametrize("arch", DMA)
def test_a_load_straight_to_lds_is_a_write_of_it_and_a_global_load(arch):
    found = counters(arch, "dma", strided(arch, BYTES["b128"]))
    nbytes = 64 * (16 if arch == "gfx950" else 4)
    total = found.lds()
    assert total["writes"] == {"lanes": 64, "bytes": nbytes, "conflicts": 0, "cycles": nbytes // 128}
    assert total["reads"]["lanes"] == 0
    # 256 bytes of addresses came first.
    assert found.traffic()["global loads"]["bytes"] == 256 + nbytes
    assert found.traffic()["global loads"]["cache_lines"] == 2 + 8


@pytest.mark.parametrize(
    "name, stride, sectors, fewest, lines",
    [
        ("store_16", 16, 16, 16, 8),
        ("store_16", 64, 64, 16, 32),  # a quarter of every sector
        ("store_4", 4, 4, 4, 2),
        ("store_2", 256, 64, 2, 64),
        ("store_1", 0, 1, 1, 1),
    ],
)
def test_stores_by_sector(name, stride, sectors, fewest, lines):
    stores = counters("gfx942", name, strided("gfx942", stride)).traffic()["global stores"]
    found = stores["sectors"], stores["fewest_sectors"], stores["cache_lines"]
    assert found == (sectors, fewest, lines)


def test_a_line_that_two_rows_share_is_two_half_full_sectors():
    addresses = [lane // 4 * 1024 + lane % 4 * 16 for lane in range(64)]  # 64 bytes of each of 16 rows
    stores = counters("gfx942", "store_16", addresses).traffic()["global stores"]
    assert (stores["sectors"], stores["fewest_sectors"]) == (16, 16)
    assert (stores["cache_lines"], stores["fewest_cache_lines"]) == (16, 8)


def test_trace_prints_them():
    rows = dict(counters("gfx942", "read_b128", strided("gfx942", 32)).rows())
    assert rows["LDS reads"] == "1,024 bytes by 64 lanes, 16 cycles, 8 of them bank conflicts"
    rows = dict(counters("gfx942", "store_16", strided("gfx942", 64)).rows())
    assert "64 sectors of 64 bytes, 16 at best" in rows["global stores"]
