"""AdamW against torch's, in lists, tables and the optimizer; stochastic rounding."""

from __future__ import annotations

import copy
import ctypes
import math
from typing import Any

import pytest
import torch

import portable
from portable.dispatch import dispatcher
from portable.errors import (
    DeviceError,
    DtypeError,
    LaunchError,
    NotATensorError,
    ParameterError,
    ShapeError,
    SignatureError,
)
from portable.kernels._lib.philox import philox
from portable.kernels.adamw import api, tables
from portable.kernels.adamw.chunks import CHUNK

SETTINGS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
SHAPES = [(3, 5), (4097,), (), (0, 4), (2, 3, 4), (8192,)]


def lists(
    shapes: Any = SHAPES, dtype: Any = torch.float32, grad: Any = None, state: Any = None, step: Any = 3.0
) -> Any:
    """params, grads, exp_avgs, exp_avg_sqs and state_steps."""
    torch.manual_seed(0)
    grad, state = grad or dtype, state or dtype
    return [
        [torch.randn(shape).to(dtype) for shape in shapes],
        [torch.randn(shape).to(grad) for shape in shapes],
        [torch.randn(shape).to(state) / 8 for shape in shapes],
        [torch.rand(shape).to(state) for shape in shapes],
        [torch.full((), step + number) for number in range(len(shapes))],
    ]


def clones(given):
    return [[tensor.clone() for tensor in each] for each in given]


def same(one, two):
    return all(torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True))


# A step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_step_is_torchs(dtype, maximize):
    own = lists(dtype=dtype)
    wide = [[tensor.double() for tensor in each] for each in own]
    wide[4] = own[4]
    settings = {**SETTINGS, "maximize": maximize}
    portable.adamw(*own, **settings)
    scale = {name: torch.tensor(value) for name, value in (("grad_scale", 1.0), ("found_inf", 0.0))}
    fused: Any = torch._fused_adamw_  # pyright: ignore[reportPrivateImportUsage]
    fused(*wide[:4], [], wide[4], amsgrad=False, **settings, **scale)
    eps = torch.finfo(dtype).eps
    for got, expected in zip(own[:4], wide[:4], strict=True):
        for one, two in zip(got, expected, strict=True):
            torch.testing.assert_close(one.double(), two, rtol=eps, atol=eps / 8)


def test_moments_keep_the_digits_that_bfloat16_has_not():
    own = lists(dtype=torch.bfloat16, state=torch.float32)
    wide = [[tensor.float().clone() for tensor in each] for each in own]
    portable.adamw(*own, **SETTINGS)
    portable.adamw(*wide, **SETTINGS)
    assert same(own[2:4], wide[2:4])
    assert all(torch.equal(one, two.bfloat16()) for one, two in zip(own[0], wide[0], strict=True))


def test_parameters_may_have_any_strides():
    """Permuted tensors, tensors with gaps, gradients and moments of another order."""
    torch.manual_seed(0)
    gap = torch.randn(6, 10)[:, ::2]
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    params = [gap, last, last.clone(), torch.randn(4, 6).t()]
    grads = [torch.randn(each.shape) for each in params]
    moments = [torch.zeros(each.shape) for each in params], [torch.ones(each.shape) for each in params]
    moments[0][1] = torch.zeros_like(last)
    moments[1][1] = torch.ones_like(last)
    given = [params, grads, *moments, [torch.ones(())] * 4]
    dense = [[tensor.contiguous().clone() for tensor in each] for each in given]
    portable.adamw(*given, **SETTINGS)
    portable.adamw(*dense, **SETTINGS)
    assert same(given, dense) and params[1].is_contiguous(memory_format=torch.channels_last)


def test_one_step_and_a_learning_rate_on_the_device():
    own, other = lists(), lists()
    own[4] = other[4] = torch.tensor([7.0])
    portable.adamw(*own, **SETTINGS)
    portable.adamw(*other, **{**SETTINGS, "lr": torch.tensor(1e-2, dtype=torch.float64)})
    assert same(own[:4], other[:4])


def test_gradients_are_divided_and_an_overflow_writes_nothing():
    own, scaled = lists(), lists()
    scaled[1] = [tensor * 64 for tensor in scaled[1]]
    before = clones(scaled)
    portable.adamw(*scaled, **SETTINGS, grad_scale=torch.tensor(64.0), found_inf=torch.tensor(1.0))
    assert same(scaled, before)
    portable.adamw(*scaled, **SETTINGS, grad_scale=torch.tensor(64.0), found_inf=torch.tensor(0.0))
    portable.adamw(*own, **SETTINGS)
    assert same([scaled[0], *scaled[2:]], [own[0], *own[2:]])
    assert same(scaled[1:2], before[1:2])  # torch's would have divided them


