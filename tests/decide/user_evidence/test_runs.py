"""A folder of the user's own runs, by set-up."""

import math
import re

import polars as pl
import pytest
from asking import ask

from equipoise.bench.summary import run_row, write
from equipoise.calibration.published import read_rows
from equipoise.decide.strategies.size_searches import SEARCH_CACHE
from equipoise.decide.user_evidence.folders import user_runs
from equipoise.decide.user_evidence.usable import Asked
from equipoise.errors import DataError
from equipoise.runs.ingest import ingest
from equipoise.spec.catalogue import shipped
from equipoise.spec.cluster import cluster
from equipoise.spec.workload import workload


def _row(run_id, size, rate, workload="mlp", status="success"):
    return run_row(
        {
            "run_id": run_id,
            "campaign": "mine",
            "workload": workload,
            "accelerator": "a100-sxm4-80gb",
            "num_accelerators": size,
            "num_nodes": 1,
            "strategy": None if size == 1 else "ddp",
            "global_batch_samples": 64,
            "status": status,
            "samples_per_s": rate,
        }
    )


def _runs(folder, workload_name, accelerators, **stated):
    """What a folder holds, of a question that states nothing else."""
    of_rows = {
        name: stated.pop(name) for name in ("sequence_tokens", "is_to_target", "known") if name in stated
    }
    asked = Asked(workload=workload_name, accelerators=tuple(accelerators), catalogue=shipped(), **of_rows)
    return user_runs(folder, asked, **stated)


def test_runs_of_one_set_up_are_one_record_with_their_median(tmp_path):
    rows = [_row("a", 1, 100.0), _row("b", 1, 110.0), _row("c", 1, 90.0), _row("d", 2, 150.0)]
    write(tmp_path, rows, [])
    found = _runs(tmp_path, "mlp", ["a100-sxm4-80gb"])
    assert [(each.num_accelerators, each.samples_per_s) for each in found.set_ups] == [(1, 100.0), (2, 150.0)]
    assert len(found.set_ups[0].run_ids) == 3


@pytest.mark.parametrize("rates", [(100.0, 103.0), (100.0, 101.0, 103.0)])
def test_runs_that_agree_leave_hardly_more_open_than_one_alone(rates, tmp_path):
    # Replicates of a published system differ by 0.033; a second run that bears the first out hardly widens that.
    write(tmp_path, [_row(str(at), 4, rate) for at, rate in enumerate(rates)], [])
    (found,) = _runs(tmp_path, "mlp", ["a100-sxm4-80gb"]).set_ups
    assert found.log_sd < 1.1 * 0.033


def test_the_range_of_two_runs_that_differ_by_far_holds_both(tmp_path):
    write(tmp_path, [_row("a", 4, 100.0), _row("b", 4, 130.0)], [])
    (found,) = _runs(tmp_path, "mlp", ["a100-sxm4-80gb"]).set_ups
    half = 1.645 * found.log_sd
    assert found.samples_per_s * math.exp(-half) < 100.0
    assert found.samples_per_s * math.exp(half) > 130.0


def test_a_table_of_runs_or_a_parquet_file_of_ones_own_is_read_by_its_name(tmp_path):
    write(tmp_path, [_row("a", 1, 100.0), _row("b", 2, 150.0)], [])
    found = _runs(tmp_path / "runs.parquet", "mlp", ["a100-sxm4-80gb"])
    assert [(each.num_accelerators, each.samples_per_s) for each in found.set_ups] == [(1, 100.0), (2, 150.0)]
    path = tmp_path / "mine.parquet"
    pl.DataFrame({"gpus": [8], "samples/s": [20.0], "global_batch": [128]}).write_parquet(path)
    found = _runs(path, "resnet50", ["a100-sxm4-80gb"])
    assert [(each.num_accelerators, each.samples_per_s) for each in found.set_ups] == [(8, 20.0)]


