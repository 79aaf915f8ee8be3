"""HTML in Python: text is escaped unless it is `Html`, and tables have scopes and a box that scrolls."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from portable.conformance.report.wording import clean


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Html:
    """`value` as HTML text, quotes included; Html is left as it is."""
    return value if isinstance(value, Html) else Html(html.escape(clean(value)))


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(escape(part) for part in parts))


def element(name: str, *content: object, **attributes: object) -> Html:
    """`<name attributes>content</name>`. `class_` is class, `_` in other names is `-`; None and False leave
    an attribute out, True gives one without a value."""
    kept = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            kept.append(f" {key}")
        elif value is not None and value is not False:
            kept.append(f' {key}="{escape(value)}"')
    return Html(f"<{name}{''.join(kept)}>{join(content)}</{name}>")


def case_id(text: str) -> Html:
    """A case's id as code that may break after a slash or a comma."""
    return element("code", Html(re.sub("([/,])", r"\1<wbr>", escape(text))))


def details(summary: object, *content: object, **attributes: object) -> Html:
    return element("details", element("summary", summary), *content, **attributes)


def table(
    caption: str,
    columns: Sequence[tuple[object, str]],
    groups: Iterable[Sequence[Sequence[object]]],
    *,
    titled: bool = False,
) -> Html:
    """A table of `groups` of rows of cells under `columns` of (label, class). The first cell of a row is its
    header. A cell may be a pair (content, attributes of the cell). The caption is seen where `titled`, and
    always read out."""
    head = join(element("th", label, scope="col", class_=kind or None) for label, kind in columns)
    bodies = [
        element("tbody", *(element("tr", *_cells(row, columns)) for row in rows)) for rows in groups if rows
    ]
    top = element("caption", caption, class_=None if titled else "heard")
    inner = element("table", top, element("thead", element("tr", head)), *bodies)
    return element("div", inner, class_="scroll rows", tabindex="0", role="region", aria_label=caption)


def _cells(row: Sequence[object], columns: Sequence[tuple[object, str]]) -> Iterable[Html]:
    for index, (cell, (_, kind)) in enumerate(zip(row, columns, strict=True)):
        content, attributes = cell if isinstance(cell, tuple) else (cell, {})
        named = {"class_": kind or None, **attributes}
        if index:
            yield element("td", content, **named)
        else:
            yield element("th", content, scope="row", **named)
