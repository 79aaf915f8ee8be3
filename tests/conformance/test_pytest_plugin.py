"""The pytest plugin, run as its users run it: a file of tests, and what pytest says of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

from portable.conformance.cases.generate import cases
from portable.spec import registry

HEAD = """
import pytest, torch

CASES = ["rms_norm/float32/N=33,lead=3/normal/contiguous", "rms_norm/float32/N=40,lead=2/ties/padded"]
conforms = pytest.mark.conforms

def norm(x, weight, eps=1e-6, factor=1):
    return factor * x * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps).float() * weight

"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run pytest on a file with these tests; (exit code, what it printed)."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    addopts = "--strict-markers -W error -p no:cacheprovider -p no:unraisableexception"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {addopts}\n")

    def run(tests: str, *options: str) -> tuple[int, str]:
        file = tmp_path / "test_kernels.py"
        file.write_text(HEAD + textwrap.dedent(tests))
        sys.modules.pop("test_kernels", None)
        options = ("-p", "portable.conformance.checker.pytest_plugin", "--import-mode=importlib", *options)
        code = pytest.main([str(file), "-rA", *options])
        said = capsys.readouterr()
        return int(code), said.out + said.err

    return run


def test_a_function_that_conforms_passes(run):
    code, text = run("""
        @conforms("rms_norm", "cpu", cases=CASES)
        def test_norm():
            return norm
    """)
    assert code == 0 and "1 passed" in text and "warning" not in text, text
    assert "CONFORMS: norm as rms_norm on CPU" in text  # -rA shows what passed


def test_a_failure_is_the_report_and_no_traceback(run):
    code, text = run("""
        def twice(x, weight):
            return norm(x, weight, factor=2)

        @conforms("rms_norm", "cpu", cases=CASES)
        def test_twice():
            return twice
    """)
    assert code == 1 and "1 failed" in text
    assert "DOES NOT CONFORM: twice as rms_norm on CPU" in text and "Fail.value 2" in text
    assert "first wrong element [0, 0]: got " in text and "again: portable.conformance.check(twice," in text
    assert not re.search(r"Traceback|^E  |outside\\.py|pytest_plugin\\.py:", text, re.MULTILINE), text


def test_fixtures_parameters_classes_and_skips(run):
    code, text = run("""
        import functools

        @pytest.fixture
        def factor():
            return 1

        @pytest.mark.parametrize("scale", [1, 2])
        @conforms("rms_norm", "cpu", cases=CASES)
        def test_scaled(scale, factor):
            return functools.partial(norm, factor=scale * factor)

        @conforms("rms_norm", "cpu", cases=CASES)
        class TestNorms:
            def test_method(self, factor):
                return norm

            def test_skipped(self):
                pytest.skip("no compiler")

        def test_plain():
            assert True
    """)
    assert code == 1 and "3 passed, 1 skipped" in text.replace("1 failed, ", "") and "1 failed" in text, text
    assert "FAILED test_kernels.py::test_scaled[2]" in text


def test_every_mark_must_hold(run):
    code, text = run("""
        @conforms("rms_norm", "cpu", cases=CASES)
        @conforms("softmax", "cpu", cases="softmax/float32/N=33,lead=3x5/normal/contiguous")
        def test_both():
            return lambda x, weight=None: torch.softmax(x, -1)
    """)
    assert code == 1
    assert "\nDOES NOT CONFORM: <lambda> as rms_norm" in text and "\nCONFORMS: <lambda> as softmax" in text


def test_what_returns_no_function_fails(run):
    code, text = run("""
        @conforms("rms_norm", "cpu", cases=CASES)
        def test_forgotten():
            norm(torch.ones(2), torch.ones(2))
    """)
    assert code == 1 and "return the function to judge; it returned a NoneType" in text


def test_an_error_of_the_tests_own_is_shown_as_ever(run):
    code, text = run("""
        @conforms("rms_norm", "cpu", cases=CASES)
        def test_broken():
            return norms["fast"]
    """)
    assert code == 1 and "NameError: name 'norms' is not defined" in text


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ('"rms_nrom"', "portable has no op 'rms_nrom'. Did you mean 'rms_norm'?"),
        ('"rms_norm", teir="core"', "unexpected keyword argument 'teir'"),
        ("", "missing a required argument: 'op'"),
    ],
)
def test_a_mark_that_cannot_be_meant_is_a_usage_error(run, mark, said):
    code, text = run(f"""
        @conforms({mark})
        def test_norm():
            return norm
    """)
    assert code == 4 and said in text and "test_kernels.py::test_norm: conforms: " in text, text
    assert "Traceback" not in text


def test_a_unittest_is_refused(run):
    code, text = run("""
        import unittest

        class TestNorm(unittest.TestCase):
            @conforms("rms_norm", "cpu", cases=CASES)
            def test_norm(self):
                return norm
    """)
    assert code == 4 and "a method of a plain class" in text


def test_the_options_override_the_marks(run):
    tests = """
        @conforms("rms_norm", "rocm", tier="core", types=["float32"])
        def test_norm():
            return norm
    """
    code, text = run(tests, "--conforms-device", "cpu", "--conforms-tier", "smoke")
    assert "norm as rms_norm on CPU" in text, text
    line = re.search(r"norm as rms_norm on CPU.*?: (\d.*)", text)
    assert line is not None
    states = line.group(1)
    smoke = cases(registry.spec("rms_norm"), "smoke")
    results = sum(int(n) for n in re.findall(r"(\d+) (?:judged|declined)", states))
    assert results == len(smoke) + 3  # behaviours
    code, text = run(tests, "--conforms-tier", "smok")
    assert code == 4 and "--conforms-tier smok: expected one of smoke, core, full" in text
    code, text = run(tests, "--conforms-device", "rcom")
    assert code == 1 and "Did you mean 'rocm'?" in text


def test_a_case_that_is_none_fails_with_its_sentence(run):
    code, text = run("""
        @conforms("rms_norm", "cpu", cases=["rms_norm/float31/N=1/normal/contiguous"])
        def test_norm():
            return norm
    """)
    assert code == 1 and "float31" in text and "Traceback" not in text


def test_pytest_of_others_loads_nothing_more(tmp_path):
    """The plugin itself imports pytest alone, so that it may be registered for every run of it."""
    from portable.conformance.checker import pytest_plugin

    program = f"import runpy, sys; runpy.run_path({pytest_plugin.__file__!r}); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ}, cwd=tmp_path
    )
    assert done.stdout.strip() == "False", done.stderr
