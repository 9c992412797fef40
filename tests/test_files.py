"""Files that users name, as they are: links, pipes, devices, folders; never more than was asked for."""

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest
from command_line import equipoise

from equipoise.economics.quotes import read_quotes
from equipoise.errors import DataError, UsageError
from equipoise.files import (
    expect_folder,
    one_path,
    parsed_json,
    parsed_toml,
    read_input,
    written,
    written_synced,
)
from equipoise.library.checks import validate
from equipoise.library.decisions import file_values
from equipoise.spec.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[1]
TOPOLOGY = ROOT / "docs" / "examples" / "topology.txt"
# Every verb and option that writes a file of the user's choice.
OUTPUTS = (
    ("list", "rounds", "--json-out"),
    ("topology", TOPOLOGY, "--html"),
    ("export", "scores", "--round", "v4.1", "--format", "csv", "--out"),
)


def put(path, content, write=written):
    with write(path) as file:
        file.write(content)


@pytest.fixture
def device(tmp_path):
    """A character device like /dev/null, of our own."""
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")
    except OSError:
        pytest.skip("only root may make devices, and not everywhere")
    return path


@pytest.mark.parametrize("options", OUTPUTS, ids=lambda options: f"{options[0]} {options[-1]}")
def test_a_device_that_is_written_to_stays_a_device(options, device):
    ended = equipoise(*options, device)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert [path.name for path in device.parent.iterdir()] == [device.name]


@pytest.mark.parametrize("options", OUTPUTS, ids=lambda options: f"{options[0]} {options[-1]}")
def test_a_pipe_that_is_written_to_stays_a_pipe_and_brings_all(options, tmp_path):
    plain, pipe = tmp_path / "plain", tmp_path / "pipe"
    assert equipoise(*options, plain).returncode == 0
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    ended = equipoise(*options, pipe)
    reader.join()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert read == [plain.read_bytes()]


