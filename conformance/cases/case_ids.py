"""From the id of a case or behaviour back to what it names."""

from __future__ import annotations

from portable.conformance.cases import generate
from portable.conformance.execute import behaviour
from portable.errors import nearest
from portable.spec import registry


def case(text: str) -> generate.Case | behaviour.Behaviour:
    """The case or behaviour that `text` names. Raises cases.UnknownCase, saying which part is wrong."""
    op, _, rest = text.partition("/")
    known = sorted(registry.op_folders())
    if op not in known:
        raise generate.UnknownCase(f"{text!r}: there is no op {op!r}.{nearest(op, known)}")
    if rest.startswith("behaviour/"):
        found = behaviour.parse(text)
        if found is None:
            hint = nearest(rest.partition("/")[2], list(behaviour.CASES))
            raise generate.UnknownCase(f"{text!r}: there is no such behaviour.{hint}")
        return found
    return generate.parse(text, registry.spec(op))
