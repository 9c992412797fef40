import contextlib
import gzip
import io
import json
import math
import os
import re
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from command_line import prepared_python
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.bench.trace import activity, read_traces
from equipoise.bench.trace.activity import Spans, covered_ns, merged, union
from equipoise.bench.trace.stream import TraceStream
from equipoise.diagnose.stragglers import lateness, trace_steps
from equipoise.errors import DataError
from equipoise.report.pages.trace import TRACE, trace_fields
from equipoise.runs.sources import gate

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MATMUL = "ampere_sgemm_128x64_nn"


def kernel(name, start_us, took_us, **arguments):
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start_us,
        "dur": took_us,
        "args": {"device": 0, "stream": 7, **arguments},
    }


def marked(number, start_us, took_us, category="user_annotation"):
    return {
        "ph": "X",
        "cat": category,
        "name": f"ProfilerStep#{number}",
        "pid": 9,
        "tid": 9,
        "ts": start_us,
        "dur": took_us,
    }


def operator(name, start_us, took_us, category="cpu_op"):
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": start_us, "dur": took_us}


def document(events, rank=0, **fields):
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": 2},
        "traceEvents": events,
    } | fields


@pytest.fixture
def read(tmp_path):
    def from_content(content, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read_traces([path]).ranks

    return from_content


def parts(step):
    return step.compute_s, step.communication_s, step.exposed_s, step.idle_s


def test_a_step_by_hand(read):
    events = [
        marked(3, 1000, 100),
        kernel(MATMUL, 1010, 30),  # 1010..1040
        kernel(MATMUL, 1035, 10),  # ..1045, on another stream
        kernel(NCCL, 1040, 25),  # 1040..1065: 5 us under the matrix product, 20 exposed
        {**kernel("Memcpy HtoD (Pinned -> Device)", 1070, 10), "cat": "gpu_memcpy"},
        kernel(MATMUL, 1095, 20),  # 5 us in the step, 15 after it
    ]
    (trace,) = read(document(events))
    (step,) = trace.steps
    assert (trace.rank, trace.world_size, trace.device, step.number) == (0, 2, 0, 3)
    assert step.step_s == 100e-6
    assert parts(step) == pytest.approx((50e-6, 25e-6, 20e-6, 30e-6), abs=1e-12)
    assert step.copy_s == pytest.approx(10e-6)


def test_steps_last_until_the_next_and_stop_where_none_follows(read):
    events = [marked(1, 0, 90), marked(2, 100, 90), marked(7, 500, 50), kernel(MATMUL, 0, 600)]
    steps = read(document(events))[0].steps
    assert [(step.number, step.step_s) for step in steps] == [(1, 100e-6), (2, 90e-6), (7, 50e-6)]


def test_without_marks_the_whole_is_one_step(read):
    (step,) = read(document([kernel(MATMUL, 50, 10), kernel(NCCL, 80, 10)]))[0].steps
    assert (step.number, step.step_s) == (None, 40e-6)
    assert parts(step) == pytest.approx((10e-6, 10e-6, 10e-6, 20e-6))


@pytest.mark.truth
@pytest.mark.parametrize(
    ("name", "rank", "numbers"),
    [
        ("nccl_parser_config__nccl_data.json.gz", 0, [4, 5, 6]),
        ("negative_queue_length_values_check__rank0.json.gz", 0, [550, 551, 552, 553, 554]),
        ("ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 0, [101, 102, 103, 104, 105]),
    ],
)
def test_samples_have_their_steps(name, rank, numbers, data_dir):
    (trace,) = read_traces([data_dir / "kineto" / name]).ranks
    assert (trace.rank, [step.number for step in trace.steps]) == (rank, numbers)
    assert trace.steps
    for step in trace.steps:
        assert step.compute_s + step.exposed_s + step.idle_s == pytest.approx(step.step_s, abs=1e-12)
        assert 0 <= step.exposed_s <= step.communication_s
        assert step.compute_s > 0


@pytest.mark.truth
def test_a_sample_equals_what_plain_python_counts(data_dir):
    path = data_dir / "kineto" / "nccl_parser_config__nccl_data.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = {each["name"]: each for each in events if each["name"].startswith("ProfilerStep")}
    begin, end = (round(steps[f"ProfilerStep#{number}"]["ts"] * 1000) for number in (4, 5))
    device = [each for each in events if each.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]

    def covered(wanted):
        starts = sorted((round(each["ts"] * 1000), each["dur"]) for each in device if wanted(each["name"]))
        total, reached = 0, begin
        for start, took in starts:
            stop = min(start + round(took * 1000), end)
            total += max(0, stop - max(start, reached))
            reached = max(reached, stop)
        return total

    computed = covered(lambda name: not name.startswith("nccl"))
    busy = covered(lambda name: name)
    step = read_traces([path]).ranks[0].steps[0]
    found = [round(1e9 * each) for each in (step.compute_s, step.exposed_s, step.idle_s)]
    # Times are floats of 4e15 ns: a nanosecond more or less.
    assert found == pytest.approx([computed, busy - computed, end - begin - busy], abs=1)


@pytest.mark.truth
def test_a_device_behind_its_host_keeps_equal_steps(data_dir):
    name = "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
    (trace,) = read_traces([data_dir / "kineto" / name]).ranks
    # On the host the first of five equal steps lasts 35 ms and the others 72 to 96: it fills the device's queue.
    assert [step.step_s for step in trace.steps] == pytest.approx([0.0957] * 5, rel=0.03)
    assert "behind" in trace.notes[0]


@pytest.mark.truth
def test_an_archive_of_ranks_is_read(data_dir):
    ranks = read_traces([data_dir / "kineto" / "inputs__dlrm_kineto.tar.gz"]).ranks
    assert [(trace.rank, trace.device, trace.world_size) for trace in ranks] == [
        (at, at, 8) for at in range(8)
    ]


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=12)


def spans_of(pairs):
    start = np.array([start for start, _ in pairs], dtype=np.int64)
    return Spans(start=start, end=start + np.array([took for _, took in pairs], dtype=np.int64))


def raster(pairs):
    """Which of 100 nanoseconds are in a span."""
    return {moment for start, took in pairs for moment in range(start, start + took)}


@settings(max_examples=300, deadline=None)
@given(compute=spans, communication=spans, windows=spans)
@pytest.mark.law
def test_arithmetic_on_spans_equals_a_raster(compute, communication, windows):
    whole = union(spans_of(compute), spans_of(communication))
    counted = raster(compute) | raster(communication)
    expected = [len(counted & raster([window])) for window in windows]
    assert covered_ns(whole, spans_of(windows)).tolist() == expected
    assert (whole.start[1:] > whole.end[:-1]).all()
    assert merged(whole).start.tolist() == whole.start.tolist()


@settings(max_examples=150, deadline=None)
@given(
    compute=spans,
    communication=spans,
    starts=st.lists(st.integers(0, 70), min_size=1, max_size=4, unique=True),
)
@pytest.mark.law
def test_parts_sum_to_steps_exactly_and_equal_a_raster(compute, communication, starts, tmp_path_factory):
    begins = sorted(starts)
    ends = [*begins[1:], begins[-1] + 20]
    events = [
        marked(at, begin / 1000, 0.02 if begin == begins[-1] else 0.001) for at, begin in enumerate(begins)
    ]
    events += [kernel(MATMUL, start / 1000, took / 1000) for start, took in compute]
    events += [kernel(NCCL, start / 1000, took / 1000) for start, took in communication]
    # A device that works on long after the last step would make steps its own.
    last = max([0, *(start + took for start, took in (*compute, *communication))])
    ends[-1] = max(ends[-1], last)
    events[len(begins) - 1]["dur"] = (ends[-1] - begins[-1]) / 1000
    path = tmp_path_factory.mktemp("law") / "trace.json"
    path.write_text(json.dumps(document(events)))
    trace = read_traces([path]).ranks[0]
    computed, communicated = raster(compute), raster(communication)
    for step, begin, end in zip(trace.steps, begins, ends, strict=True):
        window = set(range(begin, end))
        found = [round(1e9 * each) for each in (step.step_s, *parts(step))]
        has_device = bool(compute or communication)
        assert found[0] == end - begin
        assert found[1] == len(computed & window)
        assert found[2] == len(communicated & window)
        assert found[3] == len((communicated - computed) & window)
        assert found[0] == found[1] + found[3] + found[4] or not has_device


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)",
        "ncclSymkDevKernel_AllReduce_AGxLL_R_f32(ncclSymkDevWorkArgs4K)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "void ncclDevKernel_Generic_4<1>(ncclDevKernelArgsStorage<4096ul>)",
        "rccl_main_kernel(ncclDevKernelArgs)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)",
        "Memcpy PtoP (Device -> Device)",
    ],
)
def test_kernels_that_communicate_are_known_by_old_and_new_names(name):
    assert activity.communicates(name)


