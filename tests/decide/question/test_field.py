"""How the text of a field is read: amounts, durations, sizes, values per system; and what is refused."""

from pathlib import Path

import pytest

from equipoise.decide.question.field import GROUPS, Sizes
from equipoise.decide.question.query import FIELDS
from equipoise.errors import UsageError

DAY_S = 24 * 3600.0


def read(option, given):
    (field,) = [each for each in FIELDS.values() if option in {each.option, *each.also}]
    return field.read(given)


@pytest.mark.parametrize(
    ("option", "given", "value"),
    [
        ("tokens", "1T", 1e12),
        ("tokens", "1e12", 1e12),
        ("tokens", "1.5b", 1.5e9),
        ("tokens", 2_000_000, 2e6),
        ("samples", "10k", 10_000.0),
        ("samples", "10,000", 10_000.0),
        ("global-batch", "4k", 4000),
        ("global-batch", "1,024", 1024),
        ("global-batch", "512,256", 512_256),  # no list in order
        ("global-batch", "16,384", 16_384),  # as answers write it
        ("global-batch", "65,536", 65_536),
        ("budget", "60k", 60_000.0),
        ("budget", "1,250.50", 1250.5),
        ("budget", 0.1 + 0.2, 0.30000000000000004),
        ("budget", "5.8058369999999995", 5.8058369999999995),
        ("budget", ".5", 0.5),
        ("global-batch", "1.001k", 1001),  # 1.001 x 1000 is a little less in binary
        ("deadline", "0.30000000000000004d", 0.30000000000000004 * DAY_S),
        ("budget", "$20k", 20_000.0),
        ("budget", "US$ 20,000", 20_000.0),
        ("budget", "20k USD", 20_000.0),
        ("price", "h100=2.1USD", (("h100", 2.1),)),
        ("power-cap", "700 W", 700.0),
        ("power-cap", "0.7kW", 700.0),
        ("tokens", "10B tokens", 10e9),
        ("epochs", "1 epoch", 1.0),
        ("max-accelerators", "1,024 accelerators", 1024),
        ("sequence", "8k tokens", 8192),
        ("carbon", "380 g CO2 per kWh", 380.0),
        ("deadline", "12", 12 * 3600.0),
        ("deadline", 1.5, 5400.0),
        ("deadline", "7d", 7 * DAY_S),
        ("tokens", "10 billion", 10e9),
        ("tokens", "10bn", 10e9),
        ("tokens", "1.5 Trillion", 1.5e12),
        ("samples", "2 million", 2e6),
        ("sequence", "8 thousand", 8000),
        ("sequence", "8k", 8192),
        ("deadline", "90min", 5400.0),
        ("deadline", "30 mins", 1800.0),
        ("deadline", "1d12h", 36 * 3600.0),
        ("deadline", "1 day 12 hrs", 36 * 3600.0),
        ("deadline", "2wk", 14 * DAY_S),
        ("deadline", "2 wks", 14 * DAY_S),
        ("queue", "45 secs", 45.0),
        ("queue", "0", 0.0),
        ("pue", "1.2", 1.2),
        ("precision", "bf16,fp8,bf16", ("bf16", "fp8")),
        ("objective", "value-of-time", "value_of_time"),
        ("accelerator", "h100", ("h100",)),
        ("accelerator", ["h100", "3x rtx4090"], ("h100", "3x rtx4090")),
        ("here", "yes", True),
        ("topology", "topo.txt", Path("topo.txt")),
        ("collectives", ["a.txt", "b.txt"], (Path("a.txt"), Path("b.txt"))),
        ("price", "2.1", (("", 2.1),)),
        ("price", ["h100=2.1", "b200=0"], (("h100", 2.1), ("b200", 0.0))),
        ("price", {"h100": 2.1, "b200": "5"}, (("h100", 2.1), ("b200", 5.0))),
        ("stock", "3x rtx 4090=3", (("3x rtx 4090", 3),)),
        ("terms", "h100=spot,on_demand", (("h100", ("spot", "on_demand")),)),
        ("stock", "h100=1,024,b200=16", (("h100", 1024), ("b200", 16))),
        ("terms", "h100=spot,on_demand,b200=spot", (("h100", ("spot", "on_demand")), ("b200", ("spot",)))),
    ],
)
def test_what_people_type_is_read(option, given, value):
    assert read(option, given) == value


