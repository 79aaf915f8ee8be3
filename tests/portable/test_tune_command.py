"""`portable tune` with no device: its arguments, its lines, its files, and what Ctrl-C leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import ClassVar

import pytest

import portable
from portable.backend import Backend, Modelled
from portable.backends.cuda.backend import TARGETS, CudaBackend
from portable.commands import cli
from portable.commands import trace as tracing
from portable.configs import lookup
from portable.runtime import detect
from portable.tune import by_model, command, compiling, session

pytestmark = pytest.mark.slow

HOPPER = next(target for target in TARGETS if target.arch == "sm_90a")


class Answers:
    """A process that finds every config right; the longer its steps along K, the faster."""

    requests: ClassVar[list[str]] = []
    stops: ClassVar[int] = 0

    def __init__(self):
        self.ready = {}

    def request(self, message, seconds):
        type(self).requests.append(next(iter(message)))
        if "compile" in message:
            return {"registers": 1, "shared": 1, "spills": 0, "threads": 128}
        if "setup" in message:
            if type(self).stops == len([each for each in type(self).requests if each == "setup"]):
                raise KeyboardInterrupt
            return {"sets": 2, "reference": "float64"}
        if "check" in message:
            self.ready[message["check"]] = message["values"]
            return {"bits": "b"}
        if "time" in message:
            times = {name: [5000.0 / self.ready[name].get("BLOCK_K", 16)] * 3 for name in message["time"]}
            return {"samples": times, "failed": {}}
        return {}

    def kill(self): ...

    close = kill


@pytest.fixture
def tune(product, tmp_path, monkeypatch, capsys):
    """Runs the command for a GPU that is not there; returns exit code, output and errors."""
    folder = tmp_path / "vendor"
    folder.mkdir()
    backend = CudaBackend(folder)
    backend.language_missing = lambda language: None
    Answers.requests, Answers.stops = [], 0
    monkeypatch.setattr(detect, "main_backend", lambda: backend)
    monkeypatch.setattr(detect, "device", lambda: HOPPER)
    monkeypatch.setattr(session, "Worker", Answers)
    monkeypatch.setattr(compiling, "Worker", Answers)

    def run(*argv):
        lookup.entries.cache_clear()
        try:
            code = cli.main(["tune", *argv, "-j", "2"])
        except SystemExit as stop:
            code = stop.code
        said = capsys.readouterr()
        return code, said.out, said.err

    run.file = folder / "tuned.yaml"
    return run


@pytest.fixture
def model(monkeypatch):
    """A device that is emulated and has a timing model, by which the longer steps along K are the faster."""
    asked = []

    def launched(problem, tensors, values, backend, device):
        asked.append(values)
        if values["num_stages"] == 4:
            raise command.PortableError("a kernel fault")
        us = 5000.0 / values["BLOCK_K"]
        shares = 1.0, 1.0, 0.5, 0.5, 1, 1, 1, {}, 0.5, {}, "+-7% of 22"
        return [Modelled("k", (1, 1, 1), us / 2e6, *shares)] * 2  # two launches, one after the other

    monkeypatch.setattr(detect, "device", lambda: dataclasses.replace(HOPPER, emulated=True))
    monkeypatch.setattr(tracing, "choose", lambda arch: asked.append(arch))
    monkeypatch.setattr(CudaBackend, "device_type", "cpu")
    monkeypatch.setattr(CudaBackend, "model", lambda self: contextlib.nullcontext([]))
    monkeypatch.setattr(by_model, "launched", launched)
    return asked


def measured(entry: lookup.Entry) -> lookup.Measured:
    assert entry.measured is not None
    return entry.measured


def test_the_specs_bench_cases_are_tuned_and_filed(tune):
    code, out, err = tune("product")
    assert code == 0 and all("compiling" in line for line in err.splitlines()), err  # a slow machine says so
    assert "product.tiles a 2048x512 b 512x1024 in bfloat16: T=bfloat16" in out
    assert f"2 classes filed in {tune.file}" in out and "BLOCK_K=128" in out and "in 16 trials" in out
    assert "bits as the default's" in out
    found = lookup.parse(tune.file, None)
    assert {each.implementation for each in found} == {"tiles", "apart"}
    assert {measured(each).versions["torch"] for each in found}


def test_shapes_types_and_parameters(tune):
    code, out, _ = tune("product", "--impl", "tiles", "--shape", "64x128,128x256", "--shape", "8x128,128x256",
                        "--dtype", "bfloat16,float32", "--param", "precision=tf32", "--columns", "b",
                        "--budget", "3")  # fmt: skip
    assert code == 0 and "4 classes filed" in out
    found = lookup.parse(tune.file, None)
    assert {measured(each).call["b_order"] for each in found} == {"col"}
    assert {measured(each).call["precision"] for each in found} == {"tf32"}
    assert all(measured(each).trials <= 3 for each in found)
    assert "1 class filed" in tune("product", "--impl", "tiles", "--shape", "64x128", "--shape", "128x256")[1]
    assert len(lookup.parse(tune.file, None)) == 5


def test_two_calls_of_one_class_are_tuned_once(tune):
    _, out, _ = tune("product", "--impl", "tiles", "--shape", "64x128,128x256", "--shape", "60x128,128x240")
    assert "1 class filed" in out


def test_a_dry_run_files_nothing(tune):
    code, out, _ = tune("product", "--impl", "tiles", "--dry-run")
    assert code == 0 and "1 class measured, nothing filed" in out and not tune.file.exists()


def test_another_file_and_a_record(tune, tmp_path):
    file, record = tmp_path / "deep" / "own.yaml", tmp_path / "record.json"
    code, out, _ = tune("product", "--impl", "tiles", "--file", str(file), "--record", str(record),
                        "--exhaustive", "--among", "num_stages=2", "--among", "BLOCK_K=16,32")  # fmt: skip
    assert code == 0 and len(lookup.parse(file, None)) == 1 and not tune.file.exists()
    made = json.loads(record.read_text())
    (call,) = made["calls"]
    assert made["arch"] == "sm_90a" and call["exhaustive"]["of_best"] == 1.0
    assert call["exhaustive"]["legal"] > 100 and call["trials"] <= 16
    assert "1.000 of the best of" in out


def test_ctrl_c_leaves_the_file_with_what_is_finished(tune):
    Answers.stops = 2
    code, out, _ = tune("product", "--impl", "tiles", "--shape", "64x128,128x256", "--shape", "8x128,128x256")
    assert code == 130 and f"interrupted; 1 class filed in {tune.file}" in out
    assert len(lookup.parse(tune.file, None)) == 1


FEW = ["--impl", "tiles", "--among", "BLOCK_M=64", "--among", "BLOCK_N=64,128", "--among", "num_warps=8"]

MISTAKES = [
    (["nothing"], "portable has no op 'nothing'"),
    (["product", "--impl", "tile"], "Did you mean 'tiles'"),
    (["product", "--impl", "torch"], "has no tunables"),
    (["product", "--shape", "64x128"], "the shape of b is missing"),
    (["product", "--shape", "64x128,64x0"], "expected sizes from 1 on"),
    (["product", "--shape", "64x128,100x64"], "argument 'b' has shape"),
    (["product", "--shape", "1x1,1x1,1x1"], "3 shapes came"),
    (["product", "--dtype", "int8"], "has no T of int8; it has bfloat16, float32"),
    (["product", "--param", "precision=low"], "precision is one of 'ieee', 'tf32'"),
    (["product", "--param", "level=1"], "expected NAME=VALUE of precision"),
    (["product", "--columns", "c"], "'c' cannot be column-major; expected one of a, b"),
    (["product", "--among", "BLOCK_M=48"], "48 is not one of"),
    (["product", "--among", "BLOCK=48"], "expected NAME=VALUE,... of BLOCK_K, BLOCK_M"),
]


@pytest.mark.parametrize("argv, words", MISTAKES, ids=[" ".join(argv) for argv, _ in MISTAKES])
def test_a_mistake_is_one_sentence(tune, argv, words):
    code, _, err = tune(*argv)
    assert code == 2 and words in err and err.startswith("portable: ") and "Traceback" not in err
    assert not Answers.requests and not tune.file.exists()


def test_a_budget_is_a_number_from_1_on(tune):
    code, _, err = tune("product", "--budget", "0")
    assert code == 2 and "'0' is not a number from 1 on" in err


def test_a_damaged_file_is_named_before_any_work(tune):
    tune.file.write_text("schema_version: 9\nentries: []\n")
    code, _, err = tune("product")
    assert code == 2 and "tuned.yaml:1: expected `schema_version: 2`" in err and not Answers.requests


@pytest.mark.skipif(os.geteuid() == 0, reason="as root: it may write anywhere")
def test_a_folder_that_cannot_be_written_is_named_before_any_work(tune, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    code, _, err = tune("product", "--file", str(tmp_path / "closed" / "own.yaml"))
    assert code == 2 and "cannot be written" in err and not Answers.requests


def test_a_call_that_cannot_be_tuned_is_said_and_the_others_go_on(tune, monkeypatch):
    original = session.Session.tune

    def fails(self, one, *rest):
        if one.implementation == "tiles":
            raise command.PortableError("no luck")
        return original(self, one, *rest)

    monkeypatch.setattr(session.Session, "tune", fails)
    code, out, _ = tune("product")
    assert code == 1 and "not tuned: no luck" in out and "1 class filed" in out


def test_an_emulated_gpu_tells_no_time_and_its_model_is_offered(tune, monkeypatch):
    monkeypatch.setattr(detect, "device", lambda: dataclasses.replace(HOPPER, emulated=True))
    code, _, err = tune("product")
    assert code == 2 and "has no timings" in err and "--by model" in err and not tune.file.exists()


def test_without_a_gpu_there_is_nothing_to_tune(capsys):
    assert cli.main(["tune", "softmax", "--impl", "torch"]) == 2
    assert "softmax.torch has no tunables" in capsys.readouterr().err
    for argv in ([], ["--impl", "triton"]):
        assert cli.main(["tune", "softmax", *argv]) == 2
        assert "--by model chooses by an emulated GPU's timing model" in capsys.readouterr().err


def test_by_the_model_every_time_is_called_modelled(tune, model, tmp_path):
    record = tmp_path / "record.json"
    code, out, _ = tune("product", *FEW, "--by", "model", "--arch", "sm_90a", "--budget", "6",
                        "--record", str(record))  # fmt: skip
    assert code == 0 and model[0] == "sm_90a" and "1 class filed" in out
    (found,) = lookup.parse(tune.file, None)
    assert found.kind == "modelled" and found.modelled is not None and found.measured is None
    assert found.modelled.accuracy == "+-7% of 22" and found.modelled.trials <= 6
    best = max(values["BLOCK_K"] for values in model[1:] if values["num_stages"] != 4)
    assert found.config["BLOCK_K"] == best and found.modelled.us == float(f"{5000 / best:.5g}")
    assert "modelled +-7% of 22, not measured; no output was checked" in out
    rows = out.split("modelled us  config\n")[1].splitlines()
    times = [float(row.split()[0]) for row in rows if "BLOCK_K" in row]
    assert times == sorted(times) and len(times) == found.modelled.trials
    assert rows[0].endswith("<- chosen") and f"BLOCK_K={best}" in rows[0]
    assert "bits" not in out and "measured on" not in out
    assert not {"setup", "check", "time"} & set(Answers.requests)  # nothing ran on a device
    assert json.loads(record.read_text())["calls"][0]["by"] == "model"
    assert cli._entry_count([found]) == "1 entries, 1 of them modelled, not measured"


def test_a_config_that_the_model_cannot_run_is_dropped(tune, model):
    code, out, _ = tune("product", *FEW, "--by", "model", "--among", "num_stages=3,4", "--dry-run")
    assert code == 0 and "PortableError: a kernel fault" in out and "num_stages=4  " not in out
    assert "1 class modelled, nothing filed" in out


def test_a_device_without_a_model_is_refused(tune, model, monkeypatch):
    monkeypatch.setattr(CudaBackend, "model", Backend.model)
    code, _, err = tune("product", "--by", "model")
    assert code == 2 and "models no times" in err


def test_a_gpu_to_emulate_goes_with_the_model_alone(tune):
    code, _, err = tune("product", "--arch", "sm_90a")
    assert code == 2 and "goes with --by model" in err and not Answers.requests


def test_the_emulated_gpus_model_chooses_and_explain_says_so(tmp_path, monkeypatch, capsys):
    for name in ("PORTABLE_BACKEND", "PORTABLE_ROCM_ARCH", "PORTABLE_EMULATE", "PORTABLE_IMPL"):
        monkeypatch.setenv(name, "")  # to be put back: --arch sets them
    monkeypatch.setenv("PORTABLE_TUNED_DIR", str(tmp_path))
    call, file = ["softmax", "--shape", "64x512", "--dtype", "bfloat16"], tmp_path / "rocm.yaml"

    def config():
        lookup.entries.cache_clear()
        with portable.using(softmax="triton"):
            assert cli.main(["explain", *call]) == 0
        return capsys.readouterr().out.split("config:")[1].splitlines()[0]

    try:
        by_the_model = ["--by", "model", "--arch", "gfx942", "--impl", "triton", "--budget", "2", "-j", "1"]
        assert cli.main(["tune", *call, *by_the_model, "--file", str(file)]) == 0
        out = capsys.readouterr().out
        assert "modelled +-" in out and "1 class filed" in out
        assert "tuned by the timing model, not measured (emulated gfx942 at" in config()
        monkeypatch.setenv("PORTABLE_ROCM_ARCH", "gfx950")
        detect.reset()
        assert "timing model" not in config()
    finally:
        monkeypatch.undo()
        detect.reset()
        lookup.entries.cache_clear()


def test_configs_that_follow_the_batch_and_a_class_that_may_not(tune):
    tune.file.write_text(
        "schema_version: 1\nentries:\n  - {op: product, implementation: tiles, arch: sm_90a,\n"
        "     when: B > 4, config: {}, source: s, date: 2026-11-21}\n"
    )
    _, out, _ = tune("product", "--impl", "tiles", "--dry-run")
    assert "the class holds for every batch size" in out and "(tuned.yaml:3)" in out
    assert "every batch size" not in tune("product", "--impl", "apart", "--dry-run")[1]


def test_info_names_the_files_of_configs(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PORTABLE_TUNED_DIR", str(tmp_path))
    assert cli.main(["info"]) == 0
    assert f"{tmp_path / 'cpu.yaml'}: not there" in capsys.readouterr().out


def test_ctrl_c_in_a_sweep_leaves_what_was_tuned(tune, tmp_path, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(session.Session, "sweep", stopped)
    record = tmp_path / "record.json"
    code, out, _ = tune("product", "--impl", "tiles", "--exhaustive", "--record", str(record))
    assert code == 130 and "interrupted; 1 class filed" in out and len(lookup.parse(tune.file, None)) == 1
    assert json.loads(record.read_text())["calls"][0]["exhaustive"] is None
