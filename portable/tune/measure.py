"""The process that checks and times configs on the device, started anew when a config kills it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from portable.errors import PortableError
from portable.tune.problem import Subject
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
        subject: Subject,
        index: int,
        make_worker: Callable[[], Any] = Worker,
        worker: Any = None,
    ):
        self._subject, self._index, self._make = subject, index, make_worker
        self._worker = worker
        self._sound: dict[str, Mapping[str, Any]] = {}
        self.deaths = 0
        self.told: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        self._worker = self._worker or self._make()
        try:
            answer = self._worker.ask({"setup": self._subject.as_json(), "index": self._index}, SETUP)
        except Died as death:
            answer = {"why": str(death)}
        if "why" in answer:
            self.close()
            raise PortableError(f"{self._subject} cannot be set up for timing: {answer['why']}")
        self.told = answer

    def _again(self) -> None:
        """A new process, with the configs in it that were sound in the old one."""
        self.close()
        self._start()
        for name in list(self._sound):
            answer = self._ask({"check": name, "values": dict(self._sound[name])}, CHECK)
            if "why" in answer:
                del self._sound[name]

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """An answer; a death, or a device that is lost, is an answer with "died"."""
        assert self._worker is not None
        try:
            answer = self._worker.ask(request, seconds)
        except Died as death:
            return {"why": str(death), "died": death.doing}
        return {**answer, "died": ""} if answer.get("lost") else answer

    def _count(self) -> None:
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            raise PortableError(f"{self._subject}: {self.deaths} configs lost the device; stopping here")

    def check(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """{"bits": digest of its outputs}, or {"why": ...} where it is wrong or did not survive."""
        answer = self._ask({"check": name, "values": dict(values)}, CHECK)
        if "died" in answer:
            self._count()
            self._again()
            return {"why": f"crashed: {answer['why']}"}
        if "why" not in answer:
            self._sound[name] = values
        return answer

    def time(self, names: Iterable[str], turns: int) -> tuple[dict[str, list[float]], list[Drop]]:
        """Microseconds per turn of the configs that were checked, in one rotation, and who fell out."""
        dropped: list[Drop] = []
        asked = [name for name in names if name in self._sound]
        while asked:
            answer = self._ask({"time": asked, "turns": turns}, TIME)
            if "why" not in answer:
                dropped += [Drop(name, why) for name, why in answer["failed"].items()]
                self.drop(answer["failed"])
                return answer["samples"], dropped
            if "died" not in answer:
                raise PortableError(f"{self._subject} could not be timed: {answer['why']}")
            self._count()
            guilty = answer["died"] if answer["died"] in asked else self._guilty(asked)
            dropped += [Drop(guilty, f"crashed: {answer['why']}")]
            self._sound.pop(guilty, None)
            self._again()
            asked = [name for name in asked if name in self._sound]
        return {}, dropped

    def _guilty(self, asked: list[str]) -> str:
        """Who kills the process in the turns: the first that does so alone, else the last."""
        self._again()
        for name in asked:
            if "died" in self._ask({"time": [name], "turns": 3}, TIME):
                return name
        return asked[-1]

    def drop(self, names: Iterable[str]) -> None:
        """Configs that need not stay ready."""
        gone = [name for name in names if self._sound.pop(name, None) is not None]
        if gone:
            self._ask({"drop": gone}, CHECK)

    def release(self) -> Any:
        """The process, for another call; None where it is lost."""
        worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