def test_what_is_written_is_noticed_by_autograd():
    own = lists([(4,), (5,)])
    leaf = torch.ones((), requires_grad=True)
    products = [(leaf * own[0][number]).sum() for number in range(2)]
    portable.adamw(*own, **SETTINGS)
    for product in products:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@pytest.mark.slow
def test_a_compiled_program_sees_the_step():
    own, other = lists([(4, 3), (300,)]), lists([(4, 3), (300,)])

    def program(params, *rest):
        before = params[0].sum()
        portable.adamw(params, *rest, **SETTINGS, stochastic_rounding=True)
        return before, params[0].sum()

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(torch.stack(program(*own)), torch.stack(compiled(*other)))
    assert same(own, other)


# Many tensors in one launch ----------------------------------------------------------------------


def at(base, offset, count):
    """Elements that are `offset` from the first of `base`, by their address."""
    if not count:
        return base[:0]
    memory = (ctypes.c_char * (count * base.element_size())).from_address(
        base.data_ptr() + offset * base.element_size()
    )
    return torch.frombuffer(memory, dtype=base.dtype)


class Launches:
    """In the place of the op of a table: what its kernels read and write, by addresses."""

    def __init__(self, monkeypatch):
        self.tables, self.covered = [], 0
        monkeypatch.setattr(api, "_has_kernel", lambda *_: True)
        monkeypatch.setattr(api, "_many", self)

    def __call__(self, param, grad, exp_avg, exp_avg_sq, step, lr, rows, chunks, scale, found, **settings):
        self.tables.append((rows, chunks))
        bases = param, grad, exp_avg, exp_avg_sq
        one = dispatcher.op("adamw")
        for row in rows.tolist():  # what the chunks of a tensor do to it together
            views = [at(base, first, row[0]) for base, first in zip(bases, row[1:5], strict=True)]
            one(*views, at(step, row[5], 1), lr, scale, found, **settings, number=row[6])
        for number, start in chunks.tolist():
            assert start % CHUNK == 0 and start < rows[number][0]
        pieces = {tuple(each) for each in chunks.tolist()}
        assert len(pieces) == len(chunks) == sum(math.ceil(row[0] / CHUNK) for row in rows.tolist())


def test_a_table_says_where_every_tensor_is(monkeypatch):
    kinds = {"dtype": torch.bfloat16, "grad": torch.float32, "state": torch.float32}
    own = lists(**kinds)
    storage = torch.randn(4200)
    own[1][1] = storage[7 : 7 + 4097]  # a gradient that is a part of a buffer, not at a multiple of 16 bytes
    other = clones(own)
    settings = {**SETTINGS, "stochastic_rounding": True, "seed": 5}
    portable.adamw(*other, **settings)
    launches = Launches(monkeypatch)
    portable.adamw(*own, **settings)
    assert len(launches.tables) == 1 and same(own, other)


def test_tensors_of_other_kinds_have_a_table_of_their_own(monkeypatch):
    own = lists([(5,), (6,), (7,), (8,)])
    for each in own[:4]:
        each[2], each[3] = each[2].bfloat16(), each[3].bfloat16()
    other = clones(own)
    portable.adamw(*other, **SETTINGS)
    launches = Launches(monkeypatch)
    portable.adamw(*own, **SETTINGS)
    assert len(launches.tables) == 2 and same(own, other)


def test_a_table_is_made_anew_where_an_address_has_changed(monkeypatch):
    tables.clear()
    own, other = lists(), lists()
    launches = Launches(monkeypatch)
    for _ in range(2):
        portable.adamw(*own, **SETTINGS)
    kept = own[1]
    own[1] = [tensor.clone() for tensor in kept]
    portable.adamw(*own, **SETTINGS)
    (first, work), (second, _), (third, last) = launches.tables
    pointers = [each.untyped_storage().data_ptr() for each in (first, second, third)]
    assert pointers[0] == pointers[1] != pointers[2]
    assert work.data_ptr() == last.data_ptr()  # the sizes are the same
    monkeypatch.undo()
    for _ in range(3):
        portable.adamw(*other, **SETTINGS)
    assert same(own, other)


