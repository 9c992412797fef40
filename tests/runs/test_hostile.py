"""Sources that attack: each gives clear refusals, bounded memory, no write, no wait and no exception."""

import gzip
import io
import json
import lzma
import os
import re
import shutil
import socket
import tarfile
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from command_line import in_process
from hypothesis import given, settings
from hypothesis import strategies as st
from local_git import git

from equipoise.errors import UsageError
from equipoise.runs import RowRejection
from equipoise.runs.ingest import ingest
from equipoise.runs.sources import gate, open_source
from equipoise.units import GIB, MIB

Outcome = tuple[dict[str, bytes], list[RowRejection]]


def everything(_path: str, _size: int) -> bool:
    return True


def read(path: Path, wanted=everything) -> Outcome:
    source = open_source(path)
    found = {blob.path: blob.data for blob in source.files(wanted)}
    return found, source.rejections


def header(name: bytes, size: int = 0, flag: bytes = b"0", size_field: bytes | None = None) -> bytes:
    """One tar header, by hand, so that it can say what no tool writes."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124:136] = size_field if size_field is not None else b"%011o\x00" % size
    block[156:157] = flag
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\x00 " % sum(block)
    return bytes(block)


def member(name: bytes, data: bytes, flag: bytes = b"0") -> bytes:
    return header(name, len(data), flag) + data + bytes(-len(data) % 512)


END = bytes(1024)
GOOD = member(b"good.txt", b"good")


def archive(tmp_path: Path, *parts: bytes, name: str = "round.tar") -> Path:
    path = tmp_path / name
    path.write_bytes(b"".join(parts))
    return path


def zeros(num_bytes: int) -> bytes:
    """A zstd frame that expands to num_bytes zeros, 4 bytes for each 128 KiB (RFC 8878: RLE blocks)."""
    blocks, rest = divmod(num_bytes, 2**17)
    assert rest == 0
    block = (2**17 << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    last = (1).to_bytes(3, "little")  # an empty raw block, the last one
    return b"\x28\xb5\x2f\xfd" + bytes([0, (17 - 10) << 3]) + block * blocks + last


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (b"../evil.txt", "a path with `..`"),
        (b"a/../../evil.txt", "a path with `..`"),
        (b"/etc/evil.txt", "absolute path"),
        (b"C:/evil.txt", "drive letter"),
        (b"a\\..\\evil.txt", "backslash"),
        (b"a\nb.txt", "control character"),
        (b"\x1b[2Jevil.txt", "control character"),
        (b"./.", "empty path"),
        (b"a/" * 49 + b"a", None),
    ],
)
def test_names_that_lead_outside_are_refused(tmp_path, name, words):
    outside = sorted(tmp_path.parent.iterdir())
    found, rejections = read(archive(tmp_path, member(name, b"evil"), GOOD, END))
    if words is None:
        assert set(found) == {name.decode(), "good.txt"}
    else:
        assert found == {"good.txt": b"good"}
        assert [each.kind for each in rejections] == ["unsafe_path"]
        assert words in rejections[0].detail
        assert rejections[0].where.startswith("round.tar:")
        assert "\x1b" not in rejections[0].where
    assert sorted(tmp_path.iterdir()) == [tmp_path / "round.tar"]
    assert sorted(tmp_path.parent.iterdir()) == outside


def test_a_nul_in_a_pax_path_is_refused(tmp_path):
    record = b"path=a\x00/../b\n"
    record = b"%d " % (len(record) + 3) + record
    found, rejections = read(
        archive(tmp_path, member(b"pax", record, b"x"), member(b"x", b"evil"), GOOD, END)
    )
    assert found == {"good.txt": b"good"}
    assert [each.kind for each in rejections] == ["unsafe_path"]


def test_a_very_deep_path_is_refused(tmp_path):
    long_name = member(b"././@LongLink", b"d/" * 3000 + b"f\x00", b"L")
    found, rejections = read(archive(tmp_path, long_name, member(b"x", b"evil"), GOOD, END))
    assert found == {"good.txt": b"good"}
    assert "3001 deep" in rejections[0].detail
    assert len(rejections[0].where) < 300


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        (b"1", "hard link"),
        (b"2", "symbolic link"),
        (b"3", "character device"),
        (b"4", "block device"),
        (b"6", "named pipe"),
    ],
)
def test_links_and_devices_are_refused_by_kind(tmp_path, flag, words):
    found, rejections = read(archive(tmp_path, header(b"result_0.txt", flag=flag), GOOD, END))
    assert found == {"good.txt": b"good"}
    assert [(each.kind, each.where) for each in rejections] == [
        ("not_a_regular_file", "round.tar:result_0.txt")
    ]
    assert words in rejections[0].detail


def test_an_unknown_type_of_member_is_refused_and_passed_over(tmp_path):
    found, rejections = read(archive(tmp_path, member(b"odd", b"x" * 700, b"Q"), GOOD, END))
    assert found == {"good.txt": b"good"}
    assert "type 'Q'" in rejections[0].detail


def test_sparse_members_are_refused_and_passed_over(tmp_path):
    old = bytearray(header(b"huge.txt", 512, b"S"))
    old[482] = 1  # one more block of the map follows
    old[148:156] = b" " * 8
    old[148:156] = b"%06o\x00 " % sum(old)
    record = b"30 GNU.sparse.realsize=999999\n"
    new = member(b"pax", record, b"x") + member(b"huger.txt", b"1")
    assert len(record) == 30
    found, rejections = read(archive(tmp_path, bytes(old) + bytes(512) + b"x" * 512, new, GOOD, END))
    assert found == {"good.txt": b"good"}
    assert [each.kind for each in rejections] == ["not_a_regular_file"] * 2
    assert all("sparse" in each.detail for each in rejections)


def test_a_second_member_of_one_path_is_refused(tmp_path):
    found, rejections = read(archive(tmp_path, GOOD, member(b"./good.txt", b"evil"), END))
    assert found == {"good.txt": b"good"}
    assert [each.kind for each in rejections] == ["duplicate_member"]


def test_a_huge_file_is_refused_without_being_held(tmp_path):
    size = gate.MAX_FILE_BYTES + 2**20
    path = archive(tmp_path, zeros(size), name="round.tar.zst")
    frame = zstandard.compress(header(b"huge.txt", size)) + zeros(size) + zstandard.compress(GOOD + END)
    path.write_bytes(frame)
    tracemalloc.start()
    found, rejections = read(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == {"good.txt": b"good"}
    assert [each.kind for each in rejections] == ["too_large"]
    assert f"at most {gate.MAX_FILE_BYTES:,}" in rejections[0].detail
    assert peak_bytes < 8 * MIB


def test_a_bomb_is_left_early_and_reported(tmp_path):
    path = archive(tmp_path, zstandard.compress(header(b"bomb.txt", GIB)) + zeros(GIB), name="round.tar.zst")
    assert path.stat().st_size < 40_000
    found, rejections = read(path, lambda _path, _size: False)
    assert found == {}
    assert [each.kind for each in rejections] == ["bomb"]
    assert "268,435,456 bytes" in rejections[0].detail


def test_a_gigantic_size_field_is_refused(tmp_path):
    giant = header(b"giant.txt", size_field=b"\x80" + b"\xff" * 11)
    found, rejections = read(archive(tmp_path, GOOD, giant, END))
    assert found == {"good.txt": b"good"}
    assert [each.kind for each in rejections] == ["corrupt_archive"]


@pytest.mark.parametrize("field", [b"\xff" * 12, b"99999999999\x00", b"nonsense!!!\x00"])
def test_a_nonsensical_size_field_is_refused(tmp_path, field):
    found, rejections = read(archive(tmp_path, GOOD, header(b"x", size_field=field), END))
    assert found == {"good.txt": b"good"}
    assert [each.kind for each in rejections] == ["corrupt_archive"]


@pytest.mark.parametrize(
    "record", [b"99 path=a\n", b"path=a\n", b"10 path=abcdef", b"12 size=-500\n", b"9999999 size=1\n"]
)
def test_a_malformed_pax_record_is_refused(tmp_path, record):
    found, rejections = read(archive(tmp_path, GOOD, member(b"pax", record, b"x"), member(b"x", b""), END))
    assert found == {"good.txt": b"good"}
    assert [each.kind for each in rejections] == ["corrupt_archive"]


def test_a_huge_extended_header_is_refused_unread(tmp_path):
    found, rejections = read(archive(tmp_path, GOOD, header(b"x", 2**30, b"x"), END))
    assert found == {"good.txt": b"good"}
    assert "1,073,741,824 bytes" in rejections[0].detail


def test_ten_thousand_chained_extended_headers_end_without_recursion(tmp_path):
    chain = member(b"././@LongLink", b"name.txt\x00", b"L") * 10_000
    found, rejections = read(archive(tmp_path, chain, member(b"x", b"1"), END))
    assert (found, rejections) == ({"name.txt": b"1"}, [])


@pytest.mark.parametrize(
    "packed", [bytes, gzip.compress, lzma.compress, zstandard.compress], ids=["tar", "gz", "xz", "zst"]
)
@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_truncated_archive_is_reported_and_keeps_what_came_before(tmp_path, packed, keep):
    noise = [os.urandom(3000) for _ in range(10)]
    whole = packed(b"".join(member(b"%d.txt" % number, data) for number, data in enumerate(noise)) + END)
    found, rejections = read(archive(tmp_path, whole[: int(keep * len(whole))], name="round.tar"))
    assert [each.kind for each in rejections] in (["truncated_archive"], ["corrupt_archive"])
    assert list(found.values()) == noise[: len(found)]
    assert len(found) < 10


def test_a_missing_end_marker_is_reported(tmp_path):
    found, rejections = read(archive(tmp_path, GOOD))
    assert found == {"good.txt": b"good"}
    assert [each.kind for each in rejections] == ["truncated_archive"]


def test_a_too_long_window_is_refused(tmp_path):
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, (31 - 10) << 3 | 1]) + (1).to_bytes(3, "little")
    found, rejections = read(archive(tmp_path, frame, name="round.tar.zst"))
    assert found == {}
    assert [each.kind for each in rejections] == ["corrupt_archive"]
    assert "memory" in rejections[0].detail


@pytest.mark.parametrize(
    ("head", "name"), [(b"PK\x03\x04", "zip"), (b"BZh9", "bzip2"), (b"7z\xbc\xaf\x27\x1c", "7z")]
)
def test_other_archives_are_named_with_what_to_do(tmp_path, head, name):
    _, rejections = read(archive(tmp_path, head + bytes(600)))
    assert [each.kind for each in rejections] == ["unsupported_archive"]
    assert re.search(rf"\b{name} .*zstd, gzip .*xz", rejections[0].detail)


def test_refusals_are_bounded(tmp_path):
    links = header(b"link", flag=b"2") * (gate.MAX_REJECTIONS + 5)
    _, rejections = read(archive(tmp_path, links, GOOD, END))
    assert len(rejections) == gate.MAX_REJECTIONS + 1
    assert rejections[-1].kind == "too_many_refusals"


LIMITED = (
    (gate.ReadLimits(max_members=3), "too_many_members", r"\b3 members.*--max-members"),
    (gate.ReadLimits(max_bytes=5000), "too_many_bytes", r"\b5,000 bytes.*--max-bytes"),
    (gate.ReadLimits(max_seconds=1e-9), "too_slow", "--max-seconds"),
)


@pytest.mark.parametrize(("limits", "kind", "words"), LIMITED, ids=lambda value: str(value)[:40])
def test_what_is_read_of_a_source_is_limited_and_the_option_is_named(limits, kind, words, tmp_path):
    contents = {f"{number}.txt": b"x" * 1000 for number in range(10)}
    (tmp_path / "folder").mkdir()
    packed = tmp_path / "round.tar.gz"
    with tarfile.open(packed, "w:gz") as file:
        for name, content in contents.items():
            (tmp_path / "folder" / name).write_bytes(content)
            file.add(tmp_path / "folder" / name, name)
    for path in (packed, tmp_path / "folder"):
        source = open_source(path, limits)
        found = list(source.files(everything))
        assert len(found) < len(contents)
        assert [each.kind for each in source.rejections] == [kind]
        assert re.search(words, source.rejections[0].detail)


def test_a_limit_that_lets_nothing_pass_is_refused():
    for name in ("max_members", "max_bytes", "max_seconds"):
        for number in (0, -1, float("nan")):
            with pytest.raises(UsageError, match=name):
                gate.ReadLimits(**{name: number})


def test_a_million_empty_members_are_not_read_to_their_end(tmp_path):
    block = b"".join(
        header(f"v4.1/Org/results/S{number}/bert/result_0.txt".encode()) for number in range(1000)
    )
    path = tmp_path / "round.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(1001):
            file.write(block)
    report = ingest(path, num_workers=1)
    assert {"too_many_members", "too_many_refusals"} & set(report.rejected.kinds)


def test_the_command_line_sets_the_limits():
    example = Path(__file__).resolve().parents[2] / "docs" / "examples" / "h200-v5.0.tar.gz"
    whole = json.loads(in_process("ingest", example, "--json").stdout)
    ended = in_process("ingest", example, "--max-members", "40", "--json")
    cut = json.loads(ended.stdout)
    assert "too_many_members" in json.dumps(cut)
    assert "too_many_members" not in json.dumps(whole)
    assert in_process("ingest", example, "--max-seconds", "0").returncode == 2


def test_a_folder_with_pipes_links_and_sockets_never_waits(tmp_path):
    root = tmp_path / "round"
    (root / "deep").mkdir(parents=True)
    (root / "good.txt").write_bytes(b"good")
    os.mkfifo(root / "pipe.txt")
    (root / "deep" / "loop").symlink_to(root)
    (root / "passwd.txt").symlink_to("/etc/passwd")
    (root / "gone.txt").symlink_to(root / "nowhere")
    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(root)  # the path of a socket is limited to 108 bytes
        listener.bind("s")
        os.chdir(before)
        found, rejections = read(root)
    assert found == {"good.txt": b"good"}
    assert {each.where: each.detail.split(";")[0] for each in rejections} == {
        "round:deep/loop": "a symbolic link",
        "round:gone.txt": "a symbolic link",
        "round:passwd.txt": "a symbolic link",
        "round:pipe.txt": "a named pipe",
        "round:s": "a socket",
    }


def test_odd_names_in_a_folder_are_text_or_refused(tmp_path):
    root = os.fsencode(tmp_path / "round")
    (tmp_path / "round").mkdir()
    for name in (b"caf\xe9.txt", b"new\nline.txt", b"back\\slash.txt"):
        Path(os.fsdecode(root + b"/" + name)).write_bytes(b"1")
    found, rejections = read(tmp_path / "round")
    assert found == {"café.txt": b"1"}
    assert sorted(each.where for each in rejections) == ["round:back\\slash.txt", "round:new\\x0aline.txt"]


def test_very_deep_folders_are_not_entered(tmp_path):
    deep = tmp_path / "round" / "/".join("d" for _ in range(100))
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"1")
    found, rejections = read(tmp_path / "round")
    assert found == {}
    assert [each.kind for each in rejections] == ["unsafe_path"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_and_folders_are_reported(tmp_path):
    root = tmp_path / "round"
    (root / "closed").mkdir(parents=True)
    (root / "closed").chmod(0)
    (root / "secret.txt").write_bytes(b"1")
    (root / "secret.txt").chmod(0)
    try:
        found, rejections = read(root)
    finally:
        (root / "closed").chmod(0o700)
    assert found == {}
    assert [(each.kind, each.detail) for each in rejections] == [("unreadable", "Permission denied")] * 2


def test_a_huge_sparse_file_in_a_folder_is_refused_unread(tmp_path):
    root = tmp_path / "round"
    root.mkdir()
    with (root / "huge.txt").open("wb") as file:
        file.truncate(GIB)
    found, rejections = read(root)
    assert found == {}
    assert [each.kind for each in rejections] == ["too_large"]


def test_a_file_that_vanishes_while_it_is_read_is_reported(tmp_path):
    root = tmp_path / "round"
    root.mkdir()
    (root / "gone.txt").write_bytes(b"1")

    def removing(path: str, _size: int) -> bool:
        (root / path).unlink()
        return True

    found, rejections = read(root, removing)
    assert found == {}
    assert [(each.kind, each.where) for each in rejections] == [("unreadable", "round:gone.txt")]


def test_a_file_swapped_for_a_link_or_pipe_is_not_followed(tmp_path):
    root = tmp_path / "round"
    root.mkdir()
    for name in ("a.txt", "b.txt"):
        (root / name).write_bytes(b"1")

    def swapping(path: str, _size: int) -> bool:
        (root / path).unlink()
        if path == "a.txt":
            (root / path).symlink_to("/etc/passwd")
        else:
            os.mkfifo(root / path)
        return True

    found, rejections = read(root, swapping)
    assert found == {}
    assert [each.kind for each in rejections] == ["unreadable", "unreadable"]


def git_repository(tmp_path: Path, *entries: tuple[str, str, str]) -> Path:
    """A bare repository whose tree holds the entries (mode, name, content or object name), as plumbing allows them."""
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", "bare.git")
    bare = tmp_path / "bare.git"
    lines = ""
    for mode, name, content in entries:
        kind = "commit" if mode == "160000" else "tree" if mode == "040000" else "blob"
        known = kind != "blob"
        lines += f"{mode} {kind} {content if known else git(bare, 'hash-object', '-w', '--stdin', stdin=content.encode())}\t{name}\n"
    tree = git(bare, "mktree", "--missing", stdin=lines.encode())
    git(bare, "update-ref", "refs/heads/main", git(bare, "commit-tree", tree, "-m", "round"))
    return bare


def test_links_and_submodules_of_a_repository_are_refused(tmp_path):
    bare = git_repository(
        tmp_path,
        ("100644", "good.txt", "good"),
        ("120000", "link.txt", "/etc/passwd"),
        ("160000", "module", "1" * 40),
    )
    found, rejections = read(bare)
    assert found == {"good.txt": b"good"}
    assert {each.where: each.detail.split(";")[0] for each in rejections} == {
        "bare.git:link.txt": "a symbolic link",
        "bare.git:module": "a submodule",
    }


def test_a_repository_cannot_run_anything(tmp_path, mine):
    bare = git_repository(
        tmp_path, ("100644", "a.txt", "text"), ("100644", ".gitattributes", "*.txt diff=evil filter=evil")
    )
    trap = tmp_path / "trap"
    script = mine(f"#!/bin/sh\ntouch {trap}\n", "evil.sh")
    script.chmod(0o755)
    (bare / "config").write_text(
        (bare / "config").read_text()
        + f"""[core]
