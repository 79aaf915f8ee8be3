"""Writes docs/timing_model.md: the timing model beside published times, from docs/timing_model.csv.

`python docs/timing_model.py` fits the clock under load, prints what belongs into
backends/rocm/pipe_model.yaml, and writes the page.

Each row of the table: a kernel as its authors publish it, a call, their TFLOP/s, and what the model needs of
it: cycles, and the shares of them in which the matrix and vector pipes are busy. We measured none of it.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from portable.backends.rocm import pipe_model
from portable.backends.rocm.emulator.timing import LAUNCH_SECONDS

HERE = Path(__file__).resolve().parent
TABLE, PAGE = HERE / "timing_model.csv", HERE / "timing_model.md"


CLOCKS = {"MI325X": 1447 / 1207}
"""The clock under load of a GPU beside that of the one the model is of, where AMD publishes both
(ROCm/rocm-blogs, measuring-max-achievable-flops-part2: bfloat16 at 1,447 and 1,207 MHz)."""


@dataclass(frozen=True)
class Row:
    """One published time. `flops` of the call; `cycles`, `matrix`, `vector` from the model."""

    arch: str
    gpu: str
    kernel: str
    call: str
    source: str
    flops: float
    tflops: float
    cycles: float
    matrix: float
    vector: float

    @property
    def seconds(self) -> float:
        return self.flops / self.tflops / 1e12

    @property
    def slowness(self) -> float:
        """One over the clock, in GHz, at which the model would give the published time."""
        return (self.seconds - LAUNCH_SECONDS) / self.cycles * 1e9 * self.faster

    @property
    def faster(self) -> float:
        return CLOCKS.get(self.gpu, 1.0)


def read() -> list[Row]:
    with TABLE.open(newline="") as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: Mapping[str, str]) -> Row:
    text = (row["arch"], row["gpu"], row["kernel"], row["call"], row["source"])
    return Row(*text, *(float(row[name]) for name in ("flops", "tflops", "cycles", "matrix", "vector")))


def write(rows: Sequence[Row]) -> None:
    with TABLE.open("w", newline="") as file:
        out = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        out.writeheader()
        out.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()} for row in rows
        )


def fit(rows: Sequence[Row], peak_ghz: float) -> tuple[float, float]:
    """Least squares of the relative error: 1/GHz = 1/peak + matrix * share + vector * share."""
    import torch

    idle = 1 / peak_ghz
    left = torch.tensor([[row.matrix, row.vector] for row in rows], dtype=torch.float64)
    right = torch.tensor([row.slowness for row in rows], dtype=torch.float64)
    weights = (1 / right)[:, None]
    found = torch.linalg.lstsq(left * weights, (right - idle)[:, None] * weights).solution.flatten()
    if bool((found < 0).any()):  # one of the two explains nothing
        keep = int(found.argmax())
        alone = torch.linalg.lstsq(left[:, keep : keep + 1] * weights, (right - idle)[:, None] * weights)
        found = torch.zeros(2, dtype=torch.float64)
        found[keep] = alone.solution.item()
    return found[0].item(), found[1].item()


def error(row: Row, power: tuple[float, float], peak_ghz: float) -> float:
    """Modelled over published time, less one."""
    slowness = 1 / peak_ghz + power[0] * row.matrix + power[1] * row.vector
    return (row.cycles * slowness / row.faster / 1e9 + LAUNCH_SECONDS) / row.seconds - 1


def without_own_kernel(rows: Sequence[Row], peak_ghz: float) -> list[float]:
    """The errors with the clock fitted to the other kernels alone."""
    others = {row.kernel: [each for each in rows if each.kernel != row.kernel] for row in rows}
    return [error(row, fit(others[row.kernel], peak_ghz), peak_ghz) for row in rows]


def rms(errors: Sequence[float]) -> float:
    return math.sqrt(sum(each * each for each in errors) / len(errors))


def page(rows: Sequence[Row]) -> str:
    text = [_HEAD]
    for arch in dict.fromkeys(row.arch for row in rows):
        model, own = pipe_model.models()[arch], [row for row in rows if row.arch == arch]
        power = (model.timing.matrix_power, model.timing.vector_power)
        apart = without_own_kernel(own, model.peak_ghz)
        kernels = len({row.kernel for row in own})
        text.append(
            f"\n## {arch}\n\n{len(own)} published times of {kernels} kernels. Clock: one over "
            f"(1 / {model.peak_ghz} + {power[0]:.3g} x matrix + {power[1]:.3g} x vector) GHz. "
            f"Root mean square of the last column: {rms(apart):.1%}; largest: "
            f"{max(map(abs, apart)):.1%}.\n\n{_COLUMNS}"
        )
        for row, alone in zip(own, apart, strict=True):
            off = error(row, power, model.peak_ghz)
            text.append(
                f"| {row.kernel} | {row.call} | {row.gpu}, {row.source} | {row.tflops:.0f} "
                f"| {row.matrix:.2f} | {row.vector:.2f} | {row.tflops / (1 + off):.0f} | {off:+.1%} "
                f"| {alone:+.1%} |\n"
            )
    return "".join(text)


def main() -> int:
    rows = read()
    for arch in dict.fromkeys(row.arch for row in rows):
        own = [row for row in rows if row.arch == arch]
        matrix, vector = fit(own, pipe_model.models()[arch].peak_ghz)
        kernels = len({row.kernel for row in own})
        off = rms(without_own_kernel(own, pipe_model.models()[arch].peak_ghz))
        print(f"{arch}:  power: {{matrix: {matrix:.3f}, vector: {vector:.3f}}}")
        print(f"    published: {{times: {len(own)}, kernels: {kernels}, error: {off:.4f}}}")
    PAGE.write_text(page(rows))
    return 0


_COLUMNS = (
    "| kernel | call | GPU, source | published TFLOP/s | matrix | vector | modelled TFLOP/s "
    "| error of the time | fitted without this kernel |\n|---|---|---|--:|--:|--:|--:|--:|--:|\n"
)
_HEAD = """# The timing model