def test_a_graph_keeps_the_tables_that_it_reads(monkeypatch):
    tables.clear()
    device = torch.device("cpu")
    eager = tables.addresses((1, 2), device)
    monkeypatch.setattr(tables, "_is_capturing", lambda device: True)
    monkeypatch.setattr(tables, "_stream", lambda device: 7)  # that of the capture
    assert tables.addresses((1, 2), device) is eager
    captured, number = tables.addresses((3, 4), device), tables.number(0.5, device)
    monkeypatch.undo()
    # what was recorded and not run is nobody else's
    assert tables.addresses((3, 4), device) is not captured
    assert tables.number(0.5, device) is not number
    for value in range(tables.MOST + 1):
        tables.addresses((value,), device)
    held = {each.data_ptr() for each in tables._read_by_graphs}
    assert {each.data_ptr() for each in (eager, captured, number)} <= held
    assert tables.addresses((1, 2), device) is not eager  # forgotten, and still there


class Gpu:
    """In the place of a device: a table there is CPU memory, of which copies are counted."""

    def __init__(self, monkeypatch):
        self.capturing, self.copies = False, []
        tables.clear()
        monkeypatch.setattr(tables, "_is_capturing", lambda device: self.capturing)
        monkeypatch.setattr(tables, "_stream", lambda device: int(self.capturing))
        monkeypatch.setattr(tables, "_pinned", lambda count: torch.empty(count, dtype=torch.int64))
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
        made = torch.empty
        monkeypatch.setattr(torch, "empty", lambda *size, device=None, **more: made(*size, **more))

    device = torch.device("cuda")


def test_a_capture_copies_from_memory_that_was_allocated_before(monkeypatch):
    """Two groups with as many tensors take one each; a call between two captures makes others."""
    gpu = Gpu(monkeypatch)
    for number in (2, 4):
        for first in (1, 5):
            tables.addresses((first, 2), gpu.device)
        work = tables.chunks((0, 0), gpu.device)
        gpu.capturing = True
        assert tables.chunks((0, 0), gpu.device) is work
        for first in (10 * number, 10 * number + 1):
            assert tables.addresses((first, 3), gpu.device).tolist() == [first, 3]
        pinned = [each for each in tables._read_by_graphs if each is not work]
        assert (
            len({each.data_ptr() for each in pinned}) == 2 * number
        )  # the tables, and where each is copied from
        gpu.capturing = False


def test_a_capture_without_a_call_before_it_says_what_to_do(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.capturing = True
    for table in (tables.addresses, tables.chunks):
        with pytest.raises(LaunchError, match="before each capture"):
            table((1, 2), gpu.device)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("implementation", ["cpp", "triton"])
def test_a_table_gives_the_bits_of_single_tensors(emulate, arch, implementation):
    """Parts of one buffer, as the emulated GPU knows of no memory but that of arguments; aligned and not."""
    emulate(arch)
    torch.manual_seed(0)
    sizes, n = [4096, 5, 4100, 1, 9000, 64], 20000
    param, exp_avg = torch.randn(n).bfloat16(), torch.randn(n)
    grad, exp_avg_sq = torch.randn(n).bfloat16(), torch.rand(n)
    steps, lr = torch.arange(1.0, 7.0), torch.tensor([0.01])
    settings = {"stochastic_rounding": True, "seed": 3, "weight_decay": 0.1}
    single = [each.clone() for each in (param, exp_avg, exp_avg_sq)]
    first, rows, chunks = 0, [], []
    with portable.using(adamw=implementation, adamw_multi_tensor=implementation):
        for number, size in enumerate(sizes):
            own = slice(first, first + size)
            dispatcher.op("adamw")(
                single[0][own], grad[own], single[1][own], single[2][own], steps[number : number + 1], lr,
                **settings, number=number,
            )  # fmt: skip
            rows.append([size, first, first, first, first, number, number])
            chunks += [[number, start] for start in range(0, size, CHUNK)]
            first += size if number % 2 else -(-size // 8) * 8
        table = torch.tensor(rows), torch.tensor(chunks).int()
        dispatcher.op("adamw_multi_tensor")(param, grad, exp_avg, exp_avg_sq, steps, lr, *table, **settings)
    assert same([single], [[param, exp_avg, exp_avg_sq]])


@pytest.mark.parametrize("rounding", [False, True])
def test_implementations_give_the_same_bits(emulate, rounding):
    emulate("gfx942")
    results = []
    for implementation in ("cpp", "triton", "torch"):
        own = lists([(5000,)], torch.bfloat16)
        with portable.using(adamw=implementation):
            portable.adamw(*own, **SETTINGS, stochastic_rounding=rounding, seed=-9)
        results.append(own)
    assert same(results[0], results[1]) and same(results[0], results[2])


# Stochastic rounding -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "counter, key, words",
    [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)  # fmt: skip
def test_philox_is_that_of_random123(counter, key, words):
    """The known answers of Random123's kat_vectors."""
    assert [int(word) for word in philox([torch.tensor([each]) for each in counter], key)] == words


def moved(count=1 << 16, *, share=0.3, value=1.5, step=1.0, seed=0, tensors=1):
    """Parameters that a step moves by `share` of the way to the next bfloat16 below."""
    ulp = 2.0**-7
    own = lists([(count,)] * tensors, torch.bfloat16, state=torch.float32, step=step)
    own[0] = [torch.full((count,), value).bfloat16() for _ in range(tensors)]
    for each in own[1:3]:
        each[:] = [torch.zeros_like(tensor) for tensor in each]
    settings = {**SETTINGS, "lr": share * ulp / value, "weight_decay": 1.0, "eps": 1.0}
    portable.adamw(*own, **settings, stochastic_rounding=True, seed=seed)
    for tensor in own[0]:
        assert set(tensor.unique().tolist()) <= {value, value - ulp}
    return [tensor < value for tensor in own[0]]


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9])
def test_stochastic_rounding_is_unbiased(share):
    """The share that goes down, within 4.5 standard deviations; no element leaves its two neighbours."""
    (down,) = moved(share=share)
    deviation = math.sqrt(share * (1 - share) / down.numel())
    assert abs(down.double().mean().item() - share) < 4.5 * deviation
    assert not any(torch.equal(down[:1024], down[start : start + 1024]) for start in (1, 4, 1024, 4096))


