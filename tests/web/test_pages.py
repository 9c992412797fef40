"""Every page of a real server: status, words, escaping. A wrong question is a sentence, never a trace."""

import csv
import io
import json
import re
import shutil
import tarfile
from pathlib import Path
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from equipoise.bench.summary import sweep_rows
from equipoise.bench.training import known_name
from equipoise.bench.trial import Store, trials_folder
from equipoise.decide.ledger import RecordedPrediction, add_predictions
from equipoise.errors import EvidenceError
from equipoise.web.evidence_screens import DataSources, RunsFields, chosen
from equipoise.web.question import label_of

TAGS = (
    "html head meta title link script body a header div nav ul ol li button main form label select option "
    "textarea optgroup fieldset legend input p span h1 h2 h3 h4 section table thead tbody tr th td details summary "
    "figure figcaption svg path text code strong noscript footer progress dl dt dd pre datalist wbr"
)
PAGES = ("/study", "/compare", "/plan", "/runs", "/accuracy", "/advice")
PATHS = ("data", "also", "hardware", "workloads", "topology", "collectives", "trace", "from")
WRONG = (
    ("/study?round=v9.9", "'v9.9'"),
    ("/study?workload=nonsense", "workload 'nonsense'"),
    ("/study?rund=v4.1", "rund='v4.1' is "),
    (f"/study?round={'x' * 161}", "longer than 160 characters"),
    (f"/study?{'&'.join(['workload=bert'] * 25)}", "too many"),
    ("/compare?entry=nothing", "entry 'nothing'"),
    (f"/compare?{'&'.join(['entry=a'] * 7)}", "too many"),
    ("/plan?most=8", "most='8' "),
    ("/plan?max-accelerators=64", r"is accelerators\b"),
    ("/allocate?accelerator=0x+h100&workload-1=bert", "pool is '0x h100'; .* at least 1"),
    ("/plan?accelerators=0", r"“Accelerators” is 0; .* 1 to 16,384"),
    ("/plan?accelerators=8..99999", "“Accelerators” is 99,999"),
    ("/plan?deadline=-1", "“Deadline, hours” is -1; .*hours"),
    ("/plan?price=nan", "“USD per accelerator-hour” is nan"),
    ("/plan?budget=inf", "“Budget, USD” is 'inf'; .*above 0"),
    ("/plan?objective=fun", "“Choose by” is 'fun'; .*balance"),
    ("/plan?workload=os:getcwd", "workload 'os:getcwd'"),
    ("/plan?accelerator=../../etc/passwd", "“On”.*'../../etc/passwd'"),
    ("/plan?region=atlantis", "“Electricity grid” 'atlantis'"),
    ("/plan?workload=vgg16", f"“{label_of('training_samples')}”"),
    (f"/plan?{'&'.join(f'accelerator=h{each}' for each in range(7))}", "7 values; .* 6"),
    (f"/plan?fix={'x' * 161}", "longer than 160 characters"),
    ("/advice?max_accelerators=0", r"Accelerators\b.*” is 0; .* 1 to 16,384"),
    ("/advice?max_accelerators=1e9", r"Accelerators\b.*” is 1,000,000,000"),
    ("/advice?max_accelerators=8&max_accelerators=9", "2 times; .*once"),
    ("/advice?on_reclaim=shrink", f"“{label_of('on_reclaim')}” .*“{label_of('terms')}”"),
    ("/advice?tokens_per_param=30", f"“{label_of('tokens_per_param')}” .*“{label_of('ask')}”"),
    ("/advice?hosting=-1", f"“{label_of('hosting_usd_per_month')}” is -1; .* 0"),
    ("/advice?utilisation=2", "“Utilisation, 0 to 1” is 2; .*above 0.*most 1"),
    ("/advice?ask=tokens", f"“{label_of('ask')}” tokens .*“Budget, USD” .*“Deadline, hours”"),
    ("/advice?ask=model&budget=9&buy=yes", f"“{label_of('ask')}” .*“{label_of('buy')}”"),
    ("/advice?runs=../../etc", "“Your runs” '../../etc'"),
    ("/advice?workload=os:getcwd", "“Train”.*'os:getcwd'"),
    ("/advice?fix=tp", r"“Fixed parameters”.*'tp=VALUE'\?(?!\.)"),
    ("/allocate?workload-1=bert&accelerator=8x+hal9000", "“The pool”.*'hal9000'"),
    ("/allocate?workload-1=nonsense", "job 1: .*'nonsense'"),
    ("/allocate?workload-1=small_cnn", "“Tokens”|“samples"),
    ("/allocate?pasted=name,workload,colour%0Aa,bert,red", "'colour'.* deadline, "),
    *((f"/advice?{name}=/etc/passwd", f"{name}='/etc/passwd' ") for name in PATHS),
    ("/advice?here=yes", "here='yes' "),
    ("/advice?deadline=x&budget=y", "“Budget, USD” is 'y'"),
    ("/runs?sweep=../../etc", "loop” '../../etc'"),
    ("/runs/live?x=1", "x='1' is "),
    ("/accuracy?x=1", "x='1' is "),
)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers_in_a_frame(dashboard, path):
    status, page = dashboard.page(path)
    assert status == 200
    assert "Traceback" not in page.text
    assert [each["href"] for each in page.all("a") if each.get("aria-current")] == [path]
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert not [
        each for each in page.all("script") if "src" not in each and each["type"] != "application/json"
    ]


