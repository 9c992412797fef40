"""Settings are few, and each has a ground on the machine at hand."""

import pytest

from equipoise.bench.topology import read
from equipoise.bench.topology.topology import Device, Topology
from equipoise.launch import runtime_settings
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import strategy

DATA_PARALLEL = "dp={} microbatch=1 global_batch={}"


def settings(name, count=2, text=DATA_PARALLEL, **facts):
    plan = strategy(text.format(count, count) if "{}" in text else text)
    machine = cluster(name, num_accelerators=plan.num_accelerators)
    return {each.name: each for each in runtime_settings(machine, plan, **facts)}


def pair(peers):
    table = "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"
    reached = f"$ nvidia-smi topo -p2p r\n\tGPU0\tGPU1\nGPU0\tX\t{peers}\nGPU1\t{peers}\tX\n"
    return read((table + reached).encode(), where="pasted")


def test_one_accelerator_has_nothing_to_set_until_its_memory_is_full():
    assert settings("dgx-h100", 1, memory_share=0.5) == {}
    full = settings("dgx-h100", 1, memory_share=0.95)
    assert full["PYTORCH_CUDA_ALLOC_CONF"].value == "expandable_segments:True"
    assert "95 %" in full["PYTORCH_CUDA_ALLOC_CONF"].reason


def test_without_peers_the_host_carries_every_byte():
    found = settings("rtx-3090-pcie-24gb")
    assert '"via SHM"' in found["NCCL_DEBUG"].how_to_check
    assert found["docker run --shm-size"].value == "1g"
    assert not found["docker run --shm-size"].is_variable


def test_peers_that_the_machine_states_are_used():
    blind = settings("a100-pcie-80gb", topology=pair("GNS"))
    assert '"via SHM"' in blind["NCCL_DEBUG"].how_to_check
    seeing = settings("rtx-3090-pcie-24gb", topology=pair("OK"))
    assert '"via P2P"' in seeing["NCCL_DEBUG"].how_to_check
    assert "docker run --shm-size" not in seeing


def test_nvlink_needs_nothing_but_a_look():
    found = settings("dgx-h100", 8)
    assert set(found) == {"NCCL_DEBUG"}
    assert "NVLS" in found["NCCL_DEBUG"].how_to_check
    assert "NVLS" not in settings("dgx-a100", 8)["NCCL_DEBUG"].how_to_check


@pytest.mark.parametrize(
    ("name", "transport"), [("dgx-h100", "NET/IB"), ("aws-p4d", "efa"), ("rtx-3090-pcie-24gb", "NET/Socket")]
)
def test_the_network_that_should_be_used_is_named(name, transport):
    assert transport in settings(name, 16)["NCCL_DEBUG"].how_to_check


def test_an_interface_is_named_for_its_owner_to_set():
    assert settings("dgx-h100", 16)["NCCL_SOCKET_IFNAME"].value is None
    assert settings("xeon-8480-cpu", 4)["GLOO_SOCKET_IFNAME"].value is None


def test_helper_threads_are_for_fast_plain_networks():
    assert "NCCL_SOCKET_NTHREADS" not in settings("rtx-3090-pcie-24gb", 4)
    assert "NCCL_SOCKET_NTHREADS" not in settings("dgx-h100", 16)


def test_megatron_wants_one_connection_where_layers_are_cut():
    cut = "dp=2 tp=4 microbatch=1 global_batch=8"
    assert settings("dgx-h100", text=cut)["CUDA_DEVICE_MAX_CONNECTIONS"].value == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in settings("dgx-h100", text=f"{cut} zero_stage=3")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in settings("dgx-b200", text=cut)
    overlapped = f"{cut} pp=2 interleave=2 ep=2 schedule=1f1b_overlap"
    assert settings("dgx-h100", text=overlapped)["CUDA_DEVICE_MAX_CONNECTIONS"].value == "32"


def test_drivers_that_promise_too_much_are_named_and_not_set():
    found = settings("pair-rtx-4090")["NCCL_P2P_DISABLE"]
    assert found.value is None
    assert "550.40.07" in found.reason


def test_ranks_share_the_cores_that_were_seen():
    sockets = tuple(Device(name=f"CPU{i}", kind="cpu", num_cores=16) for i in range(2))
    topology = Topology(origin="this machine", devices=sockets)
    found = settings("xeon-8480-cpu", 2, topology=topology)
    assert found["OMP_NUM_THREADS"].value == "16"
    assert "NCCL_DEBUG" not in found


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, count) for name in ("dgx-h100", "pair-rtx-4090", "aws-p5", "frontier") for count in (2, 16)),
        ("xeon-8480-cpu", 16),
    ],
)
def test_every_setting_has_a_page_and_a_check(name, count):
    found = settings(name, count, memory_share=0.99)
    assert found
    for each in found.values():
        assert "https://" in each.evidence
        assert each.how_to_check
        assert each.reason
