"""Logs to facts: each dialect and each trap on lines as they occur in the published rounds."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.runs.readers.mlperf import stated_progress
from equipoise.runs.readers.mlperf.dialects import MAX_LINE_BYTES, finite, loose_value, tolerant_json
from equipoise.runs.readers.mlperf.log import read_log


def event(key: str, time_ms: float, value: object = None, **metadata: object) -> bytes:
    """A line as mllog writes it."""
    body = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return (
        b":::MLLOG " + orjson.dumps(body | {"metadata": {"file": "train.py", "lineno": 7} | metadata}) + b"\n"
    )


START, STOP = event("run_start", 1000), event("run_stop", 61000, status="success")


def test_precision_and_axes_are_read_as_rounds_since_v6_state_them():
    # Keys of mlperf-logging 4.1.68; compliance rules of v6.1 ask for each exactly once.
    stated = {
        "lowest_numerical_precision_in_linear": "bfloat16",
        "tensor_parallelism": 4,
        "pipeline_parallelism": 8,
        "context_parallelism": 1,
        "expert_parallelism": 2,
        "micro_batch_size": 1,
    }
    log = read_log(START + b"".join(event(key, 1001, value) for key, value in stated.items()) + STOP)
    assert log.precision == "bf16"
    assert log.strategy == "tp=4 pp=8 ep=2 microbatch=1"
    # AMD's logs of v6.0 have another name of the key, and precisions of four bits one name here.
    assert (
        read_log(START + event("lowest_numerical_precision_linear", 1001, "mxfp4") + STOP).precision == "fp4"
    )
    odd = {"lowest_numerical_precision_in_linear": ["fp8"], "tensor_parallelism": -3, "micro_batch_size": "x"}
    log = read_log(START + b"".join(event(key, 1001, value) for key, value in odd.items()) + STOP)
    assert (log.precision, log.strategy) == (None, None)


# --- dialects ---------------------------------------------------------------------------------------------------

V05 = b"""\
:::MLPv0.5.0 resnet 1541720386.943280935 (/workspace/image_classification/mlperf_log_utils.py:49) run_start
:::MLPv0.5.0 resnet 1541720387.120800018 (/workspace/image_classification/mlperf_log_utils.py:49) input_batch_size: 208
:::MLPv0.5.0 resnet 1541720417.401012659 (/workspace/image_classification/mlperf_log_utils.py:49) eval_target: 0.749
:::MLPv0.5.0 resnet 1541720418.665303707 (/workspace/image_classification/mlperf_log_utils.py:49) train_epoch: 0
:::MLPv0.5.0 resnet 1541728362.284360886 (/workspace/image_classification/mlperf_log_utils.py:49) train_epoch: 62
:::MLPv0.5.0 resnet 1541728494.857531309 (/workspace/image_classification/mlperf_log_utils.py:49) eval_accuracy: {"value": 0.75142, "epoch": 62}
:::MLPv0.5.0 resnet 1541728494.858387232 (/workspace/image_classification/mlperf_log_utils.py:49) run_stop
"""


def test_v05_counts_seconds_and_numbers_epochs_from_zero():
    log = read_log(V05)
    assert log.dialect == "MLPv0.5"
    assert log.time_to_train_s == pytest.approx(1541728494.858387232 - 1541720386.943280935)
    assert log.run_stop_line == 7
    assert stated_progress(log)["epoch_num"] == 63
    assert not log.missed_target
    assert log.global_batch is None  # 208 is the batch of one of eight workers


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
def test_a_log_in_utf16_is_read_as_one_in_utf8(order):
    log = START + STOP
    assert (
        read_log(f"\ufeff{log.decode()}".encode(order)).time_to_train_s == read_log(log).time_to_train_s == 60
    )


def test_v05_without_a_status_fails_below_its_own_target():
    assert read_log(V05.replace(b"0.75142", b"0.74142")).missed_target


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        (b'{"success": true}', "success"),
        (b'{"success": "true"}', "success"),  # Google's TPU logs
        (b'{"success": false}', "failed"),
    ],
)
def test_v05_states_success_in_the_value(stop, status):
    assert read_log(V05.replace(b"run_stop\n", b"run_stop: " + stop + b"\n")).status == status


def test_v05_evaluations_one_behind_count_by_the_epochs_trained():
    lines = (
        b":::MLPv0.5.0 transformer 1541702851.20 (train.py:40) run_start\n"
        b":::MLPv0.5.0 transformer 1541702865.33 (train.py:116) train_epoch: 0\n"
        b":::MLPv0.5.0 transformer 1541703680.39 (train.py:116) train_epoch: 3\n"
        b':::MLPv0.5.0 transformer 1541703951.02 (train.py:152) eval_accuracy: {"epoch": 2, "value": 25.5454}\n'
    )
    assert stated_progress(read_log(lines))["epoch_num"] == 4


V06 = b"""\
:::MLL 1560881700.827 submission_benchmark: {"value": "resnet", "metadata": {"lineno": 226, "file": "mlperf_log_utils.py"}}
:::MLL 1560881721.098 init_start: {"metadata": {"file": "train_imagenet.py", "lineno": 83}, "value": null}
:::MLL 1560881741.5 init_stop: {"metadata": {"file": "train_imagenet.py", "lineno": 83}, "value": null}
:::MLL 1560881742.0 run_start: {"value": null, "metadata": {"lineno": 614, "file": "fit.py"}}
:::MLL 1560888647.860 eval_start: {"value": null, "metadata": {"lineno": 956, "epoch_num": 60, "file": "common/fit.py"}}
:::MLL 1560888652.055 eval_stop: {"value": null, "metadata": {"lineno": 977, "epoch_num": 60, "file": "common/fit.py"}}
:::MLL 1560888652.055 eval_accuracy: {"value": 0.762, "metadata": {"lineno": 980, "epoch_num": 60, "file": "common/fit.py"}}
:::MLL 1560888652.056 run_stop: {"value": null, "metadata": {"lineno": 987, "status": "success", "file": "common/fit.py"}}
"""


def test_v06_has_the_key_before_the_json():
    log = read_log(V06)
    assert (log.dialect, log.status, log.submission["benchmark"]) == ("MLL", "success", "resnet")
    assert log.time_to_train_s == pytest.approx(6910.056)
    assert log.shares.eval_s == pytest.approx(4.195)
    assert log.init_start_s == pytest.approx(1560881721.098)


def test_v06_intel_mixes_quotes_and_bare_words():
    lines = (
        b":::MLL 1560873515.984077135 cache_clear: {value: true, metadata: {lineno: 0, file: manual}}\n"
        b":::MLL 1560873710.141025 run_start: {\"value\": null, \"metadata\": {'lineno': 615, 'file': 'ml_perf/ref.py'}}\n"
        b":::MLL 1560875622.040032 eval_result: {\"value\": null, \"metadata\": {'lineno': 52, 'iteration': 14, 'timestamp': 746.014}}\n"
        b":::MLL 1560875622.040346 run_stop: {\"value\": null, \"metadata\": {'lineno': 53, 'status': 'success'}}\n"
    )
    log = read_log(lines)
    assert (log.status, log.eval_result_s, log.num_corrupt) == ("success", 746.014, 0)


def test_v06_alibaba_has_dates_and_percent():
    lines = (
        b"MLPerf: resnet [06/13/19 00:30:56], run_start\n" * 12
        + b"MLPerf: resnet [06/13/19 00:30:57], run_set_random_seed:2019\n"
        + b"MLPerf: resnet [06/13/19 00:30:57], run_start\n"
        + b"MLPerf: resnet [06/13/19 00:31:00], train_epoch:0\n"
        + b"MLPerf: resnet [06/13/19 00:55:03], train_epoch:79\n"
        + b'MLPerf: resnet [06/13/19 00:55:21], eval_accuracy: {"value": 75.98000%, "epoch": 79}\n'
        + b"MLPerf: resnet [06/13/19 00:55:21], run_stop\n"
        + b"MLPerf: resnet [06/13/19 00:55:21], Total runtime: 24.409763 minutes\n"
    )
    log = read_log(lines)
    assert log.time_to_train_s == 24 * 60 + 24  # the last of fourteen run_start lines
    assert stated_progress(log)["epoch_num"] == 80


def test_v07_alibaba_states_seconds():
    lines = (
        b':::MLLOG {"value": null, "key": "run_start", "namespace": "", "time_s": 1593354412.910, "metadata": {} }\n'
        b':::MLLOG {"value": null, "key": "run_stop", "time_s": 1593354661.616, "metadata": {"status": "success"} }\n'
    )
    assert read_log(lines).time_to_train_s == pytest.approx(248.706)


def test_v51_llama31_8b_counts_samples():
    lines = (
        event("global_batch_size", 1, 32)
        + START
        + event("block_start", 1000, samples_count=0, step=0)
        + event("block_stop", 41000, samples_count=12288, step=384)
        + event("eval_start", 41000, samples_count=12288, step=384)
        + event("eval_accuracy", 51000, 3.29, samples_count=12288, step=384)
        + event("eval_stop", 51000, samples_count=12288, step=384)
        + event("tracked_stats", 51000, {"throughput": 18.2, "train_loss": 3.3}, step=384)
        + STOP
    )
    log = read_log(lines)
    assert log.progress == {"samples_count": 12288, "step": 384}
    assert (log.shares.eval_s, log.shares.eval_outside_s, log.shares.train_block_s) == (10, 10, 40)
    assert (log.global_batch, log.reported_throughput) == (32, 18.2)


# --- the clock --------------------------------------------------------------------------------------------------


def test_the_clock_runs_from_the_last_start_before_the_first_stop():
    lines = event("run_start", 0) * 3 + START + STOP + event("run_start", 70000)
    lines += event("run_stop", 99000, status="aborted")
    log = read_log(lines)
    assert (log.time_to_train_s, log.status) == (60, "success")
    assert log.run_stop_line == 5


def test_lines_count_as_an_editor_counts_them():
    noise = b"step 1\rstep 2\rstep 3\n\n\x00\xff\n"
    log = read_log(noise + START + noise + STOP)
    assert log.run_stop_line == 8


def test_order_in_the_file_counts_not_the_time_stamps():
    later = event("eval_accuracy", 500, 0.7, epoch_num=3)  # a stamp before its predecessor's
    log = read_log(START + event("eval_accuracy", 60000, 0.6, epoch_num=2) + later + STOP)
    assert log.progress == {"epoch_num": 3}


def test_results_after_the_stop_do_not_count():
    log = read_log(
        START + event("eval_accuracy", 9, 0.6, epoch_num=2) + STOP + event("eval_accuracy", 9, 1, epoch_num=9)
    )
    assert log.progress == {"epoch_num": 2}


def test_a_log_without_stop_has_no_time_and_knows_its_length():
    log = read_log(START + b"killed")
    assert (log.time_to_train_s, log.run_stop_line, log.num_lines) == (None, None, 2)


def test_the_first_init_of_any_rank_counts():
    log = read_log(
        event("init_start", 500) + event("init_start", 200) + event("init_stop", 900) + START + STOP
    )
    assert (log.init_start_s, log.init_stop_s) == (0.2, 0.9)


# --- traps ------------------------------------------------------------------------------------------------------

CORRUPT = (
    b':::MLLOG {"namespace": "", "time_ms": 1727545378246, "event_type": "INTERVAL_START", "key": "init_start", '
    b'"value": nullLambdaorkspace/ft-llm/custom_callbacks.py", "lineno": 207}}\n'
)


def test_one_corrupt_line_is_counted_and_located():
    log = read_log(START + b"noise\n" + CORRUPT + STOP)
    assert (log.num_corrupt, log.first_corrupt_line, log.time_to_train_s) == (1, 3, 60)


def test_the_last_token_of_a_line_counts():
    torn = b':::MLLOG {"namespace": "", "ti' + START
    log = read_log(b"[0] some rank: " + torn + STOP)
    assert (log.num_corrupt, log.time_to_train_s) == (0, 60)


def test_windows_line_ends_and_latin1_are_read():
    text = (START + event("submission_org", 1, "Müller") + STOP).decode().encode("latin-1")
    log = read_log(text.replace(b"\n", b"\r\n"))
    assert (log.num_corrupt, log.time_to_train_s, log.submission["org"]) == (0, 60, "Müller")


def test_nan_is_legal_in_a_log_and_never_a_fact():
    lines = START + event("eval_accuracy", 9, 0, epoch_num=1).replace(b'"value":0', b'"value":NaN') + STOP
    lines = lines.replace(b'"epoch_num":1', b'"epoch_num":NaN')
    log = read_log(lines + event("global_batch_size", 1, 0).replace(b'"value":0', b'"value":Infinity'))
    assert (log.num_corrupt, log.global_batch, log.progress) == (0, None, {})


@pytest.mark.parametrize(
    "line",
    [
        b':::MLLOG {"key": ' + b"[" * 100_000 + b"\n",
        b":::MLLOG " + b"9" * 100_000 + b"\n",
        b':::MLLOG {"key": "run_start", "time_ms": ' + b"9" * 5000 + b"}\n",
        b":::MLLOG " + b"x" * (MAX_LINE_BYTES + 1) + b"\n",
        b":::MLLOG null\n",
        b':::MLLOG ["run_start"]\n',
        b':::MLLOG {"key": ["run_start"], "time_ms": 1}\n',
        b':::MLLOG {"time_ms": 1}\n',
    ],
)
def test_a_hostile_line_is_one_corrupt_line(line):
    log = read_log(START + line + STOP)
    assert (log.num_corrupt, log.time_to_train_s) == (1, 60)


@pytest.mark.parametrize(
    "line",
    [
        event("cache_clear", 1, "a text with :::MLLOG inside"),
        b':::MLLOG {"key": "cache_clear", "value": true}\n',
    ],
    ids=["token inside", "no time"],
)
@pytest.mark.parametrize("beside", [b"", event("tracked_stats", 1, 0).replace(b":0,", b":NaN,"), CORRUPT])
def test_a_line_means_the_same_whatever_stands_beside_it(line, beside):
    alone = read_log(START + beside + STOP)
    assert read_log(START + beside + line + STOP).num_corrupt == alone.num_corrupt


def test_huge_numbers_are_no_facts():
    log = read_log(START + event("global_batch_size", 1, 7).replace(b":7,", b":" + b"9" * 400 + b",") + STOP)
    assert log.global_batch is None


@pytest.mark.parametrize("time_ms", [1e300, -1e300, 2.0**63])
def test_times_that_no_clock_shows_are_no_times(time_ms):
    log = read_log(START + event("run_stop", time_ms, status="success"))
    assert log.time_to_train_s is None


def test_text_without_tokens_is_no_log():
    log = read_log(b"\x00" * 1000 + b"hello\n")
    assert (log.dialect, log.num_events) == (None, 0)


@given(st.binary(max_size=400))
def test_bytes_of_any_kind_never_raise(noise):
    for token in (
        b":::MLLOG ",
        b":::MLL 12.5 eval_accuracy: ",
        b":::MLPv0.5.0 ncf 12.5 (a:1) eval: ",
        b"MLPerf: ",
    ):
        read_log(token + noise)


@given(st.lists(st.sampled_from([*b"{}[]:,\"'ab1 "])))
def test_loose_values_of_any_kind_never_raise(characters):
    loose_value(bytes(characters))


def test_json_texts_are_read_with_their_limits():
    assert tolerant_json(b'{"a": NaN}') is not None
    assert tolerant_json(b"[" * 100_000) is None
    assert tolerant_json(b"9" * 100_000) is None
    assert finite("1e400") is None


# --- spans ------------------------------------------------------------------------------------------------------


def test_ranks_that_repeat_a_span_do_not_lengthen_it():
    starts = event("eval_start", 10000, epoch_num=1) + event("eval_start", 10100, epoch_num=1)
    stops = event("eval_stop", 12000, epoch_num=1) + event("eval_stop", 12200, epoch_num=1)
    assert read_log(START + starts + stops + STOP).shares.eval_s == 2


def test_blocks_that_overlap_are_separated_by_their_epoch():
    # Google's v0.6 logs open the next block before they close the last.
    lines = (
        START
        + event("block_start", 2000, first_epoch_num=56, epoch_count=4)
        + event("block_start", 10000, first_epoch_num=60, epoch_count=4)
        + event("block_stop", 11000, first_epoch_num=56)
        + event("block_stop", 30000, first_epoch_num=60)
        + STOP
    )
    assert read_log(lines).shares.train_block_s == 28


def test_starts_and_stops_numbered_apart_still_pair():
    lines = (
        START
        + event("block_start", 2000, samples_count=0)
        + event("block_stop", 9000, samples_count=384)
        + STOP
    )
    assert read_log(lines).shares.train_block_s == 7


def test_evaluation_that_is_logged_at_one_instant_took_no_time():
    # Stable Diffusion is evaluated after training; its logs mark the instants only.
    lines = START + event("eval_start", 9000, step_num=1) + event("eval_stop", 9000, step_num=1) + STOP
    assert read_log(lines).shares.eval_s == 0


def test_spans_outside_the_clock_do_not_count():
    lines = event("eval_start", 0, epoch_num=0) + START + event("eval_stop", 3000, epoch_num=0)
    assert read_log(lines + STOP).shares.eval_s == 2


def test_epochs_stand_in_for_blocks_where_a_log_has_none():
    lines = START + event("epoch_start", 1000, epoch_num=0) + event("epoch_stop", 21000, epoch_num=0)
    lines += event("eval_start", 21000, epoch_num=1) + event("eval_stop", 25000, epoch_num=1) + STOP
    shares = read_log(lines).shares
    assert (shares.train_block_s, shares.eval_outside_s) == (20, 4)


def test_a_log_without_blocks_does_not_split_evaluation():
    shares = read_log(
        START + event("eval_start", 21000, epoch_num=1) + event("eval_stop", 25000, epoch_num=1) + STOP
    ).shares
    assert (shares.eval_s, shares.eval_outside_s, shares.train_block_s) == (4, None, None)


# --- checkpoints ------------------------------------------------------------------------------------------------


def test_stable_diffusion_stops_at_the_first_checkpoint_that_meets_both_targets():
    def results(samples: int, fid: float, clip: float) -> bytes:
        return event("eval_error", 9, fid, samples_count=samples, metric="FID") + event(
            "eval_accuracy", 9, clip, samples_count=samples, metric="CLIP"
        )

    # Measured after training, hence in any order: the last line is not the last checkpoint.
    log = read_log(
        START + results(3072, 80, 0.16) + results(2048, 89.9, 0.15) + results(1024, 95, 0.2) + STOP
    )
    assert stated_progress(log)["samples_count"] == 2048
