"""The instructions of a cubin, by the nvdisasm that Triton brings along."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path

from portable.errors import NoCompilerError


def disassembled(cubin: bytes) -> str:
    """nvdisasm's text. Raises NoCompilerError where Triton for NVIDIA's GPUs is not installed."""
    found = importlib.util.find_spec("triton")
    tool = Path(found.origin).parent / "backends/nvidia/bin/nvdisasm" if found and found.origin else None
    if tool is None or not tool.is_file():
        raise NoCompilerError("cuda", "nvdisasm comes with Triton, which is not here", "pip install triton")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([str(tool), "-c", file.name], capture_output=True, text=True, check=True).stdout


def mnemonics(cubin: bytes) -> list[str]:
    """The names of the instructions, with their suffixes, in order."""
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", disassembled(cubin))
