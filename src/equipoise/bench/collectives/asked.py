"""What a measurement of collectives shall time, as it is told to its processes. No torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from equipoise.bench.cell import DEVICES
from equipoise.errors import UsageError
from equipoise.units import GIB, MIB

WIDTH_BYTES = 4  # of float32
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
DEFAULT_SIZES_BYTES = tuple(4**power for power in range(5, 14))  # 1 KiB to 64 MiB
MOST_RANKS = 1024
MOST_BYTES = 16 * GIB
_FACTORS = {"": 1, "K": 2**10, "M": MIB, "G": GIB}
_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Operations and sizes to time between so many ranks.

    sizes_bytes: what a rank holds whole, before or after. num_rounds: how often each size is timed in one
    start of the processes, in another order each time. limit_s: of one call, after which it counts as hung.
    """

    kind: ClassVar[str] = "collectives"

    num_ranks: int = 2
    operations: tuple[str, ...] = OPERATIONS
    sizes_bytes: tuple[int, ...] = DEFAULT_SIZES_BYTES
    num_rounds: int = 3
    seed: int = 0
    device: str = "cpu"
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what no ranks can do."""
        if not 2 <= self.num_ranks <= MOST_RANKS:  # noqa: PLR2004 - one rank talks to nobody
            raise UsageError(f"--ranks {self.num_ranks}: expected 2 to {MOST_RANKS}")
        if self.device not in DEVICES:
            raise UsageError(f"device {self.device!r}; expected one of {', '.join(DEVICES)}")
        for size in self.sizes_bytes:
            if not WIDTH_BYTES * self.num_ranks <= size <= MOST_BYTES:
                raise UsageError(
                    f"--sizes {size}: expected at least {WIDTH_BYTES * self.num_ranks} bytes, an element a "
                    f"rank, and at most {MOST_BYTES}"
                )
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise UsageError(f"--ops {operation!r}: not measured; expected of {', '.join(OPERATIONS)}")

    def as_json(self) -> dict[str, Any]:
        """Its fields, for a file."""
        return asdict(self)


def asked_from(found: Mapping[str, Any]) -> Asked:
    """What `as_json` gave, and a file kept."""
    lists = {name: tuple(found[name]) for name in ("operations", "sizes_bytes")}
    return Asked(**{**found, **lists})


def sizes_of(text: str) -> tuple[int, ...]:
    """Sizes in bytes of a list such as `1K,64KiB,4M`, in powers of 1024 as nccl-tests reads them.

    >>> sizes_of("1K, 64KiB,4M,1G") == (2**10, 2**16, 2**22, 2**30)
    True
    """
    sizes = []
    for word in text.split(","):
        plain = word.strip().upper().removesuffix("B").removesuffix("I")
        digits, unit = plain.rstrip("KMG"), plain.lstrip("0123456789")
        if not digits.isdecimal() or len(digits) > _MOST_DIGITS or unit not in _FACTORS:
            raise UsageError(f"--sizes {word.strip()[:40]!r}: expected bytes such as 1024, 64K, 16M or 1G")
        sizes.append(int(digits) * _FACTORS[unit])
    return tuple(dict.fromkeys(sizes))
