"""The page My runs over real training loops in real processes: they appear, grow, end; or are damaged."""

import re
import subprocess

import pytest
from command_line import prepared_python
from waiting import awaited

pytest.importorskip("torch")

LOOP = """
import sys, time
from pathlib import Path
import torch
from torch import nn
import equipoise
from equipoise.bench.watching import user_loop

user_loop._FLUSH_S = 0.1
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stop = Path(sys.argv[1], "stop")

def batches():
    while not stop.exists():
        time.sleep(0.005)
        yield torch.randn(8, 16)

with equipoise.watch(model, out=Path(sys.argv[1], "mine"), name="</script><b>loop") as seen:
    for x in seen.batches(batches()):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def update(started):
    """The number of the latest update that the page tells by itself."""
    _, _, live = started.answer("/runs/live")
    found = re.search(r"Training: update ([\d,]+), 1 rank, written", live)
    return int(found[1].replace(",", "")) if found else 0


@pytest.mark.browser
def test_a_loop_that_trains_appears_and_grows_and_ends(browser, start, tmp_path):
    started = start("--runs", tmp_path)
    page = browser.new_page()
    page.goto(f"{started.url}/runs")
    assert page.locator("#missing").count() == 1
    with subprocess.Popen([prepared_python(), "-c", LOOP, str(tmp_path)]) as loop:
        first = awaited(lambda: update(started), every_s=0.1)
        assert first
        assert awaited(lambda: update(started) > first, every_s=0.1)
        # The page that was open has found it by itself.
        page.locator("h1", has_text="<b>loop on 1 rank").wait_for(timeout=60_000)
        page.locator("h1", has_text="; training").wait_for(timeout=60_000)
        page.locator("#phases").wait_for(timeout=60_000)
        (tmp_path / "stop").touch()
        assert loop.wait(60) == 0
    page.locator("h1", has_text="; ended").wait_for(timeout=60_000)
    assert page.locator("main b").count() == 0
    page.close()
    assert not update(started)
    assert "1 watched run)" in started.page("/runs")[1].text


def test_a_broken_or_hostile_loop_is_a_line_and_the_others_are_shown(start, tmp_path):
    runs = tmp_path / "mine" / "watched"
    good = (
        '{"schema": "equipoise.watched/1", "rank": 0, "num_ranks": 1, "workload": "fine"}\n'
        '{"end": {"memory_bytes": 1, "cpu_fraction": 0.5}}\n'
    )
    broken = {
        "a": b"{",
        "b": b"\xff\xfe\n",
        "c": b"[" * 100_000 + b"\n",
        "d": good.replace("0.5", "1e999").encode(),
        "e": good.replace('"fine"', '{"x": 1}').encode(),
        "<img src=x>": b'{"schema": "other"}\n',
    }
    for name, content in {**broken, "z": good.encode()}.items():
        (runs / name).mkdir(parents=True)
        (runs / name / "rank-0.jsonl").write_bytes(content)
    (runs / "empty").mkdir()
    status, page = start("--runs", tmp_path).page("/runs")
    assert status == 200
    unread = re.findall(r"(<img src=x>|\w+) is not \w+: ", page.text)
    assert sorted(map(str.lower, unread)) == sorted([*broken, "empty"])
    assert "fine on 1 rank" in page.text
    assert page.all("img") == []


def test_a_browser_meets_names_of_runs_and_never_their_paths(start, running_sweep, tmp_path):
    with running_sweep(tmp_path / "mine"):
        pass
    started = start("--runs", tmp_path)
    name = f"{tmp_path.name}/mine"
    status, page = started.page(f"/runs?sweep={name}")
    assert status == 200
    assert name in page.text
    assert str(tmp_path) not in page.text
    # The sweep has no tables yet: it is refused, and called what the form calls it.
    status, page = started.page(f"/advice?workload=small_cnn&samples=1M&accelerator=h100&runs={name}")
    assert status == 422
    assert f"“Your runs” {name}: " in page.text
    assert str(tmp_path) not in page.text
