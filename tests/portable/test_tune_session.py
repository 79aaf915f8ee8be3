"""Tuning with no device: a made-up process compiles, checks and times by a formula, and may die of it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from portable.backends.cuda.backend import TARGETS, CudaBackend
from portable.configs import lookup
from portable.errors import PortableError
from portable.spec import registry
from portable.tune import cost_model, problem, session, space
from portable.tune.worker import Died

HOPPER = next(target for target in TARGETS if target.arch == "sm_90a")


def small(values):
    """Microseconds of a config: 128 x 128 x 64 is best, and each step away costs."""
    wanted = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 4, "num_warps": 8, "num_stages": 3}
    away = sum(abs(values[name].bit_length() - best.bit_length()) for name, best in wanted.items())
    return 100.0 + 15.0 * away + values["num_stages"]


class FakeWorker:
    """Answers as `trial` does. `faults` maps a word to a predicate over values: what goes wrong and when."""

    made = 0

    def __init__(self, time_of=small, **faults):
        type(self).made += 1
        self.time_of, self.faults, self.ready, self.dead = time_of, faults, {}, False

    def _is(self, fault, values):
        return self.faults.get(fault, lambda values: False)(values)

    def request(self, message, seconds):
        assert not self.dead
        json.dumps(message)
        if "compile" in message:
            values = message["compile"]
            if self._is("kills_compiler", values):
                self.dead = True
                raise Died("killed by SIGABRT", "")
            if self._is("does_not_compile", values):
                return {"why": "CompileError: out of registers"}
            spills = 4096 if self._is("spills", values) else 0
            return {"registers": 128, "shared": 1024, "spills": spills, "threads": 128}
        if "setup" in message:
            self.ready = {}
            return {"sets": 4, "reference": "float64", "bytes_per_s": 4e12, "flop_per_s": 7e14}
        if "check" in message:
            values = message["values"]
            if self._is("crashes", values):
                self.dead = True
                raise Died("killed by SIGSEGV", "")
            if self._is("is_lost", values):
                return {"why": "AcceleratorError: an illegal memory access", "lost": True}
            if self._is("is_wrong", values):
                return {"why": "c is wrong: |error| is 3 of the bound"}
            self.ready[message["check"]] = values
            return {"bits": f"k{values['BLOCK_K']}"}
        if "time" in message:
            for name in message["time"]:
                if self._is("dies_in_rounds", self.ready[name]):
                    self.dead = True
                    raise Died("killed by SIGKILL", name if self._is("tells", self.ready[name]) else "")
            times = {name: self.time_of(self.ready[name]) for name in message["time"]}
            clock = [1 + 0.01 * run_round for run_round in range(message["rounds"])]
            return {"samples": {n: [t * each for each in clock] for n, t in times.items()}, "failed": {}}
        for name in message["drop"]:
            self.ready.pop(name, None)
        return {}

    def kill(self):
        self.dead = True

    close = kill


@pytest.fixture
def backend(tmp_path, product):
    """The vendor with an empty folder: nothing is tuned yet."""
    folder = tmp_path / "cuda"
    folder.mkdir()
    return CudaBackend(folder)


def a_problem(M=2048, N=1024, K=512, implementation="tiles"):
    spec = registry.spec("product")
    row = problem.type_row(spec, "bfloat16")
    return problem.of_shapes(spec, implementation, [(M, K), (K, N)], row, {})


@pytest.fixture
def tuner(backend):
    made = []

    def start(**faults):
        made.append(session.Session(backend, HOPPER, 2, make_worker=lambda: FakeWorker(**faults)))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.slow
def test_the_best_is_found_in_at_most_16_trials(tuner, backend):
    result = tuner().tune(a_problem())
    assert result.trials <= session.TRIALS
    legal, _ = space.space(a_problem(), backend, HOPPER)
    best = min(small(each.values) for each in legal)
    assert result.us <= best / 0.96 * 1.25  # the last turn of the made-up clock is a quarter slower
    assert result.before_us / result.us == pytest.approx(small(result.before) / small(result.best))


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 16, 40])
def test_the_budget_holds(tuner, budget):
    timed = set()

    def watched(values):
        timed.add(space.name_of(values))
        return small(values)

    result = tuner(time_of=watched).tune(a_problem(), budget)
    assert len(timed) <= budget and result.trials <= budget


def test_a_winner_that_is_hardly_faster_does_not_replace_the_config_before(tuner):
    result = tuner(time_of=lambda values: 100.0 - 0.001 * values["BLOCK_M"]).tune(a_problem())
    assert result.best == result.before and result.us == result.before_us


@pytest.mark.slow
def test_bits_are_compared_with_the_defaults(tuner):
    tiles = registry.spec("product").implementation("tiles")
    assert tiles is not None
    default = tiles.default
    assert tuner().tune(a_problem()).bits == "differ"  # 64 along K, the default has 16
    stay = tuner(time_of=lambda values: 100.0 + 50.0 * (values["BLOCK_K"] != default["BLOCK_K"])
                 - 0.3 * values["num_stages"] - 0.1 * values["BLOCK_M"])  # fmt: skip
    result = stay.tune(a_problem())
    assert result.best["BLOCK_K"] == default["BLOCK_K"] and result.bits == "same"


FAULTS = ["does_not_compile", "kills_compiler", "spills", "crashes", "is_lost", "is_wrong"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_config_that_fails_is_dropped_and_said_and_the_rest_are_timed(tuner, fault):
    bad = lambda values: values["BLOCK_M"] == 128 and values["num_warps"] == 4  # noqa: E731
    result = tuner(**{fault: bad}).tune(a_problem())
    assert result.dropped and all("BLOCK_M=128" in each.name for each in result.dropped)
    assert result.best["num_warps"] == 8 or result.best["BLOCK_M"] != 128
    words = {"spills": "spills 4096", "crashes": "crashed: killed by SIGSEGV", "is_lost": "crashed",
             "kills_compiler": "the compiler: killed"}  # fmt: skip
    assert words.get(fault, "") in result.dropped[0].why


@pytest.mark.parametrize("tells", [True, False])
def test_one_that_kills_the_process_in_its_rounds_is_found(tuner, tells):
    guilty = lambda values: values["num_stages"] == 4  # noqa: E731
    result = tuner(dies_in_rounds=guilty, tells=lambda values: tells).tune(a_problem())
    assert result.best["num_stages"] != 4
    assert {each.name.split("num_stages=")[1][0] for each in result.dropped} == {"4"}


@pytest.mark.slow
def test_where_every_config_fails_the_reason_is_said(tuner):
    with pytest.raises(PortableError, match=r"no config could be timed.*is wrong"):
        tuner(is_wrong=lambda values: True).tune(a_problem())


def test_a_sweep_says_how_near_the_trials_came(tuner, backend):
    among = {"num_stages": (2, 3), "GROUP_M": (4, 8), "num_warps": (8,)}
    one = tuner(is_wrong=lambda values: values["BLOCK_M"] == 32)
    result = one.tune(a_problem(), 12, among)
    swept = one.sweep(result, among)
    legal, _ = space.space(a_problem(), backend, HOPPER, among)
    best = min(small(each.values) for each in legal if each.values["BLOCK_M"] != 32)
    assert swept["best"]["us"] >= best
    assert swept["of_best"] == pytest.approx(best / small(result.best), abs=2e-4)
    assert swept["timed"] + len(swept["dropped"]) >= len(legal) - 1
    assert swept["relative_time"] and json.dumps(swept)


@pytest.mark.slow
def test_the_prior_puts_sound_tiles_first(backend):
    """The order of magnitude: of a large product's configs a large tile leads, of few rows a low one."""
    for M, N, K, tile in ((8192, 8192, 8192, 128 * 256), (16, 8192, 8192, None)):
        one = a_problem(M, N, K)
        found, _ = space.space(one, backend, HOPPER)
        best = min(
            found, key=lambda c: cost_model.seconds(one, c.values, c.plan, HOPPER, cost_model.guessed(HOPPER))
        )
        if tile:
            assert best.values["BLOCK_M"] * best.values["BLOCK_N"] == tile
        else:
            assert best.values["BLOCK_M"] <= 32 and best.values["BLOCK_K"] == 128


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(registry.op_folders()))
def test_the_prior_ranks_every_implementation_with_tunables(op, backend):
    spec = registry.spec(op)
    for implementation in spec.implementations:
        if not implementation.tunables or implementation.kind == "run":
            continue
        first = spec.type_variables[0]
        row = next((row for row in spec.types if row[first] == "bfloat16"), spec.types[0])
        for case in spec.bench:
            one = problem.of_case(spec, implementation.name, case, row)
            found, _ = space.space(one, backend, HOPPER)
            times = [
                cost_model.seconds(one, c.values, c.plan, HOPPER, cost_model.guessed(HOPPER)) for c in found
            ]
            assert all(0 < each < 10 for each in times)


