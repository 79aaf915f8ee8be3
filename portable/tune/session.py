"""Decides what is tried: the default, the configs in files, the model's best, then the winner's neighbours.

The trials of a call are few; the winner of the last, longer rotation is filed, or the config in use before
where nothing is faster by more than the clock's noise.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from portable import __version__
from portable.backend import Backend
from portable.configs import lookup, shape_class
from portable.errors import PortableError
from portable.plan import Device
from portable.tune import cost_model, space
from portable.tune.by_model import ModelBench
from portable.tune.compiling import Compilers
from portable.tune.measure import CallBench, Drop
from portable.tune.problem import Problem
from portable.tune.search import Search
from portable.tune.space import Candidate, name_of
from portable.tune.store import MODEL_SOURCE, SOURCE
from portable.tune.worker import Worker

TRIALS = 16
ROUNDS, LAST_ROUNDS = 9, 25
FINALISTS = 4
NOISE = 1.01
"""A config must be faster than the one before by this factor to take its place."""
DEATHS = 8
"""After so many configs have killed their process, the rest of a call's budget is not used."""
SPILLS = 128
"""Bytes of stack a thread (or registers spilled) above which a config is not tried."""
BATCH = 32  # configs that are ready at one time in a sweep


@dataclass
class Result:
    """What a call's trials gave. `microseconds` are medians of the rotation that a config was last in;
    `accuracy` is that of the model that gave them, empty where they were measured."""

    problem: Problem
    best: Mapping[str, Any]
    us: float
    before: Mapping[str, Any]
    before_us: float
    default_us: float | None
    bits: str
    trials: int
    legal: int
    dropped: list[Drop]
    microseconds: dict[str, float] = field(default_factory=dict)
    accuracy: str = ""

    def entry(self, device: Device, versions: Mapping[str, str]) -> lookup.Entry:
        """The entry that is filed."""
        problem, call = self.problem, self.problem.facts
        default = None if self.default_us is None else _figures(self.default_us)
        found = call, _figures(self.us), _figures(self.before_us), default
        name = device.name.encode("ascii", "replace").decode()
        if self.accuracy:
            source, times = MODEL_SOURCE, lookup.Modelled(*found, self.accuracy, self.trials, name, versions)
        else:
            source = SOURCE
            times = lookup.Measured(*found, self.bits, self.trials, name, device.multiprocessors, versions)
        return lookup.Entry(
            problem.op, problem.implementation, device.arch, shape_class.formula(problem.spec, call),
            dict(self.best), source, datetime.date.today().isoformat(), 0, problem.shape_class, times,
        )  # fmt: skip


def _figures(microseconds: float) -> float:
    return float(f"{microseconds:.5g}")


def versions(backend: Backend) -> dict[str, str]:
    """What a measurement depends on."""
    import torch

    found = {"portable": __version__, "torch": torch.__version__}
    try:
        import triton
    except ImportError:
        pass
    else:
        found["triton"] = triton.__version__
    return {**found, **backend.versions()}


class Quiet:
    """A progress that prints nothing."""

    def say(self, text: str) -> None: ...

    def step(self, what: str, done: int, total: int) -> None: ...


