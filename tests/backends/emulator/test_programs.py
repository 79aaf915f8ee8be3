"""`portable.emulated`: code that was written for a GPU, `device="cuda"` and all, on an emulated one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

import portable
from portable.backends.rocm.emulator.faults import EmulatorError, KernelFault
from portable.errors import BackendError, LaunchError

jit: Any = triton.jit


@jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask) + tl.load(y_ptr + offsets, mask), mask)


@jit
def product(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    """One tile of 16 x 16, its operands' BLOCK columns and rows in LDS."""
    few, many = tl.arange(0, 16), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + few[:, None] * BLOCK + many)
    y = tl.load(y_ptr + many[:, None] * 16 + few)
    tl.store(out_ptr + few[:, None] * 16 + few, tl.dot(x, y))


@jit
def count(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.load(out_ptr) + BLOCK)


@jit
def beyond(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))  # the faulty line


@jit
def of_tuple(pair, out_ptr, scale, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, (tl.load(pair[0] + offsets) + tl.load(pair[1] + offsets)) * scale)


@jit
def of_descriptor(desc, out_ptr, i, M: tl.constexpr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N), desc.load([i * M, 8]))


@jit
def through_descriptor(source, target, M: tl.constexpr, N: tl.constexpr):
    target.store([0, 0], source.load([0, 0]) + 1.0)


@jit
def of_table(table_ptr, out_ptr, BLOCK: tl.constexpr):
    x_ptr = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0) * BLOCK + offsets, tl.load(x_ptr + offsets))


class Scaled(torch.autograd.Function):
    """A library's function, which asks for GPU tensors in both directions."""

    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda and x.device.type == "cuda"
        out = torch.empty(x.shape, device="cuda")
        add[(1,)](x, x, out, x.numel(), BLOCK=64)
        return out

    @staticmethod
    def backward(ctx, grad):
        assert grad.is_cuda
        out = torch.empty(grad.shape, device=grad.device)
        add[(1,)](grad.contiguous(), grad.contiguous(), out, grad.numel(), BLOCK=64)
        return out


# Results -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_a_program_for_a_gpu(arch):
    with portable.emulated(arch) as run:
        x = torch.randn(1000, device="cuda")
        y = torch.randn(1000).to("cuda:0")
        out = torch.empty_like(x)
        with torch.cuda.device(x.device), torch.cuda.stream(torch.cuda.Stream()):
            add[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, out, 1000, BLOCK=128)
        torch.cuda.synchronize()
        assert out.is_cuda and torch.equal(out, x + y)
        assert torch.equal(out.cpu(), x.cpu() + y.cpu())
        assert triton.runtime.driver.active.get_active_torch_device() == x.device
    assert run.launches == {"add": 1} and arch in run.header and "not on a GPU" in run.header
    assert "exact" in run.fidelity() and run.findings == []


def test_a_library_with_a_gradient():
    with portable.emulated("gfx942") as run:
        x = torch.randn(50, device="cuda", requires_grad=True)
        Scaled.apply(x).sum().backward()
        assert x.grad is not None and x.grad.is_cuda
        assert torch.equal(x.grad, torch.full((50,), 2.0, device="cuda"))
    assert run.launches == {"add": 2}


def test_what_torch_says_of_the_gpu():
    with portable.emulated("gfx1100"):
        found = torch.cuda.get_device_properties(0)
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_capability() == (11, 0)
        assert (found.gcnArchName, found.multi_processor_count, found.warp_size) == ("gfx1100", 96, 32)
        assert torch.version.hip and torch.version.cuda is None
        assert "emulated" in torch.cuda.get_device_name()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        with pytest.raises(EmulatorError, match="No timings"):
            event.elapsed_time(torch.cuda.Event())
        with pytest.raises(EmulatorError, match="the one emulated GPU is cuda:0"):
            torch.empty(3, device="cuda:1")
        source = torch.Generator(device="cuda")
        assert isinstance(source, torch.Generator)
        assert torch.randn(3, device="cuda", generator=source).is_cuda


@pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning")
def test_autocast():
    """The dtypes of a GPU's autocast, not of the CPU's. The host's tensors are not cast."""
    with portable.emulated("gfx942"):
        x, weight = torch.randn(4, 8, device="cuda"), torch.randn(8, 8, device="cuda", requires_grad=True)
        host = torch.randn(4, 8)
        for dtype in (torch.float16, torch.bfloat16):
            with torch.autocast("cuda", dtype):
                assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == dtype
                product = x @ weight
                assert product.dtype == torch.nn.functional.linear(x, weight).dtype == dtype
                assert torch.equal(product, x.to(dtype) @ weight.to(dtype))
                assert torch.relu(product).dtype == dtype
                for wide in (
                    product.softmax(-1),
                    product.sum(),
                    torch.nn.functional.layer_norm(product, [8]),
                ):
                    assert wide.dtype == torch.float32
                assert (host @ host.T).dtype == torch.float32 and (host @ host.T).device.type == "cpu"
                with torch.autocast("cuda", enabled=False):
                    assert (x @ weight).dtype == torch.float32
                assert (x @ weight).dtype == dtype
                product.sum().backward()
            assert weight.grad is not None and weight.grad.dtype == torch.float32
            assert (x @ weight).dtype == torch.float32
        with torch.cuda.amp.autocast():
            assert (x @ weight).dtype == torch.float16
    assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")


def test_what_is_compiled_runs_as_it_is():
    with portable.emulated("gfx942"):

        @torch.compile(dynamic=True)
        def double(x):
            assert x.is_cuda
            return 2 * x

        x, layer = torch.randn(3, device="cuda"), torch.nn.Linear(3, 3, device="cuda")
        layer.compile()
        assert torch.equal(double(x), x + x) and torch.equal(torch.compile(layer)(x), layer(x))


def test_our_own_ops_run_there_too():
    """They went to the CPU's torch, without a word."""
    before = portable.device()
    with portable.emulated("gfx942"):
        x = torch.randn(4, 64, device="cuda")
        assert str(portable.device()) == "emulated gfx942"
        choice = portable.explain("softmax", x).choice
        assert choice is not None and choice.implementation.kind != "run"
        y = portable.softmax(x)
        torch.testing.assert_close(y, torch.softmax(x, -1))
        assert y.is_cuda
    assert portable.device() == before


def test_timing_is_refused():
    with portable.emulated("gfx942"), pytest.raises(EmulatorError, match="No timings"):
        triton.testing.do_bench(lambda: None)


def test_a_generator_counts_as_a_gpu_does():
    """16 bytes of seed and offset, from which libraries take the seeds of their kernels."""
    with portable.emulated("gfx942"):
        torch.manual_seed(5)
        (default,) = torch.cuda.default_generators
        own = torch.Generator(device="cuda").manual_seed(7)
        assert torch.rand(2, device="cuda", generator=default).is_cuda
        for generator, seed in ((default, 5), (own, 7)):
            assert isinstance(generator, torch.Generator) and generator.initial_seed() == seed
            state = generator.get_state()
            assert state.numel() == 16 and state.view(torch.int64)[0] == seed
            first = torch.rand(3, device="cuda", generator=generator)
            assert generator.get_state().view(torch.int64)[1] > state.view(torch.int64)[1]
            generator.set_state(state)
            assert torch.equal(torch.rand(3, device="cuda", generator=generator), first)
            moved = state.clone()
            moved.view(torch.int64)[1] += 8
            generator.set_state(moved)
            assert torch.equal(generator.get_state(), moved)
            assert not torch.equal(torch.rand(3, device="cuda", generator=generator), first)
            with pytest.raises(RuntimeError, match="expected 16 bytes"):
                generator.set_state(torch.zeros(8, dtype=torch.uint8))
        state = torch.cuda.get_rng_state()
        first = torch.rand(3, device="cuda")
        torch.cuda.set_rng_state(state)
        assert torch.equal(torch.rand(3, device="cuda"), first)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
