"""Bytes that a machine's network has sent, from the kernel's counters. No torch."""

from pathlib import Path

from equipoise.bench.environment import file_text

_LOOPBACK = "lo"
# Of /proc/net/dev: after the name 8 numbers of what was received, then the bytes that were sent.
_SENT = 8
# InfiniBand counts words of four bytes (Linux Documentation/ABI/stable/sysfs-class-infiniband).
_WORD_BYTES = 4


def sent_bytes(processes: Path = Path("/proc"), system: Path = Path("/sys")) -> dict[str, int]:
    """Bytes sent so far by network: `wire` over all interfaces but the loopback, and `loopback`.

    Bridges and bonds are left out: what they send is counted at the interfaces below them. InfiniBand, which
    the kernel does not see sending, is counted by its ports.
    """
    sent = {"wire": _infiniband_bytes(system / "class" / "infiniband"), "loopback": 0}
    for line in file_text(processes / "self" / "net" / "dev").splitlines():
        name, colon, numbers = line.strip().partition(":")
        fields = numbers.split()
        if not colon or len(fields) <= _SENT or not fields[_SENT].isdigit():
            continue
        shown = system / "class" / "net" / name
        if name == _LOOPBACK:
            sent["loopback"] += int(fields[_SENT])
        elif not (shown / "bridge").exists() and not (shown / "bonding").exists():
            sent["wire"] += int(fields[_SENT])
    return sent


def _infiniband_bytes(root: Path) -> int:
    words = (file_text(path).strip() for path in root.glob("*/ports/*/counters/port_xmit_data"))
    return sum(int(each) for each in words if each.isdigit()) * _WORD_BYTES
