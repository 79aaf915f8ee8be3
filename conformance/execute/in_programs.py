"""How an op behaves in a program: derivatives, transforms, torch.compile, inputs that change or share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from portable.conformance.execute.samples import (
    Call,
    NotApplicable,
    Types,
    in_types,
    near,
    of_problems,
    same,
    sample,
)
from portable.spec.model import Spec

Tensors = dict[str, Any]


def compiled(call: Call, spec: Spec, device: torch.device) -> str | None:
    """torch.compile(fullgraph=True) gives the same bits, and the strides that it is told are the results'."""
    tensors = sample(spec, device)
    expected = call(tensors)
    torch._dynamo.reset()  # each op and implementation compiles afresh
    got = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=False)(tensors)
    if not same(got, expected):
        return "under torch.compile the result differs"
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = {n: None if t is None else mode.from_tensor(t) for n, t in tensors.items()}
        promised = [each.stride() for each in call(fakes)]
    if (strides := [each.stride() for each in expected]) != promised:
        return f"the results' strides are {strides}; torch.compile is told {promised}"
    return None


def compiled_forms(call: Call, spec: Spec, device: torch.device) -> str | None:
    """The same in every other type of 16 and 32 bits, with a gradient, and with sizes that are not fixed: the
    graph that was traced at some serves others."""

    def fresh_graph(dynamic: bool) -> Call:
        torch._dynamo.reset()
        return torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)

    for row in spec.types[1:]:
        if len(set(row.values()) - {"float32"}) < 2 and row["acc"] != "float64":
            tensors = sample(spec, device, types=row)
            if not same(fresh_graph(False)(tensors), call(tensors)):
                return f"under torch.compile the result differs in {next(iter(row.values()))}"
    graph = fresh_graph(True)
    for lead, size in ((48, 256), (5, 129)):  # what was traced, and what it then serves
        tensors = sample(spec, device, lead=lead, size=size)
        if not same(graph(tensors), call(tensors)):
            return "under torch.compile(dynamic=True) the result differs" + " at another size" * (lead == 5)
    if spec.gradient is None:
        return None
    leaves = {n: t.detach().requires_grad_() for n, t in spec.differentiable(tensors).items()}
    with torch.enable_grad():
        if not same(fresh_graph(False)({**tensors, **leaves}), call(tensors)):
            return "under torch.compile the result differs where a gradient is wanted"
    return None


