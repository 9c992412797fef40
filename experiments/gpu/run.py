"""Predicts steps on this machine's GPU, then measures them; phases, the cost of `watch`, and advice besides.

    python experiments/gpu/run.py --out FILE.json [--work DIR] [--device auto|cpu|cuda] [--minutes 8]

Everything that is finished stays in --work (by default FILE.runs): the same command again goes on from there.
docs/experiments/0037-gpu.md has the method and every field of FILE. `--device cpu` runs shrunken models, so
that the harness itself can be tried anywhere; FILE then says `"shrunken": true`.
"""

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from gpu_loops import profiled, watched
from gpu_models import SHRUNKEN, SUBJECTS, Subject
from msgspec import to_builtins

import equipoise
from equipoise.bench.devices import available_devices
from equipoise.bench.environment import conditions
from equipoise.bench.summary import summaries
from equipoise.bench.sweep import planned
from equipoise.bench.topology import here
from equipoise.bench.trial import FAILED, Store, Trial, encoded, write_whole
from equipoise.errors import EquipoiseError, UsageError
from equipoise.spec.catalogue import catalogue
from equipoise.units import MILLISECOND_S

SCHEMA = "equipoise.experiment.gpu/1"
HERE = Path(__file__).parent
# Of the time, kept for what follows the sweeps: two profiles, two loops watched, one answer.
LATER_SHARE = 0.2
# One trial may take so long; the largest takes a few seconds a hundred steps.
TRIAL_S = 120.0
# What bench runs: eager layers and torch's own loss, plain SGD, which keeps nothing of a weight.
FIXED = ("implementation=eager", "fused_loss=false", "optimizer=sgd", "recompute=none")
# The model's SGD has momentum of so many bytes a weight; that of bench has none.
MOMENTUM_BYTES = 4
# Models whose phases are held against a profile.
NUM_PROFILED = 2
# Steps of about so long are watched.
WATCHED_MS = (2, 20)

Document = dict[str, Any]


def kept(work: Path, name: str, make: Callable[[], Document]) -> Document:
    """What was made earlier and is on disk, or is made now and put there; not what came to nothing."""
    path = work / f"{name}.json"
    if not path.exists():
        made = make()
        if "why_not" in made:
            return made
        write_whole(path, encoded(made))
    found: Document = json.loads(path.read_bytes())
    return found


def chip_of(options: argparse.Namespace, kind: str) -> Document:
    """What the predictions are for: the chip found here, or the one named in its place."""
    links = here()
    titles = [each.title or each.name for each in links.devices if (each.kind == "cpu") == (kind == "cpu")]
    title = titles[0] if titles else None
    slug = options.accelerator or (title and catalogue().accelerator_slug(title))
    why_not = (
        None if slug else f"{title or 'no device of that kind'}: not in the catalogue, nothing predicted"
    )
    return {
        "title": title,
        "num_devices": len(titles),
        "slug": slug,
        "is_stand_in": options.accelerator is not None,
        "why_not": why_not,
    }


def precisions(kind: str, slug: str | None) -> tuple[str, str]:
    """Two to compare: the one of 32 bits that the chip is fastest in, and bf16."""
    chip = catalogue().cluster(slug).accelerator if slug and kind == "cuda" else None
    return ("tf32" if chip is not None and chip.peak_tf32_flop_per_s else "fp32"), "bf16"


def predicted(subject: Subject, batch: int, precision: str, chip: Document) -> Document:
    """One step by `plan` on one chip, or why there is no such prediction."""
    if chip["slug"] is None:
        return {"why_not": chip["why_not"]}
    try:
        found = equipoise.plan(
            subject.reference,
            accelerator=chip["slug"],
            accelerators=1,
            global_batch=batch,
            precision=precision,
            examples=1e6,  # a stated amount of text would be a pretraining, with more in it than its steps
            fix=[*FIXED, f"microbatch={batch}"],
        ).record
    except EquipoiseError as err:
        return {"why_not": str(err)}
    best = found.recommended
    if best is None or best.step_s is None or best.memory is None:
        refusal = found.refusal
        return {"why_not": "plan recommends nothing" if refusal is None else str(to_builtins(refusal))}
    kinds = best.memory.by_kind_bytes
    momentum = MOMENTUM_BYTES * kinds["gradients"] / 4  # gradients have 4 bytes a weight
    tensors = sum(size for name, size in kinds.items() if name not in {"fixed", "allocator"}) - momentum
    return {
        "step_s": best.step_s.value,
        "low_s": best.step_s.low,
        "high_s": best.step_s.high,
        "level": best.step_s.level,
        "by_cause_s": dict(best.model.by_cause_s) if best.model else None,
        "tensor_bytes": tensors,
        "needed_bytes": best.memory.needed_bytes,
        "available_bytes": best.memory.available_bytes,
        "strategy": best.strategy_text,
        "grade": best.grade,
    }


