import pytest

from equipoise.study.claims import claim_table
from equipoise.study.quantities import QUANTITIES, like_for_like_view, study_view

STATEMENTS = {statement.name: statement for claim in claim_table() for statement in claim.statements}


def read(name, view):
    """What the data say of a statement of the table."""
    return STATEMENTS[name].read(view)


def verdicts(name, views):
    return [read(name, each).verdict for each in views]


def test_the_table_uses_every_quantity_and_no_other():
    used = {each.quantity for statement in STATEMENTS.values() for each in statement.comparisons}
    assert used == QUANTITIES.keys()


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.4, "reverses"), (0.5, "holds"), (2.0, "holds"), (2.1, "not supported")]
)
def test_bounds_that_include_their_limits(value, verdict):
    (comparison,) = STATEMENTS["largest_like_smallest"].comparisons
    assert (comparison.holds, comparison.reverses) == ("from 0.5 to 2", "below 0.5")
    assert comparison.verdict(value) == verdict


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.0, "reverses"), (0.1, "holds"), (0.9, "holds"), (1.0, "not supported")]
)
def test_bounds_that_leave_their_limits_out(value, verdict):
    (comparison,) = STATEMENTS["balance_inside"].comparisons
    assert (comparison.holds, comparison.reverses) == ("above 0 and below 1", "up to 0")
    assert comparison.verdict(value) == verdict


@pytest.fixture
def view(entries):
    """Both views of entries given as (size, score_s) on one accelerator."""

    def build(*points, **columns):
        rows = [{"num_accelerators": size, "score_s": score_s} | columns for size, score_s in points]
        frame = entries(rows)
        return study_view("bert", frame), like_for_like_view("bert", frame)

    return build


def _at(size, efficiency, *, work=1000.0):
    """A point with this efficiency against a baseline of `work` accelerator-seconds."""
    return size, work / size / efficiency


def test_like_for_like_looks_at_the_accelerator_seen_at_most_sizes(entries):
    frame = entries(
        [
            {"num_accelerators": 2, "score_s": 9.0, "accelerator": "a100-sxm4-80gb"},
            {"num_accelerators": 4096, "score_s": 1.0, "accelerator": "a100-sxm4-80gb"},
            *({"num_accelerators": size, "score_s": 100 / size} for size in (4, 8, 16)),
        ]
    )
    assert like_for_like_view("bert", frame).points["num_accelerators"].to_list() == [4, 8, 16]
    assert study_view("bert", frame).points.height == 5


def test_best_of_a_size_is_its_most_efficient_entry(view):
    theirs, _ = view((4, 100.0), (8, 60.0), (8, 50.0))
    assert theirs.best.select("num_accelerators", "score_s").rows() == [(4, 100.0), (8, 50.0)]


@pytest.mark.parametrize(
    ("at_eight", "verdict"),
    [(1.3, "holds"), (1.03, "not supported"), (0.97, "not supported"), (0.8, "reverses")],
)
def test_best_near_eight(view, at_eight, verdict):
    assert verdicts("best_near_8", view(_at(4, 1.0), _at(8, at_eight), _at(64, 0.5))) == [verdict] * 2


def test_best_near_eight_needs_a_size_near_eight(view):
    assert read("best_near_8", view((4, 10.0), (64, 1.0))[0]).verdict == "not enough evidence"
    assert read("best_near_8", view((8, 10.0))[0]).verdict == "not enough evidence"


@pytest.mark.parametrize(
    ("from_sixteen", "verdict"),
    [(0.5, "holds"), (0.94, "holds"), (0.97, "not supported"), (1.02, "not supported"), (1.2, "reverses")],
)
def test_falls_from_sixteen(view, from_sixteen, verdict):
    assert (
        verdicts("falls_from_16", view(_at(4, 1.0), _at(16, from_sixteen), _at(64, from_sixteen / 2)))
        == [verdict] * 2
    )


@pytest.mark.parametrize(
    ("largest", "verdict"),
    [(0.1, "reverses"), (0.49, "reverses"), (0.5, "holds"), (1.77, "holds"), (2.5, "not supported")],
)
def test_largest_like_smallest(view, largest, verdict):
    ways = view(_at(2, 1.0), _at(3472, largest))
    assert len(ways) == 2
    for way in ways:
        reading = read("largest_like_smallest", way)
        assert reading.verdict == verdict
        assert reading.figures[0].value == pytest.approx(largest)
        assert reading.figures[0].entry_ids == ("e1",)


@pytest.mark.parametrize(("median", "verdict"), [(1.1, "holds"), (0.98, "not supported"), (0.9, "reverses")])
def test_above_one_at_four_to_eight(view, median, verdict):
    assert verdicts("above_1_at_4_to_8", view(_at(4, 1.0), _at(8, median), _at(64, 5.0))) == [verdict] * 2


