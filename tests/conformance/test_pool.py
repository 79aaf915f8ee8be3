"""A case that kills, hangs or starves its process is a result, and the run goes on.

Real worker processes, on a toy op in a folder of its own (PORTABLE_KERNEL_PATH travels by the environment).
What else a worker may do is in test_pool_script.
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

from portable.conformance.records import record

from . import toy_faults

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pool")]  # one run for all of them

CASE = "toy_faults/float32/N=5,lead=2/normal/contiguous"
CPU = ["--device", "cpu"]
COMMAND = [sys.executable, "-m", "portable.conformance.commands.cli"]


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
        place, "run", "--device", "cpu", "--ops", "toy_faults", "-k", CASE, "-j", "2", "--timeout", "3",
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
    # In the order of the tasks, whichever worker answered first.
    assert list(states) == list(toy_faults.EXPECTED)
    assert (folder / "r.xml").stat().st_size and (folder / "r.html").stat().st_size


@pytest.mark.parametrize(
    "impl, words",
    [
        ("segfault", "killed by SIGSEGV"),
        ("exit", "exit code 7\nthe driver gave up"),
        ("hang", "no answer after 3 s"),
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


def test_a_case_that_kills_its_process_is_reduced(place):
    """Each run in a worker: a fresh one where the last was killed."""
    done = conformance(place, "reduce", CASE, "--impl", "segfault", *CPU, "--max-runs", "3")
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert lines[0].endswith(": Crash, the worker was killed by SIGSEGV")
    assert "stopped by 3 runs" in done.stdout and lines[-1].startswith("portable-conformance rerun ")


def test_one_worker_serves_a_whole_reduction(place):
    done = conformance(place, "reduce", CASE, "--impl", "right,wrong", *CPU)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("portable-conformance rerun toy_faults/float32/N=1/small_integers/contiguous ")


def test_a_worker_is_a_program(place):
    """One worker: lines of JSON in, lines of JSON out. What a kernel prints is none of them, and input()
    in a kernel, or a debugger, does not take the next line."""
    tasks = [{"case": CASE, "impls": ["right", "reads"]}, {"case": CASE, "impls": ["chatty"]}]
    done = subprocess.run(
        [sys.executable, "-m", "portable.conformance.workers.worker", *CPU],
        input="".join(json.dumps(task) + "\n" for task in tasks),
        env=place, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [next(iter(each)) for each in said] == [
        "ready", "inputs", "begin", "result", "begin", "result", "done", "inputs", "begin", "result", "done"
    ]  # fmt: skip
    assert "printed by a kernel" in done.stderr and done.returncode == 0
    results = [each["result"] for each in said if "result" in each]
    assert [each["state"] for each in results] == ["Pass", "Crash", "Pass"] and "EOF" in results[1]["message"]


def hung(file, running):
    """The process that hangs in its kernel, once it does."""
    until = time.monotonic() + 100
    while time.monotonic() < until and running.poll() is None:
        if file.exists() and file.read_text():
            return int(file.read_text())
        time.sleep(0.05)
    raise AssertionError("the worker did not come to the hanging kernel")


def gone(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_an_interrupt_leaves_a_partial_record_to_resume(place, tmp_path):
    """The kernel hangs the first time."""
    file, sign = tmp_path / "r.json", tmp_path / "hung"
    argv = ["run", "--device", "cpu", "--ops", "toy_faults", "-k", CASE, "--impl", "right,hang,last"]
    argv += ["--record", str(file)]
    running = subprocess.Popen(
        [*COMMAND, *argv, "-j", "1", "--timeout", "600"],
        env={**place, "TOY_FAULTS_HANG": str(sign)}, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a background job
    )  # fmt: skip
    worker = hung(sign, running)
    time.sleep(0.3)  # for the parent to read what the worker has said before
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 130 and "--resume goes on from it" in out and gone(worker)
    partial = record.read(file)
    assert not partial["header"]["complete"] and not record.conforming(partial)
    assert [each["impl"] for each in partial["results"]] == ["right"]

    again = conformance({**place, "TOY_FAULTS_HANG": "no"}, *argv, "-j", "0", "--resume")
    assert again.returncode == 0 and "1 result taken over" in again.stdout
    found = record.read(file)
    assert found["header"]["complete"]
    states = {each["impl"]: each["state"] for each in found["results"] if each["case"] == CASE}
    assert states == {"right": "Pass", "hang": "Pass", "last": "Pass"}


def test_workers_die_with_their_parent(place, tmp_path):
    """The parent is killed; Linux signals the worker."""
    sign = tmp_path / "hung"
    ask = json.dumps({"case": CASE, "impls": ["hang"]})
    parent = (
        "import subprocess, sys\n"
        "worker = subprocess.Popen("
        "[sys.executable, '-m', 'portable.conformance.workers.worker', '--device', 'cpu'],"
        " stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)\n"
        f"worker.stdin.write({ask!r}.encode() + b'\\n')\n"
        "worker.stdin.flush()\n"
        "worker.wait()\n"
    )
    environment = {**place, "TOY_FAULTS_HANG": str(sign)}
    running = subprocess.Popen([sys.executable, "-S", "-c", parent], env=environment)
    worker = hung(sign, running)
    running.kill()
    running.wait()
    until = time.monotonic() + 5
    while not gone(worker):
        assert time.monotonic() < until, "the worker lives on"
        time.sleep(0.05)
