"""Reads AMDGPU code objects: the ELF file laid out in memory, and the descriptor of each kernel.

Layouts are from the "User Guide for AMDGPU Backend" of LLVM (sections ELF Code Object, Kernel Descriptor,
Initial Kernel Execution State) and the ELF gABI. The bytes may be damaged in any way: every number is
checked before it is used, and reading gives a `CodeObject` or raises `CodeObjectError`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from portable.backends.rocm import metadata
from portable.backends.rocm.emulator.faults import CodeObjectError

__all__ = ["CodeObject", "Kernel"]

LARGEST = 256 << 20
"""Bytes that the loaded segments may span; a file of a few KB can ask for any amount."""

_PAGE = 4096
_MOST_SEGMENTS = 256  # linkers write about ten
_LONGEST_NAME = 16384  # mangled names are long, but a table of endless ones must not be quadratic
_DESCRIPTOR = 64
_PRELOAD_PROLOGUE = 256  # bytes for firmware without preloading; execution starts after them
_MOST_USER_SGPRS = 16
_MOST_THREADS = 1024
_MOST_KERNARG = 1 << 20


@dataclass(frozen=True)
class _Arch:
    """What differs between the architectures.

    Registers, waves and groups are per SIMD and per compute unit, from LLVM's AMDGPU subtarget
    (AMDGPUBaseInfo: VGPR total and granule, waves per EU, LDS size and granule).
    """

    name: str
    generation: int
    wave: int
    vgprs: int  # 32-bit registers per lane and SIMD at the default wave size
    vgpr_granule: int
    most_waves: int
    lds: int  # most bytes of one workgroup
    lds_granule: int
    scratch: int  # most bytes of one wave: the widest WAVESIZE field of its generation
    architected_scratch: bool  # the flat_scratch register comes set up; no SGPRs carry it
    preload: bool = False


_ARCHES = {
    0x3F: _Arch("gfx90a", 9, 64, 512, 8, 8, 65536, 512, 1024 * (2**13 - 1), False, True),
    0x4C: _Arch("gfx942", 9, 64, 512, 8, 8, 65536, 512, 1024 * (2**13 - 1), True, True),
    0x4F: _Arch("gfx950", 9, 64, 512, 8, 8, 163840, 1280, 1024 * (2**13 - 1), True, True),
    0x41: _Arch("gfx1100", 11, 32, 1536, 24, 16, 65536, 512, 1024 * (2**15 - 1), True),
    0x4E: _Arch("gfx1201", 12, 32, 1536, 24, 16, 65536, 512, 1024 * (2**18 - 1), True),
}
_MACH = 0xFF
_FEATURES = 0xF00  # XNACK and SRAMECC, which do not change what an instruction computes
_ABI_VERSIONS = {2: 4, 3: 5, 4: 6}  # e_ident[8] -> code object version

# Order, width and enabling bit of the user SGPRs (guide: SGPR Register Set Up Order).
_USER_SGPRS = (
    ("private_segment_buffer", 4, 0),
    ("dispatch_ptr", 2, 1),
    ("queue_ptr", 2, 2),
    ("kernarg_ptr", 2, 3),
    ("dispatch_id", 2, 4),
    ("flat_scratch_init", 2, 5),
    ("private_segment_size", 1, 6),
)
_OFFSET_SCRATCH = 1 << 0 | 1 << 5  # bits of it that architected flat scratch forbids

_RELOCATIONS = {
    1: "R_AMDGPU_ABS32_LO", 2: "R_AMDGPU_ABS32_HI", 3: "R_AMDGPU_ABS64", 4: "R_AMDGPU_REL32",
    5: "R_AMDGPU_REL64", 6: "R_AMDGPU_ABS32", 7: "R_AMDGPU_GOTPCREL", 8: "R_AMDGPU_GOTPCREL32_LO",
    9: "R_AMDGPU_GOTPCREL32_HI", 10: "R_AMDGPU_REL32_LO", 11: "R_AMDGPU_REL32_HI",
    13: "R_AMDGPU_RELATIVE64", 14: "R_AMDGPU_REL16",
}  # fmt: skip
_ABS64, _RELATIVE64 = 3, 13

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PF_X = 1, 2, 4, 1
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_DT_PLTRELSZ, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_RELAENT = 2, 4, 5, 6, 7, 8, 9
_DT_STRSZ, _DT_SYMENT, _DT_RELSZ, _DT_RELRSZ = 10, 11, 18, 35
_SYMBOL = struct.Struct("<IBBHQQ")
_OBJECT, _UNDEFINED, _ABSOLUTE = 1, 0, 0xFFF1


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel: its entry point, registers, memory and arguments.

    `sgprs` are those allocated, VCC and the like among them (gfx11 and later: always 128); `lds` and
    `kernarg_size` are bytes, `scratch` bytes per lane. `user_sgprs` and `system_sgprs` name one SGPR
    each, counted on from s0; "unused" stands for an SGPR that the descriptor skips, whose content is
    undefined. `dx10_clamp` and `ieee_mode` are fixed to on and off on gfx12, which has no such bits.
    """

    name: str
    code: CodeObject = field(repr=False)
    entry: int
    wave: int
    vgprs: int
    agpr_offset: int
    sgprs: int
    lds: int
    scratch: int
    kernarg_size: int
    max_threads: int
    user_sgprs: tuple[str, ...]
    system_sgprs: tuple[str, ...]
    workitem_ids: int
    float_mode: int
    dx10_clamp: bool
    ieee_mode: bool
    workgroup_ids_in_ttmp: bool
    arguments: tuple[dict[str, Any], ...] = field(repr=False)
    wgp_mode: bool = False
    dynamic_stack: bool = False

    @property
    def explicit_size(self) -> int:
        """Bytes of the explicit arguments; the runtime adds the hidden ones after them. The whole segment if
        there is no metadata."""
        ends = []
        for argument in self.arguments:
            offset, size = argument.get(".offset"), argument.get(".size")
            if str(argument.get(".value_kind", "")).startswith("hidden_"):
                continue
            if isinstance(offset, int) and isinstance(size, int):
                ends.append(offset + size)
        return max(ends, default=0) if self.arguments else self.kernarg_size

    def occupancy(self, shared: int = 0, threads: int | None = None) -> int:
        """Waves that a SIMD holds at once, as registers and LDS allow; 0 if not even one workgroup fits.

        `shared` are bytes of LDS on top of the static ones, `threads` those of a workgroup (default:
        the most it may have). The lower of two figures, as LLVM's GCNSubtarget and AMDGPUBaseInfo
        compute them: registers of a SIMD by registers of a wave, in whole granules; and workgroups by
        LDS, spread over the SIMDs that share it. LDS is counted in the granules of the guide
        (GRANULATED_LDS_SIZE), which clang's own report leaves out, so that it can say one more.
        """
        by_registers, groups, simds, waves = self._resident(shared, threads)
        return min(by_registers, -(-groups * waves // simds))

    def workgroups(self, shared: int = 0, threads: int | None = None) -> int:
        """Workgroups that a compute unit (a WGP, where two of RDNA's join) holds at once; as `occupancy`."""
        by_registers, groups, simds, waves = self._resident(shared, threads)
        return min(groups, by_registers * simds // waves)

    def _resident(self, shared: int, threads: int | None) -> tuple[int, int, int, int]:
        """(waves of a SIMD by registers, workgroups by LDS and wave slots, SIMDs, waves of a workgroup)."""
        arch = self.code._arch
        narrower = self.wave // arch.wave  # wave64 where wave32 is native takes double registers
        granule, total = arch.vgpr_granule // narrower, arch.vgprs // narrower
        by_registers = min(arch.most_waves, total // _whole(max(1, self.vgprs), granule))
        if arch.generation == 9:  # 800 SGPRs per SIMD; later ones give each wave its full 128
            by_registers = min(by_registers, 800 // max(1, self.sgprs))
        # Two compute units of gfx11 and gfx12 join into a WGP, unless the kernel's descriptor disables it.
        simds = 4 if arch.generation == 9 or self.wgp_mode else 2
        pool = arch.lds * (2 if self.wgp_mode else 1)
        waves = max(1, -(-(threads or self.max_threads) // self.wave))
        groups = arch.most_waves * simds // waves
        if waves > 1:  # each needs one of the barriers
            groups = min(groups, 32 if self.wgp_mode else 16)
        lds = self.lds + shared
        if lds:
            groups = min(groups, pool // _whole(lds, arch.lds_granule)) if lds <= arch.lds else 0
        return min(by_registers, arch.most_waves), groups, simds, waves


@dataclass(frozen=True)
class _Segment:
    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    size: int


class CodeObject:
    """A loaded code object; CodeObjectError on anything wrong with its bytes, never another exception.

    `memory[0]` stands for virtual address `base`. Relocated words hold virtual addresses; `pointers`
    lists where they lie, and `loaded_at` gives the memory as it reads at another place. With
    `drops_waits`, False unless set, a wait that is missing in front of a barrier is counted, and is no fault.
    """

    arch: str
    wave: int
    image: bytes
    memory: bytearray
    base: int
    text: tuple[int, int]
    kernels: dict[str, Kernel]
    pointers: tuple[int, ...]

    def __init__(self, image: bytes) -> None:
        self.image = bytes(image)
        self.drops_waits = False
        self._arch, self.version = self._header()
        self.arch, self.wave = self._arch.name, self._arch.wave
        segments = self._segments()
        self.base, self.memory = self._load(segments)
        self.text = self._text(segments)
        dynamic = self._dynamic(segments)
        self.pointers = self._relocate(dynamic)
        notes = self._notes(segments)
        self.kernels = self._kernels(dynamic, notes)

    def __repr__(self) -> str:
        return f"<CodeObject {self.arch}: {', '.join(self.kernels)}>"

    def loaded_at(self, address: int) -> bytearray:
        """The memory with every pointer into it moved, as if memory[0] lay at `address`."""
        moved = bytearray(self.memory)
        for place in self.pointers:
            (value,) = struct.unpack_from("<Q", moved, place - self.base)
            struct.pack_into("<Q", moved, place - self.base, value - self.base + address & _64_BITS)
        return moved

    # The file.

    def _header(self) -> tuple[_Arch, int]:
        image = self.image
        if len(image) < 64:
            raise CodeObjectError(f"{len(image)} bytes are no code object: its header alone has 64")
        if image[:7] != b"\x7fELF\x02\x01\x01":
            raise CodeObjectError("not a 64-bit little-endian ELF file")
        kind, machine, _, _, _, _, flags = struct.unpack_from("<HHIQQQI", image, 16)
        if machine != 224 or image[7] != 64:
            raise CodeObjectError(f"ELF file of machine {machine}, OS {image[7]}: not one of AMDGPU for HSA")
        if kind != 3:
            raise CodeObjectError(f"ELF file of type {kind}; a code object is linked, of type 3")
        if image[8] not in _ABI_VERSIONS:
            raise CodeObjectError(f"ABI version {image[8]} is none of code object versions 4, 5 and 6")
        arch = _ARCHES.get(flags & _MACH)
        if arch is None or flags & ~(_MACH | _FEATURES):
            known = ", ".join(each.name for each in _ARCHES.values())
            raise CodeObjectError(f"e_flags {flags:#x} name an architecture that is none of {known}")
        return arch, _ABI_VERSIONS[image[8]]

    def _segments(self) -> list[_Segment]:
        (offset,) = struct.unpack_from("<Q", self.image, 32)
        size, count = struct.unpack_from("<HH", self.image, 54)
        if size != 56 or not 0 < count <= _MOST_SEGMENTS:
            raise CodeObjectError(f"{count} program headers of {size} bytes; {_MOST_SEGMENTS} of 56 allowed")
        self._in_file(offset, count * size, "program headers")
        found = []
        for kind, flags, at, address, _, file_size, memory_size, _ in struct.iter_unpack(
            "<IIQQQQQQ", self.image[offset : offset + count * size]
        ):
            if kind in (_PT_LOAD, _PT_DYNAMIC, _PT_NOTE):
                self._in_file(at, file_size, "a segment")
                if kind == _PT_LOAD and file_size > memory_size:
                    raise CodeObjectError(f"segment at {address:#x} has more bytes in the file than loaded")
                found.append(_Segment(kind, flags, at, address, file_size, memory_size))
        return found

    def _load(self, segments: list[_Segment]) -> tuple[int, bytearray]:
        loads = [each for each in segments if each.kind == _PT_LOAD and each.size]
        if not loads:
            raise CodeObjectError("no loadable segment")
        base = loads[0].address & -_PAGE
        end = base
        for each in loads:
            if each.address < end:
                raise CodeObjectError(f"segment at {each.address:#x} overlaps the one before, or precedes it")
            end = each.address + each.size
            if end - base > LARGEST:
                raise CodeObjectError(
                    f"segment at {each.address:#x} of {each.size} bytes: more than the {LARGEST} allowed"
                )
        memory = bytearray(end - base)
        for each in loads:
            at = each.address - base
            memory[at : at + each.file_size] = self.image[each.offset : each.offset + each.file_size]
        return base, memory

    def _text(self, segments: list[_Segment]) -> tuple[int, int]:
        executable = [
            each for each in segments if each.kind == _PT_LOAD and each.flags & _PF_X and each.file_size
        ]
        if len(executable) > 1:
            raise CodeObjectError(f"{len(executable)} executable segments; one is expected")
        if not executable:
            return self.base, self.base
        return executable[0].address, executable[0].address + executable[0].file_size

    def _dynamic(self, segments: list[_Segment]) -> dict[int, int]:
        entries: dict[int, int] = {}
        for each in segments:
            if each.kind == _PT_DYNAMIC:
                size = each.file_size & ~15
                for tag, value in struct.iter_unpack("<QQ", self.image[each.offset : each.offset + size]):
                    if tag == 0:
                        break
                    entries.setdefault(tag, value)
                break
        return entries

    def _notes(self, segments: list[_Segment]) -> dict[str, dict[str, Any]] | None:
        """The metadata per descriptor symbol; None where the file has none, as hand-written code may."""
        notes = [each for each in segments if each.kind == _PT_NOTE]
        if not any(b"AMDGPU\0" in self.image[each.offset : each.offset + each.file_size] for each in notes):
            return None
        try:
            found = metadata.metadata(self.image)
        except Exception as error:  # the decoder may raise anything on damaged bytes
            raise CodeObjectError(f"the metadata note is damaged: {error}") from error
        kernels = found.get("amdhsa.kernels", []) if isinstance(found, dict) else None
        if not isinstance(kernels, list) or not all(isinstance(each, dict) for each in kernels):
            raise CodeObjectError("the metadata note has no list of kernels")
        target = found.get("amdhsa.target")
        if isinstance(target, str):
            # "amdgcn-amd-amdhsa--gfx942:xnack-" and, newer, "amdgpu9.42-amd-amdhsa-unknown-gfx942"
            named = target.split(":")[0].rsplit("-", 1)[-1]
            if named.startswith("gfx") and named != self.arch:
                raise CodeObjectError(f"e_flags say {self.arch}, the metadata {named}")
        by_symbol = {}
        for each in kernels:
            symbol = each.get(".symbol", f"{each.get('.name')}.kd")
            if not isinstance(symbol, str) or symbol in by_symbol:
                raise CodeObjectError(f"the metadata name a kernel {symbol!r}: no name, or a second one")
            by_symbol[symbol] = each
        return by_symbol

    # Symbols and relocations.

    def _relocate(self, dynamic: dict[int, int]) -> tuple[int, ...]:
        for tag, what in ((_DT_PLTRELSZ, "PLT"), (_DT_RELSZ, "REL"), (_DT_RELRSZ, "RELR")):
            if dynamic.get(tag):
                raise CodeObjectError(f"{what} relocations, which no code object has")
        size = dynamic.get(_DT_RELASZ, 0)
        if not size:
            return ()
        if _DT_RELA not in dynamic or dynamic.get(_DT_RELAENT, 24) != 24 or size % 24:
            raise CodeObjectError(f"{size} bytes of relocations that are not entries of 24 bytes")
        start = self._in_memory(dynamic[_DT_RELA], size, "relocations")
        pointers = []
        for place, info, addend in struct.iter_unpack("<QQq", bytes(self.memory[start : start + size])):
            kind, symbol = info & 0xFFFFFFFF, info >> 32
            if kind == 0:
                continue
            moves = True
            if kind == _ABS64:
                value, moves = self._symbol_value(dynamic, symbol)
            elif kind == _RELATIVE64:
                value = 0
            else:
                name = _RELOCATIONS.get(kind, f"of type {kind}")
                raise CodeObjectError(f"relocation {name} at {place:#x} is not one a linked code object has")
            at = self._in_memory(place, 8, "a relocated word")
            struct.pack_into("<Q", self.memory, at, value + addend & _64_BITS)
            if moves:
                pointers.append(place)
        return tuple(dict.fromkeys(pointers))

    def _symbol_value(self, dynamic: dict[int, int], index: int) -> tuple[int, bool]:
        """A dynamic symbol's value, and whether it moves with the code object."""
        if _DT_SYMTAB not in dynamic or dynamic.get(_DT_SYMENT, 24) != 24:
            raise CodeObjectError("a relocation names a symbol, and there is no table of them")
        at = self._in_memory(dynamic[_DT_SYMTAB] + index * 24, 24, f"symbol {index}")
        _, _, _, section, value, _ = _SYMBOL.unpack_from(self.memory, at)
        if section == _UNDEFINED:
            raise CodeObjectError(f"a relocation names symbol {index}, which is defined nowhere")
        return value, section != _ABSOLUTE

    def _descriptors(self, dynamic: dict[int, int]) -> dict[str, int]:
        """Symbol -> address of the kernel descriptors; of the dynamic symbols, else of any section's."""
        found: dict[str, int] = {}
        if all(tag in dynamic for tag in (_DT_SYMTAB, _DT_STRTAB, _DT_STRSZ, _DT_HASH)):
            at = self._in_memory(dynamic[_DT_HASH], 8, "the hash table")
            (count,) = struct.unpack_from("<I", self.memory, at + 4)  # nchain is the number of symbols
            if dynamic.get(_DT_SYMENT, 24) != 24:
                raise CodeObjectError("dynamic symbols that are not of 24 bytes")
            start = self._in_memory(dynamic[_DT_SYMTAB], count * 24, "dynamic symbols")
            names = self._in_memory(dynamic[_DT_STRTAB], dynamic[_DT_STRSZ], "symbol names")
            symbols = bytes(self.memory[start : start + count * 24])
            found = _named_descriptors(symbols, bytes(self.memory[names : names + dynamic[_DT_STRSZ]]))
        for kind in (_SHT_DYNSYM, _SHT_SYMTAB):
            if not found:
                found = self._section_descriptors(kind)
        return found

    def _section_descriptors(self, wanted: int) -> dict[str, int]:
        (offset,) = struct.unpack_from("<Q", self.image, 40)
        size, count = struct.unpack_from("<HH", self.image, 58)
        if not count:
            return {}
        if size != 64:
            raise CodeObjectError(f"section headers of {size} bytes: 64 expected")
        self._in_file(offset, count * 64, "section headers")
        headers = list(struct.iter_unpack("<IIQQQQIIQQ", self.image[offset : offset + count * 64]))
        for _, kind, _, _, at, length, link, _, _, entry in headers:
            if kind == wanted:
                if entry != 24 or length % 24 or link >= count:
                    raise CodeObjectError("a section of symbols that are not of 24 bytes, or without names")
                self._in_file(at, length, "symbols")
                names_at, names_size = headers[link][4:6]
                self._in_file(names_at, names_size, "symbol names")
                symbols = self.image[at : at + length]
                return _named_descriptors(symbols, self.image[names_at : names_at + names_size])
        return {}

    def _in_file(self, offset: int, size: int, what: str) -> None:
        if offset + size > len(self.image):
            raise CodeObjectError(
                f"truncated: {what} at {offset:#x} to {offset + size:#x} of {len(self.image)} bytes"
            )

    def _in_memory(self, address: int, size: int, what: str) -> int:
        """Where in `memory` an address range lies. No table is longer than the file it came from."""
        start = address - self.base
        if start < 0 or start + size > len(self.memory) or size > len(self.image):
            raise CodeObjectError(f"{what} at {address:#x}, {size} bytes, are outside the loaded segments")
        return start

    # Kernels.

    def _kernels(self, dynamic: dict[int, int], notes: dict[str, dict[str, Any]] | None) -> dict[str, Kernel]:
        descriptors = self._descriptors(dynamic)
        for symbol in notes or ():
            if symbol not in descriptors:
                raise CodeObjectError(f"the metadata name a kernel {symbol!r} that has no descriptor")
        return {
            symbol[:-3]: self._kernel(symbol[:-3], address, (notes or {}).get(symbol, {}))
            for symbol, address in descriptors.items()
        }

    def _kernel(self, name: str, address: int, note: dict[str, Any]) -> Kernel:
        arch = self._arch
        at = self._in_memory(address, _DESCRIPTOR, f"descriptor of {name}")
        lds, scratch, kernarg, _, offset, rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from(
            "<IIIIq20xIIIHH", self.memory, at
        )

        def need(good: bool, what: str) -> None:
            if not good:
                raise CodeObjectError(f"kernel {name}: {what}")

        need(address % 64 == 0, f"descriptor at {address:#x}, which is not a multiple of 64")
        wave32 = bool(properties >> 10 & 1)
        need(arch.generation > 9 or not wave32, f"needs waves of 32, which {arch.name} does not have")
        wave = 32 if wave32 else 64
        granule = 8 if arch.generation == 9 or wave32 else 4
        vgprs = ((rsrc1 & 63) + 1) * granule
        need(arch.generation == 9 or vgprs <= 256, f"{vgprs} VGPRs; there are 256")
        accumulators = ((rsrc3 & 63) + 1) * 4 if arch.generation == 9 else 0
        need(accumulators <= vgprs, f"AGPRs start at {accumulators} of {vgprs} registers")
        # Encoded in eights, handed out in sixteens.
        sgprs = _whole(((rsrc1 >> 6 & 15) + 1) * 8, 16) if arch.generation == 9 else 128
        need(lds <= arch.lds, f"{lds} bytes of LDS; {arch.name} has {arch.lds}")
        need(scratch * wave <= arch.scratch, f"{scratch} bytes of scratch per lane; {arch.name} has less")
        for what, bits in _refused(arch, wave32, rsrc1, rsrc2, rsrc3, properties):
            need(not bits, f"the descriptor enables {what}, which is not emulated")

        if kernarg == 0:  # unspecified, says the guide
            kernarg = note.get(".kernarg_segment_size", 0)
        need(_count(kernarg, _MOST_KERNARG), f"a kernarg segment of {kernarg!r} bytes")
        user = self._user_sgprs(need, rsrc2, properties, preload, kernarg)
        entry = address + offset
        need(entry % 256 == 0, f"entry at {entry:#x}, which is not a multiple of 256")
        entry += _PRELOAD_PROLOGUE if preload & 127 else 0
        need(
            self.text[0] <= entry <= self.text[1] - 4,
            f"entry at {entry:#x}, outside the executable code at {self.text[0]:#x} to {self.text[1]:#x}",
        )
        ids = rsrc2 >> 11 & 3
        need(ids < 3, "undefined number of work-item ids")
        threads = note.get(".max_flat_workgroup_size", _MOST_THREADS)
        need(_count(threads, _MOST_THREADS) and threads > 0, f"workgroups of {threads!r} threads")
        gfx12 = arch.generation == 12
        return Kernel(
            name=name,
            code=self,
            entry=entry,
            wave=wave,
            vgprs=vgprs,
            agpr_offset=accumulators,
            sgprs=sgprs,
            lds=lds,
            scratch=scratch,
            kernarg_size=kernarg,
            max_threads=threads,
            user_sgprs=user,
            system_sgprs=_system_sgprs(arch, rsrc2),
            workitem_ids=ids + 1,
            float_mode=rsrc1 >> 12 & 255,
            dx10_clamp=gfx12 or bool(rsrc1 >> 21 & 1),
            ieee_mode=not gfx12 and bool(rsrc1 >> 23 & 1),
            workgroup_ids_in_ttmp=gfx12,
            arguments=_arguments(need, note.get(".args", []), kernarg),
            wgp_mode=arch.generation > 9 and bool(rsrc1 >> 29 & 1),
            dynamic_stack=bool(properties >> 11 & 1),
        )

    def _user_sgprs(
        self, need: Any, rsrc2: int, properties: int, preload: int, kernarg: int
    ) -> tuple[str, ...]:
        arch = self._arch
        need(
            not (arch.architected_scratch and properties & _OFFSET_SCRATCH),
            f"needs scratch set up in SGPRs, which {arch.name} does not do",
        )
        names: list[str] = []
        for name, width, bit in _USER_SGPRS:
            if properties >> bit & 1:
                names += [name] * width
        length, start = preload & 127, preload >> 7
        need(arch.preload or not preload, f"preloads arguments, which {arch.name} does not do")
        need(
            (start + length) * 4 <= _whole(kernarg, 4) or not length,
            f"preloads dwords {start} to {start + length} of {kernarg} bytes of arguments",
        )
        names += [f"preload:{start + index}" for index in range(length)]
        count = rsrc2 >> 1 & 31
        # LLVM counts more than it enables on gfx1100 in waves of 32, where fewer than 16 SGPRs of
        # both kinds together are not initialised; the system's follow behind `count`.
        need(
            len(names) <= count <= _MOST_USER_SGPRS,
            f"enables {len(names)} user SGPRs and counts {count}, of {_MOST_USER_SGPRS}",
        )
        return (*names, *["unused"] * (count - len(names)))


_64_BITS = (1 << 64) - 1


def _whole(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def _count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _system_sgprs(arch: _Arch, rsrc2: int) -> tuple[str, ...]:
    names = []
    if arch.generation < 12:
        names += [f"workgroup_id_{axis}" for bit, axis in ((7, "x"), (8, "y"), (9, "z")) if rsrc2 >> bit & 1]
    if rsrc2 >> 10 & 1:
        names.append("workgroup_info")
    if rsrc2 & 1 and not arch.architected_scratch:
        names.append("scratch_wave_offset")
    return tuple(names)


def _refused(arch: _Arch, wave32: bool, rsrc1: int, rsrc2: int, rsrc3: int, properties: int):
    """(feature, bits of the descriptor that enable it) for the features that are not emulated."""
    yield "a wave of priority, privilege or debugging", rsrc1 & (3 << 10 | 1 << 20 | 1 << 22 | 3 << 24)
    yield "16-bit overflow to the largest number", rsrc1 & 1 << 26
    yield "a trap handler or exceptions", rsrc2 & (1 << 6 | 3 << 13 | 0x7F << 24)
    yield "reserved bits", rsrc1 & 3 << 27 | rsrc2 & (1 << 31 | 0x1FF << 15) | properties & 0xF380
    if arch.generation == 9:
        yield "workgroups split over compute units", rsrc3 & 1 << 16
        yield "reserved bits", rsrc1 >> 29
    if arch.generation == 11 and not wave32:
        yield "VGPRs shared between half waves", rsrc3 & 15


def _arguments(need: Any, described: Any, kernarg: int) -> tuple[dict[str, Any], ...]:
    need(isinstance(described, list), "arguments in the metadata are no list")
    for index, each in enumerate(described):
        need(isinstance(each, dict), f"argument {index} in the metadata is no map")
        offset, size = each.get(".offset"), each.get(".size")
        need(
            _count(offset, kernarg) and _count(size, kernarg) and offset + size <= kernarg,
            f"argument {index} has {size!r} bytes at {offset!r} of a kernarg segment of {kernarg}",
        )
    return tuple(described)


def _named_descriptors(symbols: bytes, names: bytes) -> dict[str, int]:
    """The symbols `NAME.kd` of a table that are kernel descriptors, with their addresses."""
    found: dict[str, int] = {}
    for name_at, info, _, section, value, size in _SYMBOL.iter_unpack(symbols):
        if info & 15 != _OBJECT or section == _UNDEFINED or size != _DESCRIPTOR:
            continue
        end = names.find(b"\0", name_at, name_at + _LONGEST_NAME)
        if end < 0:
            raise CodeObjectError(f"the name of a symbol at {value:#x} has no end")
        if names[max(name_at, end - 3) : end] != b".kd":
            continue
        try:
            name = names[name_at:end].decode()
        except UnicodeDecodeError:
            raise CodeObjectError(f"the name of the descriptor at {value:#x} is not UTF-8") from None
        if found.setdefault(name, value) != value:
            raise CodeObjectError(f"two kernel descriptors are called {name}")
    return found
