"""A worker: reads what to run from standard input and answers on standard output, one JSON object a line.

Requests: {"case": id, "impls": [...]}, {"fuzz": [op, impl], "seconds": s}, {"bench": [op...], "impls": ..,
"groups": .., "seconds": ..} or, ahead of it, the same with "prepare": [first, step];
{"model": [op, number of its bench case], "impls": ..}.
Answers: {"ready": device} once; then {"begin": [id, impl]}, {"inputs": [id, SHA-256]}, {"result": {...}},
{"fuzzed": count}, {"timing": {...}}, {"roof": {...}}, {"modelled": {...}} or {"fault": sentence}, and in the
end {"done": true}.

A kernel may kill this process, or lose its device; then the parent (`pool`) reports it. What kernels
print goes to standard error, and what they read is empty.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from typing import Any

from portable.conformance.execute.result import Result
from portable.runtime import worker_io
from portable.runtime.worker_io import Send


def main() -> int:
    """The worker's life: until its input ends or its device is lost (exit code 4)."""
    worker_io.die_with_parent()
    tasks, send = worker_io.claim_stdio()
    import torch

    import portable
    from portable.conformance.execute import device, runner, waivers

    parser = argparse.ArgumentParser()
    device.add_arguments(parser)
    parser.add_argument("--no-waivers", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    device.choose(args)
    apply_waivers = runner.no_waivers if args.no_waivers else waivers.active().apply_waivers
    send({"ready": portable.device().name})
    for number, line in enumerate(tasks):
        try:
            perform(json.loads(line), runner.torch_device(), apply_waivers, send)
        except runner.DeviceLost as lost:
            send({"result": lost.result.entry(), "lost": True})
            os._exit(4)  # a lost device may hang an orderly exit
        send({"done": True})
        if number % 64 == 63:
            gc.collect()
    return 0


def perform(request: dict[str, Any], device: Any, apply_waivers: Any, send: Send) -> None:
    """Run one request and `send` the answers. Raises runner.DeviceLost."""
    if "fuzz" in request:
        op, impl = request["fuzz"]
        _fuzz(op, impl, request["seconds"], device, apply_waivers, send)
    elif "prepare" in request:
        from portable.conformance.perf import prepare

        first, step = request["prepare"]
        prepare.share(request["bench"], request["impls"], request["groups"], first, step)
    elif "model" in request:
        op, number = request["model"]
        _model(op, number, request["impls"], device, send)
    elif "bench" in request:
        _bench(request, device, send)
    else:
        _answer(request["case"], request["impls"], device, send)


def _answer(case_id: str, impls: list[str], device: Any, send: Send) -> None:
    from portable.conformance.execute import case_ids, runner

    for result in runner.answer(
        case_ids.case(case_id),
        impls,
        device,
        begin=lambda impl: send({"begin": [case_id, impl]}),
        on_inputs=lambda sha256: send({"inputs": [case_id, sha256]}),
    ):
        send({"result": result.entry()})


def _fuzz(op: str, impl: str, seconds: float, device: Any, apply_waivers: Any, send: Send) -> None:
    from portable.conformance.execute import fuzz

    def trial(case: Any) -> None:
        send({"begin": [case.id, impl]})

    failures, count = fuzz.fuzz_ops([op], device, seconds, [impl], apply_waivers, begin=trial)
    for result in failures:
        assert isinstance(result, Result)
        send({"result": result.entry()})
    send({"fuzzed": count})


def _bench(request: dict[str, Any], device: Any, send: Send) -> None:
    from portable.conformance.perf import bench

    def failed(case_id: str, impl: str, error: Exception) -> None:
        send({"fault": f"{case_id} on {impl} could not be timed: {type(error).__name__}: {error}"})

    _, roof = bench.bench(
        request["bench"],
        request["impls"],
        device,
        lambda entry: send({"timing": entry}),
        failed,
        request["groups"],
        request.get("seconds"),
    )
    send({"roof": roof})


def _model(op: str, number: int, impls: list[str] | None, device: Any, send: Send) -> None:
    from portable.conformance.perf import bench, modelled
    from portable.spec import registry

    case = bench.bench_cases(registry.spec(op))[number]
    try:
        for entry in modelled.times(case, impls, device):
            send({"modelled": entry})
    except Exception as error:
        send({"fault": f"{case.id} could not be modelled: {type(error).__name__}: {error}"})


if __name__ == "__main__":
    sys.exit(main())
