"""A field report on two GPUs behind a host bridge: what it measured, and what one profile predicts of it.

Its figures and the profile, each input with its source, are in field_report.toml; nothing is set by model.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.diagnose.links import LEAST_GAIN, Cases, Pair, cases, seconds, speedups
from equipoise.intervals import LEVEL, Interval
from equipoise.perfmodel.collectives import all_reduce_s
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import Group, machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.replicas import GRADIENT_BYTES, ExchangedTensors, at_batch
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import Accelerator, accelerator
from equipoise.spec.links import LinkReach, reach
from equipoise.spec.workload import Workload, workload

FILE = Path(__file__).with_name("field_report.toml")
# Consumer cards whose driver gives no peer access over PCIe, as the report's machine had it.
CARDS = ("rtx-2080-ti-pcie-11gb", "rtx-3090-pcie-24gb", "rtx-4090-pcie-24gb", "rtx-5090-pcie-32gb")
BATCHES = (8, 16, 32, 64)
_NVLINK = "NV2"


class Reported(Struct, frozen=True, kw_only=True):
    """A model of the report: hours on one and on two, and what a replica of it exchanges."""

    workload: Workload
    one_s: float
    two_s: float
    holds: ExchangedTensors

    @property
    def speedup(self) -> float:
        """Time on one over time on two."""
        return self.one_s / self.two_s


class Sweep(Struct, frozen=True, kw_only=True):
    """Samples per second by global batch, and how many tensors networks of that size have."""

    params: float
    batches: tuple[int, ...]
    one_per_s: tuple[float, ...]
    two_per_s: tuple[float, ...]
    tensors: tuple[int, int]


class Statement(Struct, frozen=True, kw_only=True):
    """What the report says, and what of its own figures speaks against it."""

    says: str
    against: str


class Report(Struct, frozen=True, kw_only=True):
    """The report. profile: the inputs that stand for its machine, and the source of each."""

    profile: Mapping[str, Any]
    models: tuple[Reported, ...]
    sweeps: tuple[Sweep, ...]
    settings: Mapping[str, str]
    statements: tuple[Statement, ...]

    @property
    def pair(self) -> Pair:
        """The two accelerators that stand for the report's."""
        known = self.profile
        link = LinkReach(
            path="near",
            stated_byte_per_s=(known["low_byte_per_s"], known["high_byte_per_s"]),
            byte_per_s=known["byte_per_s"],
            low=known["low_byte_per_s"],
            high=known["high_byte_per_s"],
            latency_s=known["latency_s"],
            source="field_report.toml",
        )
        return Pair(accelerator=accelerator(known["accelerator"]), link=link)

    def cases(self, pairs: Sequence[Pair], batches: Sequence[int]) -> Cases:
        """Its models on pairs."""
        loads = [workload_load(each.workload) for each in self.models]
        holds = {
            name: np.array([getattr(each.holds, name) for each in self.models], dtype=float)
            for name in ExchangedTensors.__struct_fields__
        }
        return cases(pairs, loads, batches, tensors=ExchangedTensors(**holds))


def crossover(
    params: Sequence[float], speedup: NDArray[np.float64], *, gain: float = LEAST_GAIN
) -> float | None:
    """Parameters at which models, from small to large, begin to gain on two; None where none does.

    Interpolated on the logarithm of the parameters between the last that does not gain and the next. The
    first parameters where all gain: the crossover lies there or below.
    """
    sizes, gains = np.log(np.asarray(params, dtype=float)), np.asarray(speedup, dtype=float)
    lost = np.flatnonzero(gains < gain)
    if not len(lost):
        return float(np.exp(sizes[0]))
    last = lost[-1]
    if last == len(gains) - 1:
        return None
    share = (gain - gains[last]) / (gains[last + 1] - gains[last])
    return float(np.exp(sizes[last] + share * (sizes[last + 1] - sizes[last])))


