import contextlib
import gzip
import json
import tracemalloc
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.bench.collectives import bus_fraction
from equipoise.bench.collectives.files import named_operation, read_files
from equipoise.bench.collectives.text import tables_in
from equipoise.errors import DataError, UsageError

HEADER = (
    "#                                                              out-of-place                       in-place          \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n"
)
# Issue 44 of nccl-tests, which names its operation nowhere near; 2 ranks.
TWO_RANKS = (
    "     1048576        262144     float     sum      -1    47.38   22.13   22.13      0    46.84   22.39   22.39      0\n"
    "     2097152        524288     float     sum      -1    70.44   29.77   29.77      0    69.77   30.06   30.06      0\n"
    "     4194304       1048576     float     sum      -1    120.1   34.92   34.92      0    115.5   36.31   36.31      0\n"
)


def ranks(*hosts):
    return "".join(
        f"#  Rank {number:2} Group  0 Pid  {100 + number} on {host} device  {number} [0x0f] NVIDIA H100 80GB HBM3\n"
        for number, host in enumerate(hosts)
    )


@pytest.fixture
def read(tmp_path):
    def from_text(text, name="log.txt", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_files([path], **options)

    return from_text


def only(reading):
    assert len(reading.runs) == 1
    return reading.runs[0]


def reasons(reading):
    return {each["kind"]: each["count"] for each in reading.rejected.rows()}


# What a person reads in the files: operation, ranks, nodes, usable rows, empty rows; time of the last row in us.
SAMPLES = {
    "superbench_allreduce_8gpu.txt": ("all_reduce", 8, 1, 32, 2, (63896, 63959)),
    "superbench_alltoall_8gpu.txt": ("all_to_all", 8, 1, 29, 5, (33508, 33234)),
    "superbench_broadcast_8gpu.txt": ("broadcast", 8, 1, 32, 2, (36896, 36599)),
    "superbench_reducescatter_8gpu.txt": ("reduce_scatter", 8, 1, 29, 5, (32464, 32502)),
    "oracle_mlperf40_h100x8_run0.txt": ("all_reduce", 8, 1, 1, 0, (287.0, 287.6)),
    "coreweave_gb200_nvl72.txt": ("all_reduce", 72, None, 5, 0, (20299, 20006)),
    "coreweave_readme_1.txt": ("all_reduce", 72, None, 5, 0, (20299, 20006)),
    # "64" is in its file names, but 386.56 / 195.31 is 2 x 95 / 96.
    "coreweave_readme_0.txt": ("all_reduce", 96, None, 5, 0, (43980, 44094)),
    "nccl_tests_293_h_small_sizes.txt": ("all_reduce", 2, None, 10, 0, (22.76, 22.61)),
}


@pytest.mark.truth
@pytest.mark.parametrize("name", SAMPLES)
def test_samples_read_as_they_say(name, data_dir):
    operation, num_ranks, num_nodes, num_rows, num_empty, last_us = SAMPLES[name]
    reading = read_files([data_dir / "nccl" / name])
    run = only(reading)
    assert (run.operation, run.num_ranks, run.num_nodes) == (operation, num_ranks, num_nodes)
    assert len(run.timings) == num_rows
    assert reasons(reading) == ({"empty": num_empty} if num_empty else {})
    assert run.timings[-1].seconds == pytest.approx([each * 1e-6 for each in last_us])
    assert [each.payload_bytes for each in run.timings] == sorted(each.payload_bytes for each in run.timings)


@pytest.mark.truth
def test_interleaved_copies_are_told_apart_and_told(data_dir):
    reading = read_files([data_dir / "nccl" / "nccl_tests_182_interleaved_ranks.txt"])
    assert [[row.payload_bytes for row in run.timings] for run in reading.runs] == [
        [8, 16, 32, 64, 128, 256, 512, 1024],
        [8, 16],
    ]
    assert {run.num_copies for run in reading.runs} == {2}
    assert {run.num_ranks for run in reading.runs} == {2}
    assert "build nccl-tests with MPI=1" in reading.notes[0]


def test_rows_carry_what_is_printed(read):
    text = ranks("a", "b") + HEADER + TWO_RANKS
    row = tables_in(text.splitlines(), programs=()).tables[0].rows[0]
    assert (row.dtype, row.redop, row.line) == ("float", "sum", 6)
    run = only(read(text))
    assert (run.num_ranks, run.num_nodes) == (2, 2)
    timing = run.timings[0]
    assert (timing.payload_bytes, timing.num_wrong) == (1048576, 0)
    assert (timing.out_of_place_s, timing.in_place_s) == pytest.approx((47.38e-6, 46.84e-6))
    assert timing.resolution == pytest.approx(0.005 / 47, rel=0.01)


@pytest.mark.parametrize(
    "tag",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "0: ",
        "2025-05-22T07:36:17.1Z stdout F ",
        "worker-0 | ",
        "[pod/x/y] ",
    ],
)
def test_tags_of_launchers_are_passed_over(tag, read):
    text = ranks("a", "a") + HEADER + TWO_RANKS
    run = only(read("".join(f"{tag}{line}\n" for line in text.splitlines())))
    assert (run.operation, run.num_ranks, run.num_nodes, len(run.timings)) == ("all_reduce", 2, 1, 3)


