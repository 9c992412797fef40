"""Settings of NCCL and the runtime that have a ground on a topology, each with how to check it."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, convert
from msgspec.structs import replace

from equipoise.bench.topology.topology import Topology
from equipoise.files import shipped_table
from equipoise.spec.cluster import Cluster
from equipoise.spec.links import reach
from equipoise.spec.strategy import Strategy
from equipoise.units import format_percent

# Above it, what the allocator cannot use of its segments decides whether a run fits.
_NEARLY_FULL = 0.8
# From here on NCCL's pages give more helper threads to plain networks: 100 Gbit/s.
_FAST_SOCKETS_BYTE_PER_S = 12.5e9
# Megatron-LM drops its demand for one connection from Blackwell on.
_LAST_ONE_CONNECTION_YEAR = 2023
_UNSAFE_PEERS = ("rtx-4090-pcie-24gb",)


class Setting(Struct, frozen=True, kw_only=True):
    """One setting: its reason on this machine, where that is documented or measured, and how to check it.

    value: None where it depends on what only the machine's owner knows; the reason states when it is needed.
    is_variable: of the environment; else an argument in code, or of the container. is_for_first_run: to be
    unset after the first run.
    """

    name: str
    value: str | None = None
    reason: str
    evidence: str
    how_to_check: str
    is_variable: bool = True
    is_for_first_run: bool = False


_SETTINGS = {
    each.name: each
    for each in convert(
        shipped_table(Path(__file__).with_name("settings.toml"))["setting"], tuple[Setting, ...]
    )
}


def _setting(name: str, value: str | None = None, **words: object) -> Setting:
    """A setting of settings.toml. value: where it is not the same everywhere. words: those in braces."""
    found = _SETTINGS[name]
    return replace(
        found,
        value=found.value if value is None else value,
        reason=found.reason.format(**words),
        how_to_check=found.how_to_check.format(**words),
    )


class Placement(Struct, frozen=True, kw_only=True):
    """Where ranks run, on how many hosts. is_staged: bytes between two pass through the host's memory."""

    cluster: Cluster
    plan: Strategy
    num_hosts: int
    is_staged: bool

    @property
    def is_nvidia(self) -> bool:
        """Whether NCCL itself joins the ranks."""
        return self.cluster.accelerator.vendor == "NVIDIA" and self.cluster.accelerator.kind == "gpu"

    @property
    def is_plain_network(self) -> bool:
        """Whether hosts are connected by sockets: neither InfiniBand, RoCE nor EFA."""
        return not self.cluster.keeps_order and not self.cluster.name.startswith("aws-")


def runtime_settings(
    cluster: Cluster,
    plan: Strategy,
    *,
    topology: Topology | None = None,
    memory_share: float | None = None,
) -> tuple[Setting, ...]:
    """The settings that have a ground for this strategy on this machine, the most important first; often few.

    topology: of the machine, where it was looked over: whether peers reach each other. memory_share:
    what the strategy needs over what an accelerator has.
    """
    place = placed(cluster, plan, topology)
    if plan.num_accelerators == 1:
        return tuple(_allocator(place, memory_share))
    return (
        *_path(place),
        *_peers(place),
        *_container(place),
        *_network(place),
        *_threads(place, topology),
        *_exchange(place),
        *_connections(place),
        *_allocator(place, memory_share),
        *_hangs(place),
    )