@pytest.mark.parametrize(
    "name",
    [
        MATMUL,
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "triton_red_fused__to_copy_accl_add_0",
        "Memcpy DtoD (Device -> Device)",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16>",
    ],
)
def test_kernels_that_compute_are_not_taken_for_communication(name):
    assert not activity.communicates(name)


@pytest.mark.parametrize("category", ["Kernel", "kernel"])
def test_categories_of_old_traces_are_read(category, read):
    (trace,) = read(document([{**kernel(MATMUL, 5, 5), "cat": category}]))
    assert trace.steps[0].compute_s == 5e-6


def test_groups_beyond_those_that_are_told_apart_join_none_of_them(read, monkeypatch):
    monkeypatch.setattr(activity, "MAX_STEPS", 1)
    groups = ("first", "second", "third", "first")
    events = [kernel(NCCL, 10 * at, 1, **{"Process Group Name": name}) for at, name in enumerate(groups)]
    (trace,) = read(document(events))
    first, second, third, again = trace.collectives.group
    assert first == again
    assert "first" in first
    assert second == third == ""


def test_launches_count_among_the_events_that_are_kept(read, monkeypatch):
    monkeypatch.setattr(activity, "MAX_EVENTS", 3)
    launch = {**operator("cudaLaunchKernel", 0, 1, "cuda_runtime"), "args": {"correlation": 1}}
    assert read(document([kernel(MATMUL, 0, 1), launch, launch]))
    with pytest.raises(DataError, match=" 3 "):
        read(document([kernel(MATMUL, 0, 1), launch, launch, launch]))


