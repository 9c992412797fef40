"""Values of watched runs as text: when they were begun, their ranks, how they are."""

import re
from collections.abc import Sequence
from typing import Final

from equipoise.advice.measured.watched_now import WatchedRun
from equipoise.report.words import plural, printable

SUCCESS: Final = "success"
_NAME: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)-[0-9a-f]+", re.ASCII)


def begun(run: WatchedRun) -> str:
    """When a run was begun, from its folder's name; that name where it is another."""
    found = _NAME.fullmatch(run.name)
    if found is None:
        return printable(run.name)
    year, month, day, hour, minute, second = found.groups()
    return f"{year}-{month}-{day} {hour}:{minute}:{second}"


def clock(run: WatchedRun, among: Sequence[WatchedRun]) -> str:
    """The same, shorter: without what all of them share."""
    told = begun(run)
    if any(_NAME.fullmatch(each.name) is None for each in among):
        return told
    days = {begun(each)[:10] for each in among}
    if len(days) == 1:
        return told[11:]
    return told[5:16] if len({begun(each)[5:16] for each in among}) == len(among) else told


def ranks(run: WatchedRun) -> str:
    """How many ranks it has."""
    return plural(run.num_ranks, "rank")


def state(run: WatchedRun) -> str:
    """How it is."""
    if run.is_running:
        return "it is training"
    return "it has ended" if run.status == SUCCESS else "it was cut short"


def reason(run: WatchedRun) -> str:
    """Why it did not come to its end."""
    return run.status.removeprefix("failed: ")
