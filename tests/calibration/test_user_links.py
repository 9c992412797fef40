"""Timed collectives as links of a plan: what was timed comes back, in the sizes and groups it applies to."""

import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn_from
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise import plan
from equipoise.bench.collectives import CollectiveRun, Timing
from equipoise.calibration.profiles import prior_model, with_links
from equipoise.calibration.user_collectives import (
    TimedCollectives,
    given_collectives,
    refuse_unnamed,
    timed_operations,
)
from equipoise.calibration.user_links import link_words, user_links
from equipoise.errors import EvidenceError, UsageError
from equipoise.notes import Note
from equipoise.perfmodel.collectives import OPERATIONS as TIMERS
from equipoise.perfmodel.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from equipoise.perfmodel.machine import Group, machine
from equipoise.spec.catalogue import shipped
from equipoise.spec.cluster import cluster

TRUTH = tomllib.loads((Path(__file__).parents[1] / "truth" / "collectives.toml").read_text())
SIZES = [2**power for power in range(3, 33, 2)]
A100, PCIE = "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-80GB"
MODEL = prior_model()


def run(
    seconds, *, operation="all_reduce", num_ranks=8, num_nodes=1, device=A100, sizes=SIZES, file="own.txt"
):
    """A run whose message of each size took what `seconds` says."""
    timings = tuple(
        Timing(
            payload_bytes=size,
            out_of_place_s=seconds(float(size)),
            in_place_s=None,
            num_wrong=0,
        )
        for size in sizes
    )
    return CollectiveRun(
        file=file,
        number=1,
        operation=operation,
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        device=device,
        timings=timings,
    )


def line(latency_s, byte_per_s):
    """Hockney's line: time is latency and bytes over rate."""
    return lambda size: latency_s + size / byte_per_s


def given(*runs):
    return TimedCollectives(runs=runs)


def own(*runs, name="a100-sxm4-80gb", num_accelerators=8, **node):
    nodes = cluster(name, num_accelerators=num_accelerators, **node)
    collective = MODEL.parameters.collective
    return user_links(given(*runs), nodes, collective, [each.collective for each in MODEL.draws]), nodes


def group(inside, nodes=1):
    return Group(ranks_per_node=float(inside), num_nodes=float(nodes))


@pytest.mark.parametrize("rate", [12e9, 130e9, 900e9])
def test_what_was_timed_comes_back_at_every_size(rate):
    took = line(50e-6, rate)
    found, nodes = own(run(took))
    sizes = np.array([8.0, 3000.0, 1e5, 1e6, 3e7, 1e9])
    predicted_s = all_reduce_s(sizes, group(8), machine(nodes).wires, found.parameters)
    assert predicted_s == pytest.approx(took(sizes), rel=0.01)


def test_rows_in_another_order_and_in_two_files_say_the_same():
    took = line(40e-6, 100e9)
    whole, nodes = own(run(took))
    mixed = [SIZES[at] for at in np.random.default_rng(1).permutation(len(SIZES))]
    parted, _ = own(run(took, sizes=mixed[:7]), run(took, sizes=mixed[7:], file="more.txt"))
    sizes, wires = np.logspace(1, 10, 19), machine(nodes).wires
    for each in (all_reduce_s, all_gather_s):
        assert each(sizes, group(8), wires, parted.parameters) == pytest.approx(
            each(sizes, group(8), wires, whole.parameters), rel=1e-9
        )


def test_other_groups_and_operations_on_the_same_links_follow_the_law():
    # A ring over links of a tenth of their stated rate: 300 GB/s for A100.
    rate = 30e9
    found, nodes = own(run(lambda size: 30e-6 + 2 * 7 / 8 * size / rate))
    wires, payload = machine(nodes).wires, 2.0**30
    four = all_reduce_s(payload, group(4), wires, found.parameters)
    assert four == pytest.approx(2 * 3 / 4 * payload / rate, rel=0.15)
    gathered = all_gather_s(payload, group(8), wires, found.parameters)
    assert gathered == pytest.approx(7 / 8 * payload / rate, rel=0.15)


