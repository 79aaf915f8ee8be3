"""`pytest --gpu` and `portable emulate`, run as their users run them: on files that ask for a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import yaml

import pytest_portable
from portable.commands import cli

KERNELS = """
import pytest, torch, triton, triton.language as tl

HAS_GPU = torch.cuda.is_available()

@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * 2.0, at < n)  # no mask on the load

def double(x):
    assert x.is_cuda, "double() needs a GPU"
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run pytest on a file with these tests; (exit code, what it printed)."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p pytest_portable\n")

    def run(tests: str, *options: str) -> tuple[int, str]:
        file = tmp_path / "test_kernels.py"
        file.write_text(KERNELS + textwrap.dedent(tests))
        sys.modules.pop("test_kernels", None)
        code = pytest.main([str(file), "--import-mode=importlib", *options])
        said = capsys.readouterr()
        return int(code), said.out + said.err

    return run


def line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(KERNELS.splitlines()) if text in line)


@pytest.mark.slow
@pytest.mark.parametrize("looks", [False, True])
def test_races_of_workgroups_are_found_where_asked_for(run, looks):
    code, text = run(
        """
        @triton.jit
        def last_kernel(out_ptr):
            tl.store(out_ptr, tl.program_id(0) + 1)  # each its own number

        def test_last():
            out = torch.zeros(1, dtype=torch.int32, device="cuda")
            last_kernel[(5,)](out)
        """,
        *("--gpu", "gfx942", *["--gpu-races"] * looks),
    )
    assert code == looks, text
    assert ("global-race: it writes offset 0 of out_ptr, which workgroup" in text) == looks
    assert ("each its own number" in text) == looks, text


@pytest.mark.slow  # 1.6 s, compiles
def test_a_gpu_test_runs_unchanged(run):
    code, text = run(
        """
        @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
        def test_double():
            x = torch.randn(128, device="cuda")
            torch.testing.assert_close(double(x), x + x)

        def test_of_torch():
            assert torch.ones(1, device="cuda").item() == 1
        """,
        *("--gpu", "gfx1100"),
    )
    assert code == 0 and "2 passed" in text, text
    assert "emulated gfx1100: Triton's kernels run as its machine code on the CPU, not on a GPU" in text
    assert "1 test launched a kernel; 1 test passed without one" in text
    assert "1 launch of 1 kernel" in text and "kinds exact" in text
    assert not torch.cuda.is_available()


@pytest.mark.slow
def test_a_fault_fails_the_test_at_its_source_line(run, tmp_path):
    tests = """
        def test_tail():
            double(torch.randn(100, device="cuda"))

        def test_that_does_not_notice():
            try:
                double(torch.randn(100, device="cuda"))
            except Exception:
                pass

        def test_right():
            double(torch.randn(64, device="cuda"))
        """
    code, text = run(tests, "--gpu", "gfx942", "--gpu-sarif", "found.sarif")
    line = line_of("no mask on the load")
    assert code == 1 and "2 failed, 1 passed" in text, text
    assert "double_kernel: out-of-bounds" in text and f"at test_kernels.py:{line}" in text
    assert "and the test went on" in text and "# no mask on the load" in text
    found = json.loads((tmp_path / "found.sarif").read_text())
    (result,) = found["runs"][0]["results"][:1]
    place = result["locations"][0]["physicalLocation"]
    assert (result["ruleId"], result["level"]) == ("out-of-bounds", "error")
    assert place["artifactLocation"] == {"uri": "test_kernels.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": line}


def test_without_the_option_nothing_changes(run):
    code, text = run("""
        def test_double():
            assert HAS_GPU == torch.cuda.is_available() and torch.ones(1).device.type == "cpu"
    """)
    assert code == 0 and "emulated" not in text


def test_an_unknown_gpu_is_a_usage_error(run):
    code, text = run("def test_nothing(): pass", "--gpu", "gfx943")
    assert code == 4 and "names no GPU that can be emulated" in text and "Did you mean 'gfx942'" in text


