"""What a device is: how ranks take it, exchange over it, wait for it and read its clock. No torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Clock(Protocol):
    """Tells when the work given to a device up to a point was done, without waiting for it."""

    def now(self) -> Any:  # noqa: ANN401 - a number or an event; only `moments` reads it
        """A stamp of this point in the program."""

    def moments(self, stamps: Sequence[Any]) -> list[float]:
        """Seconds from the first stamp to each; waits until the last is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A kind of device; functions are called in the process of the rank, after its cores are set.

    backend: what ranks exchange over. why_not: why no rank can compute on it here; None where it can.
    refusal: why it cannot compute in a precision; None where it can. bind: of the rank's number on its node,
    the device it has for itself from now on; raises UsageError where there is none. synchronise: returns
    when all work given to it is done. settle: sets what arithmetic of a precision means.
    restart_peak: forgets the peak of memory. memory: bytes by name, `peak` among them. address: what tells it
    from all others of its machine; None where ranks share it. activities: of torch.profiler, by name.
    """

    name: str
    backend: str
    activities: tuple[str, ...]
    why_not: Callable[[], str | None]
    refusal: Callable[[str], str | None]
    bind: Callable[[int], "torch.device"]
    settle: Callable[[str], None]
    synchronise: Callable[[], None]
    clock: Callable[[], Clock]
    restart_peak: Callable[[], None]
    memory: Callable[[], Mapping[str, int]]
    address: Callable[["torch.device"], str | None]
    conditions: Callable[["torch.device"], Mapping[str, Any]]
