"""The pytest plugin: `@pytest.mark.conforms(op, ...)` on a test that returns a function has it judged.

    @pytest.mark.conforms("rms_norm", types=["bfloat16"])
    def test_my_norm():
        return my_norm

A root conftest.py names it: `pytest_plugins = ["portable.conformance.checker.pytest_plugin"]`. The mark takes
what `portable.conformance.check` takes after the function. The test asserts nothing itself; it may use
fixtures and parameters, and skip. With several marks, each must hold. A function that does not
conform fails the test with the report's text; a mark or option that cannot be meant is a usage error.
`portable` is imported only when a test carries the mark.
"""

from __future__ import annotations

import inspect
import unittest
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("portable")
    group.addoption(
        "--conforms-device",
        metavar="VENDOR[:ARCH]",
        help="judge on this device, whatever the marks say (as portable-conformance --device)",
    )
    group.addoption("--conforms-tier", metavar="TIER", help="run this tier instead of the marks'")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "conforms(op, device=None, *, tier, cases, types, grad, out): the test returns a function, which is "
        "judged as an implementation of op by portable.conformance.check",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [(item, mark) for item in items for mark in item.iter_markers("conforms")]
    if not marked:
        return
    from portable.conformance.cases.generate import TIERS
    from portable.errors import PortableError

    tier = marked[0][0].config.getoption("conforms_tier")
    if tier not in (None, *TIERS):
        raise pytest.UsageError(f"--conforms-tier {tier}: expected one of {', '.join(TIERS)}")
    for item, mark in marked:
        try:
            _validate(item, mark)
        except (PortableError, TypeError) as error:
            raise pytest.UsageError(f"{item.nodeid}: conforms: {error}") from None


def _validate(item: pytest.Item, mark: pytest.Mark) -> None:
    """Raise UnknownOpError, ArgumentError or TypeError for a mark that cannot be meant."""
    from portable.spec import registry

    registry.op_name(_arguments(mark)["op"], "conformance.check", "op", "@pytest.mark.conforms({})")
    cls = getattr(item, "cls", None)
    if not isinstance(item, pytest.Function) or (cls is not None and issubclass(cls, unittest.TestCase)):
        raise TypeError("the mark is for a function, or a method of a plain class, that returns a function")


def _arguments(mark: pytest.Mark) -> dict[str, Any]:
    """The mark's arguments by name. Raises TypeError for what `check` does not take."""
    from portable.conformance import check

    signature = inspect.signature(check)
    rest = signature.replace(parameters=list(signature.parameters.values())[1:])
    return rest.bind(*mark.args, **mark.kwargs).arguments


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    marks = list(pyfuncitem.iter_markers("conforms"))
    if not marks:
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    fixtures = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    function = pyfuncitem.obj(**fixtures)
    if not callable(function):
        kind = type(function).__name__
        pytest.fail(f"expected the test to return the function to judge; it returned a {kind}", pytrace=False)
    failed = []
    for mark in marks:
        text, conforms = _judge(function, _arguments(mark), pyfuncitem.config)
        if conforms:
            pyfuncitem.add_report_section("call", "conformance", text)
        else:
            failed.append(text)
    if failed:
        pytest.fail("\n\n".join(failed), pytrace=False)
    return True


def _judge(function: Any, arguments: dict[str, Any], config: pytest.Config) -> tuple[str, bool]:
    """The report as text, and whether the function conforms; an error for people is a text too."""
    from portable.conformance import check
    from portable.errors import PortableError

    for name in ("device", "tier"):
        override = config.getoption(f"conforms_{name}")
        if override is not None:
            arguments[name] = override
    try:
        report = check(function, **arguments)
    except (PortableError, ValueError) as error:  # an argument, a case id, a device that is not there
        return str(error), False
    return str(report), report.conforms