def test_a_json_file_is_read_by_lines_and_one_list_is_refused_with_what_makes_lines_of_it(mine):
    path = mine('{"gpus": 8, "samples_per_s": 20.0, "global_batch": 128}\n', "mine.json")
    found = _runs(path, "resnet50", ["a100-sxm4-80gb"])
    assert [(each.num_accelerators, each.samples_per_s) for each in found.set_ups] == [(8, 20.0)]
    path.write_text('[{"gpus": 8, "samples_per_s": 20.0, "global_batch": 128}]')
    found = _runs(path, "resnet50", ["a100-sxm4-80gb"])
    assert not found.set_ups
    assert [bool(re.search(r"mine\.json.*jq", each)) for each in map(str, found.notes)] == [True]


@pytest.mark.parametrize(("rate", "is_used"), [(100.0, False), (1.0, True)])
def test_a_run_that_states_no_accelerator_is_held_against_that_of_the_question(mine, rate, is_used):
    # 100 samples/s of 8.03e9 parameters over 8,192 tokens: 6 N a token alone are 3.9e16 FLOP/s, of 9.9e14.
    path = mine(f"num_accelerators,samples_per_s,global_batch_size,precision\n1,{rate},64,bf16\n")
    found = _runs(path, "llama31_8b", ["h100-sxm5-80gb"], known=workload("llama31_8b"))
    assert bool(found.set_ups) is is_used
    assert [bool(re.search(r"\b1 of 1\b.*MFU.*H100", each)) for each in map(str, found.notes)] == [True] * (
        not is_used
    )


@pytest.mark.parametrize("column", ["seq_len", "sequence"])
def test_runs_of_samples_of_another_length_are_not_used(mine, column):
    path = mine(
        f"num_accelerators,tokens_per_s,{column},global_batch_size\n8,75000,2048,256\n8,75000,4096,128\n"
    )
    found = _runs(path, "qwen3_8b", ["h100-sxm5-80gb"], sequence_tokens=4096)
    assert [each.samples_per_s for each in found.set_ups] == [pytest.approx(75000 / 4096)]
    assert re.search(r"\b1 of 2\b.*2,048.*4,096", str(found.notes[0]))


@pytest.mark.parametrize(
    ("header", "lengths", "stated", "is_said"),
    [
        (",sequence", ",4096", {"sequence": 4096}, False),
        ("", "", {"sequence": 4096}, True),
        ("", "", {}, False),
        (",sequence", ",8192", {}, False),
    ],
)
def test_which_length_runs_are_taken_to_have_that_state_none_is_named(
    tmp_path, header, lengths, stated, is_said
):
    path = tmp_path / "mine.csv"
    runs = "".join(f"{size},{72 / size},64,bf16{lengths}\n" for size in (8, 16))
    path.write_text(f"num_accelerators,step_s,global_batch_samples,precision{header}\n{runs}")
    asked = {"workload": "llama31_8b", "accelerator": ["h100-sxm5-80gb"], "samples": 1e6}
    found = ask(asked, accelerators="8,16", runs=path, **stated)
    assert any("4,096" in each for each in found.chosen_for_you) is is_said
    # Of a question that states none, Llama 3.1 8B's own.
    assert any("8,192" in each for each in found.chosen_for_you) is (not lengths and not stated)


@pytest.mark.parametrize(
    ("chip", "is_runs", "num_said"), [("h100", False, 2), ("h100", True, 0), ("b200", False, 0)]
)
def test_own_runs_given_as_published_results_are_named_as_not_used(tmp_path, chip, is_runs, num_said):
    path, tables = tmp_path / "mine.csv", tmp_path / "tables"
    runs = "".join(f"bert,h100,{size},{4 / size},448,bf16\n" for size in (8, 16))
    path.write_text(f"workload,accelerator,num_accelerators,step_s,global_batch_samples,precision\n{runs}")
    ingest([path], into=tables)
    more = {"runs": tables} if is_runs else {}
    found = ask(workload="bert", accelerator=[chip], accelerators="8,16", also=tables, **more)
    said = [each.words for each in found.notes_of("not_used") if str(tables) in each.words]
    assert [each.split()[0] for each in said] == ([str(num_said)] if num_said else [])


