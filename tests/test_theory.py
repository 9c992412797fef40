"""`validate` as its users and scripts meet it: real processes, exit codes, streams, whatever files hold."""

import json
import re
from pathlib import Path

import pytest
from command_line import document, in_process

EXAMPLE = Path(__file__).resolve().parents[1] / "docs" / "examples" / "measured.csv"
HEADER = (
    "workload,layers,hidden,heads,hardware,n_gpus,tp,precision,global_batch,micro_batch,seq,measured,unit\n"
)
ROW = "GPT,24,1024,16,DGX A100,8,1,fp16,64,4,1024,0.4,s/iteration\n"


def test_validate_says_what_scripts_rely_on(tmp_path):
    ended = in_process("validate", EXAMPLE, "--json", "--json-out", "a.json", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = document(ended)
    assert json.loads((tmp_path / "a.json").read_text()) == found
    assert list(found)[:4] == ["schema", "equipoise", "dataset", "summary"]
    assert found["schema"] == "equipoise.validate/2"
    promised = [
        "num_rows",
        "num_modelled",
        "num_executions",
        "num_clusters",
        "mape",
        "median",
        "p90",
        "coverage",
    ]
    assert {*promised, "split"} <= found["summary"].keys()
    assert [found["summary"][name] for name in promised[:4]] == [4, 4, 4, 4]
    assert found["summary"]["split"] == "none"
    for number, row in enumerate(found["rows"], start=1):
        assert list(row)[:8] == ["file", "row", "measured", "predicted", "low", "high", "unit", "reason"]
        assert (row["file"], row["row"], row["unit"], row["reason"]) == (
            "measured.csv",
            number,
            "s/iteration",
            None,
        )
        assert 0 < row["low"] < row["predicted"] < row["high"]
        assert row["error"] == pytest.approx(abs(row["predicted"] / row["measured"] - 1), rel=1e-3)
    assert found["summary"]["mape"] == pytest.approx(sum(row["error"] for row in found["rows"]) / 4, rel=1e-4)


def test_validate_fits_80_columns_and_names_every_reason(mine):
    rows = (
        HEADER
        + ROW
        + ROW.replace("s/iteration", "leagues")
        + ROW.replace("DGX A100", "mill-with-a-long-name")
    )
    ended = in_process("validate", mine(rows), EXAMPLE, "--split", "leave-n_gpus-out")
    assert ended.returncode == 0
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for words in (
        "7 rows: 5 expressed",
        "n_gpus",
        "280",
        "leagues",
        "mill-with-a-long-name",
    ):
        assert words in " ".join(ended.stdout.split())
    assert "nan" not in ended.stdout.lower()


def test_too_little_evidence_is_said_in_the_document_too(mine):
    ended = in_process("validate", mine(HEADER + ROW.replace("0.4", "?")), "--json")
    found = document(ended, 3)
    assert found["status"] == "not_enough_evidence"
    (missing,) = found["missing"]
    assert re.match("1 row: .*measured: ", missing)
    ended = in_process("validate", mine(HEADER + ROW + ROW), "--split", "leave-hidden-out", "--json")
    assert document(ended, 3)["status"] == "not_enough_evidence"


def test_accelerators_of_ones_own_take_part(mine):
    own = mine(
        '[accelerator.mill-1gb]\ntitle = "Mill"\nvendor = "Millers"\nkind = "gpu"\nsource = "by hand"\n'
        'confidence = "high"\naliases = ["water mill"]\nmemory_bytes = 40e9\nmemory_byte_per_s = 1e12\n'
        "peak_fp16_flop_per_s = 100e12\npower_w = 300\nnode_size = 8\nlink_byte_per_s = 100e9\n"
        'intra_latency_s = 3e-6\ninter_byte_per_s = 10e9\ninter_latency_s = 1e-5\ntopology = "switch"\n',
        name="own.toml",
    )
    rows = mine(HEADER + ROW.replace("DGX A100", "water mill"))
    assert in_process("validate", rows).returncode == 3
    ended = in_process("validate", rows, "--hardware", own, "--json")
    assert document(ended)["summary"]["num_modelled"] == 1
