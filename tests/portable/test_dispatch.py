"""Dispatch through a toy vendor: choice, reasons, pins, memo, configs, with no GPU."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable import errors
from portable.dispatch import dispatcher, pins, select
from portable.runtime import build, detect


def choice(x: torch.Tensor) -> select.Candidate:
    """What a call of the toy op runs."""
    found = portable.explain("twice", x).choice
    assert found is not None
    return found


@pytest.fixture
def twice(toy, monkeypatch):
    """The toy op, made anew for this test's folder; torch keeps the first registration of its name."""
    monkeypatch.setattr(dispatcher.torch_library, "define", lambda *args: None)
    monkeypatch.setattr(dispatcher, "_ops", {})
    return dispatcher.op("twice")


def test_a_folder_is_an_op_and_a_folder_is_a_vendor(twice, toy):
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert "twice" in portable.ops()
    assert portable.device().arch == "toy1"
    assert torch.equal(twice(x), 2 * x)
    assert ("launch", 6) in toy


def test_a_call_seen_before_compiles_nothing(twice, toy):
    for rows in range(1, 51):
        twice(torch.ones(rows, 3))
    assert [what for what, _ in toy].count("compile") == 1
    assert [what for what, _ in toy].count("launch") == 50
    assert build.compiled == ["twice"]


def test_a_child_forked_while_another_thread_compiles_computes_too(twice, monkeypatch):
    """2026-11-22: 5 of 40 children waited for ever for a lock of a thread that they have not."""
    compiling, go_on = threading.Event(), threading.Event()
    original = detect.backend_class("toy").compile_native

    def slow(*args):
        compiling.set()
        assert go_on.wait(20)
        return original(*args)

    monkeypatch.setattr(detect.backend_class("toy"), "compile_native", slow)
    thread = threading.Thread(target=twice, args=(torch.ones(2, 3),))
    thread.start()
    assert compiling.wait(20)
    threading.Timer(0.2, go_on.set).start()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that hangs
        go_on.set()
        os._exit(0 if torch.equal(twice(torch.ones(4, 3)), torch.full((4, 3), 2.0)) else 1)
    _, status = os.waitpid(child, 0)
    thread.join()
    assert status == 0


def test_the_disk_cache_serves_the_next_process(twice, toy):
    twice(torch.ones(2, 3))
    build.clear_caches()
    twice.plan_cache.clear()
    twice(torch.ones(2, 3))
    assert [what for what, _ in toy].count("compile") == 1


def test_explain_gives_each_reason(twice):
    explanation = portable.explain("twice", torch.ones(2, 3))
    reasons = {c.name: c.reason for c in explanation.candidates}
    assert reasons["picky"] == "needs N of 64"
    assert explanation.choice is not None and explanation.choice.name == "toy"
    assert "later in the spec's order" in reasons["torch"]
    text = str(explanation)
    assert "-> toy" in text and "FACTOR=2" in text and "default" in text and "launch: twice" in text


