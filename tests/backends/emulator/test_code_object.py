"""Code objects: every directive given to the assembler is read back, and damage is always an error.

The kernels are assembled here, so every figure expected below stands in a directive of `ASSEMBLY`, an
independent writing of the same descriptor. Occupancies are those that clang's own report ("; Occupancy:")
gave for kernels of these registers, LDS and threads.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from toy_objects import QUICK, TARGETS, attempt, sections

from portable.backends.rocm.emulator.code_object import LARGEST, CodeObject
from portable.backends.rocm.emulator.faults import CodeObjectError

# Directives given to the assembler, as read back.


@pytest.mark.parametrize("arch", TARGETS)
def test_figures_are_those_of_the_directives(images, arch):
    code = CodeObject(images[arch])
    wave, vgprs, version, _, _ = TARGETS[arch]
    assert (code.arch, code.version, list(code.kernels)) == (arch, version, ["toy"])
    assert code.wave == (32 if arch.startswith("gfx1") else 64)
    toy = code.kernels["toy"]
    assert toy.code is code
    assert toy.wave == wave
    granule = 4 if arch == "gfx1201" else 8
    assert toy.vgprs == -(-vgprs // granule) * granule
    assert toy.agpr_offset == {"gfx90a": 52, "gfx942": 64, "gfx950": 64}.get(arch, 0)
    # 30, and on gfx9 the 6 of VCC, FLAT_SCRATCH and XNACK_MASK
    assert toy.sgprs == (128 if arch.startswith("gfx1") else 48)
    assert (toy.lds, toy.scratch, toy.kernarg_size, toy.max_threads) == (1536, 48, 24, 256)
    assert toy.float_mode == 1 | 2 << 2 | 0 << 4 | 3 << 6
    assert toy.workitem_ids == 2
    assert toy.dx10_clamp is (arch != "gfx1100")
    assert toy.ieee_mode is (arch in ("gfx90a", "gfx1100"))
    assert toy.wgp_mode is (arch == "gfx1100")
    assert toy.workgroup_ids_in_ttmp is (arch == "gfx1201")
    assert [argument[".value_kind"] for argument in toy.arguments] == ["global_buffer", "by_value"]


@pytest.mark.parametrize(
    ("arch", "user", "system"),
    [
        (
            "gfx90a",
            ["private_segment_buffer"] * 4 + ["dispatch_ptr"] * 2 + ["kernarg_ptr"] * 2,
            ["workgroup_id_x", "workgroup_id_z", "scratch_wave_offset"],
        ),
        (
            "gfx942",
            ["dispatch_ptr"] * 2 + ["kernarg_ptr"] * 2 + ["preload:1", "preload:2", "preload:3"],
            ["workgroup_id_x", "workgroup_id_z"],
        ),
        (
            "gfx1100",
            ["dispatch_ptr"] * 2 + ["kernarg_ptr"] * 2 + ["unused"] * 9,
            ["workgroup_id_x", "workgroup_id_z"],
        ),
        ("gfx1201", ["dispatch_ptr"] * 2 + ["kernarg_ptr"] * 2, []),
    ],
)
def test_sgprs_come_in_the_order_of_the_guide(images, arch, user, system):
    toy = CodeObject(images[arch]).kernels["toy"]
    assert toy.user_sgprs == tuple(user)
    assert toy.system_sgprs == tuple(system)


@pytest.mark.parametrize("arch", TARGETS)
def test_entry_is_behind_the_prologue_of_a_preload(images, arch):
    code = CodeObject(images[arch])
    toy = code.kernels["toy"]
    preloads = arch in ("gfx942", "gfx950")
    assert toy.entry == code.text[0] + (256 if preloads else 0)
    # Two s_nop 0, one more, s_endpgm: the opcode is 0xbf81 on gfx9 and 0xbfb0 later.
    at = toy.entry - code.base
    words = struct.unpack_from("<4I", code.memory, at)
    assert words[:3] == (0xBF800000,) * 3
    assert words[3] == (0xBFB00000 if arch.startswith("gfx1") else 0xBF810000)


def test_memory_is_laid_out_and_relocated(images):
    code = CodeObject(images["gfx942"])
    assert code.base == 0
    assert len(code.pointers) == 2
    inner, outer = sorted(code.pointers)
    assert outer == inner + 8
    # RELATIVE64 for the protected one, ABS64 with its symbol for the one another object could replace
    assert struct.unpack_from("<QQ", code.memory, inner) == (inner + 5, outer + 7)
    there = 0x7F1234560000
    moved = code.loaded_at(there)
    assert struct.unpack_from("<QQ", moved, inner) == (there + inner + 5, there + outer + 7)
    assert struct.unpack_from("<QQ", code.memory, inner) == (inner + 5, outer + 7)


def test_code_without_metadata_has_kernels_without_arguments(images):
    toy = CodeObject(images["bare"]).kernels["toy"]
    assert toy.arguments == ()
    assert toy.max_threads == 1024
    assert toy.kernarg_size == 24


@pytest.mark.parametrize("table", ["dynamic", "sections"])
def test_descriptors_are_found_without_the_dynamic_table(images, table):
    """First by .dynsym in the section headers, then by .symtab."""
    image = bytearray(images["gfx942"])
    _drop_hash(image)
    if table == "sections":
        for header in sections(image):
            if struct.unpack_from("<I", image, header + 4)[0] == 11:
                struct.pack_into("<I", image, header + 4, 1)
    assert list(CodeObject(bytes(image)).kernels) == ["toy"]


def _drop_hash(image):
    for at, (kind, *_) in _segments(image):
        if kind == 2:
            (offset,) = struct.unpack_from("<Q", image, at + 8)
            while struct.unpack_from("<Q", image, offset)[0] != 4:
                offset += 16
            struct.pack_into("<Q", image, offset, 0x6FFFFF00)


def _segments(image):
    (start,) = struct.unpack_from("<Q", image, 32)
    for index in range(struct.unpack_from("<H", image, 56)[0]):
        at = start + 56 * index
        yield at, struct.unpack_from("<IIQQQQQQ", image, at)


# Occupancy.


@pytest.mark.parametrize(
    ("arch", "vgprs", "lds", "waves"),
    [
        ("gfx90a", 64, 1024, 8), ("gfx942", 81, 1024, 5), ("gfx942", 128, 1024, 4), ("gfx950", 162, 1024, 3),
        ("gfx1100", 96, 1024, 16), ("gfx1100", 128, 1024, 10), ("gfx1201", 162, 1024, 9),
        ("gfx90a", 24, 12000, 5), ("gfx942", 24, 20000, 3), ("gfx942", 24, 65536, 1),
        ("gfx950", 24, 20000, 8), ("gfx950", 24, 32000, 5), ("gfx950", 24, 48000, 3),
        ("gfx950", 24, 65536, 2),
        ("gfx1100", 24, 20000, 12), ("gfx1201", 24, 32000, 8), ("gfx1201", 24, 65536, 4),
    ],
)  # fmt: skip
def test_occupancy_is_what_clang_reports(images, arch, vgprs, lds, waves):
    if arch.startswith("gfx1"):
        # Those kernels ran in clang's default: waves of 32 and WGP mode.
        image = _patched(images[arch], rsrc1=lambda old: old & ~63 | -(-vgprs // 8) - 1 | 1 << 29)
        image = _patched(image, properties=lambda old: old | 1 << 10)
    else:
        image = _patched(images[arch], rsrc1=lambda old: old & ~63 | -(-vgprs // 8) - 1)
        image = _patched(image, rsrc3=lambda old: 0)
    toy = CodeObject(_patched(image, lds=lambda old: lds)).kernels["toy"]
    assert toy.occupancy() == waves
    assert toy.occupancy(shared=163841) == 0


@pytest.mark.parametrize(
    ("arch", "wave", "wgp", "vgprs", "lds", "waves"),
    [
        ("gfx1100", 64, True, 4, 20000, 6), ("gfx1100", 64, True, 100, 1024, 7),
        ("gfx1201", 64, True, 64, 1024, 10), ("gfx1100", 32, False, 4, 20000, 12),
        ("gfx1201", 32, False, 100, 1024, 12), ("gfx1201", 32, False, 4, 14500, 16),
    ],
)  # fmt: skip
def test_occupancy_of_other_modes_is_what_clang_reports(images, arch, wave, wgp, vgprs, lds, waves):
    """With -mwavefrontsize64 and -mcumode."""
    blocks = -(-vgprs // (8 if wave == 32 else 4)) - 1
    image = _patched(
        images[arch],
        rsrc1=lambda old: old & ~63 & ~(1 << 29) | blocks | wgp << 29,
        properties=lambda old: old & ~(1 << 10) | (wave == 32) << 10,
        lds=lambda old: lds,
    )
    assert CodeObject(image).kernels["toy"].occupancy() == waves


def test_occupancy_by_sgprs_and_by_granules_of_lds(images):
    """106 SGPRs leave 7 waves, as clang reports; 13100 bytes take 13312, and 5 of those are too many."""
    image = _patched(images["gfx942"], rsrc1=lambda old: old & ~1023 | 13 << 6, rsrc3=lambda old: 0)
    toy = CodeObject(_patched(image, lds=lambda old: 1024)).kernels["toy"]
    assert (toy.vgprs, toy.sgprs, toy.occupancy()) == (8, 112, 7)
    assert toy.occupancy(shared=13100 - 1024) == 4
    toy = CodeObject(_patched(images["gfx950"], lds=lambda old: 27200)).kernels["toy"]
    assert toy.occupancy() == 5


def test_occupancy_counts_dynamic_lds_and_threads(images):
    toy = CodeObject(_patched(images["gfx942"], lds=lambda old: 0)).kernels["toy"]
    assert toy.vgprs == 136
    assert toy.occupancy() == 3
    assert toy.occupancy(shared=24000) == 2
    assert toy.occupancy(shared=24000, threads=1024) == 3
    assert toy.occupancy(shared=65536, threads=64) == 1


_FIELDS = {"lds": (0, "I"), "scratch": (4, "I"), "kernarg": (8, "I"), "entry": (16, "q"), "rsrc3": (44, "I"),
           "rsrc1": (48, "I"), "rsrc2": (52, "I"), "properties": (56, "H"), "preload": (58, "H")}  # fmt: skip


def _patched(image, **changes):
    """The image with fields of its descriptor changed; `.rodata` is read from the section headers."""
    image = bytearray(image)
    names = struct.unpack_from("<Q", image, sections(image)[struct.unpack_from("<H", image, 62)[0]] + 24)[0]
    for header in sections(image):
        name = names + struct.unpack_from("<I", image, header)[0]
        if image[name : name + 8] == b".rodata\0":
            (start,) = struct.unpack_from("<Q", image, header + 24)
            for field, change in changes.items():
                at, form = _FIELDS[field]
                (old,) = struct.unpack_from("<" + form, image, start + at)
                struct.pack_into("<" + form, image, start + at, change(old))
            return bytes(image)
    raise AssertionError("no .rodata")


# Everything that can be wrong has its own words.


@pytest.mark.parametrize(
    ("arch", "field", "change", "message"),
    [
        ("gfx942", "entry", lambda old: old + 4, "not a multiple of 256"),
        ("gfx942", "entry", lambda old: old + (1 << 40), "outside the executable code"),
        ("gfx942", "entry", lambda old: old - 256 * 8, "outside the executable code"),
        ("gfx942", "entry", lambda old: old + 256, "outside the executable code"),
        ("gfx942", "lds", lambda old: 65537, "65537 bytes of LDS; gfx942 has 65536"),
        ("gfx950", "lds", lambda old: 163841, "gfx950 has 163840"),
        ("gfx942", "scratch", lambda old: 1 << 31, "bytes of scratch per lane"),
        ("gfx942", "kernarg", lambda old: 8, "preloads dwords 1 to 4 of 8 bytes"),
        ("gfx1100", "kernarg", lambda old: 8, "argument 1 has 4 bytes at 8 of a kernarg segment of 8"),
        ("gfx1100", "kernarg", lambda old: 1 << 31, "a kernarg segment of"),
        ("gfx942", "rsrc3", lambda old: 63, "AGPRs start at 256 of 136 registers"),
        ("gfx942", "rsrc3", lambda old: old | 1 << 16, "split over compute units"),
        ("gfx1201", "rsrc1", lambda old: old | 1 << 26, "16-bit overflow"),
        ("gfx942", "rsrc1", lambda old: old | 1 << 20, "privilege"),
        ("gfx942", "rsrc2", lambda old: old | 1 << 24, "exceptions"),
        ("gfx942", "rsrc2", lambda old: old | 3 << 11, "undefined number of work-item ids"),
        ("gfx942", "rsrc2", lambda old: old & ~62, "enables 7 user SGPRs and counts 0"),
        ("gfx1100", "rsrc2", lambda old: old | 62, "enables 4 user SGPRs and counts 31"),
        ("gfx942", "properties", lambda old: old | 1 << 10, "needs waves of 32"),
        ("gfx942", "properties", lambda old: old | 1, "scratch set up in SGPRs"),
        ("gfx1100", "properties", lambda old: old | 1 << 5, "scratch set up in SGPRs"),
        ("gfx1100", "preload", lambda old: 1, "preloads arguments, which gfx1100 does not do"),
        ("gfx1100", "rsrc1", lambda old: old | 63, "512 VGPRs; there are 256"),
    ],
)
def test_a_descriptor_no_gpu_takes_is_named(images, arch, field, change, message):
    with pytest.raises(CodeObjectError, match=message):
        CodeObject(_patched(images[arch], **{field: change}))


def test_files_of_another_kind_are_named(images):
    good = images["gfx942"]

    def with_byte(at, value, size=1):
        return good[:at] + value.to_bytes(size, "little") + good[at + size :]

    for image, message in (
        (b"", "0 bytes"),
        (good[:63], "63 bytes"),
        (b"\x7fELG" + good[4:], "not a 64-bit"),
        (with_byte(5, 2), "not a 64-bit little-endian"),
        (with_byte(18, 62, 2), "machine 62"),
        (with_byte(7, 0), "OS 0"),
        (with_byte(8, 1), "ABI version 1"),
        (with_byte(48, 0x36, 4), "e_flags 0x36 name an architecture that is none of gfx90a, gfx942"),
        (with_byte(48, 0x4F, 4), "e_flags say gfx950, the metadata gfx942"),
        (with_byte(54, 0, 2), "program headers of 0 bytes"),
        (with_byte(56, 65535, 2), "65535 program headers"),
        (good[:200], "truncated: program headers"),
        (good[: max(fields[2] + fields[5] for _, fields in _segments(good)) - 1], "truncated: a segment"),
        (images["object"], "type 1; a code object is linked"),
    ):
        with pytest.raises(CodeObjectError, match=message):
            CodeObject(image)


def test_a_segment_cannot_ask_for_gigabytes(images):
    image = bytearray(images["gfx942"])
    last = [at for at, (kind, *_) in _segments(image) if kind == 1][-1]
    struct.pack_into("<Q", image, last + 40, 1 << 40)
    with pytest.raises(CodeObjectError, match=f"more than the {LARGEST} allowed"):
        CodeObject(bytes(image))
    struct.pack_into("<Q", image, last + 16, (1 << 64) - 8)
    with pytest.raises(CodeObjectError):
        CodeObject(bytes(image))


def test_overlapping_segments_are_an_error(images):
    image = bytearray(images["gfx942"])
    loads = [at for at, (kind, *_) in _segments(image) if kind == 1]
    struct.pack_into("<Q", image, loads[1] + 16, 0)
    with pytest.raises(CodeObjectError, match="overlaps"):
        CodeObject(bytes(image))


def test_relocations_are_named_and_bounded(images):
    image = bytearray(images["gfx942"])
    code = CodeObject(bytes(image))
    entry = image.index(struct.pack("<QQq", code.pointers[0], 13, code.pointers[0] + 5))
    struct.pack_into("<Q", image, entry + 8, 10)
    with pytest.raises(CodeObjectError, match="R_AMDGPU_REL32_LO"):
        CodeObject(bytes(image))
    struct.pack_into("<Q", image, entry + 8, 99)
    with pytest.raises(CodeObjectError, match="of type 99"):
        CodeObject(bytes(image))
    struct.pack_into("<QQ", image, entry, len(code.memory) - 7, 13)
    with pytest.raises(CodeObjectError, match="outside the loaded segments"):
        CodeObject(bytes(image))
    struct.pack_into("<QQ", image, entry, code.pointers[0], 3)  # symbol 0 is the undefined one
    with pytest.raises(CodeObjectError, match="defined nowhere"):
        CodeObject(bytes(image))


def test_a_table_is_no_longer_than_its_file(images):
    """Else a segment of 200 MB that the file does not hold would be read as nine million relocations."""
    image = bytearray(images["gfx942"])
    last = [at for at, (kind, *_) in _segments(image) if kind == 1][-1]
    struct.pack_into("<Q", image, last + 40, 200 << 20)
    size = image.index(struct.pack("<QQ", 8, 48))  # DT_RELASZ of the two
    struct.pack_into("<Q", image, size + 8, 24 << 22)
    with pytest.raises(CodeObjectError, match=r"relocations at .* outside the loaded segments"):
        CodeObject(bytes(image))


def test_metadata_and_symbols_must_agree(images):
    image = images["gfx942"]
    note = image.index(b"toy.kd")
    with pytest.raises(CodeObjectError, match=r"kernel 'tox.kd' that has no descriptor"):
        CodeObject(image[: note + 2] + b"x" + image[note + 3 :])
    broken = image.index(b"amdhsa.kernels")
    with pytest.raises(CodeObjectError, match="metadata note"):
        CodeObject(image[: broken - 1] + b"\xc1" + image[broken:])


# Any bytes at all: a code object or an error, and soon.

_EXTREMES = (0, 1, 0x7F, 0xFF, 0xFFFF, 1 << 31, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@QUICK
@given(data=st.data(), arch=st.sampled_from(list(TARGETS)))
def test_flipped_bytes(images, data, arch):
    image = bytearray(images[arch])
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(image) - 1), st.integers(0, 255)), min_size=1, max_size=8)
    ):
        image[at] = value
    attempt(bytes(image))


@QUICK
@given(data=st.data(), arch=st.sampled_from(list(TARGETS)))
def test_words_of_extreme_values(images, data, arch):
    """In the tables that steer the reading, not in the padding between."""
    image = bytearray(images[arch])
    places = list(range(16, 64, 2)) + [at for at, _ in _segments(image) for at in range(at, at + 56, 4)]
    for header in sections(image):
        places += range(header, header + 64, 4)
        kind, _, _, offset, size = struct.unpack_from("<IQQQQ", image, header + 4)
        if kind != 8:
            places += range(offset, offset + size, 4)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(places))
        width = data.draw(st.sampled_from((2, 4, 8)))
        value = data.draw(st.sampled_from(_EXTREMES)) & (1 << 8 * width) - 1
        image[at : at + width] = value.to_bytes(width, "little")
    attempt(bytes(image))


@QUICK
@given(cut=st.integers(0, 20000), extra=st.binary(max_size=64))
def test_truncations(images, cut, extra):
    image = images["gfx950"]
    attempt(image[: cut % len(image)] + extra)


@QUICK
@given(tail=st.binary(max_size=400), header=st.booleans())
@example(tail=b"", header=True)
def test_random_bytes(images, tail, header):
    attempt(images["gfx942"][:64] + tail if header else tail)


def test_tables_of_many_entries_are_read_in_linear_time(images):
    """A .symtab of 100,000 descriptors whose names all begin in one that never ends."""
    image = bytearray(images["gfx942"])
    _drop_hash(image)
    symbols, names = len(image), len(image) + 24 * 100_000
    image += struct.pack("<IBBHQQ", 0, 1, 0, 1, 0, 64) * 100_000 + b"a" * 2_000_000
    for header in sections(image):
        (kind,) = struct.unpack_from("<I", image, header + 4)
        if kind in (2, 11):
            struct.pack_into("<QQ", image, header + 24, symbols, 24 * 100_000)
        elif kind == 3:
            struct.pack_into("<QQ", image, header + 24, names, 2_000_000)
    with pytest.raises(CodeObjectError, match="has no end"):
        CodeObject(bytes(image))
    image[names + 16000] = 0
    attempt(bytes(image))
