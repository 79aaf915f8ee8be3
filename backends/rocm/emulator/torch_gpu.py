"""torch's view of an emulated GPU: programs that say `device="cuda"` run on CPU tensors.

Within `torch_gpu` every tensor lies in host memory, and each belongs to one of two sides. What a program
makes without a device, on "cpu", or moves there with `.cpu()` is the host's; everything else is the GPU's:
`is_cuda` is true and `device` is cuda:0. `.cuda()` and `.cpu()` copy from one side to the other, as on a
machine with a GPU, so that neither sees the other's later writes. `torch.cuda` answers for the emulated GPU.

Of this thread alone: what other threads make is the GPU's. torch's own operators are the CPU's; nothing is
said of the GPU's libraries.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import function as autograd_function
from torch.overrides import TorchFunctionMode
from torch.utils import _device as default_device

from portable.backends.rocm.emulator import torch_autocast, torch_graph, torch_random
from portable.backends.rocm.emulator.faults import EmulatorError
from portable.backends.rocm.emulator.runtime import EmulatedRuntime
from portable.plan import Device

_HIP_VERSION = "7.0.0"  # of the ROCm that Triton's LLVM is closest to; programs parse it
_HOST = "_portable_host"  # an attribute of the storages that are the host's
_GPU = "cuda"
_MISSING = object()
_SIXTEEN = (torch.float16, torch.bfloat16)


class Patches:
    """Attributes replaced for a while, put back in reverse order."""

    def __init__(self) -> None:
        self._former: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._former.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._former:
            owner, name, value = self._former.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


# Which side a tensor is on ---------------------------------------------------------------------------


def is_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor is the host's, not the emulated GPU's."""
    try:
        return getattr(tensor.untyped_storage(), _HOST, False)
    except (NotImplementedError, RuntimeError):  # sparse and meta tensors have no storage
        return tensor.device.type != "cpu"


def _mark_host(value: Any) -> None:
    for tensor in _tensors(value):
        try:
            setattr(tensor.untyped_storage(), _HOST, True)
        except (NotImplementedError, RuntimeError):
            continue


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _place(device: Any) -> str | None:
    """The side that a device names: "cuda", "cpu", or None for none and for devices of neither side."""
    if device is None:
        return None
    if isinstance(device, int):
        device = torch.device(_GPU, device)
    device = torch.device(device)
    if device.type == _GPU and device.index not in (None, 0):
        raise EmulatorError(f"device {device}: the one emulated GPU is cuda:0")
    return device.type if device.type in (_GPU, "cpu") else None


