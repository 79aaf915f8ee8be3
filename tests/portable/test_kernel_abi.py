"""What a plan passes to a C++ kernel is compared with the entry's parameters, as the compiler sees them."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, replace

import pytest

from portable.errors import CompileError, KernelArgumentsError
from portable.plan import Device, Launch, NativeKernel, Pointer, Scalar, Struct
from portable.runtime import build, detect, kernel_abi
from portable.runtime.kernel_abi import Parameter
from portable.spec import registry

HEADER = """
#pragma once
#define KERNEL(threads) extern "C" __global__ __launch_bounds__(threads)
#define SIZES int rows, int64_t \\
    length
#ifdef T
typedef T element_type;
#undef T
typedef element_type T;
#endif
#if MASKED && !defined(PLAIN)
#define MASK_PARAMETER(type) const type* mask,
#else
#define MASK_PARAMETER(type)
#endif
struct alignas(8) Numbers {
    T* out;  // a comment, with a comma
    int count, other;
    float scale = 1.0f;
    __device__ int total() const { return count + other; }
};
"""
SOURCE = """
#include "toy.h"
using Index = uint32_t;
/* KERNEL(1) void axpy(int wrong); */
void helper(int axpy);
#if ARCH >= 900 /* a comment */ \\
    && PASS == 2