def test_links_that_nothing_was_timed_on_stay_of_the_catalogue():
    found, nodes = own(run(line(30e-6, 10e9)), num_accelerators=32)
    wires, across = machine(nodes).wires, group(1, 4)
    before = MODEL.parameters.collective
    assert all_reduce_s(1e8, across, wires, found.parameters) == all_reduce_s(1e8, across, wires, before)
    assert (found.inside, found.between) == (True, False)
    text = " ".join(link_words(found, nodes))
    assert re.search(r"catalogue.*between nodes, 25 GB/s", text)


def test_collectives_between_nodes_leave_the_links_inside_alone():
    found, nodes = own(run(line(60e-6, 5e9), num_ranks=16, num_nodes=2), num_accelerators=32)
    wires, before = machine(nodes).wires, MODEL.parameters.collective
    assert all_reduce_s(1e8, group(8, 2), wires, found.parameters) == pytest.approx(1e8 / 5e9, rel=0.02)
    assert all_reduce_s(1e8, group(8), wires, found.parameters) == all_reduce_s(1e8, group(8), wires, before)
    assert (found.inside, found.between) == (False, True)
    assert re.search("catalogue.*: .*inside", " ".join(link_words(found, nodes)))


def test_draws_agree_about_what_was_timed_and_less_the_farther_from_it():
    found, nodes = own(run(line(30e-6, 130e9)))
    wires = machine(nodes).wires

    def log_sd(timer, ranks, draws):
        return float(np.std(np.log([float(timer(1e8, group(ranks), wires, each)) for each in draws])))

    before = [each.collective for each in MODEL.draws]
    timed = log_sd(all_reduce_s, 8, found.draws)
    assert timed == pytest.approx(0.05, rel=0.3)  # what repetitions on one machine differ by
    assert timed < log_sd(all_reduce_s, 4, found.draws) < log_sd(all_reduce_s, 2, found.draws)
    assert timed < log_sd(reduce_scatter_s, 8, found.draws)
    assert timed < log_sd(all_reduce_s, 8, before)


@pytest.mark.truth
def test_ranges_hold_what_others_measured_over_groups_that_were_not_timed():
    # vTrain's all-reduces on A100 (tests/truth/collectives.toml): plans know one group or two, of 2 to 8.
    truth = TRUTH["a100"]
    sizes = [each * 2**20 for each in truth["payload_mib"]]
    took = {ranks: np.array(truth[f"ranks_{ranks}_us"]) / 1e6 for ranks in range(2, 9)}
    errors, held = [], []
    for known in ([8], [4], [2], [2, 8]):
        runs = [
            run(dict(zip(sizes, took[each], strict=True)).__getitem__, num_ranks=each, sizes=sizes)
            for each in known
        ]
        found, nodes = own(*runs)
        wires, payload = machine(nodes).wires, np.array(sizes, dtype=float)
        for ranks in set(took) - set(known):
            drawn = [all_reduce_s(payload, group(ranks), wires, each) for each in found.draws]
            low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
            predicted_s = all_reduce_s(payload, group(ranks), wires, found.parameters)
            errors.extend(np.abs(predicted_s / took[ranks] - 1))
            held.extend((low <= took[ranks]) & (took[ranks] <= high))
    assert np.median(errors) < 0.08
    assert 0.85 < np.mean(held) < 0.98


def test_scattered_repetitions_make_the_range_wider():
    rng = np.random.default_rng(2)
    runs = [
        run(lambda size: (30e-6 + size / 130e9) * math.exp(rng.normal(0, 0.3)), file=f"{at}.txt")
        for at in range(8)
    ]
    found, _ = own(*runs)
    assert found.figures[0].spread == pytest.approx(math.hypot(0.05, 0.3), rel=0.15)


