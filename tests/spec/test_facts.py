"""Files of facts are read with limits: whatever a file holds, the answer is a table or a SpecError that names the place."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.spec import MAX_FILE_BYTES, canonical, read_blocks, shown
from equipoise.spec.catalogue import catalogue

KINDS = frozenset({"accelerator"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[accelerator.x\n", r"f\.toml:1: not TOML"),
        (b"[accelerator.x]\ntitle = \n", r"f\.toml:2: not TOML"),
        (b"[accelerator.x]\n[accelerator.x]\n", r"f\.toml:2: not TOML"),
        (b"a = " + b"[" * 3_000 + b"]" * 900, r"f\.toml:1: (nested|not TOML)"),
        (b"\n\n\xff\xfe", r"f\.toml:3: byte 0xff is not UTF-8"),
        (b'[accelerator.x]\ntitle = "a\x00b"\n', r"f\.toml:2: not TOML"),
        (b"x = " + b"9" * 3_900, r"f\.toml:1"),
        (b"x" * 5_000, r"f\.toml:1: a line of 5,000 characters"),
        (b"a." * 200 + b"a = 1", r"f\.toml:1: a line of .* and 200 dots"),
        (b"# \n" * (MAX_FILE_BYTES // 3 + 1), r"f\.toml: more than 1,000,000 bytes"),
        (b"x = 1979-13-45\n", r"f\.toml:1"),
        (b"accelerator = 1979-05-27\n", r"f\.toml:1: 'accelerator';.*\[accelerator"),
    ],
)
def test_hostile_files_are_refused_in_words(mine, data: bytes, message: str) -> None:
    path = mine(data, "f.toml")
    with pytest.raises(SpecError, match=message):
        list(read_blocks(path, KINDS))


def test_a_missing_file_and_a_folder_are_refused_in_words(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SpecError, match=re.escape(f"{path}: ")):
            list(read_blocks(path, KINDS))


@given(data=st.binary(max_size=400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_blocks_or_a_spec_error(mine, data: bytes) -> None:
    path = mine(data, "any.toml")
    refused = None
    try:
        blocks = list(read_blocks(path, KINDS))
    except SpecError as err:
        refused, blocks = str(err), []
    assert refused is None or "any.toml" in refused
    assert {block.kind for block in blocks} <= {"accelerator"}


@pytest.mark.parametrize(
    "data",
    [
        b"\n" * (MAX_FILE_BYTES - 1),
        (b" " * 3_999 + b"\n") * 240,
        b"".join(b"a%d" % number + b".b" * 50 + b"=1\n" for number in range(200)),
        b"[[accelerator.x]]\n" * 50_000,
        b"x = [" + b"\n[" * 400_000,
        b"".join(b"[accelerator.a%d]\n" % number for number in range(40_000)),
    ],
    ids=["empty lines", "spaces", "dotted keys", "array of tables", "open brackets", "many tables"],
)
def test_files_that_are_quadratic_to_read_carelessly_are_answered(mine, data: bytes) -> None:
    # A careless reader needs minutes to hours for each of these.
    path = mine(data, "f.toml")
    refused = ""
    try:
        blocks = list(read_blocks(path, KINDS))
    except SpecError as err:
        refused, blocks = str(err), []
    assert blocks or not data.strip() or "f.toml:1" in refused


def test_a_block_knows_its_line(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text('# one\n\n[accelerator.a]\nx = 1\n[accelerator."b-2"]\ny = 2\n', encoding="utf-8")
    assert [(block.slug, block.line) for block in read_blocks(path, KINDS)] == [("a", 3), ("b-2", 5)]


@pytest.mark.law
@given(st.text(max_size=60))
def test_canonical_spelling_is_a_fixed_point(raw: str) -> None:
    once = canonical(raw)
    assert canonical(once) == once


@pytest.mark.law
@given(st.text(alphabet="abcXYZ019 -_/", max_size=30))
def test_case_and_punctuation_do_not_matter(raw: str) -> None:
    other = raw.swapcase().replace("-", " ").replace("_", "/")
    assert canonical(other) == canonical(raw)


def test_letters_and_digits_do_matter() -> None:
    assert canonical("A40") != canonical("A400")
    assert canonical("H100-80GB") == "h100 80gb" == canonical("h100 (80 GB)")
    assert canonical("RTX\u2122 A5000") == "rtx a5000"


def test_what_is_too_long_for_a_name_is_no_spelling_of_one() -> None:
    raw = "A100" + "\u0316\u0301" * 1_000_000  # accents in the wrong order: sorting them is quadratic
    assert canonical(raw) == raw


def test_values_are_shown_short_whatever_they_are() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a list"
    assert shown(10**5000) == "a int"
    assert len(shown("x" * 1000)) == 80


OWN = {
    "accelerator": """[accelerator.mine-1gb]