def placed(cluster: Cluster, plan: Strategy, topology: Topology | None = None) -> Placement:
    """Where the ranks of a strategy run on a cluster, and whether their bytes are staged by the host."""
    hosts = -(-plan.num_accelerators // cluster.node_size)
    return Placement(cluster=cluster, plan=plan, num_hosts=hosts, is_staged=_is_staged(cluster, topology))


def _is_staged(cluster: Cluster, topology: Topology | None) -> bool:
    if topology is not None:
        reached = {link.peers for link in topology.between_devices} - {None, "U"}
        if reached:
            return reached != {"OK"}
    if cluster.topology != "host" or cluster.accelerator.kind != "gpu":
        return False
    return "staged" in reach("PHB", cluster.accelerator).path


def _path(place: Placement) -> Iterator[Setting]:
    """Which path NCCL took: the one line that shows whether the machine is as assumed."""
    if place.cluster.accelerator.kind != "gpu":
        return
    expected = []
    if place.num_hosts < place.plan.num_accelerators:
        expected.append('"via SHM"' if place.is_staged else '"via P2P"')
    if place.cluster.switch_reduces and place.is_nvidia:
        expected.append('"NVLS multicast support is available"')
    if place.num_hosts > 1:
        expected.append(f'"{_transport(place)}"')
    yield _setting("NCCL_DEBUG", expected=" and ".join(expected))


def _transport(place: Placement) -> str:
    if place.cluster.name.startswith("aws-"):
        return "Selected provider is efa"
    return "NET/Socket" if place.is_plain_network else "NET/IB"


def _peers(place: Placement) -> Iterator[Setting]:
    if place.cluster.accelerator.slug in _UNSAFE_PEERS and place.is_staged:
        yield _setting("NCCL_P2P_DISABLE")


def _container(place: Placement) -> Iterator[Setting]:
    """Memory that ranks of one host share where it stages their bytes."""
    if place.is_staged and place.is_nvidia:
        yield _setting("docker run --shm-size")


def _network(place: Placement) -> Iterator[Setting]:
    """Which interface joins hosts, and helper threads of fast plain networks."""
    if place.num_hosts == 1:
        return
    library = "GLOO" if place.cluster.accelerator.kind == "cpu" else "NCCL"
    yield _setting(f"{library}_SOCKET_IFNAME")
    node_byte_per_s = place.cluster.inter.byte_per_s * min(
        place.cluster.node_size, place.cluster.num_accelerators
    )
    if place.is_plain_network and library == "NCCL" and node_byte_per_s >= _FAST_SOCKETS_BYTE_PER_S:
        yield _setting("NCCL_SOCKET_NTHREADS")


def _threads(place: Placement, topology: Topology | None) -> Iterator[Setting]:
    """Processor threads of each rank, where ranks compute on processors."""
    if place.cluster.accelerator.kind != "cpu":
        return
    seen = [device.num_cores for device in topology.devices if device.num_cores] if topology else []
    cores = sum(seen) or place.cluster.num_cores
    ranks = min(place.cluster.node_size, place.plan.num_accelerators)
    if not cores or cores < ranks:
        return
    yield _setting("OMP_NUM_THREADS", str(cores // ranks), cores=cores, ranks=ranks)


def _exchange(place: Placement) -> Iterator[Setting]:
    """What DistributedDataParallel does by default and a slow path pays for."""
    slow = place.is_staged or (place.num_hosts > 1 and place.is_plain_network)
    replicated = place.plan.dp > 1 and not place.plan.shards_gradients
    if not (slow and replicated):
        return
    yield _setting("DistributedDataParallel(gradient_as_bucket_view=)")
    yield _setting("DistributedDataParallel(broadcast_buffers=)")


def _connections(place: Placement) -> Iterator[Setting]:
    chip, plan = place.cluster.accelerator, place.plan
    if not place.is_nvidia or plan.tp * plan.cp == 1 or plan.shards_gradients:
        return
    if chip.year is not None and chip.year <= _LAST_ONE_CONNECTION_YEAR:
        yield _setting("CUDA_DEVICE_MAX_CONNECTIONS")


def _allocator(place: Placement, memory_share: float | None) -> Iterator[Setting]:
    if not place.is_nvidia or memory_share is None or memory_share < _NEARLY_FULL:
        return
    yield _setting("PYTORCH_CUDA_ALLOC_CONF", share=format_percent(min(memory_share, 1.0)))


def _hangs(place: Placement) -> Iterator[Setting]:
    """What shows which rank did not come, when many wait."""
    if place.num_hosts == 1 or place.cluster.accelerator.kind != "gpu":
        return
    yield _setting("TORCH_NCCL_TRACE_BUFFER_SIZE")
    yield _setting("TORCH_NCCL_DUMP_ON_TIMEOUT")
