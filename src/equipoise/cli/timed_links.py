"""What `equipoise collectives` works on: files, or what is measured through a launcher, with its progress."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.bench.at_hand import at_hand
from equipoise.bench.collectives.asked import Asked, sizes_of
from equipoise.bench.collectives.document import reading_in
from equipoise.bench.collectives.files import named_operation, read_files
from equipoise.bench.collectives.measure import DEFAULT_STARTS, timed_document
from equipoise.bench.collectives.timing import Reading
from equipoise.cli.output import written_aside
from equipoise.errors import UsageError
from equipoise.report.document import encode

MEASURED = "measured here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user asked for: files to read, or what to measure, with None for what was not said."""

    files: tuple[Path, ...]
    measure: bool
    ops: str | None
    sizes: str | None = None
    ranks: int | None = None
    launcher: str | None = None
    device: str | None = None
    repeat: int | None = None
    limit: float | None = None
    out: Path | None = None


def reading_of(wanted: Wanted, *, progress: Callable[[str, int, int], None] | None) -> Reading:
    """Collectives out of files, or measured now; these are written to `out` too.

    Raises UsageError for options that do not fit together, and before anything is measured for an `out` that
    cannot be written.
    """
    operations = tuple(named_operation(each) for each in (wanted.ops or "").split(",") if wanted.ops)
    if wanted.measure:
        return _measured(wanted, operations, progress)
    for name in ("sizes", "ranks", "launcher", "device", "repeat", "limit", "out"):
        if getattr(wanted, name) is not None:
            raise UsageError(f"--{name} is for --measure; files say what was measured")
    if not wanted.files:
        raise UsageError("nothing to read: give files, or --measure to time collectives here")
    if len(operations) > 1:
        raise UsageError(f"--ops {wanted.ops}: expected one operation, of tables that do not name theirs")
    return read_files(wanted.files, operation=operations[0] if operations else None)


def _measured(
    wanted: Wanted, operations: tuple[str, ...], progress: Callable[[str, int, int], None] | None
) -> Reading:
    from equipoise.bench.launchers import launcher

    if wanted.files:
        raise UsageError("files and --measure: expected one of both; --measure reads no files")
    launch_with = launcher(wanted.launcher or "auto")
    stated: Mapping[str, Any] = {
        "operations": operations or None,
        "sizes_bytes": sizes_of(wanted.sizes) if wanted.sizes is not None else None,
        "limit_s": wanted.limit,
        **_ranks(wanted, binds_here=launch_with.binds_here),
    }
    asked = Asked(**{name: value for name, value in stated.items() if value is not None})
    num_starts = wanted.repeat or DEFAULT_STARTS
    if wanted.out is None:
        document = timed_document(asked, launch_with, num_starts=num_starts, progress=progress)
        return reading_in(document, where=MEASURED)
    with written_aside(wanted.out) as file:
        document = timed_document(asked, launch_with, num_starts=num_starts, progress=progress)
        file.write(encode(document))
    return reading_in(document, where=str(wanted.out))


def _ranks(wanted: Wanted, *, binds_here: bool) -> Mapping[str, Any]:
    """How many ranks, and where they hold what they exchange.

    Two unless said; all accelerators of this machine where it has several and ranks run on it.
    """
    here = at_hand(wanted.device or "auto")
    if not binds_here:
        return {"device": here.device, "num_ranks": wanted.ranks}
    usual = max(here.num_devices, 2) if here.device == "cuda" else 2
    num_ranks = usual if wanted.ranks is None else wanted.ranks
    if here.device == "cuda" and here.num_devices < num_ranks:
        if wanted.device == "cuda":
            raise UsageError(f"--ranks {num_ranks}: this machine has {here.num_devices} accelerators")
        return {"device": "cpu", "num_ranks": num_ranks}
    return {"device": here.device, "num_ranks": num_ranks}
