"""What every kind of source gives for the same files: the same blobs, safely, in a fixed order."""

import gzip
import io
import lzma
import os
import pickle
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from local_git import git

from equipoise.errors import DataError
from equipoise.runs.sources import open_source

TREE = {
    "acme/results/x8/bert/result_0.txt": b":::MLLOG {}\n" * 1000,
    "acme/results/x8/bert/result_1.txt": b"",
    "acme/systems/x8.json": b"{}",
    "acme/" + "long_name_" * 12 + "/" + "y" * 120 + ".txt": b"past the 100 bytes of an old header",
    "zürich/результат.txt": b"text",
}


def everything(_path: str, _size: int) -> bool:
    return True


def blobs(path: Path, wanted=everything) -> dict[str, bytes]:
    source = open_source(path)
    found = {blob.path: blob.data for blob in source.files(wanted)}
    assert source.rejections == []
    return found


def tar_bytes(tree: dict[str, bytes], form: int = tarfile.GNU_FORMAT, prefix: str = "") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, data in tree.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def zstd_frame(data: bytes, window_log: int) -> bytes:
    """A zstd frame of raw blocks that declares a window of 2**window_log bytes (RFC 8878, 3.1.1)."""
    blocks = [data[start : start + 100_000] for start in range(0, len(data), 100_000)]
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, (window_log - 10) << 3])
    for number, block in enumerate(blocks, start=1):
        frame += (len(block) << 3 | (number == len(blocks))).to_bytes(3, "little") + block
    return frame


def write_tree(root: Path, tree: dict[str, bytes] = TREE) -> Path:
    for name, data in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = write_tree(tmp_path / "round")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=round")
    return folder


def test_a_folder_gives_its_files_sorted(tmp_path):
    root = write_tree(tmp_path / "round")
    source = open_source(root)
    paths = [blob.path for blob in source.files(everything)]
    assert paths == sorted(TREE, key=lambda path: path.encode().split(b"/"))
    assert blobs(root) == TREE
    assert (source.name, source.kind.name) == ("round", "directory")


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(
    "packed",
    [
        bytes,
        gzip.compress,
        lzma.compress,
        zstandard.compress,
        lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),
    ],
    ids=["tar", "gzip", "xz", "zstd", "two gzip members"],
)
def test_archives_are_known_by_content_whatever_their_name(mine, form, packed):
    path = mine(packed(tar_bytes(TREE, form)), "round.bin")
    assert open_source(path).kind.name == "archive"
    assert blobs(path) == TREE


def test_the_prefix_of_a_posix_header_is_joined(mine):
    tree = {"folder/" * 20 + "file.txt": b"1"}
    path = mine(tar_bytes(tree, tarfile.USTAR_FORMAT), "round.tar")
    assert blobs(path) == tree


def test_concatenated_and_padded_xz_streams_are_one_archive(mine):
    data = tar_bytes(TREE)
    path = mine(lzma.compress(data[:1000]) + bytes(8) + lzma.compress(data[1000:]) + bytes(4), "round.tar.xz")
    assert blobs(path) == TREE


def test_concatenated_zstd_frames_are_one_archive(mine):
    data = tar_bytes(TREE)
    path = mine(zstandard.compress(data[:1000]) + zstandard.compress(data[1000:]), "round.tar.zst")
    assert blobs(path) == TREE


def test_the_skippable_frames_of_parallel_zstd_are_passed_over(mine):
    frame = zstandard.compress(tar_bytes(TREE))
    path = mine(
        b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + len(frame).to_bytes(4, "little") + frame,
        "round.bin",
    )
    assert blobs(path) == TREE


@pytest.mark.parametrize("window_log", [27, 31])
def test_long_zstd_windows_are_read(mine, window_log):
    path = mine(zstd_frame(tar_bytes(TREE), window_log), "round.tar.zst")
    assert zstandard.get_frame_parameters(path.read_bytes()).window_size == 2**window_log
    assert blobs(path) == TREE


def test_matches_across_a_long_window_are_resolved(mine):
    # The second copy lies 9 MB after the first: beyond the 8 MB window that decoders allow by default.
    noise = os.urandom(9_000_000)
    tree = {"a.txt": noise, "b.txt": noise}
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True, compression_level=1)
    path = mine(
        zstandard.ZstdCompressor(compression_params=parameters).compress(tar_bytes(tree)), "round.tar.zst"
    )
    assert path.stat().st_size < 10_000_000
    assert blobs(path) == tree


def test_an_archive_keeps_its_order_and_drops_dots(mine):
    path = mine(tar_bytes({"b.txt": b"2", "a.txt": b"1"}, prefix="./"), "round.tar")
    assert [blob.path for blob in open_source(path).files(everything)] == ["b.txt", "a.txt"]


def test_a_bare_repository_is_read_without_checkout(tmp_path, repository):
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare.git")
    bare = tmp_path / "bare.git"
    assert (open_source(bare).kind.name, open_source(bare).name) == ("git", "bare.git")
    assert blobs(bare) == TREE


def test_packed_and_loose_objects_are_read_the_same(repository):
    assert blobs(repository / ".git") == TREE
    git(repository, "gc", "--quiet")
    assert blobs(repository / ".git") == TREE
    assert open_source(repository / ".git").name == "round"


