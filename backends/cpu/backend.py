"""The CPU: every op through torch, so that code written against `portable` runs on a laptop."""

from __future__ import annotations

import os
import platform

from portable.backend import Backend, Detection, Machine
from portable.plan import Device


class CpuBackend(Backend):
    """No kernels of our own: the implementations in the language `torch`."""

    name = "cpu"
    languages = ("torch",)
    device_type = "cpu"

    @classmethod
    def detect(cls, machine: Machine) -> Detection:
        return Detection(True, True, "always there: the ops run through torch")

    def device(self, index: int) -> Device:
        return Device(self.name, platform.machine(), "CPU", 0, os.cpu_count() or 1, 1, 0, 0)

    def info(self) -> list[tuple[str, str]]:
        import torch

        return [
            (
                "cpu",
                f"{platform.machine()}, {os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads",
            )
        ]
