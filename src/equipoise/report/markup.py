"""HTML as text that escapes itself: a plain string put into an element is escaped, only `Html` passes."""

import html
import re
from typing import Final, TypeAlias

import orjson

VOID_TAGS: Final = frozenset({"br", "hr", "img", "input", "link", "meta"})
_UNITS: Final = "min|ms|s|h|d|W|J|kJ|MJ|GJ|TJ|kWh|USD|kg|MB|GB|TB|MiB|GiB|nodes?"
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_WITH_UNIT: Final = re.compile(rf"(?<=[0-9]) (?=[%{_TIMES}]|(?:{_UNITS})\b)")
Attribute: TypeAlias = str | int | float | bool | None


class Html(str):
    """Text that is HTML already. Made by this module, and from the package's own assets."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Any text as HTML that shows exactly that text; lone surrogates, which UTF-8 cannot hold, become `?`."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(text.replace("\0", "").encode("utf-8", "replace").decode("utf-8"), quote=True))


def unbroken(text: str) -> str:
    """Text whose numbers stay with their units where lines are broken.

    >>> unbroken("4.4 min at 90 % of 80 GB").count("\N{NO-BREAK SPACE}")
    3
    """
    return _WITH_UNIT.sub("\N{NO-BREAK SPACE}", text)


def element(tag: str, *children: str, **attributes: Attribute) -> Html:
    """One element. `class_` means class, `data_x` means data-x; None and False leave an attribute out.

    >>> element("a", "x < y", href="#top", class_="quiet")
    '<a href="#top" class="quiet">x &lt; y</a>'
    """
    shown = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID_TAGS:
        return Html(f"<{tag}{shown}>")
    return Html(f"<{tag}{shown}>{concatenated(*children)}</{tag}>")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(str(value))}"'


def concatenated(*children: str) -> Html:
    """Children one after the other, each escaped unless it is HTML."""
    return Html("".join(escaped(child) for child in children))


def json_script(identifier: str, document: object) -> Html:
    """Data for the page's own script, in an element that is never run.

    `<`, `>`, `&` and the line separators are written as JSON escapes in it, so no text can end the element.
    """
    text = orjson.dumps(document).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Html(text), type="application/json", id=identifier)
