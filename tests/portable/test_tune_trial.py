"""The process of trials on the toy vendor: checks are real, its GPU's clock is made up."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from portable.runtime import timing
from portable.spec import registry
from portable.tune import accuracy, problem, trial_worker
from portable.tune.worker import Died, Worker


@pytest.fixture
def bench(toy, monkeypatch):
    """A trial process's inside for twice(x), in this process."""
    module = types.SimpleNamespace(
        set_device=lambda index: None,
        mem_get_info=lambda index: (1 << 30, 1 << 30),
        synchronize=lambda: None,
        empty_cache=lambda: None,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)

    class Timed:
        def __init__(self, name, call, sets):
            self.name, self.call = name, call
            for one in sets:
                call(one)

    def rotate(timed, rounds):
        return {each.name: timing.Sample(each.name, (10.0,) * rounds, True) for each in timed}

    monkeypatch.setattr(timing, "Timed", Timed)
    monkeypatch.setattr(timing, "rotate", rotate)
    monkeypatch.setattr(
        timing, "interleaved", lambda made, rounds, failed: {n: timing.Sample(n, (10.0,), True) for n in made}
    )
    return trial_worker.Bench(a_problem().as_json(), 0)


def a_problem():
    spec = registry.spec("twice")
    return problem.of_shapes(spec, "toy", [(5, 7)], problem.type_row(spec, "float32"), {})


def test_a_right_config_is_kept_and_a_wrong_one_named(bench):
    assert bench.setup_answer()["reference"] == "float64" and bench.setup_answer()["bytes_per_s"] > 0
    assert set(bench.check("two", {"FACTOR": 2})) == {"bits"}
    assert "y is wrong: |error| is" in bench.check("three", {"FACTOR": 3})["why"]
    said = []
    answer = bench.time(["two"], 4, said.append)
    assert answer == {"samples": {"two": [10.0] * 4}, "failed": {}}
    assert said == [{"begin": "two"}, {"begin": ""}]
    assert bench.time(["two"], 2, said.append)["samples"] == {"two": [10.0] * 2}  # it stays ready
    assert bench.drop(["two", "unknown"]) == {}


def test_a_config_whose_bits_change_from_run_to_run_is_dropped(bench, monkeypatch):
    original = bench._call

    def restless(values):
        call, runs = original(values), []

        def run(tensors):
            runs.append(1)
            return call(tensors) * (1 + 6e-8 * (len(runs) % 2))

        return run

    monkeypatch.setattr(bench, "_call", restless)
    assert bench.check("two", {"FACTOR": 2})["why"] == "gives other bits when it runs again"


def test_what_was_not_written_is_found(bench, monkeypatch):
    def silent(values):
        return lambda tensors: torch.full_like(tensors["x"], float("nan"))

    monkeypatch.setattr(bench, "_call", silent)
    assert bench.check("two", {"FACTOR": 2})["why"] == "y holds numbers that are not finite"


def test_without_memory_for_a_reference_the_first_outputs_stand_in(toy, monkeypatch):
    def none_left(self, tensors):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(accuracy.Judge, "_refer", none_left)
    monkeypatch.setattr(torch, "get_device_module", lambda d: types.SimpleNamespace(empty_cache=lambda: None))
    one = a_problem()
    tensors = one.tensors("cpu", 0)
    judge = accuracy.Judge(one, tensors)
    assert judge.kind == "the default's outputs"
    right = 2 * tensors["x"]
    assert judge.wrong([right]) == ""
    assert judge.wrong([right * (1 + 1e-7)]) == ""
    assert "wrong" in judge.wrong([right * 1.001])


def test_digests_tell_bits_apart(toy):
    judge = accuracy.Judge(a_problem(), a_problem().tensors("cpu", 0))
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert judge.digest([x]) == judge.digest([x.clone()])
    nudged = x.clone()
    nudged[500] = torch.nextafter(nudged[500], torch.tensor(9.0))
    swapped = x[torch.tensor([1, 0, *range(2, 1000)])]
    assert len({judge.digest([each]) for each in (x, nudged, swapped, -x)}) == 4


# The other end --------------------------------------------------------------------------------------


def program(text):
    return (sys.executable, "-c", "import sys, json, os, signal, time\n" + text)


def test_a_process_answers_a_line_with_a_line():
    echo = "for line in sys.stdin: print(json.dumps({'got': json.loads(line)}), flush=True)"
    worker = Worker(program(echo))
    assert worker.request({"a": 1}, 30) == {"got": {"a": 1}}
    assert worker.request({"b": 2}, 30) == {"got": {"b": 2}}
    worker.close()
    worker.close()


DEATHS = [
    ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ("sys.stderr.write('first\\nlast word\\n'); sys.exit(3)", "exit code 3: last word"),
    ("print('no json', flush=True); time.sleep(60)", "no JSON"),
    ("time.sleep(60)", "did not answer in time"),
]


@pytest.mark.slow
@pytest.mark.parametrize("text, how", DEATHS)
def test_a_process_that_dies_says_how_and_at_what(text, how):
    begun = "sys.stdin.readline(); print(json.dumps({'begin': 'this one'}), flush=True)\n"
    worker = Worker(program(begun + text))
    with pytest.raises(Died, match=how) as caught:
        worker.request({}, 3)
    assert caught.value.doing == "this one"
    worker.close()


@pytest.mark.slow
def test_the_real_program_refuses_without_a_gpu_and_lives_on():
    """A request that raises is answered with the reason."""
    worker = Worker()
    answer = worker.request({"check": "x", "values": {}}, 60)
    assert "why" in answer
    assert "why" in worker.request({"time": ["x"], "rounds": 1}, 60)
    worker.close()
