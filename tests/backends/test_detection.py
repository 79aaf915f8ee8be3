"""Which vendor is chosen on which machine, from made-up machines: nothing here needs a GPU."""

from __future__ import annotations

import pytest

from portable.backend import Machine
from portable.backends.cuda.backend import CudaBackend
from portable.backends.rocm.backend import RocmBackend
from portable.commands import cli
from portable.runtime import detect
from portable.spec import registry

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


ACME = """
from portable.backend import Backend, Detection

class Acme(Backend):
    name = "acme"
    languages = ("acme", "torch")

    @classmethod
    def detect(cls, machine):
        return Detection(True, True, "cc is there")

    def device(self, index):
        from portable.plan import Device

        return Device("acme", "acme1", "Acme One", index, 1, 1, 0)

    def targets(self):
        return (self.device(0),)
"""


@pytest.fixture
def acme(tmp_path, monkeypatch):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "backend.py").write_text(ACME)
    monkeypatch.setenv("PORTABLE_BACKEND_PATH", str(tmp_path))
    monkeypatch.setenv("PORTABLE_BACKEND", "")
    registry.clear_caches()
    detect.reset()
    yield
    monkeypatch.undo()
    registry.clear_caches()
    detect.reset()


def test_a_vendor_on_the_path_leaves_the_cpu_as_it_is(acme):
    """Every call on the CPU failed with "Several backends are usable here: cpu, acme"."""
    chosen = detect.select(made_up())
    assert chosen.error is None and chosen.backends["cpu"].name == "cpu"
    assert chosen.detections["acme"].reason == "cc is there; PORTABLE_BACKEND=acme selects it"
    chosen = detect.select(made_up(PORTABLE_BACKEND="acme"))
    assert chosen.backends["cpu"].name == "acme"


def test_a_check_that_compiles_nothing_fails(acme, capsys):
    """`portable check --target acme` said that 0 kernels compile, and that all was well."""
    assert cli.main(["check", "--target", "acme", "--ops", "softmax"]) == 1
    said, err = capsys.readouterr()
    assert (
        "portable: nothing to compile for acme1: acme builds acme, torch; the languages of softmax are" in err
    )
    assert "0 kernels compile" not in said
    assert cli.main(["check", "--ops", "", "--target", "acme"]) == 2
