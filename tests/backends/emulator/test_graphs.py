"""`torch.cuda.CUDAGraph` on an emulated GPU: nothing runs while it is captured, everything when it is
replayed, on the same memory; what needs a result at once is refused by a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import portable
from portable.backends.rocm.emulator.faults import EmulatorError, KernelFault

jit: Any = triton.jit


@pytest.fixture(autouse=True)
def run():
    with portable.emulated("gfx942") as found:
        yield found


@jit
def scale(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, at < n) * factor, at < n)


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), factor, BLOCK=64)
    return out


def ones(n: int = 100) -> torch.Tensor:
    return torch.ones(n, device="cuda")


def test_launches_and_operators_run_when_it_is_replayed(run):
    """`torch.cuda.CUDAGraph()` was refused."""
    x, total = ones(), torch.zeros(1, device="cuda")
    scaled(x, 3.0)  # compiled before
    before = sum(run.launches.values())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = scaled(x, 3.0)
        z = (y + 1).reshape(10, 10).t()
        total += z.sum()
        a, b = torch.split(z.contiguous(), 5)
        last = torch.cat([b, a]) * torch.full((10,), 2.0, device="cuda")
    assert not torch.cuda.is_current_stream_capturing()
    assert total.item() == 0 and sum(run.launches.values()) == before, "something ran"
    addresses = [each.data_ptr() for each in (y, z, last)]
    graph.replay()
    assert torch.equal(y, 3 * x) and total.item() == 400 and torch.equal(last, torch.full_like(last, 8))
    x.fill_(2)
    graph.replay()
    graph.replay()
    assert torch.equal(y, 3 * x) and total.item() == 400 + 2 * 700 and z.is_cuda
    assert torch.equal(last, torch.full_like(last, 14))
    assert addresses == [each.data_ptr() for each in (y, z, last)]
    assert sum(run.launches.values()) == before + 3


def test_a_kernels_fault_is_the_replays(run):
    x, out = ones(100), torch.empty(99, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale[(2,)](x, out, 100, 2.0, BLOCK=64)
    assert run.findings == []
    with pytest.raises(KernelFault, match="out-of-bounds"):
        graph.replay()
    assert [each.kind for each in run.findings] == ["out-of-bounds"]


def test_a_training_step_is_captured_whole():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).cuda()
    again = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).cuda()
    again.load_state_dict(model.state_dict())
    x, target = torch.randn(5, 8, device="cuda"), torch.randn(5, 4, device="cuda")
    captured, eager = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, again))

    def step(model: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(model, captured)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(loss, step(again, eager))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_random_numbers_go_on_from_replay_to_replay():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x = torch.rand(50, device="cuda")
    graph.replay()
    first = x.clone()
    graph.replay()
    assert not torch.equal(first, x) and 0 <= x.min() <= x.max() < 1


def test_sixteen_bits_and_autocast():
    x, w = torch.randn(6, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.autocast("cuda", torch.bfloat16):
        y = torch.softmax(x @ w, -1)
    graph.replay()
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(y, torch.softmax(x @ w, -1))


REFUSED: list[tuple[str, Any]] = [
    ("A tensor's value is read", lambda x: x.sum().item()),
    ("A tensor's value is read", lambda x: x.tolist()),
    ("A tensor's value is read", lambda x: bool(x.sum())),
    ("The GPU's memory is copied to the host's", lambda x: x.cpu()),
    ("The GPU's memory is copied to the host's", lambda x: torch.empty(100).copy_(x)),
    ("The program synchronizes", lambda x: torch.cuda.synchronize()),
    ("nonzero, whose result's shape depends on values", lambda x: x.nonzero()),
]


@pytest.mark.parametrize(("sentence", "what"), REFUSED, ids=range(len(REFUSED)))
def test_what_waits_for_the_gpu_is_refused(sentence, what):
    x = ones()
    graph = torch.cuda.CUDAGraph()
    said = f"{sentence}.* while a graph is captured: it waits for the GPU"
    with pytest.raises(EmulatorError, match=said), torch.cuda.graph(graph):
        what(x)
    assert not torch.cuda.is_current_stream_capturing()
    assert x.sum().item() == 100
    with pytest.raises(EmulatorError, match="a graph that was not captured"):
        graph.replay()


def test_begin_end_reset_and_mistakes():
    x, graph = ones(), torch.cuda.CUDAGraph()
    assert isinstance(graph, torch.cuda.CUDAGraph)
    graph.capture_begin(pool=torch.cuda.graph_pool_handle())
    x.mul_(2)
    with pytest.raises(EmulatorError, match="A graph is captured already"):
        torch.cuda.CUDAGraph().capture_begin()
    graph.capture_end()
    assert x.sum() == 100
    graph.replay()
    assert x.sum() == 200
    with pytest.raises(EmulatorError, match="captured already"):
        graph.capture_begin()
    graph.reset()
    with pytest.raises(EmulatorError, match="was not captured"):
        graph.replay()
    with pytest.raises(EmulatorError, match="not being captured"):
        graph.capture_end()


def test_ops_of_this_package_are_captured(run):
    x = torch.randn(4, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = portable.softmax(x)
    x.copy_(torch.randn(4, 64, device="cuda"))
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, -1))


def test_the_hosts_tensors_are_computed_at_once():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        host = torch.arange(4) + 1
        assert host.tolist() == [1, 2, 3, 4]
        y = ones(4) * 2
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]


def test_graphed_callables():
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 8).cuda()
    x = torch.randn(3, 8, device="cuda", requires_grad=True)
    want = model(x)
    graphed: Any = torch.cuda.make_graphed_callables(model, (torch.randn_like(x).requires_grad_(),))
    got = graphed(x)
    assert torch.equal(got, want)
    got.sum().backward()
    torch.testing.assert_close(model.weight.grad, x.detach().sum(0).expand(8, 8))
