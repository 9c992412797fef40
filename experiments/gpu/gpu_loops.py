"""Steps run in this process: phases by bench's marks against torch.profiler's, and what `watch` costs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import torch
from gpu_models import mlp
from msgspec import to_builtins
from torch.profiler import ProfilerActivity, profile, record_function

import equipoise
from equipoise.bench.devices import device
from equipoise.bench.phases import BACKWARD, FORWARD, OPTIMIZER
from equipoise.bench.stopwatch import Stopwatch
from equipoise.bench.summary import spread
from equipoise.bench.trial import Trial
from equipoise.bench.trial_rank import prepared_training
from equipoise.units import MICROSECOND_S

PARTS = (FORWARD, BACKWARD, OPTIMIZER)
WARM_UP_STEPS, PROFILED_STEPS = 12, 4


def reached_s(events: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Seconds of each part of each profiled step, from the events of a trace, in order of time.

    A part begins when the host comes to it or when the device has ended what was launched before, whichever
    is later, as an event in the stream that computes does. `busy`: of them, seconds in which kernels ran.
    Assumes one stream, and that the parts of a step follow each other.
    Source: Chrome traces of torch.profiler; a kernel has the number (`correlation`) of its launch.
    """
    spans = sorted(
        (each["ts"], each["ts"] + each["dur"], each["name"])
        for each in events
        if each.get("cat") == "user_annotation" and each["name"] in PARTS
    )
    launched = {
        each["args"]["correlation"]: each["ts"]
        for each in events
        if each.get("cat") in {"cuda_runtime", "cuda_driver"} and "correlation" in each.get("args", {})
    }
    kernels = [
        (launched[each["args"]["correlation"]], each["ts"], each["ts"] + each["dur"])
        for each in events
        if each.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}
        and each.get("args", {}).get("correlation") in launched
    ]

    def reached(moment: float) -> float:
        return max([moment, *(end for launch, _, end in kernels if launch <= moment)])

    steps: list[dict[str, float]] = []
    for begun, ended, name in spans:
        if name == PARTS[0]:
            steps.append({})
        steps[-1][name] = (reached(ended) - reached(begun)) * MICROSECOND_S
        busy = sum(end - start for launch, start, end in kernels if begun <= launch <= ended)
        steps[-1][f"{name}_busy"] = busy * MICROSECOND_S
    return steps


def profiled(trial: Trial, bench_s: Mapping[str, float], trace: Path) -> dict[str, Any]:
    """Phases of the same steps by bench's own marks and by torch.profiler, beside what bench reported."""
    on = device(trial.device)
    start = prepared_training(trial, 0, on, on.bind(0))
    watch = Stopwatch(start.step, start.subject, on, num_ranks=1)
    watch.run(WARM_UP_STEPS)
    running: list[Any] = []

    def annotate(name: str) -> None:
        while running:
            running.pop().__exit__(None, None, None)
        if name in PARTS:
            running.append(record_function(name).__enter__())

    # Before the marks: what naming a part takes then lies between its span and the next.
    start.step.marks.insert(0, annotate)
    with profile(activities=[getattr(ProfilerActivity, name) for name in on.activities]) as seen:
        laps = watch.run(PROFILED_STEPS)
    seen.export_chrome_trace(str(trace))
    marked = [watch.split(lap) for lap in laps]
    traced = reached_s(json.loads(trace.read_bytes())["traceEvents"])
    trace.unlink()
    names = (*PARTS, *(f"{name}_busy" for name in PARTS))
    by_profiler = {name: median(step[name] for step in traced) for name in names}
    by_marks = {name: median(split[name] for split in marked) for name in PARTS}
    return {
        "model": trial.workload,
        "batch_samples": trial.batch_samples,
        "precision": trial.precision,
        "num_steps": len(traced),
        "bench_s": {name: bench_s[name] for name in PARTS},
        "marked_s": by_marks,
        "profiler_s": by_profiler,
        # What the marks say over what the profiler says of the same step, less one.
        "error": {
            name: median(split[name] / step[name] - 1 for split, step in zip(marked, traced, strict=True))
            for name in PARTS
        },
    }


class Training:
    """Dense layers trained on one batch: a loop of one's own, as `watch` finds it."""

    def __init__(self, hidden: int, batch_samples: int, kind: str) -> None:
        """hidden: the width of eight layers."""
        self._on = device(kind)
        place = self._on.bind(0)
        model, (inputs, labels), self._loss = mlp(hidden, 8)
        self.model = model.to(place)
        rows = torch.arange(batch_samples) % len(inputs)
        self._batch = inputs[rows].to(place), labels[rows].to(place)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def block_s(self, num_steps: int, out: Path | None = None) -> tuple[float, float]:
        """Seconds of a step, and of leaving the watch per step; out: watched into this folder."""
        loader = [self._batch] * num_steps
        if out is None:
            return self._step_s(loader, num_steps), 0.0
        with equipoise.watch(self.model, out=out) as seen:
            step_s = self._step_s(seen.batches(loader), num_steps)
            ending_s = monotonic()
        return step_s, (monotonic() - ending_s) / num_steps

    def _step_s(self, loader: Iterable[Any], num_steps: int) -> float:
        self._on.synchronise()
        begun_s = monotonic()
        for inputs, labels in loader:
            self._loss(self.model(inputs), labels).backward()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        self._on.synchronise()
        return (monotonic() - begun_s) / num_steps


def watched(target_s: float, kind: str, out: Path) -> dict[str, Any]:
    """What `watch` costs a step of about target_s: blocks with and without it by turns, in this process.

    The narrowest layers whose step takes that long are trained. Ratios are those of neighbouring blocks:
    watched over bare, and bare over the bare one before, which shows what chance does.
    """
    is_small = kind == "cpu"
    widths = (32, 64, 128, 256, 512, 1024) if is_small else (256, 512, 1024, 2048, 4096, 8192)
    for width in widths:
        training = Training(width, 64 if is_small else 4096, kind)
        training.block_s(10)
        step_s, _ = training.block_s(10)
        if step_s >= target_s:
            break
    num_pairs = 6 if is_small else 15
    num_steps = max(5, round((0.1 if is_small else 0.5) / step_s))
    training.block_s(num_steps, out / "warm-up")
    bare, seen = [], []
    for pair in range(num_pairs):
        for is_watched in (pair % 2 == 0, pair % 2 == 1):
            folder = out / f"{width}-{pair}" if is_watched else None
            (seen if is_watched else bare).append(training.block_s(num_steps, folder))
    bare_s = [step for step, _ in bare]
    ratio = spread([step / plain for (step, _), plain in zip(seen, bare_s, strict=True)])
    by_chance = spread([later / earlier for earlier, later in pairwise(bare_s)])
    return {
        "target_s": target_s,
        "hidden": width,
        "step_s": median(bare_s),
        "watched_step_s": median(step for step, _ in seen),
        "num_pairs": num_pairs,
        "num_steps_per_block": num_steps,
        "cost": {name: value - 1 for name, value in to_builtins(ratio).items()},
        "bare_against_bare": {name: value - 1 for name, value in to_builtins(by_chance).items()},
        "leaving_s_per_step": median(leaving for _, leaving in seen),
    }