def test_kernels_that_a_library_registers():
    """What is registered for "CUDA" is the emulated GPU's; the host's tensors have torch's own kernels."""

    def sum_of(x, y):  # in place of torch.hypot
        assert x.is_cuda and torch.empty(1, device=x.device).is_cuda
        out = torch.empty_like(x)
        add[(1,)](x, y, out, x.numel(), BLOCK=64)
        return out

    with portable.emulated("gfx942") as run:
        library = torch.library.Library("aten", "IMPL")
        library.impl("hypot", sum_of, "CUDA")
        library.impl("sub_.Tensor", sum_of, "CUDA")
        library.impl("eye", lambda n, **_: torch.full((n,), 3.0, device="cuda"), "CUDA")
        x, host = torch.randn(50, device="cuda", requires_grad=True), torch.full((50,), 3.0)
        try:
            found = torch.hypot(x, x)
            assert torch.equal(found, x + x) and run.launches == {"add": 1}
            found.sum().backward()
            assert x.grad is not None and x.grad.is_cuda
            assert not torch.hypot(host, host).is_cuda and torch.hypot(host, host)[0] != 6
            assert torch.eye(2).tolist() == [[1, 0], [0, 1]]
            assert torch.eye(2, device="cuda").tolist() == [3, 3]
            assert torch.hypot(host, torch.tensor(4.0))[0] == 5 and host.sub_(1)[0] == 2
            assert torch.ops.aten._to_copy.default.redispatch(
                torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd), x, device=x.device
            ).is_cuda
            assert run.launches == {"add": 1}
        finally:
            library._destroy()
        assert torch.hypot(x, x)[0] != found[0] and run.launches == {"add": 1}

        @torch.library.custom_op("portable_test::twice", mutates_args=(), device_types="cuda")
        def twice(x: torch.Tensor) -> torch.Tensor:
            return sum_of(x, x)

        assert twice(x.detach()).is_cuda and run.launches == {"add": 2}


def test_what_the_cpu_has_not_in_16_bits():
    with portable.emulated("gfx942"):
        x = torch.randn(1, 1, 5, 5, device="cuda").half()
        found = torch.ops.aten._upsample_bicubic2d_aa_backward(x, [5, 5], [1, 1, 3, 3], False, None, None)
        wide = torch.ops.aten._upsample_bicubic2d_aa_backward(
            x.float(), [5, 5], [1, 1, 3, 3], False, None, None
        )
        assert found.is_cuda and torch.equal(found, wide.half())


# Two sides -------------------------------------------------------------------------------------------


def test_the_host_and_the_gpu_are_apart():
    """As with a GPU: a copy does not see what is written to its source later."""
    with portable.emulated("gfx942"):
        host = torch.zeros(4)
        gpu = host.cuda()
        gpu += 1
        back = gpu.cpu()
        gpu += 1
        assert (host.tolist(), back.tolist(), gpu.tolist()) == ([0] * 4, [1] * 4, [2] * 4)
        assert gpu.cuda() is gpu and gpu.to("cuda") is gpu and host.cpu() is host
        assert torch.as_tensor(host, device="cuda").data_ptr() != host.data_ptr()


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: torch.ones(3), "cpu"),
        (lambda: torch.tensor([1.0]), "cpu"),
        (lambda: torch.ones(3, device="cpu")[1:] * 2, "cpu"),
        (lambda: torch.ones(3, device="cuda")[1:] * 2, "cuda"),
        (lambda: torch.ones(3, device=0), "cuda"),
        (lambda: torch.ones(3).to(torch.ones(1, device="cuda")), "cuda"),
        (lambda: torch.ones(3).to(device="cuda", dtype=torch.float16), "cuda"),
        (lambda: torch.ones(3, device="cuda").to("cpu", torch.float16), "cpu"),
        (lambda: torch.ones(3, device="cuda").to(torch.float16), "cuda"),
        (lambda: torch.ones(3).half(), "cpu"),
        (lambda: torch.ones_like(torch.ones(3), device="cuda"), "cuda"),
        (lambda: torch.ones(3, device="cuda").new_empty(3), "cuda"),
        (lambda: torch.ones(3, pin_memory=True), "cpu"),
        (lambda: torch.ones(3).pin_memory(), "cpu"),
        (lambda: torch.nn.Linear(3, 4, device="cuda").weight, "cuda"),
        (lambda: torch.nn.Linear(3, 4).cuda().weight, "cuda"),
        (lambda: torch.ones(3, device="meta"), "meta"),
    ],
)
def test_where_a_tensor_is(make, where):
    with portable.emulated("gfx942"):
        found = make()
        assert found.device.type == where and found.is_cuda == (where == "cuda")
        assert found.get_device() == (0 if where == "cuda" else -1)


