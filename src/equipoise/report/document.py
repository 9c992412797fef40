"""The document of a verb: the head that all of them share, and its bytes as JSON."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from equipoise import __version__
from equipoise.runs import embedded

# Verbs whose document has changed since its first schema; contracts of all are in docs/reference/json.md.
SCHEMA_VERSIONS: Final[Mapping[str, int]] = {"advise": 2, "plan": 2, "predict": 2, "allocate": 2, "bench": 2}


def document(verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The head, then the fields of the verb itself."""
    head = {
        "schema": f"equipoise.{verb}/{SCHEMA_VERSIONS.get(verb, 1)}",
        "equipoise": __version__,
        "dataset": embedded.version(),
    }
    return {**head, **fields}


def encode(whole: Mapping[str, Any]) -> bytes:
    """JSON text with a newline at its end; what is not a number (NaN, infinity) becomes null."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(whole, option=option)
