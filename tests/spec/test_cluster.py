"""Clusters by name: systems and usual nodes agree with datasheets, users add and override, gaps are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.spec import hardware
from equipoise.spec.catalogue import catalogue
from equipoise.spec.cluster import Link, build_cluster, cluster, shipped_systems
from equipoise.spec.hardware import accelerator, accelerators

# Datasheets: GPUs a node, GB/s of NVLink one way, Gb/s of network a node.
PUBLISHED = [
    ("dgx-1-v100", "v100-sxm2-32gb", 8, 150, 400),
    ("dgx-2", "v100-sxm3-32gb", 16, 150, 800),
    ("dgx-a100", "a100-sxm4-80gb", 8, 300, 1600),
    ("selene", "a100-sxm4-80gb", 8, 300, 1600),
    ("vtrain-a100", "a100-sxm4-80gb", 8, 300, 800),
    ("dgx-h100", "h100-sxm5-80gb", 8, 450, 3200),
    ("grand-teton-h100", "h100-sxm5-80gb", 8, 450, 3200),
    ("torchtitan-h100", "h100-sxm5-hbm2e-96gb", 8, 450, 3200),
    ("dgx-b200", "b200-sxm6-180gb", 8, 900, 3200),
    ("dgx-b300", "b300-sxm6-270gb", 8, 900, 6400),
    ("gb200-nvl72", "gb200-nvl72-186gb", 72, 900, 72 * 400),
    ("gb300-nvl72", "gb300-nvl72-279gb", 72, 900, 72 * 800),
    ("aws-p4d", "a100-sxm4-40gb", 8, 300, 400),
    ("aws-p5", "h100-sxm5-80gb", 8, 450, 3200),
    ("aws-p5en", "h200-sxm5-141gb", 8, 450, 3200),
    ("aws-p6-b200", "b200-sxm6-180gb", 8, 900, 3200),
    ("pair-rtx-3090-nvlink", "rtx-3090-pcie-24gb", 2, 56.25, 10),
]


@pytest.mark.parametrize(("name", "chip", "size", "intra_gb_per_s", "network_gbit_per_s"), PUBLISHED)
def test_systems_are_as_their_datasheets_say(name, chip, size, intra_gb_per_s, network_gbit_per_s) -> None:
    found = cluster(name)
    assert (found.accelerator.slug, found.node_size, found.num_accelerators) == (chip, size, size)
    assert found.intra.byte_per_s == intra_gb_per_s * 1e9
    assert found.inter.byte_per_s * size * 8 == pytest.approx(network_gbit_per_s * 1e9)


def test_every_accelerator_and_system_makes_a_cluster_of_any_size() -> None:
    names = [*(chip.slug for chip in accelerators()), *shipped_systems().by_slug]
    assert names
    for name in names:
        for count in (1, 2, 100_000):
            found = cluster(name, num_accelerators=count)
            assert found.num_nodes == -(-count // found.node_size)
            assert found.source


def test_facts_of_links_are_plausible() -> None:
    names = [*(chip.slug for chip in accelerators()), *shipped_systems().by_slug]
    assert names
    for name in names:
        found = cluster(name)
        assert found.inter.byte_per_s <= found.intra.byte_per_s, name
        assert 1e-7 <= found.intra.latency_s <= found.inter.latency_s < 1e-3, name
        memory_rate = found.accelerator.memory_byte_per_s
        assert memory_rate is None or found.intra.byte_per_s < 3 * memory_rate, name
        assert found.node_size == 1 or found.topology != "bridge" or found.node_size % 2 == 0, name


def test_a_switch_reduces_only_where_nvlink_sharp_exists() -> None:
    reducing = {name for name, *_ in PUBLISHED if cluster(name).switch_reduces}
    assert reducing == {
        name for name, chip, *_ in PUBLISHED if chip[:4] in {"h100", "h200", "b200", "b300", "gb20", "gb30"}
    }


def test_a_system_may_come_with_several_accelerators() -> None:
    dgx = shipped_systems().find("DGX A100")
    assert dgx is not None
    assert cluster("DGX A100").accelerator.slug == "a100-sxm4-80gb"
    assert build_cluster(dgx, accelerator=accelerator("a100-sxm4-40gb")).accelerator.memory_bytes == 40e9


# Hybrid cube mesh of a DGX-1: six links a GPU, four on its board and two across. Rings by hand: of all eight 0-3-2-1-5-6-7-4
# and two more, both ways, 6 links; of a board 0-3-2-1 and 0-3-1-2, 4 links; of 0, 1 and 2 one, 2 links; of two the links
# between them, of neighbours at least one. GPU 4 has two links to GPU 0 and none to others of five: no ring, so PCIe 3.
@pytest.mark.parametrize(
    ("size", "stride", "expected_byte_per_s"),
    [
        (8, 1, 150e9),
        (7, 1, 100e9),
        (6, 1, 50e9),
        (5, 1, 15.75e9),
        (4, 1, 100e9),
        (3, 1, 50e9),
        (2, 1, 25e9),
        (4, 2, 50e9),
        (2, 2, 25e9),
        (2, 4, 25e9),
    ],
)
def test_rings_of_a_cube_mesh_use_the_links_there_are(size, stride, expected_byte_per_s) -> None:
    nodes = cluster("dgx-1-v100")
    assert nodes.group_byte_per_s(size, stride) == pytest.approx(expected_byte_per_s)
    assert cluster("dgx-2").group_byte_per_s(size, stride) == 150e9


def test_links_between_pairs_of_another_number_are_refused() -> None:
    with pytest.raises(SpecError, match="links_between"):
        replace(cluster("dgx-1-v100"), links_between=("0 1", "1 0"))
    assert cluster("dgx-1-v100", node_size=4).group_byte_per_s(4, 1) == 100e9


def test_cards_without_links_meet_in_their_host_and_a_bridge_joins_them() -> None:
    assert cluster("RTX A5000").topology == "host"
    assert cluster("RTX A5000").intra.byte_per_s == 31.5e9  # PCIe 4 x16
    assert (
        cluster("RTX A5000", topology="bridge").intra.byte_per_s == 56.25e9
    )  # NVLink bridge of the datasheet
    assert cluster("a100-pcie-80gb", topology="bridge").intra.byte_per_s == 300e9
    assert cluster("pair-rtx-4090").shared_host_byte_per_s is not None
    assert cluster("dgx-h100").shared_host_byte_per_s is None


def test_what_is_stated_stands_above_the_tables() -> None:
    found = cluster(
        "dgx-h100",
        num_accelerators=12,
        node_size=4,
        intra_byte_per_s=1e9,
        inter_latency_s=1e-3,
        topology="ring",
    )
    assert (found.num_nodes, found.topology) == (3, "ring")
    assert found.intra == Link(byte_per_s=1e9, latency_s=cluster("dgx-h100").intra.latency_s)
    assert found.inter == Link(byte_per_s=50e9, latency_s=1e-3)


# By hand: a desktop card's host has one card of 10 Gb/s, 1.25 GB/s; the usual host of H100 PCIe two of 400 Gb/s, 50 GB/s each,
# of which one accelerator uses one; of a DGX H100 every accelerator has its own.
@pytest.mark.parametrize(
    ("name", "node_size", "num_nics", "expected_byte_per_s"),
    [
        ("rtx-4090-pcie-24gb", 8, 1, 1.25e9 / 8),
        ("rtx-4090-pcie-24gb", 4, 1, 1.25e9 / 4),
        ("rtx-4090-pcie-24gb", 1, 1, 1.25e9),
        ("rx-7900-xt-pcie-20gb", 8, 1, 1.25e9 / 8),
        ("pair-rtx-4090", 2, 1, 1.25e9 / 2),
        ("h100-pcie-80gb", 4, 2, 25e9),
        ("h100-pcie-80gb", 1, 1, 50e9),
        ("dgx-h100", 4, 4, 50e9),
    ],
)
def test_accelerators_share_the_network_cards_of_their_node(name, node_size, num_nics, expected_byte_per_s):
    found = cluster(name, num_accelerators=16, node_size=node_size)
    assert found.inter.byte_per_s == pytest.approx(expected_byte_per_s)
    assert found.num_nics == num_nics


@given(st.text(max_size=100))
def test_any_name_is_known_or_refused_in_words(name: str) -> None:
    if shipped_systems().find(name) is None and hardware.slug_typed(name) is None:
        with pytest.raises(SpecError, match="list accelerators"):
            cluster(name)
    else:
        assert cluster(name)


def test_an_unknown_cluster_names_the_nearest_and_the_file_to_edit() -> None:
    with pytest.raises(SpecError, match=r"'dgx-h1000'.* dgx-h100.*list accelerators.*--hardware"):
        cluster("dgx-h1000")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_accelerators": 0}, "num_accelerators=0;.* 1$"),
        ({"node_size": 0}, "node_size=0;.* 1$"),
        ({"topology": "star"}, "topology='star';.* switch .*mesh"),
        ({"intra_byte_per_s": 0.0}, "byte_per_s=0,"),
        ({"inter_latency_s": -1.0}, "latency_s=-1;"),
        ({"inter_byte_per_s": float("nan")}, "byte_per_s=nan"),
    ],
)
def test_what_no_machine_can_be_is_refused(change, message) -> None:
    with pytest.raises(SpecError, match=message):
        cluster("dgx-h100", **change)


OWN = """
[accelerator.x1-oam-100gb]
title = "X1"
vendor = "Example"
kind = "npu"
source = "a datasheet"
confidence = "low"
link_byte_per_s = 200e9
"""
SYSTEM = """
[cluster.our-rack]
title = "Our rack"
accelerators = ["x1-oam-100gb"]
node_size = 4
intra_latency_s = 2e-6
topology = "ring"
source = "measured"
confidence = "low"
aliases = ["the rack"]
"""


def test_a_users_file_adds_systems_and_accelerators(mine) -> None:
    first = mine(OWN + SYSTEM, "a.toml")
    known = catalogue([first])
    found = known.cluster("The Rack", num_accelerators=4)
    assert (found.accelerator.slug, found.topology, found.intra.byte_per_s) == ("x1-oam-100gb", "ring", 200e9)
    with pytest.raises(SpecError, match=r"inter_byte_per_s, inter_latency_s.*\[accelerator"):
        known.cluster("the rack", num_accelerators=8)
    whole = known.cluster("the rack", num_accelerators=8, inter_byte_per_s=1e9, inter_latency_s=1e-5)
    assert whole.num_nodes == 2
    with pytest.raises(SpecError, match="x1-oam-100gb: node_size"):
        known.cluster("X1")
    second = mine("[cluster.dgx-h100]\nnode_size = 4\naliases = ['mine']\n", "b.toml")
    known = catalogue([first, second])
    assert (known.cluster("mine").node_size, known.cluster("mine").inter.byte_per_s) == (4, 50e9)
    assert known.systems()[-1].slug == "our-rack"
    assert (cluster("dgx-h100").node_size, "our-rack" in shipped_systems().by_slug) == (8, False)


def test_a_chip_alone_in_its_node_needs_no_link_inside(mine) -> None:
    alone = OWN.replace(
        "link_byte_per_s = 200e9", "node_size = 1\ninter_byte_per_s = 9e9\ninter_latency_s = 2e-6"
    )
    known = catalogue([mine(alone, "a.toml")])
    found = known.cluster("X1", num_accelerators=3)
    assert (found.num_nodes, found.inter.byte_per_s) == (3, 9e9)
    with pytest.raises(SpecError, match="intra_byte_per_s"):
        known.cluster("X1", node_size=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SYSTEM, r"accelerator 'x1-oam-100gb'"),
        (
            OWN + SYSTEM.replace('["x1-oam-100gb"]', "[]"),
            r"\]: .*accelerators",
        ),
        (
            OWN + SYSTEM.replace("ring", "star"),
            r"a\.toml:\d+: \[cluster\.our-rack\]: topology='star';.* switch",
        ),
        (
            OWN + SYSTEM.replace("node_size", "nodesize"),
            r"'nodesize';.*'node_size'",
        ),
        (OWN + SYSTEM.replace("node_size = 4", "inter_byte_per_s = 25"), r"inter_byte_per_s=25;.* 25e9"),
        (OWN.replace("200e9", "200"), r"link_byte_per_s=200;.* 200e9"),
        (OWN + "memory_bytes = 24", r"memory_bytes=24;.* 24e9"),
        (OWN + "peak_bf16_flop_per_s = 165", r"peak_bf16_flop_per_s=165;.* 165e12"),
        (OWN + "power_w = 0.7", r"power_w=0\.7;.* 0\.7e3"),
        (OWN + "inter_latency_s = 3.4", r"inter_latency_s=3\.4;.* 3\.4e-6"),
        (OWN + SYSTEM.replace('"the rack"', '"--"'), r"a\.toml:\d+: .*alias.* letter .*digit"),
        (
            OWN + SYSTEM + SYSTEM.replace("our-rack", "x").replace("Our", "X"),
            r"'the rack' .*our-rack",
        ),
        (OWN + SYSTEM + "switch_reduces = 1\n", r"switch_reduces=1;.*true.*false"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(mine, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        catalogue([mine(text, "a.toml")])
