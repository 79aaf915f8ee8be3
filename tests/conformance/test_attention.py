"""The bounds of attention: kernels that are right pass, in blocks of any size and order; its probes."""

from __future__ import annotations

import functools
import os

import pytest
import torch

from portable.conformance.cases.generate import cases, regressions
from portable.conformance.execute import behaviour, runner
from portable.conformance.judge import reference
from portable.spec import registry

from .mutants import hunt
from .mutants.flash import Flash, FlashBackward
from .mutants.registry import Mutant
from .mutants.varlen_paged import Paged, Varlen, VarlenBackward

CPU = torch.device("cpu")
EVERY = os.environ.get("PORTABLE_MUTANTS") == "all"


class Reversed(Flash):
    """Keys from the last to the first: q's mask turned with them."""

    def hidden(self, i, j, M, N, params):
        return super().hidden(i, N - 1 - j, M, N, params)

    def __call__(self, q, k, v, bias=None, *args, **params):
        return super().__call__(
            q, k.flip(-2), v.flip(-2), None if bias is None else bias.flip(-1), *args, **params
        )


class Slack(Flash):
    """Rescales only where the maximum has grown by 8 bits: weights reach 256."""

    def rounded(self, p, dtype):
        return super().rounded(p * 192, dtype) / 192


@functools.cache
def materialized_cases(op):
    """Every fifth case of the core tier, every fifteenth over sequences, with answers: materialized once."""
    spec = registry.spec(op)
    core = [case for case in cases(spec, "core") if not case.mode and "655" not in str(case.shape)]
    return [
        reference.materialize(case, spec)
        for case in core[
            :: 1 if EVERY else 15 if op.startswith(("attention_paged", "attention_varlen")) else 5
        ]
    ]


def judged(op, function):
    """The share of the bound that each case of the core tier needs, and what did not pass."""
    wrong, worst = [], 0.0
    for materialized in materialized_cases(op):
        given = dict.fromkeys(materialized.spec.inputs)
        given |= {name: made.tensor for name, made in materialized.inputs.items()}
        got = function(**given, **materialized.case.params)
        for (name, expected), tensor in zip(materialized.expected.items(), got, strict=True):
            verdict = expected.judge(tensor, materialized.biased_values)
            worst = max(worst, verdict.worst)
            if verdict.state != "Pass":
                wrong.append(f"{materialized.case.id} {name}: {verdict}")
    return worst, wrong


def with_blocks(kind, block):
    function = kind()
    function.block = block
    return function


@pytest.mark.parametrize(
    "function",
    [with_blocks(Flash, 16), with_blocks(Flash, 128), Reversed(), Slack()],
    ids=lambda f: type(f).__name__,
)
def test_right_forward_kernels_pass(function):
    worst, wrong = judged("attention", function)
    assert not wrong, "\n".join(wrong)
    assert worst < 0.9


@pytest.mark.slow
def test_right_backward_kernels_pass():
    worst, wrong = judged("attention_backward", FlashBackward())
    assert not wrong, "\n".join(wrong)
    assert worst < 1


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("attention_paged", Paged),
        ("attention_varlen", Varlen),
        ("attention_varlen_backward", VarlenBackward),
    ],
)
def test_right_kernels_over_pages_and_sequences_pass(op, kind):
    worst, wrong = judged(op, kind())
    assert not wrong, "\n".join(wrong)
    assert worst < 0.9


class LseAgain(FlashBackward):
    """Computes lse again, in 16 bits, as if there were no sinks; attention_backward's own cases have none."""

    def weights(self, scores, lse):
        again = torch.logsumexp(scores, -1, keepdim=True)
        return super().weights(scores, lse if self.dtype.itemsize > 2 else again)

    def __call__(self, do, q, *args, **params):
        self.dtype = q.dtype
        return super().__call__(do, q, *args, **params)


def test_a_gradient_that_forgets_the_sinks_is_rejected():
    spec = registry.spec("attention")
    (case,) = [case for case in regressions(spec) if case.mode == "grad"]
    materialized = reference.materialize(case, spec)
    right = hunt.right("attention_backward")
    for function, state in ((right, "Pass"), (LseAgain(), "Fail.value")):
        mutant = Mutant("attention_backward", "sinks forgotten", "torch", function)
        with hunt.in_place(mutant):
            assert runner.run_case(materialized, "torch", CPU).state == state


def test_derived_inputs_are_those_of_the_forward_pass():
    spec = registry.spec("attention_backward")
    made = behaviour.sample(spec, CPU, types=spec.types[0])
    o, lse = Flash()(made["q"].double(), made["k"].double(), made["v"].double(), made["bias"].double())
    torch.testing.assert_close(made["o"], o.bfloat16(), rtol=2**-7, atol=1e-5)
    torch.testing.assert_close(made["lse"], lse.float())
    for case in cases(spec, "smoke")[:4]:
        materialized = reference.materialize(case, spec)
        assert materialized.sha256 == reference.materialize(case, spec).sha256


def test_probes_catch_what_they_name():
    spec = registry.spec("attention")
    assert spec.probes is not None
    probes = registry.load_module(spec.probes).PROBES

    class NoMask(Flash):
        def hidden(self, i, j, M, N, params):
            return torch.zeros(len(i), j.shape[-1], dtype=torch.bool)

    class Blurred(Flash):
        def finish(self, o, total, top):
            return super().finish(o * 1.01, total, top)

    def failing(kind):
        def call(given):
            return kind()(**given)

        return {probe.__name__ for probe in probes if not probe(call, torch.bfloat16, CPU)}

    assert failing(Flash) == set()
    assert failing(NoMask) == {"no_key", "hidden_nan"}
    assert {"single_key", "one_hot_keys"} <= failing(Blurred)


def test_batches_are_judged_row_by_row_and_the_smallest_calls_are_there():
    spec = registry.spec("attention")
    shapes = [dict(each.axes) for each in spec.boundary]
    assert any(axes["N"] == 0 for axes in shapes) and any(axes["M"] == 0 for axes in shapes)
    assert any(axes["M"] > axes["N"] > 0 for axes in shapes) and any(
        axes["D"] != axes["E"] for axes in shapes
    )
    assert {axes["H"] // axes["G"] for axes in shapes} >= {1, 2, 4, 8}
    assert {1, 32, 64, 128, 256} <= {axes["D"] for axes in shapes}
