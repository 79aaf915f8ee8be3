"""Source lines from debug information, whole and damaged."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_objects import QUICK, TARGETS, attempt, sections

from portable.backends.rocm.compile import compile
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.dwarf import SourceLines
from portable.backends.rocm.emulator.faults import KernelFault

from .kernels.harness import Launcher, Out

INLINE = "__attribute__((always_inline)) inline"
NESTED = f"""#include "prelude.h"
__device__ {INLINE} float inner(const float* x, int i) {{
    return x[i];
}}
__device__ {INLINE} float middle(const float* x, int i) {{
    const float a = inner(x, i);
    return a * inner(x, 64 * (int)a + 64);
}}
KERNEL(64) void nested(float* y, const float* x) {{
    const int i = thread_x();
    y[i] =
        middle(x, i);
}}
"""
# Much the same without HIP, so that the version of DWARF can be chosen. The two reads are independent:
# the compiler mixes their instructions, and each call gets a list of ranges.
PLAIN = f"""
static {INLINE} float inner(__attribute__((address_space(1))) const float *x, int i) {{
    return x[i];
}}
static {INLINE} float middle(__attribute__((address_space(1))) const float *x, int i) {{
    float a = inner(x, i);
    return a * inner(x, 64 * i + 64);
}}
__attribute__((amdgpu_kernel)) void nested(__attribute__((address_space(1))) float *y,
                                           __attribute__((address_space(1))) const float *x) {{
    int i = __builtin_amdgcn_workitem_id_x();
    y[i] =
        middle(x, i);
}}
"""
VERSIONS = (4, 5)


def _instructions(image):
    start, end = CodeObject(image).text
    return range(start, end, 4)


def _found(image):
    """The chains of all instructions; each begins with the line of `at`."""
    lines = SourceLines(image)
    chains = {address: lines.inline_chain(address) for address in _instructions(image)}
    assert all((chain[0] if chain else None) == lines.at(address) for address, chain in chains.items())
    return set(chains.values())


@pytest.fixture(scope="session")
def inlined(tmp_path_factory):
    """`PLAIN` with full debug information of each version of DWARF: version -> code object."""
    folder = tmp_path_factory.mktemp("inlined")
    (folder / "nested.c").write_text(PLAIN)
    zig = [sys.executable, "-m", "ziglang"]
    target = ["-target", "amdgcn-amd-amdhsa", "-mcpu=gfx942", "-nogpulib", "-mcode-object-version=5"]
    made = {}
    for version in VERSIONS:
        debug = ["-O2", "-g", f"-gdwarf-{version}"]
        for step in (
            [*zig, "clang", *target, *debug, "-c", "nested.c", "-o", "nested.o"],
            [*zig, "ld.lld", "-shared", "nested.o", "-o", "nested.co"],
        ):
            done = subprocess.run(step, capture_output=True, text=True, cwd=folder)
            assert done.returncode == 0, done.stderr
        made[version] = (folder / "nested.co").read_bytes()
    return made


@pytest.mark.parametrize("arch", TARGETS)
def test_lines_are_those_of_the_directives(images, arch):
    """Version 4 of DWARF on gfx90a, 5 on the others; "line 0" belongs to the line before."""
    code = CodeObject(images[arch])
    lines = SourceLines(code.image)
    start = code.kernels["toy"].entry
    assert [lines.at(start + 4 * index) for index in range(4)] == ["toy.s:41"] * 3 + ["toy.s:43"]
    assert lines.at(start + 2) == "toy.s:41"
    assert lines.at(code.text[0]) == "toy.s:41"
    assert lines.at(start + 16) is None
    assert lines.at(code.text[0] - 4) is None


def test_lines_of_compiled_code_name_source_and_header(tmp_path):
    source = tmp_path / "scale.hip"
    source.write_text(
        '#include "prelude.h"\n'
        "KERNEL(64) void scale(float* y, const float* x, float factor) {\n"
        "    const int i = block_x() * 64 + thread_x();\n"
        "    y[i] =\n"
        "        factor * x[i];\n"
        "}\n"
    )
    code = CodeObject(compile(source, (("T", "f32"),), "gfx1100", debug=True))
    lines = SourceLines(code.image)
    found = [lines.at(address) for address in range(code.kernels["scale"].entry, code.text[1], 4)]
    assert {"scale.hip:5", "scale.hip:4"} <= set(found)
    assert {line.split(":")[0] for line in found if line} <= {"scale.hip", "prelude.h"}
    assert found.index("scale.hip:5") < len(found) - found[::-1].index("scale.hip:4")


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_a_chain_names_every_call_that_was_inlined(tmp_path, arch):
    source = tmp_path / "nested.hip"
    source.write_text(NESTED)
    found = _found(compile(source, (), arch, debug=True))
    call = "nested.hip:12"
    assert {
        ("nested.hip:3", "nested.hip:6", call),
        ("nested.hip:3", "nested.hip:7", call),
        ("nested.hip:7", call),
        ("nested.hip:11",),
        ("nested.hip:13",),
    } <= found
    for chain in found:
        if chain[0] == "nested.hip:3":
            assert chain[1] in ("nested.hip:6", "nested.hip:7") and chain[2:] == (call,)
        elif chain[0] in ("nested.hip:6", "nested.hip:7"):
            assert chain[1:] == (call,)
        else:
            assert chain[0].startswith("prelude.h") or len(chain) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_chains_of_both_versions_of_debug_information(inlined, version):
    image = inlined[version]
    assert struct.unpack_from("<H", image, _section(image, ".debug_info").at + 4) == (version,)
    found = _found(image)
    call = "nested.c:13"
    assert {("nested.c:3", "nested.c:6", call), ("nested.c:3", "nested.c:7", call)} <= found
    assert {("nested.c:7", call), ("nested.c:12",)} <= found


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_a_fault_names_the_calls_it_was_inlined_through(tmp_path, arch):
    source = tmp_path / "nested.hip"
    source.write_text(NESTED)
    launch = Launcher(str(source), arch)
    x = np.ones(64, np.float32)
    with pytest.raises(KernelFault) as caught:
        launch("nested", 1, launch.wave, Out(64, np.float32), x)
    fault = caught.value
    assert fault.kind == "out-of-bounds"
    assert fault.source == "nested.hip:3" and fault.inlined_at == ("nested.hip:7", "nested.hip:12")
    assert "at nested.hip:3, inlined at nested.hip:7, inlined at nested.hip:12, in `" in str(fault)
    with pytest.raises(KernelFault) as caught:  # the store, which was not inlined
        launch("nested", 1, launch.wave, Out(1, np.float32), np.ones(129, np.float32))
    assert caught.value.source == "nested.hip:11" and caught.value.inlined_at == ()
    assert "inlined" not in str(caught.value)


def test_no_debug_information_gives_none(images):
    assert SourceLines(b"").at(0) is None and SourceLines(b"").inline_chain(0) == ()
    assert SourceLines(images["gfx942"][:5000]).at(0x1000) is None
    lines = SourceLines(images["gfx942"])  # of the assembler: lines, but nothing inlined
    start = CodeObject(images["gfx942"]).kernels["toy"].entry
    assert lines.inline_chain(start) == ("toy.s:41",)


def _section(image, wanted):
    names = struct.unpack_from("<Q", image, sections(image)[struct.unpack_from("<H", image, 62)[0]] + 24)[0]
    for header in sections(image):
        name = names + struct.unpack_from("<I", image, header)[0]
        if image[name : image.index(b"\0", name)] == wanted.encode():
            at, size = struct.unpack_from("<QQ", image, header + 24)
            return SimpleNamespace(at=at, size=size, header=header)
    raise AssertionError(f"no {wanted}")


def test_a_count_of_entries_without_bytes_ends(images):
    """Version 5: no columns and 2**63 - 1 directories; a reader that believes it never returns."""
    image = bytearray(images["gfx942"])
    section = _section(image, ".debug_line")
    # length 4, version 2, sizes 2, header length 4, six bytes, then opcode_base - 1 lengths
    at = section.at + 18 + image[section.at + 17] - 1
    assert image[at] == 1  # one column: the path
    image[at : at + 10] = b"\0" + b"\xff" * 8 + b"\x7f"
    assert SourceLines(bytes(image)).at(0x1000) is None


@QUICK
@given(data=st.data(), arch=st.sampled_from(["gfx90a", "gfx942"]))
def test_damaged_line_tables(images, data, arch):
    image = bytearray(images[arch])
    section = _section(image, ".debug_line")
    for offset, value in data.draw(
        st.lists(st.tuples(st.integers(0, section.size - 1), st.integers(0, 255)), min_size=1, max_size=6)
    ):
        image[section.at + offset] = value
    attempt(bytes(image))


def _chains(image, addresses):
    started = time.process_time()
    lines = SourceLines(bytes(image))
    for address in addresses:
        chain = lines.inline_chain(address)
        assert chain == () or chain[0] == lines.at(address)
        assert all(":" in line for line in chain) and len(chain) <= 300
    assert time.process_time() - started < 4
    return lines


@QUICK
@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_damaged_calls(inlined, data, version):
    """A line of the table stays what it is; its callers may be fewer, and sometimes others."""
    image = bytearray(inlined[version])
    names = [".debug_info", ".debug_abbrev"]
    names += [".debug_rnglists", ".debug_addr"] if version == 5 else [".debug_ranges"]
    parts = [SimpleNamespace(at=0, size=len(image)), *(_section(image, name) for name in names)]
    for part in data.draw(st.lists(st.sampled_from(parts), min_size=1, max_size=4)):
        offset, value = data.draw(st.tuples(st.integers(0, part.size - 1), st.integers(0, 255)))
        image[part.at + offset] = value
    _chains(image, (-1, 0, 1 << 70, *_instructions(inlined[version])))


def _with(image, contents):
    """The file with other contents for some of its sections, put behind its end."""
    image = bytearray(image)
    for name, content in contents.items():
        struct.pack_into("<QQ", image, _section(image, name).header + 24, len(image), len(content))
        image += content
    return image


def _unit(entries):
    return struct.pack("<IHIB", 7 + len(entries), 4, 0, 8) + entries


UNIT, FUNCTION, INLINED = 0x11, 0x2E, 0x1D
LINES, LOW, HIGH, RANGES, CALL_FILE, CALL_LINE = 0x10, 0x11, 0x12, 0x55, 0x58, 0x59
ADDR, DATA4, DATA1, PRESENT, OFFSET = 0x01, 0x06, 0x0B, 0x19, 0x17


@pytest.mark.parametrize(
    ("abbreviations", "entries"),
    [
        # thousands of attributes of no bytes in each entry
        (bytes([1, UNIT, 1, 0, 0, 2, FUNCTION, 0, *[0x3F, PRESENT] * 20000, 0, 0, 0]), b"\1" + b"\2" * 50000),
        # every entry opens another
        (bytes([1, UNIT, 1, 0, 0, 2, INLINED, 1, 0, 0, 0]), b"\1" + b"\2" * 200000),
        (bytes([1, UNIT, 1, 0, 0, 2, INLINED, 0, 0, 0, 0]), b"\1" + b"\2" * 4000000),
        # a long text, a long number, a block larger than the file
        (bytes([1, UNIT, 1, 3, 8, 0, 0, 0]), b"\1" + b"a" * 100000),
        (bytes([1, UNIT, 1, 3, 0x0F, 0, 0, 0]), b"\1" + b"\xff" * 100000),
        (bytes([1, UNIT, 1, 3, 0x09, 0, 0, 0]), b"\1" + b"\xff" * 9 + b"\x7f"),
    ],
)
def test_hostile_entries_end(inlined, abbreviations, entries):
    contents = {".debug_info": _unit(entries), ".debug_abbrev": abbreviations}
    _chains(_with(inlined[4], contents), _instructions(inlined[4]))


@pytest.mark.parametrize("units", [1, 20000])
def test_many_entries_with_one_long_list_of_ranges_end(inlined, units):
    abbreviations = bytes([1, UNIT, 1, 0, 0, 2, FUNCTION, 0, RANGES, OFFSET, 0, 0, 0])
    ranges = struct.pack("<QQ", 1, 1 << 60) * 100000
    info = _unit(b"\1" + (b"\2" + bytes(4)) * (20000 // units)) * units
    contents = {".debug_info": info, ".debug_abbrev": abbreviations, ".debug_ranges": ranges}
    image = _with(inlined[4], contents)
    lines = _chains(image, (0, 1, 1 << 59, *_instructions(inlined[4])))
    calls = lines._calls
    assert calls is not None and len(calls._ranges) <= 1 << 17 and len(calls._scopes) <= 1 << 16


def test_a_dropped_function_at_zero_does_not_hide_the_calls(inlined):
    """It reaches over all others; the function that starts later is the one. Of its calls, one has no
    line and two are in the same."""
    unit, function = [1, UNIT, 1, LINES, OFFSET, 0, 0], [2, FUNCTION, 1, LOW, ADDR, HIGH, DATA4, 0, 0]
    call = [3, INLINED, 1, LOW, ADDR, HIGH, DATA4, CALL_FILE, DATA1, CALL_LINE, DATA1, 0, 0]
    abbreviations = bytes([*unit, *function, *call, 0])
    code = CodeObject(inlined[4])
    start, end = code.text

    def entry(kind, low, high, *line):
        return bytes([kind]) + struct.pack("<QI", low, high - low) + bytes(line)

    dropped = entry(2, 0, 2 * end) + entry(3, 0, 2 * end, 1, 90) + entry(3, 0, 2 * end, 1, 91) + bytes(3)
    calls = [entry(3, start, start + 4, 1, line) for line in (77, 0, 78, 78)]
    real = entry(2, start, end) + b"".join(calls) + bytes(5)
    for functions in (dropped + real, real + dropped):
        info = _unit(b"\1" + bytes(4) + functions + b"\0")
        lines = _chains(_with(inlined[4], {".debug_info": info, ".debug_abbrev": abbreviations}), (0,))
        assert lines.inline_chain(start)[1:] == ("nested.c:78", "nested.c:77")
        assert lines.inline_chain(start + 4) == (lines.at(start + 4),)
