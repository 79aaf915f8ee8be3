"""HIP C++ becomes a loadable code object for a GPU that is not there, with its resource usage."""

from __future__ import annotations

import pytest

from portable.backends.rocm import compile as rocm
from portable.backends.rocm import metadata
from portable.backends.rocm.compile import compile, resources
from portable.errors import CompileError, NoCompilerError

SCALE = """
#include "prelude.h"
extern "C" __device__ float __ocml_erf_f32(float);

KERNEL(256) void scale(T* y, const T* x, float factor, int n) {
    SHARED float staged[256];
    const int i = block_x() * 256 + thread_x();
    staged[thread_x()] = i < n ? to_float(x[i]) : 0.0f;
    barrier();
    if (i < n) {
        y[i] = from_float<T>(factor * __ocml_erf_f32(staged[255 - thread_x()]));
    }
}
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "scale.hip"
    path.write_text(SCALE)
    return path


@pytest.mark.parametrize(("arch", "wave"), [("gfx942", 64), ("gfx1100", 32)])
def test_code_object_has_the_entry_and_its_figures(source, arch, wave):
    code = compile(source, (("T", "bf16"),), arch)
    assert code[:4] == b"\x7fELF"
    found = resources(code)
    assert list(found) == ["scale"]
    figures = found["scale"]
    assert figures["vgpr_spills"] == figures["sgpr_spills"] == figures["scratch"] == 0
    assert 0 < figures["vgprs"] <= 128
    assert figures["lds"] == 1024
    assert figures["kernarg_size"] == 24
    assert figures["wavefront"] == wave
    assert figures["threads"] == 256
    offsets = [argument[".offset"] for argument in metadata.kernels(code)[0][".args"]]
    assert offsets == [0, 8, 16, 20]


def test_features_after_the_architecture_are_dropped(source):
    defines = (("T", "f16"),)
    assert compile(source, defines, "gfx942:sramecc+:xnack-") == compile(source, defines, "gfx942")


def test_a_syntax_error_carries_the_compilers_words(source):
    source.write_text(SCALE.replace("barrier();", "barrier()"))
    with pytest.raises(CompileError, match=r"scale\.hip for gfx942[\s\S]*error: expected ';'"):
        compile(source, (("T", "bf16"),), "gfx942")


def test_no_clang_is_said_with_what_to_install(monkeypatch):
    for find in ("_zig", "_rocm", "_system"):
        monkeypatch.setattr(rocm, find, lambda: None)
    with pytest.raises(NoCompilerError, match=r"no clang .*pip install 'portable-kernels\[check\]'"):
        rocm.toolchain.__wrapped__()


def test_an_unknown_function_is_an_error_not_a_hole_in_the_code(source):
    source.write_text(SCALE.replace("__ocml_erf_f32", "__ocml_erff_f32"))
    with pytest.raises(CompileError, match="__ocml_erff_f32"):
        compile(source, (("T", "bf16"),), "gfx942")


def test_metadata_of_something_else_is_refused():
    with pytest.raises(ValueError, match="ELF"):
        metadata.metadata(b"not a code object")