def test_a_launcher_that_tags_every_piece_of_a_row_is_read(read):
    # As in issue 1453 of nccl: each piece that is printed is tagged.
    text = "".join(
        f"[0]{line[:52]}[0]{line[52:84]}[0]{line[84:]}\n" for line in (HEADER + TWO_RANKS).splitlines()
    )
    assert len(only(read(text)).timings) == 3


def test_lines_of_the_library_inside_the_table_are_passed_over(read):
    info = "node1:3442:3442 [0] NCCL INFO Launch mode Parallel"
    first, *rest = TWO_RANKS.splitlines()
    head, tail = first[:52], first[52:]
    for broken in (f"{info}\n{first}\n", f"{head}{info}\n{info}\n{tail}\n", f"{head}\n{info}\n{tail}\n"):
        run = only(read(HEADER + broken + "\n".join(rest)))
        assert [row.payload_bytes for row in run.timings] == [2**20, 2**21, 2**22]
        assert run.timings[0].seconds == pytest.approx((47.38e-6, 46.84e-6))


def test_a_table_without_head_tail_or_hashes_is_read(read):
    assert len(only(read(TWO_RANKS)).timings) == 3
    assert only(read((ranks("a", "a") + HEADER + TWO_RANKS).replace("#", " "))).num_nodes == 1


OLD = "     1048576        262144   float     sum    74.78   14.02   24.54  2e-07    76.17   13.77   24.09    N/A\n"


def test_the_oldest_layout_has_errors_and_no_count_of_wrong_elements(read):
    run = only(read(OLD))
    assert (run.operation, run.num_ranks) == ("all_reduce", 8)
    assert run.timings[0].num_wrong is None


def test_columns_of_single_iterations_are_passed_over(read):
    extra = "    46.01    50.12    49.90     2.11"
    lines = [f"{line[:84]}{extra}{line[84:]}{extra}" for line in TWO_RANKS.splitlines()]
    run = only(read("\n".join(lines)))
    assert run.timings[0].seconds == pytest.approx((47.38e-6, 46.84e-6))
    stamped = only(read("\n".join(f"{line}  2026-11-02 10:11:12" for line in lines)))
    assert stamped.timings == run.timings


def test_the_count_tells_operations_apart_that_print_alike(read):
    # 8 ranks: the count of a reduce-scatter is a rank's part; busbw is 7/8 of algbw.
    row = "    33554432       1048576     float     sum      -1    240.5  139.50  122.06      0    240.8  139.33  121.91      0\n"
    run = only(read(row))
    assert (run.operation, run.num_ranks) == ("reduce_scatter", 8)


NO_REDOP = "    33554432       1048576     float    none      -1    240.5  139.50  122.06      0    240.8  139.33  121.91      0\n"


