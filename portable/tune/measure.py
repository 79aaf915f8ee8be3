"""The process that checks and times configs on the device, started anew when a config kills it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from portable.errors import PortableError
from portable.tune.problem import Problem
from portable.tune.worker import Died, Worker

SETUP, CHECK, TIME = 600.0, 120.0, 300.0  # seconds before a process counts as hung
MOST_DEATHS = 64  # of one call's configs, in a sweep


@dataclass(frozen=True)
class Drop:
    """Why a config takes no further part."""

    name: str
    why: str


class CallBench:
    """One call on one device."""

    def __init__(
        self,
        problem: Problem,
        index: int,
        make_worker: Callable[[], Any] = Worker,
        worker: Any = None,
    ):
        self._problem, self._index, self._make = problem, index, make_worker
        self._worker = worker
        self._sound: dict[str, Mapping[str, Any]] = {}
        self.deaths = 0
        self.setup: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        self._worker = self._worker or self._make()
        try:
            answer = self._worker.request({"setup": self._problem.as_json(), "index": self._index}, SETUP)
        except Died as death:
            answer = {"why": str(death)}
        if "why" in answer:
            self.close()
            raise PortableError(f"{self._problem} cannot be set up for timing: {answer['why']}")
        self.setup = answer

    def _again(self) -> None:
        """A new process, with the configs in it that were sound in the old one."""
        self.close()
        self._start()
        for name in list(self._sound):
            answer = self._request({"check": name, "values": dict(self._sound[name])}, CHECK)
            if "why" in answer:
                del self._sound[name]

    def _request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The worker's answer; it has "died" where the process ended or the device was lost."""
        assert self._worker is not None
        try:
            answer = self._worker.request(request, seconds)
        except Died as death:
            return {"why": str(death), "died": death.doing}
        return {**answer, "died": ""} if answer.get("lost") else answer

    def _count(self) -> None:
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            raise PortableError(f"{self._problem}: {self.deaths} configs lost the device; stopped")

    def check(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """{"bits": digest of its outputs}, or {"why": ...} where it is wrong or did not survive."""
        answer = self._request({"check": name, "values": dict(values)}, CHECK)
        if "died" in answer:
            self._count()
            self._again()
            return {"why": f"crashed: {answer['why']}"}
        if "why" not in answer:
            self._sound[name] = values
        return answer

    def time(self, names: Iterable[str], rounds: int) -> tuple[dict[str, list[float]], list[Drop]]:
        """Microseconds per round of the configs that were checked, in one rotation, and those dropped."""
        dropped: list[Drop] = []
        sound = [name for name in names if name in self._sound]
        while sound:
            answer = self._request({"time": sound, "rounds": rounds}, TIME)
            if "why" not in answer:
                dropped += [Drop(name, why) for name, why in answer["failed"].items()]
                self.drop(answer["failed"])
                return answer["samples"], dropped
            if "died" not in answer:
                raise PortableError(f"{self._problem} could not be timed: {answer['why']}")
            self._count()
            guilty = answer["died"] if answer["died"] in sound else self._guilty(sound)
            dropped += [Drop(guilty, f"crashed: {answer['why']}")]
            self._sound.pop(guilty, None)
            self._again()
            sound = [name for name in sound if name in self._sound]
        return {}, dropped

    def _guilty(self, sound: list[str]) -> str:
        """The config that kills the process while it is timed: the first that does so alone, else the
        last."""
        self._again()
        for name in sound:
            if "died" in self._request({"time": [name], "rounds": 3}, TIME):
                return name
        return sound[-1]

    def drop(self, names: Iterable[str]) -> None:
        """Configs that need not stay ready."""
        gone = [name for name in names if self._sound.pop(name, None) is not None]
        if gone:
            self._request({"drop": gone}, CHECK)

    def release(self) -> Any:
        """The process, for another call; None where it is lost."""
        worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
