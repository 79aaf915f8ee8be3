"""The pytest plugin of `--gpu ARCH[,ARCH...]`: a library's GPU tests on emulated GPUs, with none there.

    pytest --gpu gfx942,gfx1100 tests/

The tests run as on a machine with that GPU (`portable.emulated`): device="cuda" is CPU memory, and each
Triton kernel is executed by the emulator, on the CPU. What a kernel does that is undefined fails the test
that launched it, also where the test does not notice. With several architectures the tests run once for each,
in a process of its own. Nothing is imported without `--gpu`: this module lies outside of `portable`, which
loads torch.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

_SECTION = "portable"  # of a report: what its test did on the emulated GPU, for the process that prints


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("portable", "portable: tests on emulated GPUs")
    group.addoption("--gpu", metavar="ARCH[,ARCH...]", help="run the tests on these emulated GPUs")
    group.addoption(
        "--gpu-extents",
        choices=("storage", "view"),
        default="storage",
        help="what a kernel may access of a tensor (default: its storage)",
    )
    group.addoption(
        "--gpu-races",
        action="store_true",
        help="look for races of workgroups in global memory too: slower",
    )
    group.addoption("--gpu-sarif", metavar="FILE", help="write the findings to this file, as SARIF")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Start the emulation before any conftest.py or test asks whether there is a GPU."""
    options = early_config.known_args_namespace
    if not options.gpu:
        return
    from portable.errors import PortableError

    archs = options.gpu.split(",")
    try:
        if len(archs) > 1:
            raise SystemExit(_each(archs, list(early_config.invocation_params.args), options.gpu_sarif))
        plugin = Emulation(archs[0], options.gpu_extents, options.gpu_races, options.gpu_sarif)
    except PortableError as error:
        raise pytest.UsageError(f"--gpu {options.gpu}: {error}") from None
    early_config.add_cleanup(plugin.close)
    early_config.pluginmanager.register(plugin, "portable-emulation")


def _each(archs: list[str], args: list[Any], file: str | None) -> int:
    from portable.commands import emulate

    rest = _without(_without(list(map(str, args)), "--gpu"), "--gpu-sarif")

    def command(arch: str, own: str | None) -> list[str]:
        sarif = [] if own is None else ["--gpu-sarif", own]
        return [sys.executable, "-m", "pytest", *rest, "--gpu", arch, *sarif]

    return emulate.each_in_a_process(archs, file, command)


def _without(args: list[str], option: str) -> list[str]:
    """Arguments without an option and its value."""
    kept: list[str] = []
    given = iter(args)
    for each in given:
        if each == option:
            next(given, None)
        elif not each.startswith(f"{option}="):
            kept.append(each)
    return kept


class Emulation:
    """A run of tests on one emulated GPU."""

    def __init__(self, arch: str, extents: str, races: bool, sarif: str | None):
        import portable

        self.arch, self._sarif = arch, sarif
        self._context = portable.emulated(arch, extents=extents, races=races)
        self.run = self._context.__enter__()
        self._open = True
        self._seen = 0
        self._total = type(self.run)(self.run.header)  # of all processes that run tests
        self._tests: Counter[str] = Counter()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._context.__exit__(None, None, None)

    def pytest_report_header(self) -> str:
        return self.run.header

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        outcome = yield
        report: Any = outcome.get_result()
        findings = self.run.findings[self._seen :]
        self._seen = len(self.run.findings)
        from portable.commands import emulate

        for finding in findings:
            text = "\n".join([finding.message, *emulate.excerpt(finding)])
            report.sections.append((f"emulated {self.arch}", text))
        if findings and report.passed:
            report.outcome = "failed"
            report.longrepr = "\n".join(
                [
                    f"A kernel did something undefined on emulated {self.arch}, and the test went on:",
                    *(finding.message for finding in findings),
                ]
            )
        did = {
            "launches": dict(self.run.launches),
            "tuned": dict(self.run.tuned),
            "instructions": {how: sorted(names) for how, names in self.run.instructions.items()},
            "findings": [vars(finding) for finding in findings],
            "warnings": [vars(warning) for warning in self.run.warnings],
        }
        self.run.launches.clear()
        self.run.tuned.clear()
        self.run.instructions.clear()
        self.run.warnings.clear()
        setattr(report, _SECTION, did)

    def pytest_runtest_logreport(self, report: Any) -> None:
        from portable.backend import Finding

        did = getattr(report, _SECTION, None)
        if did is None:
            return
        total = self._total
        total.launches.update(did["launches"])
        total.tuned.update(did["tuned"])
        for how, names in did["instructions"].items():
            total.instructions.setdefault(how, set()).update(names)
        total.findings += [Finding(**each) for each in did["findings"]]
        total.warnings += [Finding(**each) for each in did["warnings"]]
        if report.when == "call":
            if did["launches"]:
                self._tests["launched"] += 1
            elif report.passed:
                self._tests["alone"] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from portable.commands import emulate

        terminalreporter.section(f"emulated {self.arch}")
        launched, alone = (emulate.count(self._tests[what], "test") for what in ("launched", "alone"))
        terminalreporter.line(f"{launched} launched a kernel; {alone} passed without one, which says nothing")
        for line in emulate.summary(self._total):
            terminalreporter.line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._sarif is None or hasattr(session.config, "workerinput"):
            return
        import portable
        from portable.commands import sarif

        found = {self.arch: [*self._total.findings, *self._total.warnings]}
        sarif.write(self._sarif, sarif.document(found, portable.__version__, Path.cwd()))