title = "Mine"
vendor = "Example"
kind = "gpu"
source = "a datasheet"
confidence = "low"
""",
    "workload": """[workload.mine]
title = "Mine"
area = "vision"
source = "counted"
forward_flop_per_sample = 8.2e9
activation_bytes_per_sample = 43e6
""",
    "cluster": """[cluster.mine]
title = "Mine"
accelerators = ["h100"]
source = "a datasheet"
confidence = "low"
""",
}


@pytest.mark.parametrize(
    ("kind", "line", "words"),
    [
        ("accelerator", "memory_bytes = 192", "bytes.*192e9.*giga"),
        ("accelerator", "usable_memory_fraction = 90", "0.1 to 1 of"),
        ("accelerator", "memory_byte_per_s = 6e9", "1e\\+10.*bytes per second"),
        ("accelerator", "memory_byte_per_s = 900", "900e9"),
        ("accelerator", "link_byte_per_s = 600e12", "1e\\+14 bytes per second"),
        ("accelerator", "peak_bf16_flop_per_s = 989", "989e12.*tera"),
        ("accelerator", "power_w = 0.7", "watts.*0.7e3.*kilo"),
        ("accelerator", "power_w = 700e3", "watts"),
        ("accelerator", "intra_latency_s = 3.4", "seconds.*3.4e-6.*micro"),
        ("cluster", "inter_byte_per_s = 50", "50e9"),
        ("cluster", "inter_latency_s = 14", "14e-6"),
        ("workload", "params = 25.6", "25.6e9"),
        ("workload", "sequence_tokens = 4096e6", "tokens"),
        ("workload", "boundary_bytes_per_sample = 1.6", "1.6e9|1.6e6"),
        ("accelerator", "memory_bandwidth = 3e12", "'memory_byte_per_s'"),
        ("accelerator", "memory_gb = 80", "'memory_bytes'"),
        ("accelerator", "bf16_flops = 1e15", "'peak_bf16_flop_per_s'"),
    ],
)
def test_a_number_in_another_unit_is_refused_with_what_was_expected(mine, kind, line, words):
    path = mine(OWN[kind], "own.toml")
    given = {"workloads" if kind == "workload" else "hardware": [path]}
    assert catalogue(**given)
    path.write_text(f"{OWN[kind]}{line}\n")
    with pytest.raises(SpecError, match=f"{line.split(' ')[0]}.*{words}"):
        catalogue(**given)


@pytest.mark.parametrize(
    ("flop", "kept"), [("8.2", "43e6"), ("8.2e3", "43e6"), ("8.2e9", "43e9"), ("8.2e6", "43e6")]
)
def test_activations_that_no_product_makes_are_refused(mine, flop, kept):
    path = mine(OWN["workload"].replace("8.2e9", flop).replace("43e6", kept), "own.toml")
    with pytest.raises(SpecError, match=r"(forward_flop|activation_bytes)_per_sample.*expected"):
        catalogue(workloads=[path])
