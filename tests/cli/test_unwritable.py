"""Places that cannot be written: one sentence, exit code 2 and nothing left, before anything long begins."""

import errno
import os
import subprocess
import sys

import pytest

# Root writes everywhere; without its capabilities it is a user like any other.
ORDINARY = () if os.geteuid() else ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
# Where predictions are kept, from the user's home.
LEDGER = ".local/share/equipoise/ledger.jsonl"
QUESTION = ("llama2_70b_lora", "--accelerator", "h200", "--max-accelerators", "8")


@pytest.fixture
def closed(tmp_path):
    """A folder that lets nobody write."""
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o555)
    return folder


def as_ordinary_user(*arguments, cwd):
    home = {"HOME": str(cwd), "XDG_CACHE_HOME": str(cwd / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "EQUIPOISE_LEDGER"}
    environment.pop("XDG_DATA_HOME", None)
    return subprocess.run(
        [*ORDINARY, sys.executable, "-m", "equipoise", *map(str, arguments)],
        cwd=cwd,
        env={**environment, **home},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize(
    "asked",
    [
        ("advise", *QUESTION, "--json-out", "x.json"),
        ("advise", *QUESTION, "--html", "x.html"),
        ("advise", *QUESTION, "--record"),
        ("advise", *QUESTION, "--launch", "scripts"),
        ("advise", *QUESTION, "--launch", "new/scripts"),
        ("scores", "--out", "scores.csv", "--format", "csv"),
        ("export", "runs", "--out", "runs.parquet"),
        ("ingest", ".", "--into", "tables"),
        ("list", "accelerators", "--json-out", "list.json"),
        ("bench", "mlp", "--sizes", "1", "--repeat", "1"),
    ],
    ids=lambda asked: " ".join(asked[:1] + asked[-2:]),
)
def test_a_place_that_is_not_writable_is_one_sentence_and_nothing_is_left(closed, asked):
    if asked[0] == "bench":
        pytest.importorskip("torch")
    ended = as_ordinary_user(*asked, cwd=closed)
    assert ended.returncode == 2, ended.stderr
    (said,) = [line for line in ended.stderr.splitlines() if "busy" not in line]
    assert "writ" in said or os.strerror(errno.EACCES) in said
    assert ".part" not in said
    assert "Traceback" not in said
    assert not ended.stdout
    assert not list(closed.iterdir())


@pytest.mark.parametrize("asked", [("advise", *QUESTION), ("doctor",), ("list", "accelerators"), ("record",)])
def test_what_writes_nothing_needs_no_home(closed, asked):
    ended = as_ordinary_user(*asked, cwd=closed)
    assert ended.returncode in {0, 3}, ended.stderr
    assert ended.stdout or ended.returncode == 3
    assert "Permission" not in ended.stderr
    assert not list(closed.iterdir())


def test_scripts_are_written_where_the_ledger_cannot_be(closed, tmp_path):
    ended = as_ordinary_user("advise", *QUESTION, "--launch", tmp_path / "scripts", cwd=closed)
    assert ended.returncode == 0, ended.stderr
    assert "ledger" in ended.stderr
    assert list((tmp_path / "scripts").iterdir())


def test_a_sweep_into_what_is_no_folder_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "taken").write_text("x")
    ended = as_ordinary_user("bench", "mlp", "--sizes", "1", "--out", "taken/runs", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    # A machine that is busy is noticed by measuring it: nothing but the refusal is said.
    assert len(ended.stderr.splitlines()) == 1
    assert "taken" in ended.stderr


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        (("predict", "--from", "mine.csv", "--at", "8", "--json-out", "mine.csv"), "mine.csv"),
        (("predict", "--from", "mine.csv", "--at", "8", "--html", "./mine.csv"), "mine.csv"),
        (("advise", *QUESTION, "--runs", "mine.csv", "--html", "link.html"), "mine.csv"),
        (("validate", "mine.csv", "--json-out", "mine.csv"), "mine.csv"),
        (("export", "runs", "--data", "tables", "--out", "tables/runs.parquet"), "tables/runs.parquet"),
        (("advise", *QUESTION, "--record", "--json-out", LEDGER), LEDGER),
        (("record", "list", "--json-out", LEDGER), LEDGER),
    ],
    ids=lambda asked: " ".join(asked[:1] + asked[-2:]) if isinstance(asked, tuple) else "",
)
def test_an_output_never_replaces_what_is_read(tmp_path, asked, read):
    (tmp_path / "mine.csv").write_text("gpus,samples_per_s\n8,600\n16,1150\n32,2200\n")
    (tmp_path / "link.html").symlink_to("mine.csv")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "runs.parquet").write_bytes(b"what a user measured")
    (tmp_path / LEDGER).parent.mkdir(parents=True)
    (tmp_path / LEDGER).touch()
    before = (tmp_path / read).read_bytes()
    ended = as_ordinary_user(*asked, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert asked[-1].removeprefix("./") in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert (tmp_path / read).read_bytes() == before


@pytest.mark.parametrize(
    "asked",
    [
        ("export", "scores", "--out", "one", "--json-out", "./one"),
        ("list", "steps", "--model", "bert", "--json-out", "one", "--out", "link"),
        ("report", "--out", "one", "--json-out", "one"),
        ("advise", *QUESTION, "--html", "one", "--json-out", "one"),
    ],
    ids=" ".join,
)
def test_two_outputs_are_two_files(tmp_path, asked):
    (tmp_path / "link").symlink_to("one")
    ended = as_ordinary_user(*asked, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1
    assert {"--json-out", asked[-2], asked[-4]} <= set(ended.stderr.split())
    assert not (tmp_path / "one").exists()
