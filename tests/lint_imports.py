"""Hold the imports of the whole package to the contracts in pyproject.toml, with import-linter.

Ops and vendors are folders without __init__.py, which import-linter does not follow: it reads a copy of the
tree, of links to the files, where every folder has one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def mirror(folder: Path, into: Path) -> None:
    """`folder` as a package of links to its Python files, each subfolder with Python files likewise."""
    into.mkdir(parents=True, exist_ok=True)
    (into / "__init__.py").touch()
    for file in folder.iterdir():
        if file.is_dir() and not file.name.startswith((".", "__")):
            if any(file.rglob("*.py")):
                mirror(file, into / file.name)
        elif file.suffix == ".py":
            (into / file.name).unlink(missing_ok=True)
            (into / file.name).symlink_to(file.resolve())


def main(*options: str, root: Path = ROOT) -> int:
    """Run import-linter on the package below `root`; returns 0 where all contracts are kept."""
    command = "from importlinter.cli import lint_imports_command as run; run()"
    with tempfile.TemporaryDirectory() as copy:
        mirror(root / "portable", Path(copy, "portable"))
        environ = {**os.environ, "PYTHONPATH": copy}
        options = ("--config", str(ROOT / "pyproject.toml"), "--no-cache", *options)
        return subprocess.run([sys.executable, "-c", command, *options], env=environ, cwd=copy).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