class Session:
    """Tuning on one device. `make_worker` starts a process that answers as `trial_worker` does. `by_model`:
    times are those of the device's timing model."""

    def __init__(
        self,
        backend: Backend,
        device: Device,
        jobs: int,
        progress: Any = None,
        make_worker: Callable[[], Any] | None = None,
        by_model: bool = False,
    ):
        self._backend, self._device, self._by_model = backend, device, by_model
        self._progress = progress or Quiet()
        self._extra = () if make_worker is None else (make_worker,)
        self._compilers = Compilers(backend, device, jobs, *self._extra)
        self._idle: Any = None  # a process that waits for its next call

    def close(self) -> None:
        self._compilers.close()
        if self._idle is not None:
            self._idle.close()

    @contextmanager
    def _bench(self, problem: Problem) -> Iterator[CallBench | ModelBench]:
        if self._by_model:
            yield ModelBench(problem, self._backend, self._device)
            return
        worker, self._idle = self._idle, None
        bench = CallBench(problem, self._device.index, *(self._extra or (Worker,)), worker)
        try:
            yield bench
            self._idle = bench.release()
        finally:
            bench.close()

    def tune(
        self, problem: Problem, trials: int = TRIALS, among: Mapping[str, tuple[Any, ...]] | None = None
    ) -> Result:
        """The best of at most `trials` timed configs."""
        found, default, before = self._legal(problem, among)
        with self._bench(problem) as bench:
            ranked = self._rank(problem, found, bench)
            return _Trials(self, problem, bench, ranked, default, before, trials).run()

    def _legal(
        self, problem: Problem, among: Mapping[str, tuple[Any, ...]] | None
    ) -> tuple[list[Candidate], Candidate | None, Candidate]:
        """The configs that can run, the spec's default, and what a call would take were nothing tuned."""
        implementation = problem.imp
        if not implementation.tunables:
            raise PortableError(f"{problem.op}.{problem.implementation} has no tunables")
        found, total = space.space(problem, self._backend, self._device, among)
        default = self._candidate(problem, implementation.default)
        now = lookup.resolve(
            problem.spec, implementation, self._backend, self._device, problem.signature.facts, tuned=False
        )
        before = self._candidate(problem, now.values) or default
        if not found or before is None:
            plan = space.planned(problem, dict(now.values), self._device)
            raise PortableError(f"{problem} does not run on {self._device}: {plan}")
        if default is not None and repr(default.plan) == repr(before.plan):
            default = before
        fixed = {repr(each.plan): each for each in (default, before) if each is not None}
        looked = f"{total} configs" if total <= space.MOST else f"a sample of {space.MOST} of {total} configs"
        self._progress.say(f"  {len(found)} of {looked} can run")
        return [*fixed.values(), *(each for each in found if repr(each.plan) not in fixed)], default, before

    def _candidate(self, problem: Problem, given: Mapping[str, Any]) -> Candidate | None:
        values = {name: given[name] for name in problem.imp.tunables if name in given}
        plan = space.planned(problem, values, self._device)
        return None if isinstance(plan, str) else Candidate(values, plan)

    def _rank(
        self, problem: Problem, found: Iterable[Candidate], bench: CallBench | ModelBench
    ) -> list[tuple[Candidate, float]]:
        """Candidates with the prior's seconds, from its best on."""
        guess = cost_model.guessed(self._device)
        measured = (bench.setup.get("bytes_per_s"), bench.setup.get("flop_per_s"))
        rates = cost_model.Rates(measured[0] or guess.bytes_per_s, measured[1] or guess.flop_per_s)
        scored = [
            (each, cost_model.seconds(problem, each.values, each.plan, self._device, rates)) for each in found
        ]
        return sorted(scored, key=lambda pair: pair[1])

    def build(
        self, problem: Problem, candidates: Sequence[Candidate], what: str
    ) -> tuple[list[Candidate], list[Drop]]:
        """Those that compile without spilling badly, and the others."""
        done = 0

        def one(name: str) -> None:
            nonlocal done
            done += 1
            self._progress.step(what, done, len(candidates))

        built = self._compilers.build(problem, {each.name: each.values for each in candidates}, one)
        sound, dropped = [], []
        for each in candidates:
            answer = built[each.name]
            why = answer.get("why", "")
            if not why and answer["spills"] > SPILLS:
                why = f"spills {answer['spills']} bytes a thread"
            if why:
                dropped.append(Drop(each.name, why))
            else:
                sound.append(each)
        return sound, dropped

    def check(
        self, bench: CallBench | ModelBench, candidates: Sequence[Candidate], what: str
    ) -> tuple[dict[str, str], list[Drop]]:
        """The digests of the outputs of those that are right (empty where no output was made), and the
        others."""
        bits, dropped = {}, []
        for number, each in enumerate(candidates, 1):
            answer = bench.check(each.name, each.values)
            if "why" in answer:
                dropped.append(Drop(each.name, answer["why"]))
            else:
                bits[each.name] = answer["bits"]
            self._progress.step(what, number, len(candidates))
        return bits, dropped

    def sweep(self, result: Result, among: Mapping[str, tuple[Any, ...]] | None = None) -> dict[str, Any]:
        """Every legal config beside the winner, then the best of all: how near it came."""
        problem = result.problem
        candidates, _, _ = self._legal(problem, among)
        ours = self._candidate(problem, result.best)
        assert ours is not None
        sound, dropped = self.build(problem, candidates, "compiling every config")
        with self._bench(problem) as bench:
            ranked = [each.name for each, _ in self._rank(problem, candidates, bench)]
            found = self._swept(bench, ours, [each for each in sound if each.name != ours.name], dropped)
            near = sorted(found, key=lambda name: found[name])[: 2 * FINALISTS]
            by_name = {each.name: each for each in [*sound, ours]}
            last = list(dict.fromkeys([*near, ours.name]))
            self.check(bench, [by_name[name] for name in last], "checking the best")
            samples, more = bench.time(last, LAST_ROUNDS)
            dropped += more
        if ours.name not in samples:
            raise PortableError(f"{problem}: the config that won could not be timed again")
        against = {
            name: statistics.median(o / t for o, t in zip(samples[ours.name], times, strict=True))
            for name, times in samples.items()
        }
        best = max(against, key=lambda name: against[name])
        return {
            "of_best": round(1 / against[best], 4),
            "ours": {"config": dict(ours.values), "us": _figures(statistics.median(samples[ours.name]))},
            "best": {"config": dict(by_name[best].values), "us": _figures(statistics.median(samples[best]))},
            "legal": len(candidates), "timed": len(found) + 1, "trials": result.trials,
            "rank_of_best_in_prior": 1 + ranked.index(best) if best in ranked else None,
            "dropped": {each.name: each.why for each in dropped},
            "relative_time": {name: round(found[name], 4) for name in sorted(found, key=found.__getitem__)},
        }  # fmt: skip

    def _swept(
        self, bench: CallBench | ModelBench, ours: Candidate, others: Sequence[Candidate], dropped: list[Drop]
    ) -> dict[str, float]:
        """Time of every config relative to ours, a batch at a time beside it."""
        found: dict[str, float] = {}
        for first in range(0, len(others), BATCH):
            batch = others[first : first + BATCH]
            bits, wrong = self.check(bench, [ours, *batch], f"sweep {first} of {len(others)}: checking")
            samples, more = bench.time(bits, 3)
            dropped += [*wrong, *more]
            anchor = samples.get(ours.name)
            if anchor is None:
                raise PortableError("the config that won could not be timed beside the others")
            for name, times in samples.items():
                if name != ours.name:
                    found[name] = statistics.median(t / o for t, o in zip(times, anchor, strict=True))
            bench.drop([ours.name, *(each.name for each in batch)])
        return found