def trials_of(subject: Subject, settings: Document) -> tuple[Trial, ...]:
    """The cells of a model, as `bench` plans them."""
    return tuple(
        trial
        for precision in settings["precisions"]
        for trial in planned(
            workloads=[subject.reference],
            methods=["single"],
            sizes=[1],
            batches=subject.batches,
            num_repetitions=1,
            num_steps=settings["num_steps"],
            precision=precision,
            device=settings["device"],
        )
    )


def measure(subject: Subject, folder: Path, settings: Document, left_s: float) -> None:
    """Run `equipoise bench` for a model's cells; interrupted when the time is over, it keeps what is done."""
    begun = (folder / "sweep.json").exists()
    command = [
        *(sys.executable, "-m", "equipoise", "bench", subject.reference, "--sizes", "1"),
        *("--batch", ",".join(map(str, subject.batches)), "--strategy", "single"),
        *("--precision", ",".join(settings["precisions"]), "--device", settings["device"]),
        *("--launcher", "inprocess", "--repeat", "1", "--steps", str(settings["num_steps"])),
        *("--limit", str(TRIAL_S), "--out", str(folder), *(("--resume",) if begun else ())),
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("ab") as log:
        running = subprocess.Popen(command, cwd=HERE, env=environment(), stdout=log, stderr=log)
        try:
            running.wait(left_s)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
        finally:
            running.wait()


def environment() -> dict[str, str]:
    """Of programs that are started: this package and these models are found."""
    paths = [str(HERE), str(Path(equipoise.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def measured(folder: Path, trial: Trial) -> Document:
    """What bench has of a cell, or why it has nothing."""
    store = Store(folder)
    finished = [each for each in store.finished() if each.trial == trial] if store.num_finished() else []
    if not finished:
        return {"why_not": f"not measured in the time; {folder.name}.log has what bench said"}
    if finished[0].status == FAILED:
        return {"why_not": finished[0].reason}
    (found,), result = summaries(finished), finished[0].result
    run = found.timed[0]
    return {
        "step_s": run.step_s,
        "phases_s": found.phases,
        "num_steps": run.num_steps,
        "num_warm_up": run.num_warm_up,
        "is_steady": run.is_steady,
        "parts_sum": run.parts_sum,
        "was_disturbed": run.was_disturbed,
        "tensor_bytes": result["memory_growth_bytes"][0],
        "reserved_bytes": (result["memory_reserved_bytes"] or [None])[0],
        "energy_j": run.energy_j,
        "accelerator_fraction": run.accelerator_fraction,
        "node": {name: value for name, value in result["nodes"][0].items() if name != "host"},
    }


def compared(guess: Mapping[str, Any], seen: Mapping[str, Any]) -> Document | None:
    """Errors of a cell, each predicted / measured - 1, and whether the step was inside its interval."""
    if "why_not" in guess or "why_not" in seen:
        return None
    return {
        "step": guess["step_s"] / seen["step_s"] - 1,
        "memory": guess["tensor_bytes"] / seen["tensor_bytes"] - 1 if seen["tensor_bytes"] > 0 else None,
        "is_inside": guess["low_s"] <= seen["step_s"] <= guess["high_s"],
    }


def summary(cells: Iterable[Mapping[str, Any]]) -> Document:
    """Median absolute errors, and how many steps were inside their intervals, over cells that have both."""
    errors = [cell["error"] for cell in cells if cell["error"] is not None]
    of_memory = [abs(each["memory"]) for each in errors if each["memory"] is not None]
    return {
        "num_compared": len(errors),
        "median_step_error": median(abs(each["step"]) for each in errors) if errors else None,
        "median_memory_error": median(of_memory) if of_memory else None,
        "num_inside": sum(each["is_inside"] for each in errors),
    }


def advised(subject: Subject) -> Document:
    """What `advise --here` answers: its exit code, what it recommends and why, and what it says besides."""
    command = (
        *(sys.executable, "-m", "equipoise", "advise", subject.reference),
        "--here",
        "--examples",
        "1e6",
    )
    ended = subprocess.run(
        [*command, "--json"], cwd=HERE, env=environment(), capture_output=True, text=True, check=False
    )
    answer = json.loads(ended.stdout) if ended.stdout.strip() else {}
    wanted = ("recommended", "refusal", "notes", "chosen_for_you", "to_measure")
    return {
        "question": " ".join(("equipoise", *command[3:])),
        "exit_code": ended.returncode,
        "said": ended.stderr.strip(),
        **{name: answer.get(name) for name in wanted},
    }


def attempted(make: Callable[[], Document], until_s: float) -> Document:
    """What comes of a part that follows the sweeps, or why nothing did: no time, no memory, no profiler."""
    gc.collect()  # a step that was profiled holds its model in a cycle
    if monotonic() > until_s:
        return {"why_not": "no time was left"}
    try:
        return make()
    except (RuntimeError, EquipoiseError) as err:
        return {"why_not": f"{type(err).__name__}: {str(err).splitlines()[0]}"}


def settings_of(options: argparse.Namespace) -> Document:
    """What is run, from options and machine."""
    kind = available_devices(options.device).device
    chip = chip_of(options, kind)
    subjects = SHRUNKEN if kind == "cpu" else SUBJECTS
    names = [each.name for each in subjects]
    chosen = options.models.split(",") if options.models else names
    if not set(chosen) <= set(names):
        raise UsageError(f"--models {options.models}: expected some of {', '.join(names)}")
    return {
        "device": kind,
        "shrunken": kind == "cpu",
        "chip": chip,
        "precisions": precisions(kind, chip["slug"]),
        "num_steps": options.steps,
        "models": [name for name in names if name in chosen],
    }


def main() -> None:
    """Predict, measure, compare, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the results, one JSON document")
    parser.add_argument("--work", type=Path, help="folder of what is finished; default FILE.runs")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--minutes", type=float, default=8.0, help="in which no further cell begins")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a cell")
    parser.add_argument("--models", help="some of them, by name: gpt_small,resnet50")
    parser.add_argument("--accelerator", help="predict for this chip of the catalogue, whatever is here")
    options = parser.parse_args()
    begun_s = monotonic()
    until_s = begun_s + 60 * options.minutes
    sys.path.insert(0, str(HERE))
    work = (options.work or options.out.with_suffix(".runs")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    now = json.loads(json.dumps(settings_of(options)))
    settings = kept(work, "settings", lambda: now)
    if settings != now:
        raise UsageError(f"{work}: has results of other settings or of another machine; take another --work")
    results = worked(work, settings, begun_s, until_s)
    results["took_s"] = monotonic() - begun_s
    write_whole(options.out, encoded(results))
    print(table(results))


def worked(work: Path, settings: Document, begun_s: float, until_s: float) -> Document:
    """All results: predictions are on disk before the first step is measured."""
    listed = SHRUNKEN if settings["shrunken"] else SUBJECTS
    subjects = {each.name: each for each in listed if each.name in settings["models"]}
    trials = [(each, trial) for each in subjects.values() for trial in trials_of(each, settings)]

    def predictions() -> Document:
        guesses = {
            trial.trial_id: predicted(subject, trial.batch_samples, trial.precision, settings["chip"])
            for subject, trial in trials
        }
        return {"at": datetime.now(UTC).isoformat(timespec="seconds"), "by_trial": guesses}

    before = kept(work, "predictions", predictions)
    bench_until_s = until_s - LATER_SHARE * (until_s - begun_s)
    for name, subject in subjects.items():
        left_s = bench_until_s - monotonic()
        done = Store(work / name).holds_all(trials_of(subject, settings))
        if left_s > 0 and not done:
            measure(subject, work / name, settings, left_s)
    cells = []
    for subject, trial in trials:
        guess, seen = before["by_trial"][trial.trial_id], measured(work / subject.name, trial)
        about = {
            "model": subject.name,
            "title": subject.title,
            "batch_samples": trial.batch_samples,
            "precision": trial.precision,
        }
        cells.append({**about, "predicted": guess, "measured": seen, "error": compared(guess, seen)})

    # Only now is this process itself a program on the accelerator.
    def part(name: str, make: Callable[[], Document]) -> Document:
        return kept(work, name, partial(attempted, make, until_s))

    firsts = {
        subject.name: trial
        for subject, trial in trials
        if (trial.batch_samples, trial.precision) == (subject.batches[0], settings["precisions"][-1])
    }
    bench_s = {name: measured(work / name, trial).get("phases_s") for name, trial in firsts.items()}
    profiles = [
        part(f"phases-{name}", partial(profiled, firsts[name], phases_s, work / "trace.json"))
        for name, phases_s in [(name, each) for name, each in bench_s.items() if each][:NUM_PROFILED]
    ]
    watch = [
        part(
            f"watch-{each}",
            partial(watched, each * MILLISECOND_S, settings["device"], work / "watched"),
        )
        for each in WATCHED_MS
    ]
    advice = part("advice", partial(advised, next(iter(subjects.values()))))
    return {
        "schema": SCHEMA,
        "equipoise": equipoise.__version__,
        "predicted_at": before["at"],
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **settings,
        "machine": {**conditions(core_sets=(), launcher="inprocess"), "host": None},
        "cells": cells,
        "summary": summary(cells),
        "phases": profiles,
        "watch": watch,
        "advice": advice,
    }


def table(results: Document) -> str:
    """The results, a line each, with times in ms."""
    kind = "SHRUNKEN MODELS: these figures say nothing of a GPU. " if results["shrunken"] else ""
    chip = results["chip"]
    lines = [
        f"{kind}{chip['num_devices']} x {chip['title']}; predicted for {chip['slug'] or 'nothing'}",
        f"{'':<18}{'batch':>6}{'predicted':>16} {'interval':>19}{'measured':>10}{'error':>8}{'memory':>8}",
    ]
    for cell in results["cells"]:
        guess, seen, error = cell["predicted"], cell["measured"], cell["error"] or {}
        at = f"{_ms(guess.get('low_s'))}..{_ms(guess.get('high_s'))}"
        mark = "" if not error or error["is_inside"] else " outside"
        lines.append(
            f"{cell['model']:<18}{cell['batch_samples']:>6} {cell['precision']:<5}"
            f"{_ms(guess.get('step_s')):>10} {at:>19}{_ms(seen.get('step_s')):>10}"
            f"{_percent(error.get('step')):>8}{_percent(error.get('memory')):>8}{mark}"
        )
        lines += [f"    {each['why_not']}" for each in (guess, seen) if "why_not" in each]
    found = results["summary"]
    lines.append(
        f"{found['num_compared']} compared: median error {_percent(found['median_step_error'])}, of memory "
        f"{_percent(found['median_memory_error'])}; {found['num_inside']} inside the interval"
    )
    for each in results["phases"]:
        errors = ", ".join(f"{name} {_percent(value)}" for name, value in each.get("error", {}).items())
        lines.append(f"phases against torch.profiler, {each.get('model')}: {errors or each['why_not']}")
    for each in results["watch"]:
        cost = each.get("cost")
        lines.append(
            f"watch: {each['why_not']}"
            if cost is None
            else f"watch, step of {_ms(each['step_s'])} ms: {_percent(cost['value'])} "
            f"({_percent(cost['low'])} to {_percent(cost['high'])}); bare against bare "
            f"{_percent(each['bare_against_bare']['value'])}"
        )
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / MILLISECOND_S:.4g}"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:+.1%}"


if __name__ == "__main__":
    try:
        main()
    except EquipoiseError as err:
        sys.exit(str(err))
