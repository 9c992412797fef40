"""A watched run in some lines: its step, where the step goes, and what hiding a part could gain. No torch."""

from collections.abc import Mapping
from statistics import median

from equipoise.bench.phases import EXPOSED, INPUT, OPTIMIZER, PARTS, REST, STEP, TOTAL
from equipoise.bench.steady import outliers
from equipoise.bench.watching.joined import Watched
from equipoise.stats import median_interval
from equipoise.units import MILLISECOND_S

_LEVEL = 0.95
_FEWEST = 6
# A part that takes less is not worth a line.
_WORTH_FRACTION = 0.1

_NAMES = {EXPOSED: "communication exposed"}
_WAYS = {
    EXPOSED: "larger batches, accumulated gradients, compression: "
    "`equipoise bench --strategy ddp,accumulate:4,fp16` measures them",
    INPUT: "more workers or prefetching in the data loader",
    OPTIMIZER: "an optimizer with fused=True or foreach=True",
    REST: "fewer .item(), prints and logs a step",
}


def summary(watched: Watched) -> str:
    """Lines for a terminal; every figure is a median over the steps that count."""
    if not watched.steps:
        return (
            "No step was seen after warm-up: iterate over seen.batches(loader), or call seen.end_step() "
            "after each update, for a few dozen steps."
        )
    step_s = [step[STEP] for step in watched.steps]
    shares = shares_of(watched)
    lines = [_headline(watched, step_s), _split(shares)]
    total = shares.get(TOTAL)
    if total:
        hidden = 1 - shares[EXPOSED] / total
        lines.append(f"  communication runs {total:.0%} of the time, {hidden:.0%} of it hidden by computing")
    lines += [f"  {line}" for line in gains(shares)]
    return "\n".join([*lines, *_notes(watched, step_s)])


def gains(shares: Mapping[str, float]) -> list[str]:
    """What a step could gain, a line for each part that takes enough of it, and how.

    shares: of phases in the time of the steps.
    Assumes the other parts take as long as before. Source: Amdahl 1967.
    """
    return [
        f"without {_NAMES.get(name, name)} a step is at most {1 / (1 - share):.2f} times as fast: {way}"
        for name, way in _WAYS.items()
        if _WORTH_FRACTION <= (share := shares.get(name, 0.0)) < 1
    ]


def _headline(watched: Watched, step_s: list[float]) -> str:
    step = f"{median(step_s) / MILLISECOND_S:.3g} ms"
    if len(step_s) >= _FEWEST:
        found = median_interval(step_s, level=_LEVEL)
        step += f" ({found.low / MILLISECOND_S:.3g} to {found.high / MILLISECOND_S:.3g})"
    samples = watched.about["batch_samples"] or watched.num_samples
    rate = f", {samples} samples each, {samples / median(step_s):.4g} samples/s" if samples else ""
    ranks = "1 rank" if watched.num_ranks == 1 else f"{watched.num_ranks} ranks"
    return f"{watched.about['workload']} on {ranks}: {len(step_s)} steps of {step}{rate}"


def shares_of(watched: Watched) -> dict[str, float]:
    """Each phase's fraction of all the time of the steps that count; parts sum to 1."""
    whole_s = sum(step[STEP] for step in watched.steps)
    named = [name for name in (*PARTS, TOTAL) if all(name in step for step in watched.steps)]
    return {name: sum(step[name] for step in watched.steps) / whole_s for name in named}


def _split(shares: dict[str, float]) -> str:
    words = [f"{_NAMES.get(name, name)} {share:.0%}" for name, share in shares.items() if name != TOTAL]
    return "  " + ", ".join(words)


def _notes(watched: Watched, step_s: list[float]) -> list[str]:
    """What to know before relying on it."""
    notes = [f"warm-up {watched.num_warm_up} steps, {sum(outliers(step_s))} outliers kept"]
    if not watched.is_steady:
        notes.append("NOT steady: step times still had a trend")
    if watched.num_unlike:
        notes.append(f"{watched.num_unlike} steps of another size left out")
    if watched.missing_ranks and watched.about["rank"]:
        notes.append(f"as rank {watched.about['rank']} saw it; rank 0 has all ranks")
    elif watched.missing_ranks:
        notes.append(f"ranks {', '.join(map(str, watched.missing_ranks))} left nothing in this folder")
    return [f"  {'; '.join(notes)}"]