`portable model` gives a launch's time on an AMD GPU without the GPU. A few workgroups of the grid are
executed by the emulated GPU and recorded. A replay then issues their instructions on one compute unit,
cycle by cycle: waves issue in order; each pipe is busy as [the pipe model](trace.md) says; LDS, memory and
their queues have bandwidths and latencies; waits and barriers wait. The time of the grid follows by dealing
its workgroups out to all compute units, and is at least that of the operands, each moved once at the
bandwidth that copies reach. Cycles become seconds by the clock under load, which falls as the pipes fill;
its three numbers are fitted to the published times below, and nothing else is. (An MI325X counts with 1.2
times the clock of an MI300X, as AMD publishes both.)

Some published figures are cycles of one loop iteration, traced on an MI300X (ROCm/gfx950-gluon-tutorials,
gfx942), so that no clock is in them; 4,096 of them are matrix instructions:

| kernel | traced | modelled |
|---|--:|--:|
| inter-wave | 4,120 to 4,236 | 4,094 |
| inter-wave, a swizzle with bank conflicts | about 4,650 | 4,481 |
| Triton, ping-pong | 4,274 | 4,094 |
| intra-wave | 5,877 | 5,698 |

Not modelled: instruction fetch, the order of tiles in L2, atomics of several workgroups on one address, the
ramp of the clock in a first few microseconds. gfx90a, gfx1100 and gfx1201 have the model without any
published time to hold it to, and it says so.

**Nothing here was measured by us.** The kernels are other people's, compiled or shipped as they publish
them, and so are the times. Where two sources time one kernel on one kind of GPU, they differ by 5 to 8 %.

`python docs/timing_model.py` writes this page; `docs/timing_kernels.py` models the kernels again.
"""

if __name__ == "__main__":
    sys.exit(main())