class _Trials:
    """The trials of one call."""

    def __init__(
        self,
        session: Session,
        problem: Problem,
        bench: CallBench | ModelBench,
        ranked: Sequence[tuple[Candidate, float]],
        default: Candidate | None,
        before: Candidate,
        trials: int,
    ):
        self._session, self._problem, self._bench = session, problem, bench
        self._search, self._legal = Search(problem.imp, ranked), len(ranked)
        self._default, self._before = default, before
        self._left = max(trials, 1)
        self._tried: dict[str, Candidate] = {}
        self._bits: dict[str, str] = {}
        self._us: dict[str, float] = {}
        self._dropped: list[Drop] = []

    def run(self) -> Result:
        fixed = {each.name: each for each in (self._before, self._default) if each is not None}
        half, quarter = self._left // 2, max(self._left // 4, 1)
        shown = max(half - len(fixed), 1 if self._left > len(fixed) else 0)
        first = self._search.first(fixed.values(), min(quarter, shown), shown)
        self._try([*fixed.values(), *first], len(fixed) + shown)
        few = max(2, self._left // 4)
        while self._left > 0 and self._bench.deaths < DEATHS:
            near = self._search.following(self._us, [each.name for each in self._dropped], few + 2)
            if not near:
                break
            self._try(near, few)
        return self._result(self._last())

    def _try(self, candidates: Sequence[Candidate], count: int) -> None:
        """Compile, check and time the first `count` of them that can be."""
        count = min(count, self._left)
        for each in candidates:
            self._tried[each.name] = each
        sound, dropped = self._session.build(self._problem, candidates, "compiling")
        self._dropped += dropped
        names: list[str] = []
        for each in sound:
            if len(names) >= count:
                self._tried.pop(each.name)  # it may be tried later
                continue
            bits, wrong = self._session.check(self._bench, [each], f"checking {len(names) + 1}")
            self._dropped += wrong
            self._bits |= bits
            names += bits
        self._session._progress.step("timing", len(names), len(names))
        self._left -= len(self._time(names, ROUNDS))

    def _time(self, names: Sequence[str], rounds: int) -> dict[str, float]:
        """Medians; those of earlier rotations are put on this one's clock by the best config so far."""
        anchor = min(self._us, key=lambda name: self._us[name], default=None)
        rotation = ([anchor] if anchor else []) + [name for name in names if name != anchor]
        samples, dropped = self._bench.time(rotation, rounds)
        self._dropped += dropped
        for each in dropped:
            self._us.pop(each.name, None)
        found = {name: statistics.median(times) for name, times in samples.items()}
        if anchor in found and anchor in self._us:
            drift = found[anchor] / self._us[anchor]
            self._us = {name: us * drift for name, us in self._us.items()}
        self._us |= found
        return {name: us for name, us in found.items() if name in names}

    def _last(self) -> dict[str, float]:
        """The best few, the config before and the default, once more and longer, in one rotation."""
        best = sorted(self._us, key=lambda name: self._us[name])[:FINALISTS]
        fixed = [each.name for each in (self._before, self._default) if each is not None]
        rotation = list(dict.fromkeys([*best, *(name for name in fixed if name in self._us)]))
        if not rotation:
            why = "; ".join(f"{each.name}: {each.why}" for each in self._dropped[:3])
            raise PortableError(f"{self._problem}: no config could be timed ({why})")
        samples, dropped = self._bench.time(rotation, LAST_ROUNDS)
        self._dropped += dropped
        if not samples:
            raise PortableError(f"{self._problem}: no config could be timed to the end")
        return {name: statistics.median(times) for name, times in samples.items()}

    def _result(self, last: dict[str, float]) -> Result:
        best = min(last, key=lambda name: last[name])
        before_us = last.get(self._before.name)
        if before_us is not None and before_us < NOISE * last[best]:
            best = self._before.name
        default = None if self._default is None else self._default.name
        known = bool(self._bits.get(str(default)))
        same = known and self._bits[best] == self._bits[str(default)]
        return Result(
            self._problem,
            self._tried[best].values,
            last[best],
            self._before.values,
            last[best] if before_us is None else before_us,
            last.get(str(default)),
            ("same" if same else "differ") if known else "unknown",
            len(self._us),
            self._legal,
            self._dropped,
            {**self._us, **last},
            self._bench.setup.get("accuracy", ""),
        )


__all__ = ["TRIALS", "Quiet", "Result", "Session", "name_of", "versions"]
