"""Steps of two devices as predicted from those of one, held against those measured by two_hosts.py.

    python experiments/predicted_steps.py [--out DIR[,DIR...]] [--parts family,...] [--detail] [--write]

Nothing is fitted to a step of two devices. --write puts every step into 0012-predicted.csv, and its tables
into docs/experiments/0012-predicted-steps.md.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from two_hosts import PARTS, RATES, undisturbed

from equipoise.bench.summary import summaries
from equipoise.bench.trial import SUCCESS, FinishedTrial, Store, Trial
from equipoise.diagnose.predicted_steps import (
    ExchangeCosts,
    Messages,
    MethodWork,
    OneDevice,
    PredictedStep,
    Slowed,
    exchange_costs,
    one_device,
    predict_step,
)

NEAR = 0.2
# Of a document of bench.interference.
TABLES = ("messages", "own_work", "slowed")
DOCS = Path(__file__).parents[1] / "docs" / "experiments"
PAGE, DATA = DOCS / "0012-predicted-steps.md", DOCS / "data" / "0012-predicted.csv"


class Row(Struct, frozen=True, kw_only=True):
    """One step predicted and measured."""

    rate: str
    part: str
    workload: str
    method: str
    params: int
    batch_samples: int
    alone_s: float
    measured_s: float
    predicted_s: float
    no_messages_s: float
    no_work_s: float
    no_rivalry_s: float
    not_slowed_s: float

    @property
    def error_log(self) -> float:
        """Logarithm of predicted over measured seconds."""
        return log(self.predicted_s / self.measured_s)


def costs_at(out: Path, rate: str, repetitions: Iterable[int]) -> ExchangeCosts:
    """What messages cost at a rate, over these repetitions of measuring it."""
    named = (out / f"interference-{rate}-{repetition}.json" for repetition in sorted(repetitions))
    paths = [path for path in named if path.exists()]
    documents = [json.loads(path.read_text()) for path in paths]
    pooled = {
        name: _pooled([each.get(name, ()) for each in documents])
        for name in ("messages", "own_work", "slowed")
    }
    return exchange_costs({**documents[0], **pooled}, rate)


def _pooled(tables: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of several documents joined: lists of those that mean the same, one after the other."""
    joined: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in chain.from_iterable(tables):
        key = tuple(value for value in row.values() if not isinstance(value, list))
        before = joined.get(key, {})
        joined[key] = {
            name: [*before.get(name, ()), *value] if isinstance(value, list) else value
            for name, value in row.items()
        }
    return list(joined.values())


def _finished(folder: Path) -> list[FinishedTrial]:
    return [each for each in Store(folder).finished() if each.status == SUCCESS] if folder.exists() else []


def _counted(out: Path, part: str, link: str) -> list[FinishedTrial]:
    """What a part measured over a link in the repetitions that had the machine to themselves."""
    found = _finished(out / part / link)
    repetitions = undisturbed(out, part) if found else ()
    return [each for each in found if each.trial.repetition in repetitions]


def devices_alone(out: Path) -> dict[str, OneDevice]:
    """What was measured on one device, by workload, over all parts."""
    trials = defaultdict(list)
    for part in PARTS:
        for each in _counted(out, part, "single"):
            trials[each.trial.workload].append(each)
    return {name: one_device(found) for name, found in trials.items()}


def compared(out: Path, parts: Sequence[str]) -> Iterator[tuple[Row, PredictedStep, dict[str, float]]]:
    """Every two-device configuration that was measured, with what was predicted of it, and its phases."""
    alone = devices_alone(out)
    for rate in RATES:
        for part in parts:
            found = _counted(out, part, rate)
            if not found:
                continue
            costs = costs_at(out, rate, {each.trial.repetition for each in found})
            for each in summaries(found):
                trial, one = each.trial, alone.get(each.trial.workload)
                if one is None or each.step_s is None or trial.rank_batch_samples not in one.phases:
                    continue
                others = {name: _step(trial, one, change(costs)) for name, change in VARIANTS.items()}
                step = _step(trial, one, costs)
                row = Row(
                    rate=rate,
                    part=part,
                    workload=trial.workload,
                    method=trial.method,
                    params=one.gradient_bytes // 4,
                    batch_samples=trial.batch_samples,
                    alone_s=one.phase_s("step", min(trial.batch_samples, max(one.phases))),
                    measured_s=each.step_s.value,
                    predicted_s=step.step_s.value,
                    **{name: other.step_s.value for name, other in others.items()},
                )
                yield row, step, each.phases


def _step(trial: Trial, one: OneDevice, costs: ExchangeCosts) -> PredictedStep:
    return predict_step(trial.method, num_ranks=2, batch_samples=trial.batch_samples, one=one, costs=costs)