def test_several_devices_of_one_trace_stay_apart(read):
    ranks = read(document([kernel(MATMUL, 0, 10, device=0), kernel(NCCL, 0, 10, device=1)]))
    assert [(trace.device, trace.steps[0].compute_s) for trace in ranks] == [(0, 10e-6), (1, 0.0)]


def test_the_rank_comes_from_the_file_where_the_trace_does_not_say(read):
    events = [kernel(MATMUL, 0, 1)]
    assert read({"traceEvents": events}, name="worker12_step_3.pt.trace.json")[0].rank == 12
    assert read({"traceEvents": events}, name="rank-3.json")[0].rank == 3
    assert read({"traceEvents": events}, name="trace.json")[0].rank is None
    assert read(events)[0].rank is None  # the list of events alone


def test_traces_of_the_host_alone_say_what_they_cannot_tell(read):
    events = [
        marked(1, 0, 100),
        operator("aten::mm", 10, 20),
        operator("AddmmBackward0", 5, 90),
        operator("c10d::allreduce_", 30, 1),
        {**operator("gloo:all_reduce", 25, 30, "user_annotation"), "tid": 11},
    ]
    (trace,) = read(document(events))
    assert trace.device is None
    assert parts(trace.steps[0]) == pytest.approx((20e-6, 30e-6, 25e-6, 55e-6))
    assert "traced" in trace.notes[0]
    # NCCL's spans on the host are launches: what the communication took is not in the trace.
    events[-1] = operator("nccl:all_reduce", 25, 30, "user_annotation")
    (trace,) = read(document(events))
    assert (trace.steps[0].communication_s, trace.steps[0].exposed_s) == (None, None)
    assert "ProfilerActivity.CUDA" in trace.notes[0]


