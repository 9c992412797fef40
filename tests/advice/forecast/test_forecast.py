"""The join of evidence: laws recovered by hand, published groups, a user's file, prices; and refusals."""

import math

import numpy as np
import polars as pl
import pytest

from equipoise.advice.forecast.answer import Inquiry, Terms
from equipoise.advice.forecast.forecast import forecast, forecasts
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.runs.readers.measurements import Measurements
from equipoise.runs.schema import SCORES
from equipoise.runs.store import polars_schema

H100, A100 = "h100-sxm5-80gb", "a100-sxm4-80gb"
SERIAL_S, PARALLEL_S = 10.0, 1000.0


def amdahl_s(size):
    """T = 10 s + 1000 s / N."""
    return SERIAL_S + PARALLEL_S / np.asarray(size, dtype=float)


def measured(sizes, times_s, *, is_time_to_train=True):
    return Measurements(
        where="mine.csv",
        work="the whole training",
        is_time_to_train=is_time_to_train,
        num_accelerators=np.asarray(sizes, dtype=float),
        time_s=np.asarray(times_s, dtype=float),
        entry=None,
        global_batch_samples=np.full(len(sizes), math.nan),
        notes=(),
    )


def entry(round_, accelerator, size, score_s, *, workload="bert", division="closed"):
    """One scored entry, as far as a forecast looks."""
    return {
        "entry_id": f"{round_}/somebody/{accelerator}_{size}/{workload}",
        "campaign": round_,
        "division": division,
        "workload": workload,
        "accelerator": accelerator,
        "num_accelerators": size,
        "score_s": score_s,
        "source_uri": f"somebody/results/{accelerator}_{size}/{workload}",
        "source_line": 7,
    }


def table(*rows):
    return pl.DataFrame(rows, schema=polars_schema(SCORES))


def published(*, later_s=None):
    """Three rounds of one workload: T = 12,000 s / N^0.9, a fifth less a round, A100 twice as slow."""
    rows = []
    for age, round_ in enumerate(("v2.0", "v2.1", "v3.0")):
        for accelerator, factor in ((H100, 1.0), (A100, 2.0)):
            for size in (8, 16, 32, 64, 128, 256):
                score_s = 12_000.0 * 0.8**age * factor / size**0.9
                rows.append(entry(round_, accelerator, size, score_s))
    held_out = [row for row in rows if (row["campaign"], row["accelerator"]) != ("v3.0", H100)]
    own = [row for row in rows if row not in held_out and row["num_accelerators"] <= 64]
    later = [] if later_s is None else [entry("v3.1", A100, size, later_s) for size in (8, 16, 64, 512)]
    return table(*held_out, *own, *later)


SIZES = tuple(2**power for power in range(10))


# Laws on the user's own times


def test_amdahl_by_hand():
    found = forecast(table(), Inquiry(law="amdahl", sizes=(64, 1024)), own=measured(SIZES, amdahl_s(SIZES)))
    inside, beyond = found.ground.foretold
    assert inside.time.value == pytest.approx(25.625, rel=0.01)
    assert inside.time.low < 25.625 < inside.time.high
    assert inside.in_domain
    assert beyond.time.value == pytest.approx(10.9765625, rel=0.02)
    assert not beyond.in_domain
    assert beyond.outside == "2 times beyond the largest measured size, 512"
    assert found.ground.law.values == pytest.approx(
        {"serial_s": SERIAL_S, "parallel_s": PARALLEL_S}, rel=1e-6
    )
    points = {each.kind: each for each in found.equilibria}
    # Largest E S: T + 2 N T' = 0, N = parallel / serial. Doubling gains half: N = parallel / (2 serial).
    # Half the efficiency: serial N + parallel = 2 (serial + parallel).
    for kind, size in (("balance", 100), ("marginal", 50), ("floor", 102)):
        assert points[kind].num_accelerators == pytest.approx(size, rel=0.04), kind
        assert points[kind].low <= size <= points[kind].high, kind
    assert points["peak"].censored
    assert found.answer == points["marginal"]


