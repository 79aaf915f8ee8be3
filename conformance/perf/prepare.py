"""Compiles what timings will launch, ahead of them and in several workers: a compiler's seconds in one
process would cost more of the GPU's time than the timings themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from portable.conformance.cases.case import Case, input_shapes, params_of
from portable.conformance.cases.inputs import DTYPES
from portable.conformance.execute.runner import implementations, torch_device
from portable.conformance.perf import baselines, bench, sweep
from portable.dispatch import arguments, compiled_call, select
from portable.runtime import build, detect
from portable.spec import registry
from portable.spec.model import Spec


def share(
    ops: Sequence[str], impls: Sequence[str] | None, groups: Sequence[str] | None, first: int, step: int
) -> None:
    """Compile the kernels of every `step`-th case from number `first` on into the disk caches, ours and
    the baselines' own, by calling each once.

    What an implementation rejects or a compiler refuses is left to the timing, which says so.
    """
    for timed_case in bench.timed_cases(ops, impls, groups)[first::step]:
        _call_baselines(timed_case)
        for name in implementations(timed_case.case.op):
            if timed_case.impls is None or name in timed_case.impls:
                try:
                    _compile(timed_case, name)
                except Exception:  # the timing raises it again and reports it
                    continue


def _call_baselines(timed_case: sweep.TimedCase) -> None:
    spec, case = registry.spec(timed_case.case.op), timed_case.case
    try:
        tensors = bench.made(case, spec, torch_device(), seed=0)
    except Exception:  # the timing raises it again and reports it
        return
    for name, make in baselines.makers(spec, params_of(spec, case)).items():
        if timed_case.baselines is None or name in timed_case.baselines:
            try:
                make()(tensors)()
            except Exception:  # another project's code: the timing says why it is not timed
                continue


def _compile(timed_case: sweep.TimedCase, name: str) -> None:
    case, spec = timed_case.case, registry.spec(timed_case.case.op)
    implementation = spec.implementation(name)
    if implementation is None or implementation.kind == "run":
        return
    shapes = input_shapes(spec, case.shape)
    tensors = [_meta(case, spec, each, shapes) for each in spec.inputs]
    own = params_of(spec, case)
    given = [own.get(each, param.default) for each, param in spec.params.items()]
    params = arguments.check_params(spec, given, tensors)
    signature, _ = compiled_call.call_signature(spec, tensors, params, None)
    if signature.empty:
        return
    answer = select.evaluate(implementation, signature, detect.main_backend(), detect.device())
    if answer.plan is None:
        return
    dtypes = {each: info.dtype for each, info in signature.tensors.items() if info is not None}
    dtypes |= {space.name: space.dtype for space in answer.plan.workspaces}
    for launch in answer.plan.launches:
        build.code_object(launch, dtypes, detect.main_backend(), detect.device())


def _meta(case: Case, spec: Spec, name: str, shapes: Mapping[str, tuple[int, ...]]) -> torch.Tensor | None:
    """An input without data, laid out as the timing will lay it out; its address counts as aligned unless
    the layout says otherwise."""
    if name not in shapes:
        return None
    dtype = DTYPES[case.dtype(spec.inputs[name].dtype)]

    def fill(dims: Sequence[int]) -> torch.Tensor:
        return torch.empty(list(dims), dtype=dtype, device="meta")

    return sweep.laid_out(case.layout, name, shapes[name], fill)
