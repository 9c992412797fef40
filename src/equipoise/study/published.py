"""What published studies of results print, and what others ascribe to them: the facts of published.toml."""

import tomllib
from pathlib import Path
from typing import Any

from equipoise.scaling.reference import Attributed, Published

_FILE = Path(__file__).with_name("published.toml")


def published() -> tuple[Published, ...]:
    """The rows that published studies print, first study first."""
    return tuple(
        Published(
            round=each["round"],
            num_decimals=each["num_decimals"],
            source=_source(each),
            **row,
        )
        for each in _facts()
        for row in each["row"]
    )


def attributed(round_: str) -> tuple[Attributed, ...]:
    """What others ascribe to the studies of a round."""
    return tuple(
        Attributed(source=_source(each), **stated)
        for each in _facts()
        if each["round"] == round_
        for stated in each.get("attributed", ())
    )


def _source(facts: dict[str, Any]) -> str:
    return f"{facts['name']}, {facts['where']}, {facts['url']}"


def num_systems_in_all() -> int | None:
    """Distinct systems that a study counts over its workloads, which not all tell."""
    return next((each["num_systems_in_all"] for each in _facts()), None)


def _facts() -> list[dict[str, Any]]:
    return list(tomllib.loads(_FILE.read_text(encoding="utf-8"))["study"])
