"""The wheel, the wheel made from the sdist, and the editable install hold the same package."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import portable

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"portable": "portable", "backends": "portable/backends", "kernels": "portable/kernels",
           "conformance": "portable/conformance"}  # fmt: skip
LISTING = """
import json, sys, portable
from portable import catalog
print(json.dumps({"file": portable.__file__, "ops": portable.ops(),
                  "vendors": sorted(catalog.vendors()),
                  "missing": [str(e.entry.file) for op in catalog.op_folders()
                              for e in catalog.spec(op).implementations if not e.entry.file.is_file()]}))
"""

pytestmark = pytest.mark.xdist_group("packaging")  # one build for all of them

EVIDENCE = {"__pycache__", "records", "calibration"}  # stays behind


def sources() -> dict[str, Path]:
    """Every file of the four folders by the path that it has once installed; records stay behind."""
    return {
        f"{installed}/{file.relative_to(ROOT / folder).as_posix()}": file
        for folder, installed in FOLDERS.items()
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and not EVIDENCE & set(file.relative_to(ROOT).parts)
    }


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def listing(cwd: Path, **environ: str) -> dict:
    return json.loads(run(sys.executable, "-c", LISTING, cwd=cwd, **environ))


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> dict[str, Path]:
    """The sdist and the wheels made from the tree and from the sdist; the tree itself stays clean."""
    work = tmp_path_factory.mktemp("packaging")
    tree, dist, again = work / "tree", work / "dist", work / "again"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    # Without isolation: setuptools is pinned in constraints.txt, and the tests need no network.
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", dist, cwd=tree)
    (sdist,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("*.whl")
    shutil.unpack_archive(sdist, work)
    unpacked = work / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", again, cwd=unpacked)
    (rebuilt,) = again.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel, "wheel from sdist": rebuilt}


@pytest.fixture(params=["wheel", "wheel from sdist"])
def installed(request, built, tmp_path) -> Path:
    """A folder that holds one of the wheels, installed, and nothing else."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index")
    run(*pip, "--target", tmp_path / "site", built[request.param], cwd=tmp_path)
    return tmp_path / "site"


def test_every_file_travels(built):
    expected = sources()
    for kind in ("wheel", "wheel from sdist"):
        with zipfile.ZipFile(built[kind]) as archive:
            held = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        assert set(held) == set(expected), kind
        for name, content in held.items():
            assert content == expected[name].read_bytes(), f"{kind}: {name}"
    suffixes = {Path(name).suffix for name in expected}
    assert {".yaml", ".cu", ".hip", ".h", ".py"} <= suffixes


def test_an_installed_wheel_has_the_ops_and_vendors_of_the_folders(installed, tmp_path):
    found = listing(tmp_path, PYTHONPATH=str(installed))
    assert Path(found["file"]).is_relative_to(installed)
    assert found["ops"] == sorted(file.parent.name for file in ROOT.glob("kernels/*/spec.yaml"))
    assert found["vendors"] == sorted(file.parent.name for file in ROOT.glob("backends/*/backend.py"))
    assert found["missing"] == []


def test_the_running_install_agrees(tmp_path):
    """`make test` installs editable: the same ops, from a folder that is not the root."""
    found = listing(tmp_path)
    assert Path(found["file"]) == Path(portable.__file__)
    assert found["ops"] == sorted(file.parent.name for file in ROOT.glob("kernels/*/spec.yaml"))
    assert found["missing"] == []


def test_metadata():
    metadata = importlib.metadata.metadata("portable-kernels")
    assert metadata["Version"] == portable.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra")) == {
        *("cuda", "cuda12", "rocm", "check", "emulate", "test", "docs")
    }
    scripts = {entry.name for entry in importlib.metadata.entry_points(group="console_scripts")}
    assert {"portable", "portable-conformance"} <= scripts