def _over(card: Accelerator, link_class: str) -> Pair:
    return Pair(accelerator=card, link=reach(link_class, card))


@cache
def report() -> Report:
    """The report as field_report.toml has it."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return Report(
        profile=found["profile"],
        models=tuple(_reported(each) for each in found["models"]),
        sweeps=tuple(
            Sweep(
                params=each["params"],
                batches=tuple(each["batches"]),
                one_per_s=tuple(each["one_per_s"]),
                two_per_s=tuple(each["two_per_s"]),
                tensors=(each["few_tensors"], each["many_tensors"]),
            )
            for each in found["sweeps"]
        ),
        settings=found["settings"],
        statements=tuple(Statement(**each) for each in found["statements"]),
    )


def _reported(block: Mapping[str, Any]) -> Reported:
    model = workload(block["workload"])
    params = float(np.asarray(workload_load(model).params))
    return Reported(
        workload=model,
        one_s=float(block["one_s"]),
        two_s=float(block["two_s"]),
        holds=ExchangedTensors(
            num_tensors=float(block["num_tensors"]),
            gradient_bytes=params * GRADIENT_BYTES,
            num_buffers=float(block["num_buffers"]),
            buffer_bytes=float(block["buffer_bytes"]),
            half_ready=float(block["half_ready"]),
        ),
    )


class Row(Struct, frozen=True, kw_only=True):
    """One model: what the report measured and what the profile predicts.

    parts: milliseconds of a step on two by cause, and `one` of the whole step on one; keys as ReplicaSeconds.
    """

    workload: Workload
    reported: float
    predicted: Interval
    parts_s: Mapping[str, float]

    @property
    def best(self) -> str:
        """`one` or `two`: what the report's figures say."""
        return "two" if self.reported >= LEAST_GAIN else "one"

    @property
    def chosen(self) -> str:
        """`one` or `two`: what the profile says, by the median."""
        return "two" if self.predicted.value >= LEAST_GAIN else "one"


class Sensitivity(Struct, frozen=True, kw_only=True):
    """One chip and batch of the sensitivity: how many of the models are chosen right, and the crossover."""

    accelerator: str
    link: str
    batch: int
    num_right: int
    crossover: float | None
    speedups: tuple[float, ...]


class Reproduction(Struct, frozen=True, kw_only=True):
    """The report and what the profile predicts. crossovers: parameters from which two gain LEAST_GAIN."""

    report: Report
    rows: tuple[Row, ...]
    reported_crossover: float | None
    crossover: float | None
    nvlink_rows: tuple[Row, ...]
    nvlink_crossover: float | None
    sensitivity: tuple[Sensitivity, ...]

    @property
    def num_right(self) -> int:
        """Models for which the profile chooses what the report's figures say."""
        return sum(row.chosen == row.best for row in self.rows)


def reproduced() -> Reproduction:
    """The report's table predicted by one profile, over NVLink too, and by chip and batch."""
    known = report()
    bonded = _over(known.pair.accelerator, _NVLINK)
    batch = int(known.profile["batch"])
    here = known.cases([known.pair, bonded], [batch])
    drawn = speedups(here)[..., 0]
    rows, nvlink_rows = (_rows(known, here, drawn[:, place], place) for place in (0, 1))
    params = _params(known)
    return Reproduction(
        report=known,
        rows=rows,
        reported_crossover=crossover(params, np.array([each.speedup for each in known.models])),
        crossover=crossover(params, np.array([row.predicted.value for row in rows])),
        nvlink_rows=nvlink_rows,
        nvlink_crossover=crossover(params, np.array([row.predicted.value for row in nvlink_rows])),
        sensitivity=sensitivity(known),
    )


def _params(known: Report) -> list[float]:
    return [float(each.workload.params or 0) for each in known.models]


