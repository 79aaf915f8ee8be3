"""Damaged code objects and senseless launches end in a result or an error of the project, never in a crash.

PORTABLE_FUZZ_EXAMPLES=5000 looks longer. The case under way is kept in a file, so that one that ends the
process can be run again (kernels/fuzz_worker.py says how).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .kernels.harness import HERE, arches, image, wave_of

pytestmark = pytest.mark.slow  # a process of its own, and ten CPU seconds
EXAMPLES = int(os.environ.get("PORTABLE_FUZZ_EXAMPLES", settings().max_examples))
PATIENCE = 60  # seconds for one case, start of the process included


class Worker:
    """The process that launches; a new one where the last has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.last = folder / "last.json"

    def run(self, case: dict) -> str:
        if self.process is None:
            command = [sys.executable, str(HERE / "fuzz_worker.py"), str(self.folder)]
            with (self.folder / "stderr").open("ab") as log:
                self.process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=log)
        self.last.write_text(json.dumps(case))
        given, replies = self.process.stdin, self.process.stdout
        assert given is not None and replies is not None
        try:
            given.write(json.dumps(case).encode() + b"\n")
            given.flush()
            ready, _, _ = select.select([replies], [], [], PATIENCE)
            reply = replies.readline().decode().strip() if ready else ""
        except OSError:
            ready, reply = True, ""
        if not reply:
            what = self.stop()
            kept = self.folder / f"crash-{len(list(self.folder.glob('crash-*')))}.json"
            kept.write_text(json.dumps(case))
            said = (self.folder / "stderr").read_text(errors="replace")[-1500:]
            how = f"the process ended ({what})" if ready else f"no reply in {PATIENCE} s"
            raise AssertionError(f"{how}; the case is in {kept}\n{said}")
        return reply

    def stop(self) -> int | None:
        process, self.process = self.process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)  # one that crashed has its own status, not that of being killed
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what the dead process did not read
                if pipe is not None:
                    pipe.close()
        return process.wait()


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    for arch in arches():
        (folder / f"{arch}.co").write_bytes(image("fuzz.hip", arch))
    found = Worker(folder)
    yield found
    if found.process is not None and found.process.stdin is not None:
        found.process.stdin.close()
    found.stop()


code = st.integers(0xE00, 0x2C00)  # about where the instructions are
places = st.one_of(code, code, code, st.integers(0, 0xE00), st.integers(0, 1 << 20))
values = st.one_of(st.integers(0, 255), st.integers(0, 2**32 - 1))
edits = st.lists(
    st.tuples(
        st.sampled_from(["flip"] * 6 + ["byte"] * 3 + ["word"] * 5 + ["splice"] * 3 + ["cut", "remove"]),
        places,
        values,
        st.sampled_from(arches()),
    ),
    max_size=4,
)
sizes = st.one_of(st.integers(1, 3), st.sampled_from([0, -1, 5, 64, 2**31]))


def total(sizes: list[int]) -> int:
    return sizes[0] * sizes[1] * sizes[2]


@st.composite
def cases(draw, damage: bool):
    arch = draw(st.sampled_from(arches()))
    kernel = draw(st.integers(0, 2))
    case = {
        "image": arch,
        "edits": draw(edits) if damage else [],
        "kernel": kernel,
        "grid": [draw(st.integers(1, 3)), 1, 1],
        "block": [[128, 64, wave_of(arch)][kernel], 1, 1],
        "shared": 0,
        "seed": draw(st.integers(0, 2**32)),
        "kernarg": (bytes(16) + bytes(draw(st.binary(min_size=0, max_size=8))).ljust(304, b"\0")).hex(),
        "pointers": [0, 2],
    }
    if not damage or draw(st.integers(0, 3)) == 0:
        case["grid"] = [draw(sizes) for _ in range(3)] if draw(st.booleans()) else case["grid"]
        if total(case["grid"]) < 2**31:  # one that would only take long
            case["grid"] = [min(size, 4) for size in case["grid"]]
        case["block"] = [draw(sizes) for _ in range(3)] if draw(st.booleans()) else case["block"]
        case["shared"] = draw(st.sampled_from([0, 1, 1000, 65536, 65537, -1, 2**40]))
        case["kernarg"] = draw(st.binary(min_size=16, max_size=400)).hex()
        case["pointers"] = draw(st.lists(st.sampled_from([0, 1, 2, None]), max_size=2))
    return case


quiet = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@quiet
@given(case=cases(damage=True))
def test_damaged_code_object(worker, case):
    reply = worker.run(case)
    assert reply.startswith(("ended", "refused", "fault")), reply


@quiet
@given(case=cases(damage=False))
def test_senseless_launch(worker, case):
    reply = worker.run(case)
    assert reply.startswith(("ended", "refused", "fault")), reply
    if min(*case["grid"], *case["block"]) < 1 or total(case["block"]) > 1024:
        assert reply.startswith("refused"), reply


def test_the_undamaged_one_runs(worker):
    """Without damage the worker's launches are in order, so what the others try is worth something."""
    for arch in arches():
        for kernel, block in enumerate([128, 64, wave_of(arch)]):
            rest = b"\0\0\x80\x3f\x40\0\0\0" if kernel == 0 else b"\x40\0\0\0"  # scale 1, n 64
            case = {
                **{"image": arch, "edits": [], "kernel": kernel, "grid": [1, 1, 1], "block": [block, 1, 1]},
                **{"shared": 0, "seed": 1, "pointers": [0, 2]},
                "kernarg": (bytes(16) + rest).ljust(304, b"\0").hex(),
            }
            assert worker.run(case) == "ended"
            assert not worker.run({**case, "edits": [["cut", 300, 0, arch]]}).startswith(("ended", "wrong"))
            assert worker.run({**case, "pointers": [2, 0]}).startswith("fault: out-of-bounds")
