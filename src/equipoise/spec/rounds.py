"""Rounds of results: their names, and their order in time."""

import re

from equipoise.errors import DataError

_ROUND = re.compile(r"v(\d+)\.(\d+)")


def round_name(name: str) -> str:
    """A round as the data name it: `4.1`, `V4.1` and `v4.1` are one.

    >>> round_name("4.1")
    'v4.1'
    """
    return re.sub(r"^v?(?=\d)", "v", name.strip(), flags=re.IGNORECASE)


def is_round(name: str) -> bool:
    """Whether data call a round so; other campaigns have names of their own."""
    return _ROUND.fullmatch(name) is not None


def round_key(campaign: str) -> tuple[int, int]:
    """What orders rounds in time: `v4.1` is (4, 1).

    Raises DataError for a name that is not a round: its place in time is not known.

    >>> round_key("v4.1") < round_key("v10.0")
    True
    """
    found = _ROUND.fullmatch(campaign)
    if found is None:
        raise DataError(f"campaign {campaign!r} is not a round; expected a name such as 'v4.1'")
    return int(found[1]), int(found[2])


def round_order(name: str | None) -> tuple[bool, tuple[int, ...], str]:
    """A key: rounds in the order of their numbers, v10.0 after v9.0; then other campaigns by name.

    >>> sorted(["v10.0", "mine", "v9.0"], key=round_order)
    ['v9.0', 'v10.0', 'mine']
    """
    name = name or ""
    return not is_round(name), round_key(name) if is_round(name) else (), name
