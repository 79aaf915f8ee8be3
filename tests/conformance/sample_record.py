"""A small valid record, made by hand: what reports, comparison and submission are tested with."""

from __future__ import annotations

import copy
from typing import Any

from portable.conformance.execute.result import entry
from portable.conformance.records import record

CASES = (
    "matmul/bfloat16/M=127,N=129,K=65/normal/contiguous",
    "matmul/float16/M=64,N=64,K=64/small_integers/transposed",
    "matmul/float32/M=33,N=17,K=40/normal/padded",
    "softmax/bfloat16/N=33,lead=3x5/normal/contiguous",
    "softmax/float32/N=1,lead=7/subnormals/sliced",
    "softmax_backward/float32/N=257,lead=31/normal/contiguous",
)
BENCH = (
    ("matmul", "matmul/bfloat16/M=4096,N=4096,K=4096/normal/bench", 4.0e14, 2 * 4096**3, 3 * 2 * 4096**2),
    ("softmax", "softmax/bfloat16/N=8192,lead=4096/normal/bench", None, 5 * 4096 * 8192, 4 * 4096 * 8192),
)
COPY = 4.0e12


def sample_record(**changes: Any) -> dict[str, Any]:
    """A record of an H200 that conforms: three ops, two implementations, two timings each. `changes`
    replace fields of the header."""
    results, inputs = [], {}
    for number, case in enumerate(CASES):
        inputs[case] = f"{number:016x}"
        for place, impl in enumerate(("triton", "torch")):
            exact = "small_integers" in case
            results.append(entry(
                case, impl, "Pass", worst=0.1 * (number + 1) + 0.01 * place, max_abs=1e-3 * (number + 1),
                ulp=(-1) ** number * 0.4, digest=f"{number * 2 + place * (not exact):016x}", exact=exact,
                seconds=0.01,
            ))  # fmt: skip
    results.append(entry("softmax/behaviour/graph_capture", "triton", "NotSupported", message="needs a GPU"))
    head = {
        "device": "NVIDIA H200", "vendor": "cuda", "arch": "sm_90a", "emulated": False,
        "multiprocessors": 132, "driver": "13.0", "toolkit": "13.0",
        "versions": {"python": "3.12.3", "portable": "0.1.0", "torch": "2.11.0", "numpy": "2.2.0",
                     "triton": "3.6.0", "cupy": "14.2.0"},
        "commit": "0" * 40, "dirty": False, "command": "portable-conformance run --device cuda --tier core",
        "date": "2026-11-21T12:00:00+00:00", "tier": "core", "fraction": [1, 1],
        "selection": {"ops": ["matmul", "softmax", "softmax_backward"], "impls": None, "k": None},
        "specs": {"matmul": "a" * 16, "softmax": "b" * 16, "softmax_backward": "c" * 16}, "complete": True,
    } | changes  # fmt: skip
    roof = {"copy_bytes_per_s": COPY, "matmul_bfloat16_flop_per_s": BENCH[0][2]}
    timings = [
        timing(op, impl, case, float(flops), moved, share, peak)
        for op, case, peak, flops, moved in BENCH
        for impl, share in (("triton", 0.9), ("torch", 0.8))
    ]
    return copy.deepcopy(record.build(head, results, inputs, timings, roof))


def timing(
    op: str, impl: str, case: str, flops: float, moved: int, share: float, peak: float | None
) -> dict[str, Any]:
    """One timing at `share` of the roof, with a spread of a percent over 25 rounds."""
    floor = max(moved / COPY, flops / peak if peak else 0.0) * 1e6
    rounds = [floor / share * (1 + 0.01 * ((number * 7) % 11 - 5) / 5) for number in range(25)]
    device_us = sorted(rounds)[12]
    return {
        "op": op, "impl": impl, "case": case, "device_us": device_us, "device_us_all": rounds, "graph": True,
        "bytes": moved, "flops": flops, "bytes_per_s": moved / device_us * 1e6,
        "flop_per_s": flops / device_us * 1e6, "floor_us": floor, "of_roof": floor / device_us,
        "state": "Pass", "message": "", "buffer_sets": 4,
        "vs": {"torch": {"median": share / 0.8, "low": share / 0.82, "high": share / 0.78}},
        "baselines_us": {"torch": floor / 0.8}, "baseline_errors": {"liger": "not installed"},
        "launch_us": 9.5, "baseline_launch_us": 7.0, "clocks": {"sm_mhz": [1755, 1980]},
    }  # fmt: skip