def test_one_long_message_tells_the_rate_and_not_the_latency():
    found, nodes = own(run(line(30e-6, 20e9), sizes=[2**27]))
    wires, before = machine(nodes).wires, MODEL.parameters.collective
    assert all_reduce_s(2.0**27, group(8), wires, found.parameters) == pytest.approx(2**27 / 20e9, rel=0.01)
    short = all_reduce_s(64.0, group(8), wires, found.parameters)
    assert short == pytest.approx(all_reduce_s(64.0, group(8), wires, before), rel=0.15)
    assert found.figures[0].latency_s is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": "NVIDIA H100 80GB HBM3"}, "own.txt for NVIDIA A100 SXM4 80 GB: .*H100"),
        ({"device": PCIE}, "own.txt for .*: .*NVIDIA A100 PCIe"),
        ({"operation": "gather"}, r"own.txt for .*: .*\bgather\b"),
    ],
)
def test_what_speaks_of_something_else_is_not_used_and_that_is_said(changed, words):
    found, nodes = own(run(line(30e-6, 20e9), **changed))
    assert found.figures == ()
    assert found.parameters == MODEL.parameters.collective
    text = " ".join((*link_words(found, nodes), *map(str, found.notes)))
    assert re.search(words, text)
    assert "catalogue" in text
    assert {each.kind for each in found.notes} == {"not_used"}  # so that the first lines of an answer show it


def test_a_whole_file_that_is_not_used_is_named_before_rows_of_it():
    # First lines of an answer have room for one.
    timed = replace(given(run(line(30e-6, 20e9), device=PCIE)), notes=(Note("2 rows: size 0.", "not_used"),))
    _, notes = timed_operations(timed, cluster("a100-sxm4-80gb", num_accelerators=8))
    assert [("own.txt" in note.words, note.kind) for note in notes] == [
        (True, "not_used"),
        (False, "not_used"),
    ]


def test_copies_in_each_others_way_and_processors_are_not_used():
    slow = run(line(30e-6, 20e9))
    found, _ = own(replace(slow, num_copies=2), replace(slow, backend="gloo"))
    assert found.figures == ()
    assert len(found.notes) == 2


def test_a_file_without_a_name_is_taken_for_the_one_asked_about_and_not_for_two():
    unnamed = run(line(30e-6, 20e9), device=None)
    found, _ = own(unnamed)
    (note,) = map(str, found.notes)
    assert re.match(r"own\.txt .*: .*NVIDIA A100 SXM4 80 GB", note)
    with pytest.raises(UsageError, match=r"own\.txt.*\b2\b"):
        refuse_unnamed(given(unnamed), ["a100-sxm4-80gb", "h100-sxm5-80gb"])
    refuse_unnamed(given(unnamed), ["a100-sxm4-80gb"])
    refuse_unnamed(given(run(line(1e-6, 1e9))), ["a100-sxm4-80gb", "h100-sxm5-80gb"])


def test_more_ranks_on_a_host_than_a_node_has_is_told():
    found, _ = own(run(line(30e-6, 20e9), num_ranks=8), num_accelerators=8, node_size=4)
    assert any(re.search(r"\b8 ranks .*\b4 ", note.words) for note in found.notes)


def test_a_file_without_a_usable_row_is_no_evidence(tmp_path):
    table = tmp_path / "all_reduce.txt"
    side = "30.00   0.03   0.06   7 "
    table.write_text(f"        1024           256     float     sum      -1    {side} {side}\n")
    with pytest.raises(EvidenceError, match=r"no row.*#wrong.*\(1 times\)") as refused:
        given_collectives([table], shipped())
    # What would do, not why what there is does not.
    assert [re.findall("nccl-tests|#wrong", each) for each in refused.value.missing] == [["nccl-tests"]]


FIXED = ["tp=8", "pp=1", "cp=1", "sequence_parallel=false", "tp_overlap=false", "recompute=none"]


