"""Each seeded mistake is caught by the fault of its kind, at its line; what only looks like one is not."""

from __future__ import annotations

import re

import pytest

from portable.backends.rocm.emulator.faults import KernelFault

from .kernels.harness import Launcher, arches
from .seeded_bugs import BUGS, NEAR, Bug, lines_of, nearest


def start(bug: Bug, launch: Launcher, args: tuple, shared: int) -> None:
    options = {} if bug.budget is None else {"budget": bug.budget}
    launch(bug.name, bug.grid, bug.block or launch.wave, *args, shared=shared, **options)


@pytest.mark.parametrize("arch", arches())
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_caught(bug, arch):
    launch = Launcher(bug.file, arch)
    with pytest.raises(KernelFault) as caught:
        start(bug, launch, bug.args(launch), bug.shared)
    fault = caught.value
    assert fault.kind in bug.kind.split("|"), fault
    assert fault.kernel == bug.name
    assert fault.source in {f"{bug.file}:{line}" for line in lines_of(bug.name, bug.file)}, fault
    low, high = launch.kernel(bug.name).code.text
    assert low <= fault.pc < high
    assert fault.instruction is not None and re.match(r"[a-z]+_[a-z0-9_]+( |$)", fault.instruction), fault
    assert fault.source is not None and fault.source in str(fault)
    assert fault.instruction in str(fault) and fault.kind in str(fault)
    assert fault.workgroup is not None and len(fault.workgroup) == 3
    assert bug.workgroup is None or fault.workgroup == (bug.workgroup, 0, 0)
    assert fault.wave is not None and 0 <= fault.wave < -(-(bug.block or 1) // launch.wave)
    thread = None
    if bug.threads is not None:
        assert fault.lane is not None and 0 <= fault.lane < launch.wave
        thread = fault.wave * launch.wave + fault.lane
        assert thread in bug.threads(launch.wave), fault
    if bug.address is not None:
        of_grid = fault.workgroup[0] * bug.block + (thread or 0)
        assert fault.address == bug.address(launch.memories, of_grid), fault
        if bug.kind == "out-of-bounds":
            says_where(fault, launch.memories)


def says_where(fault: KernelFault, memories: list) -> None:
    """The detail names the nearest tensor, unless all are far, and its distance or the offset in it."""
    assert fault.address is not None
    index, distance = nearest(memories, fault.address)
    if distance < 1 << 20:
        offset = fault.address - memories[index].address
        assert f"arg{index}" in fault.detail, f"arg{index} is the nearest: {fault.detail}"
        numbers = {int(number) for number in re.findall(r"\d+", fault.detail)}
        assert distance == 0 or {distance, offset} & numbers, f"{distance} bytes away: {fault.detail}"


@pytest.mark.filterwarnings("ignore:.*benign-race")  # the warning is test_benign_races.py's
@pytest.mark.parametrize("arch", arches())
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.right], ids=lambda bug: bug.name)
def test_the_same_kernel_launched_rightly_passes(bug, arch):
    launch = Launcher(bug.file, arch)
    start(bug, launch, bug.right(launch), bug.right_shared)


@pytest.mark.parametrize("arch", arches())
@pytest.mark.parametrize("check", NEAR, ids=lambda check: check.__name__)
def test_near_miss_passes(check, arch):
    check(Launcher("near.hip", arch))
