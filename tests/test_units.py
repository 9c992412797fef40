"""Durations, amounts and energy as people read them: digits, order and units over the whole range."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.report.format import energy, money
from equipoise.units import duration_s, format_amount, format_duration

# From a microsecond to three hundred thousand years.
SECONDS = st.floats(-5.9, 13.0).map(lambda exponent: 10.0**exponent)
USD = st.floats(-6.0, 15.0).map(lambda exponent: 10.0**exponent)
UNIT_S = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0, "years": 31_557_600.0}
WORTH = {"": 1.0, "billion": 1e9, "trillion": 1e12}


def _read_s(text):
    number, unit = text.replace("over ", "").split()
    return float(number.replace(",", "")) * UNIT_S[unit]


def _read(text):
    number, _, word = text.partition(" ")
    return float(number.replace(",", "")) * WORTH[word]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        # 614 x 86,400; 15,975 d / 365.25 = 43.7 years.
        (53_049_600, "614 days"),
        (1_380_240_000, "43.7 years"),
        (119.0, "119 s"),
        (119.9, "2.0 min"),
        (7_199.0, "120 min"),
        (7_200.0, "2 h"),
        (604_800.0, "7 days"),
        (605_000.0, "7.0 days"),
        (0.0, "0 s"),
        (0.00042, "420 µs"),
        (math.inf, "unknown"),
    ],
)
def test_a_duration_by_hand(seconds, words):
    assert format_duration(seconds) == words


@pytest.mark.law
@given(SECONDS)
def test_a_duration_has_at_most_three_digits_and_no_exponent(seconds):
    number = format_duration(seconds).replace("over ", "").split()[0]
    assert re.fullmatch(r"[0-9]{1,3}(,000)?(\.[0-9]+)?", number)
    assert len(number.replace(",000", "").replace(".", "").lstrip("0")) <= 3


@pytest.mark.law
@given(SECONDS.filter(lambda seconds: seconds < 3e10))
def test_a_duration_reads_back_within_its_last_digit(seconds):
    # At worst 2.0 for 2.05: a unit begins at two.
    assert _read_s(format_duration(seconds)) == pytest.approx(seconds, rel=0.026)


@pytest.mark.law
@given(SECONDS, SECONDS)
def test_a_longer_duration_never_reads_shorter(one, other):
    short, long = sorted((one, other))
    assert _read_s(format_duration(short)) <= _read_s(format_duration(long)) * (1 + 1e-12)


@pytest.mark.law
@given(SECONDS.filter(lambda seconds: 1.0 < seconds < 3e10))
def test_a_duration_as_it_is_written_may_be_typed(seconds):
    text = format_duration(seconds).replace(",", "")
    assert duration_s(text) == pytest.approx(_read_s(text))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (354e6, "354,000,000"),
        (1.5e9, "1.5 billion"),
        (999_600_000.0, "1 billion"),
        (1.23e12, "1.23 trillion"),
        (0.0, "0"),
        (-1970.0, "-1,970"),
        (0.000012, "0.000012"),
    ],
)
def test_an_amount_by_hand(value, words):
    assert format_amount(value) == words
    assert money(value) == f"{words} USD"


@pytest.mark.law
@given(USD, USD)
def test_an_amount_keeps_its_order_and_three_digits(one, other):
    low, high = sorted((one, other))
    assert _read(format_amount(low)) <= _read(format_amount(high)) * (1 + 1e-12)
    assert _read(format_amount(low)) == pytest.approx(low, rel=0.00501)


def test_energy_is_in_both_units():
    # 1 MWh is 3.6 GJ.
    assert energy(3.6e9) == "1 MWh (3.6 GJ)"