def sections(page):
    return {each.get("id") for each in page.all("section")}


@pytest.mark.parametrize(("path", "words"), WRONG)
def test_a_wrong_question_is_a_sentence(dashboard, path, words):
    status, page = dashboard.page(path)
    assert status == 422
    assert re.search(words, page.text)
    assert "Traceback" not in page.text
    # A browser has neither options of a command line nor the files of a checkout.
    assert not re.search(r"(?<![\w-])--[a-z]|src/equipoise|\.toml", page.text)


@pytest.mark.parametrize(
    ("asked", "field"),
    [("accelerator=h100&max_accelerators=8", "train"), ("accelerator=rtx-4090", "max_accelerators")],
)
def test_that_nothing_can_be_recommended_is_said_in_words_of_the_form(dashboard, asked, field):
    status, page = dashboard.page(f"/advice?workload=llama31_405b&tokens=1T&{asked}")
    assert status == 200
    assert f"“{label_of(field)}”" in page.text
    assert not re.search(r"(?<![\w-])--[a-z]", page.text)


def test_what_a_budget_allows_names_no_option_of_a_command_line(dashboard):
    status, page = dashboard.page("/advice?workload=llama31_8b&ask=tokens&deadline=7d&accelerator=h100")
    assert status == 200
    assert f"“{label_of('global_batch_samples')}”" in page.text
    assert not re.search(r"(?<!var)\(--[a-z]", page.text)  # figures have colours by name


def test_a_pool_of_cards_may_be_in_several_hosts(dashboard):
    asked = "/allocate?accelerator=4x+rtx4090&workload-1=bert"
    _, one = dashboard.page(asked)
    assert f"“{label_of('node_size')}”" in one.text  # where another is stated
    assert not re.search(r"(?<!var)\(--[a-z]", one.text)
    status, two = dashboard.page(f"{asked}&node_size=2")
    assert status == 200
    held = {each["name"]: each["value"] for each in two.all("input") if "name" in each}
    assert held["node_size"] == "2"
    assert f"“{label_of('node_size')}”" not in two.text


def test_thin_evidence_says_what_is_missing(dashboard):
    status, page = dashboard.page("/plan?workload=bert&accelerator=xeon-cooper-lake-6-cpu")
    assert status == 200
    assert "missing" in sections(page)
    assert page.all("li")


def test_advice_shows_renting_and_buying_where_chosen(dashboard):
    query = "workload=bert&accelerator=dgx-h100&max_accelerators=8&deadline=24&queue=2"
    _, page = dashboard.page(f"/advice?{query}&buy=yes&hosting=0")
    held = {each["name"]: each["value"] for each in page.all("input") if "name" in each}
    assert (held["queue"], held["hosting"], held["horizon"]) == ("2", "0", "")
    assert "renting" in sections(page)
    assert re.search(r"deadline .* queue: .* chance", page.text)
    assert "buying" in sections(page)
    assert "buying" not in sections(dashboard.page(f"/advice?{query}")[1])


