"""The verb `bench`: its options become a plan of runs, which are executed, kept and shown."""

from functools import partial
from hashlib import sha256
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from equipoise.cli.options import AsHtml, AsJson, Full, Hardware, JsonOut, catalogue_of
from equipoise.cli.output import answering
from equipoise.errors import EvidenceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from equipoise.bench.launchers import Launcher
    from equipoise.bench.trial import Trial
    from equipoise.diagnose.sweeps import SweepNow
    from equipoise.spec.catalogue import Catalogue

_DEFAULT_WORKLOAD = "mlp"


def _strategies_from(incomplete: str) -> list[str]:
    """Ways to train, for a shell that completes a word."""
    from equipoise.bench.methods import METHODS

    return [one.name for one in METHODS if one.name.startswith(incomplete)]


def _workloads_from(incomplete: str) -> list[str]:
    """Models that bench can train by name, for a shell that completes a word."""
    from equipoise.bench.models import ZOO

    return [one.name for one in ZOO if one.name.startswith(incomplete)]


def bench(
    *,
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD|MODULE:FUNCTION]...",
            autocompletion=_workloads_from,
            help="What to train: `equipoise list models` names them; or your own function; mlp.",
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="N[,N..]", help="Numbers of ranks; `1,2,4..` doubles up to all devices."),
    ] = None,
    batch: Annotated[str, typer.Option(metavar="B[,B...]", help="Samples of a step: see --scaling.")] = "32",
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="S[,S...]",
            autocompletion=_strategies_from,
            help="Ways to train, as in `equipoise list methods`: ddp,fp16,powersgd:2,localsgd:8; ddp.",
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(metavar="P[,P...]", help="Of the computing: fp32, tf32, bf16.")
    ] = "fp32",
    scaling: Annotated[
        Literal["strong", "weak"],
        typer.Option(help="strong: --batch is shared by all ranks; weak: every rank has as much."),
    ] = "strong",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where ranks compute.")] = "auto",
    launcher: Annotated[
        str,
        typer.Option(help="auto, inprocess, torchrun, slurm, ray, or emulated:RATE, e.g. emulated:1gbit."),
    ] = "auto",
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="What sbatch is to know: partition=main; may be repeated."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; RAY_ADDRESS or the one here unless given.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions, each in fresh processes.")] = 3,
    steps: Annotated[
        int, typer.Option(min=1, max=100_000, help="Timed steps of a run, after its warm-up.")
    ] = 20,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds a run may take before it is ended.")] = 600.0,
    train: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="SAMPLES", help="Train on so many; repetitions are seeds; show held-out loss."
        ),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The workload's own unless given.")] = None,
    aa: Annotated[
        bool, typer.Option("--aa", help="Run everything twice over; show how often equal runs differ.")
    ] = False,
    find: Annotated[
        bool,
        typer.Option(
            "--find", help="Search the fastest strategy, batch and size in few runs, the rest predicted."
        ),
    ] = False,
    trials: Annotated[int, typer.Option(min=1, help="With --find: runs on several ranks at most.")] = 12,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --find: only what learns the same from a sample.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the sweep is kept; a name made of its plan.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a sweep; alone with --out: with its own plan.")
    ] = False,
    hardware: Hardware = None,
    html: AsHtml = None,
    full: Full = False,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Time or try real training by size, batch and strategy."""
    catalogue = catalogue_of(hardware)
    from equipoise.bench.launchers import served

    if served():  # a further host of a run that torchrun or srun started: it works for the first
        return
    if isnan(limit):
        raise UsageError("--limit nan: expected seconds")
    with answering("bench", as_json=as_json, json_out=json_out, html=html) as answer:
        from equipoise.cli.sweeps import SweepOptions, cells_of, planned_before
        from equipoise.report.bench_json import sweep_fields
        from equipoise.report.pages.sweep import SWEEP

        settings = {"scaling": scaling, "launcher": launcher}
        options = _options(slurm or (), address)
        if resume and out is not None and not workloads and not find:
            cells, before = planned_before(out)
            settings |= before
        else:
            asked = SweepOptions(
                workloads=tuple(workloads or (_DEFAULT_WORKLOAD,)),
                sizes=sizes,
                batches=batch,
                strategies=_strategies(strategy, find=find, exact=exact),
                precisions=precision,
                scaling=scaling,
                device=device,
                binds_here=_launcher(launcher, options).binds_here,
                num_repetitions=repeat,
                num_steps=steps,
                train_samples=train,
                learning_rate=learning_rate,
                num_arms=2 if aa else 1,
            )
            cells = cells_of(asked)
        if find:
            from equipoise.cli.sweeps import Looked
            from equipoise.cli.sweeps import search_for_methods as search
            from equipoise.report.bench_json import find_fields
            from equipoise.report.pages.find import FIND

            looked = Looked(num_trials=trials, num_repetitions=repeat, exact_only=exact)
            folder = out or Path(f"find-{_name(cells)}")
            best = search(cells, folder, _launcher(launcher, options), looked, limit_s=limit, resume=resume)
            answer.give_page(FIND, best, find_fields, full=full)
            return
        folder = out or Path(_name(cells))
        start = partial(_launcher, settings["launcher"], options)
        found = _swept(cells, folder, settings, start=start, limits=(limit, resume), catalogue=catalogue)
        answer.give_page(SWEEP, found, lambda now: sweep_fields(now.swept), full=full)
    if found.swept.refusal:
        raise EvidenceError(found.swept.refusal)


def _strategies(given: str | None, *, find: bool, exact: bool) -> str:
    """The ways to train as text: plain ddp unless others are named or looked for."""
    if exact and not find:
        raise UsageError("--exact goes with --find")
    if not find:
        return given or "ddp"
    from equipoise.cli.sweeps import strategies

    return strategies(given, exact_only=exact)


def _name(cells: "Sequence[Trial]") -> str:
    """The folder of a plan where none is given: the same plan has the same."""
    names = "\n".join(sorted(cell.trial_id for cell in cells))
    workload = "".join(char if char.isalnum() else "-" for char in cells[0].workload)[:40]
    return f"bench-{workload}-{sha256(names.encode()).hexdigest()[:8]}"


def _options(slurm: "Sequence[str]", address: str | None) -> dict[str, str]:
    """Options of a launcher, besides its name."""
    options = {} if address is None else {"address": address}
    for item in slurm:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--slurm {item!r}: expected KEY=VALUE, such as partition=main")
        options[key.strip()] = value.strip()
    return options


def _launcher(name: str, options: "Mapping[str, str]") -> "Launcher":
    from equipoise.bench.launchers import launcher

    return launcher(name, options) if options else launcher(name)


def _swept(
    cells: "Sequence[Trial]",
    folder: Path,
    settings: "Mapping[str, str]",
    *,
    start: "Callable[[], Launcher]",
    limits: tuple[float, bool],
    catalogue: "Catalogue",
) -> "SweepNow":
    """The sweep, run to its end; interrupted or stopped by an error, it reports what is kept.

    limits: seconds of a run, and whether to go on with a sweep.
    """
    from equipoise.bench.store import Store
    from equipoise.bench.sweep import run_sweep
    from equipoise.bench.tables import write_sweep_tables
    from equipoise.cli.sweeps import kept, shown
    from equipoise.diagnose.sweeps import sweep_now

    store, (limit_s, resume) = Store(folder), limits
    # Where nothing is left to run it is shown again, on machines that cannot train too.
    if not (resume and store.holds_all(cells)):
        launch_with = start()
        with kept(store, num_cells=len(cells), catalogue=catalogue), shown(cells, store) as progress:
            run_sweep(
                cells,
                folder,
                launch_with,
                limit_s=limit_s,
                resume=resume,
                progress=progress,
                settings=settings,
            )
    write_sweep_tables(folder, catalogue)
    return sweep_now(folder)
