"""Whatever a worker does, every case of a task has one result on every implementation.

The workers are scripts (`scripted_worker.py`), started in milliseconds; real ones are in test_pool.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portable.conformance.workers import pool, process
from portable.conformance.workers.pool import Pool, Task, _Queue, case_task

from . import scripted_worker
from .scripted_worker import AFTER, BEFORE

WORKER = [sys.executable, "-S", "-E", str(Path(scripted_worker.__file__))]
ENDLESS = {"hang"}
"""What only the clock ends."""
NO_RESULT = sorted(set(BEFORE) - ENDLESS)
numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scripts")


def program(folder, acts=(), starts=()):
    """The command line of workers that follow a script."""
    script = folder / f"{next(numbers)}.json"
    script.write_text(json.dumps({"acts": dict(acts), "starts": list(starts)}))
    return [*WORKER, str(script)]


def run_tasks(folder, tasks, acts=(), starts=(), jobs=1, timeout=60.0):
    """(the state by case and implementation, all messages) of a run; no result may be there twice."""
    said = list(Pool([], jobs, timeout, program(folder, acts, starts)).run(tasks))
    results = [each["result"] for each in said if "result" in each]
    counts = Counter((each["case"], each["impl"]) for each in results)
    assert counts == Counter((task.case, name) for task in tasks for name in task.impls)
    return {(each["case"], each["impl"]): each["state"] for each in results}, said


A, B = "op/a", "op/b"
THREE = case_task("op", A, ["x", "y", "z"])


@pytest.mark.slow
@pytest.mark.parametrize("act", NO_RESULT)
def test_what_is_under_way_crashes_and_the_rest_goes_on(folder, act):
    states, said = run_tasks(folder, [THREE, case_task("op", B, ["x"])], {f"{A} y": act})
    assert states == {(A, "x"): "Pass", (A, "y"): "Crash", (A, "z"): "Pass", (B, "x"): "Pass"}
    assert not any("fault" in each for each in said)


@pytest.mark.parametrize("act", sorted(AFTER))
def test_a_result_that_was_said_stands_and_the_rest_is_asked(folder, act):
    """As the worker dies between two implementations, the next has not begun: it goes to another."""
    states, _ = run_tasks(folder, [THREE, case_task("op", B, ["x"])], {f"{A} x": act, f"{A} z": act})
    assert set(states.values()) == {"Pass"}


@pytest.mark.slow
@pytest.mark.parametrize("act", [act for act in NO_RESULT if act != "begin for ever"])
def test_before_any_implementation_it_is_the_suites_fault(folder, act):
    states, said = run_tasks(folder, [THREE, case_task("op", B, ["x"])], {A: act})
    assert states.pop((B, "x")) == "Pass" and set(states.values()) == {"InternalError"}
    messages = [each["result"].get("message", "") for each in said if "result" in each]
    assert messages[0].startswith("before any implementation ran")


@pytest.mark.slow
@pytest.mark.parametrize("where, state", [(f"{A} y", "Timeout"), (A, "InternalError")])
def test_the_clock_ends_what_hangs(folder, where, state):
    """The limit is for one answer: three of them may take longer."""
    states, said = run_tasks(folder, [THREE], {where: "hang"}, timeout=1.0)
    assert states[A, "y"] == state
    messages = [each["result"].get("message", "") for each in said if "result" in each]
    assert any("no answer after 1 s" in each for each in messages)


def test_a_result_needs_no_begin_and_a_lost_device_is_believed(folder):
    states, _ = run_tasks(folder, [THREE], {f"{A} x": "no begin", f"{A} y": "lost"})
    assert list(states.values()) == ["Pass", "Crash", "Pass"]


def test_noise_on_standard_error_stops_nobody_and_is_not_kept(folder):
    states, _ = run_tasks(folder, [THREE], {f"{A} x": "noise", f"{A} z": "noise"})
    assert set(states.values()) == {"Pass"}


def test_the_last_words_come_after_the_noise(folder):
    _, said = run_tasks(folder, [THREE], starts=["exit", "exit"])
    messages = {each["result"]["message"] for each in said}
    assert messages == {
        "no worker starts on the device any more: the worker ended with exit code 0\nno such device"
    }


ACTS = st.sampled_from(["pass", "pass", "pass", "no begin", "lost", *NO_RESULT, *AFTER])
STARTS = st.lists(st.sampled_from(["ready", "ready", "die", "exit", "not JSON", "empty", "half"]), max_size=8)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list[Any](HealthCheck))
@given(st.data())
def test_every_case_has_one_result_whatever_happens(folder, data):
    impls = data.draw(st.lists(st.sampled_from("xyz"), min_size=1, unique=True))
    cases = data.draw(st.lists(st.sampled_from(["p/a", "p/b", "q/a", "q/b"]), min_size=1, unique=True))
    wheres = [f"{case} {impl}" for case in cases for impl in impls] + cases
    acts = {}
    for where in wheres:
        act = data.draw(ACTS if " " in where else st.sampled_from(["none", "none", *NO_RESULT]))
        if act != "none":
            acts[where] = act
    starts = data.draw(STARTS)
    tasks = [case_task(case[0], case, impls) for case in cases]
    states, said = run_tasks(folder, tasks, acts, starts, data.draw(st.integers(1, 3)))
    assert not any("fault" in each for each in said)
    if set(starts) <= {"ready"}:
        for (case, impl), state in states.items():
            act = acts.get(f"{case} {impl}", "pass")
            if acts.get(case) == "begin for ever":
                continue
            broken = "InternalError" if case in acts else "Crash" if act in (*NO_RESULT, "lost") else "Pass"
            assert state == broken, (case, impl)


def test_one_worker_that_cannot_start_leaves_its_work_to_the_others(folder):
    tasks = [case_task("op", f"op/{number}", ["x"]) for number in range(40)]
    states, _ = run_tasks(folder, tasks, starts=["ready", "exit", "exit"], jobs=2)
    assert set(states.values()) == {"Pass"}


def test_two_workers_die_at_once(folder):
    tasks = [case_task("op", f"op/{number}", ["x", "y"]) for number in range(6)]
    states, _ = run_tasks(folder, tasks, {f"{task.case} x": "die" for task in tasks}, jobs=2)
    assert Counter(states.values()) == {"Crash": 6, "Pass": 6}


@pytest.mark.slow
def test_hundreds_of_crashes_leave_nothing_behind(folder):
    tasks = [case_task("op", f"op/{number}", ["x"]) for number in range(200)]
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    states, _ = run_tasks(folder, tasks, {f"{task.case} x": "die" for task in tasks}, jobs=4)
    assert set(states.values()) == {"Crash"}
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0 and threading.active_count() == threads
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.slow
def test_what_a_worker_started_goes_with_it(folder):
    command = program(folder, {f"{A} y": "child"})
    assert [each["result"]["state"] for each in Pool([], 1, 60.0, command).run([THREE]) if "result" in each]
    assert not alive(command)


def alive(command):
    """The processes of such a command line."""
    wanted = "\0".join(command).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def interrupt(run, command, when=lambda: None):
    """Ctrl-C while the caller waits for a message: how long until the run is over, with all its processes."""

    def stop():
        when()
        raise KeyboardInterrupt

    run._messages.get = stop
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(run.run([case_task("op", f"op/{number}", ["x"]) for number in range(8)]))
    assert not alive(command)
    return time.monotonic() - begun


@pytest.mark.parametrize("start", ["ready", "hang"])
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.2])
def test_an_interrupt_ends_all_workers_at_once(folder, start, seconds):
    """Also those that are just being started."""
    acts = {f"op/{number} x": "hang" for number in range(8)}
    command = program(folder, acts, [start] * 8)
    assert interrupt(Pool([], 4, 600.0, command), command, lambda: time.sleep(seconds)) < 5


@pytest.mark.parametrize("start", ["ready", "hang"])
def test_an_interrupt_between_the_start_of_a_process_and_its_entry(folder, monkeypatch, start):
    """The kill cannot know the process yet."""
    command = program(folder, {f"op/{number} x": "hang" for number in range(8)}, [start] * 4)
    made = threading.Event()

    class Slow(pool.Worker):
        def __init__(self, *args):
            super().__init__(*args)
            made.set()
            time.sleep(0.3)

    monkeypatch.setattr(pool, "Worker", Slow)
    assert interrupt(Pool([], 1, 600.0, command), command, made.wait) < 5


def test_no_process_can_be_made(monkeypatch):
    said = list(Pool([], 2, 5.0, ["/no/such/program"]).run([THREE, case_task("op", B, ["x"])]))
    assert {each["result"]["state"] for each in said} == {"NotRun"} and len(said) == 4
    assert "/no/such/program" in said[0]["result"]["message"]


def test_a_worker_that_is_never_ready(folder, monkeypatch):
    monkeypatch.setattr(pool, "START_SECONDS", 0.3)
    _, said = run_tasks(folder, [THREE], starts=["hang", "hang"])
    assert "was not ready" in said[0]["result"]["message"]


def test_a_fault_of_the_pool_loses_no_case(folder, monkeypatch):
    def broken(*args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Pool, "_run_task", broken)
    command = program(folder)
    said = list(Pool([], 1, 5.0, command).run([THREE]))
    assert {each["result"]["state"] for each in said if "result" in each} == {"NotRun"} and len(said) == 4
    assert [each["fault"] for each in said if "fault" in each] == ["the pool failed: RuntimeError: a bug"]


def test_a_task_that_is_no_case_is_a_fault_of_the_run(folder):
    task = Task("op", {"fuzz": ["op", "x"], "seconds": 1})
    [said] = Pool([], 1, 5.0, program(folder, starts=["exit", "exit"])).run([task])
    assert said["fault"].startswith("fuzz of op: no worker starts")


@pytest.mark.slow
@pytest.mark.parametrize(
    "act, states, fault",
    [
        ("none", [], ""),
        ("fails", ["Crash"], ""),
        ("die", ["Crash"], ""),
        ("hang", ["Timeout"], ""),
        ("other impl", ["Crash"], ""),
        ("begin for ever", [], "no end after 2 s"),
    ],
)
def test_what_fuzzing_comes_to(folder, act, states, fault):
    """A drawn call that hangs has the time of one result; all of them have theirs together."""
    task = Task("op", {"fuzz": ["op", "x"], "seconds": 1}, whole=2.0)
    said = list(Pool([], 1, 1.0, program(folder, {"fuzz": act})).run([task]))
    results = [each["result"] for each in said if "result" in each]
    assert [each["state"] for each in results] == states
    assert {(each["case"], each["impl"]) for each in results} <= {("op/drawn", "x")}
    assert [each["fault"].split("; ")[0] for each in said if "fault" in each] == [
        f"fuzz of op: {fault}"
    ] * bool(fault)


@pytest.mark.slow
def test_an_answer_that_is_there_is_not_late(folder):
    """After Ctrl-Z and fg the limit is long past, and the answer in the pipe."""
    worker = process.Worker(program(folder))
    time.sleep(1.0)
    assert worker.receive(time.monotonic() - 60) == {"ready": "a script"}
    with pytest.raises(TimeoutError):
        worker.receive(time.monotonic() - 60)
    worker.close()


def test_workers_stay_with_an_op_and_share_what_is_left():
    work = _Queue(takers=2)
    work.put([Task(op, {}, f"{op}{n}") for op in "ab" for n in range(3)])

    def case_after(op: str) -> str | None:
        task = work.take(op)
        return task and task.case

    assert (case_after(""), case_after("")) == ("a0", "b0")
    assert [case_after("a") for _ in range(3)] == ["a1", "a2", "b1"]
    assert case_after("b") == "b2" and work.take("b") is None
    assert work.takers == 1 and not work.leave("a")


def test_too_few_file_descriptors_mean_fewer_workers(folder):
    tasks = [case_task("op", f"op/{number}", ["x"]) for number in range(60)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = program(folder)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, before[1]))
    try:
        said = list(Pool([], 16, 60.0, command).run(tasks))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    states = [each["result"]["state"] for each in said if "result" in each]
    assert states == ["Pass"] * 60 and not any("fault" in each for each in said)
