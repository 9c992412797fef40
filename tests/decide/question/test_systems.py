"""The systems of a question: names, counts, nodes, and values that belong to one of them."""

from contextlib import nullcontext

import polars as pl
import pytest

from equipoise.bench.topology import read
from equipoise.decide.question.query import query
from equipoise.decide.question.systems import requested_systems, usual_most
from equipoise.economics import price
from equipoise.errors import DataError, EquipoiseError, EvidenceError, SpecError, UsageError
from equipoise.runs import embedded
from equipoise.spec.catalogue import catalogue

H100, A100, RTX = "h100-sxm5-80gb", "a100-sxm4-80gb", "rtx-4090-pcie-24gb"


def systems(*names, topology=None, **stated):
    asked = {"workload": "bert", **({"accelerator": list(names)} if names else {}), **stated}
    return requested_systems(query(asked), catalogue(), topology=topology)


def matrix(*rows):
    """The output of `nvidia-smi topo -m`: one row of link classes a GPU."""
    names = [f"GPU{number}" for number in range(len(rows))]
    return "\n".join(["\t" + "\t".join(names), *(f"{name}\t" + "\t".join(row) for name, row in zip(names, rows, strict=True))]) + "\n"  # fmt: skip


def test_names_are_those_of_the_catalogue_in_the_order_given():
    assert [each.name for each in systems("rtx4090", H100)] == [RTX, H100]
    assert [each.accelerator for each in systems("rtx4090", H100)] == [RTX, H100]


def test_a_number_may_stand_before_or_behind_the_name():
    assert [(each.name, each.stock) for each in systems("h100:8", "16 x a100")] == [(H100, 8), (A100, 16)]


def test_every_name_that_is_not_known_is_in_one_error():
    with pytest.raises(SpecError, match=r"h1000.*h100-sxm5.*b2000.*b200-sxm6"):
        systems("h1000", "a100", "b2000")


def test_a_fine_tuning_that_names_no_accelerator_compares_those_for_rent():
    found = systems(train="qlora", examples="10k", workload="llama31_8b")
    chips = [each.cluster.accelerator for each in found]
    memory_gb = [chip.memory_bytes / 1e9 for chip in chips]
    assert RTX in {chip.slug for chip in chips}
    assert min(memory_gb) <= 24
    assert max(memory_gb) >= 141
    cost = {chip.slug: price(chip.slug, terms="on_demand").usd_per_accelerator_hour for chip in chips}
    for chip in chips:
        better = [
            other
            for other in chips
            if other.vendor == chip.vendor
            and other.memory_bytes > chip.memory_bytes
            and other.memory_byte_per_s > chip.memory_byte_per_s
            and other.peak_bf16_flop_per_s > chip.peak_bf16_flop_per_s
            and cost[other.slug] < cost[chip.slug]
        ]
        assert not better, chip.slug
    with pytest.raises(UsageError, match="accelerator"):
        systems()


@pytest.mark.parametrize("links", ["topology", "collectives"])
def test_links_of_ones_own_are_not_given_to_all_accelerators_for_rent(mine, links):
    file = mine(matrix(["X", "PHB"], ["PHB", "X"]), "links.txt")
    with pytest.raises(UsageError, match="--accelerator NAME"):
        requested_systems(
            query({"workload": "llama31_8b", "train": "qlora", "examples": "10k", links: file}), catalogue()
        )


def test_a_count_before_a_name_is_a_stock():
    (found,) = systems("3x rtx 4090")
    assert (found.stock, found.name) == (3, RTX)
    (stated,) = systems("3x rtx 4090", stock="rtx4090=2")
    assert stated.stock == 2


