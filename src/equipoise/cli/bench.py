"""The verb `bench`: its options become a plan of runs, which are executed, stored and shown."""

from collections.abc import Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import Annotated, Literal

import typer

from equipoise.cli.output import PAGE, InputFiles, Output, verb
from equipoise.errors import EvidenceError, UsageError
from equipoise.files import expect_folder

_DEFAULT_WORKLOAD = "mlp"
_SEARCH_TRIALS = 12


def _strategies_from(incomplete: str) -> list[str]:
    """Methods, for shell completion."""
    from equipoise.bench.training import METHODS

    return [one.name for one in METHODS if one.name.startswith(incomplete)]


def _workloads_from(incomplete: str) -> list[str]:
    """Models that bench can train by name, for shell completion."""
    from equipoise.bench.training import ZOO

    return [one.name for one in ZOO if one.name.startswith(incomplete)]


@verb(reads=("hardware",), outputs=("allow_code", *PAGE))
def bench(
    inputs: InputFiles,
    output: Output,
    *,
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD|MODULE:FUNCTION]...",
            autocompletion=_workloads_from,
            help="What to train: a name from `equipoise list models`, or module:function; default mlp.",
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="N[,N..]", help="Numbers of ranks; `1,2,4..` doubles up to all devices."),
    ] = None,
    batch: Annotated[str, typer.Option(metavar="B[,B...]", help="Samples per step; see --scaling.")] = "32",
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="S[,S...]",
            autocompletion=_strategies_from,
            help="Strategies of `equipoise list methods`: ddp,fp16,powersgd:2,localsgd:8; default ddp.",
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(metavar="P[,P...]", help="Precision of computation: fp32, tf32, bf16.")
    ] = "fp32",
    scaling: Annotated[
        Literal["strong", "weak"],
        typer.Option(help="strong: --batch is divided among the ranks; weak: every rank has --batch."),
    ] = "strong",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Device that ranks compute on.")
    ] = "auto",
    launcher: Annotated[
        str,
        typer.Option(help="auto, inprocess, torchrun, slurm or ray."),
    ] = "auto",
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of sbatch: partition=main; may be repeated."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of the Ray cluster; default RAY_ADDRESS, or a local one.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions, each in fresh processes.")] = 3,
    steps: Annotated[int, typer.Option(min=1, max=100_000, help="Timed steps per run, after warm-up.")] = 20,
    limit: Annotated[float, typer.Option(min=1.0, help="Time limit per run, in seconds.")] = 600.0,
    train: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="SAMPLES",
            help="Train on this many samples, one seed per repetition; show held-out loss.",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate; default: the workload's.")
    ] = None,
    aa: Annotated[
        bool, typer.Option("--aa", help="A/A test: run everything twice; show how often equal runs differ.")
    ] = False,
    find: Annotated[
        bool,
        typer.Option(
            "--find", help="Find the fastest strategy, batch and size: measure a few, predict the rest."
        ),
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="With --find: maximum number of runs on several ranks; default 12."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --find: only methods with the same result as one device.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the sweep; default: named after its plan.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a sweep; with --out alone, use the plan stored there.")
    ] = False,
) -> None:
    """Time steps or train on your devices, by size, batch and strategy."""
    from equipoise.bench.launchers.hosts import served

    if served():  # another host of a run started by torchrun or srun, which works for the first host
        return
    if isnan(limit):
        raise UsageError("--limit nan: expected a number of seconds")
    for name, is_given in (("--trials", trials is not None), ("--exact", exact)):
        if is_given and not find:
            raise UsageError(f"{name} goes with --find; give both, or neither")
    if out is not None:
        expect_folder(out)
    with output.answering():
        from equipoise.bench.equipment import launcher as launcher_of
        from equipoise.cli import sweeps
        from equipoise.report.pages.sweep import SWEEP, sweep_fields

        settings = {"scaling": scaling, "launcher": launcher}
        options = _options(slurm or (), address)
        if resume and out is not None and not workloads and not find:
            planned, before = sweeps.stored_plan(out, allow_code=output.allow_code)
            settings |= before
        else:
            planned = sweeps.trials_of(
                workloads=tuple(workloads or (_DEFAULT_WORKLOAD,)),
                sizes=sizes,
                batches=batch,
                strategies=sweeps.strategies(strategy, exact_only=exact) if find else strategy or "ddp",
                precisions=precision,
                scaling=scaling,
                device=device,
                binds_here=launcher_of(launcher, options).binds_here,
                num_repetitions=repeat,
                num_steps=steps,
                train_samples=train,
                learning_rate=learning_rate,
                num_arms=2 if aa else 1,
            )
        if find:
            from equipoise.report.pages.find import FIND, find_fields

            best = sweeps.search_for_methods(
                planned,
                out or Path(f"find-{sweeps.name_of(planned)}"),
                launcher_of(launcher, options),
                num_trials=trials or _SEARCH_TRIALS,
                num_repetitions=repeat,
                limit_s=limit,
                resume=resume,
                catalogue=inputs.catalogue,
            )
            output.give_page(FIND, best, find_fields)
            return
        found = sweeps.swept(
            planned,
            out or Path(sweeps.name_of(planned)),
            settings,
            start=partial(launcher_of, settings["launcher"], options),
            limit_s=limit,
            resume=resume,
            catalogue=inputs.catalogue,
        )
        output.give_page(SWEEP, found, sweep_fields)
    if found.refusal:
        raise EvidenceError(found.refusal)


def _options(slurm: Sequence[str], address: str | None) -> dict[str, str]:
    """Options of a launcher, apart from its name."""
    options = {} if address is None else {"address": address}
    for item in slurm:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--slurm {item!r}: expected KEY=VALUE, such as partition=main")
        options[key.strip()] = value.strip()
    return options
