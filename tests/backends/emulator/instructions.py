"""Harness of the per-instruction tests: one assembly kernel per probe, a file's probes in one code object.

A probe names an instruction, the assembly that runs it, its operands and a rule in Python that gives the
expected results. Its kernel loads one row of operands per lane, runs the assembly under an execution mask
that differs from wave to wave, and stores every result whole, so that an inactive lane, the half of a
register that must stay and the bits of a mask past the wave are compared too.
"""

from __future__ import annotations

import ctypes
import functools
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from assembly import (
    ARCHS,
    GFX9,
    GFX11,
    GFX94,
    Text,
    assemble,
    module_text,
    moves,
    spelling,
    sreg,
    vreg,
    waits,
    wave,
)
from outcomes import ANY_NAN, SKIP, Half, Near, OneOf, Upper, same, show

__all__ = [
    "ANY_NAN", "ARCHS", "GFX9", "GFX11", "GFX94", "SKIP", "Context", "LazyRows", "Near", "OneOf", "Probe",
    "Suite", "Text", "Upper", "check", "covered", "memory", "run_kernel", "same", "seed", "show", "spelling",
    "waits", "wave",
]  # fmt: skip
POISON = 0x5A5A5A5A
SOURCES = "abcefg"  # placeholders of the sources; d, d1, d2 are results and m, m1 scalar masks


@dataclass(frozen=True)
class Context:
    """What a rule for a whole wave may ask: the architecture, the wave's size and the active lanes."""

    arch: str
    wave: int
    exec: int

    def active(self, lane: int) -> bool:
        return bool(self.exec >> lane & 1)


class LazyRows(Sequence[tuple[int, ...]]):
    """Rows of operands that are made at first use: collecting the tests makes none of them."""

    def __init__(self, make: Callable[[], Iterable[tuple[int, ...]]]) -> None:
        self._make = make

    @functools.cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._make())

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Probe:
    """One instruction under test. `ins`: types of the sources; `outs`: types of the results, in order: a
    vector register of its own ("f32"), "=c:u32" the source register c after the instruction, "mask" a scalar
    mask of its own, "vcc", "scc", "exec", "s32"/"s64" a scalar register (placeholders s, s1).
    `rule(*sources)` returns the results of a lane; with `whole`, `rule(context, lanes)` returns a list with a
    tuple per lane, None for a lane whose vector results stay. Masks are a bit per lane."""

    name: str
    asm: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    rule: Callable[..., Any]
    vectors: Sequence[tuple[int, ...]]
    archs: tuple[str, ...] = ARCHS
    whole: bool = False
    setup: str = ""
    ulp: float = 0
    masked: bool | str = True  # "rows": only whole rows of 16 lanes are off
    covers: tuple[str, ...] = ()
    true16: bool = True
    mode: int | None = None
    wide: bool = False  # run on wave64 also where the architecture's own is 32
    tag: str = ""

    @property
    def symbol(self) -> str:
        return re.sub(r"\W", "_", f"{self.name}__{self.tag}" if self.tag else self.name)


WIDTHS = {"f64": 64, "u64": 64, "i64": 64, "pkf32": 64, **{f"u{n}": n for n in (96, 128, 256, 512, 1024)}}


def bits(kind: str) -> int:
    return WIDTHS.get(kind, 32)


def dwords(kind: str) -> int:
    return bits(kind) // 32


def is16(kind: str) -> bool:
    return kind in ("f16", "bf16", "u16", "i16", "b16")