def test_a_default_device():
    with portable.emulated("gfx942"):
        with torch.device("cuda"):
            assert torch.ones(3).is_cuda
        torch.set_default_device("cuda")
        try:
            assert torch.ones(3).is_cuda and not torch.ones(3, device="cpu").is_cuda
        finally:
            torch.set_default_device(None)
        assert not torch.ones(3).is_cuda


def test_everything_is_put_back():
    def state():
        names = [name for name in dir(torch.cuda) if not name.startswith("__")]
        found = {name: getattr(torch.cuda, name) for name in names}
        own = triton.runtime.autotuner.Autotuner.__dict__
        active: Any = triton.runtime.driver
        others = (torch.version.hip, torch.version.cuda, torch.Generator, active._active, dict(own))
        return found, others, torch.overrides._get_current_function_mode_stack()

    before = state()
    with portable.emulated("gfx942"):
        with portable.emulated("gfx1100"):
            assert torch.cuda.get_device_capability() == (11, 0) and torch.ones(1, device="cuda").is_cuda
        assert torch.cuda.get_device_capability() == (9, 4) and torch.ones(1, device="cuda").is_cuda
        assert not torch.ones(1).is_cuda
    assert state() == before
    with pytest.raises(ZeroDivisionError), portable.emulated("gfx942"):
        raise ZeroDivisionError
    assert state() == before
    assert torch.ones(1).device == torch.device("cpu")


# Autotuners ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_autotuner_takes_the_first_config_that_fits():
    """16 x 4096 of 16 bits do not fit gfx942's LDS; no config after the one taken is compiled."""
    sizes, compiled = [4096, 32, 16], []
    configs = [triton.Config({"BLOCK": size}, num_warps=8) for size in sizes]
    tuned = triton.autotune(configs, key=[])(product)
    with portable.emulated("gfx942") as run, knobs.runtime.scope():
        knobs.runtime.jit_post_compile_hook = lambda **facts: compiled.append(facts["compile"]["constants"])
        x, y = (torch.randn(size, device="cuda").half() for size in (16 * 32, 32 * 16))
        out = torch.empty(16, 16, device="cuda")
        tuned[(1,)](x, y, out)
        want = x.view(16, 32).double() @ y.view(32, 16).double()
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    assert run.tuned == {"product": 1} and run.launches == {"product": 1}
    assert [list(each.values()) for each in compiled] == [[4096], [32]]
    assert tuned.cache == {}  # a GPU's own choice is not affected


def test_an_autotuner_with_a_result_that_adds_up_runs_once():
    tuned = triton.autotune([triton.Config({"BLOCK": size}) for size in (1, 2)], key=[])(count)
    with portable.emulated("gfx942"):
        out = torch.zeros(1, device="cuda")
        tuned[(1,)](out)
        tuned[(1,)](out)
        assert out.item() == 2


