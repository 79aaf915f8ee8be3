"""A model of who waits for whom in bwd_hdim256.cu and bwd_dq_hdim256.cu: roles as generators, in any
order.

It holds the waits and what lies in shared memory: which step's rows, probabilities or gradients. A kernel
that stands still ends no test run, so the order is tried here.
"""

from __future__ import annotations

import random

import pytest

from tests.kernels.attention.sm90.roles import Barrier, Role, deadlocks


class Stages:
    """A ring, or buffers: what fills one waits until all `readers` are through with what it held."""

    def __init__(self, count: int, readers: int):
        self.full = [Barrier(1) for _ in range(count)]
        self.free = [Barrier(readers) for _ in range(count)]
        self.holds: list[int | None] = [None] * count
        self.reading = [0] * count

    def fill(self, step: int) -> Role:
        stage = step % len(self.full)
        yield self.free[stage].over(step // len(self.full) - 1)
        assert not self.reading[stage]
        self.holds[stage] = step
        self.full[stage].arrive()

    def read(self, step: int) -> Role:
        stage = step % len(self.full)
        yield self.full[stage].over(step // len(self.full))
        assert self.holds[stage] == step
        self.reading[stage] += 1
        yield lambda: True  # the others go on while it is read
        assert self.holds[stage] == step

    def leave(self, step: int) -> None:
        stage = step % len(self.full)
        self.reading[stage] -= 1
        self.free[stage].arrive()


class Keys:
    """A block of bwd_hdim256.cu, with `buffers` for gradients of scores on their way out. A warp for each
    ring clears what lies beyond a sequence's end in the `partial` steps."""

    def __init__(self, steps: int, stages: int, buffers: int, partial: frozenset[int] = frozenset()):
        self.steps, self.buffers, self.partial = steps, buffers, partial
        self.q, self.dout, self.p = Stages(stages, 2), Stages(stages, 2), Stages(2, 1)
        self.meet = Barrier(2)
        self.written: list[list[int]] = [[-1, -1] for _ in range(buffers)]
        self.leaving: list[int] = []  # steps whose gradients TMA has yet to read
        self.kept: list[int] = []
        self.roles = [self.make_dv(), self.make_dk(), self.second_warp(), self.tma()]
        for ring in (self.q, self.dout):
            announced = [Barrier(1) for _ in range(stages)]
            self.roles += [self.load(ring, announced), self.clear(ring, announced)]

    def load(self, ring: Stages, announced: list[Barrier]) -> Role:
        for step in range(self.steps):
            if step in self.partial:
                stage = step % len(announced)
                yield ring.free[stage].over(step // len(announced) - 1)
                assert not ring.reading[stage]
                announced[stage].arrive()
            else:
                yield from ring.fill(step)

    def clear(self, ring: Stages, announced: list[Barrier]) -> Role:
        phases = [0] * len(announced)
        for step in sorted(self.partial):
            stage = step % len(announced)
            yield announced[stage].over(phases[stage])
            phases[stage] += 1
            ring.holds[stage] = step
            ring.full[stage].arrive()

    def make_dv(self) -> Role:
        for step in range(self.steps):
            yield from self.q.read(step)
            self.q.leave(step)
            yield from self.p.fill(step)
            yield from self.dout.read(step)
            self.dout.leave(step)

    def make_dk(self) -> Role:
        for step in range(self.steps):
            yield from self.dout.read(step)
            self.dout.leave(step)
            yield from self.p.read(step)
            self.p.leave(step)
            yield from self.q.read(step)
            self.write(step, 0)
            yield lambda: not self.leaving  # wait_stores_read
            self.meet.arrive()
            yield self.meet.over(step)
            self.leaving.append(step)
            self.q.leave(step)

    def second_warp(self) -> Role:
        for step in range(self.steps):
            yield lambda: True
            self.write(step, 1)
            self.meet.arrive()
            yield self.meet.over(step)

    def write(self, step: int, warp: int) -> None:
        assert all(other % self.buffers != step % self.buffers for other in self.leaving), "not read yet"
        self.written[step % self.buffers][warp] = step

    def tma(self) -> Role:
        while len(self.kept) < self.steps:
            yield lambda: bool(self.leaving)
            step = self.leaving[0]
            assert self.written[step % self.buffers] == [step, step]
            self.kept.append(self.leaving.pop(0))


@pytest.mark.parametrize("stages", [2, 3])
def test_no_order_deadlocks_or_writes_over_what_is_read(stages):
    order = random.Random(stages)
    for steps in (0, 1, 2, 3, 5, 12):
        for _ in range(60):
            block = Keys(steps, stages, buffers=2)
            assert not deadlocks(block.roles, order)
            assert block.kept == list(range(steps))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("partial", [{0}, {0, 5, 10}, {0, 1, 2, 3}, set(range(12))])
def test_steps_that_cross_a_sequences_end_are_cleared_first(stages, partial):
    order = random.Random(stages)
    for _ in range(60):
        block = Keys(12, stages, buffers=2, partial=frozenset(partial))
        assert not deadlocks(block.roles, order)
        assert block.kept == list(range(12))


def test_one_buffer_of_gradients_is_written_over():
    order = random.Random(1)
    with pytest.raises(AssertionError):
        for _ in range(60):
            deadlocks(Keys(5, 2, buffers=1).roles, order)


class Queries:
    """A block of bwd_dq_hdim256.cu: two consumers, each with blocks of keys of its own among all."""

    def __init__(self, spans: list[tuple[int, int]], skips_wait: bool = True):
        self.steps = max(end for _, end in spans) - min(first for first, _ in spans)
        self.base, self.skips_wait = min(first for first, _ in spans), skips_wait
        self.ring = Stages(4, 2)
        self.taken: list[list[int]] = [[] for _ in spans]
        self.roles = [self.load(), *(self.multiply(spans[i], self.taken[i]) for i in range(len(spans)))]

    def load(self) -> Role:
        for step in range(self.steps):
            yield from self.ring.fill(step)

    def multiply(self, span: tuple[int, int], taken: list[int]) -> Role:
        for step in range(self.steps):
            own = span[0] <= self.base + step < span[1]
            if own or self.skips_wait:
                yield from self.ring.read(step)
                self.ring.leave(step)
            else:
                yield lambda: True
                self.ring.free[step % 4].arrive()
            if own:
                taken.append(self.base + step)


@pytest.mark.parametrize("spans", [[(0, 1), (0, 1)], [(0, 9), (0, 10)], [(3, 9), (4, 10)], [(0, 3), (7, 12)]])
def test_consumers_of_other_keys_stay_in_step(spans):
    order = random.Random(7)
    for _ in range(60):
        block = Queries(spans)
        assert not deadlocks(block.roles, order)
        assert block.taken == [list(range(*span)) for span in spans]


def test_a_consumer_that_frees_what_it_has_not_seen_filled_is_found():
    order = random.Random(7)
    with pytest.raises(AssertionError):
        for _ in range(60):
            assert not deadlocks(Queries([(0, 30), (20, 30)], skips_wait=False).roles, order)