def test_a_clone_without_checkout_is_read_through_git(tmp_path, repository):
    git(tmp_path, "clone", "--quiet", "--no-checkout", str(repository), "clone")
    assert open_source(tmp_path / "clone").kind.name == "git"
    assert blobs(tmp_path / "clone") == TREE


def test_a_work_tree_with_files_is_read_as_it_lies(repository):
    (repository / "acme/systems/x8.json").write_bytes(b"edited")
    assert open_source(repository).kind.name == "directory"
    assert blobs(repository) == TREE | {"acme/systems/x8.json": b"edited"}


def test_the_only_branch_is_read_when_head_names_another(tmp_path, repository):
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=trunk", "bare.git")
    git(repository, "push", "--quiet", str(tmp_path / "bare.git"), "main")
    assert blobs(tmp_path / "bare.git") == TREE


def test_an_archive_made_by_git_is_read(tmp_path, repository):
    # Its first member is a pax global header with the commit; hosts of git offer such archives for download.
    git(repository, "archive", "--prefix=round-main/", f"--output={tmp_path}/round.tar.gz", "HEAD")
    assert blobs(tmp_path / "round.tar.gz") == {f"round-main/{name}": data for name, data in TREE.items()}


def test_a_repository_without_commits_is_reported(tmp_path):
    git(tmp_path, "init", "--quiet", "--bare", "bare.git")
    source = open_source(tmp_path / "bare.git")
    assert list(source.files(everything)) == []
    assert [each.kind for each in source.rejections] == ["git_failed"]
    assert "HEAD" in source.rejections[0].detail


def test_one_file_is_a_source(mine):
    path = mine(b":::MLLOG {}\n", "result_0.txt")
    assert open_source(path).kind.name == "file"
    assert blobs(path) == {"result_0.txt": b":::MLLOG {}\n"}


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress, zstandard.compress])
def test_one_compressed_file_is_what_was_compressed(tmp_path, packed):
    path = tmp_path / "result_0.txt.packed"
    for text in (b":::MLLOG {}\n", b":::MLLOG {}\n" * 1000, b""):
        path.write_bytes(packed(text))
        assert open_source(path).kind.name == "file"
        assert blobs(path) == {path.name: text}


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress])
def test_one_compressed_file_that_is_cut_is_damaged(mine, packed):
    path = mine(packed(os.urandom(4096))[:2000], "result_0.txt.packed")
    source = open_source(path)
    assert list(source.files(everything)) == []
    assert [each.kind for each in source.rejections] == ["corrupt_archive"]


def test_a_link_named_by_the_user_is_followed(tmp_path):
    write_tree(tmp_path / "round")
    (tmp_path / "folder").symlink_to(tmp_path / "round")
    (tmp_path / "log.txt").symlink_to(tmp_path / "round/acme/systems/x8.json")
    assert blobs(tmp_path / "folder") == TREE
    assert blobs(tmp_path / "log.txt") == {"log.txt": b"{}"}


@pytest.mark.parametrize("kind", ["folder", "archive", "git"])
def test_unwanted_files_are_neither_given_nor_judged_by_size(mine, repository, kind):
    archive = mine(tar_bytes(TREE), "round.tar")
    path = {"folder": repository, "archive": archive, "git": repository / ".git"}[kind]
    sizes = {}

    def wanted(name: str, size: int) -> bool:
        sizes[name] = size
        return name.endswith(".json")

    assert blobs(path, wanted) == {"acme/systems/x8.json": b"{}"}
    assert sizes == {name: len(data) for name, data in TREE.items()}


def test_a_source_can_be_pickled_and_read_twice(mine):
    path = mine(gzip.compress(tar_bytes({"../evil": b"", "a": b"1"})), "round.tar.gz")
    source = pickle.loads(pickle.dumps(open_source(path)))  # noqa: S301 - our own bytes
    for _ in range(2):
        assert [blob.data for blob in source.files(everything)] == [b"1"]
        assert [each.kind for each in source.rejections] == ["unsafe_path"]


def test_what_is_no_source_is_a_data_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe: .*; expected .*checkout"):
        open_source(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"absent: .*; expected .*checkout, .*archive, .*repository .*log"):
        open_source(tmp_path / "absent")
    with pytest.raises(DataError, match="null"):
        open_source(Path("a\x00b"))


NAMES = st.lists(
    st.text("abc.-_ é", min_size=1, max_size=70).filter(lambda part: part not in {".", ".."}),
    min_size=1,
    max_size=4,
)
TREES = st.dictionaries(NAMES.map("/".join), st.binary(max_size=1500), max_size=6)


@pytest.mark.law
@given(tree=TREES, form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
@settings(deadline=None, max_examples=60)
def test_any_tar_that_tarfile_writes_is_read_back(tmp_path_factory, tree, form):
    path = tmp_path_factory.getbasetemp() / "any.tar"
    path.write_bytes(tar_bytes(tree, form))
    assert blobs(path) == tree


def test_a_real_round_equals_what_tarfile_reads(data_dir):
    path = data_dir / "mlperf/training_results_v0.7.tar.zst"
    decoder = zstandard.ZstdDecompressor(max_window_size=2**27)
    with path.open("rb") as file, tarfile.open(fileobj=decoder.stream_reader(file), mode="r|") as archive:
        expected = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    assert blobs(path) == expected
