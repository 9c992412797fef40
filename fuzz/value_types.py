"""Contents in which one value is of another type: of JSON, alone, in lines or behind a mark, and of TOML."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

# One of each type, and those of each type that programs trip over.
JSON_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, -0.0, 1e308, 10**18, 10**400),
    *("", "x", "1", "nan", "1e999", "\u202e", "\ud800", "x" * 5000),
    *([], [None], [[]], {}, {"x": 1}, {"": {}}),
)
TOML_VALUES = (
    *("true", "0", "-1", "1.5", "inf", "nan", "1e308", "9223372036854775807", '""', '"x"', "[]", "[[]]"),
    *("{}", "{x = 1}", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", '[1, "x"]'),
)
_TOML_LINE = re.compile(rb"^(\s*[\w.\"-]+\s*=\s*)(.+)$", re.MULTILINE)
_PART = re.compile(rb"[^\0\n]+")


def retyped(data: bytes, drawn: random.Random) -> bytes:
    """The data with one value of another type; as they are where no JSON or TOML is in them."""
    documents = list(_documents(data))
    if documents:
        start, end, document = drawn.choice(documents)
        places = list(_places(document))
        changed = _changed(document, drawn.choice(places), drawn)
        return data[:start] + json.dumps(changed).encode("utf-8", "surrogatepass") + data[end:]
    lines = list(_TOML_LINE.finditer(data))
    if not lines:
        return data
    line = drawn.choice(lines)
    return data[: line.start(2)] + drawn.choice(TOML_VALUES).encode() + data[line.end(2) :]


def _documents(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """The JSON objects and lists in the data, with where each begins and ends."""
    whole = _parsed(data)
    if whole is not None:
        yield 0, len(data), whole
        return
    for part in _PART.finditer(data):
        begins = min((at for at in map(part[0].find, (b"{", b"[")) if at >= 0), default=None)
        if begins is not None:
            found = _parsed(part[0][begins:])
            if found is not None:
                yield part.start() + begins, part.end(), found


def _parsed(text: bytes) -> Any:  # noqa: ANN401 - whatever JSON holds
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list | dict) else None


def _places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - as above
    """The path of every value, from the outermost in."""
    yield path
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        if isinstance(value, list | dict):
            yield from _places(value, (*path, key))
        else:
            yield (*path, key)


def _changed(document: Any, path: tuple[Any, ...], drawn: random.Random) -> Any:  # noqa: ANN401 - as above
    """The document with a value replaced, left out or wrapped at a path."""
    if not path:
        return drawn.choice((*JSON_VALUES, [document], {"x": document}))
    copied = json.loads(json.dumps(document))
    holder = copied
    for key in path[:-1]:
        holder = holder[key]
    value = drawn.choice((*JSON_VALUES, [holder[path[-1]]], {"x": holder[path[-1]]}, ...))
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return copied