def test_what_the_columns_leave_open_is_asked_for(read):
    assert reasons(read(NO_REDOP)) == {"unknown": 1}
    assert "all_gather, all_to_all" in read(NO_REDOP).rejected.rows()[0]["first"]
    assert only(read(NO_REDOP, operation="all_gather")).operation == "all_gather"
    assert "as all_gather.txt" in read(NO_REDOP).rejected.rows()[0]["first"]
    assert only(read(NO_REDOP, name="all_gather.txt")).operation == "all_gather"
    assert only(read(NO_REDOP, name="run_alltoall_2.log")).operation == "all_to_all"
    assert only(read("$ ./build/all_gather_perf -b 32M -g 8\n" + NO_REDOP)).operation == "all_gather"
    assert only(read("# Collective test starting: alltoall_perf\n" + NO_REDOP)).operation == "all_to_all"
    # What the columns rule out is not believed: a file may be misnamed.
    assert only(read(TWO_RANKS, name="alltoall.txt")).operation == "all_reduce"


# Issue 214 of nccl-tests: what sendrecv_perf printed on two nodes, with `sum` though it reduces nothing; not checked in place.
SEND = (
    "        8192          2048     float     sum      -1    31.76    0.26    0.26      0    31.59    0.26    0.26    N/A\n"
    "     8388608       2097152     float     sum      -1   1100.2    7.62    7.62      0   1099.0    7.63    7.63    N/A\n"
)


def test_a_send_between_two_ranks_is_no_all_reduce(read):
    assert only(read(ranks("a", "b") + HEADER + SEND)).operation == "send"
    assert only(read(ranks("a", "b") + HEADER + SEND.replace("N/A", "  0"))).operation == "all_reduce"
    assert only(read(ranks("a", "b", "c") + HEADER + SEND, name="sendrecv.txt")).num_ranks == 3
    named = only(read("# Collective test starting: sendrecv_perf\n" + ranks("a", "b") + HEADER + SEND))
    assert (named.operation, named.num_nodes) == ("send", 2)
    # Without a check nothing tells them apart.
    unchecked = SEND.replace("      0   ", "    N/A   ")
    assert "all_reduce, send" in read(ranks("a", "b") + HEADER + unchecked).rejected.rows()[0]["first"]


def test_several_runs_in_one_log_stay_apart(read):
    text = ranks("a", "a") + HEADER + TWO_RANKS + "# Avg bus bandwidth    : 28.2 \n"
    reading = read(text + text.replace("on a", "on b").replace(" 1 Group", " 1 Group"))
    assert [(run.number, len(run.timings), run.num_copies) for run in reading.runs] == [(1, 3, 1), (2, 3, 1)]


def test_cycles_of_one_run_are_repetitions(read):
    reading = read(HEADER + TWO_RANKS * 3)
    assert [row.payload_bytes for row in only(reading).timings] == [2**20, 2**21, 2**22] * 3
    assert reading.notes == ()


