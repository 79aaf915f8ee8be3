"""Whatever disturbs a run, what it found is kept, its exit code is true and nobody sees a traceback."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from portable.conformance import interrupts
from portable.conformance.commands import cli, run, run_options, run_state, selection
from portable.conformance.execute import behaviour, case_ids, fuzz, manifest, runner, waivers
from portable.conformance.execute.result import Result
from portable.conformance.records import record
from portable.runtime import files

OP = ["--device", "cpu", "--ops", "toy_norm"]
FEW = ["run", *OP, "--impl", "plain", "-k", "N=129,lead=7/normal", "-j", "0"]
"""Four results or so, in this process."""


@pytest.fixture(autouse=True)
def interruptible():
    """The handlers of a program at a terminal: in a background job, or under nohup, signals are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hangup)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "r.json"


def conform(file, *more):
    return cli.main([*FEW, "--record", str(file), *more])


@pytest.fixture
def partial(norm, file, monkeypatch):
    """A record interrupted after two results."""
    with monkeypatch.context() as patch:
        after(patch, runner, "run_case", 2, KeyboardInterrupt())
        assert conform(file) == 130
    found = record.read(file)
    assert len(found["results"]) == 2 and not found["header"]["complete"]
    return found


def after(patch, owner, name, count, act):
    """Let a function do its work `count` times; then it first raises, or calls, `act`, once."""
    real, left = getattr(owner, name), [None] * count + [act]

    def wrapped(*args, **options):
        now = left.pop(0) if left else None
        if isinstance(now, BaseException):
            raise now
        if now is not None:
            now()
        return real(*args, **options)

    patch.setattr(owner, name, wrapped)


# Interrupts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owner, name, count, number",
    [
        (run, "_announce", 0, signal.SIGINT),
        (run, "run_in_process", 0, signal.SIGINT),
        (runner, "run_case", 0, signal.SIGINT),
        (runner, "run_case", 2, signal.SIGHUP),
        (fuzz, "fuzz_ops", 0, signal.SIGINT),
        (run, "_bench", 0, signal.SIGINT),
        (manifest, "faults", 0, signal.SIGTERM),
        (record, "write", 0, signal.SIGINT),
        (files, "write_text", 0, signal.SIGTERM),
    ],
)
def test_an_interrupt_at_any_stage_leaves_a_partial_record(
    norm, file, monkeypatch, capsys, owner, name, count, number
):
    monkeypatch.setattr(run_options, "check", lambda *args: None)
    after(monkeypatch, owner, name, count, lambda: signal.raise_signal(number))
    later = name in ("_bench", "fuzz_ops")
    more = ["--fuzz", "0.1", "--failures-file", str(file.parent / "found")] * later
    assert conform(file, *more, *["--bench"] * later) == 130
    assert not record.read(file)["header"]["complete"]
    assert "--resume goes on from it" in capsys.readouterr().out
    assert [each for each in file.parent.iterdir() if each.suffix == ".part"] == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_impatience_does_not_cost_the_record(norm, file, monkeypatch):
    """Ctrl-C thrice at once, and again while the record is written."""

    def thrice():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)

    after(monkeypatch, runner, "run_case", 1, thrice)
    after(monkeypatch, record, "write", 0, lambda: signal.raise_signal(signal.SIGINT))
    assert conform(file) == 130
    assert len(record.read(file)["results"]) == 1


def test_an_interrupt_after_the_record_keeps_it_whole(norm, file, monkeypatch, capsys):
    from portable.conformance.report import html

    after(monkeypatch, html, "write", 0, KeyboardInterrupt())
    assert conform(file, "--html", str(file.with_suffix(".html"))) == 130
    assert record.read(file)["header"]["complete"] and "holds them all" in capsys.readouterr().out