KERNEL(256)
void axpy(const T* __restrict__ x, MASK_PARAMETER(int) T y[], const float *bias, SIZES, Index seed,
          float alpha) {
}
#else
KERNEL(THREADS / 2) void axpy(const __grid_constant__ TensorMap map_x, const Numbers n, int rows) { all(n); }
#endif
"""
TYPES = {"x": "bfloat16", "y": "bfloat16", "bias": "float32", "mask": "bool"}
ARGS = (
    ("x", Pointer("x")),
    ("y", Pointer("y")),
    ("bias", Scalar("i64", 0)),  # a null pointer
    ("rows", Scalar("i32", 3)),
    ("length", Scalar("i64", 4)),
    ("seed", Scalar("u32", 5)),
    ("alpha", Scalar("f32", 0.5)),
)


@dataclass(frozen=True)
class TensorMap:
    tensor: str
    size: int = 128
    alignment: int = 64

    def encode(self, address: int) -> bytes:
        return struct.pack("<Q", address).ljust(128, b"m")


class Other(TensorMap):
    pass


NUMBERS = Struct(
    (
        ("out", Pointer("y")),
        ("count", Scalar("i32", 1)),
        ("other", Scalar("i32", 2)),
        ("scale", Scalar("f32", 0.5)),
    )
)
BY_VALUE = (("map_x", TensorMap("x")), ("n", NUMBERS), ("rows", Scalar("i32", 3)))


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include/toy.h").write_text(HEADER)
    (tmp_path / "toy.cu").write_text(SOURCE)
    defines = (("T", "bf16"), ("PASS", 2), ("MASKED", 0), ("THREADS", 256))
    return NativeKernel(tmp_path / "toy.cu", "axpy", 256, defines)


def declared(kernel: NativeKernel, arch: str = "900") -> tuple[Parameter, ...]:
    return kernel_abi.parameters(kernel, (kernel.source.parent / "include",), {"ARCH": arch})


def compare(kernel: NativeKernel, args, arch: str = "900") -> None:
    kernel_abi.check(Launch(kernel, (1, 1, 1), tuple(args)), declared(kernel, arch), TYPES)


def test_parameters_are_read_as_the_compiler_sees_them(kernel):
    assert list(map(str, declared(kernel))) == [
        "bf16* x", "bf16* y", "float* bias", "int rows", "int64_t length", "uint32_t seed", "float alpha",
    ]  # fmt: skip
    masked = replace(kernel, defines=(("T", "f16"), ("PASS", 2), ("MASKED", 1)))
    assert [str(each) for each in declared(masked)][:3] == ["f16* x", "int* mask", "f16* y"]
    plain = replace(masked, defines=(*masked.defines, ("PLAIN", 1)))
    assert len(declared(plain)) == len(declared(masked)) - 1
    other, numbers, rows = declared(kernel, "800")
    assert (str(other), str(rows)) == ("TensorMap map_x", "int rows") and numbers.type == "Numbers"
    assert list(map(str, numbers.fields)) == ["bf16* out", "int count", "int other", "float scale"]


def test_right_arguments_pass(kernel):
    compare(kernel, ARGS)
    compare(kernel, BY_VALUE, "800")


def swapped(args, one: int, other: int):
    changed = list(args)
    changed[one], changed[other] = changed[other], changed[one]
    return changed


def with_one(args, at: int, arg):
    return [*args[:at], (args[at][0], arg), *args[at + 1 :]]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (swapped(ARGS, 0, 1), "parameter 1 is x, and the plan passes y there"),
        (ARGS[:-1], "the plan leaves out alpha"),
        ((*ARGS, ("beta", Scalar("f32", 1))), "the plan passes beta, which the kernel does not take"),
        (with_one(ARGS, 3, Scalar("i64", 3)), "rows is a scalar of i64, and the kernel declares `int rows`"),
        (with_one(ARGS, 5, Scalar("i32", 3)), "seed is a scalar of i32"),
        (with_one(ARGS, 4, Pointer("x")), "length is the address of x, and the kernel declares `int64_t"),
        (with_one(ARGS, 1, Scalar("i64", 7)), "y is a scalar of i64, and the kernel declares `bf16\\* y`"),
        (with_one(ARGS, 1, Scalar("i32", 0)), "y is a scalar of i32"),
        (with_one(ARGS, 1, Pointer("bias")), "y is the address of bias, of float32"),
        (with_one(ARGS, 0, TensorMap("x")), "x is a TensorMap by value"),
        (with_one(ARGS, 3, NUMBERS), "rows is a struct"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(kernel, args, message):
    with pytest.raises(KernelArgumentsError, match=message) as caught:
        compare(kernel, args)
    assert "axpy in toy.cu" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (with_one(BY_VALUE, 0, Other("x")), "map_x is a Other by value, and the kernel declares `Tens"),
        (with_one(BY_VALUE, 0, Pointer("x")), "map_x is the address of x"),
        (with_one(BY_VALUE, 0, NUMBERS), "map_x is a struct, whose definition was not found"),
        (with_one(BY_VALUE, 1, Struct(NUMBERS.fields[:-1])), "toy.cu, n: the plan leaves out scale"),
        (with_one(BY_VALUE, 1, Struct(tuple(swapped(NUMBERS.fields, 1, 2)))), "n: parameter 2 is count"),
        (with_one(BY_VALUE, 1, Struct((*NUMBERS.fields[:3], ("scale", Scalar("i32", 1))))), "n: scale is a"),
    ],
)  # fmt: skip
def test_wrong_structs_are_refused(kernel, args, message):
    with pytest.raises(KernelArgumentsError, match=message):
        compare(kernel, args, "800")


def test_a_source_without_the_entry_is_refused(kernel):
    with pytest.raises(CompileError, match="declares no extern"):
        declared(replace(kernel, entry="helper"))


TOY = """
#include "prelude.h"
KERNEL(64) void scale(const float* x, float* y, int n) {
    const int i = block_x() * 64 + thread_x();
    if (i < n) y[i] = 2.0f * x[i];
}
"""


@pytest.fixture
def external(tmp_path, monkeypatch):
    """A kernel outside of this package, the backend that builds it and how often it was compiled."""
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path / "cache"))
    build.clear_caches()
    backend = detect.backend_class("cuda")(registry.vendors()["cuda"])
    (tmp_path / "toy.cu").write_text(TOY)
    built = []
    compile_native = backend.compile_native
    monkeypatch.setattr(backend, "compile_native", lambda *a: built.append(a) or compile_native(*a))
    yield NativeKernel(tmp_path / "toy.cu", "scale", 64), backend, built
    build.clear_caches()


def test_every_launch_is_compared_and_the_source_is_read_once(external, monkeypatch):
    kernel, backend, built = external
    device, types = Device("cuda", "sm_80", "A100"), {"x": "float32", "y": "float32"}
    right = (("x", Pointer("x")), ("y", Pointer("y")), ("n", Scalar("i32", 3)))
    launch = Launch(kernel, (1, 1, 1), right)
    build.code_object(launch, types, backend, device)
    monkeypatch.setattr(kernel_abi, "parameters", lambda *a: pytest.fail("read again"))
    for _ in range(2):  # from memory, then from the disk's cache
        build.code_object(launch, types, backend, device)
        for wrong in (swapped(right, 0, 1), right[:2], with_one(right, 2, Scalar("f32", 3.0))):
            with pytest.raises(KernelArgumentsError, match=r"scale in toy\.cu"):
                build.code_object(replace(launch, args=tuple(wrong)), types, backend, device)
        build.clear_caches()
    assert len(built) == 1