def test_all_laws_together_hold_the_truth_of_noisy_times():
    rng = np.random.default_rng(5)
    sizes = np.repeat(SIZES[:7], 3)
    times_s = amdahl_s(sizes) * rng.lognormal(0.0, 0.02, len(sizes))
    found = forecast(table(), Inquiry(sizes=(32, 128)), own=measured(sizes, times_s))
    for each, true_s in zip(found.ground.foretold, amdahl_s([32, 128]), strict=True):
        assert each.time.low < true_s < each.time.high
    assert sum(found.ground.law.shares.values()) == pytest.approx(1.0)
    assert {each.ref for each in found.ground.evidence} == {"mine.csv"}


def test_without_sizes_those_measured_and_one_doubling_more_are_foretold():
    found = forecast(table(), Inquiry(), own=measured(SIZES[:5], amdahl_s(SIZES[:5])))
    assert [each.num_accelerators for each in found.ground.foretold] == [1, 2, 4, 8, 16, 32]


def test_record_is_the_largest_size_held_out():
    # 41.25 s is what Amdahl's law foretells at 32; at 60 s it is off by 31 %.
    times_s = [*amdahl_s(SIZES[:5]), 60.0]
    record = forecast(table(), Inquiry(), own=measured(SIZES[:6], times_s)).ground.foretold[0].record
    assert record.of == "the largest size measured, 32, from the smaller ones"
    assert record.num_held_out == 1
    assert record.median_abs_error == pytest.approx(1 - 41.25 / 60, abs=0.05)
    assert record.coverage == 0.0


@pytest.mark.parametrize(
    ("sizes", "times_s"),
    [
        ([8], [10.0]),
        ([8, 16], [10.0, 6.0]),
        ([8, 8, 8], [10.0, 10.1, 9.9]),
        ([1, 2, 4, 8], [10.0, 10.1, 9.9, 10.05]),
    ],
    ids=["one size", "two sizes", "repetitions of one size", "flat"],
)
def test_too_little_evidence_is_no_number(sizes, times_s):
    with pytest.raises(EvidenceError) as caught:
        forecast(table(), Inquiry(), own=measured(sizes, times_s))
    assert caught.value.missing


# Published groups


def test_a_published_group_is_foretold_from_its_sizes_and_earlier_rounds():
    found = forecast(published(), Inquiry(workload="bert", accelerator=H100, sizes=(32, 128, 256)))
    assert found.ground.round == "v3.0"
    for each in found.ground.foretold:
        true_s = 12_000.0 * 0.64 / each.num_accelerators**0.9
        assert each.time.value == pytest.approx(true_s, rel=0.1)
        assert each.time.low < true_s < each.time.high
    heaviest = found.ground.evidence[0]
    assert heaviest.is_own
    assert heaviest.ref.startswith("v3.0/")
    assert heaviest.source_uri == f"somebody/results/{H100}_{heaviest.num_accelerators}/bert"
    assert all(
        each.ref.split("/")[0] in {"v2.0", "v2.1"} for each in found.ground.evidence if not each.is_own
    )
    assert found.equilibria
    assert (found.ground.domain.smallest, found.ground.domain.largest) == (8.0, 256.0)


def test_a_measured_time_outside_of_its_own_range_is_named():
    slow = (
        (pl.col("campaign") == "v3.0") & (pl.col("accelerator") == H100) & (pl.col("num_accelerators") == 32)
    )
    scores = published().with_columns(
        score_s=pl.when(slow).then(20.0 * pl.col("score_s")).otherwise(pl.col("score_s"))
    )
    found = forecast(scores, Inquiry(workload="bert", accelerator=H100, sizes=(16, 32))).ground
    near, far = found.foretold
    assert near.in_domain
    assert far.outside == "the time measured at 32 lies above the range: other results speak against it"
    assert "outlier" in found.notes[-1]