def test_copies_that_announce_themselves_are_told(read):
    twice = "".join(line + line.replace("Pid  1", "Pid  2") for line in ranks("a").splitlines(keepends=True))
    assert read(twice + HEADER + TWO_RANKS).runs[0].num_copies == 2


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("     1048576  262144  float  sum  -1   47.38   22.13   22.13    5    46.84   22.39   22.39   0", "wrong_results", "#wrong"),
        ("     1048576  262144  float  sum  -1   47.38   22.13   22.1x    0    46.84   22.39   22.39   0", "broken_row", "'22.1x'"),
        ("     1048576  262144  float  sum  -1   47.38   22.13", "broken_row", "columns"),
        ("           0       0  float  sum  -1   47.38    0.00    0.00    0    46.84    0.00    0.00   0", "empty", "sent"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_used_are_counted_with_the_reason(line, kind, words, read):
    reading = read(HEADER + TWO_RANKS + line + "\n")
    assert len(only(reading).timings) == 3
    assert reasons(reading) == {kind: 1}
    assert words in reading.rejected.rows()[0]["first"]
    assert reading.rejected.rows()[0]["where"].endswith("log.txt:7")


def test_times_of_the_host_are_refused(read):
    reading = read(HEADER.replace("   time", "cputime") + TWO_RANKS)
    assert (reading.runs, reasons(reading)) == ((), {"host_time": 3})


def test_one_rank_is_refused_with_the_reason(read):
    row = "     1048576        262144     float     sum      -1    5.38    194.9    0.00      0    0.84   1248.3    0.00      0\n"
    assert "MPI=1" in read(row).rejected.rows()[0]["first"]


def test_scientific_notation_keeps_its_resolution(read):
    row = " 17179869184    4294967296     float     sum      -1  1.2e+06   14.32   14.32      0  1.2e+06   14.32   14.32      0\n"
    timing = only(read(row)).timings[0]
    assert timing.seconds == pytest.approx((1.2, 1.2))
    assert timing.resolution == pytest.approx(0.05 / 1.2)


@settings(max_examples=60, deadline=None)
@given(
    num_ranks=st.integers(2, 2048),
    operation=st.sampled_from(["all_reduce", "reduce_scatter"]),
    gb_per_s=st.floats(0.05, 900),
    latency_us=st.floats(1, 500),
    powers=st.lists(st.integers(3, 33), min_size=1, max_size=6, unique=True),
)
@pytest.mark.law
def test_ranks_are_never_told_wrong(  # noqa: PLR0917 - what hypothesis draws
    num_ranks, operation, gb_per_s, latency_us, powers, tmp_path_factory
):
    lines = []
    for power in sorted(powers):
        parts = num_ranks if operation == "reduce_scatter" else 1
        size = max(1, 2**power // (4 * parts)) * 4 * parts
        time_us = latency_us + size / gb_per_s / 1e3
        algbw = size / time_us / 1e3
        busbw = algbw * bus_fraction(operation, num_ranks)
        side = f"  {_float(time_us, 7)}  {_float(algbw, 6)}  {_float(busbw, 6)}      0"
        lines.append(f"{size:12}  {size // 4 // parts:12}  {'float':>8}  {'sum':>6}  {-1:6}{side}{side}")
    path = tmp_path_factory.mktemp("law") / "log.txt"
    path.write_text("\n".join(lines))
    reading = read_files([path])
    assert {(run.operation, run.num_ranks) for run in reading.runs} <= {(operation, num_ranks)}
    assert reading.num_rows + sum(each["count"] for each in reading.rejected.rows()) == len(lines)


def _float(value, width):
    """As nccl-tests fits a number into its column."""
    for decimals in (2, 1, 0):
        if len(text := f"{value:{width}.{decimals}f}") <= width:
            return text
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


def document(**changes):
    """As src/util.cu of nccl-tests writes it."""
    side = {"time": 47.38, "alg_bw": 22.131, "bus_bw": 22.131, "nwrong": 0.0}
    result = {
        "size": 1048576,
        "count": 262144,
        "type": "float",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": side,
        "in_place": {**side, "time": 46.84, "alg_bw": 22.386, "bus_bw": 22.386},
        "actual_iterations": 20,
        "experiment_name": "",
    }
    device = {"group": 0, "pid": 7, "device": 0, "device_hex": "0x0f", "device_info": "NVIDIA L4"}
    config = {
        "nthreads": 1,
        "ngpus": 1,
        "devices": [{**device, "rank": at, "hostname": f"h{at}"} for at in (0, 1)],
    }
    return {
        "version": 3,
        "args": ["/opt/all_reduce_perf", "-b", "1M"],
        "env": ["AWS_SECRET_ACCESS_KEY=hunter2", "HOME=/home/x"],
        "nccl_version": 22807,
        "config": config,
        "results": [result],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 22.2, "okay": "unchecked"},
    } | changes


def test_json_says_the_same_as_text(read):
    run = only(read(json.dumps(document()), name="out.json"))
    assert (run.operation, run.num_ranks, run.num_nodes, run.device) == ("all_reduce", 2, 2, "NVIDIA L4")
    assert run.timings[0].seconds == pytest.approx((47.38e-6, 46.84e-6))
    assert run.timings[0].num_wrong == 0


def test_the_environment_in_json_never_comes_out(read):
    assert "hunter2" not in repr(read(json.dumps(document())))
    with pytest.raises(DataError) as refused:
        read(json.dumps(document())[:-1])
    assert "hunter2" not in str(refused.value)


def test_json_of_more_ranks_than_there_are_is_read_to_the_most(read):
    # A few hundred bytes that promise eight times a million ranks.
    config = document()["config"] | {"nthreads": 1024, "ngpus": 1024}
    config["devices"] = [{**config["devices"][0], "rank": 2_000_000 * at} for at in range(8)]
    tracemalloc.start()
    try:
        read(json.dumps(document(config=config)))
        assert tracemalloc.get_traced_memory()[1] < 256e6
    finally:
        tracemalloc.stop()


def test_json_of_processes_with_several_devices_lists_the_first_of_each(read):
    config = document()["config"] | {"ngpus": 4}
    config["devices"][1]["rank"] = 4
    results = document()["results"]
    for side in ("out_of_place", "in_place"):
        results[0][side]["bus_bw"] *= 1.75
    run = only(read(json.dumps(document(config=config, results=results))))
    assert (run.num_ranks, run.num_nodes) == (8, 2)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"out_of_place": None, "in_place": {"time": "nan", "bus_bw": 0.0}}, "untimed"),
        ({"size": "much"}, "broken_row"),
        ({"out_of_place": [1]}, "broken_row"),
        ({"size": 1e300}, "broken_row"),
        ({"size": True}, "broken_row"),
    ],
)
def test_odd_results_in_json_are_counted(change, kind, read):
    whole = document()
    whole["results"].append(whole["results"][0] | change)
    reading = read(json.dumps(whole), name="x.json")
    assert reasons(reading) == {kind: 1}
    assert reading.num_rows == 1