def test_a_class_says_what_the_config_holds_for(backend):
    one = a_problem(4096, 4096, 4095)
    assert one.shape_class == (
        "T=bfloat16 precision=ieee a_order=row b_order=row M=2049..4096 N=2049..4096:16 K=2049..4096:odd"
    )
    softmax = registry.spec("softmax")
    row = problem.type_row(softmax, "float32")
    few = problem.of_shapes(softmax, "triton", [(8, 4096)], row, {})
    many = problem.of_shapes(softmax, "triton", [(8192, 4096)], row, {})
    assert few.shape_class == many.shape_class == "T=float32 N=2049..4096:16"  # batch invariant: no B
    triton = softmax.implementation("triton")
    assert triton is not None
    other = dataclasses.replace(triton, batch_invariant=False)
    from portable.configs import shape_class

    assert shape_class.class_names(softmax, other)[-1] == "B"


def test_an_entry_of_a_result_passes_the_reader(tuner, backend):
    from portable.tune import store

    result = tuner().tune(a_problem())
    entry = result.entry(HOPPER, session.versions(backend))
    file = backend.folder / "tuned.yaml"
    store.merge(file, [entry])
    (read,) = lookup.entries(file)
    assert dataclasses.replace(read, line=0) == entry and read.line == 5
    spec = registry.spec("product")
    tiles = spec.implementation("tiles")
    assert tiles is not None
    config = lookup.resolve(spec, tiles, backend, HOPPER, a_problem().signature.facts)
    assert dict(config.values) == dict(result.best)
    assert "tuned for this device (measured on NVIDIA H100/H200" in config.source