def test_bits_differ_by_seed_step_and_tensor():
    first, second = moved(tensors=2)
    found = [first, second, moved(seed=1)[0], moved(seed=1 << 40)[0], moved(step=2.0)[0]]
    assert torch.equal(first, moved(seed=0)[0])
    for number, one in enumerate(found):
        for two in found[:number]:
            both = (one & two).double().mean().item()
            assert abs(both - 0.09) < 0.006  # independent


def test_steps_below_half_a_unit_count_on_average():
    """bfloat16 parameters near 1, a hundred steps of 1/32 of a unit: rounded to nearest they stay."""
    results = []
    for rounding in (False, True):
        param = torch.ones(4096, dtype=torch.bfloat16)
        optimizer = portable.AdamW(
            [param.requires_grad_()], lr=2.0**-12, weight_decay=0.0, state_dtype=torch.float32,
            stochastic_rounding=rounding,
        )  # fmt: skip
        for _ in range(100):
            param.grad = torch.full_like(param, -0.5)
            optimizer.step()
        results.append(param.detach().double().mean().item())
    assert results[0] == 1.0 and abs(results[1] - (1 + 100 * 2.0**-12)) < 1e-3


def test_other_dtypes_and_what_is_not_finite_are_as_without_it():
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3.3895e38])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        results = []
        for rounding in (False, True):
            own = lists([(6,)], dtype)
            own[0] = [special.to(dtype)]
            own[1:4] = [[torch.zeros(6, dtype=dtype)] for _ in range(3)]
            settings = {**SETTINGS, "weight_decay": 0.0, "eps": 1.0}
            portable.adamw(*own, **settings, stochastic_rounding=rounding)
            results.append(own[0][0].nan_to_num(nan=7.0))
        assert torch.equal(*results)


# The optimizer -----------------------------------------------------------------------------------


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def groups(net):
    return [{"params": net[0].parameters(), "weight_decay": 0.0}, {"params": net[2].parameters(), "lr": 3e-3}]


