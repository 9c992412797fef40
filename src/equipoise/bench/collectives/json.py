"""The document that nccl-tests writes with -J, versions 1 to 3, as a table of rows.

Its `env` holds the whole environment of the program, secrets too: it is dropped here and never looked at; of
`args` only the name of the program is kept.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import orjson

from equipoise.bench.collectives import fitted_document
from equipoise.bench.collectives.infer import PROGRAMS, Printed, Side
from equipoise.bench.collectives.text import Found, Row, Table
from equipoise.errors import DataError

# Printed with %lf: six digits after the point, of microseconds and of GB/s.
_HALF = 5e-7
_SECRET = ("env",)
_INFINITE = re.compile(r"(?<=:)-?(?:inf|nan)(?=[,}])")
_MOST_BYTES = 2**62


def looks_like_json(text: str) -> bool:
    """Whether a file begins as a JSON object does."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def document_in(text: str, *, where: str) -> dict[str, Any]:
    """The document without the environment it was written in.

    Raises DataError where the text is no JSON object, or neither of nccl-tests nor of `collectives`.
    """
    try:
        # A rate over no time is printed as `inf`, which JSON does not have.
        whole = orjson.loads(_INFINITE.sub("null", text.lstrip("\ufeff")))
    except (orjson.JSONDecodeError, RecursionError) as err:
        raise DataError(
            f"{where}: broken or cut JSON ({err}); expected the whole file of `nccl-tests -J`, or its "
            "text output"
        ) from err
    is_fits = isinstance(whole, dict) and whole.get("schema") == fitted_document.SCHEMA
    if not is_fits and not (isinstance(whole, dict) and isinstance(whole.get("results"), list)):
        raise DataError(
            f"{where}: JSON without a list `results`; expected what `nccl-tests -J FILE` writes, or "
            "`equipoise collectives`"
        )
    return {key: value for key, value in whole.items() if key not in _SECRET}


def tables_in_document(document: Mapping[str, Any]) -> Found:
    """The one table of a document; lines are counted by result, from 1."""
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    table = Table(programs=_programs(document), devices=_devices(config))
    found = Found(tables=[table])
    for number, result in enumerate(document["results"], 1):
        try:
            table.rows.append(_row(number, result))
            table.is_host_time |= any("cpu_time" in _side_of(result, key) for key in _SIDES)
        except (TypeError, ValueError, KeyError, OverflowError) as err:
            found.broken.append((number, f"a result whose {err} is not as nccl-tests writes it"))
    return found


_SIDES = ("out_of_place", "in_place")


def _programs(document: Mapping[str, Any]) -> list[str]:
    arguments = document.get("args")
    if not isinstance(arguments, list) or not arguments or not isinstance(arguments[0], str):
        return []
    name = PurePath(arguments[0][:4096]).name.partition("_perf")[0]
    return [PROGRAMS[name]] if name in PROGRAMS else []


def _devices(config: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Host and name by rank. Of each process only the first rank is listed: the others are alike."""
    listed = config.get("devices")
    counts = [config.get(key, 1) for key in ("nthreads", "ngpus")]
    num_each = (
        counts[0] * counts[1] if all(type(each) is int and 0 < each <= _MOST_EACH for each in counts) else 1
    )
    found: dict[int, tuple[str, str]] = {}
    for device in listed if isinstance(listed, list) else ():
        if isinstance(device, dict) and type(device.get("rank")) is int:
            each = (str(device.get("hostname"))[:256], str(device.get("device_info"))[:256])
            found |= {device["rank"] + at: each for at in range(num_each) if device["rank"] + at not in found}
    return found


_MOST_EACH = 1024


def _row(number: int, result: Mapping[str, Any]) -> Row:
    sides = [_side(_side_of(result, key)) for key in _SIDES]
    wrongs = [_side_of(result, key).get("nwrong") for key in _SIDES]
    counted = [int(float(each)) for each in wrongs if each is not None]
    size, count = result["size"], result["count"]
    if not all(type(each) is int and 0 <= each < _MOST_BYTES for each in (size, count)):
        raise ValueError("size or count")
    root = result.get("root")
    redop = result.get("redop")
    return Row(
        line=number,
        payload_bytes=size,
        count=count,
        dtype=str(result["type"])[:16],
        redop=str(redop)[:16] if redop else None,
        root=None if root is None else int(root),
        sides=(sides[0], sides[1]),
        num_wrong=max(counted) if counted else None,
    )


def _side_of(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    side = result.get(key)
    if side is not None and not isinstance(side, dict):
        raise TypeError(key)
    return side or {}


def _side(values: Mapping[str, Any]) -> Side | None:
    """One side; None where it was not run, or took what is no number (`nan`)."""
    time_us = values.get("time", values.get("cpu_time"))
    bus = values.get("bus_bw")
    if not isinstance(time_us, int | float) or not isinstance(bus, int | float):
        return None
    return Side(
        time_us=Printed(value=float(time_us), half=_HALF),
        bus=Printed(value=float(bus), half=_HALF),
    )
