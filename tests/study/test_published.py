import re

import pytest

from equipoise.scaling.metrics import with_metrics
from equipoise.study.claims import Published, table_row


def _published(**changed):
    stated = {
        "round": "v9.9",
        "workload": "bert",
        "name": "BERT",
        "num_entries": 2,
        "num_accelerators": 2,
        "score_minutes": 10.0,
        "num_decimals": 2,
        "source": "a paper",
    }
    return Published(**(stated | changed))


@pytest.fixture
def row(table):
    """Table I's row for a reference of 2 accelerators and so many minutes, with any further entries."""

    def build(minutes, *, published=None, more=()):
        rows = [
            {"num_accelerators": 2, "score_s": minutes * 60.0},
            {"num_accelerators": 8, "score_s": 60.0},
            *more,
        ]
        return table_row(with_metrics(table(rows)), "bert", published)

    return build


def test_equal_after_rounding_is_no_difference(row):
    assert row(10.004, published=_published()).differences == ()


def test_a_number_cut_instead_of_rounded_is_recognised(row):
    (difference,) = row(366.18525, published=_published(score_minutes=366.18)).differences
    assert re.fullmatch(r"366\.18525 min .*\b366\.18 .*\bcut .*\b2 digits", difference)


def test_another_number_is_named_with_its_size(row):
    (difference,) = row(60.56236, published=_published(score_minutes=60.52)).differences
    assert re.match(r"60\.56236 min .*\b60\.52 .*\b0\.07 % more", difference)
    (difference,) = row(60.0, published=_published(score_minutes=60.52)).differences
    assert re.match(r"60\.00000 min .*\b60\.52 .*\b0\.86 % less", difference)


def test_an_entry_without_logs_explains_the_count(row):
    lost = {
        "submitter": "uni",
        "system": "big",
        "num_accelerators": 56,
        "score_s": None,
        "reason": "logs missing",
    }
    found = row(10.0, published=_published(), more=[lost])
    assert (found.num_entries, found.num_scored) == (3, 2)
    (difference,) = found.differences
    assert re.search(r"\b3 entries.*\b2: .*: uni/big \(logs missing\)$", difference)


def test_a_count_that_nothing_explains_is_reported_with_both_numbers(row):
    (difference,) = row(10.0, published=_published(num_entries=1)).differences
    assert re.search(r"\b2 entries, .*\b1;", difference)


def test_a_count_that_the_unscored_do_not_explain_names_both(row):
    lost = {"submitter": "uni", "system": "big", "score_s": None, "reason": "logs missing"}
    (difference,) = row(10.0, published=_published(num_entries=7), more=[lost]).differences
    assert re.search(r"\b7; 1 .*: uni/big", difference)


def test_another_reference_size_is_named(row):
    (difference,) = row(10.0, published=_published(num_accelerators=4)).differences
    assert re.search(r"reference .*\b2 accelerators .*\b4 ", difference)


def test_without_a_published_row_there_is_no_difference(row):
    found = row(10.0)
    assert found.differences == ()
    assert found.reference.num_accelerators == 2


def test_without_any_score_there_is_no_reference(table):
    found = table_row(with_metrics(table([{"num_accelerators": 2, "score_s": None}])), "bert", _published())
    assert found.reference is None
    assert "no entry" in found.differences[-1]
    assert "no reason" in found.unscored[0].reason
