"""Rows predicted from the same set-up on fewer accelerators: which rows pair, and how wrong they were."""

import numpy as np
import pytest

from equipoise.calibration.published.executions import read_executions
from equipoise.calibration.scale_up_rows import SCALE_UP, partners, rate_of
from equipoise.calibration.validate import validate

HEADER = "workload,hardware,n_gpus,parallel_config,tp,pp,dp,precision,micro_batch,seq,measured,unit,source\n"


@pytest.fixture
def read(tmp_path):
    """A function that gives the executions of rows written as (workload, n_gpus, micro_batch, measured, ...)."""

    def reader(*rows, unit="throughput (unit in README)"):
        path = tmp_path / "rows.csv"
        lines = []
        for workload, n_gpus, micro, measured, *rest in rows:
            precision = rest[0] if rest else "mixed"
            config = rest[1] if len(rest) > 1 else "DDP"
            lines.append(
                f'{workload},DGX A100,{n_gpus},"{config}",1,1,{n_gpus},{precision},"{micro}",,{measured},{unit},\n'
            )
        path.write_text(HEADER + "".join(lines))
        return read_executions([path])

    return reader


def _firsts(rows):
    return [None if found is None else [rows[at].measured for at in found.rows] for found in partners(rows)]


def test_a_row_pairs_with_the_fewest_accelerators_of_its_micro_batch(read):
    rows = read(
        ("jasper", 1, 32, 40),
        ("jasper", 1, 64, 50),
        ("jasper", 4, 32, 150),
        ("jasper", 8, 32, 300),
        ("jasper", 8, 64, 380),
    )
    assert _firsts(rows) == [None, None, [40], [40], [50]]


def test_precisions_do_not_mix(read):
    rows = read(("jasper", 1, 32, 40, "FP32"), ("jasper", 8, 32, 300, "mixed"))
    assert _firsts(rows) == [None, None]


def test_tables_with_the_same_names_pair_each_with_its_own(read):
    rows = read(
        ("efficientnet", 1, "", 1200),
        ("efficientnet", 8, "", 9000),
        ("efficientnet", 1, "", 165),
        ("efficientnet", 8, "", 1300),
    )
    assert _firsts(rows) == [None, [1200], None, [165]]


def test_repetitions_pair_in_their_order_and_else_by_their_mean(read):
    rows = read(("ncf", 1, "", 10), ("ncf", 1, "", 20), ("ncf", 8, "", 60), ("ncf", 8, "", 95))
    assert _firsts(rows) == [None, None, [10], [20]]
    alone = read(("ncf", 1, "", 10), ("ncf", 1, "", 40), ("ncf", 8, "", 100))
    assert partners(alone)[2].rate == pytest.approx(20)


def test_a_micro_batch_that_shrinks_pairs_where_none_stays(read):
    rows = read(("dlrm", 8, "8k", 11.4e6), ("dlrm", 1, "64k", 2.88e6))
    assert _firsts(rows) == [[2.88e6], None]


def test_the_order_of_sizes_does_not_matter_where_micro_batches_tell(read):
    rows = read(("jasper", 8, 32, 300), ("jasper", 1, 32, 40), ("jasper", 8, 64, 380), ("jasper", 1, 64, 50))
    assert _firsts(rows) == [[40], None, [50], None]


def test_accumulation_does_not_tell_set_ups_apart(read):
    rows = read(
        ("bert", 1, 88, 533, "mixed", "DDP;accum=768 and 384"),
        ("bert", 8, 88, 4202, "mixed", "DDP;accum=96 and 48"),
    )
    assert _firsts(rows) == [None, [533]]


def test_claims_pairs_of_data_parallel_rates_only(read, mine):
    rows = read(("jasper", 1, 32, 40), ("jasper", 8, 32, 300), ("resnet50", 8, 32, 900))
    assert SCALE_UP.claims(rows) == [True, True, False]
    path = mine(
        HEADER
        + "jasper,DGX A100,1,,1,1,1,mixed,8,,40,img/s,\njasper,DGX A100,8,,8,1,1,mixed,8,,300,img/s,\n",
        "tp.csv",
    )
    assert not any(SCALE_UP.claims(read_executions([path])))


def test_hardware_that_tells_its_number_is_the_same(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [
        f"resnet50,{n} x RTX 4090,{n},,1,1,{n},mixed,64,,{rate},img/s,\n" for n, rate in ((1, 900), (2, 1700))
    ]
    path.write_text(HEADER + "".join(lines))
    rows = read_executions([path])
    assert _firsts(rows) == [None, [900]]
    assert SCALE_UP.begin(rows).reasons[1] is None


def test_rates_are_over_all_accelerators(read):
    rows = read(("resnet50", 8, 32, 900), unit="img/s/GPU")
    assert rate_of(rows[0]) == pytest.approx(7200)


def test_a_prediction_lies_below_perfect_scaling_and_not_far(read):
    rows = read(("resnet50", 1, 256, 400), ("resnet50", 8, 256, 3000), unit="img/s")
    task = SCALE_UP.begin(rows)
    assert task.given == {0}
    found = task.predict(np.array([], dtype=np.intp))
    efficiency = rate_of(rows[0]) ** -1 * (256 * 8 / found.seconds[1]) / 8
    assert 0.85 < efficiency < 1.0
    assert 0.1 < found.prior_log_sd[1] < 0.3


def test_a_model_nobody_knows_is_predicted_all_the_same(read):
    rows = read(("my own net", 1, 16, 100), ("my own net", 8, 16, 700))
    task = SCALE_UP.begin(rows)
    assert task.reasons[1] is None
    assert np.isfinite(task.predict(np.array([1])).seconds[1])


def test_hardware_nobody_knows_is_a_reason(mine):
    path = mine(
        HEADER + "jasper,abacus,1,,1,1,1,mixed,8,,40,img/s,\njasper,abacus,8,,1,1,8,mixed,8,,300,img/s,\n",
        "rows.csv",
    )
    task = SCALE_UP.begin(read_executions([path]))
    assert "'abacus'" in (task.reasons[1] or "")


def test_frames_a_second_are_not_taken_for_samples(read):
    # 32 samples in half a millisecond are 32 of something else: the step is not known, and taken as usual.
    rows = read(("fastspeech", 1, 32, 63431), ("fastspeech", 8, 32, 188251), unit="mels/s")
    task = SCALE_UP.begin(rows)
    slower = task.predict(np.array([], dtype=np.intp)).seconds[1] * 63431 / 32
    assert slower == pytest.approx(1.0, abs=0.2)


@pytest.fixture(scope="module")
def table(data_dir):
    return data_dir / "measured" / "nvidia_deeplearningexamples.csv"


def test_eight_from_one_within_the_target_leaving_each_workload_out(table):
    found = validate([table], split="leave-workload-out")
    predicted = [each for each in found.verdicts if each.by == "scale_up"]
    on_eight = [each.error for each in predicted if each.row.num_accelerators == 8]
    # All 160 rows that have a partner on one: 132 with its micro-batch, for which 3.5 % is required, and 28 with less.
    assert len(on_eight) >= 160
    assert np.median(on_eight) < 0.035
    covered = [each.low <= each.row.measured <= each.high for each in predicted]
    assert 0.85 <= np.mean(covered) <= 0.97
