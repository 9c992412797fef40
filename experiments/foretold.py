"""Steps of two devices as foretold from those of one, held against those measured by two_hosts.py.

    python experiments/foretold.py [--out DIR] [--parts family,held_out,zoo] [--detail]

Nothing is fitted to a step of two devices. Writes DIR/foretold.json. docs/experiments/0012-foretold-steps.md.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import median

from equipoise.advice.exchange_costs import ExchangeCosts, exchange_costs
from equipoise.advice.foretold_steps import ForetoldStep, OneDevice, foretold, one_device
from equipoise.bench.store import SUCCESS, Finished, Store
from equipoise.bench.summary import summaries

RATES = ("1gbit", "10gbit")
PARTS = ("family", "held_out", "zoo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One step foretold and measured."""

    rate: str
    part: str
    workload: str
    method: str
    params: int
    batch_samples: int
    alone_s: float
    measured_s: float
    foretold_s: float

    @property
    def error_log(self) -> float:
        """Logarithm of foretold over measured seconds."""
        return log(self.foretold_s / self.measured_s)


def costs_at(out: Path, rate: str) -> ExchangeCosts:
    """What messages cost at a rate."""
    path = out / f"interference-{rate}.json"
    return exchange_costs(json.loads(path.read_text()), str(path))


def _finished(folder: Path) -> list[Finished]:
    return [each for each in Store(folder).finished() if each.status == SUCCESS] if folder.exists() else []


def devices_alone(out: Path) -> dict[str, OneDevice]:
    """What was measured on one device, by workload, over all parts."""
    cells = defaultdict(list)
    for part in PARTS:
        for each in _finished(out / part / "single"):
            cells[each.cell.workload].append(each)
    return {name: one_device(found) for name, found in cells.items()}


def compared(out: Path, parts: list[str]) -> Iterator[tuple[Row, ForetoldStep, dict[str, float]]]:
    """Every two-device configuration that was measured, with what was foretold of it, and its phases."""
    alone = devices_alone(out)
    for rate in RATES:
        costs = costs_at(out, rate)
        for part in parts:
            for each in summaries(_finished(out / part / rate)):
                cell, one = each.cell, alone.get(each.cell.workload)
                if one is None or each.step_s is None or cell.rank_batch_samples not in one.phases:
                    continue
                found = foretold(
                    cell.method, num_ranks=2, batch_samples=cell.batch_samples, one=one, costs=costs
                )
                row = Row(
                    rate=rate,
                    part=part,
                    workload=cell.workload,
                    method=cell.method,
                    params=one.gradient_bytes // 4,
                    batch_samples=cell.batch_samples,
                    alone_s=one.phase_s("step", min(cell.batch_samples, max(one.phases))),
                    measured_s=each.step_s.value,
                    foretold_s=found.step_s.value,
                )
                yield row, found, each.phases


def _detail(row: Row, found: ForetoldStep, phases: dict[str, float]) -> str:
    """One step in three lines: the whole, what was foretold of it, what was seen; in ms."""
    names = ("own_s", "waiting_s", "added_s", "exposed_s")
    parts = {name: round(getattr(found, name) * 1e3, 2) for name in names}
    seen = {name: round(seconds * 1e3, 2) for name, seconds in phases.items()}
    what = f"{row.rate} {row.part} {row.workload} {row.method} batch {row.batch_samples}"
    off = f"{exp(row.error_log) - 1:+.1%}"
    return (
        f"{what}: foretold {row.foretold_s * 1e3:.2f} ms, measured {row.measured_s * 1e3:.2f}, {off}\n"
        f"    {parts}, {found.num_messages:g} messages\n    {seen}"
    )


def main() -> None:
    """Foretell and compare what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/experiments/two-hosts"))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--detail", action="store_true", help="a line a step")
    chosen = parser.parse_args()
    rows = []
    for row, found, phases in compared(chosen.out, chosen.parts.split(",")):
        rows.append(row)
        if chosen.detail:
            print(_detail(row, found, phases))
    for rate, part in product(RATES, PARTS):
        errors = [abs(exp(row.error_log) - 1) for row in rows if (row.rate, row.part) == (rate, part)]
        if errors:
            told = f"median error {median(errors):.1%}, worst {max(errors):.1%}"
            print(f"{rate:7} {part:9} {len(errors):3} steps: {told}")
    (chosen.out / "foretold.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
