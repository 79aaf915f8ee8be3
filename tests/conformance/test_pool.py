"""A case that kills, hangs or starves its process is a result, and the run goes on.

Real worker processes, on a toy op in a folder of its own (PORTABLE_KERNEL_PATH travels by the environment).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from portable.conformance import record
from portable.conformance.pool import Pool, Task, _Queue, case_task

from . import toy_faults

CASE = "toy_faults/float32/N=5,lead=2/normal/contiguous"
CPU = ["--device", "cpu"]
COMMAND = [sys.executable, "-m", "portable.conformance.cli"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The environment in which the toy op exists."""
    root = toy_faults.write(tmp_path_factory.mktemp("ops"))
    return {**os.environ, "PORTABLE_KERNEL_PATH": str(root), "PORTABLE_BACKEND": "cpu"}


def conformance(place, *arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], env=place, capture_output=True, text=True, timeout=200, **options
    )


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """A run of one case on every implementation: (the process, its record, the folder)."""
    folder = tmp_path_factory.mktemp("run")
    done = conformance(
        place, "run", "--device", "cpu", "--ops", "toy_faults", "-k", CASE, "-j", "2", "--timeout", "4",
        "--record", str(folder / "r.json"), "--junit", str(folder / "r.xml"),
        "--html", str(folder / "r.html"),
    )  # fmt: skip
    return done, record.read(folder / "r.json"), folder


def test_every_fault_is_a_state_of_its_case(whole):
    done, found, folder = whole
    assert done.returncode == 1 and "Traceback" not in done.stderr
    states = {each["impl"]: each["state"] for each in found["results"] if each["case"] == CASE}
    assert states == toy_faults.EXPECTED
    assert found["header"]["complete"] and not record.conforming(found)
    assert list(states) == list(toy_faults.EXPECTED)  # in the order asked, whoever answered first
    assert (folder / "r.xml").stat().st_size and (folder / "r.html").stat().st_size


@pytest.mark.parametrize(
    "impl, words",
    [
        ("segfault", "killed by SIGSEGV"),
        ("exit", "exit code 7\nthe driver gave up"),
        ("hang", "no answer after 4 s"),
        ("device_memory", "can't allocate memory"),
        ("wrong", "wrong: the last column of every row"),
    ],
)
def test_the_message_says_how(whole, impl, words):
    done, found, _ = whole
    [message] = [each["message"] for each in found["results"] if each["impl"] == impl]
    assert words in message
    again = f"portable-conformance rerun {CASE} --impl {impl} --device cpu"
    assert again in done.stdout


def test_a_worker_is_a_program(place):
    """Ask one by hand: lines of JSON in, lines of JSON out."""
    ask = json.dumps({"case": CASE, "impls": ["right", "chatty"]}) + "\n"
    done = subprocess.run(
        [sys.executable, "-m", "portable.conformance.worker", *CPU],
        input=ask, env=place, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [next(iter(each)) for each in said] == [
        "ready", "inputs", "begin", "result", "begin", "result", "done"
    ]  # fmt: skip
    assert "printed by a kernel" in done.stderr and done.returncode == 0


def test_no_device_means_not_run():
    tasks = [case_task("softmax", "softmax/x", ["triton", "torch"])]
    said = list(Pool(["--device", "abacus"], 1, 5.0).run(tasks))
    results = [each["result"] for each in said]
    assert {each["state"] for each in results} == {"NotRun"} and len(results) == 2
    assert "no worker starts" in results[0]["message"] and "abacus" in results[0]["message"]


def test_a_task_that_is_no_case_is_a_fault_of_the_run():
    task = Task("softmax", {"explore": ["softmax", "torch"], "seconds": 1})
    [said] = Pool(["--device", "abacus"], 1, 5.0).run([task])
    assert said["fault"].startswith("explore of softmax: no worker starts")


def test_workers_stay_with_an_op_and_share_what_is_left():
    work = _Queue()
    work.put([Task(op, {}, f"{op}{n}") for op in "ab" for n in range(3)])
    first, second = work.take(""), work.take("")
    assert (first.case, second.case) == ("a0", "b0")
    assert [work.take("a").case for _ in range(3)] == ["a1", "a2", "b1"]
    assert work.take("b").case == "b2" and work.take("b") is None


def start(place, tmp_path):
    """A run that hangs at its second implementation: (the run, its record, the worker's process)."""
    file, hung = tmp_path / "r.json", tmp_path / "hung"
    arguments = ["run", "--device", "cpu", "--ops", "toy_faults", "-k", CASE, "-j", "1", "--timeout", "600"]
    running = subprocess.Popen(
        [*COMMAND, *arguments, "--impl", "right,hang,last", "--record", str(file)],
        env={**place, "TOY_FAULTS_HANG": str(hung)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 100
    while time.monotonic() < until:
        if hung.exists() and hung.read_text():
            time.sleep(0.3)  # for the parent to read what the worker has said before
            return running, file, int(hung.read_text())
        time.sleep(0.1)
    raise AssertionError("the worker did not come to the hanging kernel")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_partial_record_to_resume(place, tmp_path, number):
    running, file, worker = start(place, tmp_path)
    running.send_signal(number)
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 130 and "--resume goes on from it" in out
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    partial = record.read(file)
    assert not partial["header"]["complete"] and not record.conforming(partial)
    assert [each["impl"] for each in partial["results"]] == ["right"]

    common = ["run", "--device", "cpu", "--ops", "toy_faults", "--record", str(file), "--resume"]
    other = conformance(place, *common, "--impl", "right")
    assert other.returncode == 2 and "of another run: its selection" in other.stderr
    again = conformance(place, *common, "-k", CASE, "--impl", "right,hang,last", "--timeout", "3")
    assert again.returncode == 1 and "1 results taken over" in again.stdout
    found = record.read(file)
    assert found["header"]["complete"]
    states = [each["state"] for each in found["results"] if each["case"] == CASE]
    assert states == ["Pass", "Timeout", "Pass"]
    more = conformance(place, *common, "-k", CASE, "--impl", "right,hang,last")
    assert more.returncode == 2 and "nothing to go on from" in more.stderr


def test_workers_die_with_their_parent(place, tmp_path):
    running, _, worker = start(place, tmp_path)
    running.kill()
    running.wait()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":  # nobody has waited for it
            return
        time.sleep(0.1)
    raise AssertionError("the worker lives on")