# Findings --------------------------------------------------------------------------------------------


def test_a_storage_may_be_accessed_and_nothing_else():
    with portable.emulated("gfx942") as run:
        padded, out = torch.randn(128, device="cuda"), torch.empty(128, device="cuda")
        beyond[(1,)](padded[:100], out, BLOCK=128)
        assert torch.equal(out, padded)
        with pytest.raises(KernelFault, match="out-of-bounds"):
            beyond[(1,)](torch.randn(100, device="cuda"), out, BLOCK=128)
    (found,) = run.findings
    assert (found.kind, found.kernel) == ("out-of-bounds", "beyond")
    assert found.file == __file__ and found.line is not None
    assert "the faulty line" in Path(__file__).read_text().splitlines()[found.line - 1]
    with portable.emulated("gfx942", extents="view"), pytest.raises(KernelFault, match="out-of-bounds"):
        beyond[(1,)](padded[:100], out, BLOCK=128)


def test_mistakes_in_the_call():
    with pytest.raises(
        BackendError, match=r"'gfx943' names no GPU that can be emulated.*Did you mean 'gfx942'"
    ):
        portable.emulated("gfx943").__enter__()
    with pytest.raises(BackendError, match="extents='all': expected one of storage, view"):
        portable.emulated("gfx942", extents="all").__enter__()


# Arguments -------------------------------------------------------------------------------------------


def test_a_tuple():
    with portable.emulated("gfx942"):
        x, y, out = (torch.randn(64, device="cuda") for _ in range(3))
        of_tuple[(1,)]((x, y), out, 2.0, BLOCK=64)
        assert torch.equal(out, (x + y) * 2)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_a_host_tensor_descriptor(arch):
    with portable.emulated(arch):
        x, out = torch.randn(40, 52, device="cuda"), torch.empty(16, 16, device="cuda")
        of_descriptor[(1,)](TensorDescriptor(x, [40, 52], [52, 1], [16, 16]), out, 1, M=16, N=16)
        assert torch.equal(out, x[16:32, 8:24])
        # Rows and columns beyond its shape are zero, and not written.
        edge = TensorDescriptor(x[:, :10], [12, 10], [52, 1], [16, 16])
        through_descriptor[(1,)](edge, TensorDescriptor(out, [16, 16], [16, 1], [16, 16]), M=16, N=16)
        want = torch.ones(16, 16, device="cuda")
        want[:12, :10] += x[:12, :10]
        assert torch.equal(out, want)


def test_an_object_with_an_address():
    class Wrapped:
        """What a library hands to Triton: an address and a dtype; its tensor may be anywhere."""

        def __init__(self, tensor):
            self._address, self.dtype = tensor.data_ptr(), tensor.dtype

        def data_ptr(self):
            return self._address

    with portable.emulated("gfx942"):
        x, out = torch.randn(128, device="cuda"), torch.empty(64, device="cuda")
        beyond[(1,)](Wrapped(x[64:]), out, BLOCK=64)
        assert torch.equal(out, x[64:])


def test_a_table_of_addresses():
    with portable.emulated("gfx942"):
        xs, out = [torch.randn(64, device="cuda") for _ in range(3)], torch.empty(3, 64, device="cuda")
        table = torch.tensor([x.data_ptr() for x in xs], device="cuda")
        of_table[(3,)](table, out, BLOCK=64)
        assert torch.equal(out, torch.stack(xs))


def test_a_wrong_number_of_arguments_is_a_sentence():
    with portable.emulated("gfx942"):
        x = torch.zeros(64, device="cuda")
        compiled = beyond[(1,)](x, x, BLOCK=64)
        with pytest.raises(LaunchError, match=r"was given 1 arguments, expected 3 \(x_ptr, out_ptr, BLOCK\)"):
            compiled[(1, 1, 1)](x)
        compiled[(1, 1, 1)](x, x)  # Triton's drivers take no constant
