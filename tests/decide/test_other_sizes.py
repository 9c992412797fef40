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


def test_over_slow_links_a_size_with_a_result_is_no_outlier_among_its_neighbours(tmp_path):
    # Six RTX 4090 have a result of one host at a batch of 1,536; over 1 Gbit/s they may take another batch.
    lab = tmp_path / "lab.toml"
    lab.write_text(
        '[cluster.lab]\ntitle = "Lab"\naccelerators = ["rtx-4090-pcie-24gb"]\nnode_size = 1\n'
        'inter_byte_per_s = 1.25e8\nsource = "1 Gbit/s"\nconfidence = "high"\n'
    )
    found = times("advise", "resnet50", "--hardware", str(lab), "--accelerator", "lab", "--at", "4,6,8")
    assert found["lab/4/on_demand"] > found["lab/6/on_demand"] > found["lab/8/on_demand"]
