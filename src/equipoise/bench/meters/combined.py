"""One record of a run's use and energy from what its ranks and machines read. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Share = Mapping[str, Any]  # what one rank read in the window


def utilisation(shares: Sequence[Share], *, of_accelerators: bool) -> dict[str, Any]:
    """How busy processors, accelerators and network were in the window.

    shares: one a rank. Fractions are means over ranks or accelerators. Bytes are those sent by the network
    that sent most: over wires where ranks see several networks, over the loopback where processors share
    one; accelerators of one node exchange where no network counts, and one rank exchanges nothing: None.
    Assumes one window. Source: definition; docs/measure/phases.md.
    """
    by_rank = [share["cpu_s"] / (share["wall_s"] * share["num_cores"]) for share in shares]
    parts = [part for share in shares for part in share["drawn"]]
    busy = [part["busy_fraction"] for part in parts if part["busy_fraction"] is not None]
    networks = [share for share in shares if share["sent"] is not None]
    kind = "wire" if len(networks) > 1 else "loopback" if len(shares) > 1 and not of_accelerators else None
    return {
        "cpu_fraction": fmean(by_rank),
        "cpu_fraction_by_rank": by_rank,
        "accelerator_fraction": fmean(busy) if busy else None,
        "network": kind,
        "network_byte_per_s": max(each["sent"][kind] / each["wall_s"] for each in networks) if kind else None,
    }


def energy(shares: Sequence[Share], *, of_accelerators: bool) -> dict[str, Any]:
    """Joules of all machines in the window, or why they were not measured.

    of_accelerators: ranks compute on some; then a sum without every one of them is none.
    Assumes each part of a machine is read by one rank. Source: definition; docs/measure/phases.md.
    """
    metering = [share for share in shares if share["meters"]]
    parts = [part for share in metering for part in share["drawn"]]
    counted = [part for part in parts if part["energy_j"] is not None]
    missing = sorted({reason for share in metering for reason in share["reasons"]})
    missing += [f"{part['part']} did not answer" for part in parts if part["energy_j"] is None]
    start = "accelerator" if of_accelerators else ""
    lacking = any(reason.startswith(start) for reason in missing)
    measured = bool(counted) and not lacking
    return {
        "energy_j": sum(part["energy_j"] for part in counted) if measured else None,
        "meter": " + ".join(sorted({part["meter"] for part in counted})) if measured else None,
        "reason": None if measured else "; ".join(missing) or "nothing here counts energy",
        "left_out": missing if measured else [],
        "disagreements": [part["disagreement"] for part in counted if part["disagreement"]],
        "parts": [{**part, "node": share["node"]} for share in metering for part in share["drawn"]],
    }


def memory(shares: Sequence[Share]) -> dict[str, Any]:
    """Peaks by rank, and their growth over what was there before the model."""
    peaks = [share["memory"]["peak"] for share in shares]
    before = [share["memory_before"] for share in shares]
    reserved = [share["memory"].get("reserved") for share in shares]
    return {
        "memory_bytes": peaks,
        "memory_growth_bytes": [
            None if start is None else peak - start for peak, start in zip(peaks, before, strict=True)
        ],
        "memory_reserved_bytes": None if None in reserved else reserved,
    }
