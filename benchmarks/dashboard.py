"""How fast the dashboard answers, how much memory it holds: 50 clients at once, and one who moves sliders.

Starts a dashboard of its own on a free port of loopback. Beside it: the same clients and pages through
Python's own http.server over files, which neither computes nor checks anything.
With --browser a headless Chromium, 1280 and 390 pixels wide, opens questions nobody asked before and moves a
slider by keys; each time is that until the answer is on the page, and the server's processor time is printed.
With --soak MINUTES it is asked new questions of every kind, one after the other, wrong ones too, and its
resident memory is printed every minute.
"""

import argparse
import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, product
from pathlib import Path
from statistics import linear_regression
from threading import Thread

PAGES = ("/study", "/compare", "/accuracy", "/study?round=v4.0", "/plan?workload=bert&accelerator=dgx-h100")
SLIDES = [
    f"/advice?workload=llama2_70b_lora&max_accelerators={most}&objective={objective}&price={price}"
    for price, objective, most in product((2, 3, 4), ("balance", "time", "cost"), (16, 32, 64, 128, 256))
]
LIMIT_S = 120


async def fetched(port: int, path: str, *, alone: bool = False) -> tuple[float, int, bytes]:
    """Seconds, status and body of one page."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    own = "HX-Request: true\r\n" if alone else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{own}Connection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), LIMIT_S)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    promised = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert promised is not None
    assert len(body) == int(promised[1]), "an answer was cut"
    return time.perf_counter() - began, int(head.split()[1]), body


async def clients(port: int, paths: tuple[str, ...], *, num_clients: int, num_each: int) -> list[float]:
    """Seconds of every page that every client asked for, one after the other; all clients at once."""

    async def one(number: int) -> list[float]:
        took = []
        for turn in range(num_each):
            seconds, status, _ = await fetched(port, paths[(number + turn) % len(paths)])
            assert status == 200, status  # noqa: PLR2004 - of HTTP
            took.append(seconds)
        return took

    return [each for many in await asyncio.gather(*map(one, range(num_clients))) for each in many]


def told(what: str, took: list[float]) -> float:
    """Print median, 95th percentile and the slowest; the 95th percentile in seconds."""
    ordered = sorted(took)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    print(
        f"{what}: {len(took)} pages, median {ordered[len(ordered) // 2] * 1e3:.0f} ms, "
        f"95 % below {p95 * 1e3:.0f} ms, slowest {ordered[-1] * 1e3:.0f} ms"
    )
    return p95


def memory_mib(process_id: int) -> tuple[float, float]:
    """Resident memory of a process now, and at its highest."""
    text = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    now, most = (int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


def plain(folder: Path) -> ThreadingHTTPServer:
    """Python's own server of files, in threads of this process."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    server.request_queue_size = 256
    Thread(target=server.serve_forever, daemon=True).start()
    return server


async def measure(port: int, process_id: int, *, num_clients: int) -> None:
    """Everything, printed."""
    took = [await fetched(port, path) for path in PAGES]
    told("first time, one after the other", [seconds for seconds, _, _ in took])
    before, _ = memory_mib(process_id)
    with tempfile.TemporaryDirectory() as folder:
        for number, (_, _, body) in enumerate(took):
            (Path(folder) / f"{number}.html").write_bytes(body)
        server = plain(Path(folder))
        names = tuple(f"/{number}.html" for number in range(len(PAGES)))
        files = told(
            f"files through http.server, {num_clients} clients",
            await clients(server.server_address[1], names, num_clients=num_clients, num_each=10),
        )
        server.shutdown()
    p95 = told(
        f"cached pages, {num_clients} clients at once",
        await clients(port, PAGES, num_clients=num_clients, num_each=10),
    )
    print(f"  of http.server: {p95 / files:.2f}")
    fresh = tuple(
        f"/plan?workload=bert&accelerator=dgx-a100&price={1 + number / 100}" for number in range(60)
    )
    busy = asyncio.gather(*(fetched(port, path) for path in fresh))
    told(
        f"cached pages, {num_clients} clients, while {len(fresh)} plans are made",
        await clients(port, PAGES, num_clients=num_clients, num_each=4),
    )
    await busy
    different = (
        f"/plan?workload={workload}&accelerator=dgx-h100&price={1 + number / 100}&deadline={5 + number}"
        for number, workload in zip(range(num_clients), cycle(("bert", "llama2_70b_lora", "retinanet")))
    )
    plans = await asyncio.gather(*(fetched(port, path) for path in different))
    told(f"{num_clients} clients at once, each with another plan", [seconds for seconds, _, _ in plans])
    same = await asyncio.gather(*(fetched(port, "/study?round=v3.1") for _ in range(num_clients)))
    told(f"one new study, asked by {num_clients} at once", [seconds for seconds, _, _ in same])
    assert len({body for _, _, body in same}) == 1
    slides = [(await fetched(port, path, alone=True))[0] for path in SLIDES]
    told("a slider moved: answers of one training, one after the other", slides[1:])
    now, most = memory_mib(process_id)
    print(f"memory: {before:.0f} MiB after the first pages, {now:.0f} MiB at the end, {most:.0f} MiB at most")