def test_later_rounds_change_nothing():
    inquiry = Inquiry(workload="bert", accelerator=H100, sizes=(128,))
    times = [
        forecast(scores, inquiry).ground.foretold[0].time for scores in (published(), published(later_s=1.0))
    ]
    assert times[0] == times[1]


def test_an_earlier_round_may_be_asked_for():
    found = forecast(published(), Inquiry(workload="bert", accelerator=H100, round="2.1", sizes=(256,)))
    assert found.ground.round == "v2.1"
    assert found.ground.foretold[0].time.value == pytest.approx(12_000.0 * 0.8 / 256**0.9, rel=0.1)


def test_one_law_alone_is_fitted_to_the_groups_own_points():
    found = forecast(published(), Inquiry(workload="BERT", accelerator=H100, law="power", sizes=(128,)))
    assert found.ground.law.values["exponent"] == pytest.approx(0.9, rel=1e-6)
    assert [each.num_accelerators for each in found.ground.evidence] == [8, 16, 32, 64]


def test_two_own_sizes_are_enough_beside_published_ones():
    own = measured([8, 16], 3.0 * 12_000.0 * 0.64 / np.array([8.0, 16.0]) ** 0.9)
    found = forecast(published(), Inquiry(workload="bert", accelerator=H100, sizes=(32,)), own=own)
    true_s = 3.0 * 12_000.0 * 0.64 / 32**0.9
    (each,) = found.ground.foretold
    assert each.time.low < true_s < each.time.high
    assert {each.kind for each in found.ground.evidence} == {"measured", "published"}
    assert "At 8 accelerators your time is 3 times the best published one." in found.ground.notes


@pytest.mark.law
@pytest.mark.parametrize("factor", [0.1, 30.0])
def test_a_system_slower_by_any_factor_is_foretold_slower_by_that_factor(factor):
    sizes, times_s = [8, 16, 64], np.array([1000.0, 600.0, 200.0])
    inquiry = Inquiry(workload="bert", accelerator=H100, sizes=(8, 128))
    plain, slower = (
        forecast(published(), inquiry, own=measured(sizes, times)) for times in (times_s, factor * times_s)
    )
    for one, other in zip(plain.ground.foretold, slower.ground.foretold, strict=True):
        assert other.time.value == pytest.approx(factor * one.time.value, rel=1e-9)
        assert other.time.high == pytest.approx(factor * one.time.high, rel=1e-9)
    assert [each.num_accelerators for each in slower.equilibria] == [
        each.num_accelerators for each in plain.equilibria
    ]
    assert slower.answer.time_s == pytest.approx(factor * plain.answer.time_s, rel=1e-9)
    # What was measured is foretold, however far from the best published time it lies.
    assert slower.ground.foretold[0].time.low < factor * 1000.0 < slower.ground.foretold[0].time.high


def test_times_of_steps_do_not_join_times_to_train():
    own = measured(SIZES, amdahl_s(SIZES), is_time_to_train=False)
    found = forecast(published(), Inquiry(workload="bert", accelerator=H100), own=own)
    assert {each.kind for each in found.ground.evidence} == {"measured"}
    assert any("not joined" in note for note in found.ground.notes)


def test_many_at_once_are_the_same_as_one_by_one():
    inquiries = [
        Inquiry(workload="bert", accelerator=H100, sizes=(128,)),
        Inquiry(workload="bert", accelerator="b200-sxm6-180gb", sizes=(128,)),
        Inquiry(workload="bert", accelerator=A100, sizes=(128,)),
    ]
    first, refused, last = forecasts(published(), inquiries)
    assert isinstance(refused, EvidenceError)
    for each, inquiry in ((first, inquiries[0]), (last, inquiries[2])):
        assert each.ground.foretold == forecast(published(), inquiry).ground.foretold


