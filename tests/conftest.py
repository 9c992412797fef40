"""Fixtures shared by all tests: where the development data is, what is promised, and a browser."""

import gc
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Some virtual machines list AMX among their instructions and trap when bf16 products use it: a crashed test.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Threads of small products and solutions wait for each other where workers of xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As `python -m equipoise` does: what lasts, and much here does, is looked through for garbage less often.
gc.set_threshold(100_000, 50, 50)
# Where nohup, or a shell that started this in the background, has signals ignored, the processes that tests
# start would inherit that; those that are caught here they get as in a terminal.
for each in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(each) is signal.SIG_IGN:
        signal.signal(each, lambda _number, _frame: None)
# No test is timed: a busy machine is no failure.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

ROOT = Path(__file__).resolve().parents[1]
# The headless shell is the same engine without the window of a desktop, which takes half the time of a core for a new page.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
# The files that take longest, in this order: begun first, so that no worker of xdist is left alone with one.
SLOW = (
    "web/test_dashboard_browser.py",
    "bench/test_slurm.py",
    "bench/test_bench_verb.py",
    "web/test_workers.py",
    "report/test_browser.py",
    "bench/test_ray.py",
    "decide/test_decision.py",
    "web/test_pages.py",
    "decide/test_decision_laws.py",
    "bench/test_watch_ranks.py",
    "test_docs.py",
    "decide/strategies/test_chip_order.py",
    "decide/user_evidence/test_answers_of_own_runs.py",
    "spec/test_torch_model.py",
    "records/test_plan_record.py",
    "bank/test_screen.py",
    "bench/test_bench_worker.py",
    "bench/test_hosts.py",
    "decide/test_fixed_strategies.py",
    "decide/test_solve_for.py",
    "web/test_serve.py",
    "test_files.py",
    "test_cli.py",
    "test_architecture.py",
    "test_study.py",
    "web/test_protocol.py",
    "bench/test_collectives_timed.py",
    "bank/test_seen.py",
    "perfmodel/test_search.py",
    "launch/test_accepted.py",
    "bench/test_trace.py",
    "test_fuzz.py",
    "decide/test_order_bounds.py",
    "decide/strategies/test_problem.py",
    "perfmodel/test_laws.py",
    "bench/test_methods.py",
    "decide/test_select_laws.py",
    "runs/test_mlperf_rounds.py",
    "scaling/test_fit.py",
    "test_extend.py",
    "records/test_software_fit.py",
    "cli/test_unwritable.py",
    "cli/test_record.py",
    "calibration/test_published_steps.py",
    "web/test_runs.py",
    "bench/test_watch.py",
    "decide/user_evidence/test_runs.py",
    "decide/user_evidence/test_runs_alone.py",
)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def pytest_collection_modifyitems(items):
    """Put the slow files first."""
    place = {ROOT / "tests" / name: number for number, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes():
    """Workers share the processes that commands are forked from: see tests/processes/command_line.py."""
    from command_line import shared_by_workers  # noqa: PLC0415 - without workers tests of nothing else need it

    shared_by_workers()


def pytest_collection_finish():
    """What is loaded by now lasts: nothing looks through it for garbage again, which takes seconds at the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The development data, or a skip that says how to provide it."""
    path = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("development data not found: set EQUIPOISE_DATA to its folder")
    return path


@pytest.fixture(scope="session", autouse=True)
def _own_ledger(tmp_path_factory):
    """Answers do not depend on what whoever runs the tests has recorded."""
    os.environ["EQUIPOISE_LEDGER"] = str(tmp_path_factory.mktemp("recorded") / "ledger.jsonl")


@pytest.fixture
def one_core():
    """This process and what it starts stay on one core, another one in each worker of xdist.

    A run of one rank takes all cores it finds; where others compute there too, its threads wait for each other.
    """
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {cores[worker % len(cores)]})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def prepared_ranks():
    """Ranks are forked from a process that has loaded torch: see tests/processes/command_line.py."""
    from command_line import prepared_ranks  # noqa: PLC0415 - tests of nothing else need it

    with prepared_ranks():
        yield


@pytest.fixture(scope="module")
def browser():
    """A real headless Chromium, or a skip that says how to have one."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def mine(tmp_path):
    """A function that writes a file of the user's own, and gives its path."""

    def write(content, name="mine.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture(scope="session")
def promised_score_fields() -> list[str]:
    """The fields of an entry that scripts may rely on, in order: the contract of `equipoise scores`."""
    return [
        "round",
        "division",
        "availability",
        "submitter",
        "system",
        "workload",
        "accelerator",
        "num_accelerators",
        "num_nodes",
        "score_s",
        "lenient_s",
        "unscaled_s",
        "convergence_scaling",
        "num_runs",
        "num_failed",
        "num_missing",
        "min_s",
        "max_s",
        "global_batch_samples",
        "samples_to_target",
        "energy_j",
        "speedup",
        "relative_efficiency",
        "like_for_like_efficiency",
        "like_for_like_baseline",
        "source_uri",
        "source_line",
        "reason",
    ]