def train(net, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(steps):
        x = torch.randn(8, 6, generator=generator)

        def closure(x=x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        assert loss.requires_grad
        schedule.step()
    return [param.detach() for param in net.parameters()]


def close(one, two):
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_the_optimizer_trains_as_torchs():
    nets = model(), model()
    own = portable.AdamW(groups(nets[0]), lr=1e-2, betas=(0.8, 0.95))
    other = torch.optim.AdamW(groups(nets[1]), lr=1e-2, betas=(0.8, 0.95), fused=True)
    close(train(nets[0], own, 10), train(nets[1], other, 10))
    for key, value in other.state_dict()["param_groups"][0].items():
        assert own.state_dict()["param_groups"][0][key] == value, key


@pytest.mark.parametrize(
    "classes", [(portable.AdamW, torch.optim.AdamW), (torch.optim.AdamW, portable.AdamW)]
)
def test_either_goes_on_from_the_others_state(classes):
    nets = model(), model()
    first, both = (classes[0](net.parameters(), lr=1e-2) for net in nets)
    train(nets[0], first, 3)
    train(nets[1], both, 3)
    second = classes[1](nets[0].parameters(), lr=1e-2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert all(state["step"] == 3 for state in second.state.values())
    close(train(nets[0], second, 4, seed=1), train(nets[1], both, 4, seed=1))


def test_moments_of_another_dtype_come_back_as_they_were_saved():
    net = model().bfloat16()
    optimizer = portable.AdamW(net.parameters(), state_dtype=torch.float32)
    net(torch.randn(8, 6).bfloat16()).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for kind, expected in ((None, torch.float32), (torch.bfloat16, torch.bfloat16)):
        again = portable.AdamW(net.parameters(), state_dtype=kind)
        again.load_state_dict(saved)
        for number, param in enumerate(net.parameters()):
            for name in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(again.state[param][name], saved["state"][number][name].to(expected))
            assert again.state[param]["step"].dtype == torch.float32


def test_an_overflow_of_a_grad_scaler_skips_the_step():
    net, other = model(), model()
    optimizer, plain = portable.AdamW(net.parameters()), portable.AdamW(other.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(net(x).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    other(x).square().mean().backward()
    plain.step()
    close(net.parameters(), other.parameters())
    assert scaler.get_scale() == 512.0 and all(state["step"] == 1 for state in optimizer.state.values())


def test_groups_have_random_bits_of_their_own():
    params = [torch.full((4096,), 1.5, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    optimizer = portable.AdamW([{"params": [each]} for each in params], lr=1e-3, weight_decay=1.0,
                               stochastic_rounding=True)  # fmt: skip
    for each in params:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    assert not torch.equal(*params) and all(each.unique().numel() == 2 for each in params)


# Errors ------------------------------------------------------------------------------------------


def wrong(place, number, value):
    own = lists([(2, 3), (4,)])
    own[place][number] = value
    return own


@pytest.mark.parametrize(
    "own, error, message",
    [
        (wrong(0, 1, [1.0]), NotATensorError, r"params\[1\]"),
        (wrong(1, 0, torch.ones(3, 2)), ShapeError, r"grads\[0\].*\(2, 3\), as params\[0\] has"),
        (wrong(2, 1, torch.ones(4, device="meta")), DeviceError, r"exp_avgs\[1\].*params\[1\]"),
        (wrong(4, 0, torch.ones(2)), ShapeError, r"state_steps\[0\].*one element"),
        (wrong(4, 0, torch.ones(1).int()), DtypeError, r"state_steps\[0\].*float32"),
        (wrong(3, 0, torch.ones(2, 3).int()), DtypeError, "exp_avg_sq"),
        ([*lists()[:3], [], lists()[4]], ParameterError, "exp_avg_sqs.*6 tensors"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(own, error, message):
    with pytest.raises(error, match=message):
        portable.adamw(*own, **SETTINGS)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"lr": "fast"}, ParameterError, "lr.*a number or a tensor"),
        ({"lr": torch.ones(2)}, ShapeError, "lr.*one element"),
        ({"beta1": 1.0}, ParameterError, "beta1.*without 1"),
        ({"eps": -1.0}, ParameterError, "eps.*at least 0"),
        ({"maximize": 1}, ParameterError, "maximize.*True or False"),
        ({"amsgrad": True}, SignatureError, "AMSGrad is not computed"),
    ],
)
def test_a_parameter_that_is_not_legal_is_named(changes, error, message):
    with pytest.raises(error, match=message):
        portable.adamw(*lists(), **{**SETTINGS, **changes})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"amsgrad": True}, "amsgrad.*torch.optim.AdamW"),
        ({"lr": -1.0}, "lr.*at least 0"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\].*below 1"),
        ({"state_dtype": torch.int8}, "state_dtype"),
    ],
)
def test_the_optimizer_refuses(changes, message):
    with pytest.raises(ParameterError, match=message):
        portable.AdamW(model().parameters(), **changes)