def test_the_baseline_itself_is_no_evidence_at_four_to_eight(view):
    ways = view(_at(4, 1.0), _at(64, 0.5))
    assert len(ways) == 2
    for way in ways:
        assert read("above_1_at_4_to_8", way).verdict == "not enough evidence"
        assert read("moderate_at_4_to_8", way).verdict == "not enough evidence"


@pytest.mark.parametrize(("median", "verdict"), [(0.9, "holds"), (0.5, "holds"), (0.49, "reverses")])
def test_moderate_at_four_to_eight(view, median, verdict):
    assert verdicts("moderate_at_4_to_8", view(_at(2, 1.0), _at(8, median))) == [verdict] * 2


@pytest.mark.parametrize(
    ("largest", "verdict"), [(0.2, "holds"), (0.6, "not supported"), (0.9, "not supported")]
)
def test_largest_fast_and_inefficient(view, largest, verdict):
    assert verdicts("largest_fast_and_inefficient", view(_at(4, 1.0), _at(1024, largest))) == [verdict] * 2


def test_a_largest_system_that_is_slow_and_efficient_reverses(entries):
    # Slower than a smaller one of another kind, yet efficient against its own: only like for like can tell.
    frame = entries(
        [
            {"num_accelerators": 8, "score_s": 1.0, "accelerator": "b200-sxm-180gb"},
            {"num_accelerators": 2, "score_s": 100.0, "accelerator": "v100-sxm3-32gb"},
            {"num_accelerators": 16, "score_s": 14.0, "accelerator": "v100-sxm3-32gb"},
        ]
    )
    reading = read("largest_fast_and_inefficient", study_view("bert", frame))
    assert reading.verdict == "reverses"
    assert "shortest" in reading.words


@pytest.mark.parametrize(("largest", "verdict"), [(0.2, "holds"), (0.6, "not supported"), (0.8, "reverses")])
def test_largest_inefficient(view, largest, verdict):
    assert verdicts("largest_inefficient", view(_at(4, 1.0), _at(2528, largest))) == [verdict] * 2


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ((0.9, 0.7, 0.3), "holds"),
        ((0.9, 0.95, 0.3), "not supported"),
        ((0.99, 0.7, 0.3), "not supported"),
        ((1.2, 1.4, 1.6), "reverses"),
    ],
)
def test_falls_in_steps(view, steps, verdict):
    assert (
        verdicts(
            "falls_in_steps",
            view(_at(8, 1.0), *(_at(size, step) for size, step in zip((16, 32, 512), steps, strict=True))),
        )
        == [verdict] * 2
    )


def test_tpu_v5p_is_found_by_its_whole_name(view):
    assert read("tpu_v5p_present", view((8, 1.0), accelerator="tpu-v5p")[0]).verdict == "holds"
    assert read("tpu_v5p_present", view((8, 1.0), accelerator="tpu-v5p-pod")[0]).verdict == "holds"
    assert read("tpu_v5p_present", view((8, 1.0), accelerator="tpu-v5px")[0]).verdict == "not supported"


@pytest.mark.parametrize(
    ("efficiencies", "size", "verdict"),
    [
        # E x S = E^2 N: 4, 10.24, 2.56, by hand
        ((1.0, 0.8, 0.2), 16, "holds"),
        ((1.0, 0.8, 0.6), 64, "not supported"),
        ((1.0, 0.3, 0.1), 4, "reverses"),
    ],
)
def test_balance(view, efficiencies, size, verdict):
    ways = view(*(_at(n, e) for n, e in zip((4, 16, 64), efficiencies, strict=True)))
    assert len(ways) == 2
    for way in ways:
        reading = read("balance_inside", way)
        assert reading.verdict == verdict
        assert reading.figures[0].value == size


def test_balance_needs_three_sizes(view):
    assert read("balance_inside", view((4, 10.0), (8, 6.0))[0]).verdict == "not enough evidence"


@pytest.mark.parametrize(
    ("growth", "verdict"),
    # E = 1/8: three halvings. With samples x 1 all are throughput, x 2 two of three, x 8 none.
    [(1.0, "holds"), (2.0, "holds"), (2.9, "not supported"), (4.1, "reverses"), (8.0, "reverses")],
)
def test_cause_of_the_loss(entries, growth, verdict):
    frame = entries(
        [
            {"num_accelerators": 4, "score_s": 100.0, "samples_to_target": 1000.0},
            {"num_accelerators": 64, "score_s": 50.0, "samples_to_target": 1000.0 * growth},
        ]
    )
    reading = read("loss_is_throughput", like_for_like_view("bert", frame))
    assert reading.verdict == verdict
    assert sum(figure.value for figure in reading.figures) == pytest.approx(1.0)


def test_the_studys_way_cannot_tell_the_cause(view):
    reading = read("loss_is_throughput", view((4, 100.0), (64, 50.0), samples_to_target=1000.0)[0])
    assert reading.verdict == "not enough evidence"


def test_without_loss_there_is_no_cause(view):
    _, same_samples = view(_at(4, 1.0), _at(64, 1.0), samples_to_target=1000.0)
    assert read("loss_is_throughput", same_samples).verdict == "not enough evidence"