@pytest.mark.slow
def test_two_gpus_are_two_processes(tmp_path):
    """A test that keeps what it found out about the GPU must not keep it for the next."""
    (tmp_path / "conftest.py").write_text("import torch\nFIRST = torch.cuda.get_device_properties(0)\n")
    (tmp_path / "test_kernels.py").write_text(
        KERNELS
        + textwrap.dedent("""
        ARCH = torch.cuda.get_device_properties(0).gcnArchName

        def test_arch():
            double(torch.randn(100 if ARCH == "gfx1201" else 64, device="cuda"))
            print("ran on", ARCH)
        """)
    )
    options = ("-p", "pytest_portable", "-p", "no:cacheprovider", "-s")
    command = [sys.executable, "-m", "pytest", *options, "--gpu=gfx90a,gfx1201", "--gpu-sarif", "both.sarif"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ran on gfx90a" in done.stdout and "ran on gfx1201" not in done.stdout
    runs = json.loads((tmp_path / "both.sarif").read_text())["runs"]
    assert [(each["automationDetails"]["id"], len(each["results"])) for each in runs] == [
        ("emulated/gfx90a", 0),
        ("emulated/gfx1201", 1),
    ]


# portable emulate ------------------------------------------------------------------------------------


@pytest.fixture
def emulate(tmp_path, monkeypatch, capsys):
    """Run `portable emulate` on a program; (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(program: str, *options: str, arguments: tuple[str, ...] = ()) -> tuple[int, str, str]:
        (tmp_path / "program.py").write_text(KERNELS + textwrap.dedent(program))
        code = cli.main(["emulate", *options, "program.py", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_script(emulate):
    code, out, err = emulate(
        """
        import sys
        if __name__ == "__main__":
            x = torch.arange(64.0, device="cuda")
            print(sys.argv, torch.equal(double(x), x + x))
        """,
        *("--gpu", "gfx942"),
        arguments=("--gpu", "mine"),
    )
    assert code == 0 and out == "['program.py', '--gpu', 'mine'] True\n"
    assert "portable: emulated gfx942" in err and "portable: 1 launch of 1 kernel" in err


def test_a_script_with_a_fault(emulate, tmp_path):
    code, _, err = emulate(
        """
        try:
            double(torch.ones(10, device="cuda"))
        except Exception:
            print("ignored")
        """,
        *("--gpu", "gfx942", "--sarif", "out.sarif"),
    )
    line = line_of("no mask on the load")
    assert code == 1 and "portable: finding: double_kernel: out-of-bounds" in err
    assert f"program.py:{line}" in err and "# no mask on the load" in err
    assert len(json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]) == 1


def test_how_a_script_ends(emulate, capsys):
    assert emulate("raise SystemExit(7)", "--gpu", "gfx942")[0] == 7
    code, _, err = emulate("raise ZeroDivisionError('here')", "--gpu", "gfx942")
    assert code == 1 and "ZeroDivisionError: here" in err and "program.py" in err
    assert cli.main(["emulate", "--gpu", "gfx942", "missing.py"]) == 2
    assert "there is no file missing.py" in capsys.readouterr().err
    assert cli.main(["emulate", "--gpu", "gfx942"]) == 2
    assert "which program?" in capsys.readouterr().err
    assert cli.main(["emulate", "--gpu", "gfx9", "program.py"]) == 2
    assert "names no GPU that can be emulated" in capsys.readouterr().err


def test_the_action_is_what_the_page_says():
    """The command that it runs is one that pytest takes, and the page names its inputs."""
    root = Path(__file__).parents[3]
    action = yaml.safe_load((root / ".github/actions/emulate/action.yml").read_text())
    page = (root / "docs/emulate.md").read_text()
    commands = " ".join(step.get("run", "") for step in action["runs"]["steps"])
    assert "--gpu " in commands and "--gpu-sarif " in commands
    assert all(
        option in Path(pytest_portable.__file__).read_text() for option in ('"--gpu"', '"--gpu-sarif"')
    )
    assert all(f"{name}:" in page for name in action["inputs"])
    assert ".github/actions/emulate@" in page


@pytest.mark.slow
def test_the_page_runs_as_written(run, tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs/emulate.md").read_text()
    kernel, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    (tmp_path / "double.py").write_text(kernel)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, text = run(test, "--gpu", "gfx1100")
    assert code == 1 and "1 failed, 1 passed" in text
    expected = page.split("=============================== emulated gfx1100")[1].splitlines()[1:5]
    del expected[2]  # the instructions, which differ by Triton's version
    assert all(line in text for line in expected), text
    sys.modules.pop("double", None)
