"""`allocate` as its users meet it: answers by hand, exit codes, files that are wrong."""

import json
import re
from pathlib import Path

import pytest
from command_line import in_process

from equipoise.decide.allocation.jobs import read_jobs, read_prices
from equipoise.errors import DataError

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
POOL = ("--cluster", "16x h100-sxm5-80gb")


@pytest.fixture
def jobs(tmp_path):
    """A function that writes a file of jobs."""

    def write(text):
        path = tmp_path / "jobs.toml"
        path.write_text(text)
        return path

    return write


TWO = """
[[job]]
name = "a"
times = { 8 = "2 h", 16 = "1 h" }
[[job]]
name = "b"
times = { 8 = ["3 h", "3 h"], 16 = "2.5 h" }
"""


def test_the_least_total_time_by_hand(jobs):
    # In turn on 16: a done at 1 h, b at 3.5 h: 4.5 h. Side by side on 8 each: 2 h + 3 h = 5 h.
    ended = in_process("allocate", jobs(TWO), *POOL, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found["schema"] == "equipoise.allocate/2"
    assert found["value"]["value"] == 4.5 * 3600
    assert [each["candidate"]["num_accelerators"] for each in found["jobs"]] == [16, 16]
    assert found["proof"]["proved"]
    assert [each["value"] for each in found["simpler_schedules"]] == [5 * 3600, 5 * 3600, 4.5 * 3600]


def test_the_least_makespan_by_hand(jobs):
    # Side by side: 3 h. In turn: 3.5 h.
    found = json.loads(in_process("allocate", jobs(TWO), *POOL, "--objective", "makespan", "--json").stdout)
    assert found["value"]["value"] == 3 * 3600
    assert found["side_by_side"]


@pytest.mark.parametrize(
    ("prices", "usd_per_hour"), [(("h100=4",), 4.0), (("3",), 3.0), (("h100=4", "5"), 4.0)]
)
def test_a_price_is_of_the_system_that_it_names(jobs, prices, usd_per_hour):
    stated = [each for price in prices for each in ("--price", price)]
    found = json.loads(in_process("allocate", jobs(TWO), *POOL, *stated, "--json").stdout)
    # 16 for 1 h and for 2.5 h.
    spent = [each["candidate"]["usd"]["value"] for each in found["jobs"]]
    assert spent == pytest.approx([16 * usd_per_hour, 40 * usd_per_hour])


def test_the_least_money_of_an_owned_machine_is_its_electricity(jobs):
    # By accelerator-hours: a takes 2 h x 8 or 1 h x 16, b 24 h on 8 against 40 h on 16.
    ended = in_process("allocate", jobs(TWO), *POOL, "--price", "0", "--objective", "cost", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    spent = [each["candidate"]["usd"]["value"] for each in found["jobs"]]
    assert found["jobs"][1]["candidate"]["num_accelerators"] == 8
    assert spent[1] == pytest.approx(24 / 16 * spent[0], rel=1e-4)
    assert found["value"]["value"] == pytest.approx(sum(spent), rel=1e-4) != 0


def test_jobs_take_the_slices_that_there_are(jobs):
    path = jobs('[[job]]\nworkload = "bert"\n')
    pool = ("--cluster", "12x tpu-v5e")
    found = json.loads(in_process("allocate", path, *pool, "--json").stdout)
    assert [each["candidate"]["num_accelerators"] for each in found["jobs"]] == [8]
    refused = in_process("allocate", jobs('[[job]]\nworkload = "bert"\nsizes = [2, 8]\n'), *pool)
    assert refused.returncode == 2
    assert "slices" in refused.stderr
    predicted = in_process("predict", "--workload", "bert", "--accelerator", "tpu-v5e", "--at", "4,12")
    assert predicted.returncode == 2
    assert "slices" in predicted.stderr


@pytest.mark.parametrize("price", ["b200=2", "b200=2,h100=9", "nonsense=2"])
def test_a_price_of_another_system_is_refused(jobs, price):
    ended = in_process("allocate", jobs(TWO), *POOL, "--price", price)
    assert ended.returncode == 2
    assert price.partition("=")[0] in ended.stderr


def test_deadlines_that_cannot_be_kept_are_an_answer(jobs):
    path = jobs(TWO.replace('"1 h" }', '"1 h" }\ndeadline = "30 min"'))
    ended = in_process("allocate", path, *POOL)
    assert ended.returncode == 0
    assert {"30", "60"} <= set(re.findall(r"(\d+)\smin", ended.stdout))
    found = json.loads(in_process("allocate", path, *POOL, "--json").stdout)
    assert (found["feasible"], found["certain"]) == (False, True)
    assert found["late"] == [{"name": "a", "deadline_s": 1800.0, "late_s": 1800.0}]


def late_job(hours, *others, deadline="2 d"):
    """Jobs that each take the whole pool: one with a deadline, then others of so many minutes."""
    text = f'[[job]]\nname = "big"\ntimes = {{ 16 = "{hours} h" }}\ndeadline = "{deadline}"\n'
    return text + "".join(
        f'[[job]]\nname = "{minutes} min"\ntimes = {{ 16 = "{minutes} min" }}\n' for minutes in others
    )


@pytest.mark.parametrize(
    ("hours", "others", "order", "minutes"),
    [
        # 6 d due in 2 d: small ends at 10 min, big at 6 d 10 min = 8,650 min, 5,770 min after 2,880 min.
        (144, (10,), ["10 min", "big"], (10 + 8650, 5770)),
        # 6.7 d due in 2 d: done after 10, 21 and 9,648 + 21 = 9,669 min.
        (160.8, (11, 10), ["10 min", "11 min", "big"], (10 + 21 + 9669, 9669 - 2880)),
    ],
)
def test_a_deadline_that_no_start_keeps_does_not_keep_others_waiting(jobs, hours, others, order, minutes):
    path = jobs(late_job(hours, *others))
    found = json.loads(in_process("allocate", path, *POOL, "--json").stdout)
    assert [each["name"] for each in sorted(found["jobs"], key=lambda each: each["start_s"])] == order
    assert found["value"]["value"] == pytest.approx(minutes[0] * 60)
    assert (found["feasible"], found["certain"], found["proof"]["proved"]) == (False, True, True)
    assert [each["name"] for each in found["late"]] == ["big"]
    assert found["late"][0]["late_s"] == pytest.approx(minutes[1] * 60)
    text = " ".join(in_process("allocate", path, *POOL).stdout.split())
    days = [float(each) for each in re.findall(r"([\d.]+)\sdays", text.partition("Late ")[2])]
    # Late by, late by alone, and the total.
    assert days[:3] == pytest.approx([minutes[1] / 1440, hours / 24 - 2, minutes[0] / 1440], abs=0.051)


def test_a_deadline_that_can_be_kept_goes_before_one_that_cannot(jobs):
    # "due" takes 60 min of 65: first, though the 10 min job first would save 50 min of waiting.
    due = '[[job]]\nname = "due"\ntimes = { 16 = "60 min" }\ndeadline = "65 min"\n'
    found = json.loads(in_process("allocate", jobs(late_job(144, 10) + due), *POOL, "--json").stdout)
    assert [each["start_s"] / 60 for each in found["jobs"]] == [70, 60, 0]
    assert found["value"]["value"] == pytest.approx((60 + 70 + 70 + 144 * 60) * 60)


def test_deadlines_that_exclude_each_other_are_missed_by_the_least(jobs):
    # 5 h and 3 h, both due in 6 h: the second is done after 8 h, 2 h late, in either order. The job of 10 min
    # comes last: ahead of it the second would be later, at 8 h 10 min.
    third = '[[job]]\nname = "b"\ntimes = { 16 = "3 h" }\ndeadline = "6 h"\n'
    found = json.loads(
        in_process("allocate", jobs(late_job(5, 10, deadline="6 h") + third), *POOL, "--json").stdout
    )
    assert [each["start_s"] / 60 for each in found["jobs"]] in ([180, 480, 0], [0, 480, 300])
    assert [each["late_s"] for each in found["late"]] == [2 * 3600]
    assert (found["feasible"], found["certain"]) == (False, True)


def test_jobs_move_into_cheap_hours(jobs, mine):
    prices = mine(
        "hour,usd_per_kwh\n" + "".join(f"{h},{0.1 if h == 3 else 0.3}\n" for h in range(24)), "prices.csv"
    )
    path = jobs('[[job]]\nname = "a"\ntimes = { 8 = "1 h" }\ndeadline = "10 h"\n')
    options = (*POOL, "--objective", "cost", "--electricity-by-hour", prices, "--json")
    found = json.loads(in_process("allocate", path, *options).stdout)
    assert found["jobs"][0]["start_s"] == 3 * 3600
    # 8 accelerators of 700 W, times 1.18 for the system, over an hour: 6.608 kWh at 0.1.
    assert found["value"]["value"] == pytest.approx(0.6608)


@pytest.mark.parametrize(("text", "options"), [("", ("--begin", "12:00")), ('begin = "12:00"\n', ())])
def test_a_time_of_day_that_nothing_depends_on_is_refused(jobs, text, options):
    ended = in_process("allocate", jobs(text + TWO), *POOL, *options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.search(r"--begin .*--electricity-by-hour", " ".join(ended.stderr.split()))


def test_a_training_without_its_budget_is_refused(jobs):
    ended = in_process("allocate", jobs('[[job]]\nname = "ours"\nworkload = "llama2_7b"\n'), *POOL, "--json")
    assert (ended.returncode, ended.stdout) == (2, "")
    words = " ".join(ended.stderr.split())
    assert "job 1 (ours)" in words
    assert "tokens = 1e12" in words


def test_what_a_job_is_to_state_is_accepted_as_it_is_written(jobs):
    text = '[[job]]\nworkload = "llama31_8b"\nsizes = [16]\n'
    refused = in_process("allocate", jobs(text.replace("31_8b", "2_7b")), *POOL)
    ways = " ".join(refused.stderr.split()).partition(": give ")[2].split(", or ")
    assert [way.partition(" = ")[0] for way in ways] == ["tokens", "samples"]
    for way in ways:
        assert in_process("allocate", jobs(f"{text}{way}\n"), *POOL).returncode == 0


def test_a_complaint_about_a_strategy_names_no_option_that_the_verb_has_not(jobs):
    text = '[[job]]\nworkload = "bert"\nfix = "tp=3,pp=7"\n'
    refused = in_process("allocate", jobs(text), *POOL)
    assert refused.returncode == 3
    assert "--" not in refused.stderr


def test_what_would_let_a_job_fit_is_stated_as_fields_of_it(jobs):
    text = '[[job]]\nworkload = "llama31_70b"\ntrain = "full"\nexamples = "10k"\nsequence = "2k"\n'
    ended = in_process("allocate", jobs(text), "--cluster", "3x rtx4090")
    assert ended.returncode == 2
    ways = re.findall(r'\w+ = "[^"]+"', " ".join(ended.stderr.split()))
    assert ways == ['train = "lora"', 'train = "qlora"']
    assert "--" not in ended.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"no \[\[job\]\]"),
        ("job = 3", r"no \[\[job\]\]"),
        ("[[job]]\n", "job 1: has nothing"),
        ('[[job]]\nworkload = "bert"\ndeadlin = "3 h"\n', "deadlin.*deadline"),
        ('[[job]]\nworkload = "bert"\ndeadline = -3\n', "deadline.*hours"),
        ('[[job]]\nworkload = "bert"\nstart = "3 h"\ndeadline = "2 h"\n', 'deadline.*"2 h"|deadline.*start'),
        ('[[job]]\ntimes = { 0 = "3 h" }\n', "times.*0"),
        ('[[job]]\ntimes = { 8 = "soon" }\n', "a time above 0"),
        ('[[job]]\ntimes = { 8 = "1 h" }\nfile = "a.csv"\n', "times.*file"),
        ('[[job]]\nworkload = "bert"\nsizes = [0]\n', "sizes.* 0|sizes.*\\[0"),
        ('[[job]]\nworkload = "bert"\nweight = -1\n', "above 0"),
        ('[[job]]\nname = "a"\nworkload = "bert"\n' * 2, r"\ba\b.*\b2\b|two.*\ba\b"),
        ('electricity_usd_per_kwh = [1]\n[[job]]\nworkload = "bert"\n', "24 numbers"),
        ('begin = "25:00"\n[[job]]\nworkload = "bert"\n', "begin.*25:00"),
        ("[[job", "TOML"),
        ("step,seconds\n1,2\n", "'seconds' and 'step'"),
        ("a = " + "[" * 5000, "TOML|nested"),
        ("a = " + "9" * 5000, "TOML"),
    ],
)
def test_files_that_are_wrong_say_where_and_what_was_expected(jobs, text, words):
    with pytest.raises(DataError, match=words) as caught:
        read_jobs(jobs(text))
    assert "jobs.toml" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_the_examples_are_read():
    assert [each.name for each in read_jobs(EXAMPLES / "jobs.toml").jobs][-1].startswith("our own")
    assert len(read_prices(EXAMPLES / "prices-by-hour.csv")) == 24


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("0,1\n0,1\n", "each hour"),
        ("0,1\n", "hour 1, 2"),
        ("24,1\n", "0 to 23"),
        ("0,cheap\n", "cheap"),
        ("0,1_0\n", "'1_0'"),
        ("0,nan\n", "nan"),
    ],
)
def test_prices_that_are_no_day_are_refused(mine, rows, words):
    path = mine(f"hour,usd_per_kwh\n{rows}", "prices.csv")
    with pytest.raises(DataError, match=words):
        read_prices(path)


