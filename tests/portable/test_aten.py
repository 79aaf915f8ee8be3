"""`portable.aten()`: torch's operators on this package's kernels."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.dispatch import aten as overrides


def step(x, weight, bias):
    """One of torch's models: values and gradients."""
    leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
    h = F.gelu(F.linear(leaves[0], leaves[1], leaves[2]), approximate="tanh")
    y = torch.softmax(F.silu(h @ leaves[1]), -1)
    loss = -torch.log_softmax(y, 0).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in ((6, 16), (16, 16), (16,))]


def test_a_model_and_its_gradient_run_our_ops(tensors):
    expected = step(*tensors)
    with portable.aten() as found:
        got = step(*tensors)
    torch.testing.assert_close(got, expected)
    assert not found.declined and all(found.taken[name] for name in (
        "addmm", "mm", "gelu", "gelu_backward", "silu", "silu_backward", "_softmax", "_softmax_backward_data",
        "_log_softmax", "_log_softmax_backward_data"))  # fmt: skip
    before = found.taken.total()
    step(*tensors)
    assert found.taken.total() == before  # torch's own again
    assert "mm: " in str(found) and "not called: " in str(found) and "bmm" in str(found)


def test_the_results_are_our_ops_bit_for_bit(tensors):
    x, weight, bias = (each.bfloat16() for each in tensors)
    with portable.aten(["addmm", "_softmax", "bmm"]):
        got = torch.addmm(bias, x, weight), x.softmax(0), torch.bmm(x[None], weight[None])
    ours = portable.linear(x, weight.mT, bias), portable.softmax(x, 0), portable.matmul(x[None], weight[None])
    assert all(map(torch.equal, got, ours))


def test_norms_without_a_gradient(tensors):
    x, _, weight = tensors
    with portable.aten() as found, torch.no_grad():
        y = torch.ops.aten._fused_rms_norm(x, [16], weight, 1e-5)[0]
        z = F.layer_norm(x, (16,), weight, weight)
        torch.ops.aten._fused_rms_norm(x, [6, 16], None, 1e-5)
    assert torch.equal(y, portable.rms_norm(x, weight, eps=1e-5)) and found.taken["native_layer_norm"] == 1
    torch.testing.assert_close(z, F.layer_norm(x, (16,), weight, weight))
    assert found.declined["_fused_rms_norm"] == {"the norm is over several dimensions": 1}
    with portable.aten() as found:
        leaf = x.clone().requires_grad_()
        F.layer_norm(leaf, (16,), weight, weight).sum().backward()
    assert leaf.grad is not None and found.taken["native_layer_norm"] == 0
    assert "a gradient is recorded" in str(found)


def test_what_our_ops_do_not_take_is_torch_s_and_said(tensors):
    x, weight, bias = tensors
    whole = torch.arange(6).view(2, 3)
    with portable.aten() as found:
        assert torch.equal(torch.mm(whole, whole.mT), torch.tensor([[5, 14], [14, 50]]))
        torch.testing.assert_close(torch.addmm(bias, x, weight, beta=0.5), 0.5 * bias + x @ weight)
        torch.addmm(torch.ones(6, 1), x, weight)
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            torch.mm(x, x)  # torch's own words
    assert found.declined["addmm"] == {
        "beta or alpha is not 1": 1, "what is added is no bias, a value for each column": 1}  # fmt: skip
    reasons = list(found.declined["mm"])
    assert len(reasons) == 2 and "int64" in reasons[0] and found.taken["mm"] == 1  # of the check itself
    assert "mm: 1 taken, 2 left to torch" in str(found)


def test_a_kernel_s_fault_is_not_hidden(tensors, monkeypatch):
    def broken(*_):
        raise errors.LaunchError("matmul", "triton", "the GPU is gone")

    monkeypatch.setattr(overrides, "operators", lambda: {"mm": overrides.Override(broken)})
    with portable.aten(["mm"]), pytest.raises(errors.LaunchError, match="the GPU is gone"):
        torch.mm(tensors[0], tensors[1])
    torch.mm(tensors[0], tensors[1])


def test_it_holds_for_all_threads_and_blocks_do_not_nest(tensors):
    with portable.aten() as found:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.mm, tensors[0], tensors[1]).result()
        assert found.taken["mm"] == 1
        with pytest.raises(errors.PortableError, match="blocks do not nest"), portable.aten():
            pass
    with portable.aten():  # and again
        pass


def test_an_unknown_operator_is_named():
    with (
        pytest.raises(errors.ArgumentError, match=r"sofmax; expected operators.*Did you mean '_softmax'\?"),
        portable.aten(["sofmax"]),
    ):
        pass


def test_a_block_that_raises_gives_torch_back(tensors):
    with pytest.raises(ZeroDivisionError), portable.aten() as found:
        raise ZeroDivisionError
    torch.mm(tensors[0], tensors[1])
    assert not found.taken


@pytest.mark.parametrize("name", overrides.operators())
def test_every_operator_takes_torch_s_arguments(name):
    """In torch's order and by torch's names, with its defaults."""
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    parameters = inspect.signature(overrides.operators()[name].function).parameters.values()
    assert [each.name for each in parameters] == [each.name for each in schema.arguments]
    wanted = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    assert {each.name: each.default for each in parameters if each.default is not each.empty} == wanted
