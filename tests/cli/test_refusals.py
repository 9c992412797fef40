"""What cannot be answered is said in one sentence, with exit code 2: nothing is printed or left, also with --json."""

import re
import shlex
from pathlib import Path

import pytest
from command_line import in_process

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
LOG, TIMES = EXAMPLES / "nccl-a100.txt", EXAMPLES / "measured.csv"
ASKING = ("advise", "plan", "predict", "allocate")
H200 = "llama2_70b_lora --accelerator h200-sxm5-141gb"
BERT = "bert --accelerator a100-sxm4-80gb"


def complaint(*arguments, cwd):
    """The sentence of a verb that could not answer."""
    before = sorted(cwd.iterdir())
    ended = in_process(*arguments, cwd=cwd)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert sorted(cwd.iterdir()) == before
    said = re.fullmatch(r"equipoise: ([^\n]+)\n", ended.stderr)
    assert said, ended.stderr
    return said[1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        # Verbs and options that are no such; the nearest is named, or the verbs that take it.
        ("scoers", ["'scores'"]),
        ("show", ["'show'", "scores, report"]),
        ("scores --raund v4.1", ["'--raund'"]),
        ("scores --divison open", ["'--divison'", "'--division'"]),
        ("doctor --full", ["'--full'", "--json-out"]),
        ("plan bert --max 64", ["advise"]),
        ("predict bert --tokens 1T", ["advise, plan"]),
        ("advise bert --gpu h100", ["'--accelerator'"]),
        ("scores --gpu h100", ["'--accelerator'"]),
        ("advise bert --gpus 8", ["'--accelerators'"]),
        ("plan bert --batch-size 8", ["'--global-batch'"]),
        ("plan bert --tp 8", ["'--fix tp=VALUE'"]),
        ("advise --model bert", ["--workload"]),
        ("advise bert --wish 8", ["advise --help"]),
        ("report --html page.html", ["'--out'"]),
        ("advise bert --out page.html", ["'--html'"]),
        # What a verb is to be given, and how.
        ("ingest", ["PATH"]),
        ("trace", ["FILE"]),
        ("export", ["table", "runs, scores, steps"]),
        ("export planets", ["table is 'planets'", "runs, scores, steps"]),
        ("list", ["KIND", "rounds, workloads"]),
        (
            "list planets",
            ["rounds", "accelerators, systems, strategies, software, methods, models, laws, prices"],
        ),
        ("trace --html", ["--html", "FILE.html"]),
        ("scores --round", ["--round", "v4.1"]),
        ("scores --json=3", ["--json", "--json alone"]),
        ("scores --json --format csv", ["--out FILE"]),
        ("bench --repeat ten", ["--repeat is 'ten'", "from 1 to 1,000"]),
        ("bench --repeat 0", ["--repeat is '0'", "from 1 to 1,000"]),
        ("bench --limit 0.5", ["--limit is '0.5'", "at least 1"]),
        ("bench --scaling Strong", ["--scaling is 'Strong'", "strong, weak"]),
        ("report --k 2.5", ["--k is '2.5'", "whole number"]),
        ("serve --port 99999", ["--port is '99999'", "from 0 to 65,535"]),
        ("topology --batch 1", ["--batch"]),
        ("advise bert --accelerator h100 --runs one --runs two", ["--runs is given 2 times; "]),
        ("advise bert --here --max 8 --max-accelerators 16", ["--max-accelerators is given 2 times; "]),
        ("topology topo.txt --accelerator v100 --accelerator=a100", ["--accelerator is given 2 times; "]),
        (f"validate {TIMES} {TIMES}", ["given twice"]),
        (f"validate {TIMES} --split some", ["leave-COLUMN-out"]),
        (f"validate {TIMES} --split leave-colour-out", ["leave-colour-out"]),
        (f"collectives {LOG} --json-out one --html ./one", ["--html", "--json-out"]),
        ("backtest --advice --given batch", ["--advice with --given"]),
        ("record add", ["needs MEASURED and --for ID"]),
        ("record add '3 h' --for zz", ["'zz'"]),
        ("record list '3 h'", ["record list"]),
        # Names that nothing has.
        ("scores --workload brt", ["bert"]),
        ("scores --accelerator h9000", ["h9000"]),
        ("scores --division ajar", ["closed"]),
        ("scores --sort beauty", ["beauty"]),
        ("scores --format xlsx", ["parquet"]),
        ("scores --round v99.9", ["v99.9"]),
        ("report --round v99.9", ["v99.9"]),
        ("report --round v4.1 --workload gnmt", ["'gnmt'"]),
        ("export runs --out runs.xlsx", ["parquet"]),
        ("export runs --round v9.9", ["--round 'v9.9'", "v5.0, v5.1"]),
        ("backtest --rounds v9.9", ["v4.1"]),
        ("explain entropyy", ["entropyy"]),
        (f"collectives {LOG} --ops telepathy", ["telepathy"]),
        (f"collectives {LOG} --link USB", ["USB"]),
        (f"collectives {LOG} --accelerator mill", ["'mill'"]),
        ("topology --accelerator zeppelin", ["'zeppelin'"]),
        ("list rounds --model llama", ["--model"]),
        ("list regions --accelerator h100", ["prices"]),
        ("list prices --accelerator gaudi2", ["gaudi2"]),
        ("list prices --accelerator h1000", ["h1000"]),
        ("list steps --data .", ["--data"]),
        ("list steps --software nothing", ["nothing"]),
        ("list steps --model no_such_model", ["no_such_model"]),
        ("list steps --model GNMT --json --format csv", ["--out"]),
        # Files and folders that are not there, or of another kind.
        ("ingest nothing-here", ["nothing-here"]),
        ("ingest '\x1b[31mred\x07'", ["\\x1b[31mred\\x07"]),  # what cannot be seen is shown as it is written
        ("scores --data nothing-here", ["nothing-here"]),
        ("scores --hardware nothing.toml", ["nothing.toml"]),
        ("report --out no/such/folder/report.html", ["no/such/folder"]),
        ("topology --html no/such/x.html", ["no/such/x.html"]),
        ("topology nowhere.txt", ["nowhere.txt: "]),
        ("topology .", [".: "]),
        ("trace nowhere.json", ["nowhere.json: ", "expected"]),
        ("trace .", ["no trace"]),
        ("collectives nowhere.txt", ["nowhere.txt: "]),
        ("collectives .", ["a folder", "expected"]),
        ("validate nowhere.csv", ["nowhere.csv: "]),
        ("record --ledger nowhere.jsonl", ["nowhere.jsonl", "expected"]),
        ("record --runs nowhere", ["nowhere"]),
        (f"advise {H200} --collectives none.txt", ["none.txt"]),
        (f"advise {H200} --trace none.json", ["none.json"]),
        (f"advise {H200} --traced-as ranks=8", ["--trace FILE"]),
        ("advise nothing.toml", ["nothing.toml"]),
        ("allocate jobs.toml", ["jobs.toml"]),
        ("plan models/config.json --accelerator h100", ["--config models/config.json"]),
        ("predict --from nothing.csv", ["nothing.csv"]),
        ("predict --from .", ["regular file"]),
        (f"predict {H200} --data nothing-here", ["nothing-here"]),
        # Questions: the work.
        ("predict", ["no workload"]),
        ("plan gpt33 --accelerator a100-sxm4-80gb", ["gpt3"]),
        ("plan nowhere:make --accelerator a100-sxm4-80gb", ["nowhere"]),
        ("plan lab/train.py:net --samples 9 --accelerator h100", ["lab.train:net"]),
        ("plan /lab/train.py:net --samples 9 --accelerator h100", [" train:net"]),
        ("plan rtx4090 --config my.json --accelerator 5x", ["rtx4090 and --config my.json"]),
        ("predict bert --workload gpt3 --accelerator h100", ["'bert' and --workload gpt3"]),
        (f"advise {H200} --tokens lots", ["'lots'"]),
        (f"advise {H200} --tokens 1T --samples 3", ["keep one"]),
        (f"predict {H200} --global-batch -1", ["--global-batch"]),
        (f"plan {BERT} --precision fp7", ["--precision is 'fp7'"]),
        # Questions: accelerators and their numbers.
        ("plan bert", ["--accelerator"]),
        ("advise bert", ["--accelerator"]),
        ("predict --workload bert", ["--workload and --accelerator"]),
        ("plan bert --accelerator h100-sxm5-81gb", ["h100-sxm5-80gb"]),
        ("plan bert --accelerator a100-pcie", ["a100-pcie-40gb or a100-pcie-80gb"]),
        ("predict bert --accelerator h9000", ["h9000"]),
        ("predict bert --accelerator h100,b200", ["h100,b200"]),
        ("advise bert --accelerator 2x rtx4090", ["'7 days'"]),
        (f"advise {H200} --here", ["--here and --accelerator"]),
        (f"advise {H200} --max-accelerators 0", ["--max-accelerators"]),
        ("advise gpt2 --tokens 1G --max-accelerators 99999999", ["99,999,999", "10,000,000"]),
        (f"plan {BERT} --accelerators many", ["'many'"]),
        (f"plan {BERT} --accelerators 8..2", ["8..2"]),
        (f"plan {BERT} --accelerators 0", ["from 1 to"]),
        (f"plan {BERT} --accelerators 2 --nodes 1", ["keep one"]),
        (f"predict {H200} --at 8,many", ["'many'"]),
        (f"predict {H200} --at ''", ["is ''; "]),
        (f"predict {H200} --at 0", ["from 1 to 10,000,000"]),
        # Questions: strategies.
        (f"plan {BERT} --fix shards=3", ["shards", "zero_stage"]),
        (f"plan {BERT} --fix zero=3", ["'zero_stage=3'"]),
        (f"plan {BERT} --fix zero_stage=four", ["whole number"]),
        (f"plan {BERT} --fix tp=4..2", ["4..2"]),
        (f"plan {BERT} --fix recompute=none..full", ["two numbers"]),
        (f"plan {BERT} --fix tp=2 --fix tp=4", ["given twice"]),
        (f"plan {BERT} --fix global_batch=2", ["--global-batch"]),
        (f"plan {BERT} --fix tp", ["'tp=VALUE'"]),
        # Questions: what is asked of the answer.
        (f"advise {H200} --objective fast", ["balance, time"]),
        ("advise bert --deadline 7 days", ["'days'"]),
        (f"advise {H200} --deadline soon", ["90min or 7d"]),
        (f"advise {H200} --accelerator h100 --price 2", ["--price 2 "]),
        (f"advise {H200} --price cheap", ["--price is 'cheap'"]),
        (f"plan {BERT} --price -1", ["--price"]),
        (f"plan {BERT} --power-cap 0", ["--power-cap is 0"]),
        (f"plan {BERT} --region atlantis", ["atlantis"]),
        (f"advise {H200} --budget '2000 EUR'", ["(USD)"]),
        (f"advise {H200} --ask tokens --budget 9 --record", ["--record"]),
        (f"advise {H200} --law amdahl", ["--law"]),
        (f"predict {H200} --law magic", ["'magic'"]),
        (f"predict {H200} --round v0.5", ["v5.0"]),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_sentence(asked, words, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_LEDGER", "ledger.jsonl")
    arguments = shlex.split(asked)
    said = complaint(*arguments, *["--json"] * (arguments[0] in ASKING), cwd=tmp_path)
    for each in words:
        _, found, said = said.partition(each)
        assert found, each


@pytest.mark.parametrize(
    ("verb", "content", "words"),
    [
        ("collectives", b"hello", "nccl-tests"),
        ("collectives", b'{"results": []', "JSON"),
        ("trace", b"hello", "not JSON"),
        ("trace", b"{}", "no list `traceEvents`"),
        ("validate", b"\x00\x01\x02", "mine: line 1: "),
        ("topology", b"hello", "matrix"),
        ("topology", b"", "empty; expected"),
        ("topology", b"\0\1\2", "a NUL byte"),
        ("topology", b"GPU0 X " * 900_000, "more than 4,000,000 bytes"),
    ],
)
def test_a_file_that_holds_nothing_of_the_kind_is_named_in_one_sentence(verb, content, words, tmp_path):
    (tmp_path / "mine").write_bytes(content)
    said = complaint(verb, "mine", "--json", cwd=tmp_path)
    assert "mine" in said
    assert words in said


def test_columns_of_what_is_no_export_are_refused_with_the_files_that_are(tmp_path):
    (tmp_path / "eval_results.json").write_text('{"eval_loss": 1.1, "eval_runtime": 10.0}')
    found = complaint("ingest", "eval_results.json", "--column", "num_accelerators=8", cwd=tmp_path)
    assert re.search(r"--column.*\.csv.*all_results\.json.*trainer_state\.json", found)
