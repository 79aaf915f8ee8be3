"""From the id of a case or behaviour back to what it names."""

from __future__ import annotations

from portable import catalog
from portable.conformance import behaviour, cases
from portable.errors import nearest


def case(text: str) -> cases.Case | behaviour.Behaviour:
    """The case or behaviour that `text` names. Raises cases.UnknownCase, saying which part is wrong."""
    op, _, rest = text.partition("/")
    known = sorted(catalog.op_folders())
    if op not in known:
        raise cases.UnknownCase(f"{text!r}: there is no op {op!r}.{nearest(op, known)}")
    if rest.startswith("behaviour/"):
        found = behaviour.parse(text)
        if found is None:
            hint = nearest(rest.partition("/")[2], list(behaviour.CASES))
            raise cases.UnknownCase(f"{text!r}: there is no such behaviour.{hint}")
        return found
    return cases.parse(text, catalog.spec(op))
