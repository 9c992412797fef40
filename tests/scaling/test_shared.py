import re

import pytest

from equipoise.scaling.groups import families, shared_systems
from equipoise.scaling.metrics import with_metrics


def _workload(table, workload, rows):
    return with_metrics(
        table(
            {
                "workload": workload,
                "entry_id": f"{workload}{place}",
                "submitter": submitter,
                "system": system,
                "num_accelerators": size,
                "score_s": score_s,
            }
            for place, (submitter, system, size, score_s) in enumerate(rows)
        )
    )


@pytest.fixture
def two(table):
    return {
        "bert": _workload(
            table,
            "bert",
            [("a", "x", 8, 60.0), ("a", "y", 64, 10.0), ("b", "x", 8, 50.0), ("c", "z", 8, 5.0)],
        ),
        "retinanet": _workload(
            table,
            "retinanet",
            [("a", "x", 8, 30.0), ("a", "y", 64, 7.5), ("b", "x", 8, 40.0), ("c", "z", 8, None)],
        ),
    }


def test_a_system_is_shared_when_it_has_a_score_everywhere(two):
    shared = shared_systems(two)
    assert shared.num_systems == 3
    assert set(shared.table.select("submitter", "system").iter_rows()) == {("a", "x"), ("a", "y"), ("b", "x")}


def test_ranks_count_among_the_shared_only(two):
    ranks = shared_systems(two).table.select("workload", "submitter", "system", "rank").rows()
    assert ("bert", "a", "y", 1) in ranks
    assert ("bert", "b", "x", 2) in ranks
    assert ("retinanet", "b", "x", 3) in ranks


def test_the_difference_from_the_published_count_is_said(two):
    assert re.match(r"3 systems .*\b2 workloads \([^)]*\b11\b", shared_systems(two, num_published=11).words)
    assert "study" not in shared_systems(two).words


def test_family_efficiency_by_hand(two):
    # From 8 to 64: bert 60 / 10 / 8 = 0.75, retinanet 30 / 7.5 / 8 = 0.5. Submitter b has one size only.
    rows = (
        families(two)
        .select("submitter", "from_accelerators", "to_accelerators", "workload", "efficiency")
        .rows()
    )
    assert rows == [("a", 8, 64, "bert", 0.75), ("a", 8, 64, "retinanet", 0.5)]


def test_nothing_shared_is_said_not_raised(table):
    apart = {
        "bert": _workload(table, "bert", [("a", "x", 8, 60.0)]),
        "retinanet": _workload(table, "retinanet", [("b", "x", 8, 60.0)]),
    }
    shared = shared_systems(apart)
    assert (shared.num_systems, shared.table.height, shared.families.height) == (0, 0, 0)
    assert shared.words.startswith("0 systems")


def test_one_workload_compares_with_nothing(table):
    shared = shared_systems({"bert": _workload(table, "bert", [("a", "x", 8, 60.0)])})
    assert "One workload" in shared.words


def test_one_system_is_counted_in_the_singular(table):
    one = {name: _workload(table, name, [("a", "x", 8, 60.0)]) for name in ("bert", "dlrm")}
    assert re.match(r"1 system has .*\b2 workloads", shared_systems(one).words)