def test_an_empty_call_is_explained_without_asking_a_planner(twice, monkeypatch):
    """A planner may divide by a size of the outputs: `attention_backward` in Triton over no batch did."""
    monkeypatch.setattr(dispatcher.select, "entry_function", lambda implementation: 1 // 0)
    empty = torch.ones(0, 3)
    explanation = portable.explain("twice", empty)
    assert explanation.choice is None and not explanation.candidates
    assert str(explanation).endswith("nothing is launched: every output is empty")
    assert twice(empty).shape == (0, 3)


def test_alignment_is_part_of_the_choice(twice):
    base = torch.arange(129, dtype=torch.float32)
    aligned, off = base[:128].view(2, 64), base[1:].view(2, 64)
    assert choice(aligned).name == "picky"
    assert choice(off).name == "toy"
    assert torch.equal(twice(off), 2 * off)


def test_strided_rows_reach_the_kernel_as_the_layout_says(twice):
    wide = torch.arange(20, dtype=torch.float32).view(4, 5)
    assert torch.equal(twice(wide.t()), 2 * wide.t())


def test_empty_outputs_launch_nothing(twice, toy):
    assert twice(torch.empty(0, 3)).shape == (0, 3)
    assert not [what for what, _ in toy if what == "launch"]


def test_a_launch_without_blocks_is_left_out(twice, toy, monkeypatch):
    """Found on the GPU 2026-11-21: gradients over no rows launch only what writes their zeros."""
    original = dispatcher.select.choose

    def with_an_empty_one(*args):
        candidate: Any = original(*args)
        empty = replace(candidate.plan.launches[0], grid=(0, 1, 1))
        return replace(candidate, plan=replace(candidate.plan, launches=(empty, *candidate.plan.launches)))

    monkeypatch.setattr(dispatcher.select, "choose", with_an_empty_one)
    assert torch.equal(twice(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert [what for what, _ in toy].count("launch") == 1


def test_using_pins_by_name_and_language(twice):
    x = torch.ones(2, 3)
    with portable.using(twice="torch"):
        assert choice(x).name == "torch"
        assert "pinned" in choice(x).reason
        with portable.using(twice="toy"):
            assert choice(x).name == "toy"
    assert choice(x).name == "toy"


def test_one_using_object_holds_in_each_task_and_thread_that_enters_it():
    """2026-11-22: of three tasks that shared one, two ended in a ValueError about another context."""
    shared, before = portable.using(softmax="torch"), pins.active_pins()
    inside = []

    async def task(steps: int) -> None:
        with shared:
            for _ in range(steps):
                await asyncio.sleep(0)
                inside.append(pins.pin("softmax"))
            with shared, portable.using(softmax="triton"):
                await asyncio.sleep(0)
                inside.append(pins.pin("softmax"))
            inside.append(pins.pin("softmax"))
        assert pins.active_pins() is before

    async def tasks() -> None:
        await asyncio.gather(*(task(steps) for steps in (3, 1, 2)))

    def thread() -> None:
        for _ in range(300):
            with shared:
                inside.append(pins.pin("softmax"))

    asyncio.run(tasks())
    assert inside.count("torch") == 9 and inside.count("triton") == 3
    with ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(thread) for _ in range(6)]:
            each.result()
    assert inside.count("torch") == 9 + 1800
    assert pins.active_pins() is before


def test_using_is_left_where_it_was_entered():
    one, two = portable.using(softmax="torch"), portable.using(matmul="torch")
    elsewhere = contextvars.copy_context()
    with one:
        with pytest.raises(errors.PinError, match="left in another thread or task than it was entered in"):
            elsewhere.run(one.__exit__, None, None, None)
        two.__enter__()  # as generators may: what was entered first is left first
        one.__exit__(None, None, None)
        assert pins.pin("softmax") is None and pins.pin("matmul") == "torch"
        one.__enter__()
        two.__exit__(None, None, None)
        assert pins.pin("softmax") == "torch" and pins.pin("matmul") is None
    assert pins.pin("softmax") is None


def test_a_pin_that_cannot_run_raises(twice):
    with portable.using(twice="picky"), pytest.raises(errors.PinError, match=r"using pins .* needs N of 64"):
        twice(torch.ones(2, 3))


def test_pins_that_name_nothing_raise(twice, monkeypatch):
    with pytest.raises(errors.PinError, match="twice"), portable.using(twice="tritn"):
        pass
    with pytest.raises(errors.PinError), portable.using(nothing="torch"):
        pass
    monkeypatch.setenv("PORTABLE_IMPL", "twice=torch")
    pins.reload()
    with pytest.raises(errors.PinError, match="op:implementation"):
        twice(torch.ones(2, 3))


def test_pins_from_the_environment(twice, monkeypatch):
    monkeypatch.setenv("PORTABLE_IMPL", "twice:torch, softmax:torch")
    pins.reload()
    assert choice(torch.ones(2, 3)).name == "torch"


def test_a_broken_implementation_is_raised_not_skipped(twice, tmp_path):
    (tmp_path / "ops/twice/torch_impl.py").write_text("import no_such_module_here\n")
    with portable.using(twice="torch"), pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
        twice(torch.ones(2, 3))


def test_tuned_entries_come_before_the_default(twice, tmp_path):
    (tmp_path / "vendors/toy/tuned.yaml").write_text(
        "schema_version: 1\nentries:\n"
        '  - {op: twice, implementation: toy, arch: toy1, when: "N > 4", config: {FACTOR: 3},\n'
        "     source: a test, date: 2026-11-21}\n"
    )
    from portable.configs import lookup

    lookup.entries.cache_clear()
    assert torch.equal(twice(torch.ones(2, 5)), torch.full((2, 5), 3.0))
    assert torch.equal(twice(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    config = choice(torch.ones(2, 5)).config
    assert config is not None and "tuned for this device (a test" in config.source
    lookup.entries.cache_clear()


@pytest.mark.parametrize(
    "entry, message",
    [
        ("{op: twice, implementation: toy, arch: toy1, config: {FACTER: 3}, source: s, date: d}", "FACTER"),
        (
            "{op: twice, implementation: toy, arch: toy1, config: {FACTOR: 7}, source: s, date: d}",
            "not one of",
        ),
        (
            "{op: twice, implementation: toy, arch: toy1, when: Q, config: {FACTOR: 3}, source: s, date: d}",
            "Q",
        ),
        ("{op: twice, implementation: toy, arch: toy1, confg: {FACTOR: 3}, source: s, date: d}", "config"),
        ("just a word", "mapping"),
    ],
)
def test_a_damaged_tuned_file_is_named_with_its_line(twice, tmp_path, entry, message):
    from portable.configs import lookup

    lookup.entries.cache_clear()
    (tmp_path / "vendors/toy/tuned.yaml").write_text(f"schema_version: 1\nentries:\n  - {entry}\n")
    with pytest.raises(errors.TunedFileError, match=message) as caught:
        twice(torch.ones(2, 5))
    assert "tuned.yaml:" in str(caught.value)
    lookup.entries.cache_clear()


def test_two_usable_gpus_of_one_device_type_are_not_guessed_between(toy, monkeypatch):
    """A vendor on the CPU leaves its backend in use: tests/backends/test_detection.py."""
    monkeypatch.setattr(detect.backend_class("toy"), "device_type", "cuda")
    machine = detect.Machine(
        {"cuda": "13.0", "hip": None}, {"TOY_GPU": "1"}, exists=lambda path: path == "/dev/nvidia0"
    )
    assert "PORTABLE_BACKEND" in str(detect.select(machine).error)


def test_an_unknown_backend_is_an_error_with_the_known_ones(toy):
    chosen = detect.select(
        detect.Machine({"cuda": None}, {"PORTABLE_BACKEND": "tyo"}, exists=lambda path: False)
    )
    assert isinstance(chosen.error, errors.BackendError) and "toy" in str(chosen.error)


def test_the_selection_error_waits_for_the_first_call(monkeypatch):
    error = errors.BackendError("nothing fits")
    detect.reset(detect.Selection({}, {}, error))
    try:
        with pytest.raises(errors.BackendError, match="nothing fits"):
            portable.softmax(torch.ones(2, 3))
        with pytest.raises(errors.BackendError):
            portable.device()
    finally:
        detect.reset()


def test_the_memo_is_bounded(twice, monkeypatch):
    monkeypatch.setattr(dispatcher, "_MEMO_LIMIT", 8)
    for rows in range(1, 40):
        twice(torch.ones(rows, 3))
        assert len(twice.plan_cache) <= 8


def test_a_gradient_runs_under_the_pins_of_its_forward(monkeypatch):
    """Found on the GPU 2026-11-21: autograd's threads are outside any `using`."""
    from threading import Thread

    seen = []
    original = portable.softmax_backward.dispatch_slow
    portable.softmax_backward.guard_cache.clear()
    monkeypatch.setattr(
        portable.softmax_backward,
        "dispatch_slow",
        lambda *a: seen.append(pins.pin("softmax")) or original(*a),
    )
    x = torch.randn(2, 3, requires_grad=True)
    with portable.using(softmax="torch"):
        y = portable.softmax(x).sum()
    thread = Thread(target=y.backward)
    thread.start()
    thread.join()
    assert seen == ["torch"] and x.grad is not None


def test_a_memoised_call_does_not_let_a_wrong_type_pass():
    x = torch.randn(2, 3)
    assert portable.softmax(x, 1).shape == (2, 3)
    for wrong in (True, 1.0):
        with pytest.raises(errors.ParameterError, match="dim"):
            portable.softmax(x, wrong)


FIRST_MENTION = """
import sys, threading, torch, portable
sys.setswitchinterval(1e-6)
start, failed = threading.Barrier(16), []

def work():
    start.wait()
    try:
        portable.softmax(torch.ones(2, 3)), portable.matmul(torch.ones(2, 3), torch.ones(3, 2))
    except Exception as error:
        failed.append(error)

threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed)
"""


@pytest.mark.slow
def test_threads_may_mention_an_op_for_the_first_time_at_once():
    """Found 2026-11-21: two threads registered one op with torch, and the second's call raised."""
    ran = subprocess.run([sys.executable, "-c", FIRST_MENTION], capture_output=True, text=True, timeout=120)
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stdout + ran.stderr


@pytest.mark.parametrize("known", [False, True])
def test_a_tensor_beyond_its_storage_is_refused(twice, toy, known):
    """2026-11-22: the emulator read address 0 and ended the process, or gave numbers from freed memory."""
    whole = torch.ones(40, 3)
    part = whole[20:30]
    if known:
        for x in (whole, part):
            twice(x)
            twice(x)
    whole.untyped_storage().resize_(0)  # as FSDP frees parameters
    for x, end in ((whole, 480), (part, 360)):
        with pytest.raises(errors.StorageError, match=f"'x' reaches byte {end} of a storage of 0 bytes"):
            twice(x)
    shrunk = torch.ones(7, 3)
    shrunk.untyped_storage().resize_(16)
    with pytest.raises(errors.StorageError, match="byte 84 of a storage of 16 bytes"):
        twice(shrunk)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(errors.StorageError):  # which casts it first
        portable.softmax(whole)
    assert torch.equal(twice(torch.ones(40, 3)), torch.full((40, 3), 2.0))
    assert twice(whole[:0]).shape == (0, 3)