def test_a_number_of_cards_puts_them_into_one_host_but_keeps_the_nodes_that_are_described(mine):
    path = mine(
        f'[cluster.lab]\ntitle = "Lab"\naccelerators = ["{RTX}"]\nnode_size = 1\n'
        'inter_byte_per_s = 1.25e8\nsource = "1 Gbit/s"\nconfidence = "high"\n',
        "lab.toml",
    )
    known = catalogue([path])
    asked = query({"workload": "bert", "accelerator": ["4x lab", "4x rtx4090"]})
    lab, cards = requested_systems(asked, known)
    assert (lab.cluster.node_size, lab.stock, lab.chosen_for_you) == (1, 4, ())
    assert (cards.cluster.node_size, cards.stock) == (4, 4)
    # So is a card whose own nodes a file describes: one in each of four computers.
    path.write_text("[accelerator.rtx-3060-pcie-12gb]\nnode_size = 1\n")
    (alone,) = requested_systems(
        query({"workload": "bert", "accelerator": ["4x rtx3060"]}), catalogue([path])
    )
    assert (alone.cluster.node_size, alone.stock) == (1, 4)
    # A DGX Spark is a computer with one GB10, two of which a cable joins (NVIDIA, DGX Spark user guide).
    (sparks,) = systems("2x gb10")
    assert (sparks.cluster.node_size, sparks.stock) == (1, 2)


@pytest.mark.parametrize("chip", ["rtx-4090-pcie-24gb", "rx-7900-xtx-pcie-24gb", "l4-pcie-24gb"])
def test_cards_whose_results_are_of_six_in_one_host_sit_in_one(chip):
    # tinybox of tinycorp and 2288H V7 of xFusion: six cards in one host, in every result there is.
    results = embedded.score_table().filter(pl.col("accelerator") == chip)
    assert set(results.select("num_accelerators", "num_nodes").rows()) == {(6, 1)}
    (found,) = systems(chip)
    assert found.cluster.node_size >= 6


def test_terms_and_prices_belong_to_systems():
    found = {
        each.name: each
        for each in systems(H100, A100, price=f"{H100}=2", terms=[f"{A100}=spot", "on_demand"])
    }
    assert found[H100].usd_per_accelerator_hour == 2.0
    assert found[A100].usd_per_accelerator_hour is None
    assert (found[H100].terms, found[A100].terms) == (("on_demand",), ("spot",))
    (alone,) = systems(H100, price="2")
    assert alone.usd_per_accelerator_hour == 2.0
    assert systems("h100-sxm5-80gb", price="h100-sxm5-80gb=2")[0].usd_per_accelerator_hour == 2.0


@pytest.mark.parametrize(
    "terms",
    [
        ["spot,on_demand"],
        ["spot", "on_demand"],
        [f"{H100}=spot", f"{H100}=on_demand"],
        ["spot", "on_demand", "spot"],
    ],
)
def test_terms_stated_one_by_one_are_compared_as_those_of_one_list(terms):
    assert systems(H100, terms=terms)[0].terms == ("spot", "on_demand")


@pytest.mark.parametrize(
    ("names", "stated", "error", "words"),
    [
        ((H100,), {"price": ["2", "3"]}, UsageError, rf"--price of {H100} .*2 and 3"),
        ((H100,), {"stock": [f"{H100}=8", "h100=16"]}, UsageError, rf"--stock of {H100} .*8 and 16"),
        ((H100, A100), {"price": "2.5"}, UsageError, rf"--price 2.5 .*--price {H100}=2.5"),
        ((H100, A100), {"stock": "8"}, UsageError, rf"--stock 8 .*--stock {H100}=8"),
        ((H100,), {"price": f"{A100}=1"}, UsageError, rf"{A100} .*{H100}"),
        ((H100,), {"price": "h9000=1"}, SpecError, "h9000"),
        ((H100, H100), {}, UsageError, H100),
        ((), {}, UsageError, "--accelerator NAME .*--here"),
        (("a100 pcie",), {}, SpecError, "a100-pcie-40gb or a100-pcie-80gb"),
        (("h100-sxm5-81gb",), {}, SpecError, "h100-sxm5-80gb"),
    ],
)
def test_what_names_no_system_is_refused(names, stated, error, words):
    with pytest.raises(error, match=words):
        systems(*names, **stated)


def test_a_stated_node_size_is_kept():
    assert systems(H100, node_size=4)[0].cluster.node_size == 4


def test_a_topology_file_makes_a_node_of_its_accelerators_and_links(mine):
    file = mine(matrix(["X", "PHB", "SYS"], ["PHB", "X", "SYS"], ["SYS", "SYS", "X"]), "topology.txt")
    (usual,) = systems("rtx4090")
    (own,) = requested_systems(
        query({"workload": "bert", "accelerator": ["rtx4090"], "topology": file}), catalogue()
    )
    assert own.cluster.node_size == 3
    assert "PHB (1 pair), SYS (2 pairs)" in own.notes[0]
    # through the host: no faster than what two of them have by the tables
    assert own.cluster.intra.byte_per_s <= usual.cluster.intra.byte_per_s