def test_rows_without_a_workload_are_of_what_is_asked_about_ingested_or_not(tmp_path):
    path, tables = tmp_path / "mine.csv", tmp_path / "tables"
    path.write_text("num_accelerators,samples_per_s,global_batch_size\n1,20,64\n2,38,64\n")
    ingest([path], into=tables)
    found = [_runs(each, "bert", ["h100-sxm5-80gb"]).set_ups for each in (path, tables)]
    assert [[each.samples_per_s for each in set_ups] for set_ups in found] == [[20.0, 38.0]] * 2


def test_the_length_of_samples_outlives_an_ingest(tmp_path, mine):
    path = mine(
        "workload,num_accelerators,tokens_per_s,seq_len,global_batch_size\n"
        "qwen3_8b,8,75000,2048,256\nqwen3_8b,8,70000,4096,128\nqwen3_8b,16,140000,,128\n"
    )
    tables = tmp_path / "tables"
    ingest([path], into=tables)
    found = _runs(tables, "qwen3_8b", ["h100-sxm5-80gb"], sequence_tokens=4096)
    # The third row states tokens of samples of no length, and is refused by ingest.
    assert [each.samples_per_s for each in found.set_ups] == [pytest.approx(70000 / 4096)]
    assert re.search(r"\b1 of 2\b.*2,048.*4,096", str(found.notes[0]))
    # Tables of versions that did not know the length lack its column.
    pl.read_parquet(tables / "runs.parquet").drop("sequence_tokens").write_parquet(tables / "runs.parquet")
    older = _runs(tables, "qwen3_8b", ["h100-sxm5-80gb"], sequence_tokens=4096)
    assert sorted(each.samples_per_s for each in older.set_ups) == pytest.approx([70000 / 4096, 75000 / 2048])


def test_a_rate_in_tokens_is_of_the_length_that_is_asked_about(mine):
    path = mine("num_accelerators,tokens_per_s,global_batch_size\n8,75000,128\n")
    found = _runs(path, "qwen3_8b", ["h100-sxm5-80gb"], sequence_tokens=4096)
    assert found.set_ups[0].samples_per_s == pytest.approx(75000 / 4096)


def runs_on(path, accelerator):
    columns = "num_accelerators,samples_per_s,global_batch_size,accelerator"
    path.write_text(f"{columns}\n8,20,128,{accelerator}\n")
    return path


@pytest.mark.parametrize(("chip", "is_known"), [("h10", False), ("a100", True)])
def test_rows_of_an_accelerator_that_is_not_known_have_the_one_that_may_be_meant(tmp_path, chip, is_known):
    found = _runs(runs_on(tmp_path / "mine.csv", chip), "resnet50", ["h100-sxm5-80gb"])
    (words,) = map(str, found.notes)
    # The accelerator of the question is named in any case.
    assert words.count("h100-sxm5-80gb") == (1 if is_known else 2)


def test_a_chip_without_its_form_is_the_one_form_asked_about(tmp_path):
    path = runs_on(tmp_path / "mine.csv", "a100")
    forms = ["a100-pcie-40gb", "a100-pcie-80gb"]
    assert _runs(path, "resnet50", forms[:1]).set_ups[0].accelerator == forms[0]
    assert _runs(path, "resnet50", forms[1:]).set_ups[0].accelerator == forms[1]
    several = _runs(path, "resnet50", forms)
    assert several.machines == (cluster("a100").accelerator.slug,)
    assert not several.set_ups  # that form is not asked about


@pytest.mark.parametrize("name", ["rtx4090", "4090", "RTX 4090 24 GB", "NVIDIA GeForce RTX 4090"])
def test_accelerators_of_a_file_have_the_names_of_the_option(tmp_path, name):
    path = runs_on(tmp_path / "mine.csv", name)
    asked = cluster("rtx4090").accelerator.slug
    found = _runs(path, "resnet50", [asked])
    assert [each.accelerator for each in found.set_ups] == [asked]
    assert not found.notes


