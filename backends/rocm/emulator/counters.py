"""Counters of a launch: instructions by class, matrix FLOPs, memory traffic, LDS cycles. No timings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any

from portable.backend import Bound
from portable.backends.rocm import pipe_model
from portable.backends.rocm.emulator import abi, bound
from portable.backends.rocm.emulator.code_object import Kernel
from portable.backends.rocm.emulator.translate import Program
from portable.backends.rocm.metadata import resources

_ACCESSES = (
    ("global loads", lambda name, cls: cls == "global memory" and "load" in name),
    ("global stores", lambda name, cls: cls == "global memory" and "store" in name),
    ("atomics", lambda name, cls: cls == "global memory" and "atomic" in name),
    ("scratch", lambda name, cls: cls == "scratch"),
)


def resources_of(kernel: Kernel, shared: int, threads: int) -> dict[str, int]:
    """What a launch of `threads` work-items with `shared` bytes of dynamic LDS takes, by name."""
    return {
        "vgprs": kernel.vgprs,
        "sgprs": kernel.sgprs,
        "lds_bytes": kernel.lds + shared,
        "scratch_bytes": kernel.scratch,
        "spills": _spills(kernel),
        "waves_per_simd": kernel.occupancy(shared, threads),
    }


def _spills(kernel: Kernel) -> int:
    found = resources(kernel.code.image)[kernel.name]
    return found["vgpr_spills"] + found["sgpr_spills"]


class Counters:
    """Counters of one launch. `executed[i]` counts the waves that executed decoded instruction i, `memory[i]`
    is its `abi.MemCount`; `source` gives the source line of an instruction by index; `operand_bytes` are
    those of the tensors, each once; `unordered` counts the LDS accesses that no barrier orders because the
    compiler dropped a wait."""

    def __init__(
        self,
        kernel: Kernel,
        program: Program,
        source: Callable[[int], str | None],
        executed: list[int],
        memory: list[Any],
        shared: int,
        groups: int,
        block: tuple[int, int, int],
        operand_bytes: int,
        unordered: int = 0,
    ):
        self.kernel, self.groups, self.block, self.shared = kernel, groups, block, shared
        self.threads, self.operand_bytes = block[0] * block[1] * block[2], operand_bytes
        self._source = source
        self._executed, self._memory = executed, memory
        self.program = program
        self.unordered = unordered
        self.classes: Counter[str] = Counter()
        self.matrix_flops = 0
        for index, op in enumerate(program.ops):
            if op is not None and executed[index]:
                self.classes[abi.CLASSES[op.cls]] += executed[index]
                self.matrix_flops += op.work * executed[index]

    def instructions(self) -> int:
        """Wave instructions executed, all classes."""
        return sum(self.classes.values())

    def traffic(self) -> dict[str, dict[str, int]]:
        """By kind of access to global memory and scratch: lanes, bytes, cache_lines (of 128 bytes, touched),
        fewest_cache_lines (the fewest that could hold an instruction's bytes), sectors and fewest_sectors
        (the same of 64 bytes, in which stores reach L2)."""
        return self._traffic

    @cached_property
    def _traffic(self) -> dict[str, dict[str, int]]:
        found = {}
        for label, belongs in _ACCESSES:
            total = dict.fromkeys(abi.MEM_COUNTS, 0)
            for op, count in zip(self.program.ops, self._memory, strict=False):
                if op is not None and belongs(op.name, abi.CLASSES[op.cls]):
                    for name in total:
                        total[name] += getattr(count, name)
            found[label] = total
        return found

    @cached_property
    def _widths(self) -> dict[str, dict[int, int]]:
        """By kind of access: bytes by how many a lane moves at once."""
        found: dict[str, dict[int, int]] = {}
        for label, belongs in _ACCESSES:
            widths: Counter[int] = Counter()
            for op, count in zip(self.program.ops, self._memory, strict=False):
                if op is not None and count.lanes and belongs(op.name, abi.CLASSES[op.cls]):
                    widths[count.bytes // count.lanes] += count.bytes
            found[label] = dict(widths)
        return found

    def lds(self) -> dict[str, dict[str, int]]:
        """By kind of access to LDS (reads, writes, atomics, exchanges between lanes; a load straight to LDS
        writes): lanes, bytes, conflicts (extra cycles by bank conflicts) and cycles, in which the LDS of a CU
        is busy with it, conflicts included."""
        return self._lds

    @cached_property
    def _lds(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]]
        found = {kind: dict.fromkeys(abi.LDS_COUNTS, 0) for kind in abi.LDS_ACCESSES}
        for count in self._memory:
            for kind, each in zip(abi.LDS_ACCESSES, count.lds, strict=True):
                for name in abi.LDS_COUNTS:
                    found[kind][name] += getattr(each, name)
        return found

    def bound(self) -> Bound:
        """How busy the pipes are, and what that allows."""
        occupancy = self.kernel.occupancy(self.shared, self.threads)
        launched = bound.Launched(
            self.program,
            self._executed,
            self._memory,
            self.kernel.wave,
            occupancy,
            min(self.operand_bytes, bound.accessed(self._memory)),
            self._source,
        )
        return bound.bound(pipe_model.models()[self.kernel.code.arch], launched)

    def figures(self) -> dict[str, Any]:
        """Every counter as a number, by name."""
        kernel = self.kernel
        return {
            "workgroups": self.groups,
            "work_items": self.threads,
            "instructions": dict(self.classes),
            "matrix_flops": self.matrix_flops,
            "operand_bytes": self.operand_bytes,
            "memory": self.traffic(),
            "access_widths": self._widths,
            "lds": self.lds(),
            **resources_of(kernel, self.shared, self.threads),
        }

    def rows(self) -> list[tuple[str, str]]:
        """(label, value) of every counter, for `portable trace`."""
        kernel, threads = self.kernel, self.threads
        waves = -(-threads // kernel.wave)
        rows = [
            ("workgroups", f"{self.groups} of {threads} work-items ({waves} waves of {kernel.wave})"),
            ("instructions", f"{self.instructions():,} by waves"),
        ]
        rows += [(f"  {name}", f"{count:,}") for name, count in self.classes.most_common()]
        rows.append(("matrix FLOPs", f"{self.matrix_flops:,}"))
        for label, total in self.traffic().items():
            if not total["bytes"]:
                continue
            text = f"{total['bytes']:,} bytes by {total['lanes']:,} lanes"
            if label != "scratch":
                text += f", {total['cache_lines']:,} cache lines, {total['fewest_cache_lines']:,} at best"
            if label == "global stores":
                text += f", {total['sectors']:,} sectors of 64 bytes, {total['fewest_sectors']:,} at best"
            rows.append((label, text))
        lds = self.lds()
        for kind, total in lds.items():
            if total["bytes"]:
                text = f"{total['bytes']:,} bytes by {total['lanes']:,} lanes, {total['cycles']:,} cycles"
                if kind != "exchanges":
                    text += f", {total['conflicts']:,} of them bank conflicts"
                rows.append((f"LDS {kind}", text))
        if self.unordered:
            rows.append(
                (
                    "LDS unordered",
                    f"{self.unordered:,} accesses: the compiler dropped a wait before a barrier",
                )
            )
        if self.matrix_flops and lds["reads"]["bytes"]:
            rows.append(("LDS reads per FLOP", f"{lds['reads']['bytes'] / self.matrix_flops:.4f} bytes"))
        rows.append(("registers", f"{kernel.vgprs} VGPRs, {kernel.sgprs} SGPRs"))
        rows.append(("LDS per block", f"{kernel.lds + self.shared:,} bytes"))
        rows.append(("scratch per lane", f"{kernel.scratch} bytes, {_spills(kernel)} registers spilled"))
        rows.append(("waves per SIMD", f"{kernel.occupancy(self.shared, threads)} by registers and LDS"))
        return rows

    def by_source_line(self) -> list[tuple[str, int]]:
        """(source line, wave instructions executed for it), hottest first."""
        found: Counter[str] = Counter()
        for index, count in enumerate(self._executed):
            if count:
                found[self._source(index) or "(no line)"] += count
        return found.most_common()

    def by_mnemonic(self) -> Counter[str]:
        """Wave instructions executed by mnemonic."""
        found: Counter[str] = Counter()
        for index, count in enumerate(self._executed):
            inst = self.program.instruction(index) if count else None
            if inst is not None:
                found[inst.name] += count
        return found