class Suite:
    """The probes and hand-written kernels of one test file; each architecture's are assembled together."""

    every: ClassVar[dict[str, Suite]] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self.probes: list[Probe] = []
        self.texts: dict[str, list[Text]] = defaultdict(list)
        self.covers: dict[str, set[str]] = defaultdict(set)
        Suite.every[name] = self

    def add(self, probe: Probe) -> None:
        self.probes.append(probe)

    def kernel(self, archs: Iterable[str], make: Callable[[str], Text], *covers: str) -> None:
        """A hand-written kernel on each architecture, and the instructions it tests."""
        for arch in archs:
            self.texts[arch].append(make(arch))
            self.covers[arch] |= {spelling(name, arch) for name in covers}

    def mnemonics(self) -> list[Any]:
        """(architecture, probe) of each mnemonic, as pytest parameters."""
        return self.grouped(
            (probe.name, (arch, probe)) for probe in self.probes for arch in ARCHS if arch in probe.archs
        )

    def grouped(self, items: Iterable[tuple[str, Any]]) -> list[Any]:
        """The items of each name, as pytest parameters. A test for each of 8,000 items took pytest longer to
        collect than to run. All of a suite run in one worker, which then loads its code objects once."""
        found: dict[str, list[Any]] = defaultdict(list)
        for name, item in items:
            found[name].append(item)
        mark = pytest.mark.xdist_group(f"emulator {self.name}")
        return [pytest.param(each, id=name, marks=mark) for name, each in found.items()]

    def wavesize(self, probe: Probe, arch: str) -> int:
        return 64 if probe.wide else wave(arch)

    def assembly(self, arch: str) -> str:
        return module_text(arch, self.every_text(arch))

    def every_text(self, arch: str) -> list[Text]:
        texts = [
            probe_text(probe, arch, self.wavesize(probe, arch))
            for probe in self.probes
            if arch in probe.archs
        ]
        return [*texts, *self.texts[arch]]

    @functools.cache  # noqa: B019
    def code(self, arch: str) -> Any:
        """The loaded code object of an architecture."""
        from portable.backends.rocm.emulator.code_object import CodeObject
        from portable.backends.rocm.emulator.faults import CodeObjectError
        from portable.backends.rocm.emulator.launch import linked_program

        texts = self.every_text(arch)
        while texts:
            whole = CodeObject(assemble(arch, module_text(arch, texts)))
            try:
                linked_program(whole)
            except CodeObjectError as error:
                # A kernel with an instruction that is not known is left out; its own test says so.
                named = [text for text in texts if str(error).startswith(f"{text.name} (")]
                if not named:
                    raise
                texts = [text for text in texts if text not in named]
            else:
                return whole
        return None

    def kernel_code(self, arch: str, name: str) -> Any:
        """The code object that holds a kernel."""
        from portable.backends.rocm.emulator.code_object import CodeObject

        whole = self.code(arch)
        if whole is not None and name in whole.kernels:
            return whole
        return CodeObject(
            assemble(arch, module_text(arch, [t for t in self.every_text(arch) if t.name == name]))
        )

    def covered(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {arch: set(self.covers[arch]) for arch in ARCHS}
        for probe in self.probes:
            for arch in probe.archs:
                found[arch] |= {spelling(name, arch) for name in (probe.covers or (probe.name,))}
        return found


def covered() -> dict[str, set[str]]:
    """LLVM's mnemonics per architecture that some test in this folder checks (imports the test files)."""
    import importlib

    for name in ("valu_int", "valu_float", "convert", "salu", "lanes", "memory_ops", "matrix", "packed"):
        importlib.import_module(f"test_{name}")
    total: dict[str, set[str]] = {arch: set() for arch in ARCHS}
    for suite in Suite.every.values():
        for arch, names in suite.covered().items():
            total[arch] |= names
    return total


# Registers of a probe's kernel. v0 lane, v1 and v2 offsets of the rows, sources from v8, results from v64.
# s[0:1] kernel arguments, s2 workgroup, s[4:5] inputs, s[6:7] outputs, s[8:9] masks, s[40:47] scalar results.
@dataclass
class _Layout:
    operands: dict[str, str]
    sources: list[tuple[int, int]]  # first register, dwords
    stored: list[tuple[str, int, int]]  # ("v", register, dwords) or ("s", register, dwords)
    poison: list[int]
    stride_in: int
    stride_out: int


def _layout(probe: Probe, arch: str, size: int) -> _Layout:
    halves = arch in GFX11 and probe.true16
    operands: dict[str, str] = {
        "vcc": "vcc" if size == 64 else "vcc_lo", "exec": "exec" if size == 64 else "exec_lo",
        "w": "b64" if size == 64 else "b32",
    }  # fmt: skip
    sources, stored, poison = [], [], []
    register = 8
    for letter, kind in zip(SOURCES, probe.ins, strict=False):
        count = dwords(kind)
        register += register & 1 if count > 1 else 0
        sources.append((register, count))
        operands[letter] = vreg(register, count) + (".l" if halves and is16(kind) else "")
        operands[letter + "h"] = vreg(register, count) + (".h" if halves else "")
        operands[letter + "x"] = vreg(register, count)
        register += count
    register, scalar, results, masks, scalars = 64, 40, 0, 0, 0
    for kind in probe.outs:
        if kind.startswith("="):
            first, count = sources[SOURCES.index(kind[1])]
            stored.append(("v", first, count))
        elif kind == "mask":
            operands["m" + (str(masks) if masks else "")] = sreg(scalar, size // 32)
            stored.append(("s", scalar, size // 32))
            scalar, masks = scalar + 2, masks + 1
        elif kind in ("s32", "s64"):
            count = int(kind[1:]) // 32
            operands["s" + (str(scalars) if scalars else "")] = sreg(scalar, count)
            stored.append(("s", scalar, count))
            scalar, scalars = scalar + 2, scalars + 1
        elif kind in ("vcc", "exec"):
            stored.append((kind, 0, size // 32))
        elif kind == "scc":
            stored.append(("scc", 0, 1))
        else:
            count = dwords(kind)
            register += register & 1 if count > 1 else 0
            operands["d" + (str(results) if results else "")] = vreg(register, count) + (
                ".l" if halves and is16(kind) else ""
            )
            operands["d" + (str(results) if results else "") + "x"] = vreg(register, count)
            stored.append(("v", register, count))
            poison += range(register, register + count)
            register, results = register + count, results + 1
    total_in = sum(count for _, count in sources)
    total_out = sum(count for _, _, count in stored)
    return _Layout(operands, sources, stored, poison, _stride(total_in), _stride(total_out))


def _stride(count: int) -> int:
    return 4 << max(count - 1, 0).bit_length()


def probe_text(probe: Probe, arch: str, size: int) -> Text:
    """The kernel of a probe."""
    layout = _layout(probe, arch, size)
    full = "exec" if size == 64 else "exec_lo"
    move = "s_mov_b64" if size == 64 else "s_mov_b32"
    group = "ttmp9" if arch == "gfx1201" else "s2"
    body = "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_load_dwordx2 s[8:9], s[0:1], 0x10\n"
    body += f"s_mov_b32 s10, {group}\n" + waits(arch)
    body += f"s_mul_i32 s3, s10, {size * layout.stride_in}\ns_add_u32 s4, s4, s3\ns_addc_u32 s5, s5, 0\n"
    body += f"s_mul_i32 s3, s10, {size * layout.stride_out}\ns_add_u32 s6, s6, s3\ns_addc_u32 s7, s7, 0\n"
    body += "s_mul_i32 s3, s10, 8\ns_add_u32 s8, s8, s3\ns_addc_u32 s9, s9, 0\n"
    body += "s_load_dwordx2 s[8:9], s[8:9], 0x0\n"
    body += f"v_lshlrev_b32 v1, {layout.stride_in.bit_length() - 1}, v0\n"
    body += f"v_lshlrev_b32 v2, {layout.stride_out.bit_length() - 1}, v0\n"
    offset = 0
    for first, count in layout.sources:
        body += moves(arch, "load", first, count, offset, "s[4:5]", "v1")
        offset += 4 * count
    for register in layout.poison:
        body += f"v_mov_b32 v{register}, 0x{POISON:x}\n"
    for kind, first, count in layout.stored:
        if kind == "s":
            for i in range(count):
                body += f"s_mov_b32 s{first + i}, 0x{POISON:x}\n"
        if kind == "vcc" and "{vcc}" not in probe.setup and "vcc" not in probe.setup:
            body += "s_mov_b64 vcc, 0\n"
    body += waits(arch)
    setup = probe.setup.format(**layout.operands)
    body += setup
    if probe.mode is not None:
        body += f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 8), 0x{probe.mode:x}\n"
    if probe.masked:
        body += f"{move} {full}, {sreg(8, size // 32)}\n"
    body += "\n".join(probe.asm.format(**layout.operands).split(";")) + "\n"
    scalar = 60
    for kind, _, count in layout.stored:  # scalar results first: nothing after may change them
        if kind == "scc":
            body += f"s_cselect_b32 s{scalar}, 1, 0\n"
        elif kind in ("vcc", "exec"):
            body += f"s_mov_b32 s{scalar}, {kind}_lo\n" + (
                f"s_mov_b32 s{scalar + 1}, {kind}_hi\n" if count == 2 else ""
            )
        else:
            continue
        scalar += count
    body += f"{move} {full}, -1\n" + waits(arch)
    offset, scalar = 0, 60
    for kind, first, count in layout.stored:
        if kind != "v":
            if kind != "s":
                first, scalar = scalar, scalar + count
            for i in range(count):
                body += f"v_mov_b32 v{4 + i}, s{first + i}\n"
            first = 4
        body += moves(arch, "store", first, count, offset, "s[6:7]", "v2")
        offset += 4 * count
    return Text(probe.symbol, body + waits(arch), size)


def memory(nbytes: int, data: bytes = b"") -> Any:
    """A block of host memory, filled with `data` and then with a poison."""
    block = (ctypes.c_ubyte * max(nbytes, 1)).from_buffer_copy(
        (data + b"\x5a" * (max(nbytes, 1) - len(data)))[: max(nbytes, 1)]
    )
    return block


def run_kernel(
    suite: Suite,
    arch: str,
    name: str,
    blocks: Sequence[Any],
    groups: int,
    threads: int,
    *,
    extra: bytes = b"",
    read_only: Sequence[int] = (),
    count: bool = False,
) -> Any:
    """Launch a kernel whose arguments are the addresses of `blocks` and then the bytes `extra`. Returns its
    counters if `count`."""
    from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch, launch

    addresses = [ctypes.addressof(block) for block in blocks]
    kernarg = b"".join(address.to_bytes(8, "little") for address in addresses) + extra
    kernarg = kernarg.ljust(64, b"\0")
    buffers = [
        Buffer(f"block{i}", address, len(bytes(block)), i not in read_only)
        for i, (address, block) in enumerate(zip(addresses, blocks, strict=True))
    ]
    kernel = suite.kernel_code(arch, name).kernels[name]
    given = KernelLaunch(kernel, (groups, 1, 1), (threads, 1, 1), 0, kernarg, buffers)
    return launch(given, threads=1, count=count)


@functools.cache
def lane_results(rule: Callable[..., Any], rows: Sequence[tuple[int, ...]]) -> list[tuple[Any, ...]]:
    """The rule on every row, once for all architectures."""
    found = []
    for row in rows:
        value = rule(*row)
        found.append(value if isinstance(value, tuple) else (value,))
    return found


@functools.cache
def packed_rows(ins: tuple[str, ...], rows: Sequence[tuple[int, ...]], stride: int) -> bytes:
    """The rows as a kernel reads them, `stride` bytes apart; once for all architectures."""
    widths = [(dwords(kind) * 4, (1 << bits(kind)) - 1) for kind in ins]
    found = bytearray()
    for row in rows:
        start = len(found)
        for (width, mask), value in zip(widths, row, strict=True):
            found += (value & mask).to_bytes(width, "little")
        found += bytes(stride - (len(found) - start))
    return bytes(found)


def masks_for(count: int, size: int, masked: bool | str) -> list[int]:
    """The execution mask of each wave: all on first, then patterns that every architecture shares."""
    full = (1 << size) - 1
    chosen = random.Random(0xE8EC)
    patterns = [full, 0xAAAAAAAAAAAAAAAA & full, chosen.getrandbits(size), full ^ 1, chosen.getrandbits(size)]
    if masked == "rows":
        patterns = [full, 0xFFFF0000FFFF0000 & full, 0x00000000FFFF & full]
    return [patterns[i % len(patterns)] if masked else full for i in range(count)]


def check_all(items: Iterable[Any], check_one: Callable[..., None]) -> None:
    """`check_one(*item)` of all items; one failure that holds those of all."""
    wrong = []
    for item in items:
        try:
            check_one(*item)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def check(suite: Suite, probe: Probe, arch: str) -> None:
    """Run a probe and compare every bit that it stores."""
    size = suite.wavesize(probe, arch)
    layout = _layout(probe, arch, size)
    count = len(probe.vectors)
    groups = -(-count // size)
    fill = groups * size - count  # lanes behind the last row repeat the first
    rows = [*probe.vectors, *[probe.vectors[0]] * fill]
    source = packed_rows(probe.ins, probe.vectors, layout.stride_in)
    source += source[: layout.stride_in] * fill
    masks = masks_for(groups, size, probe.masked)
    blocks = [
        memory(len(source), source),
        memory(groups * size * layout.stride_out),
        memory(groups * 8, b"".join(mask.to_bytes(8, "little") for mask in masks)),
    ]
    run_kernel(suite, arch, probe.symbol, blocks, groups, size, read_only=(0, 2))
    got = bytes(blocks[1])
    if not probe.whole:
        lanes = lane_results(probe.rule, probe.vectors)
        lanes = [*lanes, *lanes[:1] * fill]
    wrong = []
    # Most results are integers, compared as they are; `same` knows the other kinds of expectation.
    slots = [
        (slot, kind, 4 * sum(each[2] for each in layout.stored[:slot]), 4 * layout.stored[slot][2])
        for slot, kind in enumerate(probe.outs)
    ]
    for group, mask in enumerate(masks):
        inside = rows[group * size : (group + 1) * size]
        context = Context(arch, size, mask)
        expected = probe.rule(context, inside) if probe.whole else lanes[group * size : (group + 1) * size]
        whole = _masks(probe, expected, context)
        start = group * size * layout.stride_out
        for slot, kind, offset, nbytes in slots:
            for lane in range(size):
                at = start + lane * layout.stride_out + offset
                value = int.from_bytes(got[at : at + nbytes], "little")
                want, own = _expected(probe, kind, slot, lane, context, inside, expected, whole)
                if want is not SKIP and not same(value, want, own, probe.ulp):
                    wrong.append((group, lane, slot, inside[lane], want, value))
    assert not wrong, report(probe, arch, masks, wrong)


def _masks(probe: Probe, expected: Any, context: Context) -> dict[int, int]:
    """The value of each mask result: a bit for each active lane whose rule says 1."""
    found = {}
    for slot, kind in enumerate(probe.outs):
        if kind in ("mask", "vcc", "exec"):
            found[slot] = sum(
                1 << lane
                for lane in range(context.wave)
                if context.active(lane) and expected[lane] is not None and expected[lane][slot]
            )
    return found


def _expected(
    probe: Probe,
    kind: str,
    slot: int,
    lane: int,
    context: Context,
    inside: Any,
    expected: Any,
    whole: dict[int, int],
) -> tuple[Any, str]:
    if slot in whole:
        return whole[slot], "u64"
    if kind in ("scc", "s32", "s64"):
        result = expected[0] if probe.whole else next(
            (expected[i] for i in range(context.wave) if context.active(i)), expected[0]
        )  # fmt: skip
        return result[slot], "u64"
    own = kind[3:] if kind.startswith("=") else kind
    result = expected[lane]
    if not context.active(lane) or result is None:
        if kind.startswith("="):
            width = bits(probe.ins[SOURCES.index(kind[1])])
            return inside[lane][SOURCES.index(kind[1])] & ((1 << width) - 1), "u64"
        return int.from_bytes(POISON.to_bytes(4, "little") * dwords(own), "little"), "u64"
    value = result[slot]
    if value is SKIP:
        return SKIP, own
    if is16(own) and not isinstance(value, Upper):
        # A 16-bit result: what its register's upper half becomes depends on the architecture (see `upper`).
        return Half(value, upper(probe, context.arch, kind, inside[lane])), own
    if isinstance(value, Upper):
        return Half(value.low, value.high), own
    return value, own


def upper(probe: Probe, arch: str, kind: str, record: tuple[int, ...]) -> int | None:
    """The upper half of the destination of a 16-bit VALU instruction. gfx9 writes zeros from VOP1, VOP2 and
    from VOP3 without op_sel (LLVM, SIInstrInfo: zeroesHigh16BitsOfDest); gfx11 and later keep it."""
    if arch in GFX9:
        if probe.name in OPEN_UPPER:
            return None
        keeps = probe.name in KEEPS_UPPER or "op_sel" in probe.asm
        if not keeps:
            return 0
    if kind.startswith("="):
        return record[SOURCES.index(kind[1])] >> 16 & 0xFFFF
    return POISON >> 16


# 16-bit instructions of gfx9 that keep the other half: those that were new there and have op_sel, and the
# multiply-accumulates (LLVM, GCNSubtarget::zeroesHigh16BitsOfDest names the ones that zero it).
KEEPS_UPPER = {
    "v_fma_f16", "v_mad_f16", "v_mad_u16", "v_mad_i16", "v_div_fixup_f16", "v_add_i16", "v_sub_i16",
    "v_mac_f16",
    "v_madmk_f16", "v_madak_f16", "v_fma_mixlo_f16", "v_fma_mixhi_f16", "v_bitop3_b16",
    *(f"v_{w}3_{t}" for w in ("min", "max", "med") for t in ("f16", "i16", "u16")),
}  # fmt: skip
# Conversions of gfx9 to 16-bit integers: LLVM's list does not say, and neither does the guide.
OPEN_UPPER = {"v_cvt_u16_f16", "v_cvt_i16_f16", "v_cvt_norm_i16_f16", "v_cvt_norm_u16_f16"}


def report(probe: Probe, arch: str, masks: Sequence[int], wrong: Sequence[Any]) -> str:
    lines = [f"{arch} {probe.name} `{probe.asm}`: {len(wrong)} results are wrong"]
    for group, lane, slot, record, want, got in wrong[:8]:
        lines.append(
            f"  wave {group} lane {lane} exec {masks[group]:x}: inputs {show(record)},"
            f" result {slot} ({probe.outs[slot]}): expected {show(want)}, got 0x{got:x}"
        )
    return "\n".join(lines)


def seed(name: str) -> random.Random:
    """A random source that depends on nothing but the name."""
    return random.Random(zlib.crc32(name.encode()))
