import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import portable
from portable.errors import ArgumentError, BackendError, SpecError, UnknownOpError
from portable.spec import registry
from portable.spec.model import Entry

ROOT = Path(registry.__file__).parents[1]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv(registry.KERNEL_PATH, raising=False)
    monkeypatch.delenv(registry.BACKEND_PATH, raising=False)
    registry.clear_caches()
    yield
    registry.clear_caches()


def op(root: Path, name: str, **files: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text(f"schema_version: 1\nop: {name}\n")
    for stem, text in files.items():
        (folder / (stem.replace("__", "."))).write_text(text)
    return folder


def test_the_ops_are_the_folders_with_a_spec():
    folders = {file.parent.name for file in (ROOT / "kernels").glob("*/spec.yaml")}
    assert set(registry.public_ops()) == folders and folders
    found = registry.op_folders()
    assert folders <= set(found)
    files = list((ROOT / "kernels").glob("*/*.yaml"))
    assert len(found) == len(files) + sum("\nbackward:" in file.read_text() for file in files)
    assert all(registry.spec(name).op == name for name in found)


def test_vendors_are_the_folders_with_a_backend():
    folders = {file.parent.name for file in (ROOT / "backends").glob("*/backend.py")}
    assert set(registry.vendors()) == folders


def test_extra_folders_add_ops_and_internal_ops(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    folder = op(first, "toy_one", backward__yaml="# of toy_one\nop: toy_one_backward\n", notes__yaml="a: 1\n")
    op(second, "toy_two")
    (second / "_shared").mkdir()
    (second / "empty").mkdir()
    (second / ".hidden").mkdir()
    before = set(registry.op_folders())
    monkeypatch.setenv(registry.KERNEL_PATH, os.pathsep.join([str(first), str(second)]))
    found = registry.op_folders()
    assert set(found) - before == {"toy_one", "toy_one_backward", "toy_two"}
    assert found["toy_one_backward"] == folder.resolve() / "backward.yaml"
    assert {"toy_one", "toy_two"} <= set(registry.public_ops())
    assert "toy_one_backward" not in registry.public_ops()
    monkeypatch.delenv(registry.KERNEL_PATH)
    assert set(registry.op_folders()) == before


def test_an_op_defined_twice_is_refused(tmp_path, monkeypatch):
    op(tmp_path, registry.public_ops()[0])
    monkeypatch.setenv(registry.KERNEL_PATH, str(tmp_path))
    with pytest.raises(SpecError, match="already defined"):
        registry.op_folders()


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(registry.KERNEL_PATH, str(tmp_path / "absent"))
    with pytest.raises(SpecError, match=r"absent.*PORTABLE_KERNEL_PATH"):
        registry.op_folders()
    monkeypatch.setenv(registry.BACKEND_PATH, str(tmp_path / "absent"))
    with pytest.raises(BackendError, match="PORTABLE_BACKEND_PATH"):
        registry.vendors()


def test_extra_vendors(tmp_path, monkeypatch):
    folder = tmp_path / "toyland"
    folder.mkdir()
    (folder / "backend.py").write_text("name = 'toyland'\n")
    (tmp_path / "no_vendor").mkdir()
    monkeypatch.setenv(registry.BACKEND_PATH, str(tmp_path))
    assert registry.vendors()["toyland"] == folder.resolve() and "no_vendor" not in registry.vendors()
    assert registry.load_module(folder / "backend.py").name == "toyland"


def test_an_unknown_op_names_the_nearest():
    with pytest.raises(UnknownOpError, match="Did you mean 'softmax'"):
        registry.spec("sofmax")


@pytest.mark.parametrize(
    "call",
    [
        lambda name: getattr(portable, name),
        portable.explain,
        registry.spec,
        lambda name: portable.conformance.check(print, name),
    ],
    ids=["attribute", "explain", "spec", "check"],
)
def test_an_unknown_op_lists_what_portable_ops_lists(call):
    """Some listed the internal ops too, which `portable.ops()` leaves out."""
    with pytest.raises(UnknownOpError) as raised:
        call("sofmax")
    assert raised.value.known == portable.ops()
    assert str(raised.value).endswith(f"Did you mean 'softmax'? The ops are {', '.join(portable.ops())}.")
    with pytest.raises(UnknownOpError, match=r"Did you mean 'softmax_backward'\?"):
        call("sofmax_backward")


@pytest.mark.parametrize("given", [portable.matmul, torch.matmul])
def test_a_function_in_the_place_of_its_name_is_answered_with_the_call(given):
    """It was "portable has no op <portable.matmul...>" and a list that has matmul."""
    with pytest.raises(ArgumentError, match=r"Pass its name: portable\.explain\('matmul', \.\.\.\)\.$"):
        portable.explain(given, torch.ones(2, 3), torch.ones(3, 4))  # type: ignore[arg-type]
    right = r"Pass its name: portable\.conformance\.check\(function, 'matmul'\)\.$"
    with pytest.raises(ArgumentError, match=right):
        portable.conformance.check(torch.matmul, given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, 3, [], print])
def test_what_is_no_name_of_an_op_is_answered_with_where_they_are(given):
    with pytest.raises(ArgumentError, match=r"expected the name of an op\. portable\.ops\(\) lists them\.$"):
        portable.explain(given)


def test_specs_are_parsed_once():
    name = registry.public_ops()[0]
    assert registry.spec(name) is registry.spec(name)


def test_the_package_s_own_modules_keep_their_name():
    file = ROOT / "kernels" / "softmax" / "reference.py"
    module = registry.load_module(file)
    assert module.__name__ == "portable.kernels.softmax.reference"
    assert registry.load_module(file) is module


def test_two_folders_may_hold_the_same_file_name_and_import_relatively(tmp_path):
    one = op(tmp_path, "one", helper__py="VALUE = 1\n", plan__py="from .helper import VALUE\n")
    two = op(tmp_path, "two", helper__py="VALUE = 2\n", plan__py="from .helper import VALUE\n")
    first, second = registry.load_module(one / "plan.py"), registry.load_module(two / "plan.py")
    assert (first.VALUE, second.VALUE) == (1, 2)
    assert first is registry.load_module(one / "plan.py") and first.__name__ != second.__name__


def test_an_op_may_hold_folders_whose_modules_import_each_other(tmp_path, monkeypatch):
    folder = op(tmp_path, "deep", size__py="SIZE = 4\n")
    for name, text in {"one": "from ..size import SIZE\n", "two": "from ..one.plan import SIZE\n"}.items():
        (folder / name).mkdir()
        (folder / name / "plan.py").write_text(text)
    monkeypatch.setenv(registry.KERNEL_PATH, str(tmp_path))
    one, two = (registry.load_module(folder / name / "plan.py") for name in ("one", "two"))
    assert one.SIZE == two.SIZE == 4 and one is not two
    assert one.__name__ == registry.load_module(folder / "size.py").__name__.replace("size", "one.plan")


def test_a_function_may_be_in_a_folder_of_its_op(tmp_path, monkeypatch):
    folder = op(tmp_path, "deep")
    (folder / "spec.yaml").write_text('schema_version: 1\nop: deep\nfunctions: ["calls/api.py:deep"]\n')
    monkeypatch.setenv(registry.KERNEL_PATH, str(tmp_path))
    assert registry.functions()["deep"] == folder.resolve() / "calls/api.py"


def test_a_broken_module_raises_its_own_error_each_time(tmp_path):
    folder = op(tmp_path, "broken", plan__py="1 / 0\n", other__py="import no_such_module\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            registry.load_module(folder / "plan.py")
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            registry.load_module(folder / "other.py")


def test_entries(tmp_path):
    folder = op(tmp_path, "entries", plan__py="def plan(call): return call\n")
    assert registry.load_entry(Entry(folder / "plan.py", "plan"))(3) == 3
    with pytest.raises(SpecError, match="has no such function"):
        registry.load_entry(Entry(folder / "plan.py", "plam"))


def test_finding_imports_nothing_heavy_and_parses_nothing():
    names = [
        f"portable.{name}"
        for name in ("errors", "spec.strict_yaml", "spec.formula", "spec.model", "spec.registry")
    ]
    code = (
        "import importlib, sys\n"
        "sys.modules['portable'] = package = type(sys)('portable')\n"  # without the package's own imports
        f"package.__path__ = [{str(ROOT)!r}]\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "from portable.spec import registry\n"
        "print(len(registry.op_folders()), len(registry.vendors()) >= 0)\n"
        "print(sorted({'torch', 'triton', 'yaml', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{len(registry.op_folders())} True", "[]"]