def _moved(tensor: torch.Tensor, side: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`tensor.to(*args, **kwargs)` on a side; a copy where it comes from the other."""
    if is_host(tensor) == (side == "cpu"):
        return tensor.to(*args, **kwargs)
    if side == "cpu" and torch_graph.capturing():
        raise torch_graph.refused("The GPU's memory is copied to the host's")
    moved = tensor.to(*args, **{**kwargs, "copy": True})
    if side == "cpu":
        _mark_host(moved)
    return moved


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    given = list(args)
    side = None
    if given and isinstance(given[0], torch.Tensor):
        other = given[0]
        given[0] = other.dtype
        side = "cpu" if is_host(other) else _GPU
    elif isinstance(kwargs.get("other"), torch.Tensor):
        other = kwargs.pop("other")
        kwargs["dtype"] = other.dtype
        side = "cpu" if is_host(other) else _GPU
    elif given and (isinstance(given[0], (str, int, torch.device)) or given[0] is None):
        side = _place(given[0])
        if side is not None:
            given[0] = "cpu"
    elif "device" in kwargs:
        side = _place(kwargs["device"])
        if side is not None:
            kwargs["device"] = "cpu"
    if side is None:
        side = "cpu" if is_host(tensor) else _GPU
        kept = tensor.to(*given, **kwargs)
        if side == "cpu":
            _mark_host(kept)
        return kept
    moved = _moved(tensor, side, *given, **kwargs)
    if side == "cpu":
        _mark_host(moved)
    return moved


def _cuda(
    tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **layout: Any
) -> torch.Tensor:
    _place(device)
    return _moved(tensor, _GPU, tensor.dtype, **layout)


def _cpu(tensor: torch.Tensor, **layout: Any) -> torch.Tensor:
    return _moved(tensor, "cpu", tensor.dtype, **layout)


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    pinned = tensor.clone()
    _mark_host(pinned)
    return pinned


def _device(tensor: torch.Tensor, *_: Any) -> torch.device:
    device = tensor.device
    return device if device.type != "cpu" or is_host(tensor) else torch.device(_GPU, 0)


def _is_cuda(tensor: torch.Tensor, *_: Any) -> bool:
    return tensor.device.type == "cpu" and not is_host(tensor)


def _is_cpu(tensor: torch.Tensor, *_: Any) -> bool:
    return tensor.device.type == "cpu" and is_host(tensor)


def _get_device(tensor: torch.Tensor) -> int:
    return 0 if _is_cuda(tensor) else -1


_Tensor: Any = torch.Tensor
_ANSWERS: dict[Any, Callable[..., Any]] = {
    _Tensor.device.__get__: _device,
    _Tensor.is_cuda.__get__: _is_cuda,
    _Tensor.is_cpu.__get__: _is_cpu,
    torch.Tensor.get_device: _get_device,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.cpu: _cpu,
    torch.Tensor.pin_memory: _pin_memory,
    torch.Tensor.is_pinned: lambda tensor, *_: False,
    torch.Tensor.record_stream: lambda *_: None,
}


_placing = threading.local()


def on_gpu(values: Any) -> bool:
    """Whether a call of the dispatcher with these arguments is the GPU's. One without a tensor makes one, and
    is where the program said; that of an operator of torch itself is the GPU's, as what it makes is."""
    operands = list(_tensors(values))
    if not _inside:
        return False
    if not operands:
        return getattr(_placing, "side", _GPU) == _GPU
    return not all(map(is_host, operands))


class GpuTensors(TorchFunctionMode):
    """Tensors of the two sides; see the module."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        operands = list(_tensors([*args, *kwargs.values()]))
        if torch_graph.capturing() and func in torch_graph.READS and not all(map(is_host, operands)):
            raise torch_graph.refused("A tensor's value is read")
        device = kwargs.get("device")
        if device is None and not operands and func in default_device._device_constructors():
            device = default_device.CURRENT_DEVICE
        side = _place(device)
        if side is not None:
            kwargs["device"] = "cpu"
        if isinstance(kwargs.get("generator"), torch_random.DefaultGenerator):
            kwargs["generator"] = torch.default_generator
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        of_host = all(map(is_host, operands))
        if torch_autocast.active():
            if operands and of_host:
                func = functools.partial(torch_autocast.on_host, func)
                args, kwargs = (args, kwargs), {}
            else:
                args, kwargs = torch_autocast.float32(func, args, kwargs)
        former, _placing.side = getattr(_placing, "side", _GPU), side or "cpu"
        try:
            result = with_16_bits(func, args, kwargs)
        finally:
            _placing.side = former
        if side is None:
            if of_host:
                _mark_host(result)
        elif isinstance(result, torch.Tensor):
            if any(result.data_ptr() == each.data_ptr() != 0 for each in operands):
                result = _moved(result, side, result.dtype)  # as_tensor of what is on the other side
            if side == "cpu":
                _mark_host(result)
        return result


def with_16_bits(func: Any, args: Any, kwargs: Any) -> Any:
    """The call, in float32 and rounded where torch's CPU has no kernel of a GPU's 16-bit type."""
    try:
        return func(*args, **kwargs)
    except (NotImplementedError, RuntimeError) as error:
        if not _lacks_16_bits(error, func, kwargs):
            raise
        return _through_float32(func, args, kwargs)


def _lacks_16_bits(error: Exception, func: Any, kwargs: Any) -> bool:
    """Whether torch's CPU has no kernel of a GPU's 16-bit type for a call without results in place."""
    in_place = "out" in kwargs or getattr(func, "__name__", "_").rstrip("_") != getattr(func, "__name__", "")
    return not in_place and bool(re.search(r"not implemented for '(Half|BFloat16)'", str(error)))


def _through_float32(func: Any, args: Any, kwargs: Any) -> Any:
    """The call in float32, its result rounded: what a GPU's kernel does."""
    dtype = next(each.dtype for each in _tensors([*args, *kwargs.values()]) if each.dtype in _SIXTEEN)
    args, kwargs = _mapped(torch_autocast.wide, args), _mapped(torch_autocast.wide, kwargs)
    narrow = lambda found: found.to(dtype) if found.dtype == torch.float32 else found  # noqa: E731
    return _mapped(narrow, func(*args, **kwargs))


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """`value` with its tensors changed, as `_tensors` finds them."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(change, each) for each in value)
    if isinstance(value, dict):
        return {name: _mapped(change, each) for name, each in value.items()}
    return value


# What torch says of the GPU --------------------------------------------------------------------------


class Stream:
    """A stream: a kernel has finished when its launch returns, so there is nothing to wait for."""

    cuda_stream = 0
    stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any):
        self.device, self.priority = torch.device(_GPU, 0), priority

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def synchronize(self) -> None:
        _synchronize()

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def query(self) -> bool:
        return True


class Event:
    """An event, which has happened as soon as it is recorded. It has no time."""

    def __init__(self, *_: Any, **__: Any): ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None:
        _synchronize()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        raise no_time()


def _synchronize(*_: Any) -> None:
    """Does nothing: a kernel has finished when its launch returns."""
    if torch_graph.capturing():
        raise torch_graph.refused("The program synchronizes")


def no_time() -> EmulatorError:
    return EmulatorError("No timings on an emulated GPU: nothing can be benchmarked")


class _OnDevice:
    """`torch.cuda.device(index)`: there is one."""

    def __init__(self, device: Any = None):
        if isinstance(device, (int, str, torch.device)) and device != -1:
            _place(device)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def properties(device: Device, capability: tuple[int, int]) -> SimpleNamespace:
    """`torch.cuda.get_device_properties` of an emulated GPU; its memory is the machine's. No clocks."""
    return SimpleNamespace(
        name=f"emulated {device.arch}",
        gcnArchName=device.arch,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=device.multiprocessors,
        total_memory=_memory(),
        warp_size=device.warp_size,
        L2_cache_size=device.l2_bytes,
        shared_memory_per_block=device.shared_memory,
        shared_memory_per_block_optin=device.shared_memory,
        shared_memory_per_multiprocessor=device.shared_memory,
        regs_per_multiprocessor=65536,
        max_threads_per_block=1024,
        max_threads_per_multi_processor=2048,
        is_integrated=0,
        is_multi_gpu_board=0,
    )


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _answers(device: Device, capability: tuple[int, int], runtime: EmulatedRuntime) -> dict[str, Any]:
    """The names of `torch.cuda` and what they are on an emulated GPU."""
    found = properties(device, capability)
    stream, generator = Stream(), torch_random.DefaultGenerator()
    captured = {"runtime": runtime, "on_gpu": staticmethod(on_gpu), "call": staticmethod(with_16_bits)}

    def nothing(*_: Any, **__: Any) -> None: ...

    def say(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    return {
        **dict.fromkeys(("init", "_lazy_init", "empty_cache", "ipc_collect"), nothing),
        "synchronize": _synchronize,
        **dict.fromkeys(("set_stream", "reset_peak_memory_stats", "reset_max_memory_allocated"), nothing),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), say(0)),
        **dict.fromkeys(("memory_reserved", "max_memory_reserved"), say(0)),
        **dict.fromkeys(("is_available", "is_initialized"), say(True)),
        **dict.fromkeys(("current_stream", "default_stream"), say(stream)),
        **dict.fromkeys(("manual_seed", "manual_seed_all"), lambda seed: generator.manual_seed(seed)),
        "_is_in_bad_fork": say(False),
        "is_current_stream_capturing": torch_graph.capturing,
        "is_bf16_supported": say(True),
        "device_count": say(1),
        "current_device": say(0),
        "set_device": lambda index: _OnDevice(index).__enter__(),
        "get_device_name": say(found.name),
        "get_device_properties": say(found),
        "get_device_capability": say(capability),
        "get_arch_list": say([device.arch]),
        "mem_get_info": lambda *_: (_memory() // 2, _memory()),
        "device": _OnDevice,
        "device_of": lambda tensor: _OnDevice(),
        "stream": lambda stream=None: nullcontext(stream),
        "Stream": Stream,
        "Event": Event,
        "get_rng_state": lambda *_: generator.get_state(),
        "set_rng_state": lambda state, *_: generator.set_state(state),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
        "initial_seed": lambda: generator.initial_seed(),
        "default_generators": (generator,),
        "CUDAGraph": type("CUDAGraph", (torch_graph.CUDAGraph,), captured),
        "graph": torch_graph.graph,
        "graph_pool_handle": torch_graph.pool_handle,
    }


_inside: list[Device] = []


@contextmanager
def torch_gpu(device: Device, capability: tuple[int, int], runtime: EmulatedRuntime) -> Iterator[None]:
    """Have torch show an emulated GPU in this thread; everything is put back at the end. May be nested."""
    patches = Patches()
    for name, value in _answers(device, capability, runtime).items():
        patches.set(torch.cuda, name, value)
    patches.set(torch.version, "hip", _HIP_VERSION)
    patches.set(torch.version, "cuda", None)
    patches.set(torch, "Generator", torch_random.generator_type(lambda device: _place(device) == _GPU))
    patches.set(torch._C, "_cuda_getCurrentRawStream", lambda *_: 0)
    patches.set(torch.cuda.graphs, "graph_pool_handle", torch_graph.pool_handle)
    patches.set(torch, "compile", _uncompiled)
    patches.set(torch.nn.Module, "compile", lambda *_, **__: None)
    region = torch.amp.autocast_mode.autocast
    patches.set(region, "__enter__", torch_autocast.entered(region.__enter__))
    patches.set(region, "__exit__", torch_autocast.left(region.__exit__))
    node = autograd_function.BackwardCFunction
    patches.set(node, "apply", under_mode(node.apply))
    mode = nullcontext() if _inside else GpuTensors()
    _inside.append(device)
    try:
        with mode:
            yield
    finally:
        _inside.pop()
        patches.undo()


def _uncompiled(model: Any = None, **options: Any) -> Any:
    """`torch.compile`, which would compile for the CPU: the function as it is."""
    return model if model is not None else functools.partial(_uncompiled, **options)


def under_mode(apply: Callable[..., Any]) -> Callable[..., Any]:
    """`apply` with the mode on: torch turns it off within what runs people's code, as `Tensor.backward`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        stack = torch.overrides._get_current_function_mode_stack()
        with nullcontext() if any(isinstance(each, GpuTensors) for each in stack) else GpuTensors():
            return apply(*args, **kwargs)

    return run
