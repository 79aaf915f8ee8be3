"""From the id of a case or behaviour back to what it names."""

from __future__ import annotations

from portable.conformance.cases.case import Case, UnknownCase, parse
from portable.conformance.execute import behaviour
from portable.errors import nearest
from portable.spec import registry


def case(text: str) -> Case | behaviour.Behaviour:
    """The case or behaviour that `text` names. Raises UnknownCase, saying which part is wrong."""
    op, _, rest = text.partition("/")
    known = sorted(registry.op_folders())
    if op not in known:
        raise UnknownCase(f"{text!r}: there is no op {op!r}.{nearest(op, known)}")
    if rest.startswith("behaviour/"):
        found = behaviour.parse(text)
        if found is None:
            hint = nearest(rest.partition("/")[2], list(behaviour.CASES))
            raise UnknownCase(f"{text!r}: there is no such behaviour.{hint}")
        return found
    return parse(text, registry.spec(op))