def _without_messages(costs: ExchangeCosts) -> ExchangeCosts:
    """What two devices would take that need not talk."""
    none = Messages(
        payload_bytes=(1.0, 1e15), alone_s=(1e-15,) * 2, overlapped_s=(1e-15,) * 2, core_share=(0.0,) * 2
    )
    return replace(_without_work(costs), messages=dict.fromkeys(costs.messages, none), slowed=Slowed())


def _without_work(costs: ExchangeCosts) -> ExchangeCosts:
    """Buckets that fill and empty themselves."""
    none = MethodWork(fixed_s=0.0, tensor_s=0.0, gradient_bytes=(1.0,), copying_s=(0.0,))
    return replace(costs, method_work=dict.fromkeys(costs.method_work, none))


def _beside_nothing(costs: ExchangeCosts) -> ExchangeCosts:
    """Messages and computing that do not slow each other."""
    messages = {
        name: replace(each, overlapped_s=each.alone_s, core_share=(0.0,) * len(each.alone_s))
        for name, each in costs.messages.items()
    }
    return replace(costs, messages=messages)


def _never_slowed(costs: ExchangeCosts) -> ExchangeCosts:
    """Computing that nothing slows."""
    return replace(costs, slowed=Slowed())


# What the law would say without one of its parts.
VARIANTS: dict[str, Callable[[ExchangeCosts], ExchangeCosts]] = {
    "no_messages_s": _without_messages,
    "no_work_s": _without_work,
    "no_rivalry_s": _beside_nothing,
    "not_slowed_s": _never_slowed,
}


WITHOUT = ("no messages", "no copies", "no rivalry", "not slowed")


def _detail(row: Row, found: PredictedStep, phases: dict[str, float]) -> str:
    """One step in three lines: the whole, what was predicted of it, what was seen; in ms."""
    names = ("one_device_s", "slowed_s", "waiting_s", "added_s", "exposed_s")
    parts = {name: round(getattr(found, name) * 1e3, 2) for name in names}
    seen = {name: round(seconds * 1e3, 2) for name, seconds in phases.items()}
    what = f"{row.rate} {row.part} {row.workload} {row.method} batch {row.batch_samples}"
    off = f"{exp(row.error_log) - 1:+.1%}"
    return (
        f"{what}: predicted {row.predicted_s * 1e3:.2f} ms, measured {row.measured_s * 1e3:.2f}, {off}\n"
        f"    {parts}, {found.num_messages:g} messages\n    {seen}"
    )


def main() -> None:
    """Predict and compare what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        default="build/experiments/two-hosts",
        help="folders of two_hosts.py; of a part in several the first counts",
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--detail", action="store_true", help="a line a step")
    parser.add_argument("--write", action="store_true", help="the page and its data")
    chosen = parser.parse_args()
    rows: list[Row] = []
    for out in map(Path, chosen.out.split(",")):
        seen = {row.part for row in rows}
        for row, found, phases in compared(
            out, [part for part in chosen.parts.split(",") if part not in seen]
        ):
            rows.append(row)
            if chosen.detail:
                print(_detail(row, found, phases))
    print(errors(rows))
    if chosen.write:
        with DATA.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(Row.__struct_fields__))
            writer.writeheader()
            writer.writerows(to_builtins(row) for row in rows)
        page = PAGE.read_text()
        for name, table in (("errors", errors(rows)), ("steps", steps(rows))):
            head, mark, rest = page.partition(f"<!-- {name} -->\n")
            _, end, tail = rest.partition(f"<!-- end {name} -->")
            page = f"{head}{mark}{table}\n{end}{tail}"
        PAGE.write_text(page)


def errors(rows: Sequence[Row]) -> str:
    """A table: how wrong, by link and part, and without each part of the law."""
    titles = ("link", "what", "steps", "median error", "within 20 %", "worst", *WITHOUT)
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for rate, part in product(RATES, (*PARTS, "all")):
        of = [row for row in rows if row.rate == rate and part in (row.part, "all")]
        if of:
            own = [abs(exp(row.error_log) - 1) for row in of]
            others = [median(abs(getattr(row, name) / row.measured_s - 1) for row in of) for name in VARIANTS]
            lines.append(
                f"| {rate} | {part.replace('_', ' ')} | {len(of)} | **{median(own):.1%}** "
                f"| {sum(each <= NEAR for each in own)} | {max(own):.0%} "
                f"| {' | '.join(f'{each:.0%}' for each in others)} |"
            )
    return "\n".join(lines)


def steps(rows: Sequence[Row]) -> str:
    """A table of every held-out step."""
    lines = [
        "| link | model | parameters | batch | one device, ms | two: measured | predicted | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.rate} | {row.workload.rpartition(':')[2]} | {row.params:,} | {row.batch_samples} "
        f"| {row.alone_s * 1e3:.3g} | {row.measured_s * 1e3:.3g} | {row.predicted_s * 1e3:.3g} "
        f"| {exp(row.error_log) - 1:+.0%} |"
        for row in rows
        if row.part != "family"
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