@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
def test_a_cut_trace_is_refused_since_its_events_are_not_in_order_of_time(read, name):
    # As Kineto writes them: kernels after all operators. Read up to the cut, the first step would be idle.
    events = [
        marked(1, 0, 250),
        marked(2, 250, 250),
        *(kernel(MATMUL, 10 * at, 5) for at in range(49, -1, -1)),
    ]
    whole = json.dumps(document(events)).encode()
    content = gzip.compress(whole, 0) if name.endswith(".gz") else whole
    assert [parts(step)[0] for step in read(content, name=name)[0].steps] == pytest.approx([125e-6, 125e-6])
    with pytest.raises(DataError, match=r"\bcut\b"):
        read(content[: len(content) // 2], name=name)


def test_files_of_the_cycles_of_a_schedule_are_one_rank(tmp_path):
    for rank in (0, 1):
        for first in (3, 8):  # as tensorboard_trace_handler writes with schedule(repeat=2)
            at = 100 * first
            events = [marked(first, at, 100), kernel(MATMUL, at, 60), kernel(NCCL, at + 60, 20 + 10 * rank)]
            (tmp_path / f"host_{rank}.{first}.pt.trace.json").write_text(json.dumps(document(events, rank)))
    found = read_traces([tmp_path])
    assert [(each.rank, [step.number for step in each.steps]) for each in found.ranks] == [
        (0, [3, 8]),
        (1, [3, 8]),
    ]
    assert list(found.ranks[1].collectives.step) == [0, 1]
    assert [each.late_s for each in lateness(found.ranks)] == pytest.approx([10e-6, 0.0])


def test_a_step_that_a_rank_has_twice_is_refused(tmp_path):
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(json.dumps(document([marked(3, 0, 100), kernel(MATMUL, 0, 60)])))
    found = read_traces([tmp_path])
    assert len(found.ranks) == 1
    assert "step 3" in found.rejected.rows()[0]["first"]


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (
            {"distributedInfo": {"rank": 0, "world_size": 2}},
            {"distributedInfo": {"rank": 0, "world_size": 16}},
        ),
        (
            {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]},
            {"deviceProperties": [{"id": 0, "name": "NVIDIA A100"}]},
        ),
        ({"process": 9}, {"process": 10}),
    ],
)
def test_traces_of_one_rank_in_different_jobs_are_not_averaged(tmp_path, own, other):
    for name, first, facts in (("a.json", 3, own), ("b.json", 7, other)):
        about = {key: each for key, each in facts.items() if key != "process"}
        step = {**marked(first, 0, 100), "pid": facts.get("process", 9)}
        (tmp_path / name).write_text(json.dumps(document([step, kernel(MATMUL, 0, 60)], **about)))
    found = read_traces([tmp_path])
    assert [[step.number for step in each.steps] for each in found.ranks] == [[3]]
    (refused,) = found.unread
    assert (refused.kind, Path(refused.where).name) == ("other_job", "b.json")
    assert "a.json" in refused.detail


def test_a_rank_that_its_own_world_lacks_is_refused(tmp_path):
    for rank in (1, 2):
        content = document([kernel(MATMUL, 0, 60)], distributedInfo={"rank": rank, "world_size": 2})
        (tmp_path / f"{rank}.json").write_text(json.dumps(content))
    found = read_traces([tmp_path])
    assert [each.rank for each in found.ranks] == [1]
    assert [Path(each.where).name for each in found.unread] == ["2.json"]


def test_ranks_of_another_job_are_not_compared_with_those_of_most(tmp_path):
    for rank, size in enumerate((16, 4, 4)):
        content = document([kernel(MATMUL, 0, 60)], distributedInfo={"rank": rank, "world_size": size})
        (tmp_path / f"{rank}.json").write_text(json.dumps(content))
    found = read_traces([tmp_path])
    assert [each.rank for each in found.ranks] == [1, 2]
    assert [(each.kind, Path(each.where).name) for each in found.unread] == [("other_job", "0.json")]


def test_archives_in_a_folder_are_read_or_named(tmp_path):
    content = json.dumps(document([kernel(MATMUL, 0, 1)], rank=1)).encode()
    for archive, name in (("traces.tar.gz", "rank1.json"), ("data.tar.gz", "images.bin")):
        with tarfile.open(tmp_path / archive, "w:gz") as opened:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    (tmp_path / "rank0.json").write_text(json.dumps(document([kernel(MATMUL, 0, 1)])))
    found = read_traces([tmp_path])
    assert [each.rank for each in found.ranks] == [0, 1]
    assert [Path(each.where).name for each in found.unread] == ["data.tar.gz"]


