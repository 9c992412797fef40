"""Files of facts are read with limits: whatever a file holds, the answer is a table or a SpecError that names the place."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.spec import MAX_FILE_BYTES, canonical, read_blocks, shown

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
def test_hostile_files_are_refused_in_words(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "f.toml"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=message):
        list(read_blocks(path, KINDS))


def test_a_missing_file_and_a_folder_are_refused_in_words(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SpecError, match=re.escape(f"{path}: ")):
            list(read_blocks(path, KINDS))


@given(data=st.binary(max_size=400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_blocks_or_a_spec_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(data)
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
def test_files_that_are_quadratic_to_read_carelessly_are_answered(tmp_path: Path, data: bytes) -> None:
    # A careless reader needs minutes to hours for each of these.
    path = tmp_path / "f.toml"
    path.write_bytes(data)
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
