"""Source lines from debug information, whole and damaged."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_objects import QUICK, TARGETS, attempt, sections

from portable.backends.rocm.compile import compile
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.lines import Lines


@pytest.mark.parametrize("arch", TARGETS)
def test_lines_are_those_of_the_directives(images, arch):
    """Version 4 of DWARF on gfx90a, 5 on the others; "line 0" belongs to the line before."""
    code = CodeObject(images[arch])
    lines = Lines(code.image)
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
    lines = Lines(code.image)
    found = [lines.at(address) for address in range(code.kernels["scale"].entry, code.text[1], 4)]
    assert {"scale.hip:5", "scale.hip:4"} <= set(found)
    assert {line.split(":")[0] for line in found if line} <= {"scale.hip", "prelude.h"}
    assert found.index("scale.hip:5") < len(found) - found[::-1].index("scale.hip:4")


def test_no_debug_information_gives_none(images):
    assert Lines(b"").at(0) is None
    assert Lines(images["gfx942"][:5000]).at(0x1000) is None


def _line_section(image):
    names = struct.unpack_from("<Q", image, sections(image)[struct.unpack_from("<H", image, 62)[0]] + 24)[0]
    for header in sections(image):
        name = names + struct.unpack_from("<I", image, header)[0]
        if image[name : name + 12] == b".debug_line\0":
            at, size = struct.unpack_from("<QQ", image, header + 24)
            return SimpleNamespace(at=at, size=size)
    raise AssertionError("no .debug_line")


def test_a_count_of_entries_without_bytes_ends(images):
    """Version 5: no columns and 2**63 - 1 directories; a reader that believes it never returns."""
    image = bytearray(images["gfx942"])
    section = _line_section(image)
    # length 4, version 2, sizes 2, header length 4, six bytes, then opcode_base - 1 lengths
    at = section.at + 18 + image[section.at + 17] - 1
    assert image[at] == 1  # one column: the path
    image[at : at + 10] = b"\0" + b"\xff" * 8 + b"\x7f"
    assert Lines(bytes(image)).at(0x1000) is None


@QUICK
@given(data=st.data(), arch=st.sampled_from(["gfx90a", "gfx942"]))
def test_damaged_line_tables(images, data, arch):
    image = bytearray(images[arch])
    section = _line_section(image)
    for offset, value in data.draw(
        st.lists(st.tuples(st.integers(0, section.size - 1), st.integers(0, 255)), min_size=1, max_size=6)
    ):
        image[section.at + offset] = value
    attempt(bytes(image))
