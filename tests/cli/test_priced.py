"""Terms and ownership as text and documents."""

import math

import pytest

from equipoise.advice.risk import Undertaking, risks
from equipoise.cli.output import encode
from equipoise.cli.priced import ownership_fields, ownership_text, risk_fields, risk_text
from equipoise.economics import rates
from equipoise.economics.failures import hazards
from equipoise.economics.owning import ownership, purchase
from equipoise.economics.uncertain import spread
from equipoise.spec.hardware import accelerator


@pytest.fixture(scope="module")
def training():
    return Undertaking(
        accelerator="h100-sxm5-80gb",
        num_accelerators=64,
        node_size=8,
        work=spread(40 * 86_400.0, 0.3),
        trained_params=6.74e9,
        price=None,
    )


def test_terms_side_by_side_fit_eighty_columns(training, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = risk_text(risks(training, deadline_s=60 * 86_400.0))
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert [line.split()[0] for line in shown.splitlines()[1:4]] == ["on", "reserved", "spot"]
    assert "in time" in shown


def test_a_run_that_never_ends_is_said_so(training, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    hopeless = hazards(hours_between=64 / 3600)
    shown = risk_text(risks(training, usual=hopeless))
    assert "never" in shown
    assert "inf" not in shown


def test_buying_beside_renting_fits_eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    bought = purchase(accelerator("h100-sxm5-80gb"))
    found = ownership(bought, rates(accelerator("h100-sxm5-80gb")), speed_error=spread(1.0, 0.5))
    shown = ownership_text(found)
    assert max(map(len, shown.splitlines())) <= 80
    assert "hangs on    rent" in shown
    assert "time against predicted" in " ".join(shown.split())


def test_documents_have_numbers_or_null_and_no_infinity(training):
    bought = purchase(accelerator("h100-sxm5-80gb"))
    cheap = ownership(bought, rates(accelerator("h100-sxm5-80gb")))
    assert math.isinf(cheap.months_to_break_even.high) or cheap.months_to_break_even.high > 0
    for fields in (ownership_fields(cheap), risk_fields(risks(training)[2])):
        encoded = encode(fields)
        assert b"NaN" not in encoded
        assert b"Infinity" not in encoded
        assert b'"sensitivity"' in encoded