def test_a_system_of_a_file_stands_for_its_accelerator(tmp_path):
    path = runs_on(tmp_path / "mine.csv", "dgx-h100")
    (run,) = _runs(path, "resnet50", ["h100-sxm5-80gb"]).set_ups
    assert run.accelerator == "h100-sxm5-80gb"


def test_a_name_of_a_file_that_may_mean_several_is_not_used(tmp_path):
    found = _runs(runs_on(tmp_path / "mine.csv", "a100 pcie"), "resnet50", ["a100-pcie-40gb"])
    assert not found.set_ups
    assert re.search(r"\b1 of 1\b.*a100 pcie.*a100-pcie-40gb.*a100-pcie-80gb", str(found.notes[0]))


def test_a_model_that_only_the_question_names_takes_the_runs_of_the_one_there_is(mine):
    path = mine("workload,num_accelerators,samples_per_s,global_batch_size\nour-phi,8,20,128\n")
    found = _runs(path, "phi3_of_14_7_g_parameters", [], is_named_here=True)
    assert len(found.set_ups) == 1
    assert not _runs(path, "phi4_14b", []).set_ups


def test_rows_that_cannot_be_read_are_the_first_note(mine):
    path = mine("num_gpus,speed,batch\n1,800,256\n")
    (note,) = _runs(path, "resnet50", ["a100-sxm4-80gb"]).notes
    assert re.search(r"\b1 of 1\b.*samples_per_s", note.words)


def test_runs_of_one_set_up_that_differ_by_far_are_named(tmp_path):
    write(tmp_path, [_row("a", 8, 17.0), _row("b", 8, 8.0), _row("c", 8, 34.0), _row("d", 4, 9.0)], [])
    (note,) = _runs(tmp_path, "mlp", ["a100-sxm4-80gb"]).notes
    assert re.search(r"\b3 runs\b.*\b8\b.*\b4\.2\b", note.words)  # 34 / 8 = 4.25
    write(tmp_path, [_row("a", 8, 17.0), _row("b", 8, 16.0)], [])
    assert not _runs(tmp_path, "mlp", ["a100-sxm4-80gb"]).notes


def test_whole_trainings_of_one_size_that_differ_by_far_are_named(mine):
    path = mine("num_accelerators,time_to_train_s\n8,1800\n8,18000\n16,1000\n")
    (note,) = _runs(path, "llama2_70b_lora", ["h100-sxm5-80gb"]).notes
    assert note.kind == "check"
    assert re.search(r"\b2 runs\b.*\b8\b.*\b10\.0\b", note.words)
    path.write_text("num_accelerators,time_to_train_s\n8,1800\n8,1900\n16,1000\n")
    assert not _runs(path, "llama2_70b_lora", ["h100-sxm5-80gb"]).notes


def test_a_column_that_tells_unlike_runs_of_one_set_up_apart_is_named(tmp_path):
    path, head = tmp_path / "mine.csv", "gpus,global_batch,samples_per_s,framework,recompute,loss\n"
    path.write_text(head + "8,64,20,a,none,2.1\n8,64,21,a,full,2.2\n8,64,10,b,none,2.3\n8,64,11,b,full,2.4\n")
    (note,) = _runs(path, "mlp", ["a100-sxm4-80gb"]).notes
    assert note.kind == "check"
    # recompute has unlike runs under one cell; loss is another in every row.
    assert re.search(r"framework \(a, b\)", note.words)
    assert not re.search("recompute|loss", note.words)
    path.write_text(head + "8,64,20,a,none,2.1\n8,64,10,a,none,2.1\n")
    assert _runs(path, "mlp", ["a100-sxm4-80gb"]).notes[0].kind == "remark"


@pytest.mark.parametrize(("images_per_s", "precision"), [(400, "fp32"), (1200, "tf32")])
def test_runs_in_fp32_beyond_its_peak_multiplied_in_tf32(mine, images_per_s, precision):
    """An A100 has 19.5 TFLOP/s in fp32; 24.6 GFLOP an image are 9.8 and 29.5 TFLOP/s. torch convolves in tf32."""
    path = mine(f"gpus,global_batch,precision,samples_per_s\n1,256,fp32,{images_per_s}\n8,256,fp32,100\n")
    for asked, ran in (((), precision), (("fp32",), "fp32")):  # what the user calls fp32 is compared as it is
        found = _runs(path, "resnet50", ["a100-sxm4-80gb"], known=workload("resnet50"), precisions=asked)
        assert [each.precision for each in found.set_ups] == [ran] * 2


