"""Settings of NCCL and the runtime that have a ground on a topology, each with how to check it."""

from collections.abc import Iterator

from msgspec import Struct

from equipoise.bench.topology.topology import Topology
from equipoise.spec.cluster import Cluster
from equipoise.spec.links import reach
from equipoise.spec.strategy import Strategy
from equipoise.units import format_percent

NCCL_PAGE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLE_PAGE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_RUN_PAGE = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_ALLOCATOR_PAGE = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf"
)
_INTERFACE_PAGE = (
    "https://docs.pytorch.org/docs/stable/distributed.html#choosing-the-network-interface-to-use"
)
_TORCH_NCCL_PAGE = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
_DDP_PAGE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
_MEGATRON_PAGE = "https://github.com/NVIDIA/Megatron-LM (megatron/training/arguments.py)"
_ACCELERATE_PAGE = (
    "https://github.com/huggingface/accelerate (utils/environment.py, check_cuda_p2p_ib_support)"
)
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
    value: str | None
    reason: str
    evidence: str
    how_to_check: str
    is_variable: bool = True
    is_for_first_run: bool = False


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
    yield Setting(
        name="NCCL_DEBUG",
        value="INFO",
        reason="for the first run only: shows which path ranks use, which is often slower than expected",
        evidence=NCCL_PAGE,
        how_to_check=f"its lines name {' and '.join(expected)}; then unset it",
        is_for_first_run=True,
    )


def _transport(place: Placement) -> str:
    if place.cluster.name.startswith("aws-"):
        return "Selected provider is efa"
    return "NET/Socket" if place.is_plain_network else "NET/IB"


def _peers(place: Placement) -> Iterator[Setting]:
    if place.cluster.accelerator.slug in _UNSAFE_PEERS and place.is_staged:
        yield Setting(
            name="NCCL_P2P_DISABLE",
            value=None,
            reason="1 only with drivers before 550.40.07: they offer RTX 40 cards peer access that fails",
            evidence=_ACCELERATE_PAGE,
            how_to_check="nvidia-smi --query-gpu=driver_version --format=csv; newer: leave it unset",
        )


def _container(place: Placement) -> Iterator[Setting]:
    """Memory that ranks of one host share where it stages their bytes."""
    if place.is_staged and place.is_nvidia:
        yield Setting(
            name="docker run --shm-size",
            value="1g",
            reason="in a container: without peer access bytes pass through /dev/shm; docker gives it 64 MB",
            evidence=_TROUBLE_PAGE,
            how_to_check="df -h /dev/shm inside the container",
            is_variable=False,
        )


def _network(place: Placement) -> Iterator[Setting]:
    """Which interface joins hosts, and helper threads of fast plain networks."""
    if place.num_hosts == 1:
        return
    library = "GLOO" if place.cluster.accelerator.kind == "cpu" else "NCCL"
    yield Setting(
        name=f"{library}_SOCKET_IFNAME",
        value=None,
        reason="only where hosts have several networks and the slow one was used: the fast one's interface",
        evidence=NCCL_PAGE if library == "NCCL" else _INTERFACE_PAGE,
        how_to_check=(
            'NCCL_DEBUG=INFO: "NET/Socket : Using [0]..." or "NET/IB : Using [0]..." names it'
            if library == "NCCL"
            else "`ip -br addr` names interfaces; `ip -s link show NAME` counts its bytes while it trains"
        ),
    )
    node_byte_per_s = place.cluster.inter.byte_per_s * min(
        place.cluster.node_size, place.cluster.num_accelerators
    )
    if place.is_plain_network and library == "NCCL" and node_byte_per_s >= _FAST_SOCKETS_BYTE_PER_S:
        yield Setting(
            name="NCCL_SOCKET_NTHREADS",
            value="4",
            reason="sockets of 100 Gbit/s or more: one helper thread per connection does not saturate them",
            evidence=NCCL_PAGE,
            how_to_check="all_reduce_perf of nccl-tests with it and without; keep it if busbw grows",
        )


def _threads(place: Placement, topology: Topology | None) -> Iterator[Setting]:
    """Processor threads of each rank, where ranks compute on processors."""
    if place.cluster.accelerator.kind != "cpu":
        return
    seen = [device.num_cores for device in topology.devices if device.num_cores] if topology else []
    cores = sum(seen) or place.cluster.num_cores
    ranks = min(place.cluster.node_size, place.plan.num_accelerators)
    if not cores or cores < ranks:
        return
    yield Setting(
        name="OMP_NUM_THREADS",
        value=str(cores // ranks),
        reason=f"torchrun gives each rank one thread by default; {cores} cores for {ranks} ranks",
        evidence=_RUN_PAGE,
        how_to_check='python -c "import torch; print(torch.get_num_threads())"',
    )


def _exchange(place: Placement) -> Iterator[Setting]:
    """What DistributedDataParallel does by default and a slow path pays for."""
    slow = place.is_staged or (place.num_hosts > 1 and place.is_plain_network)
    replicated = place.plan.dp > 1 and not place.plan.shards_gradients
    if not (slow and replicated):
        return
    yield Setting(
        name="DistributedDataParallel(gradient_as_bucket_view=)",
        value="True",
        reason="gradients are views of the communication buckets: saves a copy and a launch per "
        "weight, and their memory",
        evidence=_DDP_PAGE,
        how_to_check="step time with it and without; do not time the first step",
        is_variable=False,
    )
    yield Setting(
        name="DistributedDataParallel(broadcast_buffers=)",
        value=None,
        reason=(
            "False for networks with batch norm: by default rank 0 sends its statistics before every forward "
            "pass; evaluation then uses each rank's own"
        ),
        evidence=_DDP_PAGE,
        how_to_check="sum(1 for _ in model.buffers()): 0 means there is nothing to save",
        is_variable=False,
    )


def _connections(place: Placement) -> Iterator[Setting]:
    chip, plan = place.cluster.accelerator, place.plan
    if not place.is_nvidia or plan.tp * plan.cp == 1 or plan.shards_gradients:
        return
    if chip.year is not None and chip.year <= _LAST_ONE_CONNECTION_YEAR:
        yield Setting(
            name="CUDA_DEVICE_MAX_CONNECTIONS",
            value="1",
            reason="with Megatron-LM, which refuses to start without: keeps its reductions ahead "
            "of matrix products",
            evidence=_MEGATRON_PAGE,
            how_to_check="a trace shows communication during products; with FSDP leave it unset",
        )


def _allocator(place: Placement, memory_share: float | None) -> Iterator[Setting]:
    if not place.is_nvidia or memory_share is None or memory_share < _NEARLY_FULL:
        return
    yield Setting(
        name="PYTORCH_CUDA_ALLOC_CONF",
        value="expandable_segments:True",
        reason=(
            f"{format_percent(min(memory_share, 1.0))} of the memory is needed: segments that grow leave "
            "fewer gaps than fixed ones"
        ),
        evidence=_ALLOCATOR_PAGE,
        how_to_check="torch.cuda.memory_reserved() comes closer to torch.cuda.memory_allocated()",
    )


def _hangs(place: Placement) -> Iterator[Setting]:
    """What shows which rank did not come, when many wait."""
    if place.num_hosts == 1 or place.cluster.accelerator.kind != "gpu":
        return
    reason = "several hosts: when one rank fails the others wait; this writes which collective each was in"
    check = "after a timeout, one file of traces per rank"
    for name, value in (("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"), ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")):
        yield Setting(name=name, value=value, reason=reason, evidence=_TORCH_NCCL_PAGE, how_to_check=check)