def test_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    ended = equipoise("list", "rounds", "--json-out", tmp_path / "pipe", timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert str(tmp_path / "pipe") in ended.stderr


def test_the_target_of_a_link_is_replaced_and_the_link_stays(tmp_path):
    target, link = tmp_path / "real" / "target.json", tmp_path / "link.json"
    target.parent.mkdir()
    target.write_bytes(b"before")
    target.chmod(0o640)
    link.symlink_to("real/target.json")
    put(link, b"after")
    assert link.is_symlink()
    assert target.read_bytes() == b"after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in target.parent.iterdir()] == ["target.json"]


def test_a_link_to_nothing_makes_its_target(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "new")
    put(tmp_path / "link", b"content", written_synced)
    assert (tmp_path / "new").read_bytes() == b"content"
    assert (tmp_path / "link").is_symlink()


def test_a_link_in_a_circle_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for write in (written, written_synced):
        with pytest.raises(UsageError, match="link"):
            put(tmp_path / "a", b"x", write)


@pytest.mark.parametrize("options", OUTPUTS, ids=lambda options: f"{options[0]} {options[-1]}")
def test_standard_output_by_its_name_is_written_to(options, tmp_path):
    out = tmp_path / "out"
    with out.open("wb") as file:
        subprocess.run(
            [sys.executable, "-m", "equipoise", *options, "/dev/stdout"], stdout=file, check=True, timeout=120
        )
    plain = tmp_path / "plain"
    assert equipoise(*options, plain).returncode == 0
    assert plain.read_bytes() in out.read_bytes()


def test_tables_replace_no_pipe_and_no_folder(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="regular file"):
        put(path, b"x", written_synced)
    assert stat.S_ISFIFO(path.lstat().st_mode)
    with pytest.raises(UsageError, match="directory"):
        put(tmp_path, b"x", written_synced)


ADVICE = ("advise", "llama2_70b_lora", "--accelerator", "h200", "--max-accelerators", "8")


@pytest.mark.parametrize(
    "options",
    [*OUTPUTS, *((*ADVICE, option) for option in ("--json-out", "--html", "--record"))],
    ids=lambda options: f"{options[0]} {options[-1]}",
)
def test_a_full_disk_changes_nothing_and_is_said_in_one_sentence(options, tmp_path, mine):
    """A file that may have no more than 100 bytes, which is what a quota does; byte code would be cut too."""
    path = mine(b'{"a line": "of before"}\n', "file")
    named = () if options[-1] == "--record" else (str(path),)
    ended = subprocess.run(
        [sys.executable, "-m", "equipoise", *map(str, options), *named],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        env={**os.environ, "EQUIPOISE_LEDGER": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"equipoise: {path}: ")
    assert options[0] == "export" or os.strerror(errno.EFBIG) in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert path.read_bytes() == b'{"a line": "of before"}\n'
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_nothing_is_changed_where_the_block_fails(tmp_path, mine):
    path = mine(b"before", "file")

    def fail():
        with written(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def interrupted(at, do):
    """Do it, but raise KeyboardInterrupt at one of the lines that it runs. Returns whether it ran as many.

    A line may be of the destructor of some object that is collected meanwhile, which nothing gets out of.
    """
    lines, raised_at = count(), []

    def watch(_frame, event, _value):
        if event == "line" and next(lines) == at:
            raised_at.append(at)
            raise KeyboardInterrupt
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        do()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return bool(raised_at)


# A file that was just opened is closed by the interpreter.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("write", [written, written_synced])
@pytest.mark.parametrize("old", [None, b"old"])
def test_an_interrupt_at_any_line_leaves_the_old_file_or_the_new_and_no_other(tmp_path, write, old):
    path = tmp_path / "out"
    ended = []
    for at in count():
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_bytes(old)
        was_interrupted = interrupted(at, lambda: put(path, b"new", write))
        ended.append({each.name: each.read_bytes() for each in tmp_path.iterdir()})
        if not was_interrupted:
            break
    assert ended[-1] == {"out": b"new"}
    assert len(ended) > 20
    before = {} if old is None else {"out": old}
    assert [each for each in ended if each not in (before, {"out": b"new"})] == []


def test_a_pipe_of_another_process_is_read(tmp_path):
    """As `<(command)` gives it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(TOPOLOGY.read_bytes()))
    writer.start()
    content = read_input(pipe, 10**6, expected="a topology")
    writer.join()
    assert content == TOPOLOGY.read_bytes()


def test_process_substitution_is_read_like_a_file():
    command = f'{sys.executable} -m equipoise topology <(cat "{TOPOLOGY}") --json'
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    plain = equipoise("topology", TOPOLOGY, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("NODE") == plain.stdout.count("NODE") > 0


def test_a_pipe_brings_no_more_than_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write():
        with pipe.open("wb", buffering=0) as file:
            file.write(b"x" * 1001)

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(DataError, match="1,000 bytes"):
        read_input(pipe, 1000, expected="a short file")
    writer.join()


SILENT_INPUTS = (
    ("topology", "{}"),
    ("collectives", "{}"),
    ("trace", "{}"),
    ("ingest", "{}"),
    ("allocate", "{}", "--accelerator", "64x h100"),
    ("advise", "{}"),
    ("advise", "bert", "--accelerator", "h100", "--topology", "{}"),
    ("scores", "--hardware", "{}"),
    ("validate", "{}"),
)


@pytest.mark.parametrize("options", SILENT_INPUTS, ids=" ".join)
def test_a_pipe_without_a_writer_is_no_reason_to_wait_for_ever(options, tmp_path):
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    ended = equipoise(*(each.format(pipe) for each in options), timeout=60)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("equipoise: ")
    assert ended.stderr.count("\n") == 1
    assert str(pipe) in ended.stderr


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path, mark):
    """As Windows' Notepad writes UTF-8: with the bytes EF BB BF first."""
    assert parsed_toml(mark + b"a = 1") == {"a": 1}
    (tmp_path / "model.toml").write_bytes(
        mark + b'[workload.mine]\ntitle = "Mine"\narea = "vision"\nsample = "image"\nparams = 1e6\n'
        b"forward_flop_per_sample = 1e9\nlayers = 2\nactivation_bytes_per_sample = 1e6\n"
        b'boundary_bytes_per_sample = 1e5\nsource = "ours"\n'
    )
    known = catalogue(workloads=[tmp_path / "model.toml"])
    assert known.workload("mine").title == "Mine"
    (tmp_path / "question.toml").write_bytes(mark + b'workload = "bert"\n')
    assert file_values(tmp_path / "question.toml", verb="advise")["workload"] == "bert"
    (tmp_path / "prices.toml").write_bytes(
        mark + b'[[quote]]\nprovider = "A"\nsystem = "h100"\nusd_per_hour = 2\n'
    )
    assert len(read_quotes(tmp_path / "prices.toml")) == 1


def test_half_of_a_surrogate_pair_is_no_json():
    assert parsed_json('"\\ud83d\\ude00"') == "\U0001f600"
    for content in ('["\\ud800"]', b'{"\\uDFFF": 1}'):
        with pytest.raises(ValueError, match="surrogate"):
            parsed_json(content)


# Types that none has used, each read into by four threads at once that give way to each other all the time.
THREADS = """
import sys, threading
from pathlib import Path
from msgspec import defstruct
from equipoise.files import shipped_record

sys.setswitchinterval(1e-6)
fields = [(f"field_{number}", "list[int] | None", None) for number in range(50)]
for number in range(500):
    inner = defstruct(f"Inner{number}", [("value", int), *fields])
    outer = defstruct(f"Outer{number}", [("one", inner), ("two", list[inner]), *fields])
    together = threading.Barrier(4)

    def read():
        together.wait()
        assert shipped_record(Path(sys.argv[1]), outer, made_by="test").one.value == 1

    threads = [threading.Thread(target=read) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


def test_threads_may_read_into_a_type_at_once(mine):
    path = mine('{"one": {"value": 1}, "two": [{"value": 2}]}', "record.json")
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800x"], ids=["long", "NUL", "half a character"])
def test_a_name_that_no_file_has_is_refused_before_anything_is_looked_for(name):
    with pytest.raises(UsageError, match="name"):
        one_path(name)
    with pytest.raises(UsageError, match="name"):
        validate([f"folder/{name}"])
    for write in (written, written_synced):
        with pytest.raises(UsageError, match="name"):
            put(Path(name), b"x", write)
    with pytest.raises(UsageError, match="name"):
        expect_folder(Path(name))


def test_a_file_that_links_to_itself_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for verb in ("trace", "collectives", "validate"):
        ended = equipoise(verb, "loop", cwd=tmp_path)
        assert ended.returncode == 2
        assert ended.stderr.startswith("equipoise: loop: ")
        assert ended.stderr.count("\n") == 1