def test_failed_runs_and_other_workloads_do_not_count(tmp_path):
    rows = [_row("a", 1, 100.0), _row("b", 1, 1.0, status="failed: hung"), _row("c", 1, 5.0, workload="bert")]
    write(tmp_path, rows, [])
    found = _runs(tmp_path, "mlp", ["a100-sxm4-80gb"])
    assert [each.samples_per_s for each in found.set_ups] == [100.0]
    assert found.other_workloads == ("bert",)


def test_runs_of_one_workload_are_taken_for_the_function_asked(tmp_path):
    write(tmp_path, [_row("a", 1, 100.0, workload="Sequential")], [])
    found = _runs(tmp_path, "train:model", [])
    assert len(found.set_ups) == 1
    assert "Sequential" in found.notes[0].words


def test_steps_in_a_file_of_measurements_count_too(tmp_path):
    content = "num_accelerators,samples_per_s,global_batch_samples\n1,100,32\n2,180,64\n"
    (tmp_path / "mine.csv").write_text(content)
    found = _runs(tmp_path, "mlp", ["a100-sxm4-80gb"])
    rates = {each.num_accelerators: each.samples_per_s for each in found.set_ups}
    assert rates == pytest.approx({1: 100.0, 2: 180.0})


def test_a_file_of_measurements_alone_is_read_as_its_folder_would_be(tmp_path):
    content = "num_accelerators,samples_per_s,global_batch_samples\n1,100,32\n"
    (tmp_path / "mine.csv").write_text(content)
    (tmp_path / "other.csv").write_text(content.replace("1,100", "4,300"))
    found = _runs(tmp_path / "mine.csv", "mlp", ["a100-sxm4-80gb"])
    assert {each.num_accelerators: each.samples_per_s for each in found.set_ups} == pytest.approx({1: 100.0})


def test_what_is_neither_folder_nor_table_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("1,2")
    for name in ("notes.txt", "absent.csv"):
        with pytest.raises(DataError, match=rf"{name}.*CSV"):
            _runs(tmp_path / name, "mlp", [])


def test_an_empty_folder_is_refused_with_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"runs\.parquet.*bench --out"):
        _runs(tmp_path, "mlp", [])


def test_a_run_above_the_peak_is_rejected_before_its_set_up_is_pooled(tmp_path):
    """ResNet-50: 4.1 GFLOP forward at 2 FLOP a multiply-add is 8.2, three times that trained; A100: 312 TFLOP/s."""
    rate = 8 * 312e12 * 0.4 / (3 * 8.2e9)
    path = tmp_path / "mine.csv"
    rows = "".join(f"a100-sxm4-80gb,8,1024,bf16,{each}\n" for each in (rate, 1.01 * rate, 16.25 * rate))
    path.write_text(f"accelerator,num_accelerators,global_batch_size,precision,samples_per_s\n{rows}")
    found = _runs(path, "resnet50", ["a100-sxm4-80gb"], known=workload("resnet50"))
    assert [each.samples_per_s for each in found.set_ups] == [pytest.approx(1.005 * rate)]
    assert re.search(r"\b1 of 3\b.*mine/3: 6[45]\d % MFU.*num_accelerators", str(found.notes[0]))