def test_what_is_ignored_stays_ignored():
    """nohup, and the background of a shell without jobs."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.interrupts():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_in_a_thread_needs_no_signals(norm, file):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(conform(file)))
    thread.start()
    thread.join()
    assert codes == [0]


def test_what_fuzzing_found_is_written_at_once(norm, file, monkeypatch):
    found = file.with_name("found.txt")
    monkeypatch.setattr(fuzz, "as_regression_line", lambda result: f"{result.case.id}\n")
    after(monkeypatch, run_state.Run, "describe", 2, KeyboardInterrupt())
    argv = ["run", *OP, "--impl", "zeros,echo,truncation", "-k", "behaviour/two_threads", "-j", "0"]
    assert cli.main([*argv, "--fuzz", "1", "--failures-file", str(found), "--record", str(file)]) == 130
    assert len(found.read_text().split()) == 2
    explored = [each for each in record.read(file)["results"] if each["case"] in found.read_text().split()]
    assert len(explored) >= 2
    assert cli.main([*argv, "--record", str(file), "--resume"]) == 1  # and a resumed run knows of it
    assert all(each in record.read(file)["results"] for each in explored)


# Files that cannot be written ---------------------------------------------------------------------


def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_a_checkpoint_is_said_once_and_the_run_goes_on(norm, file, monkeypatch, capsys):
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", 0.0)
    after(monkeypatch, record, "write", 0, OSError(errno.ENOSPC, "No space left on device"))
    assert conform(file) == 0
    assert record.read(file)["header"]["complete"]
    assert capsys.readouterr().out.count("No space left on device; the run goes on") == 1


def test_timings_are_saved_before_the_last_one_ends(monkeypatch):
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", -1.0)
    said = [{"timing": {"case": "c", "impl": impl}} for impl in "ab"]
    monkeypatch.setattr(run, "_messages", lambda going, tasks, *rest: (each for each in said if tasks))
    monkeypatch.setattr(run, "timings", lambda *rest: None)
    saved: list[int] = []
    going: Any = SimpleNamespace(timings=[], impls={}, head={"selection": {"impls": None}}, roof=None)
    going.take = going.timings.append
    monkeypatch.setattr(run, "_save", lambda going, args: saved.append(len(going.timings)) or "")
    run._bench(
        going, SimpleNamespace(record="r.json", bench=True, sweep=None, sustained=None, timeout=9.0), 0
    )
    assert saved == [1, 2]


@pytest.mark.parametrize("option", ["record", "junit", "html"])
def test_a_full_disk_at_the_end_is_two_and_costs_no_other_file(norm, tmp_path, monkeypatch, capsys, option):
    real = files.write_text
    monkeypatch.setattr(
        files, "write_text", lambda path, text: full() if f".{option}" in str(path) else real(path, text)
    )
    options = [f"--{name}={tmp_path / f'r.{name}'}" for name in ("record", "junit", "html")]
    assert cli.main([*FEW, *options]) == 2
    said = capsys.readouterr()
    assert f"--{option} {tmp_path}" in said.err and "No space left" in said.err
    assert "\nCONFORMS: " in said.out and len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_at_an_interrupt_is_said(norm, file, monkeypatch, capsys):
    monkeypatch.setattr(files, "write_text", full)
    after(monkeypatch, runner, "run_case", 1, KeyboardInterrupt())
    assert conform(file) == 130
    assert "cannot be written: No space left on device" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["record", "junit", "html", "failures-file"])
@pytest.mark.parametrize(
    "place, words", [("", "Is a directory"), ("no/r", "no such folder"), ("link", "symbolic")]
)
def test_a_place_where_nothing_can_be_written_is_seen_before_the_run(
    norm, tmp_path, monkeypatch, capsys, option, place, words
):
    (tmp_path / "link").symlink_to("link")
    monkeypatch.setattr(run, "_cases", None)
    assert cli.main([*FEW, "--fuzz", "1", f"--{option}", str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert f"--{option} {tmp_path / place}" in error and words in error


def test_two_options_of_one_file_are_a_mistake(norm, file, capsys):
    file.with_name("link").symlink_to(file.name)
    assert conform(file, "--html", str(file.with_name("link"))) == 2
    assert "--record names the same file" in capsys.readouterr().err


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "r"
    link.symlink_to("there/r")
    for text in ("one", "two"):
        files.try_write(link)
        files.write_text(link, text)
        assert link.is_symlink() and target.read_text() == text
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    files.try_write(pipe)
    files.write_text(pipe, "three")
    reader.join()
    assert got == ["three"] and stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "pipe", "there"]


def test_a_long_name_and_half_a_character_can_be_written(tmp_path):
    files.write_text(tmp_path / ("r" * 250), "\ud800")
    assert (tmp_path / ("r" * 250)).read_text() == "\\ud800"


# Resuming -----------------------------------------------------------------------------------------


def damaged(file, change):
    found = record.read(file)
    change(found)
    file.write_text(record.text(found))


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda r: r["results"].append(r["results"][0]), "two results of toy_norm/"),
        (lambda r: r["results"][0].update(case="toy_norm/float32/N=x/normal/contiguous"), "unknown case"),
        (lambda r: r["results"][0].update(case="abacus/float32"), "unknown case"),
        (lambda r: r["results"][0].update(impl="zeros"), "does not select"),
        (lambda r: r["header"].update(dirty=None if r["header"]["dirty"] else True), "its dirty is"),
        (lambda r: r["header"].update(toolkit="1.0"), "its toolkit is"),
        (lambda r: r["header"].update(complete=True), "nothing to go on from"),
        (lambda r: r["header"]["selection"].update(k=None), "its selection is"),
    ],
)
def test_only_the_same_run_is_resumed(partial, file, capsys, change, words):
    damaged(file, change)
    before = file.read_text()
    assert conform(file, "--resume") == 2
    assert words in capsys.readouterr().err and file.read_text() == before


def test_a_run_that_is_all_taken_over_asks_nothing(norm, file, monkeypatch, capsys):
    assert conform(file) == 0
    whole = record.read(file)
    damaged(file, lambda r: r["header"].update(complete=False))
    monkeypatch.setattr(run, "run_in_process", None)
    assert conform(file, "--resume", "-j", "2") == 0
    assert record.read(file)["results"] == whole["results"]


def test_known_failures_run_again(partial, file, capsys):
    """The known failures may be others by now, or left out."""
    damaged(file, lambda r: r["results"][0].update(state="XFail", message="known (cpu:1, until 2020-01-01)"))
    damaged(file, lambda r: r["results"][1].update(state="XPass"))
    assert conform(file, "--resume", "--no-waivers") == 0
    assert "taken over" not in capsys.readouterr().out
    assert {each["state"] for each in record.read(file)["results"]} == {"Pass"}


def test_the_end_of_a_run_leaves_its_results_for_a_resumed_one(norm, file, monkeypatch):
    """XPass is said of a whole run: a partial record must not hold it."""

    def settle(self, results, picked=False):
        results[0] = replace(results[0], state="XPass")
        return ["an entry is unused"]

    monkeypatch.setattr(waivers.Waivers, "settle", settle)
    with monkeypatch.context() as patch:
        after(patch, record, "write", 0, KeyboardInterrupt())
        assert conform(file) == 130
    assert "XPass" not in {each["state"] for each in record.read(file)["results"]}
    assert conform(file, "--resume") == 1
    assert "XPass" in {each["state"] for each in record.read(file)["results"]}


def test_a_call_that_fuzzing_comes_upon_again_has_one_result(norm, file):
    """The failure stays; the lists of cases see nothing twice."""
    assert conform(file) == 0
    found = record.read(file)
    asked = selection.selected(cli._parser().parse_args(["list", *OP[2:], "-k", "N=129,lead=7/normal"]))
    going = run_state.Run(found["header"], asked, waivers.Waivers((), ""), [])
    for entry in found["results"]:
        going.take({"result": entry})
        going.take({"result": {**entry, "state": "Crash"}})
        going.take({"result": entry})
    assert going.done == going.total == len(going.results)
    assert {each.state for each in going.results} == {"Crash"}


def test_a_shard_without_cases_says_so(norm, capsys):
    assert cli.main([*FEW, "--fraction", "400,400"]) == 2
    assert "this shard has no case" in capsys.readouterr().err


# Standard output ----------------------------------------------------------------------------------


def program(*arguments, **options):
    """The command in a process of its own, on an op of this repository."""
    argv = ["run", "--device", "cpu", "--ops", "softmax", "-k", "softmax/float32/N=31", *arguments]
    return subprocess.Popen([sys.executable, "-m", "portable.conformance.commands.cli", *argv], **options)


@pytest.mark.parametrize("when", ["first", "end"])
def test_a_reader_that_goes_leaves_the_record(norm, file, monkeypatch, when):
    """`| head -1`: in the middle it ends the run, at the end the verdict holds."""
    real = sys.stdout
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patch, os.fdopen(writing, "w") as pipe:
        if when == "first":
            patch.setattr(sys, "stdout", pipe)
        else:
            after(patch, run, "_finish", 0, lambda: patch.setattr(sys, "stdout", pipe))
        code = conform(file)
        pipe.flush()  # into nothing by now: the interpreter's own flush at exit says nothing either
    assert sys.stdout is real
    assert code == (130 if when == "first" else 0)
    assert record.read(file)["header"]["complete"] == (when == "end")


def test_a_full_disk_below_standard_output_is_two(norm, file, monkeypatch, capsys):
    with monkeypatch.context() as patch, open("/dev/full", "w") as full:
        patch.setattr(sys, "stdout", full)
        assert conform(file) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not record.read(file)["header"]["complete"]


@pytest.mark.slow
def test_standard_output_takes_a_record(tmp_path):
    running = program("-j", "0", "--record", "/dev/stdout", stdout=subprocess.PIPE, text=True)
    out, _ = running.communicate(timeout=60)
    text = out[out.index("{\n") : out.index("\n}\n") + 3]
    assert running.returncode == 0 and json.loads(text)["header"]["complete"]


@pytest.mark.slow
def test_a_pipe_to_head(tmp_path):
    running = program("-j", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.readline()
    running.stdout.close()
    error = running.stderr.read().decode()
    assert running.wait(60) in (0, 130) and "Traceback" not in error and "Exception" not in error


def test_any_encoding_of_the_terminal_will_do(norm, tmp_path, monkeypatch):
    result = Result(None, "plain", "Crash", "the compiler said ‘no’ \x1b[31mred\x1b[0m \x07\ud800")
    wrong = lambda materialized, *args: replace(result, case=materialized.case)  # noqa: E731
    monkeypatch.setattr(runner, "run_case", wrong)
    place = tmp_path / "out"
    with monkeypatch.context() as patch, open(place, "w", encoding="ascii") as out:
        patch.setattr(sys, "stdout", out)
        assert cli.main(FEW) == 1
    text = place.read_text()
    assert "\\u2018no\\u2019 red \\ud800" in text and "\x1b" not in text and "\x07" not in text


@pytest.mark.slow
def test_a_person_sees_a_bar_and_whole_commands(tmp_path):
    """On a terminal of 60 columns: the total is right, and the command to repeat a failure is one line."""
    master, slave = pty.openpty()
    script = (
        "from portable.conformance.progress import Progress\n"
        "with Progress(3, 1) as progress:\n"
        "    progress.advance('matmul', False)\n"
        "    progress.say('again: ' + 'x' * 150 + ' [bold]y[/bold] :x: end')\n"
        "    progress.advance('matmul', True)\n"
    )
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    running = subprocess.Popen([sys.executable, "-c", script], stdout=slave, env=environment)
    os.close(slave)
    said = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        said += chunk
    assert running.wait(60) == 0
    os.close(master)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert "again: " + "x" * 150 + " [bold]y[/bold] :x: end" in text
    assert "3/3" in text and "1 failing" in text and "matmul" in text


def test_a_log_has_plain_lines(capsys, monkeypatch):
    from portable.conformance import progress

    monkeypatch.setattr(progress, "EVERY", 0.0)
    with progress.Progress(3, 1) as shown:
        shown.advance("matmul", True)
        shown.say("[bold]")
    out = capsys.readouterr().out
    assert out == "  2 of 3 results, matmul, 1 failing, about 0 s left\n[bold]\n"


def test_long_cases_are_shared_out_first():
    ids = ["softmax/float32/N=3,lead=2/normal/contiguous", "softmax/float32/N=65536,lead=3/normal/contiguous",
           "softmax/float32/N=3,lead=40000/normal/contiguous"]  # fmt: skip
    cases = [*map(case_ids.case, ids), behaviour.Behaviour("softmax", "compiled")]
    head = {"selection": {"impls": None}}
    shared, _ = run_state.Run(head, cases, waivers.Waivers((), ""), []).tasks()
    assert [task.case for task in shared] == [ids[1], ids[2], "softmax/behaviour/compiled", ids[0]]
