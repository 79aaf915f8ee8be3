"""`make test` lists the tests that make it slow, so that they get the mark `slow`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import subprocess, sys, time, pytest

BUSY = "import time\\nwhile time.process_time() < 2.5: pass"

def test_busy():
    until = time.process_time() + 2.5
    while time.process_time() < until: pass

def test_busy_child():
    subprocess.run([sys.executable, "-c", BUSY])

def test_waits():
    time.sleep(2.5)

@pytest.mark.slow
def test_marked():
    test_busy()
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_slow_tests_without_the_mark_are_listed(tmp_path, workers):
    (tmp_path / "conftest.py").symlink_to(Path(__file__).with_name("conftest.py"))
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: takes long\n")
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, listed = done.stdout.partition("without the mark 'slow'")
    named = {line.rpartition("::")[2] for line in listed.splitlines() if "::" in line}
    assert named == {"test_busy", "test_busy_child"}
