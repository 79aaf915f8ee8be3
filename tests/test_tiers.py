"""`make test` lists the tests that make it slow, and fails where one is skipped for an unlisted reason."""

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


def run_pytest(folder: Path, workers: str) -> subprocess.CompletedProcess[str]:
    """pytest's run of a folder's tests under this one's conftest."""
    (folder / "conftest.py").symlink_to(Path(__file__).with_name("conftest.py"))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: takes long\n")
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_slow_tests_without_the_mark_are_listed(tmp_path, workers):
    (tmp_path / "test_some.py").write_text(TESTS)
    done = run_pytest(tmp_path, workers)
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, listed = done.stdout.partition("without the mark 'slow'")
    named = {line.rpartition("::")[2] for line in listed.splitlines() if "::" in line}
    assert named == {"test_busy", "test_busy_child"}


SKIPS = """
import pytest

@pytest.mark.skipif(True, reason="no Chromium: apt install chromium")
def test_listed(): pass

@pytest.mark.xfail(reason="known")
def test_known(): assert False

@pytest.mark.skip(reason="on Tuesdays")
def test_marked(): pass

def test_called():
    pytest.importorskip("no_such_package")

def test_runs(): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_skip_for_a_reason_that_is_not_listed_fails(tmp_path, workers):
    (tmp_path / "test_some.py").write_text(SKIPS)
    done = run_pytest(tmp_path, workers)
    assert "no such reason: on Tuesdays" in done.stdout, done.stdout + done.stderr
    assert "no such reason: could not import 'no_such_package'" in done.stdout
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in done.stdout


@pytest.mark.slow
def test_so_does_the_skip_of_a_whole_file(tmp_path):
    (tmp_path / "test_some.py").write_text('import pytest\npytest.importorskip("no_such_package")\n')
    done = run_pytest(tmp_path, "0")
    assert done.returncode != 0 and "ERROR test_some.py" in done.stdout, done.stdout + done.stderr