@pytest.mark.parametrize(
    ("inquiry", "error", "words"),
    [
        (Inquiry(), UsageError, "--workload and --accelerator"),
        (Inquiry(workload="bert"), UsageError, "--workload and --accelerator"),
        (Inquiry(workload="bret", accelerator=H100), SpecError, "'bret' is not in the data; they hold bert"),
        (Inquiry(workload="bert", accelerator="h9000"), SpecError, "h9000"),
        (Inquiry(workload="bert", accelerator=H100, round="v9.9"), SpecError, "v2.0, v2.1, v3.0 have"),
        (Inquiry(workload="bert", accelerator=H100, law="magic"), SpecError, "the laws are"),
        (Inquiry(workload="gpt3", accelerator=H100), EvidenceError, "no scored closed entry of gpt3"),
        (Inquiry(workload="bert", accelerator="b200-sxm6-180gb"), EvidenceError, f"it has results on {A100}"),
    ],
)
def test_what_cannot_be_answered_says_why(inquiry, error, words):
    with pytest.raises(error, match=words):
        forecast(published(), inquiry)


def test_open_entries_are_no_evidence():
    scores = table(entry("v3.0", H100, 8, 10.0, division="open"))
    with pytest.raises(EvidenceError):
        forecast(scores, Inquiry(workload="bert", accelerator=H100))


# Prices


def test_bill_by_hand():
    # 64 accelerators for 25.625 s at 3.60 US dollars an hour.
    found = forecast(
        table(),
        Inquiry(law="amdahl", sizes=(64,)),
        own=measured(SIZES, amdahl_s(SIZES)),
        terms=Terms(usd_per_accelerator_hour=3.6),
    )
    (bill,) = found.bills
    assert bill.accelerator_hours == pytest.approx(64 * 25.625 / 3600, rel=0.01)
    assert bill.usd == pytest.approx(64 * 25.625 / 1000, rel=0.01)
    assert (bill.energy_j, bill.carbon_kg) == (None, None)


def test_least_cost_by_hand():
    # An hour of waiting at 100 times the price of an accelerator-hour: (N + 100)(10 + 1000 / N) is least at
    # N = sqrt(100 * 1000 / 10) = 100.
    found = forecast(
        table(),
        Inquiry(law="amdahl"),
        own=measured(SIZES, amdahl_s(SIZES)),
        terms=Terms(usd_per_accelerator_hour=2.0, usd_per_hour=200.0),
    )
    (cost,) = (each for each in found.equilibria if each.kind == "cost")
    assert cost.low <= 100 <= cost.high


def test_a_deadline_sets_the_least_size():
    # 10 + 1000 / N = 30 s at N = 50; without a value of time the cheapest size is the smallest allowed.
    found = forecast(
        table(),
        Inquiry(law="amdahl", accelerator=H100),
        own=measured(SIZES, amdahl_s(SIZES)),
        terms=Terms(deadline_s=30.0),
    )
    points = {each.kind: each for each in found.equilibria}
    assert points["cost"].num_accelerators == pytest.approx(50, rel=0.05)
    assert points["energy"].num_accelerators == pytest.approx(50, rel=0.05)


def test_energy_is_the_measured_one_where_it_was_metered():
    scores = published().with_columns(
        energy_j=pl.when(pl.col("num_accelerators") == 64).then(5.0e8).otherwise(None)
    )
    found = forecast(scores, Inquiry(workload="bert", accelerator=H100, sizes=(64, 128)))
    assert (found.bills[0].energy_j, found.bills[0].energy_basis) == (5.0e8, "measured")
    assert found.bills[1].energy_basis == "modelled"


@pytest.mark.parametrize(
    "build",
    [
        lambda: Inquiry(sizes=(0,)),
        lambda: Inquiry(sizes=(10**9,)),
        lambda: Inquiry(sizes=tuple(range(1, 100))),
        lambda: Inquiry(global_batch_samples=math.nan),
        lambda: Terms(usd_per_hour=-1.0),
        lambda: Terms(deadline_s=math.inf),
    ],
)
def test_what_cannot_be_asked_is_refused(build):
    with pytest.raises(UsageError, match="expected"):
        build()