def test_advice_says_what_money_is_enough_for(dashboard):
    query = "workload=llama2_7b&accelerator=dgx-h100&max_accelerators=16&budget=1k"
    _, page = dashboard.page(f"/advice?{query}&ask=tokens")
    assert "1,000 USD allows" in page.text
    assert "sizes" in sections(page)
    _, page = dashboard.page(f"/advice?{query}&ask=model")
    assert re.search(r"1,000 USD .*\bmodel\b", page.text)


def test_plan_and_advice_give_the_same_answer(dashboard):
    query = "workload=bert&accelerator=dgx-h100&accelerators=8..64&deadline=1d"
    first, second = (dashboard.page(f"{path}?{query}")[1] for path in ("/plan", "/advice"))
    shown = [page.text.partition("The answer")[2].partition("Dataset")[0] for page in (first, second)]
    assert shown[0] == shown[1] != ""


def test_addresses_without_a_page_say_so(dashboard):
    assert dashboard.page("/nothing")[0] == 404
    assert dashboard.page("/assets/0000000000000000/page.js")[0] == 404
    assert dashboard.page("/assets/x/..%2f..%2fpyproject.toml")[0] == 404
    status, page = dashboard.page("/docs")
    assert status == 404
    assert len(page.all("h1")) == 1


def test_the_first_page_is_the_advice_asked_for_last(dashboard):
    status, headers, _ = dashboard.answer("/")
    assert (status, headers["location"]) == (303, "/advice")
    _, headers, _ = dashboard.answer("/advice?workload=bert&accelerator=dgx-a100")
    cookie = headers["set-cookie"].partition(";")[0]
    _, headers, _ = dashboard.answer("/", cookie=cookie)
    assert headers["location"] == "/advice?workload=bert&accelerator=dgx-a100"
    _, headers, _ = dashboard.answer("/?workload=bert&accelerator=h100", cookie=cookie)
    assert headers["location"] == "/advice?workload=bert&accelerator=h100"


def test_the_name_of_the_verb_leads_to_its_page(dashboard):
    status, headers, _ = dashboard.answer("/advise?workload=bert&accelerator=h100")
    assert (status, headers["location"]) == (303, "/advice?workload=bert&accelerator=h100")


def test_a_question_that_was_refused_is_not_the_last_one(dashboard):
    _, headers, _ = dashboard.answer("/advice?workload=nonsense")
    assert "set-cookie" not in headers


@pytest.mark.parametrize("verb", ["advise", "plan"])
def test_an_answer_is_a_file_in_three_forms(dashboard, verb):
    path = "/advice" if verb == "advise" else "/plan"
    query = "workload=bert&accelerator=dgx-a100&accelerators=8"
    forms = {}
    for kind in ("html", "json", "csv"):
        status, headers, forms[kind] = dashboard.answer(f"{path}/answer.{kind}?{query}")
        assert status == 200
        assert headers["content-disposition"] == f'attachment; filename="{verb}.{kind}"'
    document = json.loads(forms["json"])
    assert document["schema"] == f"equipoise.{verb}/2"
    rows = list(csv.DictReader(io.StringIO(forms["csv"])))
    assert [each["id"] for each in rows] == [each["id"] for each in document["candidates"]]
    assert forms["html"].startswith("<!DOCTYPE html>")
    assert "BERT" in forms["html"]


def test_a_name_in_a_saved_schedule_is_no_formula(dashboard):
    jobs = "workload-1=bert&name-1=%3D1%2B1&workload-2=bert&name-2=plain"
    status, _, saved = dashboard.answer(f"/allocate/answer.csv?accelerator=16x+dgx-a100&{jobs}")
    assert status == 200
    assert {each["job"] for each in csv.DictReader(io.StringIO(saved))} == {"'=1+1", "plain"}


def test_a_file_of_a_wrong_question_is_refused_in_its_own_form(dashboard):
    status, headers, text = dashboard.answer("/advice/answer.json?workload=nonsense")
    assert (status, headers["content-type"]) == (422, "application/json")
    assert "'nonsense'" in json.loads(text)["reason"]
    status, headers, text = dashboard.answer("/advice/answer.csv?workload=nonsense")
    assert (status, headers["content-type"]) == (422, "text/plain; charset=utf-8")
    assert "'nonsense'" in text
    assert dashboard.answer("/advice/answer.exe?workload=bert")[0] == 422


