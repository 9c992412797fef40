"""Every reader of files that users bring: mangled examples, and all that fuzzing ever found."""

import cProfile
import importlib.util
import random
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
FINDINGS = ROOT / "tests" / "findings"
# Of functions, of which a reader makes at most 105,000 (those of catalogues, whatever they are given). One
# that looks at a file again for each of its lines makes millions. Seconds are limited by `make fuzz`.
MOST_CALLS = 500_000
NUM_RETYPED = 60
# Whatever these are given, they read a catalogue: an example takes 0.1 s.
CATALOGUES = ("clusters", "hardware", "workloads")


def _fuzz_module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "fuzz" / f"{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


targets = _fuzz_module("targets")
value_types = _fuzz_module("value_types")

# What readers trip over: ends of numbers and nesting, encodings, and the marks of each format.
PIECES = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"\n",
    b"\r\n",
    b'"',
    b"[" * 3000,
    b'{"a":' * 3000,
    b"9" * 400,
    b"9" * 5000,
    b"1e999",
    b"-1",
    b"nan",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b",",
    b"=",
    "ß\u202e\u0000\U0001d7d7".encode(),
)
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(0, 40), st.one_of(st.sampled_from(PIECES), st.binary(max_size=12))
    ),
    max_size=6,
)


def num_calls(function, *arguments):
    """How often functions are called while one runs: the same on every machine, busy or not."""
    counted = cProfile.Profile()
    counted.runcall(function, *arguments)
    return sum(each.callcount for each in counted.getstats())


def mangled(data, edits):
    """The data with pieces cut out and put in, at places given as shares of its length."""
    for share, cut, piece in edits:
        at = int(share * len(data))
        data = data[:at] + piece + data[at + cut :]
    return data


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.name)
def test_seeds_are_read(target):
    for seed in target.seeds():
        target.read(seed)


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.name)
def test_readers_refuse_or_read_whatever_they_are_given(target):
    seeds = target.seeds()

    num_examples = 4 if target.is_slow else 15 if target.name in CATALOGUES else 40

    @settings(max_examples=num_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.sampled_from(seeds), edits=EDITS, anything=st.one_of(st.none(), st.binary(max_size=200)))
    def check(seed, edits, anything):
        data = anything if anything is not None else mangled(seed, edits)
        assert num_calls(target.survives, data) < MOST_CALLS

    check()


def has_types(target):
    """Whether its contents are JSON or TOML, in which values have types."""
    drawn = random.Random(0)  # noqa: S311 - the same every time
    return any(value_types.retyped(seed, drawn) != seed for seed in target.seeds())


@pytest.mark.parametrize("target", [*filter(has_types, targets.TARGETS)], ids=lambda target: target.name)
def test_values_of_another_type_are_refused_or_read(target):
    drawn = random.Random(1)  # noqa: S311 - likewise
    for _ in range(NUM_RETYPED):
        data = drawn.choice(target.seeds())
        for _ in range(drawn.choice((1, 1, 2))):
            data = value_types.retyped(data, drawn)
        target.survives(data)


@pytest.mark.parametrize("path", sorted(FINDINGS.glob("*-*")), ids=lambda path: path.name)
def test_what_fuzzing_found_stays_mended(path):
    name = path.name.partition("-")[0]
    target = next(each for each in targets.TARGETS if each.name == name)
    target.survives(path.read_bytes())


def test_what_fuzzing_kept_is_refused_or_read():
    by_name = {target.name: target for target in targets.TARGETS}
    with tarfile.open(ROOT / "fuzz" / "corpus.tar.xz") as kept:
        members = kept.getmembers()
        assert members
        for member in members:
            by_name[member.name.partition("/")[0]].survives(kept.extractfile(member).read())
