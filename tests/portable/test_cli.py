"""The `portable` command in this process: what it prints, and one line for a user's mistake."""

from __future__ import annotations

import re

import pytest
import torch

import portable
from portable.commands import cli
from portable.commands import trace as tracing
from portable.dispatch import pins
from portable.runtime import detect
from portable.spec import registry
from portable.tune import call_options

needs_no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a GPU is here: says what a machine without one says"
)


@pytest.fixture
def run(capsys):
    """Runs the command; answers the exit code, what went to stdout, and what went to stderr."""

    def command(*argv: str) -> tuple[int, str, str]:
        try:
            code = cli.main(argv)
        except SystemExit as stop:  # argparse
            assert isinstance(stop.code, int)
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_version(run):
    assert run("--version") == (0, f"portable {portable.__version__}\n", "")


def test_info_names_the_machine_each_vendor_and_the_ops(run):
    code, out, err = run("info")
    assert (code, err) == (0, "")
    for text in (torch.__version__, *(f"backend {vendor}" for vendor in registry.vendors()), *portable.ops()):
        assert text in out


@pytest.mark.parametrize("op", sorted(registry.op_folders()))
def test_explain_takes_the_specs_own_shapes(run, op):
    code, out, _ = run("explain", op)
    assert code == 0
    assert out.startswith(f"{op}(") and len(re.findall("^ -> ", out, re.MULTILINE)) == 1
    for implementation in registry.spec(op).implementations:
        assert re.search(rf"^ ..? +?{implementation.name} ", out, re.MULTILINE), implementation.name


WITH_DERIVED = [
    op
    for op in sorted(registry.op_folders())
    if any(each.derived is not None for each in registry.spec(op).inputs.values())
]


@pytest.mark.parametrize("op", WITH_DERIVED)
def test_a_call_that_is_modelled_has_the_inputs_that_follow_from_others(op):
    """Any bytes were taken for the metadata of `sparse_mm`, which gfx942's SMFMAC does not execute."""
    spec = registry.spec(op)
    case = tracing.small_case(spec)
    types, params = call_options.types_and_params(spec, None, [])
    made = tracing.inputs(spec, tracing.shapes(spec, case), types)
    found = tracing.with_derived(spec, made, types, {**case.params, **params})
    assert {name: (each.shape, each.dtype) for name, each in found.items()} == {
        name: (each.shape, each.dtype) for name, each in made.items()
    }
    if op == "sparse_mm":
        places = torch.stack([found["meta"] >> shift & 3 for shift in range(0, 8, 2)], -1)
        assert bool((places[..., ::2] < places[..., 1::2]).all())


def test_explain_takes_shapes_and_a_dtype(run):
    code, out, _ = run("explain", "matmul", "--shape", "5x7", "--shape", "7X3", "--dtype", "bfloat16")
    assert code == 0
    assert "a bfloat16[5, 7], b bfloat16[7, 3], c bfloat16[5, 3]" in out


def test_explain_trace_and_tune_take_shapes_the_same_way(run):
    """Commas were for `tune` alone, and `explain` and `trace` took no parameters."""
    apart = run("explain", "matmul", "--shape", "5x7", "--shape", "7x3")
    assert apart[0] == 0 and apart == run("explain", "matmul", "--shape", "5x7,7x3")
    assert "bias" not in run("explain", "layer_norm", "--shape", "5x7,7,-")[1].splitlines()[0]
    two = run("explain", "softmax", "--shape", "5x7", "--shape", "2x9")[1]
    assert "x float32[5, 7]" in two and "x float32[2, 9]" in two
    assert "an int from -2 to 1" in run("explain", "softmax", "--shape", "5x7", "--param", "dim=5")[2]
    assert "Did you mean 'float16'?" in run("explain", "softmax", "--dtype", "fp16")[2]
    for name in ("explain", "trace", "tune"):
        code, _, err = run(name, "softmax", "--shape", "5x7,3y4")
        assert code == 2 and "--shape '3y4': expected sizes" in err, name
        code, _, err = run(name, "softmax", "--param", "causal=1")
        assert code == 2 and "--param 'causal=1': expected NAME=VALUE of dim" in err, name


def test_explain_honours_a_pin(run):
    with portable.using(softmax="torch"):
        assert "-> torch" in run("explain", "softmax")[1]
        assert "'torch' is pinned" in run("explain", "softmax")[1]


@pytest.mark.parametrize("op", sorted(registry.op_folders()))
def test_docs_prints_the_ops_page(run, op):
    code, out, _ = run("docs", op)
    assert code == 0
    assert out.startswith(f"# {op}\n") and f"portable.{op}(" in out


