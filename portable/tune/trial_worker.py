"""The process that compiles, checks and times configs; `worker.py` is the parent's end.

Requests: {"compile": values, "problem": s, "vendor": v, "device": d}; {"setup": s, "index": device};
{"check": name, "values": v}; {"time": [name...], "rounds": n}; {"drop": [name...]}. A config that was checked
is kept, ready to be timed, until it is dropped. What kernels print goes to standard error.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

from portable.dtypes import itemsize, of
from portable.runtime import worker_io
from portable.runtime.worker_io import Send


def main() -> int:
    worker_io.die_with_parent()
    tasks, send = worker_io.claim_stdio()
    bench: Any = None
    for line in tasks:
        request = json.loads(line)
        try:
            if "compile" in request:
                send(compiled(request))
            elif "setup" in request:
                bench = None
                gc.collect()  # the memory of the call before
                bench = Bench(request["setup"], request["index"])
                send(bench.setup_answer())
            elif "check" in request:
                send(bench.check(request["check"], request["values"]))
            elif "time" in request:
                send(bench.time(request["time"], request["rounds"], send))
            else:
                send(bench.drop(request["drop"]))
        except Exception as error:
            send({"why": _sentence(error), "lost": "compile" not in request and _lost(error)})
    return 0


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _lost(error: Exception) -> bool:
    """Whether the device no longer answers this process."""
    if isinstance(error, (MemoryError,)) or "out of memory" in str(error).lower():
        return False
    import torch

    try:
        torch.accelerator.synchronize()
    except Exception:
        return True
    return False


def compiled(request: dict[str, Any]) -> dict[str, Any]:
    """Plan and compile one config, into the disk cache; no device is touched."""
    import torch  # noqa: F401 - before Triton, whose libraries it brings

    from portable.dispatch import compiled_call
    from portable.plan import Device
    from portable.runtime import build, detect
    from portable.spec import registry
    from portable.tune.problem import Problem
    from portable.tune.space import planned

    problem = Problem.from_json(request["problem"])
    backend = detect.backend_class(request["vendor"])(registry.vendors()[request["vendor"]])
    device = Device(**request["device"])
    plan = planned(problem, request["compile"], device)
    if isinstance(plan, str):
        return {"why": plan}
    infos = {name: info for name, info in problem.signature.tensors.items() if info is not None}
    infos.update({each.name: compiled_call.workspace_info(each) for each in plan.workspaces})
    dtypes = {name: info.dtype for name, info in infos.items()}
    registers = shared = spills = threads = 0
    for launch in plan.launches:
        code = build.code_object(launch, dtypes, backend, device)
        threads = max(threads, code.threads)
        shared = max(shared, code.shared)
        try:
            found = backend.resources(code)
        except Exception:  # a tool of the vendor's that is not installed; the kernel compiles all the same
            continue
        registers = max(registers, found.registers)
        shared = max(shared, code.shared + found.shared)
        spills = max(spills, found.spills, found.stack)
    if shared > device.shared_memory:
        return {"why": f"takes {shared} bytes of shared memory, the device has {device.shared_memory}"}
    return {"registers": registers, "shared": shared, "spills": spills, "threads": threads}


class Bench:
    """One call on one device: its inputs in rotating sets, its reference, and the configs made ready."""

    def __init__(self, problem: dict[str, Any], index: int):
        import torch

        from portable.runtime import detect, timing
        from portable.tune import accuracy
        from portable.tune.problem import Problem

        self._torch, self._timing = torch, timing
        self._gpu = torch.get_device_module(detect.main_backend().device_type)
        self._problem = Problem.from_json(problem)
        backend = detect.main_backend()
        self._backend, self._device = backend, backend.device(index)
        self._place = torch.device(backend.device_type, index)
        self._gpu.set_device(index)
        first = self._problem.tensors(self._place, seed=0)
        self._judge = accuracy.Judge(self._problem, first)
        free = self._gpu.mem_get_info(index)[0]
        count = timing.set_count(self._problem.bytes, self._device.l2_bytes, free // 2)
        self._sets = [first, *(self._problem.tensors(self._place, seed) for seed in range(1, count))]
        self._ready: dict[str, Any] = {}

    def setup_answer(self) -> dict[str, Any]:
        """For the parent: the number of sets, the kind of reference, and the device's rates as measured
        now."""
        return {"sets": len(self._sets), "reference": self._judge.kind, **self._rates()}

    def _rates(self) -> dict[str, float]:
        torch, timing = self._torch, self._timing
        size = min(1 << 28, self._gpu.mem_get_info(self._place)[0] // 8)
        source = torch.randn(size // 4, device=self._place)
        kinds = list(self._problem.dtypes.values())
        side = 4096 if itemsize(kinds[0]) < 4 else 2048
        left, right = (torch.randn(side, side, device=self._place).to(of(kinds[0]).storage) for _ in range(2))
        samples = timing.interleaved(
            {
                "copy": (timing.copy, [(source, torch.empty_like(source))]),
                "product": (lambda pair: pair[0] @ pair[1], [(left, right)]),
            },
            rounds=3,
            failed=lambda name, error: None,
        )
        found = {"bytes_per_s": 8e6 * (size // 4) / samples["copy"].median}
        if "product" in samples:
            found["flop_per_s"] = 2e6 * side**3 / samples["product"].median
        return found

    def _call(self, values: dict[str, Any]) -> Callable[[Any], Any]:
        from portable.configs import lookup
        from portable.dispatch import compiled_call, pins

        problem = self._problem
        names, op, imp = list(problem.shapes), problem.op, problem.implementation
        first = list(self._sets[0].values())
        with lookup.forcing(op, imp, values), pins.using(**{op: imp}):
            prepared = compiled_call.CompiledCall(
                problem.spec, self._backend, self._device, first, problem.values(), None
            )
        return lambda tensors: prepared([tensors[name] for name in names], None)

    def check(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Run a config twice on poisoned memory and judge what it wrote."""
        call = self._call(values)
        outputs = []
        for _ in range(2):
            self._poison()
            outputs.append(self._results(call))
            self._gpu.synchronize()
        wrong = self._judge.wrong(outputs[0])
        if wrong:
            return {"why": wrong}
        if not self._judge.same(*outputs):
            return {"why": "gives other bits when it runs again"}
        self._ready[name] = call
        return {"bits": self._judge.digest(outputs[0])}

    def _results(self, call: Callable[[Any], Any]) -> tuple[Any, ...]:
        """What a call on the first set returns and writes in place, where the contents from before are put
        back."""
        tensors = self._sets[0]
        written = {name: tensors[name] for name in self._problem.spec.mutated}
        before = {name: None if each is None else each.clone() for name, each in written.items()}
        found = call(tensors)
        several = found if isinstance(found, tuple) else () if found is None else (found,)
        contents = []
        for name, each in written.items():
            contents.append(None if each is None else each.clone())
            if each is not None:
                each.copy_(before[name])
        return (*several, *contents)

    def _poison(self) -> None:
        """Leave NaN in the memory that the allocator hands out next."""
        torch = self._torch
        infos = [info for info in self._problem.signature.tensors.values() if info is not None]
        held = [
            torch.full((max(info.numel * itemsize(info.dtype), 4) // 4,), float("nan"),
                       device=self._place)
            for info in infos for _ in range(2)
        ]  # fmt: skip
        self._gpu.synchronize()
        del held

    def time(self, names: list[str], rounds: int, send: Send) -> dict[str, Any]:
        failed: dict[str, str] = {}
        for name in names:
            if callable(self._ready[name]):
                send({"begin": name})
                try:
                    self._ready[name] = self._timing.Timed(name, self._ready[name], self._sets)
                except Exception as error:
                    if _lost(error):
                        raise
                    failed[name] = _sentence(error)
        send({"begin": ""})
        samples = self._timing.rotate([self._ready[name] for name in names if name not in failed], rounds)
        return {
            "samples": {name: list(sample.microseconds) for name, sample in samples.items()},
            "failed": failed,
        }

    def drop(self, names: list[str]) -> dict[str, Any]:
        """Forget configs, and with them their graphs and what those hold of the memory."""
        for name in names:
            self._ready.pop(name, None)
        self._gpu.empty_cache()
        return {}


if __name__ == "__main__":
    sys.exit(main())
