"""The verbs for measurements: `topology`, `collectives` (from files, or timed by a launcher) and `trace`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.cli.options import clusters_from
from equipoise.cli.output import PAGE, InputFiles, Output, progress_line, stated, verb
from equipoise.errors import UsageError
from equipoise.files import each_once, written

if TYPE_CHECKING:
    from equipoise.bench.collectives import CollectiveRuns

MEASURED = "measured here"


def _reading(
    files: Sequence[Path],
    ops: str | None,
    options: Mapping[str, Any],
    *,
    measure: bool,
    progress: Callable[[str, int, int], None],
) -> "CollectiveRuns":
    """Collectives from files, or measured now and also written to `out`.

    options: the given measurement options, by name.
    Raises UsageError for incompatible options, and, before measuring, for an `out` that cannot be written.
    """
    from equipoise.bench.collectives.files import named_operation, read_files

    operations = tuple(named_operation(each) for each in ops.split(",")) if ops else ()
    if measure:
        if files:
            raise UsageError("files and --measure: give one of the two; --measure reads no files")
        return _measured(operations, options, progress)
    if options:
        raise UsageError(f"--{next(iter(options))} goes with --measure; files state what was measured")
    if not files:
        raise UsageError("nothing to read: give files, or --measure to time collectives here")
    if len(operations) > 1:
        raise UsageError(f"--ops {ops}: expected one operation, for tables that do not name theirs")
    return read_files(files, operation=operations[0] if operations else None)


def _measured(
    operations: tuple[str, ...], options: Mapping[str, Any], progress: Callable[[str, int, int], None]
) -> "CollectiveRuns":
    from equipoise.bench.collectives import DEFAULT_STARTS, CollectivesTask, sizes_of, timed_document
    from equipoise.bench.collectives.files import reading_in
    from equipoise.bench.equipment import launcher
    from equipoise.report.json import encode

    launch_with = launcher(options.get("launcher") or "auto")
    asked = CollectivesTask(
        **stated(
            operations=operations or None,
            sizes_bytes=sizes_of(options["sizes"]) if "sizes" in options else None,
            limit_s=options.get("limit"),
            **_ranks(options.get("ranks"), options.get("device", "auto"), binds_here=launch_with.binds_here),
        )
    )
    num_starts, out = options.get("repeat", DEFAULT_STARTS), options.get("out")
    if out is None:
        document = timed_document(asked, launch_with, num_starts=num_starts, progress=progress)
        return reading_in(document, where=MEASURED)
    with written(out) as file:
        document = timed_document(asked, launch_with, num_starts=num_starts, progress=progress)
        file.write(encode(document))
    return reading_in(document, where=str(out))


def _ranks(stated_ranks: int | None, device: str, *, binds_here: bool) -> Mapping[str, Any]:
    """The number of ranks and the device of their buffers, as arguments.

    By default two ranks, or all accelerators of this machine if it has several and ranks run on it.
    """
    from equipoise.bench.devices import available_devices

    here = available_devices(device)
    if not binds_here:
        return {"device": here.device, "num_ranks": stated_ranks}
    usual = max(here.num_devices, 2) if here.device == "cuda" else 2
    num_ranks = usual if stated_ranks is None else stated_ranks
    if here.device == "cuda" and here.num_devices < num_ranks:
        if device == "cuda":
            raise UsageError(f"--ranks {num_ranks}: this machine has {here.num_devices} accelerators")
        return {"device": "cpu", "num_ranks": num_ranks}
    return {"device": here.device, "num_ranks": num_ranks}


_STANDARD_INPUT = "-"


@verb(reads=("hardware",), outputs=PAGE)
def topology(
    inputs: InputFiles,
    output: Output,
    *,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE|--", help="Output of nvidia-smi or rocm-smi; `--` or `-` for standard input."
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(autocompletion=clusters_from, help="Accelerator, if the file does not name it."),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=2, max=1_000_000, help="Samples per step, shared by two accelerators.")
    ] = 32,
    fp32: Annotated[
        bool,
        typer.Option("--fp32", help="Predict for fp32, the default of torch, instead of autocast."),
    ] = False,
) -> None:
    """Show how accelerators are connected, and what it means for training."""
    catalogue = inputs.catalogue
    with output.answering():
        from equipoise.bench.topology import here, read
        from equipoise.diagnose.links import meaning
        from equipoise.report.pages.topology import TOPOLOGY, topology_fields

        chip = None if accelerator is None else catalogue.cluster(accelerator).accelerator
        # The option parser consumes `--`, so it is only found in the raw arguments.
        if file is None and sys.argv[-1] == "--":
            file = Path(_STANDARD_INPUT)
        links = here() if file is None else read(_content(file), where=_name(file))
        found = meaning(links, chip=chip, batch=batch, with_autocast=not fp32, catalogue=catalogue)
        output.give_page(TOPOLOGY, found, topology_fields)


@verb(reads=("hardware",), outputs=PAGE)
def collectives(
    inputs: InputFiles,
    output: Output,
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Output of nccl-tests or rccl-tests (text or -J JSON), or of --measure --out.",
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time collectives between processes, with torch.distributed.")
    ] = False,
    ops: Annotated[
        str | None,
        typer.Option(
            metavar="OP[,OP]",
            help="Operations to measure; for a file: the one that its table does not name.",
        ),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="N[,N..]", help="Sizes to measure: 1KiB,64KiB,4MiB.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Number of ranks; default 2, or all accelerators.")
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(help="Launcher: auto, inprocess, torchrun, slurm or ray."),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Device that holds the data; default auto.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Repetitions, each in fresh processes; default 3.")
    ] = None,
    limit: Annotated[
        float | None, typer.Option(min=1.0, help="Time limit per call in seconds; default 60.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the measurements to a file that can be read again."),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=clusters_from,
            help="Accelerator, if the files do not name it.",
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS", help="Weakest link: NV#, PIX, PXB, PHB, NODE, SYS; or a network: 10gbit."
        ),
    ] = None,
) -> None:
    """Fit latency and bandwidth of collectives; report whether they are as expected."""
    if measure:
        from equipoise.bench.launchers.hosts import served

        if served():  # another host of a run started by torchrun or srun, which works for the first host
            return
    with output.answering():
        from equipoise.calibration.collective_verdicts import judged
        from equipoise.report.pages.collectives import COLLECTIVES, collectives_fields

        each_once(files or ())
        options = stated(
            sizes=sizes,
            ranks=ranks,
            launcher=launcher,
            device=device,
            repeat=repeat,
            limit=limit,
            out=out,
        )
        with progress_line() as line:
            reading = _reading(files or (), ops, options, measure=measure, progress=line.update)
        found = judged(reading, accelerator=accelerator, link=link, catalogue=inputs.catalogue)
        output.give_page(COLLECTIVES, found, collectives_fields)


def _name(file: Path) -> str:
    return "standard input" if str(file) == _STANDARD_INPUT else str(file)


def _content(file: Path) -> bytes:
    """The content of a file or of standard input, which is read up to one byte beyond the limit."""
    from equipoise.bench.topology import MOST_BYTES
    from equipoise.files import read_input

    if str(file) == _STANDARD_INPUT:
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    return read_input(file, MOST_BYTES, expected="what nvidia-smi or rocm-smi print")


@verb(outputs=PAGE)
def trace(
    output: Output,
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="torch.profiler traces: .json, .json.gz, or folders and archives of them.",
        ),
    ],
) -> None:
    """Split traced steps into computation, communication and idle time; find stragglers."""
    with output.answering():
        from equipoise.bench.trace import read_traces
        from equipoise.diagnose.stragglers import trace_steps
        from equipoise.report.pages.trace import TRACE, trace_fields

        with progress_line() as line:
            found = trace_steps(read_traces(files, progress=line.update))
        output.give_page(TRACE, found, trace_fields)