\tfsmonitor = {script}
\tpager = {script}
\tsshCommand = {script}
\talternateRefsCommand = {script}
[diff "evil"]
\ttextconv = {script}
\tcommand = {script}
[filter "evil"]
\tsmudge = {script}
[alias]
\tcat-file = !{script}
\tls-tree = !{script}
[remote "origin"]
\turl = ext::{script}
\tpromisor = true
[extensions]
\tpartialClone = origin
"""
    )
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc"):
        shutil.copy(script, bare / "hooks" / hook)
    before = sorted(bare.rglob("*"))
    found, rejections = read(bare)
    assert found == {".gitattributes": b"*.txt diff=evil filter=evil", "a.txt": b"text"}
    assert rejections == []
    assert sorted(bare.rglob("*")) == before
    assert not trap.exists()


def test_missing_objects_are_reported_and_not_fetched(tmp_path):
    bare = git_repository(tmp_path, ("100644", "a.txt", "kept"), ("100644", "b.txt", "lost"))
    trap = tmp_path / "trap"
    lost = git(bare, "hash-object", "--stdin", stdin=b"lost")
    (bare / "objects" / lost[:2] / lost[2:]).unlink()
    for key, value in (
        ("remote.o.url", f"ext::touch {trap}"),
        ("remote.o.promisor", "true"),
        ("extensions.partialClone", "o"),
    ):
        git(bare, "config", key, value)
    found, rejections = read(bare)
    assert found.get("a.txt", b"kept") == b"kept"
    assert "b.txt" not in found
    assert rejections
    assert {each.kind for each in rejections} <= {"unreadable", "git_failed"}
    assert not trap.exists()


def test_a_corrupt_object_ends_the_reading_with_a_reason(tmp_path):
    bare = git_repository(tmp_path, ("100644", "a.txt", "kept"), ("100644", "b.txt", "lost"))
    lost = git(bare, "hash-object", "--stdin", stdin=b"lost")
    path = bare / "objects" / lost[:2] / lost[2:]
    path.chmod(0o644)
    path.write_bytes(b"garbage")
    _, rejections = read(bare)
    assert {each.kind for each in rejections} <= {"unreadable", "git_failed"}
    assert rejections


def test_a_pipe_in_place_of_a_git_file_does_not_wait(tmp_path):
    bare = git_repository(tmp_path, ("100644", "a.txt", "text"))
    (bare / "HEAD").unlink()
    os.mkfifo(bare / "HEAD")
    found, rejections = read(bare)
    assert found == {}
    assert [each.kind for each in rejections] == ["git_failed"]
    assert "HEAD" in rejections[0].detail


def test_a_tree_bomb_is_not_followed_to_its_end(tmp_path):
    bare = git_repository(tmp_path, *((("100644", f"{number}.txt", "x")) for number in range(10)))
    tree = git(bare, "rev-parse", "main^{tree}")
    for _ in range(12):  # 10**13 files
        tree = git(
            bare, "mktree", stdin="".join(f"040000 tree {tree}\td{number}\n" for number in range(10)).encode()
        )
    git(bare, "update-ref", "refs/heads/main", git(bare, "commit-tree", tree, "-m", "bomb"))
    source = open_source(bare)
    door = gate.Gate(
        source="bare.git",
        wanted=lambda _path, _size: False,
        rejections=[],
        num_members=gate.ReadLimits().max_members - 500,
    )
    with pytest.raises(gate.SourceEndError, match="more than 50,000 members"):
        list(source.kind.files(bare, door))


def test_the_environment_cannot_redirect_git(tmp_path, monkeypatch):
    bare = git_repository(tmp_path, ("100644", "a.txt", "text"))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", "/nonexistent")
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    assert read(bare) == ({"a.txt": b"text"}, [])
    assert not (tmp_path / "trace").exists()


def test_without_git_the_reason_is_reported(tmp_path, monkeypatch):
    bare = git_repository(tmp_path, ("100644", "a.txt", "text"))
    monkeypatch.setenv("PATH", str(tmp_path))
    found, rejections = read(bare)
    assert found == {}
    assert [each.kind for each in rejections] == ["git_failed"]
    assert "`git`" in rejections[0].detail


MAGICS = st.sampled_from(
    [b"", b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08\x00", b"\xfd7zXZ\x00", b"PK\x03\x04", header(b"a.txt", 700)]
)
SUFFIXES = st.sampled_from([".txt", ".tar", ".tar.zst", ".tar.gz", ".tgz", ".tar.xz"])


@pytest.mark.law
@given(magic=MAGICS, soup=st.binary(max_size=3000), suffix=SUFFIXES)
@settings(deadline=None, max_examples=150)
def test_any_bytes_give_blobs_or_refusals(tmp_path_factory, magic, soup, suffix):
    path = tmp_path_factory.getbasetemp() / f"soup{suffix}"
    path.write_bytes(magic + soup)
    found, rejections = read(path)
    assert found or rejections or not (magic + soup).strip(b"\x00") or magic.startswith(b"a.txt")
    for each in rejections:
        assert each.kind
        assert each.detail
        assert each.where.startswith("soup")


@st.composite
def mutated(draw):
    """A real archive with some bytes changed, perhaps compressed after."""
    tree = {"acme/results/x8/bert/result_0.txt": b"line\n" * 200, "b" * 120: b"long", "c": b""}
    file = io.BytesIO()
    form = draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    with tarfile.open(fileobj=file, mode="w", format=form) as whole:
        for name, data in tree.items():
            if form != tarfile.USTAR_FORMAT or len(name) < 100:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                whole.addfile(info, io.BytesIO(data))
    data = bytearray(file.getvalue()[: draw(st.integers(0, 8192))])
    for position, value in draw(st.lists(st.tuples(st.integers(0, 8191), st.integers(0, 255)), max_size=8)):
        if position < len(data):
            data[position] = value
    if len(data) >= 512 and draw(
        st.booleans()
    ):  # make the first header valid again, so that its fields are believed
        data[148:156] = b" " * 8
        data[148:156] = b"%06o\x00 " % sum(data[:512])
    return draw(st.sampled_from([bytes, gzip.compress, zstandard.compress]))(bytes(data))


@pytest.mark.law
@given(data=mutated())
@settings(deadline=None, max_examples=300)
def test_any_damage_to_an_archive_gives_safe_paths_and_refusals(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.tar"
    path.write_bytes(data)
    found, _ = read(path)
    assert [name for name in found if name.startswith("/") or ".." in name.split("/")] == []
