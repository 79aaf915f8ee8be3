"""What pip installs from the tree and from the sdist, and the editable install, hold the same package."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import portable

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("backends", "conformance", "kernels")
"""Folders of the root that are packages below portable/, by symbolic links."""
EVIDENCE = {"__pycache__", "results", "calibration"}  # stays behind
LISTING = """
import json, portable
from portable.spec import registry
print(json.dumps({"file": portable.__file__, "ops": portable.ops(), "vendors": sorted(registry.vendors()),
                  "missing": [str(e.entry.file) for op in registry.op_folders()
                              for e in registry.spec(op).implementations if not e.entry.file.is_file()]}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]  # one build for all of them


def sources() -> dict[str, Path]:
    """Every file of the package by the path that it has once installed."""
    folders = {"portable": ROOT / "portable", **{f"portable/{name}": ROOT / name for name in LINKED}}
    return {
        f"{installed}/{file.relative_to(folder).as_posix()}": file
        for installed, folder in folders.items()
        for file in folder.rglob("*")
        if file.is_file() and not EVIDENCE & set(file.relative_to(ROOT).parts)
    }


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def sdist(tmp_path_factory) -> Path:
    """The sdist of a copy of the tree, links and all, so that the tree itself stays clean."""
    tree = tmp_path_factory.mktemp("packaging") / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("portable", *LINKED):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "pytest_portable.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    name = run("-c", "from setuptools import build_meta; print(build_meta.build_sdist('dist'))", cwd=tree)
    return tree / "dist" / name.splitlines()[-1]


@pytest.fixture(scope="session")
def installed(sdist) -> dict[str, Path]:
    """What pip installs, without a network, from the tree and from the sdist."""
    # Without isolation: setuptools is pinned in constraints.txt.
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index", "--no-compile",
           "--no-build-isolation")  # fmt: skip
    tree = sdist.parents[1]
    places = {"tree": tree.parent / "from_tree", "sdist": tree.parent / "from_sdist"}
    run(*pip, "--target", places["tree"], tree, cwd=tree.parent)
    run(*pip, "--target", places["sdist"], sdist, cwd=tree.parent)
    return places


def test_the_sdist_holds_files_and_no_links(sdist):
    with tarfile.open(sdist) as archive:
        members = {each.name.partition("/")[2]: each for each in archive.getmembers()}
    assert [name for name, each in members.items() if not (each.isfile() or each.isdir())] == []
    assert {name for name, each in members.items() if each.isfile()} >= {
        *sources(),
        "pyproject.toml",
        "LICENSE",
    }


@pytest.mark.parametrize("kind", ["tree", "sdist"])
def test_every_file_travels_and_no_other(installed, kind):
    expected = sources()
    package = installed[kind] / "portable"
    held = {
        f"portable/{file.relative_to(package).as_posix()}" for file in package.rglob("*") if file.is_file()
    }
    assert held == set(expected)
    for name, source in expected.items():
        assert (installed[kind] / name).read_bytes() == source.read_bytes(), name
    plugin = (installed[kind] / "pytest_portable.py").read_bytes()
    assert plugin == (ROOT / "pytest_portable.py").read_bytes()
    (points,) = installed[kind].glob("*.dist-info/entry_points.txt")
    assert "[pytest11]\npytest_portable = pytest_portable\n" in points.read_text()
    assert {".yaml", ".cu", ".hip", ".h", ".py"} <= {Path(name).suffix for name in expected}


def test_an_editable_install_puts_the_checkout_on_the_path(sdist, tmp_path):
    """2026-11-23: setuptools' finder ran after the path, so that from the folder above a checkout called
    portable `import portable` was that folder, and empty."""
    build = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    name = run("-c", build, cwd=sdist.parents[1]).splitlines()[-1]
    with zipfile.ZipFile(tmp_path / name) as wheel:
        (path,) = [each for each in wheel.namelist() if ".dist-info/" not in each]
        assert path.endswith(".pth")
        assert Path(wheel.read(path).decode().strip()).samefile(sdist.parents[1])


@pytest.mark.parametrize("kind", ["tree", "sdist", "running"])
def test_an_install_has_the_ops_and_vendors_of_the_folders(installed, kind, tmp_path):
    """`make test` installs editable: the same ops, from a folder that is not the root."""
    paths = {} if kind == "running" else {"PYTHONPATH": str(installed[kind])}
    found = json.loads(run("-c", LISTING, cwd=tmp_path, **paths))
    folder = Path(portable.__file__).parent if kind == "running" else installed[kind] / "portable"
    assert Path(found["file"]).parent == folder
    assert found["ops"] == list(portable.ops()) != []
    assert found["vendors"] == sorted(file.parent.name for file in ROOT.glob("backends/*/backend.py"))
    assert found["missing"] == []


def test_metadata():
    metadata = importlib.metadata.metadata("portable-kernels")
    assert metadata["Version"] == portable.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    extras = {"cuda", "cuda12", "rocm", "check", "emulate", "test", "docs"}
    assert set(metadata.get_all("Provides-Extra") or ()) == extras
    scripts = {entry.name for entry in importlib.metadata.entry_points(group="console_scripts")}
    assert {"portable", "portable-conformance"} <= scripts