@pytest.mark.parametrize(
    ("cell", "usd"), [("0", 0.0), ("0.00", 0.0), (".0", 0.0), ("-0.05", -0.05), ("+0.2", 0.2)]
)
def test_a_price_may_be_nothing_or_below(mine, cell, usd):
    path = mine("hour,usd_per_kwh\n" + "".join(f"{hour},{cell}\n" for hour in range(24)), "prices.csv")
    assert read_prices(path) == (usd,) * 24


def test_amounts_of_a_job_may_be_written_as_those_of_a_question(jobs):
    text = '[[job]]\nworkload = "gpt2"\ntokens = "10B"\n[[job]]\nworkload = "bert"\nsamples = "1.5M"\nglobal_batch = "2k"'
    first, second = read_jobs(jobs(text)).jobs
    assert first.training == {"training_tokens": 10e9}
    assert second.training == {"training_samples": 1.5e6, "global_batch_samples": 2000}


@pytest.mark.parametrize(
    "text",
    [
        "name,times\na,8=3h 8=4h 16=2h\n",
        '[[job]]\nname = "a"\ntimes = { 8 = "3 h", 08 = ["4 h"], 16 = "2 h" }\n',
    ],
)
def test_times_of_a_size_named_again_are_repetitions(jobs, text):
    (job,) = read_jobs(jobs(text)).jobs
    assert job.times == {8: (3 * 3600, 4 * 3600), 16: (2 * 3600,)}


@pytest.mark.parametrize(
    "text",
    [
        '[[job]]\nworkload = "bert"\nstart = 0.5\ndeadline = 8\n',
        '[[job]]\nworkload = "bert"\nstart = "30min"\ndeadline = "8"\n',
        "workload,start,deadline\nbert,0.5,8\n",
    ],
)
def test_moments_of_a_job_without_a_unit_are_hours(jobs, text):
    (job,) = read_jobs(jobs(text)).jobs
    assert (job.start_s, job.deadline_s) == (1800.0, 8 * 3600.0)