def test_odd_events_are_left_out_and_counted(read):
    odd = [
        {**kernel(MATMUL, 0, 1), "ts": "soon"},
        {**kernel(MATMUL, 0, 1), "dur": -1},
        {**kernel(MATMUL, 0, 1), "ts": 1e300},
        {**kernel(MATMUL, 0, 1), "ts": True},
        {**kernel(MATMUL, 0, 1), "ts": None},
        {name: value for name, value in kernel(MATMUL, 0, 1).items() if name != "dur"},
        {**kernel(MATMUL, 0, 1), "args": [1], "pid": {"a": 1}},
        {"ph": "X"},
        {"ph": "X", "cat": 3, "name": None},
        {"ph": "X", "cat": "kernel", "name": "x" * 100_000, "ts": 1, "dur": 1},
        17,
        None,
    ]
    ranks = read(document([*odd, kernel(MATMUL, 0, 1)]))
    assert any(note.startswith("6 events ") for note in ranks[0].notes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no list `traceEvents`"),
        (b"hello", "not JSON"),
        (b"{}", "no list `traceEvents`"),
        (b'{"traceEvents": 3}', "no list `traceEvents`"),
        (b'{"traceEvents": []}', "no kernel"),
        (b'{"x": {"traceEvents": []}}', "no list `traceEvents`"),
        (b'{"traceEvents": [' + b"[" * 100_000, "not JSON"),
        ('{"traceEvents": []}'.encode("utf-16"), "UTF-16"),
        (b'{"x": [' + b'{"traceEvents": [' * 50_000, "no list `traceEvents`"),
        (lambda: b'{"traceEvents": ["' + b"},{" * 4_000_000, "an event"),  # not kept by every worker
        (lambda: gzip.compress(bytes(2**25), 1), "not JSON"),
        (lambda: gzip.compress(b'{"traceEvents": [' + b" " * 2**25, 1), "an event"),
        (lambda: gzip.compress(b'{"traceEvents": [' + b'{"a":1},' * 2**23), "expand"),
        (b"\x1f\x8b\x08\x00garbage", "gzip"),
    ],
    ids=range(14),
)
def test_files_that_are_no_traces_are_refused_in_one_sentence(content, words, read):
    with pytest.raises(DataError) as refused:
        read(content() if callable(content) else content)
    assert words in str(refused.value)
    assert "trace.json" in str(refused.value)


@pytest.mark.parametrize("times", [{"ts": "soon"}, {"ts": None}, {"dur": -1}, {"ts": 1e300}])
def test_events_whose_times_cannot_be_used_are_no_missing_events(read, times):
    with pytest.raises(DataError, match=r"\b3 events\b.*\bdur\b"):
        read(document([{**kernel(MATMUL, start, 1), **times} for start in range(3)]))


def test_a_mark_of_utf8_before_a_trace_is_passed_over(read):
    (trace,) = read(b"\xef\xbb\xbf" + json.dumps(document([kernel(MATMUL, 0, 1)])).encode())
    assert len(trace.steps) == 1


def test_one_broken_trace_of_several_is_counted(tmp_path):
    good, bad = tmp_path / "rank0.json", tmp_path / "rank1.json"
    good.write_text(json.dumps(document([kernel(MATMUL, 0, 1)])))
    bad.write_text("no")
    found = read_traces([tmp_path, good])  # the good one is named twice, and is one rank
    assert len(found.ranks) == 1
    assert found.rejected.rows()[0]["where"] == str(bad)


def test_every_trace_that_is_not_read_is_named_with_its_reason(tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps(document([marked(3, 0, 100), kernel(MATMUL, 0, 60)])))
    (tmp_path / "again.json").write_text((tmp_path / "rank0.json").read_text())
    (tmp_path / "rank1.json").write_text(json.dumps(document([kernel(MATMUL, 0, 1)]))[:-40])
    (tmp_path / "rank2.csv").write_text("a,b\n")
    found = read_traces([tmp_path, tmp_path / "rank2.csv", tmp_path / "rank3.json"])
    assert len(found.ranks) == 1
    assert sorted(Path(each.where).name for each in found.unread) == [
        "rank0.json",
        "rank1.json",
        "rank2.csv",
        "rank3.json",
    ]
    assert {each["kind"]: each["count"] for each in found.rejected.rows()} == {
        "same_rank": 1,
        "unreadable": 3,
    }
    for name in ("rank1.json", "rank2.csv", "rank3.json"):
        assert sum(name in each for each in found.problems) == 1
    assert [each["where"] for each in trace_fields(trace_steps(found))["unread"]] == [
        each.where for each in found.unread
    ]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_time_that_is_no_number_costs_its_event_alone(read, word):
    odd = {**kernel(MATMUL, 0, 60), "ts": "ODD"}
    whole = json.dumps(document([marked(3, 0, 100), odd, kernel(MATMUL, 0, 25)])).replace('"ODD"', word)
    (trace,) = read(whole.encode())
    assert trace.steps[0].compute_s == pytest.approx(25e-6)
    assert any(note.startswith("1 event ") for note in trace.notes)