def test_a_file_of_thin_evidence_is_the_document_of_the_verb(dashboard):
    # 3 divides neither the 32 heads of the model nor its 4,096 hidden values, so that no strategy is possible.
    asked = "workload=llama31_8b&accelerator=h100&tokens=1T&fix=tp%3D3"
    status, headers, text = dashboard.answer(f"/advice/answer.json?{asked}")
    assert (status, headers["content-type"]) == (200, "application/json")
    document = json.loads(text)
    assert (document["schema"], document["status"]) == ("equipoise.advise/2", "not_enough_evidence")
    assert "heads=32" in document["reason"]
    assert document["missing"]
    assert "--fix" not in text
    assert dashboard.answer(f"/advice/answer.csv?{asked}")[0] == 422


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        ("workload=bert&accelerator=dgx-a100&accelerators=8", ["html", "json", "csv"]),
        ("workload=llama31_8b&accelerator=h100&tokens=1T&fix=tp%3D3", ["json"]),
        ("workload=nonsense", []),
    ],
    ids=["answered", "thin", "refused"],
)
@pytest.mark.parametrize("is_open", [False, True], ids=["opened", "changed"])
def test_only_the_files_that_there_are_can_be_saved(dashboard, asked, kinds, is_open):
    headers = {"hx_request": "true"} if is_open else {}
    _, page = dashboard.page(f"/advice?{asked}", **headers)
    links = [each["href"] for each in page.all("a") if "download" in each]
    assert [re.search(r"answer\.(\w+)", each)[1] for each in links] == kinds


def test_a_cookie_leads_to_no_other_place(dashboard):
    status, headers, _ = dashboard.answer("/", cookie=f"question-{dashboard.port}=//elsewhere.example/")
    assert status == 303
    assert headers["location"].startswith("/advice?")


def test_hostile_names_are_text_on_every_page(dashboard, hostile):
    paths = ("/study", "/compare", "/runs", "/advice?workload=bert", "/plan?workload=retinanet")
    for path in (*paths, f"/study?round={'%3Cb%3E'}", f"/advice?accelerator={'%3Cb%3E'}"):
        _, page = dashboard.page(path)
        assert {each.tag for each in page.elements} <= set(TAGS.split())
        handlers = [name for each in page.elements for name in each if name.startswith("on")]
        assert handlers == []
    _, page = dashboard.page("/study")
    assert " ".join(hostile.split())[:40] in page.text
    _, page = dashboard.page("/runs")
    assert "<script>document.title='owned'</script> {{7*7}} \\x1b[2J\\u202e" in page.text


def test_every_field_has_a_name_for_who_listens(dashboard):
    num_fields = 0
    for path in PAGES:
        _, page = dashboard.page(path)
        labelled = {each["for"] for each in page.all("label") if "for" in each}
        fields = [each for tag in ("input", "select") for each in page.all(tag)]
        num_fields += len(fields)
        unnamed = [
            each
            for each in fields
            if each.get("type") != "checkbox"
            and each.get("id") not in labelled
            and not each.get("aria-label")
        ]
        assert unnamed == [], path
        identifiers = [each["id"] for each in page.elements if "id" in each]
        assert len(identifiers) == len(set(identifiers)), path
        described = {each["aria-describedby"] for each in page.elements if "aria-describedby" in each}
        assert described <= set(identifiers)
    assert num_fields


def test_an_address_may_name_fields_as_options_do(dashboard):
    _, page = dashboard.page("/advice?workload=bert&accelerator=dgx-a100&max-accelerators=8&global-batch=256")
    held = {each.get("name"): each.get("value") for each in page.all("input")}
    assert (held["max_accelerators"], held["global_batch"]) == ("8", "256")
    assert "BERT" in page.text