@pytest.mark.parametrize(("tokens_per_s", "is_used"), [(18_000, True), (20_200, True), (27_000, False)])
def test_the_same_runs_are_above_the_peak_for_an_answer_and_for_a_validation(tmp_path, tokens_per_s, is_used):
    """Llama 3.1 8B, by the sizes of its config.json: 6 FLOP for each of 7.50 billion weights that multiply, and
    12 x 4,096 x 4,096 x 32 for attention, of which a token meets 4,096 others on average, are 51.5 GFLOP; 41.9
    are in the layers' weights. At 989 TFLOP/s of an H100 in bf16, 19,200 and 23,600 tokens are a second's.
    """
    path, samples_per_s = tmp_path / "mine.csv", 8 * tokens_per_s / 8192
    head = (
        "workload,accelerator,num_accelerators,global_batch_samples,sequence_tokens,samples_per_s,precision"
    )
    path.write_text(f"{head}\nllama31_8b,h100-sxm5-80gb,8,128,8192,{samples_per_s},bf16\n")
    (row,) = read_rows([path])
    assert (row.seconds is not None) == is_used
    found = _runs(path, "llama31_8b", ["h100-sxm5-80gb"], known=workload("llama31_8b"), sequence_tokens=8192)
    assert len(found.set_ups) == is_used


def test_a_step_of_thousands_of_years_is_rejected_with_what_to_check(mine):
    path = mine("num_accelerators,step_ms,global_batch_size\n8,1e300,64\n8,1e15,64\n8,5000,64\n")
    found = _runs(path, "resnet50", ["a100-sxm4-80gb"])
    assert [each.samples_per_s for each in found.set_ups] == [pytest.approx(64 / 5.0)]
    assert re.search(r"\b2 of 3\b.*mine/1\b.*\b1,000 years\b.*\bunit\b", str(found.notes[0]))


def test_a_row_of_a_precision_that_nothing_has_is_rejected(tmp_path):
    path = tmp_path / "mine.csv"
    rows = "8,1,64,int3\n8,2,64,bfloat16\n8,4,64,\n"
    path.write_text(f"num_accelerators,samples_per_s,global_batch_size,precision\n{rows}")
    found = _runs(path, "resnet50", ["a100-sxm4-80gb"])
    assert {(each.precision, each.samples_per_s) for each in found.set_ups} == {("bf16", 2.0), (None, 4.0)}
    assert re.search(r"\b1 of 3\b.*int3.*bf16", str(found.notes[0]))


def test_all_rows_that_are_not_used_are_counted_the_most_frequent_reason_first(tmp_path):
    path = tmp_path / "mine.csv"
    mine, gpt2 = "llama31_8b,h100,8,128,8192,9000", "gpt2,h100,8,128,1024,90"
    other_chip, longer = mine.replace("h100", "a100-sxm4-80gb"), mine.replace("8192", "4096")
    rows = [
        mine,
        gpt2,
        gpt2,
        gpt2,
        other_chip,
        longer,
        mine.replace("9000", "-1"),
        mine.replace("9000", "nan"),
    ]
    columns = "workload,accelerator,num_accelerators,global_batch_samples,sequence_tokens,step_ms"
    path.write_text("\n".join((columns, *rows)))
    first, *others = _runs(path, "llama31_8b", ["h100-sxm5-80gb"], sequence_tokens=8192).notes
    assert first.kind == "not_used"
    assert re.search(r"\b7 of 8\b.*: 3 of gpt2 .*\b4 for 3\b", first.words)
    assert "sequence" not in first.words  # the length of another model's samples is no reason
    assert len(others) == 3
    for words in (r"\b2\b.*row 7.*step_ms.*-1", r"\b1\b.*a100-sxm4-80gb", r"\b1\b.*4,096.*8,192"):
        assert any(re.search(words, each.words) for each in others), words


@pytest.mark.parametrize(
    "rows", ["a,b\n1,2\n", "num_accelerators,step_s,global_batch\n8,-1,64\n", "", "num_accelerators\n"]
)
def test_runs_of_which_none_can_be_used_are_refused_with_why(mine, rows):
    path = mine(rows)
    with pytest.raises(DataError, match=r"--runs .*mine\.csv"):
        ask(workload="llama31_8b", tokens=1e10, accelerator=["h100-sxm5-80gb"], runs=path)


