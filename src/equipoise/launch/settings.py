"""Settings of NCCL and the runtime that a topology requires, each with a way to check it."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, convert
from msgspec.structs import replace

from equipoise.bench.topology.topology import Topology
from equipoise.files import shipped_table
from equipoise.launch.text import holds, joined
from equipoise.spec.cluster import Cluster
from equipoise.spec.links import reach
from equipoise.spec.strategy import Strategy
from equipoise.spec.strategy import software as software_named
from equipoise.units import format_percent

# Above this share of memory, fragmentation in the allocator decides whether a run fits.
_NEARLY_FULL = 0.8
# From 100 Gbit/s on, NCCL's documentation recommends more helper threads for plain networks.
_FAST_SOCKETS_BYTE_PER_S = 12.5e9
# Megatron-LM no longer requires a single connection from Blackwell on.
_LAST_ONE_CONNECTION_YEAR = 2023


class Setting(Struct, frozen=True, kw_only=True):
    """One setting: its reason on this machine, where that is documented or measured, and how to check it.

    value: None if it depends on what only the machine's owner knows; the reason says when it is needed.
    is_variable: an environment variable; otherwise an argument in code, or of the container.
    is_for_first_run: to be unset after the first run.
    """

    name: str
    value: str | None = None
    reason: str
    evidence: str
    how_to_check: str
    is_variable: bool = True
    is_for_first_run: bool = False


# The conditions and settings, in order.
_SETTINGS = tuple(
    (str(stated["when"]), convert(stated, Setting))
    for stated in shipped_table(Path(__file__).with_name("settings.toml"))["setting"]
)


class Placement(Struct, frozen=True, kw_only=True):
    """Where ranks run, on how many hosts. is_staged: data between two pass through the host's memory."""

    cluster: Cluster
    strategy: Strategy
    num_hosts: int
    is_staged: bool

    @property
    def is_nvidia(self) -> bool:
        """Whether the ranks communicate through NCCL itself."""
        return self.cluster.accelerator.vendor == "NVIDIA" and self.cluster.accelerator.kind == "gpu"

    @property
    def is_plain_network(self) -> bool:
        """Whether hosts communicate over sockets, i.e. without InfiniBand, RoCE or EFA."""
        return not self.cluster.keeps_order and not self.cluster.name.startswith("aws-")


def runtime_settings(
    cluster: Cluster,
    strategy: Strategy,
    *,
    topology: Topology | None = None,
    memory_share: float | None = None,
    software: str | None = None,
) -> tuple[Setting, ...]:
    """The settings that apply to this strategy on this machine, the most important first; often few.

    topology: of the machine, if it was inspected, for peer access. memory_share: needed over available memory
    of an accelerator. software: the training software; by default any that runs on the machine.
    """
    facts = _facts(placed(cluster, strategy, topology), topology, memory_share, software)
    return tuple(
        replace(
            each,
            value=each.value and joined(each.value, facts),
            reason=joined(each.reason, facts),
            how_to_check=joined(each.how_to_check, facts),
        )
        for when, each in _SETTINGS
        if all(holds(condition, facts) for condition in when.split())
    )


def _facts(
    place: Placement, topology: Topology | None, memory_share: float | None, software: str | None
) -> dict[str, object]:
    """The variables available to conditions and texts of settings.toml."""
    cluster, strategy, chip = place.cluster, place.strategy, place.cluster.accelerator
    ranks = min(cluster.node_size, strategy.num_accelerators)
    seen = [device.num_cores for device in topology.devices if device.num_cores] if topology else []
    cores = sum(seen) or cluster.num_cores or 0
    is_plain_between = place.num_hosts > 1 and place.is_plain_network
    return {
        "kind": chip.kind,
        "slug": chip.slug,
        "num_ranks": strategy.num_accelerators,
        "num_hosts": place.num_hosts,
        "dp": strategy.dp,
        "schedule": strategy.schedule,
        "shards_gradients": strategy.shards_gradients,
        "cuts_layers": strategy.tp * strategy.cp > 1,
        "is_nvidia": place.is_nvidia,
        "is_megatron": software is None or software_named(software).family == "megatron",
        "is_before_blackwell": chip.year is not None and chip.year <= _LAST_ONE_CONNECTION_YEAR,
        "is_staged": place.is_staged,
        # On a slow path, the defaults of DistributedDataParallel are expensive.
        "is_slow": place.is_staged or is_plain_between,
        "is_fast_plain_network": place.is_plain_network
        and cluster.inter.byte_per_s * ranks >= _FAST_SOCKETS_BYTE_PER_S,
        "is_nearly_full": memory_share is not None and memory_share >= _NEARLY_FULL,
        "share": format_percent(min(memory_share or 0.0, 1.0)),
        "expected": " and ".join(_log_lines(place)),
        "has_cores": cores >= ranks,
        "cores": cores,
        "ranks": ranks,
        "threads": cores // ranks,
    }


def placed(cluster: Cluster, strategy: Strategy, topology: Topology | None = None) -> Placement:
    """Where the ranks of a strategy run on a cluster, and whether their data pass through host memory."""
    return Placement(
        cluster=cluster,
        strategy=strategy,
        num_hosts=-(-strategy.num_accelerators // cluster.node_size),
        is_staged=_is_staged(cluster, topology),
    )


def _is_staged(cluster: Cluster, topology: Topology | None) -> bool:
    if topology is not None:
        reached = {link.peers for link in topology.between_devices} - {None, "U"}
        if reached:
            return reached != {"OK"}
    if cluster.topology != "host" or cluster.accelerator.kind != "gpu":
        return False
    return "staged" in reach("PHB", cluster.accelerator).path


def _log_lines(place: Placement) -> Iterator[str]:
    """The path that NCCL logs if the machine is as assumed."""
    if place.num_hosts < place.strategy.num_accelerators:
        yield '"via SHM"' if place.is_staged else '"via P2P"'
    if place.cluster.switch_reduces and place.is_nvidia:
        yield '"NVLS multicast support is available"'
    if place.num_hosts > 1 and place.cluster.name.startswith("aws-"):
        yield '"Selected provider is efa"'
    elif place.num_hosts > 1:
        yield '"NET/Socket"' if place.is_plain_network else '"NET/IB"'