@pytest.mark.parametrize(
    ("device", "is_refused"),
    [("NVIDIA H100 80GB HBM3", False), ("NVIDIA L40S", True), ("Card of no table", False), (None, False)],
)
def test_links_of_another_accelerator_are_refused(mine, device, is_refused):
    listed = "".join(f"GPU {each}: {device} (UUID: GPU-{each})\n" for each in range(2)) if device else ""
    file = mine(f"{listed}{matrix(['X', 'SYS'], ['SYS', 'X'])}", "topology.txt")
    asked = query({"workload": "bert", "accelerator": ["h100"], "topology": file})
    refused = pytest.raises(DataError, match=r"topology\.txt: .*L40S.*H100 SXM5")
    with refused if is_refused else nullcontext():
        assert requested_systems(asked, catalogue())[0].cluster.node_size == 2


def test_accelerators_cut_into_slices_are_refused_and_never_planned_as_whole_ones(mine):
    gpu = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n"
    cut = "".join(f"  MIG 1g.10gb     Device  {each}: (UUID: MIG-{each})\n" for each in range(7))
    file = mine(gpu + cut, "topology.txt")
    asked = query({"workload": "bert", "accelerator": ["a100-sxm4-80gb"], "topology": file})
    with pytest.raises(DataError, match=r"topology\.txt: .*\b7 MIG\b.*1g\.10gb"):
        requested_systems(asked, catalogue())
    with pytest.raises(EvidenceError, match=r"\b7 MIG\b.*1g\.10gb"):
        systems(here=True, topology=read((gpu + cut).encode(), where="here"))
    file.write_text(gpu)
    assert requested_systems(asked, catalogue())[0].cluster.node_size == 1


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"GPU0"])
def test_what_is_no_topology_is_refused(tmp_path, mine, content):
    file = mine(content, "topology.txt")
    asked = query({"workload": "bert", "accelerator": ["rtx4090"], "topology": file})
    with pytest.raises(EquipoiseError, match=r"topology\.txt|topo -m"):
        requested_systems(asked, catalogue())
    with pytest.raises(EquipoiseError, match="regular file"):
        requested_systems(
            query({"workload": "bert", "accelerator": ["rtx4090"], "topology": tmp_path}), catalogue()
        )


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("NV12", "SYS", r"1 of 1 .*GPU0.*GPU1.*NV12.*SYS"),
        ("FOO", "FOO", r"1 of 1 .*FOO"),
        ("NV99", "NV99", "NV99"),
    ],
)
def test_links_that_are_not_known_are_refused_and_never_taken_for_a_switch(mine, first, second, words):
    file = mine(f"\tGPU0\tGPU1\nGPU0\t X \t{first}\nGPU1\t{second}\t X \n", "topology.txt")
    asked = query({"workload": "bert", "accelerator": ["h100"], "topology": file})
    with pytest.raises(DataError, match=rf"topology\.txt: .*{words}"):
        requested_systems(asked, catalogue())
    file.write_text("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n")
    (system,) = requested_systems(asked, catalogue())
    assert system.cluster.topology == "host"


def test_the_machine_at_hand_is_what_its_topology_states():
    lines = matrix(["X", "NV4"], ["NV4", "X"]).encode()
    found = read(lines, where="here")
    with pytest.raises(EvidenceError) as caught:  # the matrix names no device
        systems(here=True, topology=found)
    assert "--hardware FILE.toml" in caught.value.missing[0]


@pytest.mark.parametrize("text", ["0xh100", "000 x h100", "10000001xh100"])
def test_a_count_of_nothing_or_of_too_many_is_refused(text):
    with pytest.raises(UsageError, match="10,000,000"):
        systems(text)


