"""Which vendor is chosen on which machine, from made-up machines: nothing here needs a GPU."""

from __future__ import annotations

import pytest

from portable.backend import Machine
from portable.backends.cuda.backend import CudaBackend
from portable.backends.rocm.backend import RocmBackend
from portable.runtime import detect

NODE = "/sys/class/kfd/kfd/topology/nodes"


def made_up(
    *files: str, cuda: str | None = None, hip: str | None = None, gpu_node: bool = True, **environ: str
):
    return Machine(
        {"cuda": cuda, "hip": hip},
        environ,
        exists=lambda path: path in files,
        listdir=lambda path: ["0", "1"],
        read=lambda path: f"simd_count {'304' if gpu_node and '/1/' in path else '0'}\n",
        which=lambda name: None,
        system="Linux",
    )


def test_an_nvidia_gpu_with_a_cuda_build_is_used():
    chosen = detect.select(made_up("/dev/nvidia0", cuda="13.0"))
    assert chosen.backends["cuda"].name == "cuda"
    assert chosen.backends["cpu"].name == "cpu"


def test_an_amd_gpu_with_a_rocm_build_is_used():
    chosen = detect.select(made_up("/dev/kfd", hip="7.0"))
    assert chosen.backends["cuda"].name == "rocm"


def test_an_nvidia_gpu_with_a_cpu_build_of_torch_says_so():
    found = CudaBackend.detect(made_up("/dev/nvidia0"))
    assert found.present and not found.usable
    assert "built for the CPU only" in found.reason and "install a CUDA build" in found.reason


def test_an_amd_gpu_with_a_cuda_build_of_torch_says_so():
    found = RocmBackend.detect(made_up("/dev/kfd", cuda="13.0"))
    assert found.present and not found.usable and "built for CUDA" in found.reason


def test_with_both_gpus_the_build_of_torch_decides():
    for cuda, hip, name in (("13.0", None, "cuda"), (None, "7.0", "rocm")):
        chosen = detect.select(made_up("/dev/nvidia0", "/dev/kfd", cuda=cuda, hip=hip))
        assert chosen.error is None and chosen.backends["cuda"].name == name


def test_without_a_gpu_the_cpu_is_used():
    chosen = detect.select(made_up(cuda="13.0"))
    assert list(chosen.backends) == ["cpu"]


def test_the_kfd_of_a_machine_without_amd_gpus_is_no_gpu():
    assert not RocmBackend.detect(made_up("/dev/kfd", hip="7.0", gpu_node=False)).present


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_not_used(value):
    assert not CudaBackend.detect(made_up("/dev/nvidia0", cuda="13.0", CUDA_VISIBLE_DEVICES=value)).usable
    assert not RocmBackend.detect(made_up("/dev/kfd", hip="7.0", HIP_VISIBLE_DEVICES=value)).usable


def test_a_pinned_backend_that_is_not_there_is_an_error_with_the_reason():
    chosen = detect.select(made_up(cuda="13.0", PORTABLE_BACKEND="cuda"))
    assert "no NVIDIA GPU" in str(chosen.error)


def test_a_pinned_backend_is_the_only_one():
    chosen = detect.select(made_up("/dev/nvidia0", cuda="13.0", PORTABLE_BACKEND="cpu"))
    assert [b.name for b in chosen.backends.values()] == ["cpu"]


def test_architecture_patterns():
    backend = CudaBackend.__new__(CudaBackend)
    assert backend.arch_matches("sm_80+", "sm_90a") and backend.arch_matches("sm_80+", "sm_100")
    assert not backend.arch_matches("sm_90a", "sm_100") and not backend.arch_matches("sm_80+", "sm_75")
    amd = RocmBackend.__new__(RocmBackend)
    assert amd.arch_matches("gfx11*", "gfx1101") and not amd.arch_matches("gfx11*", "gfx942")