@pytest.mark.slow
def test_check_compiles_for_a_gpu_that_is_not_there(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path / "cache"))
    table = tmp_path / "table.md"
    code, out, err = run(
        "check", "--quick", "--ops", "softmax", "--target", "gfx942", "-j", "2", "--markdown", str(table)
    )
    assert (code, err) == (0, ""), out
    assert re.search(r"^\| softmax \| triton \| gfx942 \| \d+ \|", out, re.MULTILINE)
    assert re.search(r"^\| softmax \| cpp \| gfx942 \| \d+ \|", out, re.MULTILINE)
    assert " 0 do not pass" in out
    assert table.read_text().rstrip() in out


@needs_no_gpu
def test_warm_says_that_there_is_nothing_to_compile(run):
    code, out, _ = run("warm", "softmax")
    assert code == 0
    assert "nothing to compile" in out


def test_warm_compiles_once(run, toy, tmp_path):
    """With a GPU, through the toy vendor; the disk cache then holds what was built."""
    code, out, _ = run("warm", "twice")
    assert code == 0 and "of 1 ops are compiled for" in out
    assert [what for what, _ in toy].count("compile") == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


MISTAKES = {
    "no such op": (("explain", "softmx"), "Did you mean 'softmax'?"),
    "no such op to check": (("check", "--ops", "nope", "--target", "gfx942"), "no op 'nope'"),
    "no such op to warm": (("warm", "nope"), "no op 'nope'"),
    "no such page": (("docs", "nope"), "no op 'nope'"),
    "no such target": (("check", "--target", "gfx9999"), "no vendor compiles for 'gfx9999'"),
    "no shape": (("explain", "softmax", "--shape", "3y4"), "--shape '3y4': expected sizes"),
    "empty shape": (("explain", "softmax", "--shape", ""), "expected sizes"),
    "negative size": (("explain", "softmax", "--shape", "3x-4"), "expected sizes"),
    "unthinkable size": (("explain", "softmax", "--shape", "9" * 30), "expected sizes"),
    "more than memory": (("explain", "softmax", "--shape", "99999999x99999999x99999"), "--shape"),
    "wrong rank": (("explain", "linear", "--shape", "3", "--shape", "3"), "has 1 dimensions"),
    "too few tensors": (("explain", "matmul", "--shape", "3x4"), "the shape of b is missing"),
    "too many tensors": (("explain", "softmax", "--shape", "3,3,3"), "softmax takes x; 3 shapes came"),
    "no dtype": (("explain", "softmax", "--dtype", "flaot32"), "'flaot32' is no dtype"),
    "something else of torch": (("explain", "softmax", "--dtype", "nn"), "'nn' is no dtype"),
    "unsupported dtype": (("explain", "softmax", "--dtype", "int32"), "has dtype int32"),
}


@pytest.mark.parametrize("argv, message", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gives_one_line_and_exit_code_2(run, argv, message):
    code, out, err = run(*argv)
    assert code == 2
    assert out == ""
    assert err.startswith("portable: ") and message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "argv, message",
    [
        ((), "COMMAND"),
        (("nonsense",), "invalid choice"),
        (("explain",), "op"),
        (("check", "-j", "0"), "'0' is not a number from 1 on"),
        (("check", "-j", "many"), "'many' is not a number from 1 on"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, argv, message):
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("usage: portable") and message in err


def test_a_table_that_cannot_be_written_is_one_line(run, tmp_path):
    target = tmp_path / "missing" / "table.md"
    code, _, err = run("check", "--quick", "--ops", "softmax", "--target", "sm_80", "--markdown", str(target))
    assert code == 2
    assert err == f"portable: --markdown {str(target)!r}: No such file or directory\n"


@pytest.fixture
def environment(monkeypatch):
    """Sets variables and forgets what was read before, and once more at the end."""

    def clear_caches() -> None:
        registry.clear_caches()
        pins.reload()
        detect.reset()

    def assign(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        clear_caches()

    yield assign
    monkeypatch.undo()
    clear_caches()


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"PORTABLE_BACKEND": "cpuu"}, "Did you mean 'cpu'?"),
        ({"PORTABLE_IMPL": "softmax"}, "not of the form op:implementation"),
        ({"PORTABLE_IMPL": "softmax:nothing"}, "pins 'nothing'"),
        ({"PORTABLE_IMPL": "softmx:triton"}, "no op of that name. Did you mean 'softmax'?"),
        ({"PORTABLE_KERNEL_PATH": "missing"}, "PORTABLE_KERNEL_PATH names a folder that does not exist"),
        ({"PORTABLE_BACKEND_PATH": "missing"}, "PORTABLE_BACKEND_PATH names"),
    ],
)
def test_a_mistake_in_the_environment_is_one_line(run, environment, variables, message):
    environment(**variables)
    code, out, err = run("explain", "softmax")
    assert (code, out) == (2, "")
    assert err.startswith("portable: ") and message in err and err.count("\n") == 1


def test_info_tells_of_a_backend_that_cannot_be_chosen(run, environment):
    environment(PORTABLE_BACKEND="nothing")
    code, out, err = run("info")
    assert code == 1
    assert "torch" in out and "PORTABLE_BACKEND='nothing' names no backend" in err