# A week of one accelerator at 4e14 FLOP/s is 2.42e20 FLOP.
@pytest.mark.parametrize(
    ("accelerator", "flop", "most"),
    [
        ("h100-sxm5-80gb", None, 512),  # to the published target
        ("h100-sxm5-80gb", 4.8e22, 512),  # 8e9 parameters on 1e12 tokens, 6 FLOP each: 198
        ("h100-sxm5-80gb", 7.2e23, 2048),  # on 15e12: 2,976
        ("tpu-v5p", 7.2e23, 2048),  # the same sizes of every kind
        ("h100-sxm5-80gb", 3.6e25, 32768),  # 405e9 on 15e12: 148,810, twice the largest published
        ("rtx-4090-pcie-24gb", 7.2e23, 8),  # of which nobody has a cluster
    ],
)
def test_long_trainings_are_tried_on_more_accelerators(accelerator, flop, most):
    asked = query({"workload": "llama31_8b", "accelerator": [accelerator]})
    (system,) = requested_systems(asked, catalogue())
    assert usual_most(asked, system, flop) == most


@pytest.mark.parametrize(
    ("links", "num_devices", "byte_per_s"),
    [
        ("NV12", 8, 300e9),  # each has 12 links of 25 GB/s, all to switches
        ("NV4", 8, 100e9),  # 28 to seven others are more than it has: four to switches
        ("NV1", 8, 175e9),  # one to each of seven others, all of them together
        ("NV4", 4, 300e9),  # four to each of three others
        ("NV2", 2, 50e9),
    ],
)
def test_the_number_of_links_of_a_pair_is_what_a_topology_states(mine, links, num_devices, byte_per_s):
    devices = range(num_devices)
    file = mine(
        matrix(*(["X" if one == other else links for other in devices] for one in devices)), "topology.txt"
    )
    asked = query({"workload": "bert", "accelerator": [A100], "topology": file})
    (found,) = requested_systems(asked, catalogue())
    assert found.cluster.intra.byte_per_s == byte_per_s
    # Two of a mesh share the links of their pair alone.
    of_pair = 25e9 * int(links.removeprefix("NV"))
    assert found.cluster.group_byte_per_s(2, 1) == min(byte_per_s, of_pair)


# NVIDIA, DGX-1 with V100 system architecture: a hybrid cube mesh of six NVLinks a GPU; pairs without one cross the sockets.
# Rings by hand: of all eight three, both ways, 6 links; of the four of a board two, 4 links; of neighbours the link they share.
CUBE_MESH = ("X 1 1 2 2 0 0 0", "1 X 2 1 0 2 0 0", "1 2 X 2 0 0 1 0", "2 1 2 X 0 0 0 1",
             "2 0 0 0 X 1 1 2", "0 2 0 0 1 X 2 1", "0 0 1 0 1 2 X 2", "0 0 0 1 2 1 2 X")  # fmt: skip


@pytest.mark.parametrize(("size", "byte_per_s"), [(8, 150e9), (4, 100e9), (2, 25e9)])
def test_rings_pass_the_nvlinks_of_a_cube_mesh_that_a_file_shows(tmp_path, size, byte_per_s):
    file = tmp_path / "topology.txt"
    classes = {"X": "X", "0": "SYS", "1": "NV1", "2": "NV2"}
    file.write_text(matrix(*([classes[each] for each in row.split()] for row in CUBE_MESH)))
    (found,) = requested_systems(
        query({"workload": "bert", "accelerator": ["v100-sxm2-16gb"], "topology": file}), catalogue()
    )
    assert found.cluster.group_byte_per_s(size, 1) == byte_per_s


def test_pairs_joined_by_bridges_alone_meet_in_the_host(mine):
    file = mine(matrix(["X", "NV4", "SYS"], ["NV4", "X", "SYS"], ["SYS", "SYS", "X"]), "topology.txt")
    (found,) = requested_systems(
        query({"workload": "bert", "accelerator": ["rtx-a6000"], "topology": file}), catalogue()
    )
    assert found.cluster.topology == "host"


@pytest.mark.parametrize(
    ("accelerator", "links", "has"),
    [("v100-sxm2-16gb", "NV18", "6 NVLinks"), (RTX, "NV4", "no NVLinks"), (H100, "NV18", None)],
)
@pytest.mark.parametrize("other", ["SYS", None])
def test_links_that_an_accelerator_does_not_have_are_of_another(mine, accelerator, links, has, other):
    file = mine(
        matrix(["X", links, other or links], [links, "X", links], [other or links, links, "X"]), "links.txt"
    )
    asked = query({"workload": "bert", "accelerator": [accelerator], "topology": file})
    with pytest.raises(DataError, match=rf"links\.txt: .*{links}.*{has}") if has else nullcontext():
        requested_systems(asked, catalogue())
