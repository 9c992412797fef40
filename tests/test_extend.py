"""The recipes of docs/extend.md are carried out as they stand there: by options, or on a copy of the package."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from equipoise.calibration import EstimatorName
from equipoise.report.pages.answer.compare import ESTIMATORS
from equipoise.runs.readers import READERS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "equipoise"
PAGE = (ROOT / "docs" / "extend.md").read_text()
DAY_S = 86_400.0


class Recipe:
    """A section of the page: files by their title, changes of the package, commands."""

    def __init__(self, heading):
        text = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
        self.files = dict(re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL))
        self.changes = "".join(re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        self.commands = re.findall(r"^```sh\n(.+)\n```$", text, re.MULTILINE)


class Package:
    """A copy of the package that recipes may change, and a folder to work in."""

    def __init__(self, folder):
        self.root, self.folder = folder / "copy", folder / "work"
        # What was compiled is copied with it, but for files that are being written.
        ignored = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(SOURCE, self.root / "src" / "equipoise", ignore=ignored)
        self.folder.mkdir()

    def follow(self, recipe):
        """Write the files of a recipe (tables grow, others are new) and make its changes."""
        assert recipe.files
        for name, text in recipe.files.items():
            inside = name.startswith("src/")
            path = (self.root if inside else self.folder) / name
            assert path.exists() == (inside and path.suffix == ".toml"), name
            path.write_text(f"{path.read_text()}\n{text}" if path.exists() else text)
        for change in re.split(r"^--- ", recipe.changes, flags=re.MULTILINE)[1:]:
            name, *lines = change.splitlines()
            self._change(self.root / name, lines)

    def _change(self, path, lines):
        """Lines that begin with a space are found, with a minus taken out, with a plus put in there."""
        text, at = path.read_text(), 0
        assert lines
        for line in lines:
            kind, words = line[0], f"{line[1:]}\n"
            if kind == "+":
                text = text[:at] + words + text[at:]
                at += len(words)
            else:
                assert text.count(words) == 1, (path, line)
                at = text.index(words) + len(words)
                if kind == "-":
                    text = text.replace(words, "")
                    at -= len(words)
        path.write_text(text)

    def run(self, command):
        """What a command prints."""
        program, *arguments = shlex.split(command)
        started = [sys.executable, *(["-m", "equipoise"] if program == "equipoise" else [])]
        ended = subprocess.run(
            [*started, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.root / "src"), "EQUIPOISE_LEDGER": "ledger.jsonl"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def answer(self, command):
        """The JSON document of a command."""
        return json.loads(self.run(f"{command} --json"))


@pytest.fixture
def package(tmp_path):
    return Package(tmp_path)


def test_an_accelerator_of_a_file_is_answered_for(package):
    recipe = Recipe("An accelerator")
    package.follow(recipe)
    best = package.answer(*recipe.commands)["recommended"]
    assert best["title"] == "MyChip 192 GB"
    # Six FLOP per parameter and token, of which at most the peak can be done.
    least_s = 6 * 8.03e9 * 1e12 / (best["num_accelerators"] * 1.5e15)
    assert least_s < best["time_s"]["value"] < 10 * least_s


def test_a_workload_of_a_file_is_answered_for(package):
    recipe = Recipe("A workload")
    package.follow(recipe)
    answer = package.answer(*recipe.commands)
    best = answer["recommended"]
    least_s = 6 * 2.9e9 * 100e9 / (best["num_accelerators"] * 989e12)
    assert least_s < best["time_s"]["value"] < 10 * least_s


def test_a_price_is_what_an_hour_costs(package):
    recipe = Recipe("A price")
    (priced,) = package.answer(*recipe.commands)["predictions"]
    assert priced["usd"]["value"] == pytest.approx(2.1 * priced["accelerator_hours"], rel=1e-5)
    question = recipe.commands[0].partition(" --price")[0]
    (before,) = package.answer(question)["predictions"]
    assert before["price"]["low"] > 2.1
    package.follow(recipe)
    (after,) = package.answer(question)["predictions"]
    assert after["price"]["low"] == 2.1
    assert after["price"]["usd_per_accelerator_hour"] < before["price"]["usd_per_accelerator_hour"]
    assert "Example Cloud" in after["price"]["basis"]


def test_a_reader_makes_rows_of_a_new_kind_of_file(package):
    package.follow(Recipe("A reader"))
    stated = {"workload": "bert", "accelerator": "h100-sxm5-80gb", "num_accelerators": 8, "minutes": 5.5}
    (package.folder / "logs").mkdir()
    (package.folder / "logs" / "a.time.json").write_text(json.dumps(stated))
    package.run("equipoise ingest logs --into tables")
    (row,) = package.answer("equipoise scores --data tables")["entries"]
    assert (row["workload"], row["num_accelerators"], row["score_s"]) == ("bert", 8, 330.0)


def test_an_estimator_takes_part_in_the_combined_time(package):
    package.follow(Recipe("An estimator"))
    answer = package.answer("equipoise advise llama31_8b --tokens 1T --accelerator h100 --accelerators 64")
    estimates = {each["estimator"]: each for each in answer["recommended"]["estimates"]}
    # 6 x 8.03e9 parameters x 1e12 tokens / (64 x 0.4 x 989e12 FLOP/s) = 22.0 days.
    assert estimates["naive"]["time_s"]["value"] / DAY_S == pytest.approx(22.0, rel=0.01)
    assert 0.0 < estimates["naive"]["weight"] < 1.0
    assert sum(each["weight"] for each in estimates.values()) == pytest.approx(1.0)


def test_a_page_is_written_from_outside_the_package(package):
    recipe = Recipe("A page")
    package.follow(recipe)
    package.run(*recipe.commands)
    page = (package.folder / "my-page.html").read_text()
    assert 'id="costs"' in page
    assert re.search(r">[\d.]+\sdays<", page)
    assert re.search(r">[\d,]+\sUSD<", page)


def _constructed(name):
    """How often a record is made in the package."""
    files = [each.read_text() for each in SOURCE.rglob("*.py")]
    return sum(len(re.findall(rf"(?<![\w\[]){name}\(\n?\s*\w+=", text)) for text in files)


def test_every_reader_and_screen_is_in_its_tuple():
    assert len(READERS) == _constructed("Reader")
    app = pytest.importorskip("equipoise.web.app", reason="the extra `web` is not installed")
    modules = [import_module(f"equipoise.web.{each.stem}") for each in (SOURCE / "web").glob("*_screens.py")]
    made = {
        id(each) for module in modules for each in vars(module).values() if type(each).__name__ == "Screen"
    }
    assert made == set(map(id, app.SCREENS))


def test_every_estimator_has_its_heading():
    assert set(get_args(EstimatorName)) == ESTIMATORS.keys()


def test_the_page_has_the_six_recipes():
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == [
        "An accelerator",
        "A workload",
        "A price",
        "A reader",
        "An estimator",
        "A page",
    ]
