import importlib
import re

import numpy as np
import polars as pl
import pytest

from equipoise.errors import EvidenceError, UsageError
from equipoise.scaling.groups import adjusted_rand_indices, grouped, k_means, silhouette
from equipoise.scaling.metrics import with_metrics


def _perfect(size, jitter=1.0, efficiency=1.0):
    """An entry on the line of perfect scaling (1000 accelerator-seconds), times a jitter."""
    return {"num_accelerators": size, "score_s": 1000.0 / size / efficiency * jitter}


@pytest.fixture
def three_clouds(table):
    """Small and efficient, middling, large and inefficient: far apart, hardly any spread."""
    rng = np.random.default_rng(3)
    rows = [
        _perfect(size, jitter=rng.uniform(0.97, 1.03), efficiency=efficiency)
        for size, efficiency, count in ((8, 1.0, 6), (64, 0.5, 5), (1024, 0.1, 4))
        for _ in range(count)
    ]
    return with_metrics(table(rows))


def test_three_clouds_are_three_stable_groups(three_clouds):
    grouping, marked = grouped(three_clouds)
    assert grouping.k == 3
    assert [group.num_entries for group in grouping.groups] == [6, 5, 4]
    assert grouping.stability.value == pytest.approx(1.0)
    assert grouping.stability.low > 0.5
    sizes = marked.group_by("cluster").agg(pl.col("num_accelerators").unique()).sort("cluster")
    assert sizes["num_accelerators"].to_list() == [[8], [64], [1024]]


def test_the_number_chosen_has_the_highest_silhouette_of_those_printed(three_clouds):
    grouping, _ = grouped(three_clouds)
    assert max(grouping.silhouettes, key=lambda tried: tried[1])[0] == grouping.k


def test_words_come_from_the_members(three_clouds):
    grouping, _ = grouped(three_clouds)
    first, second, third = (group.words for group in grouping.groups)
    assert first.startswith("6 systems of 8 accelerators, ")
    assert re.search("smallest, .*most efficient$", first)
    assert "5 systems of 64 accelerators" in second
    assert "in between" in second
    assert third.startswith("4 systems of 1,024 accelerators")
    assert re.search("largest, .*least efficient", third)
    assert f"{grouping.stability.value:.2f}" in grouping.words


def test_groups_do_not_depend_on_the_order_of_rows(three_clouds):
    straight, marked = grouped(three_clouds)
    turned, turned_marked = grouped(three_clouds.reverse())
    assert straight == turned
    assert turned_marked.sort("entry_id").equals(marked.sort("entry_id"))


def test_groups_do_not_depend_on_the_unit_of_time(table):
    rows = [_perfect(size, efficiency=1 / (1 + size / 100)) for size in (2, 4, 8, 16, 256, 512, 1024)]
    slow = [row | {"score_s": row["score_s"] * 60} for row in rows]
    assert grouped(with_metrics(table(rows)))[1]["cluster"].to_list() == (
        grouped(with_metrics(table(slow)))[1]["cluster"].to_list()
    )


def test_a_cloud_without_structure_is_called_unstable(table):
    rng = np.random.default_rng(5)
    rows = [_perfect(int(2 ** rng.uniform(0, 10)), efficiency=2 ** rng.uniform(-5, 0)) for _ in range(14)]
    grouping, _ = grouped(with_metrics(table(rows)), k=6)
    assert grouping.stability.value < 0.8
    assert "most resamples" not in grouping.words


def test_a_given_number_is_used_and_said(three_clouds):
    grouping, _ = grouped(three_clouds, k=2)
    assert (grouping.k, len(grouping.groups), grouping.chosen_by) == (2, 2, "given")
    assert grouping.silhouettes == ()


def test_unscored_entries_belong_to_no_group(table):
    rows = [_perfect(size) for size in (2, 4, 64, 128)] + [{"num_accelerators": 8, "score_s": None}]
    grouping, marked = grouped(with_metrics(table(rows)))
    assert marked["cluster"].to_list()[-1] is None
    assert marked["cluster"].null_count() == 1
    assert sum(group.num_entries for group in grouping.groups) == 4


def test_three_different_systems_are_the_fewest(table):
    two = [_perfect(4), _perfect(4), _perfect(8)]
    with pytest.raises(EvidenceError, match="2 systems"):
        grouped(with_metrics(table(two)))
    assert grouped(with_metrics(table([*two, _perfect(512)])))[0].k == 2


def test_more_groups_than_systems_is_too_little_evidence(three_clouds):
    with pytest.raises(EvidenceError, match=r"40 groups .*\b40\b"):
        grouped(three_clouds, k=40)


def test_one_group_is_refused(three_clouds):
    with pytest.raises(UsageError, match=r"k=1: .*\b2 groups"):
        grouped(three_clouds, k=1)


def test_equal_efficiency_everywhere_still_groups_by_size(table):
    rows = [_perfect(size) for size in (1, 2, 512, 1024)]
    grouping, marked = grouped(with_metrics(table(rows)))
    assert marked["cluster"].to_list() == [1, 1, 2, 2]
    assert grouping.groups[1].min_accelerators == 512


def test_an_absurd_score_does_not_take_part(table):
    rows = [_perfect(size) for size in (1, 2, 512, 1024)]
    absurd = {"num_accelerators": 2**60, "score_s": 1e300}
    _, marked = grouped(with_metrics(table([*rows, absurd])))
    assert marked["cluster"].to_list() == [1, 1, 2, 2, None]


# scikit-learn is the reference of K-means, of the silhouette and of the adjusted Rand index.


@pytest.mark.parametrize("k", [2, 3, 5, 8])
@pytest.mark.parametrize("num_points", [10, 30, 80])
def test_k_means_and_its_measures_are_those_of_scikit_learn(num_points, k):
    points = np.random.default_rng(num_points).normal(size=(num_points, 2))
    cluster, metrics = map(importlib.import_module, ("sklearn.cluster", "sklearn.metrics"))
    reference = cluster.KMeans(n_clusters=k, n_init=50, random_state=0).fit(points)
    centres = k_means(points[None], k, num_starts=50, rng=np.random.default_rng(0))[0]
    squares = ((points[:, None] - centres) ** 2).sum(axis=-1)
    assert squares.min(axis=1).sum() <= 1.01 * reference.inertia_
    clusters = squares.argmin(axis=1)
    # Lloyd has ended: every centre is the mean of the points that are nearest to it.
    assert centres == pytest.approx(np.array([points[clusters == each].mean(axis=0) for each in range(k)]))
    assert silhouette(points, clusters) == pytest.approx(metrics.silhouette_score(points, clusters))
    others = np.random.default_rng(k).integers(0, k, size=(5, num_points))
    expected = [metrics.adjusted_rand_score(clusters, other) for other in others]
    assert adjusted_rand_indices(clusters, others) == pytest.approx(expected)
    assert adjusted_rand_indices(clusters, clusters[None]) == pytest.approx([1.0])


def test_a_sample_of_fewer_distinct_points_than_groups_repeats_centres():
    points = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    centres = k_means(points[None], 3, num_starts=2, rng=np.random.default_rng(0))[0]
    assert {tuple(each) for each in centres} == {(0.0, 0.0), (1.0, 1.0)}


def test_a_point_alone_in_its_group_has_a_silhouette_of_zero():
    # Rousseeuw 1987: of 0, 1 and 10 in the groups (0, 1) and (10), s = (10 - 1)/10, (9 - 1)/9 and 0.
    found = silhouette(np.array([[0.0], [1.0], [10.0]]), np.array([1, 1, 2]))
    assert found == pytest.approx((0.9 + 8 / 9) / 3)