def test_the_search_finds_its_way_where_the_model_is_wrong(backend):
    """Every value of every tunable is off by a factor of its own: 16 of 2000 trials still come near."""
    import math
    import random

    from portable.tune.search import Search

    one = a_problem()
    found, _ = space.space(one, backend, HOPPER)
    guess = {
        c.name: cost_model.seconds(one, c.values, c.plan, HOPPER, cost_model.guessed(HOPPER)) for c in found
    }
    ranked = sorted(((c, guess[c.name]) for c in found), key=lambda pair: pair[1])
    reached = []
    for seed in range(8):
        rng = random.Random(seed)
        off = {(name, v): rng.gauss(0, 0.15) for name, legal in one.imp.tunables.items() for v in legal}
        error = {c.name: math.exp(sum(off[pair] for pair in c.values.items())) for c in found}
        us = {name: 1e6 * guess[name] * error[name] for name in guess}
        search = Search(one.imp, ranked)
        tried = {c.name: us[c.name] for c in search.first([], 4, 8)[:8]}
        while len(tried) < 16:
            tried |= {c.name: us[c.name] for c in search.following(tried, (), 2)}
        reached.append(min(us.values()) / min(tried.values()))
    assert sorted(reached)[1] > 0.85 and sum(reached) / len(reached) > 0.93


def test_a_vendors_own_tunable_is_varied_where_its_entries_name_it(backend):
    one = a_problem()
    plain = space.varied(one, backend)
    assert "vendors_own" not in plain
    (backend.folder / "tuned.yaml").write_text(
        "schema_version: 1\nentries:\n  - {op: product, implementation: tiles, arch: sm_80,\n"
        "     config: {vendors_own: 1}, source: s, date: 2026-11-21}\n"
    )
    lookup.entries.cache_clear()
    assert space.varied(one, backend)["vendors_own"] == (0, 1)
    assert space.varied(one, backend, {"vendors_own": (0,)})["vendors_own"] == (0,)


def test_of_too_many_configs_a_sample_is_looked_at_and_said(backend, monkeypatch):
    monkeypatch.setattr(space, "MOST", 100)
    one = a_problem()
    found, total = space.space(one, backend, HOPPER)
    again, _ = space.space(one, backend, HOPPER)
    assert len(found) <= 100 < total and [c.name for c in found] == [c.name for c in again]
