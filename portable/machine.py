"""Which backends this process has: chosen at import, from files and the torch build alone."""

from __future__ import annotations

import importlib
import inspect
import os
from dataclasses import dataclass

import torch

from portable import catalog
from portable.backend import Backend, Detection, Machine
from portable.errors import BackendError, DeviceError, listed
from portable.plan import Device


@dataclass(frozen=True)
class Selection:
    """What was chosen: the backends in use by torch device type, and what each vendor answered."""

    backends: dict[str, Backend]
    detections: dict[str, Detection]
    error: BackendError | None = None


def backend_class(vendor: str) -> type[Backend]:
    """The one subclass of Backend that a vendor's backend.py defines."""
    module = catalog.load_module(catalog.vendors()[vendor] / "backend.py")
    for _, value in inspect.getmembers(module, inspect.isclass):
        if issubclass(value, Backend) and value is not Backend and value.__module__ == module.__name__:
            return value
    raise BackendError(f"{vendor}: its backend.py defines no subclass of portable.backend.Backend")


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine({"cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}, dict(os.environ))


def select(machine: Machine) -> Selection:
    """Ask every vendor folder, honour PORTABLE_BACKEND, and refuse to guess between two GPUs."""
    classes = {vendor: backend_class(vendor) for vendor in catalog.vendors()}
    detections = {vendor: cls.detect(machine) for vendor, cls in classes.items()}
    folders = catalog.vendors()
    wanted = machine.environ.get("PORTABLE_BACKEND", "").strip()
    if wanted:
        if wanted not in classes:
            return Selection({}, detections, BackendError.unknown(wanted, sorted(classes)))
        if not detections[wanted].usable:
            error = BackendError(f"PORTABLE_BACKEND={wanted}: {detections[wanted].reason}")
            return Selection({}, detections, error)
        backend = classes[wanted](folders[wanted])
        return Selection({backend.device_type: backend}, detections)
    usable = [vendor for vendor, found in detections.items() if found.usable]
    backends: dict[str, Backend] = {}
    for vendor in usable:
        backend = classes[vendor](folders[vendor])
        rival = backends.get(backend.device_type)
        if rival is not None:
            return Selection({}, detections, BackendError.several([rival.name, vendor]))
        backends[backend.device_type] = backend
    return Selection(backends, detections)


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


def reset(replacement: Selection | None = None) -> None:
    """Forget the selection, or put another in its place (tests)."""
    global _selection
    _selection = replacement
    dispatch = importlib.import_module("portable.dispatch")
    dispatch.forget()


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
    """The device that `portable` runs on by default: the current card, or the CPU.

    Raises BackendError where two vendors' cards could run, or where the pinned one cannot.
    """
    backend = main_backend()
    index = (
        torch.get_device_module(backend.device_type).current_device() if backend.device_type != "cpu" else 0
    )
    return backend.device(index)
