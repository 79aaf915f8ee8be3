"""Packing of kernel arguments, and what is and is not compiled again."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portable.backend import CodeObject
from portable.errors import LaunchError
from portable.plan import Launch, NativeKernel, Pointer, Scalar, Struct, TensorInfo
from portable.runtime import build
from portable.spec import registry

KERNEL = NativeKernel(Path("k.cu"), "k", 128)


@dataclass(frozen=True)
class Map:
    tensor: str
    size: int = 128
    alignment: int = 64

    def encode(self, address: int) -> bytes:
        return struct.pack("<Q", address).ljust(128, b"m")


def packed(*args, scratch: int = 0) -> bytes:
    names = [arg.tensor for arg in args if not isinstance(arg, Scalar)]
    slots = {name: i for i, name in enumerate(dict.fromkeys(names))}
    launch = Launch(KERNEL, (1, 1, 1), tuple((f"p{i}", arg) for i, arg in enumerate(args)))
    code = CodeObject(b"", "k", 128, 0, "cu", scratch)
    bound = build.BoundLaunch(launch, slots, code)
    return bytes(launched(bound, [1000 + i for i in range(len(slots))]))


def launched(bound: build.BoundLaunch, addresses: list[int]) -> bytearray:
    """The buffer that a launch with these addresses hands to the GPU."""
    seen = []
    bound.launcher = lambda grid, kernarg: lambda stream: seen.append(kernarg)
    bound(addresses, 0)
    return seen[0]


def test_arguments_are_aligned_to_their_size():
    data = packed(
        Scalar("i32", -5), Pointer("x"), Scalar("f32", 0.5), Scalar("i64", 2**40), Scalar("u32", 2**32 - 1)
    )
    assert struct.unpack("<i4xQf4xqI", data) == (-5, 1000, 0.5, 2**40, 2**32 - 1)


def test_a_tensor_map_is_encoded_for_the_address_at_its_alignment():
    data = packed(Pointer("x"), Map("y"), Scalar("i32", 7))
    assert len(data) == 64 + 128 + 4
    assert struct.unpack_from("<Q", data, 64) == (1001,) and struct.unpack_from("<i", data, 192) == (7,)


def test_a_struct_is_one_argument_laid_out_as_c_lays_it_out():
    fields = (("n", Scalar("i32", 3)), ("x", Pointer("x")), ("scale", Scalar("f32", 0.5)))
    launch = Launch(
        KERNEL, (1, 1, 1), (("a", Scalar("i32", 1)), ("p", Struct(fields)), ("b", Scalar("i32", 2)))
    )
    tensors = {"x": TensorInfo((5,), (1,), "float32")}
    bound = build.BoundLaunch(launch, {"x": 0}, CodeObject(b"", "k", 1, 0, "cu"), tensors, frozenset("x"))
    assert struct.unpack("<i4xi4xQf4xi", bytes(launched(bound, [1000]))) == (1, 3, 1000, 0.5, 2)
    assert [(each.name, each.offset, each.size) for each in bound.arguments] == [
        ("a", 0, 4), ("p", 8, 24), ("b", 32, 4)
    ]  # fmt: skip
    (pointer,) = (each for argument in bound.arguments for each in argument.pointers())
    assert (pointer.name, pointer.offset, pointer.extent, pointer.written) == ("x", 16, 20, True)


def test_scratch_pointers_follow_the_arguments():
    assert struct.unpack("<i4xQQ", packed(Scalar("i32", 3), scratch=2)) == (3, 0, 0)


@given(st.lists(st.sampled_from(["i32", "i64", "f32", "p"]), max_size=12))
def test_offsets_are_what_the_c_rules_say(kinds):
    args = [Pointer(f"t{i}") if kind == "p" else Scalar(kind, i) for i, kind in enumerate(kinds)]
    sizes = [4 if kind in ("i32", "f32") else 8 for kind in kinds]
    offset = 0
    for size in sizes:
        offset += -offset % size + size
    assert len(packed(*args)) == offset


def test_two_threads_do_not_share_the_packed_buffer():
    launch = Launch(KERNEL, (1, 1, 1), (("x", Pointer("x")),))
    bound = build.BoundLaunch(launch, {"x": 0}, CodeObject(b"", "k", 1, 0, "cu"))
    buffers = []
    bound.launcher = lambda grid, kernarg: lambda stream: buffers.append(kernarg)
    bound([1], 0)
    thread = Thread(target=lambda: bound([2], 0))
    thread.start()
    thread.join()
    assert [struct.unpack("<Q", b)[0] for b in buffers] == [1, 2]
    bound([3], 0)
    assert buffers[2] is buffers[0]


ABSENT: Any = None  # a grid is refused before backend and device are used


@pytest.mark.parametrize("grid", [(0, 1, 1), (2**31, 1, 1), (1, 65536, 1), (1, 1, 65536)])
def test_a_grid_that_no_gpu_takes_is_named(grid):
    with pytest.raises(LaunchError, match="its grid"):
        build.bind(Launch(KERNEL, grid, ()), {}, {}, frozenset(), ABSENT, ABSENT)


def test_the_source_text_follows_includes(tmp_path):
    (tmp_path / "a.cu").write_text('#include "b.h"\nint a;')
    (tmp_path / "b.h").write_text('#include "c.h"\nint b;')
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/c.h").write_text('#include "b.h"\nint c;')
    before = build.source_text(tmp_path / "a.cu", (tmp_path / "inc",))
    (tmp_path / "inc/c.h").write_text("int d;")
    assert build.source_text(tmp_path / "a.cu", (tmp_path / "inc",)) != before


def test_an_op_s_folders_include_each_other_from_the_folder_of_ops(tmp_path, monkeypatch):
    source, header = tmp_path / "op/one/a.cu", tmp_path / "op/two/a.h"
    for file, text in {source: '#include "op/two/a.h"\n', header: '#include "b.h"\n'}.items():
        file.parent.mkdir(parents=True)
        file.write_text(text)
    (source.parent / "b.h").write_text("int beside_the_source;")
    (header.parent / "b.h").write_text("int beside_the_header;")
    monkeypatch.setenv(registry.KERNEL_PATH, str(tmp_path))
    vendor: Any = SimpleNamespace(folder=tmp_path / "vendor")
    text = build.source_text(source, build.include_folders(source, vendor))
    assert b"beside_the_header" in text and b"beside_the_source" not in text
