"""Models of who waits for whom in a thread block: roles as generators that yield what they wait for, and
run in any order. A kernel that deadlocks ends no test run, so the order is tried here."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

Wait = Callable[[], bool]
Role = Iterator[Wait]


class Barrier:
    """Of as many arrivals a phase; a wait tells phases apart by parity, so none may be two ahead."""

    def __init__(self, arrivals: int):
        self.arrivals, self.here, self.phases = arrivals, 0, 0

    def arrive(self) -> None:
        self.here += 1
        if self.here == self.arrivals:
            self.here, self.phases = 0, self.phases + 1

    def over(self, phase: int) -> Callable[[], bool]:
        def seen() -> bool:
            assert self.phases <= phase + 2
            return self.phases > phase

        return seen


def deadlocks(roles: list[Role], order: random.Random) -> bool:
    """Whether the roles, taken in this order, come to where each waits."""
    waits = {role: wait for role in roles if (wait := next(role, None)) is not None}
    while waits:
        ready = [role for role, wait in waits.items() if wait()]
        if not ready:
            return True
        role = order.choice(ready)
        wait = next(role, None)
        if wait is None:
            del waits[role]
        else:
            waits[role] = wait
    return False