def test_every_address_that_a_page_leads_to_has_a_page(dashboard):
    seen, waiting = {"/"}, [*PAGES, "/allocate"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        status, page = dashboard.page(path)
        assert status == 200, path
        identifiers = {each["id"] for each in page.elements if "id" in each}
        targets = [
            each[name] for each in page.elements for name in ("href", "action", "hx-get") if name in each
        ]
        assert {each[1:] for each in targets if each.startswith("#")} <= identifiers, path
        waiting += {each for each in targets if each.startswith("/")} - seen - set(waiting)
    assert len(seen) > 20


def test_whatever_compare_offers_it_compares(dashboard):
    _, page = dashboard.page("/compare")
    workloads = [each["value"] for each in page.all("option") if each["value"] in {"bert", "retinanet"}]
    assert len(workloads) == 2
    for workload in workloads:
        _, page = dashboard.page(f"/compare?workload={workload}")
        entries = [each["value"] for each in page.all("input") if each.get("name") == "entry"]
        for begin in range(0, len(entries), 6):
            chosen = urlencode(
                [("workload", workload), *(("entry", each) for each in entries[begin : begin + 6])]
            )
            status, page = dashboard.page(f"/compare?{chosen}")
            assert (status, "missing" in sections(page)) == (200, False)


def test_small_amounts_in_an_address_are_answered_without_a_warning(start):
    started = start()
    for asked in ("price=1e-300", "budget=1e-9", "deadline=1e-9", "electricity=1e-300", "value_of_time=1e-9"):
        status, page = started.page(f"/advice?workload=bert&accelerator=dgx-a100&accelerators=8&{asked}")
        assert (status, "0.0000000000" in page.text) == (200, False)
    assert started.stopped() == (130, "equipoise: interrupted\n")


def test_the_address_holds_the_state(dashboard):
    query = "workload=bert&accelerator=dgx-a100&accelerator=h100&accelerators=8..32&objective=time&tokens="
    _, page = dashboard.page(f"/plan?{query}&price=dgx-a100%3D2.5&precision=bf16&precision=fp8&fix=tp%3D1..2")
    chosen = [each["value"] for each in page.all("option") if "selected" in each]
    assert chosen[0] == "time"
    systems = [each["value"] for each in page.all("input") if each.get("name") == "accelerator"]
    assert systems == ["dgx-a100", "h100", ""]
    held = {each.get("name"): each.get("value") for each in page.all("input") if each.get("type") == "text"}
    assert (held["accelerators"], held["price"], held["budget"]) == ("8..32", "dgx-a100=2.5", "")
    assert (held["workload"], held["fix"], held["tokens"]) == ("bert", "tp=1..2", "")
    assert [each["value"] for each in page.all("input") if "checked" in each] == ["bf16", "fp8"]
    assert "BERT" in page.text


def test_an_open_page_gets_the_answer_alone(dashboard):
    status, headers, text = dashboard.answer("/study", hx_request="true")
    assert status == 200
    assert "<!DOCTYPE" not in text
    assert 'id="at-workload" hx-swap-oob="innerHTML"' in text
    assert "HX-Request" in headers["vary"]
    assert headers["cache-control"] == "no-store"


def test_the_theme_is_taken_from_the_cookie_and_from_nothing_else(dashboard):
    for cookie, media in (("theme=dark", "screen"), ("theme=light", "not all"), ('theme="x>"', "screen and")):
        _, page = dashboard.page("/accuracy", cookie=cookie)
        dark = next(each for each in page.all("link") if each.get("id") == "dark")
        assert dark["media"].startswith(media)


def test_assets_may_be_kept_and_are_what_they_say(dashboard):
    _, page = dashboard.page("/accuracy")
    addresses = [each["src"] for each in page.all("script") if "src" in each]
    assert addresses
    for address in addresses:
        status, headers, _ = dashboard.answer(address)
        assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        assert "immutable" in headers["cache-control"]
        assert headers["x-content-type-options"] == "nosniff"


def test_without_runs_the_page_says_how_to_name_them(start):
    _, page = start().page("/runs")
    assert "equipoise serve --runs DIR" in page.text


def test_a_sweep_is_shown_as_it_runs_grows_and_stands_still(start, tmp_path, running_sweep):
    started = start("--runs", tmp_path)
    with running_sweep(tmp_path / "mine", num_finished=2) as add:
        _, page = started.page("/runs")
        assert "mine: 2 of 6 runs; running" in page.text
        (again,) = [each["hx-get"] for each in page.elements if each.get("id") == "live"]
        status, headers, live = started.answer(again)
        assert (status, "hx-trigger" in headers, "2 of 6 runs" in live) == (200, False, True)
        add()
        assert started.answer(again)[1]["hx-trigger"] == "answer-changed"
        assert "mine: 3 of 6 runs; running" in started.page("/runs")[1].text
    # Killed: nobody holds it, but the folder of its last run is still there.
    (tmp_path / "mine" / "running-1").mkdir()
    _, page = started.page("/runs")
    assert "mine: 3 of 6 runs; stopped" in page.text
    assert page.all("progress") == []


def test_a_damaged_sweep_is_a_sentence(start, tmp_path, running_sweep):
    with running_sweep(tmp_path / "mine"):
        pass
    next((tmp_path / "mine" / "trials").glob("*.json")).write_text("{")
    status, page = start("--runs", tmp_path).page("/runs")
    assert status == 422
    assert re.search(r"trials/.*\.json: .*\bdelete\b", page.text)


def test_without_predictions_my_runs_say_how_to_keep_one(start, tmp_path, running_sweep):
    with running_sweep(tmp_path / "mine"):
        pass
    _, page = start("--runs", tmp_path, EQUIPOISE_LEDGER=str(tmp_path / "none.jsonl")).page("/runs")
    assert "--record" in page.text


def test_runs_are_shown_beside_what_was_predicted_of_them(start, tmp_path, running_sweep):
    """On two ranks a step of 64 samples takes 3 ms and some per cent: about 21,000 samples/s."""
    ledger = tmp_path / "ledger.jsonl"
    with running_sweep(tmp_path / "mine", num_finished=6):
        (accelerator,) = {
            row["accelerator"] for row in sweep_rows(tmp_path / "mine", Store(tmp_path / "mine").finished())
        }
    predicted = RecordedPrediction(
        verb="plan",
        workload="small_mlp",
        accelerator=accelerator,
        num_accelerators=2,
        quantity="samples_per_s",
        value=30_000.0,
        low=25_000.0,
        high=36_000.0,
        kind="model",
        global_batch_samples=64,
    )
    add_predictions(ledger, [predicted])
    started = start("--runs", tmp_path, EQUIPOISE_LEDGER=str(ledger))
    _, page = started.page("/runs")
    assert "Predicted" in page.text
    assert "range: 0 of 1." in page.text
    assert "Step of small_mlp, batch 64 (plan)" in page.text
    assert re.search(
        r"2\.13 ms \(1\.78.2\.56 ms\)", page.text
    )  # 64 samples at 30,000, 36,000 and 25,000 a second
    # A later prediction of the same replaces it, and the page follows.
    add_predictions(ledger, [replace(predicted, value=21_000.0, low=15_000.0)])
    _, page = started.page("/runs")
    assert "range: 1 of 1." in page.text
    ratio = float(re.search(r"(\d\.\d\d) *yes", page.text)[1])
    assert ratio == pytest.approx(64 / 0.003 / 21_000, rel=0.06)


def test_the_page_without_runs_names_a_model_there_is():
    with pytest.raises(EvidenceError) as refused:
        chosen(RunsFields(), DataSources())
    assert known_name(re.search(r"equipoise bench (\S+)", refused.value.missing[0])[1])


@pytest.mark.parametrize("part", ["sweep.json", "a trial"])
def test_runs_open_with_the_latest_that_can_be_read(tmp_path, part):
    with tarfile.open(Path(__file__).parents[2] / "docs" / "examples" / "small-cnn-sweep.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (whole,) = (each.parent for each in tmp_path.rglob("sweep.json"))
    damaged = tmp_path / "damaged"
    shutil.copytree(whole, damaged)
    trial = next(trials_folder(damaged).iterdir())
    (trial if part == "a trial" else damaged / part).write_text("{")  # written to last
    sources = DataSources(runs=(whole, damaged))
    assert chosen(RunsFields(), sources) == whole
    shutil.rmtree(whole)
    assert chosen(RunsFields(), DataSources(runs=(damaged,))) == damaged
