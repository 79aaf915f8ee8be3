"""The device that the command line names: `--device`, `--emulate`, `--require-hardware`."""

from __future__ import annotations

import argparse
import os
from typing import Any

import portable
from portable.conformance.text import UsageError
from portable.errors import BackendError, nearest
from portable.runtime import detect
from portable.spec import registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The three options, on a command that runs something."""
    parser.add_argument(
        "--device",
        metavar="VENDOR[:ARCH]",
        help=f"one of {', '.join(registry.vendors())}; an AMD GPU that is not present is emulated",
    )
    software = parser.add_mutually_exclusive_group()
    software.add_argument("--emulate", action="store_true", help="use an emulated GPU")
    software.add_argument(
        "--require-hardware", action="store_true", help="never use one: exit code 3 without the GPU"
    )


def arguments() -> list[str]:
    """The options that choose the active device again, in another process or on a command line."""
    info = portable.device()
    if info.emulated:
        return ["--device", f"{info.vendor}:{info.arch}", "--emulate"]
    return ["--device", info.vendor] + ["--require-hardware"] * (detect.main_backend().device_type != "cpu")


def choose(args: Any) -> None:
    """Make the device that the arguments name the active one; without any, the environment's choice or the
    device that is there. Raises UsageError for an unknown name and BackendError for a missing device."""
    name = getattr(args, "device", None)
    hardware = getattr(args, "require_hardware", False)
    emulate = True if getattr(args, "emulate", False) else False if hardware else None
    if name is None:
        if emulate is not None:
            detect.override_backend(emulate=emulate)
    else:
        _choose_named(name, emulate)
    if hardware and detect.main_backend().device_type == "cpu":
        raise BackendError(f"--require-hardware: {portable.device()} is no GPU")


def _choose_named(name: str, emulate: bool | None) -> None:
    vendor, _, arch = name.partition(":")
    if vendor not in registry.vendors():
        known = ", ".join(registry.vendors())
        raise UsageError(f"--device {name}: expected one of {known}.{nearest(vendor, registry.vendors())}")
    if not arch:
        if emulate is not None or os.environ.get("PORTABLE_BACKEND") != vendor:
            detect.override_backend(vendor, emulate=emulate)
        return
    targets = detect.backend_class(vendor)(registry.vendors()[vendor]).targets()
    if arch not in [each.arch for each in targets]:
        known = ", ".join(each.arch for each in targets) or "no architecture by name"
        raise UsageError(f"--device {name}: {vendor} has {known}")
    detect.override_backend(vendor, arch, emulate)
    chosen = detect.selection()
    if chosen.error is not None or portable.device().arch == arch:
        return
    if emulate is False:
        raise BackendError(f"--device {name} --require-hardware: this machine has {portable.device()}")
    detect.override_backend(vendor, arch, emulate=True)