def test_the_headline_is_of_all_ranks(tmp_path):
    # 50 and 25 of 100 us are 37.5 % in the mean.
    for rank, took_us in enumerate((50, 25)):
        events = [marked(3, 0, 100), kernel(MATMUL, 0, took_us)]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document(events, rank)))
    headline = TRACE.headline(trace_steps(read_traces([tmp_path])))
    assert re.findall(r"[\d.]+(?= ms| %)", headline) == ["0.1", "37.5"]


def test_members_of_archives_that_could_lead_outside_are_not_read(tmp_path):
    path = tmp_path / "all.tar"
    content = json.dumps(document([kernel(MATMUL, 0, 1)])).encode()
    with tarfile.open(path, "w") as archive:
        for name in ("../rank1.json", "rank0.json"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    found = read_traces([path])
    assert [trace.where for trace in found.ranks] == [f"{path}:rank0.json"]
    assert "unsafe_path" in {each["kind"] for each in found.rejected.rows()}


def test_an_archive_of_traces_too_large_to_read_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "MAX_FILE_BYTES", 100)
    path = tmp_path / "all.tar"
    content = json.dumps(document([kernel(MATMUL, 0, 1)])).encode()
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("rank0.json")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    with pytest.raises(DataError, match=r"rank0\.json: .*100"):
        read_traces([path])


def test_memory_is_that_of_a_few_pieces(tmp_path):
    path = tmp_path / "trace.json"
    event = json.dumps(operator("aten::a_name_of_usual_length", 1, 1, "ac2g"))
    with path.open("w") as file:
        file.write('{"traceEvents": [' + json.dumps(kernel(MATMUL, 0, 1)))
        for _ in range(40):
            file.write("," + ",".join([event] * 5000))
        file.write("]}")
    assert path.stat().st_size > 20e6
    tracemalloc.start()
    read_traces([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6


@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(
        st.dictionaries(
            st.text(max_size=3),
            st.recursive(
                st.one_of(st.integers(-5, 5), st.text(alphabet='{},[]"\\a ', max_size=8)),
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
                ),
                max_leaves=6,
            ),
            max_size=3,
        ),
        max_size=12,
    ),
    size=st.integers(1, 80),
    indent=st.sampled_from([None, 1]),
    alone=st.booleans(),
)
@pytest.mark.law
def test_any_document_in_any_pieces_gives_its_events(events, size, indent, alone):
    whole = events if alone else {"before": {"traceEvents": [1]}, "traceEvents": events, "after": 1}
    text = json.dumps(whole, indent=indent).encode()
    stream = TraceStream(iter([text[at : at + size] for at in range(0, len(text), size)]), "x")
    assert [event for batch in stream.batches() for event in batch] == events
    assert stream.metadata == ({} if alone else {"before": {"traceEvents": [1]}, "after": 1})
    assert not stream.is_cut


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200))
@pytest.mark.law
def test_any_bytes_are_read_or_refused(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "trace.json"
    for prefix in (b"", b'{"traceEvents": [{"ph": "X"', b"\x1f\x8b\x08"):
        path.write_bytes(prefix + content)
        with contextlib.suppress(DataError):
            read_traces([path])


PROFILED = """
import sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
save = lambda profiler: profiler.export_chrome_trace(f"{folder}/rank{rank}.json.gz")
with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=3), on_trace_ready=save
) as profiler:
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        profiler.step()
dist.destroy_process_group()
"""


def test_traces_of_a_real_profiler_over_gloo_are_read(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    python = prepared_python()
    surroundings = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen([python, "-c", PROFILED, str(rank), str(tmp_path)], env=surroundings)
        for rank in (0, 1)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    ranks = read_traces([tmp_path]).ranks
    assert [(trace.rank, trace.world_size) for trace in ranks] == [(0, 2), (1, 2)]
    assert ranks
    for trace in ranks:
        assert [step.number for step in trace.steps] == [1, 2, 3]
        assert "all_reduce" in {group.partition(" ")[0] for group in trace.collectives.group}
        assert any("traced" in note for note in trace.notes)
        assert trace.steps
        for step in trace.steps:
            assert step.compute_s > 0
            assert math.fsum((step.compute_s, step.exposed_s, step.idle_s)) == pytest.approx(
                step.step_s, abs=1e-12
            )
    # Both did the same all-reduces.
    assert sorted(ranks[0].collectives.group) == sorted(ranks[1].collectives.group)
