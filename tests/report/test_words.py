"""Values and names as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.report.format import (
    LONGEST_NAME,
    accelerator_name,
    count,
    enough,
    listed,
    minutes,
    printable,
    ratio,
    workload_name,
)
from equipoise.report.pages.answer.candidates import chip_of
from equipoise.spec.catalogue import catalogue


@given(st.text())
def test_a_printable_name_is_one_short_visible_line(name):
    shown = printable(name)
    assert shown.isprintable()
    assert len(shown) <= LONGEST_NAME


@given(st.text(st.characters(categories=("L", "N", "P", "S")), max_size=LONGEST_NAME))
def test_a_plain_name_is_shown_as_it_is(name):
    assert printable(name) == name


def test_escapes_and_overrides_become_visible():
    assert printable("a\x1b[31mb\u202ec\td") == "a\\x1b[31mb\\u202ec d"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0979, "0.0979"), (1.7684, "1.77"), (17.893, "17.9"), (3070.05, "3,070"), (0, "0")]
)
def test_a_ratio_has_three_significant_digits(value, shown):
    assert ratio(value) == shown


@pytest.mark.parametrize("say", [ratio, minutes, count])
@pytest.mark.parametrize("absent", [None, math.nan, math.inf])
def test_what_is_not_known_is_a_dash(say, absent):
    assert say(absent) == "\N{EN DASH}"


def test_minutes_are_those_of_table_one():
    assert minutes(21971.115) == "366.185"


def test_items_are_listed_as_a_sentence_does():
    assert [listed(items) for items in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_known_names_get_their_title_and_unknown_ones_stay_raw():
    assert accelerator_name("h100-sxm5-80gb") == "H100 SXM5 80 GB"
    assert accelerator_name("Abacus 9000\x07") == "Abacus 9000\\x07"
    assert accelerator_name(None) == "unknown accelerator"
    assert workload_name("bert") == "BERT"
    assert workload_name("chess_2031") == "chess_2031"


def test_a_system_is_named_without_the_maker_of_its_chips_alone():
    known = catalogue()
    chips = {each.title: known.cluster(each.slug).accelerator for each in known.systems()}
    cut = [title for title in chips if chip_of(title) != title]
    assert cut
    assert all(title.startswith(f"{chips[title].vendor} ") for title in cut)


# Of a number of seconds, minutes, hours, days and years, as people write them.
_SECONDS = {
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "days": 86_400.0,
    "day": 86_400.0,
    "years": 31_557_600.0,
}


@pytest.mark.law
@given(st.floats(0.001, 3e9), st.floats(0.1, 0.999))
def test_a_deadline_that_is_said_to_do_does(needed, part):
    number, unit = enough(needed, part * needed, "s")[0].split()
    stated = float(number.replace(",", "")) * _SECONDS[unit]
    assert needed * (1 - 1e-12) <= stated <= needed * 1.1


@pytest.mark.law
@given(st.floats(0.01, 9e8), st.floats(0.1, 0.999))
def test_a_budget_that_is_said_to_do_does(needed, part):
    number, _ = enough(needed, part * needed, "USD")[0].split()
    assert needed * (1 - 1e-9) <= float(number.replace(",", "")) <= needed * 1.01