def _numbers(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {n: t for n, t in tensors.items() if t is not None and t.is_floating_point()}


def autograd_runs(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Backward of a public op reaches every input, finite and of its dtype; each alone too, and from an
    upstream gradient of stride 0 or transposed in memory."""
    if spec.gradient is None:
        raise NotApplicable("the op has no gradient")

    def check(row: Types) -> str | None:
        tensors = sample(spec, device, types=row)
        with torch.enable_grad():
            leaves = {n: t.requires_grad_() for n, t in spec.differentiable(tensors).items()}
            outputs = call({**tensors, **leaves})
            sum(o.float().square().sum() for o in outputs).backward()  # type: ignore[union-attr]
        for name, leaf in leaves.items():
            if leaf.grad is None or leaf.grad.dtype != leaf.dtype or not leaf.grad.isfinite().all():
                return f"the gradient of {name} is missing, of another dtype or not finite"
        if spec.boundary and device.type == "cpu":  # attention's: 5 s of an emulated GPU's smoke tier
            return None
        return _parts_of_gradients(call, spec, device, row)

    return in_types(spec, check, both=False)


def _parts_of_gradients(call: Call, spec: Spec, device: torch.device, row: Types) -> str | None:
    tensors = sample(spec, device, lead=1 if of_problems(spec) else 5, size=48, types=row)
    names = list(spec.differentiable(tensors))
    ones = [torch.ones_like(each) for each in call(tensors)]

    def gradients(wanted: list[str], upstream: list[torch.Tensor]) -> list[torch.Tensor | None]:
        leaves = {name: tensors[name].detach().requires_grad_() for name in wanted}
        with torch.enable_grad():
            outputs = call({**tensors, **leaves})
            return list(torch.autograd.grad(outputs, list(leaves.values()), upstream, allow_unused=True))

    def alike(one: list[torch.Tensor | None], two: list[torch.Tensor | None]) -> bool:
        return all(map(near, one, two))

    together = gradients(names, [each * 0.5 for each in ones])
    for name, expected in zip(names, together, strict=True):
        if not alike(gradients([name], [each * 0.5 for each in ones]), [expected]):
            return f"the gradient of {name} alone is not that beside the others'"
    expanded = [each.new_tensor(0.5).expand(each.shape) for each in ones]
    if not alike(gradients(names, expanded), together):
        return "the gradient differs where the upstream one has stride 0, as that of sum()"
    uneven = [each * torch.linspace(0.5, 2, each.shape[-1], device=device).to(each.dtype) for each in ones]
    turned = [each.mT.contiguous().mT if each.dim() > 1 else each for each in uneven]
    if not alike(gradients(names, turned), gradients(names, uneven)):
        return "the gradient differs where the upstream one is transposed in memory"
    return None


def fresh(call: Call, spec: Spec, device: torch.device) -> str | None:
    """A call reads its inputs as they are now, and a later call leaves an earlier result alone."""

    def check(row: Types) -> str | None:
        first, second = (sample(spec, device, lead=5, size=48, seed=seed, types=row) for seed in (0, 1))
        expected = call(second)
        kept = call(first)
        copies = tuple(each.clone() for each in kept)
        for name, tensor in first.items():
            if tensor is not None:
                tensor.copy_(second[name])
        if not same(call(first), expected):
            return "inputs that were changed in place give another result than new ones"
        return None if same(kept, copies) else "a later call changed an earlier result"

    return in_types(spec, check, both=False)


def shared_inputs(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Inputs that alias, as halves of one tensor or the same tensor, give what tensors of their own give."""

    def check(row: Types) -> str | None:
        tensors = sample(spec, device, lead=5, size=48, types=row)
        drawn = {n: t for n, t in _numbers(tensors).items() if not spec.inputs[n].derived and t.dim() > 1}
        pairs = [
            (one, two) for one in drawn for two in drawn
            if one < two and drawn[one].shape == drawn[two].shape and drawn[one].dtype == drawn[two].dtype
        ]  # fmt: skip
        if not pairs:
            raise NotApplicable("shared_inputs: no two inputs of the op have one shape and dtype")
        for one, two in pairs:
            whole = torch.cat([drawn[one], drawn[two]], -1)
            halves = dict(zip((one, two), whole.chunk(2, -1), strict=True))
            own = {name: whole.clone().chunk(2, -1)[place] for place, name in enumerate((one, two))}
            if not same(call({**tensors, **halves}), call({**tensors, **own})):
                return f"{one} and {two} as halves of one tensor give another result"
            twin = {one: drawn[one], two: drawn[one].clone()}
            if not same(call({**tensors, **twin, two: drawn[one]}), call({**tensors, **twin})):
                return f"one tensor as {one} and as {two} gives another result than two equal ones"
        return None

    return in_types(spec, check, both=False)


def vmap(call: Call, spec: Spec, device: torch.device) -> str | None:
    """torch.func.vmap over two samples gives what two calls give."""
    if spec.gradient is None:
        raise NotApplicable("the op has no derivative and no vmap")

    def check(row: Types) -> str | None:
        several = [sample(spec, device, lead=3, size=40, seed=seed, types=row) for seed in (0, 1)]
        numbers = list(_numbers(several[0]))
        names = [n for n in numbers if spec.inputs[n].leading] or numbers  # a table alone has none
        stacked = [torch.stack([each[name] for each in several]) for name in names]
        rest = {n: t for n, t in several[0].items() if n not in names}

        def one(*own: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return call({**rest, **dict(zip(names, own, strict=True))})

        got = torch.func.vmap(one)(*stacked)
        for place, each in enumerate(several):
            wanted = call({**rest, **{name: each[name] for name in names}})
            if not all(near(batch[place], alone) for batch, alone in zip(got, wanted, strict=True)):
                return "under vmap the result differs"
        return None

    return in_types(spec, check, both=False)


AUTOCAST = {"lower": ("float32", "bfloat16"), "float32": ("bfloat16", "float32")}
"""By what a spec says of autocast: the type of the inputs, and the one that the op computes in."""


def autocast(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Under torch.autocast to bfloat16 the op computes in the type that the guide names."""
    if spec.autocast not in AUTOCAST:
        raise NotApplicable("autocast chooses none of two types for the op")
    given, wanted = (
        next(row for row in spec.types if row[spec.type_variables[0]] == dtype)
        for dtype in AUTOCAST[spec.autocast]
    )
    tensors = sample(spec, device, lead=3, size=40, types=given)
    dtypes = {name: wanted.get(field.dtype, field.dtype) for name, field in spec.inputs.items()}
    cast = {name: t.to(getattr(torch, dtypes[name])) for name, t in _numbers(tensors).items()}
    expected = call({**tensors, **cast})
    with torch.autocast(device.type, torch.bfloat16):
        got = call(tensors)
    pairs = list(zip(got, expected, strict=True))
    if all(one.dtype == two.dtype and torch.equal(one, two) for one, two in pairs):
        return None
    return f"under autocast it does not give what inputs of {dtypes[next(iter(cast))]} give"
