"""Settings that somebody recommends, judged one by one: which have a ground on a machine."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from equipoise.errors import UsageError
from equipoise.launch.settings import Placement
from equipoise.units import MIB

Verdict: TypeAlias = Literal["no effect", "not valid", "no ground", "harms", "measure"]

NCCL_PAGE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TUNING_PAGE = "https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc (getNthreads)"
_MOST_BYTES = 2**40
# NCCL's own: threads of a block it accepts, and the buffer between two ranks.
_THREADS = (64, 128, 256, 512)
_WARP = 32
_DEFAULT_BUFFER_BYTES = 4 * MIB
_CAUTION = "NCCL's guide lists it under debugging: forced values keep NCCL from choosing the best by itself"


class Judged(Struct, frozen=True, kw_only=True):
    """A setting and what is to be said of it.

    verdict: no effect, as things are so already; not valid: NCCL takes another value; no ground: NCCL chooses
    better; harms; measure: may help, and only a measurement tells.
    """

    name: str
    value: str
    verdict: Verdict
    why: str
    evidence: str


def judged(settings: Mapping[str, str], place: Placement) -> tuple[Judged, ...]:
    """What is to be said of each setting for the ranks of a place.

    Raises UsageError for a setting that nothing is known of.
    Source: NCCL's user guide, and its source where the guide is silent.
    """
    unknown = sorted(set(settings) - set(_JUDGES))
    if unknown:
        raise UsageError(f"setting {unknown[0][:40]!r}: nothing is known of it; known: {', '.join(_JUDGES)}")
    return tuple(_JUDGES[name](name, value, place) for name, value in settings.items())


def _algorithm(name: str, value: str, place: Placement) -> Judged:
    ranks = place.strategy.num_accelerators
    same = "between two ranks a tree and a ring take the same two steps; " if ranks == 2 else ""  # noqa: PLR2004 - a pair
    return Judged(name=name, value=value, verdict="no ground", why=f"{same}{_CAUTION}", evidence=NCCL_PAGE)


def _protocol(name: str, value: str, place: Placement) -> Judged:
    del place
    short = "the other protocols are for short messages, and a model's buffers and last bucket are short; "
    return Judged(
        name=name,
        value=value,
        verdict="no ground",
        why=f"{short if value.lower() == 'simple' else ''}users are discouraged from setting it",
        evidence=NCCL_PAGE,
    )


def _peers(name: str, value: str, place: Placement) -> Judged:
    if value in {"", "0"} or place.is_staged:
        why = "the driver offers no peer access, so nothing is left to disable"
        return Judged(
            name=name,
            value=value,
            verdict="no effect",
            why="0 is the default" if value in {"", "0"} else why,
            evidence=NCCL_PAGE,
        )
    why = "peers reach each other's memory here: without it every byte goes through the host's"
    return Judged(name=name, value=value, verdict="harms", why=why, evidence=NCCL_PAGE)


def _buffer(name: str, value: str, place: Placement) -> Judged:
    del place
    size = _whole(value)
    if size is None or not 0 < size <= _MOST_BYTES:
        return Judged(
            name=name, value=value, verdict="not valid", why="expected whole bytes", evidence=NCCL_PAGE
        )
    times = size / _DEFAULT_BUFFER_BYTES
    why = (
        f"{times:g} times the default of 4 MiB, and of the memory it takes: keep it only if all_reduce_perf "
        "of nccl-tests shows more busbw at the sizes of your buckets"
    )
    verdict: Verdict = "no effect" if times == 1 else "measure"
    return Judged(
        name=name,
        value=value,
        verdict=verdict,
        why="it is the default" if times == 1 else why,
        evidence=NCCL_PAGE,
    )


def _threads(name: str, value: str, place: Placement) -> Judged:
    del place
    count = _whole(value)
    if count in _THREADS:
        why = f"fewer leave the accelerator more, more help low clocks; {_CAUTION}"
        return Judged(name=name, value=value, verdict="measure", why=why, evidence=NCCL_PAGE)
    allowed = f"allowed are {', '.join(map(str, _THREADS))}"
    if count is None or count <= 0 or count % _WARP:
        why = f"{allowed}; NCCL takes the most instead of what is no multiple of {_WARP}"
    else:
        why = f"{allowed}; NCCL takes the nearest bound instead"
    return Judged(
        name=name, value=value, verdict="not valid", why=why, evidence=f"{NCCL_PAGE}; {_TUNING_PAGE}"
    )


def _whole(value: str) -> int | None:
    """The whole number that a short text is."""
    return int(value) if value.isdecimal() and len(value) <= len(str(_MOST_BYTES)) else None


_JUDGES: Mapping[str, Callable[[str, str, Placement], Judged]] = {
    "NCCL_ALGO": _algorithm,
    "NCCL_PROTO": _protocol,
    "NCCL_P2P_DISABLE": _peers,
    "NCCL_BUFFSIZE": _buffer,
    "NCCL_NTHREADS": _threads,
}
