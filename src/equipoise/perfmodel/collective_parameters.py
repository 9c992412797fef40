"""The calibrated numbers of collectives: what each means, and what is believed of it before measuring."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.perfmodel.collective_correction import Correction
from equipoise.perfmodel.load import Floats
from equipoise.perfmodel.prior import Prior

COLLECTIVE_PRIORS = (
    Prior(
        name="launch_s",
        median=20e-6,
        log_sd=0.5,
        meaning="time of a collective that moves nothing: launch, and waiting for the last rank",
        source="nccl-tests of 4-byte messages on 8 accelerators of one node: 10 to 35 us",
    ),
    Prior(
        name="intra_latency_scale",
        median=1.0,
        log_sd=0.5,
        meaning="one step inside a node over the link's stated latency",
        source="nccl-tests on A100, H100 and B200 against 3.4 us: 0.5 to 2",
    ),
    Prior(
        name="inter_latency_scale",
        median=1.0,
        log_sd=0.5,
        meaning="one step between nodes over the link's stated latency",
        source="nccl-tests over InfiniBand and EFA against 14 and 20 us: 0.5 to 2",
    ),
    Prior(
        name="quick_step",
        median=0.4,
        log_sd=0.4,
        meaning="a step under a protocol for short messages over an ordinary one",
        source="NCCL src/graph/tuning.cc: LL and LL128 against Simple, 0.2 to 0.6",
    ),
    Prior(
        name="quick_rate",
        median=0.25,
        log_sd=0.4,
        meaning="rate under a protocol for short messages over an ordinary one's",
        source="NCCL src/graph/tuning.cc: LL reaches 1/4 to 1/2 of the rate",
        largest=1.0,
    ),
    Prior(
        name="intra_fraction",
        median=0.8,
        log_sd=0.12,
        meaning="share of the link's rate inside a node that long transfers reach",
        source="nccl-tests of rings: B200 0.75, H200 0.81, A100 0.78 of the stated rate",
        largest=1.0,
    ),
    Prior(
        name="inter_fraction",
        median=0.92,
        log_sd=0.08,
        meaning="share of the network cards' rate that long transfers reach",
        source="nccl-tests of all-reduce over 8 cards of 25 and 50 GB/s: 0.93 to 0.96",
        largest=1.0,
    ),
    Prior(
        name="switch_fraction",
        median=0.63,
        log_sd=0.12,
        meaning="share of the link's rate that a reducing switch reaches",
        source="nccl-tests with NVLS: H200 0.68 over 5 to 8 ranks, B200 0.60",
        largest=1.0,
    ),
    Prior(
        name="local_share",
        median=0.15,
        log_sd=1.0,
        meaning="time of passing a payload through a rank's own memory, over one trip on the link",
        source="ring all-reduce by rank count: 0.07 on H200, 0.5 on A100",
    ),
    Prior(
        name="fill_s",
        median=35e-6,
        log_sd=0.8,
        meaning="time in which the chunks of a long message fill the pipeline",
        source="nccl-tests on A100 and B200, one node and two: 15 to 150 us",
    ),
    Prior(
        name="serial_share",
        median=0.03,
        log_sd=1.0,
        meaning="share of the shorter phase, inside or between nodes, that the longer does not hide",
        source="two nodes of 8 B200 reach 0.96 of their cards' rate",
        largest=1.0,
    ),
)
_MEDIAN = {prior.name: prior.median for prior in COLLECTIVE_PRIORS}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveParameters:
    """The calibrated numbers of a machine's collectives; the medians of COLLECTIVE_PRIORS unless stated.

    measured: by operation, what collectives that were measured leave of the model; None: none were.
    """

    launch_s: Floats = _MEDIAN["launch_s"]
    intra_latency_scale: Floats = _MEDIAN["intra_latency_scale"]
    inter_latency_scale: Floats = _MEDIAN["inter_latency_scale"]
    quick_step: Floats = _MEDIAN["quick_step"]
    quick_rate: Floats = _MEDIAN["quick_rate"]
    intra_fraction: Floats = _MEDIAN["intra_fraction"]
    inter_fraction: Floats = _MEDIAN["inter_fraction"]
    switch_fraction: Floats = _MEDIAN["switch_fraction"]
    local_share: Floats = _MEDIAN["local_share"]
    fill_s: Floats = _MEDIAN["fill_s"]
    serial_share: Floats = _MEDIAN["serial_share"]
    measured: Mapping[str, Correction] | None = field(default=None, hash=False)