def test_a_time_in_another_unit_is_named_and_kept(mine):
    """9,000 ms of a step, as seconds: 128 sequences of 8,192 tokens, 6 x 8.03e9 FLOP each, are 5 s at 128 % MFU."""
    about = {"workload": "llama31_8b", "tokens": 1e10, "accelerator": ["h100-sxm5-80gb"], "scores": False}
    found = {}
    for step_s in (9.0, 9000.0):
        path = mine(
            f"num_accelerators,global_batch_size,step_s,precision\n8,128,{step_s},bf16\n",
            f"mine_{step_s:.0f}.csv",
        )
        answer = ask(**about, runs=path)
        assert answer.recommended.grade == "measured"
        found[step_s] = answer.notes_of("check")
    assert not found[9.0]
    (doubt,) = found[9000.0]
    assert re.search(r"mine_9000/1: .*\b2\.5 h\b.*\b8\b.*\b128\b.*step_ms", doubt.words)


def test_steps_of_a_small_model_that_launching_limits_are_not_doubted(mine):
    path = mine("num_accelerators,global_batch_size,step_s,precision\n1,1,1.0,bf16\n")
    about = {"workload": "gpt2", "tokens": 1e9, "accelerator": ["h100-sxm5-80gb"], "scores": False}
    assert not ask(**about, runs=path).notes_of("check")


def test_steps_of_no_known_batch_are_said_to_be_left_out(tmp_path):
    (tmp_path / "mine.csv").write_text("num_accelerators,samples_per_s\n1,100\n2,180\n")
    found = _runs(tmp_path, "mlp", ["a100-sxm4-80gb"])
    assert found.set_ups == ()
    (words,) = map(str, found.notes)
    assert "mine.csv" in words
    assert "global_batch_samples" in words


HEADER = (
    "workload,accelerator,num_accelerators,num_nodes,strategy,precision,global_batch_samples,samples_per_s\n"
)


def test_one_bad_row_of_a_file_is_rejected_alone_with_its_place(tmp_path):
    rows = ["1,1,,bf16,64,180", "8,1,ddp,bf16,512,1350", "16,2,ddp,bf16,512,oops", "4,1,ddp,bf16,256,690"]
    (tmp_path / "mine.csv").write_text(HEADER + "".join(f"gpt2,a100-sxm4-80gb,{row}\n" for row in rows))
    found = _runs(tmp_path, "gpt2", ["a100-sxm4-80gb"])
    assert {each.num_accelerators: each.samples_per_s for each in found.set_ups} == {1: 180, 8: 1350, 4: 690}
    assert {(each.strategy, each.precision) for each in found.set_ups} == {(None, "bf16"), ("ddp", "bf16")}
    (note,) = found.notes
    assert note.kind == "not_used"
    assert re.search(r"1 of 4 .*mine\.csv: row 3, column samples_per_s: .*oops", note.words)


def test_runs_of_something_else_are_said_to_be_left_out(tmp_path):
    (tmp_path / "mine.csv").write_text(f"{HEADER}gpt2,a100-sxm4-80gb,1,1,,bf16,64,180\n")
    for model, chip in (("mlp", "a100-sxm4-80gb"), ("gpt2", "h100-sxm5-80gb")):
        (note,) = _runs(tmp_path, model, [chip]).notes
        assert note.kind == "not_used"
        assert "gpt2 on a100-sxm4-80gb" in note.words


def test_the_largest_measured_size_is_taken_where_the_step_to_it_pays(tmp_path):
    # 690 -> 1350 samples/s for twice the accelerators: 1.96 times as fast, where 1.5 pays.
    rows = ["1,1,,bf16,64,180", "4,1,ddp,bf16,256,690", "8,1,ddp,bf16,512,1350"]
    (tmp_path / "mine.csv").write_text(HEADER + "".join(f"gpt2,a100-sxm4-80gb,{row}\n" for row in rows))
    found = ask(
        workload="gpt2",
        tokens=1e10,
        accelerator=["a100-sxm4-80gb"],
        global_batch=512,
        max_accelerators=8,
        runs=tmp_path,
    )
    assert found.recommended.num_accelerators == 8
    # 10 G tokens are 9.77 M samples; 1,350 of them a second are 2.01 h, a compiled model is no slower.
    assert 2.01 * 3600 / 2 < found.recommended.work_s.value < 2.01 * 3600 * 1.4
    assert found.recommended.mfu < 0.7


