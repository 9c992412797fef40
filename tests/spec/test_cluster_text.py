"""Clusters in free text: every hardware column of the measurements, spellings never seen, and what is none."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.spec.catalogue import cluster_in_text
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import accelerators

# Text; accelerator, accelerators a node, GB/s between nodes an accelerator (bits over 8, over the cards of a node).
READ = [
    ("8x H100 SXM5 80GB, 400 Gb/s IB", "h100-sxm5-80gb", 8, 50),
    ("16 nodes DGX H100", "h100-sxm5-80gb", 8, 50),
    ("256 H100", "h100-sxm5-80gb", 8, 50),
    ("1 x H100", "h100-sxm5-80gb", 1, 50),
    ("4 x RTX 4090 (PCIe)", "rtx-4090-pcie-24gb", 4, 0.3125),
    ("8\u00d7MI300X, 8x400GbE RoCE", "mi300x-oam-192gb", 8, 50),
    ("8 x A100 80G PCIe, 2x200Gb/s HDR", "a100-pcie-80gb", 8, 6.25),
    ("8xA100-40GB; 100 Gbps per node", "a100-sxm4-40gb", 8, 1.5625),
    ("2 servers x 8 V100 32GB, 100 Gb/s EDR InfiniBand", "v100-sxm2-32gb", 8, 6.25),
    ("4x V100 16GB, 10GbE", "v100-sxm2-16gb", 4, 0.3125),
    ("8x A100, 1 Gbit/s Ethernet", "a100-sxm4-40gb", 8, 0.015625),
    ("8x H200 3.2 Tb/s EFA", "h200-sxm5-141gb", 8, 50),
    ("AWS P6-B200 8xB200 NVLink5 + 8x50GB/s EFA v4", "b200-sxm6-180gb", 8, 50),
    ("H100 96GB HBM2e 2.4TB/s 500W SXM, 400Gb/s RDMA per GPU", "h100-sxm5-hbm2e-96gb", 8, 50),
    ("p5.48xlarge", "h100-sxm5-80gb", 8, 50),
    ("NVIDIA DGX-1 (8xV100 32G)", "v100-sxm2-32gb", 8, 6.25),
    ("DGX A100 40GB", "a100-sxm4-40gb", 8, 25),
    ("A100, 4 GPUs per node, HDR", "a100-sxm4-40gb", 4, 25),
    ("A100 SXM 40GB, 4 per node, 4 x 200Gb/s InfiniBand per node", "a100-sxm4-40gb", 4, 25),
    ("GH200 96GB, 4 per node, Slingshot-11", "gh200-quad-96gb", 4, 25),
    ("GH200 96GB", "gh200-superchip-96gb", 1, 50),
    ("GB200 NVL72, 4 per node", "gb200-nvl72-186gb", 72, 50),
    ("GB300 (4 a node, NVL72), 4 x 100GB/s InfiniBand per node", "gb300-nvl72-279gb", 72, 100),
    ("GB200 NVL72, 4 per node, 1.6 Tb/s per node", "gb200-nvl72-186gb", 72, 50),
    ("H100 PCIe, 600GB/s NVLink bridge, 2x NDR", "h100-pcie-80gb", 8, 12.5),
    ("TPUv5e-256", "tpu-v5e", 256, 3.125),
    ("RTX4090", "rtx-4090-pcie-24gb", 8, 1.25 / 8),
    ("2x 3090", "rtx-3090-pcie-24gb", 2, 0.625),
    ("Gaudi2", "gaudi2-oam-96gb", 8, 37.5),
    ("Perlmutter, A100 80GB", "a100-sxm4-80gb", 4, 25),
    ("Alps (GH200)", "gh200-quad-96gb", 4, 25),
    ("8x H100, A3 Mega", "h100-sxm5-80gb", 8, 25),
    ("AWS Trainium 1 (trn1.32xlarge)", "trainium1-module-32gb", 16, 6.25),
    ("Ascend 910B class 64GB (Atlas 800T A2), 8 in one server", "ascend-910b-module-64gb", 8, 25),
    ("Ascend NPU (Atlas 900 A2, 8 a node), 2 nodes", "ascend-910b-module-64gb", 8, 25),
    ("Trainium 2", "trainium2-module-96gb", 16, 25),
    ("Intel Xeon Platinum 8480+", "xeon-8480-cpu", 2, 6.25),
    ("2x Xeon Platinum 8180", "xeon-8180-cpu", 2, 0.625),
]


@pytest.mark.parametrize(("text", "slug", "size", "inter_gb_per_s"), READ)
def test_what_a_text_states_is_read(text, slug, size, inter_gb_per_s) -> None:
    found = cluster_in_text(text)
    assert found is not None
    assert (found.accelerator.slug, found.node_size) == (slug, size)
    assert found.inter.byte_per_s == pytest.approx(inter_gb_per_s * 1e9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "8x",
        "RTX A400",
        "RTX",
        "PCIe v 4",
        "A400",
        "H1000",
        "MI300",
        "2 servers x 4 GPUs InfiniBand",
        "3090 steps",
        "RTX 3060 Laptop (6GB)",
        "RTX 4070 Mobile",
        "A40B",
    ],
)
def test_a_name_inside_another_is_no_name(text) -> None:
    assert cluster_in_text(text) is None


@pytest.mark.parametrize(
    ("text", "cores", "bandwidth"),
    [
        # NVIDIA's table of laptops: cores, and memory as wide as 128 and 96 bits at 16 Gb/s a pin.
        ("RTX 4060 Laptop GPU 8GB", 3072, 256e9),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 3072, 256e9),
        ("RTX 4050 Laptop GPU 6GB", 2560, 192e9),
        ("RTX 4060", 3072, 272e9),
        ("RTX 3050 Laptop 4GB", 2048, 192e9),
    ],
)
def test_a_laptops_card_is_not_the_one_for_desktops(text: str, cores: int, bandwidth: float) -> None:
    chip = cluster_in_text(text).accelerator
    clocks = {"RTX 3050 Laptop 4GB": 1.74e9, "RTX 4060": 2.46e9}
    clock = clocks.get(text, 2.37e9)
    assert chip.memory_byte_per_s == bandwidth
    assert chip.peak_fp32_flop_per_s == pytest.approx(2 * cores * clock, rel=0.01)


def test_a_bridge_is_seen_where_the_text_has_one() -> None:
    assert cluster_in_text("4x A40").topology == "host"
    assert cluster_in_text("4x A40 NVLink bridge").intra.byte_per_s == 56.25e9
    assert cluster_in_text("2x RTX 2080 Ti NVLink bridge").topology == "bridge"
    assert cluster_in_text("H100 PCIe with NVLink").intra.byte_per_s == 300e9
    assert cluster_in_text("2 x RTX 5090, PHB").name == "pair-rtx-5090"


@pytest.mark.parametrize(
    "text",
    [
        "RTX A6000 48GB, PCIe, no NVLink",
        "RTX 3090 24GB, PCIe without NVLink, 280 W",
        "2x RTX 3090 without an NVLink bridge",
        "2x RTX A6000 (NVLink disabled)",
        "2x RTX 3090, no bridge",
        "2x RTX 3090, non-NVLink",
    ],
)
def test_a_bridge_is_not_seen_where_the_text_denies_it(text) -> None:
    found = cluster_in_text(text)
    # PCI-SIG: 16 lanes of PCIe 4 at 16 GT/s, coded 128/130; the cards are PCIe 4 by NVIDIA's GA102 white paper.
    assert (found.topology, found.intra.byte_per_s) == (
        "host",
        pytest.approx(16 * 16e9 * 128 / 130 / 8, rel=1e-3),
    )


def test_a_word_that_is_also_a_system_means_it_only_with_its_accelerator() -> None:
    assert cluster_in_text("Frontier").name == "frontier"
    assert cluster_in_text("at the frontier with H100").name == "h100-sxm5-80gb"


def test_networks_out_of_order_are_seen() -> None:
    assert not cluster_in_text("8x H100, EFA").keeps_order
    assert cluster_in_text("8x H100, EFA").inter.latency_s == cluster("aws-p5").inter.latency_s
    assert not cluster_in_text("8x H100, 100 GbE").keeps_order
    assert cluster_in_text("8x H100, 400 GbE RoCE").keeps_order
    assert not cluster("aws-p4d").keeps_order
    assert cluster("dgx-a100").keeps_order


def test_a_named_system_keeps_its_own_node() -> None:
    found = cluster_in_text("DGX-2 (8x V100 32GB)", num_accelerators=32)
    assert (found.name, found.node_size, found.num_nodes) == ("dgx-2", 16, 2)


def test_every_hardware_column_of_the_measurements_is_read(data_dir: Path) -> None:
    missing = set()
    for path in sorted((data_dir / "measured").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if cluster_in_text(row["hardware"]) is None:
                    missing.add(row["hardware"])
    no_accelerator_named = {"2 servers x 4 GPUs InfiniBand (model in issue)"}
    assert missing == no_accelerator_named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-SXM4-80GB Selene (DGX A100, 8x HDR IB)", "selene"),
        ("A100-SXM4-80GB Selene (llm-analysis README says 40GB)", "selene"),
        ("one node of up to 8 A100 (config/validation: gpu_name A100)", "vtrain-a100"),
        ("H100-SXM5-80GB 700W, Grand Teton, 400Gb/s RoCE", "grand-teton-h100"),
        ("Pre-training NVIDIA DGX-1 With 32G", "dgx-1-v100"),
        ("DGX-GB300", "gb300-nvl72"),
    ],
)
def test_systems_of_the_measurements(text, name) -> None:
    found = cluster_in_text(text, num_accelerators=64)
    assert found.name == name
    assert found == cluster(name, num_accelerators=64)


def test_every_accelerator_is_found_by_its_names_inside_a_text() -> None:
    assert accelerators()
    for chip in accelerators():
        for name in (chip.slug, chip.title, chip.title.removeprefix(f"{chip.vendor} ")):
            found = cluster_in_text(f"measured on {name} last year")
            assert found is not None, name
            assert found.accelerator.slug == chip.slug, name


@given(st.text(max_size=300))
def test_any_text_is_read_or_left(text: str) -> None:
    assert cluster_in_text(text) is None or cluster_in_text(text).num_accelerators >= 1


@given(
    st.integers(1, 9999),
    st.sampled_from(["H100", "A100 80GB", "RTX 4090", "GB200", "tpu v4"]),
    st.sampled_from(["x", " x ", "\u00d7", " "]),
    st.sampled_from(["", ", 25 Gb/s", ", 8x HDR", ", 0 Gb/s", " 99999.9Tb/s"]),
)
def test_any_count_and_rate_leave_a_cluster(count, chip, sign, network) -> None:
    found = cluster_in_text(f"{count}{sign}{chip}{network}", num_accelerators=100)
    assert found.num_accelerators == 100
    assert found.inter.byte_per_s > 0
