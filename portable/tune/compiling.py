"""Compiles configs ahead of their trials, in parallel worker processes: a compiler may crash its own."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from portable.backend import Backend
from portable.plan import Device
from portable.tune.problem import Problem
from portable.tune.worker import Died, Worker

SECONDS = 180.0
"""Time limit to compile one config."""


class Compilers:
    """Processes that compile; started when first needed, and kept until `close`."""

    def __init__(self, backend: Backend, device: Device, jobs: int, make_worker: Callable[[], Any] = Worker):
        self._vendor, self._device = backend.name, dataclasses.asdict(device)
        self._pool = ThreadPoolExecutor(max(1, jobs))
        self._make, self._local = make_worker, threading.local()
        self._workers: list[Any] = []
        self._closing = False

    def build(
        self,
        problem: Problem,
        configs: Mapping[str, Mapping[str, Any]],
        done: Callable[[str], None] = lambda name: None,
    ) -> dict[str, dict[str, Any]]:
        """By name: the resources of the config's kernels, or {"why": ...}. Calls `done` with each name as it
        ends."""
        call = problem.as_json()
        futures = {
            self._pool.submit(self._one, {"compile": dict(values), "problem": call}): name
            for name, values in configs.items()
        }
        found = {}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            done(futures[future])
        return {name: found[name] for name in configs}

    def _one(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._closing:
            return {"why": "not compiled"}
        worker = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = self._make()
            self._workers.append(worker)
        try:
            return worker.request({**request, "vendor": self._vendor, "device": self._device}, SECONDS)
        except Died as death:
            self._local.worker = None
            worker.close()
            return {"why": f"the compiler: {death}"}

    def close(self) -> None:
        """End the processes, and what they are at."""
        self._closing = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._pool.shutdown(wait=True)
        for worker in self._workers:
            worker.close()
