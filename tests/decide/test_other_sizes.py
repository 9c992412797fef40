"""A law: a size of a system takes as long, whatever other sizes and systems it is compared with."""

import json

import pytest
from command_line import in_process

# A chip near several with results, one whose nearest has results beyond all sizes asked about, one with its own,
# and one that another bounds whose results are of more accelerators.
CASES = [
    ("dlrm_dcnv2", "rtx-4090", 8),
    ("retinanet", "tpu-v5e", 512),
    ("bert", "h100-sxm5-80gb", 64),
    ("retinanet", "gb300", 2),
]


def times(verb, *arguments):
    """Central times on demand, by system and size."""
    ended = in_process(verb, *arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)["candidates"]
    return {each["id"]: each["time_s"]["value"] for each in found if each["terms"] == "on_demand"}


@pytest.mark.parametrize(("workload", "chip", "size"), CASES)
@pytest.mark.parametrize(
    "other",
    [
        ("plan", "--at", "{size}"),
        ("plan", "--at", "{half},{size}"),
        ("advise", "--max", "{size}"),
        ("advise", "--accelerator", "a100-sxm4-80gb"),
    ],
    ids=["alone", "two sizes", "fewer", "two systems"],
)
def test_a_size_takes_as_long_whatever_it_is_compared_with(workload, chip, size, other):
    asked = ("advise", workload, "--accelerator", chip)
    verb, *options = [each.format(size=size, half=size // 2) for each in other]
    first, second = times(*asked), times(verb, *asked[1:], *options)
    shared = [each for each in first if each in second and each.split("/")[1] == str(size)]
    assert shared
    assert [second[each] for each in shared] == pytest.approx([first[each] for each in shared], rel=1e-4)


def test_over_slow_links_a_size_with_a_result_is_no_outlier_among_its_neighbours(mine):
    # Six RTX 4090 have a result of one host at a batch of 1,536; over 1 Gbit/s they may take another batch.
    lab = mine(
        '[cluster.lab]\ntitle = "Lab"\naccelerators = ["rtx-4090-pcie-24gb"]\nnode_size = 1\n'
        'inter_byte_per_s = 1.25e8\nsource = "1 Gbit/s"\nconfidence = "high"\n',
        "lab.toml",
    )
    found = times("advise", "resnet50", "--hardware", str(lab), "--accelerator", "lab", "--at", "4,6,8")
    assert found["lab/4/on_demand"] > found["lab/6/on_demand"] > found["lab/8/on_demand"]


# Racks of 72: a batch of 1,024 is shared out by 64 of each, and by no number of whole racks.
RACKS = ("llama31_8b", "--tokens", "1T", "--global-batch", "1024", "--accelerator")


@pytest.mark.parametrize("chip", ["gb200", "gb300"])
def test_a_stated_batch_that_whole_nodes_do_not_share_out_leaves_larger_sizes(chip):
    free, listed = times("advise", *RACKS, chip), times("advise", *RACKS, chip, "--at", "64,128,256,512")
    assert min(free.values()) <= min(listed.values()) < max(listed.values()) / 7


@pytest.mark.parametrize(
    ("budget", "most"), [(("--tokens", "10B", "--global-batch", "32"), 64), (RACKS[1:5], 512)]
)
def test_a_model_supports_every_size_that_it_times(budget, most):
    # Twice the largest has no legal strategy; up to it each doubling is 1.7 times as fast or more, which pays.
    sizes = ",".join(str(most >> halved) for halved in (3, 2, 1, 0))
    ended = in_process("advise", RACKS[0], *budget, "--accelerator", "gb200", "--at", sizes, "--json")
    found = json.loads(ended.stdout)
    by_size = {each["num_accelerators"]: each["time_s"]["value"] for each in found["candidates"]}
    assert by_size[most // 2] > 1.5 * by_size[most]
    assert found["recommended"]["num_accelerators"] == most
