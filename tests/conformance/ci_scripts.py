"""Runs a script of conformance/ci/ as a pipeline does: what the tests of the pipelines share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "conformance" / "ci"
SOFTWARE = {"cpu", "rocm:gfx942", "rocm:gfx950", "rocm:gfx1100"}
"""The devices that every pipeline has."""
PIPELINES = (
    *("GITHUB_", "CONFORMANCE_", "NVIDIA_", "AMD_", "EVENT", "TIER", "TRUSTED"),
    *("PORTABLE_BACKEND", "PORTABLE_EMULATE", "PORTABLE_ROCM_ARCH"),
)
"""Variables that would tell a script something."""


def script(name: str, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """A script run from another folder, with no CI's variables but `environ`."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(PIPELINES)}
    return subprocess.run(
        [CI / name, *map(str, arguments)],
        env={**clean, "PYTHON": sys.executable, **environ},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )


def plan(**environ: str) -> tuple[int, dict[str, str], str]:
    """plan.sh: its exit code, what it decided, and all that it printed."""
    done = script("plan.sh", **environ)
    lines = [line.partition("=") for line in done.stdout.splitlines() if re.match(r"\w+=", line)]
    return done.returncode, {name: value for name, _, value in lines}, done.stdout + done.stderr