@pytest.mark.parametrize(
    ("given", "listed", "is_range"),
    [
        ("64", (64,), False),
        ("8..512", (8, 512), True),
        ("1-4", (1, 4), True),
        ("16..16", (16,), False),
        ("32,8,16,8", (8, 16, 32), False),
        ([8, "1k"], (8, 1000), False),
        (12, (12,), False),
    ],
)
def test_sizes_are_a_number_a_range_or_a_list(given, listed, is_range):
    found = read("accelerators", given)
    assert (found.listed, found.is_range) == (listed, is_range)
    assert read("at", given) == found


def test_a_range_holds_what_lies_between_and_a_list_what_it_names():
    assert Sizes(listed=(8, 32), is_range=True).holds(17)
    assert not Sizes(listed=(8, 32)).holds(17)
    assert Sizes(listed=(8, 32)).holds(32)


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("tokens", "many", r"--tokens.*'many'.*512, 10k, 1T"),
        ("tokens", "1e300", r"--tokens .*'1e300'"),
        ("tokens", "0", r"--tokens.*0.*from 1"),
        ("global-batch", "2.5", r"--global-batch.*'2.5'"),
        ("global-batch", True, r"--global-batch .*'True'"),
        ("pue", "0.9", r"--pue.*0.9.*1 to 5"),
        ("pue", "nan", r"--pue .*nan"),
        ("utilisation", "0", r"--utilisation.*0.* 0 .* 1"),
        ("price", "h100=-1", r"--price.*h100.*-1.*from 0"),
        ("price", "h100=cheap", r"--price .*h100.*'cheap'"),
        ("stock", "h100=0", r"--stock.*h100.* 0.*whole.*from 1"),
        ("max-accelerators", "lots", r"--max-accelerators.*'lots'.* 512 or 10k$"),
        ("accelerators", "eight", r"--accelerators.*'eight'.*8\.\.512.*8,16,32"),
        ("accelerator", "h100,", r"--accelerator.*'h100,'"),
        ("electricity", "0,3", r"--electricity .*'0,3'"),
        ("budget", "60,5", r"--budget .*'60,5'"),
        ("objective", "speed", r"--objective.*'speed'.*balance, time, cost"),
        ("terms", "h100=stolen", r"--terms.*'stolen'.*on_demand"),
        ("precision", "bf16,fp7", r"--precision.*'fp7'"),
        ("here", "maybe", r"--here.*'maybe'.*true .*false"),
        ("accelerators", "8..2", r"--accelerators.*'8..2'"),
        ("accelerators", "1..4,8", r"--accelerators.*'1..4,8'"),
        ("accelerators", "8..", r"--accelerators.*'8\.\.'"),
        ("accelerators", "8,", r"--accelerators.*'8,'"),
        ("accelerators", "0", r"--accelerators.*0.*from 1"),
        ("accelerators", list(range(1, 100)), r"--accelerators.* 99 .*1 to 64"),
        (
            "max-accelerators",
            "1e9",
            r"--max-accelerators.* 1,000,000,000;.* 1 to 10,000,000",
        ),
        ("accelerator", " ", r"--accelerator.*\[Nx\]NAME"),
        ("global-batch", "256,512", r"--global-batch.*'256,512'.*\b256512\b"),
        ("global-batch", "128,256,512", r"--global-batch.*'128,256,512'"),
    ],
)
def test_a_refusal_names_option_value_and_what_was_expected(option, given, words):
    with pytest.raises(UsageError, match=words):
        read(option, given)


@pytest.mark.parametrize(("given", "value"), [("0", "0"), ("-2", "-2"), (1e9, "1,000,000,000")])
def test_bounds_of_a_duration_are_in_hours_as_a_plain_number_is(given, value):
    with pytest.raises(UsageError, match=rf"--deadline.* {value}.*hours.* 0 .*10,000,000 hours$"):
        read("deadline", given)


def test_a_duration_of_no_unit_that_there_is_shows_those_there_are():
    with pytest.raises(UsageError, match=r"--deadline.*'3 moons'.*90min or 7d"):
        read("deadline", "3 moons")


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda each: each.option)
def test_every_field_is_declared_whole(field):
    assert field.help.endswith((".", "?"))
    assert field.group in GROUPS
    assert field.verbs
    if field.kind in {"number", "count", "amount", "duration", "sizes"}:
        assert field.least is not None
        assert field.most is not None
    if field.kind == "choice":
        assert field.choices
