"""Tables of facts that lie beside this file, each row with its date and source."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """The content of a table, read once."""
    return tomllib.loads((files("equipoise.economics") / name).read_text(encoding="utf-8"))
