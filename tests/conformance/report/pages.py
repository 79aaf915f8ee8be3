"""Records for the pages' tests: failing, emulated, interrupted, untimed, hostile and large ones."""

from __future__ import annotations

from typing import Any

from portable.conformance.execute.result import entry

from ..sample_record import sample_record

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'&{{data}} \x00\ud800 <!-- ]]>"


def failing(**changes: Any) -> dict[str, Any]:
    entries = sample_record(**changes)
    wrong = {"state": "Fail.value", "worst": 12.5, "message": "y: first wrong element [0, 8]"}
    entries["results"][0] |= wrong
    entries["results"][4] |= {"state": "XFail", "message": "known: subnormals are lost"}
    entries["results"][5] |= {"state": "QualityWarning", "message": "biased"}
    entries["waivers"] = [{"where": "rocm/known_failures.yaml:7", "kind": "xfail", "used": 1}]
    return entries


def emulated(**changes: Any) -> dict[str, Any]:
    entries = sample_record(
        **{"device": "emulated gfx942", "vendor": "rocm", "arch": "gfx942", "emulated": True, **changes}
    )
    return entries | {"timings": [], "roof": None}


def hostile() -> dict[str, Any]:
    entries = failing(device=HOSTILE, command=HOSTILE, commit=HOSTILE)
    entries["results"][0] |= {"case": f"matmul/{HOSTILE}/x", "impl": HOSTILE, "message": HOSTILE}
    entries["results"][-1]["message"] = HOSTILE
    entries["timings"][0] |= {"impl": HOSTILE, "case": f"matmul/bfloat16/{HOSTILE}/normal/bench"}
    entries["timings"][0]["vs"] = {HOSTILE: {"median": 1.0, "low": 0.9, "high": 1.1}}
    entries["timings"][0]["baseline_errors"] = {HOSTILE: HOSTILE}
    entries["waivers"][0]["where"] = HOSTILE
    return entries


def large(count: int = 8000, wrong: bool = False) -> dict[str, Any]:
    """`count` results with ids as long as real ones; all of them failing at length where `wrong`."""
    entries = sample_record()
    ops = "activation_backward", "layer_norm_backward", "matmul", "linear", "softmax", "swiglu", "rms_norm"
    impls = "wgmma", "triton", "cpp", "torch"
    kind = "lead=2x1x3x2,activation=gelu_tanh/cancellation/transposed"
    entries["results"] = [
        entry(
            f"{ops[n % 7]}/bfloat16,W=float32/N={n // 4},{kind}", impls[n % 4],
            "Fail.value" if wrong else "Pass", worst=n / count, ulp=0.49, seconds=0.123456,
            max_abs=1e-3,
            message=f"case {n} {'abcdefghij'[n // 28 % 10]}: {'first wrong element [0, 8]; ' * 60}" * wrong,
        )
        for n in range(count)
    ]  # fmt: skip
    return entries


def comparison(problems: tuple[str, ...] = (), verdict: str = "parity") -> dict[str, Any]:
    case = "matmul/bfloat16/M=4096,N=4096,K=4096/normal/bench"
    return {
        "names": ["NVIDIA H200", "AMD MI300X"],
        "agreement": [{"op": "matmul", "impl": "triton", "cases": 3, "exact": 1, "equal": 2,
                       "problems": list(problems)}],
        "parity": [
            {"op": "matmul", "case": case, "impl": "triton", "ratio": 0.9, "low": 0.88, "high": 0.93,
             "verdict": verdict},
            {"op": "softmax", "case": "softmax/bfloat16/N=8192,lead=4096/normal/bench", "impl": "triton",
             "ratio": 0.81, "low": 0.79, "high": 0.83, "verdict": "inconclusive"},
        ],
        "verdict": "The records agree.",
    }  # fmt: skip