def question(draw: random.Random) -> str:
    """The address of one question, of any page; about a quarter are refused."""
    workload = draw.choice(
        ("bert", "llama2_70b_lora", "retinanet", "stable_diffusion", "dlrm_dcnv2", "resnet", "llama31_405b")
    )
    accelerator = draw.choice(("dgx-a100", "dgx-h100", "h200", "b200", "mi300x", "tpu-v5p", "l40s"))
    most = draw.choice((8, 64, 100, 512, 2048))
    price, deadline_h = round(draw.uniform(0.5, 9.0), 3), round(draw.uniform(0.5, 400.0), 2)
    round_ = draw.choice(("v0.7", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "v4.0", "v4.1", "v5.0"))
    asked = f"workload={workload}&accelerator={accelerator}&max_accelerators={most}"
    return draw.choice(
        (
            f"/advice?{asked}&price={price}",
            f"/advice?{asked}&deadline={deadline_h}&objective={draw.choice(('time', 'cost', 'balance'))}",
            f"/advice?{asked}&training_samples={draw.randrange(10**4, 10**8)}",
            f"/advice/answer.json?{asked}&price={price}",
            f"/plan?workload={workload}&accelerator={accelerator}&accelerators={most}&price={price}",
            f"/plan/answer.json?workload={workload}&accelerator={accelerator}&accelerators={most}",
            f"/study?round={round_}",
            f"/study?round={round_}&workload={workload}",
            f"/compare?workload={workload}",
            *("/accuracy", "/runs", f"/advice?workload={draw.random()}"),
        )
    )


async def soak(port: int, process_id: int, *, minutes: float) -> None:
    """Ask for so long; memory every minute, and its slope over the second half."""
    draw, began, statuses = random.Random(0), time.monotonic(), dict[int, int]()  # noqa: S311 - no secrets
    seen: list[tuple[float, float]] = []
    while (passed_min := (time.monotonic() - began) / 60) < minutes:
        if passed_min >= len(seen):
            now, most = memory_mib(process_id)
            seen.append((passed_min, now))
            print(f"{passed_min:.0f} min: {now:.0f} MiB, {most:.0f} at most; answers {statuses}", flush=True)
        _, status, _ = await fetched(port, question(draw))
        statuses[status] = statuses.get(status, 0) + 1
    later = seen[len(seen) // 2 :]
    slope = linear_regression(*zip(*later, strict=True)).slope if len(later) > 1 else float("nan")
    print(f"second half: {slope * 60:+.1f} MiB per hour")


FIRSTS = [
    f"/advice?workload={workload}&accelerator={accelerator}&tokens=200G&deadline=20d"
    for workload, accelerator in product(
        ("llama31_8b", "qwen3_30b_a3b", "gpt2_xl", "llama31_405b"),
        ("h100", "b200", "mi300x", "h100&accelerator=b200&accelerator=h200"),
    )
]
# From a key that moves a slider to the answer that follows.
MOVED = """(slider) => new Promise((done) => {
  const began = performance.now();
  const end = (event) => {
    if (event.detail.target.id !== "result") return;
    document.removeEventListener("htmx:afterSettle", end);
    requestAnimationFrame(() => done((performance.now() - began) / 1000));
  };
  document.addEventListener("htmx:afterSettle", end);
  slider.stepDown(); slider.dispatchEvent(new Event("input", { bubbles: true }));
})"""


def processor_s(process_id: int) -> float:
    """What a process has used of processors."""
    fields = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def browse(port: int, process_id: int) -> None:
    """First answers and sliders in a real browser, each width with questions of its own, printed."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - this option alone needs it

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for place, (width, is_phone) in enumerate(((1280, False), (390, True))):
            page = chromium.new_page(viewport={"width": width, "height": 844}, is_mobile=is_phone)
            page.goto(f"http://127.0.0.1:{port}/")
            page.locator("#result h1").wait_for()
            time.sleep(3)  # what is computed as it begins
            began_s, took = processor_s(process_id), []
            for path in FIRSTS[place::2]:
                began = time.perf_counter()
                page.goto(f"http://127.0.0.1:{port}{path}", wait_until="commit")
                page.locator("#result h1").wait_for(timeout=LIMIT_S * 1000)
                took.append(time.perf_counter() - began)
            told(f"{width} px, first answers", took)
            print(f"  {(processor_s(process_id) - began_s) / len(took):.3f} s of a processor each")
            for name in ("deadline", "budget", "max_accelerators"):
                slider = page.locator(f"input[type=range][data-for={name}]")
                began_s = processor_s(process_id)
                told(f"{width} px, the slider of {name} moved", [slider.evaluate(MOVED) for _ in range(9)])
                print(f"  {(processor_s(process_id) - began_s) / 9:.3f} s of a processor each")


def main() -> None:
    """Start a dashboard, ask it, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    chosen = parser.parse_args()
    process = subprocess.Popen(
        [sys.executable, "-m", "equipoise", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        port = int(found[1])
        if chosen.browser:
            browse(port, process.pid)
            return
        asyncio.run(
            soak(port, process.pid, minutes=chosen.soak)
            if chosen.soak
            else measure(port, process.pid, num_clients=chosen.clients)
        )
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


if __name__ == "__main__":
    main()