def _rows(known: Report, here: Cases, drawn: NDArray[np.float64], place: int) -> tuple[Row, ...]:
    """Rows of one pair: draws of shape (n_draws, n_models)."""
    low, middle, high = np.quantile(drawn, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2], axis=0)
    found = seconds(here)
    shape = np.broadcast_shapes(found.step.shape, (len(here.pairs), len(known.models), 1, 2))
    causes = {
        name: np.broadcast_to(getattr(found, name), shape)[place, :, 0, 1]
        for name in ("share", "launching", "copying", "buffers", "exposed", "waiting")
    }
    causes["one"] = np.broadcast_to(found.step, shape)[place, :, 0, 0]
    return tuple(
        Row(
            workload=each.workload,
            reported=each.speedup,
            predicted=Interval(
                value=float(middle[index]), low=float(low[index]), high=float(high[index]), level=LEVEL
            ),
            parts_s={name: float(value[index]) for name, value in causes.items()},
        )
        for index, each in enumerate(known.models)
    )


def sensitivity(known: Report, links: Sequence[str] = ("PHB",)) -> tuple[Sensitivity, ...]:
    """The choices and the crossover for other cards without peer access, and other batches."""
    pairs = [(name, _over(accelerator(slug), name)) for slug in CARDS for name in links]
    found = known.cases([each for _, each in pairs], BATCHES)
    middle = np.median(speedups(found), axis=0)
    best = np.array([each.speedup >= LEAST_GAIN for each in known.models])
    params = _params(known)
    return tuple(
        Sensitivity(
            accelerator=each.accelerator.slug,
            link=name,
            batch=batch,
            num_right=int(np.sum((middle[index, :, column] >= LEAST_GAIN) == best)),
            crossover=crossover(params, middle[index, :, column]),
            speedups=tuple(map(float, middle[index, :, column])),
        )
        for index, (name, each) in enumerate(pairs)
        for column, batch in enumerate(BATCHES)
    )


class SweepRow(Struct, frozen=True, kw_only=True):
    """Two of a sweep predicted from its own steps on one: seconds, with few tensors and with many."""

    params: float
    batch: int
    one_s: float
    two_s: float
    low_s: float
    high_s: float


def swept_rows() -> tuple[SweepRow, ...]:
    """The report's batch sweeps: steps on two from its steps on one and the profile's link.

    The least batch of each is left out: its half was not measured on one.
    Assumes nothing of the exchange is hidden where steps are bound by launches, and that copies cost what
    torch takes to launch them.
    Source: as `perfmodel.replicas`, with the report's own steps in place of the model's.
    """
    known, parameters = report(), Parameters()
    joined = machine(
        cluster(
            known.pair.accelerator.slug,
            node_size=2,
            num_accelerators=2,
            intra_byte_per_s=known.pair.link.byte_per_s / parameters.value("collective.intra_fraction"),
            intra_latency_s=known.pair.link.latency_s,
            topology="switch",
            switch_reduces=False,
        )
    )
    rows = []
    for sweep in known.sweeps:
        one_s = [batch / rate for batch, rate in zip(sweep.batches, sweep.one_per_s, strict=True)]
        group = Group(ranks_per_node=2.0, num_nodes=1.0)
        sent_s = float(
            np.asarray(
                all_reduce_s(sweep.params * GRADIENT_BYTES, group, joined.wires, parameters.collective)
            )
        )
        few, many = (2 * count * parameters.shard_copy_s for count in sweep.tensors)
        for half, batch in pairwise(sweep.batches):
            own_s = at_batch(sweep.batches, one_s, half)
            place = sweep.batches.index(batch)
            rows.append(
                SweepRow(
                    params=sweep.params,
                    batch=batch,
                    one_s=one_s[place],
                    two_s=batch / sweep.two_per_s[place],
                    low_s=own_s + sent_s + few,
                    # With norms, a copy of each of their buffers comes on top: as many as tensors.
                    high_s=own_s + sent_s + 1.5 * many,
                )
            )
    return tuple(rows)