def test_a_question_asked_before_without_runs_changes_no_answer_with_them(tmp_path):
    rows = ["1,1,,bf16,64,180", "4,1,ddp,bf16,256,690", "8,1,ddp,bf16,512,1350"]
    (tmp_path / "mine.csv").write_text(HEADER + "".join(f"gpt2,a100-sxm4-80gb,{row}\n" for row in rows))
    about = {"workload": "gpt2", "tokens": 1e10, "accelerator": ["a100-sxm4-80gb"], "scores": False}
    SEARCH_CACHE.clear()
    alone = ask(**about, runs=tmp_path)
    SEARCH_CACHE.clear()
    ask(**about)
    after = ask(**about, runs=tmp_path)
    assert [each.work_s for each in after.candidates] == [each.work_s for each in alone.candidates]


def _used(tmp_path, text, model="llama31_8b", **asked):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    return _runs(path, model, ["h100-sxm5-80gb"], sequence_tokens=8192, **asked)


def test_whole_trainings_count_for_the_published_target_alone(tmp_path):
    text = "gpus,time_to_train_h,samples_per_s,global_batch\n8,350,,\n16,180,20,128\n"
    asked = _used(tmp_path, text, is_to_target=False)
    assert [each.num_accelerators for each in asked.set_ups] == [16]
    assert asked.trainings is None
    (note,) = asked.notes
    assert note.kind == "not_used"
    assert "1 of 2" in note.words
    assert _used(tmp_path, text).trainings.num_accelerators.tolist() == [8.0, 16.0]


def test_rows_of_another_model_are_not_used_for_this_one(tmp_path):
    text = (
        "model,gpus,tokens_per_s_per_gpu,global_batch\n"
        "llama-3.1-8b,8,10000,128\nllama-3.1-8b,16,9500,128\nllama-3.1-70b,32,1200,128\n"
    )
    found = _used(tmp_path, text)
    assert [each.num_accelerators for each in found.set_ups] == [8, 16]
    assert found.other_workloads == ("llama3_70b",)
    # A name that nobody knows, the only one there, may be that of a run or of a checkpoint.
    assert len(_used(tmp_path, "model,gpus,tokens_per_s,global_batch\nmine-v2,8,80000,128\n").set_ups) == 1
    # The one model that a file has is known to be another.
    assert not _used(tmp_path, "model,gpus,tokens_per_s,global_batch\nllama-3.1-70b,8,8000,128\n").set_ups


def test_a_rate_without_a_batch_is_of_the_batch_that_the_question_states(tmp_path):
    text = "gpus,tokens_per_s_per_gpu\n8,10240\n"
    assert not _used(tmp_path, text).set_ups
    (run,) = _used(tmp_path, text, global_batch_samples=128).set_ups
    # 8 times 10,240 tokens/s of 8,192 a sample are 10 samples/s.
    assert (run.samples_per_s, run.global_batch_samples) == (10.0, 128)


def test_an_empty_cell_is_not_called_a_missing_column(tmp_path):
    (note,) = _used(tmp_path, "gpus,tokens_per_s,global_batch\n8,80000,128\n16,,128\n").notes
    assert "column tokens_per_s: empty" in note.words


def test_ranks_that_do_not_multiply_to_the_size_are_no_run(tmp_path):
    """Two tensor ranks times eight data ranks are sixteen accelerators."""
    path = tmp_path / "mine.csv"
    header = "workload,accelerator,num_accelerators,global_batch_samples,tp,dp,step_ms"
    path.write_text(
        f"{header}\nresnet50,a100-sxm4-80gb,8,128,2,8,400\nresnet50,a100-sxm4-80gb,8,128,2,4,400\n"
    )
    found = _runs(path, "resnet50", ["a100-sxm4-80gb"])
    assert [each.num_accelerators for each in found.set_ups] == [8]
    assert len(found.set_ups[0].run_ids) == 1
    assert any("dp x tp = 16 on 8" in each.words or "tp x dp = 16 on 8" in each.words for each in found.notes)
