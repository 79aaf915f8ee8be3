"""Which backends this process has: chosen at import, from files and the torch build alone."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from portable.backend import Backend, Detection, Machine
from portable.errors import BackendError, DeviceError, listed
from portable.plan import Device
from portable.spec import registry


@dataclass(frozen=True)
class Selection:
    """What was chosen: the backends in use by torch device type, and what each vendor answered.

    The emulator uses CPU tensors, so it replaces the cpu backend.
    """

    backends: dict[str, Backend]
    detections: dict[str, Detection]
    error: BackendError | None = None


def backend_class(vendor: str) -> type[Backend]:
    """The one subclass of Backend that a vendor's backend.py defines."""
    module = registry.load_module(registry.vendors()[vendor] / "backend.py")
    for _, value in inspect.getmembers(module, inspect.isclass):
        if issubclass(value, Backend) and value is not Backend and value.__module__ == module.__name__:
            return value
    raise BackendError(f"{vendor}: its backend.py defines no subclass of portable.backend.Backend")


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine({"cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}, dict(os.environ))


def select(machine: Machine) -> Selection:
    """Detect with every vendor folder, honour PORTABLE_BACKEND, and refuse to guess between two GPUs.

    An emulated GPU is used for a vendor that PORTABLE_BACKEND names where none of its GPUs is
    present; PORTABLE_EMULATE=1 selects one in any case, PORTABLE_EMULATE=0 forbids it.
    """
    classes = {vendor: backend_class(vendor) for vendor in registry.vendors()}
    detections = {vendor: cls.detect(machine) for vendor, cls in classes.items()}
    folders = registry.vendors()
    wanted = machine.environ.get("PORTABLE_BACKEND", "").strip()
    emulate = machine.environ.get("PORTABLE_EMULATE", "").strip()
    if wanted and wanted not in classes:
        return Selection({}, detections, BackendError.unknown(wanted, sorted(classes)))
    if emulate not in ("", "0", "1"):
        return Selection({}, detections, BackendError(f"PORTABLE_EMULATE={emulate!r}: expected 0 or 1"))
    if emulate == "1":
        able = [wanted] if wanted else [v for v, cls in classes.items() if cls.emulation(machine) is not None]
        if len(able) != 1:
            problem = f"PORTABLE_EMULATE=1: {listed(able)} can be emulated"
            return Selection({}, detections, BackendError(problem, "Choose one with PORTABLE_BACKEND"))
        return _emulated(able[0], "PORTABLE_EMULATE=1", classes[able[0]], machine, detections)
    if wanted:
        found = detections[wanted]
        able = [] if found.usable or classes[wanted].emulation(machine) is None else [wanted]
        if able and not found.present and emulate != "0":
            return _emulated(wanted, found.reason, classes[wanted], machine, detections)
        if not found.usable:
            remedy = "PORTABLE_EMULATE=1 runs on an emulated GPU" if able and not emulate else ""
            error = BackendError(f"PORTABLE_BACKEND={wanted}: {found.reason}", remedy)
            return Selection({}, detections, error)
        backend = classes[wanted](folders[wanted])
        return Selection({backend.device_type: backend}, detections)
    usable = [vendor for vendor, found in detections.items() if found.usable]
    backends: dict[str, Backend] = {}
    for vendor in usable:
        backend = classes[vendor](folders[vendor])
        rival = backends.get(backend.device_type)
        if rival is None:
            backends[backend.device_type] = backend
        elif backend.device_type == "cpu":
            # The CPU is always there: a vendor on the path does not replace it.
            found = detections[vendor]
            reason = f"{found.reason}; PORTABLE_BACKEND={vendor} selects it"
            detections[vendor] = Detection(found.present, found.usable, reason)
        else:
            return Selection({}, detections, BackendError.several([rival.name, vendor]))
    return Selection(backends, detections)


def _emulated(
    vendor: str, why: str, cls: type[Backend], machine: Machine, detections: dict[str, Detection]
) -> Selection:
    """The selection of a vendor's emulated GPU, or why there is none."""
    found = cls.emulation(machine)
    if found is None or not found.usable:
        reason = "this vendor has no emulated GPU" if found is None else found.reason
        return Selection({}, detections, BackendError(f"PORTABLE_BACKEND={vendor} ({why}): {reason}"))
    backend = cls(registry.vendors()[vendor]).emulated(machine)
    emulated = Detection(detections[vendor].present, True, f"{found.reason} ({why})")
    return Selection({backend.device_type: backend}, {**detections, vendor: emulated})


_selection: Selection | None = None


def selection() -> Selection:
    """This process's selection, made once."""
    global _selection
    if _selection is None:
        try:
            _selection = select(this_machine())
        except BackendError as error:  # a search path that leads nowhere: the first call says so
            _selection = Selection({}, {}, error)
    return _selection


_listeners: list[Callable[[], None]] = []


def on_change(listener: Callable[[], None]) -> None:
    """Have `listener` called whenever the selection changes."""
    _listeners.append(listener)


def reset(replacement: Selection | None = None) -> None:
    """Forget the selection, or put another in its place (tests)."""
    global _selection
    _selection = replacement
    for listener in _listeners:
        listener()


def override_backend(vendor: str | None = None, arch: str | None = None, emulate: bool | None = None) -> None:
    """Select again, as if the environment had said so: PORTABLE_BACKEND, PORTABLE_<VENDOR>_ARCH (which GPU
    to emulate) and PORTABLE_EMULATE; what is None stays as it is."""
    if vendor is not None:
        os.environ["PORTABLE_BACKEND"] = vendor
        if arch is not None:
            os.environ[f"PORTABLE_{vendor.upper()}_ARCH"] = arch
    if emulate is not None:
        os.environ["PORTABLE_EMULATE"] = str(int(emulate))
    reset()


def backend_for(device_type: str, op: str, argument: str) -> Backend:
    """The backend whose tensors live on `device_type`. Raises DeviceError or the selection's error."""
    chosen = selection()
    if chosen.error is not None:
        raise chosen.error
    found = chosen.backends.get(device_type)
    if found is None:
        served = [f"{kind} ({backend.name})" for kind, backend in chosen.backends.items()]
        missing = [f"{name}: {found.reason}" for name, found in chosen.detections.items() if not found.usable]
        raise DeviceError(
            op,
            argument,
            f"device {device_type}",
            listed(served),
            f"Move it with .to(device), or set PORTABLE_BACKEND ({'; '.join(missing) or 'portable info'})",
        )
    return found


def main_backend() -> Backend:
    """The GPU's backend where there is a GPU, else the CPU's."""
    chosen = selection()
    if chosen.error is not None:
        raise chosen.error
    return max(chosen.backends.values(), key=lambda backend: (backend.device_type != "cpu", -backend.order))


def device() -> Device:
    """The device that `portable` runs on by default: the current device, or the CPU.

    Raises BackendError where two vendors' GPUs could run, or where the pinned one cannot.
    """
    backend = main_backend()
    index = (
        torch.get_device_module(backend.device_type).current_device() if backend.device_type != "cpu" else 0
    )
    return backend.device(index)
