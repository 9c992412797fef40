"""The document of a verb: the head that all of them share, and its bytes as JSON."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from equipoise import __version__
from equipoise.runs import embedded

# Documents whose schema is not the first, by name: the verb, or what else it is (docs/reference/json.md).
# Those of report/schema.py ship with a JSON schema.
SCHEMA_VERSIONS: Final[Mapping[str, int]] = {
    "advise": 2,
    "advise-ask": 1,
    "plan": 2,
    "predict": 2,
    "allocate": 2,
    "bench": 2,
}


def schema_id(name: str) -> str:
    """What a document of this name has in `schema`."""
    return f"equipoise.{name}/{SCHEMA_VERSIONS.get(name, 1)}"


def document(verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The head, then the fields of the verb itself, which may name a schema of their own."""
    head = {
        "schema": schema_id(verb),
        "equipoise": __version__,
        "dataset": embedded.version(),
    }
    return {**head, **fields}


def encode(whole: Mapping[str, Any]) -> bytes:
    """JSON text with a newline at its end; what is not a number (NaN, infinity) becomes null."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(whole, option=option)