def planned(*files):
    """The one candidate on 8 A100 that split each layer eight ways."""
    found = plan(
        "gpt2_medium",
        accelerator="a100-sxm4-80gb",
        accelerators=8,
        global_batch=512,
        tokens=1e9,
        software="priors",
        fix=FIXED,
        collectives=[str(file) for file in files],
    )
    return found.record.recommended


def nccl_file(folder, seconds, *, operation="all_reduce"):
    """What nccl-tests prints of 8 ranks on one host whose message of each size took what `seconds` says."""
    kinds = {"all_reduce": "sum", "reduce_scatter": "sum", "all_gather": "none"}
    lines = [
        f"# {operation}_perf -b 8 -e 8G -g 8",
        "# Using devices",
        *(
            f"#   Rank  {rank} Group  0 Pid  1 on  host device  {rank} [0x0{rank}] {A100}"
            for rank in range(8)
        ),
        "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw #wrong",
    ]
    for size in SIZES:
        took_s = seconds(float(size))
        rate = size / took_s / 1e9
        factor = 7 / 4 if operation == "all_reduce" else 7 / 8
        lines.append(
            f"{size} {size // 4} float {kinds[operation]} -1 "
            + 2 * f" {took_s * 1e6:.4g} {rate:.4g} {rate * factor:.4g} 0"
        )
    (path := folder / f"{operation}.txt").write_text("\n".join(lines) + "\n")
    return path


def test_a_plan_pays_the_closed_form_of_what_was_timed(tmp_path):
    # Sums of gpt2_medium over tp=8: 24 layers, 2 a pass, forward and as much of the way back as is exposed (0.7).
    took = line(100e-6, 2e9)
    best = planned(nccl_file(tmp_path, took))
    strategy = best.strategy
    microbatches = 512 / (strategy.dp * strategy.microbatch_samples)
    payload = strategy.microbatch_samples * 1024 * 1024 * 2
    assert best.model.by_cause_s["tp"] == pytest.approx(microbatches * 24 * 2 * 1.7 * took(payload), rel=0.02)


def test_timings_of_slow_links_make_a_plan_as_much_slower_as_the_links_are(tmp_path):
    declared = cluster("a100-sxm4-80gb", num_accelerators=8, intra_byte_per_s=12e9, intra_latency_s=3.4e-6)
    wires, before = machine(declared).wires, MODEL.parameters.collective
    files = [
        nccl_file(
            tmp_path,
            lambda size, timer=TIMERS[name]: float(timer(size, group(8), wires, before)),
            operation=name,
        )
        for name in ("all_reduce", "all_gather", "reduce_scatter")
    ]
    assert planned(*files).model.step_s > 2 * planned().model.step_s


def test_the_model_is_as_it_was_without_files():
    nodes = cluster("a100-sxm4-80gb", num_accelerators=8)
    assert with_links(MODEL, None, nodes) is MODEL


@settings(max_examples=15, deadline=None)
@drawn_from(
    rows=st.lists(
        st.tuples(st.integers(1, 2**40), st.floats(-9, 6)),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row[0],
    ),
    num_ranks=st.integers(2, 4096),
    num_nodes=st.none() | st.integers(1, 10**6),
    operation=st.sampled_from(sorted(TIMERS)),
)
def test_whatever_a_file_says_no_time_is_less_than_nothing(rows, num_ranks, num_nodes, operation):
    seconds = {size: 10.0**power for size, power in rows}
    timed = run(
        lambda size: seconds[int(size)],
        sizes=[*seconds],
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        operation=operation,
    )
    found, nodes = own(timed, num_accelerators=64)
    wires = machine(nodes).wires
    for parameters in (found.parameters, *found.draws[:4]):
        for asked_group in (group(2), group(8), group(8, 8), group(1, 64)):
            took = TIMERS[operation](np.array([0.0, 8.0, 1e6, 1e12]), asked_group, wires, parameters)
            assert np.isfinite(took).all()
            assert (took > 0).all()