def test_launch_times_in_json_are_refused(read):
    whole = document()
    for side in ("out_of_place", "in_place"):
        whole["results"][0][side]["cpu_time"] = whole["results"][0][side].pop("time")
    assert reasons(read(json.dumps(whole))) == {"host_time": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "nccl-tests"),
        (b"\x00\x01\x02" * 500, "nccl-tests"),
        (b"hello\n" * 10, "nccl-tests"),
        (b"{}", "`results`"),
        (b"[1]", "nccl-tests"),
        (b'{"results": [' + b"[" * 5000, "JSON"),
        (partial(gzip.compress, bytes(2**27), 1), "more than"),  # packed where it is used
        (b"\x1f\x8b\x08garbage", "gzip"),
        (b"PK\x03\x04....", "unpack"),
    ],
)
def test_files_that_hold_no_collectives_are_refused_in_one_sentence(content, words, read):
    with pytest.raises(DataError) as refused:
        read(content() if callable(content) else content)
    assert words in str(refused.value)
    assert "log.txt" in str(refused.value)
    assert len(str(refused.value)) < 600


def test_compressed_and_powershell_logs_are_read(read):
    assert len(only(read(gzip.compress(TWO_RANKS.encode()))).timings) == 3
    assert len(only(read(TWO_RANKS.encode("utf-16"))).timings) == 3


def test_a_folder_or_missing_file_is_an_error_of_input(tmp_path):
    with pytest.raises((DataError, OSError)):
        read_files([tmp_path / "no.txt"])
    with pytest.raises((DataError, OSError)):
        read_files([tmp_path])


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="0123456789 .-N/A#floatsum\n:[],<>e+\x1b", max_size=400))
@pytest.mark.law
def test_any_text_is_read_or_refused(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_text(text + TWO_RANKS[:117])
    with contextlib.suppress(DataError):
        read_files([path])


def test_names_of_operations_are_checked():
    assert named_operation("reduce-scatter") == "reduce_scatter"
    with pytest.raises(UsageError, match=r"'allgathered'.* all_gather, all_reduce"):
        named_operation("allgathered")


def test_fits_without_their_timings_are_refused(mine):
    path = mine(json.dumps({"schema": "equipoise.collectives/1", "fits": [], "rejected": []}), "fits.json")
    with pytest.raises(DataError, match=r"fits\.json: .*`results`.*timings"):
        read_files([path])
