"""The calibrated numbers of collectives: what each means, and what is believed of it before measuring."""

from dataclasses import dataclass

from equipoise.perfmodel.load import Floats
from equipoise.perfmodel.prior import Prior


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveParameters:
    """The calibrated numbers of a machine's collectives; COLLECTIVE_PRIORS says what each means."""

    launch_s: Floats = 25e-6
    intra_latency_scale: Floats = 1.0
    inter_latency_scale: Floats = 1.0
    intra_fraction: Floats = 0.9
    inter_fraction: Floats = 0.92
    switch_fraction: Floats = 0.65
    local_share: Floats = 0.18
    intra_fill_s: Floats = 40e-6
    inter_fill_s: Floats = 40e-6
    serial_share: Floats = 0.1


COLLECTIVE_PRIORS = (
    Prior(
        name="launch_s",
        median=25e-6,
        log_sd=0.5,
        meaning="time of a collective that moves nothing: launch, and waiting for the last rank",
        source="NCCL tests of 4-byte messages on 8 accelerators of one node: 10 to 50 us",
    ),
    Prior(
        name="intra_latency_scale",
        median=1.0,
        log_sd=0.5,
        meaning="one step inside a node over the link's stated latency",
        source="NCCL src/graph/tuning.cc: 0.6 to 4 us a step over NVLink, by protocol",
    ),
    Prior(
        name="inter_latency_scale",
        median=1.0,
        log_sd=0.7,
        meaning="one step between nodes over the link's stated latency",
        source="NCCL src/graph/tuning.cc: 2.7 to 14 us a step over the network, by protocol",
    ),
    Prior(
        name="intra_fraction",
        median=0.9,
        log_sd=0.1,
        meaning="share of the link's rate inside a node that long transfers reach",
        source="ring all-reduce of H200: 0.81 to 0.87 of 450 GB/s; of A100: 0.97 of 300 GB/s",
        largest=1.0,
    ),
    Prior(
        name="inter_fraction",
        median=0.92,
        log_sd=0.07,
        meaning="share of the network cards' rate that long transfers reach",
        source="RDMA protocol overhead of a few percent; NCCL tests on InfiniBand and EFA reach 0.85 to 0.97",
        largest=1.0,
    ),
    Prior(
        name="switch_fraction",
        median=0.65,
        log_sd=0.15,
        meaning="share of the link's rate that a reducing switch reaches",
        source="NVLS all-reduce of H200: 0.68 to 0.69 of 450 GB/s over 5 to 8 ranks",
        largest=1.0,
    ),
    Prior(
        name="local_share",
        median=0.18,
        log_sd=1.0,
        meaning="time of passing a payload through a rank's own memory, over one trip on the link",
        source="ring all-reduce by rank count: 0.07 on H200, 0.5 on A100",
    ),
    Prior(
        name="intra_fill_s",
        median=40e-6,
        log_sd=1.0,
        meaning="time on the wire inside a node at which half the rate is reached",
        source="ring all-reduce of 8 A100: sizes at half rate",
    ),
    Prior(
        name="inter_fill_s",
        median=40e-6,
        log_sd=1.0,
        meaning="time on the wire between nodes at which half the rate is reached",
        source="taken as inside a node",
    ),
    Prior(
        name="serial_share",
        median=0.1,
        log_sd=0.7,
        meaning="share of the shorter phase, inside or between nodes, that the longer does not hide",
        source="chunks of 1/8 to 1/16 of a payload in flight",
    ),
)

# What holds before any measurement.
TYPICAL = CollectiveParameters(**{prior.name: prior.median for prior in COLLECTIVE_PRIORS})
