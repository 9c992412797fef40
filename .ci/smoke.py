"""An installed Equipoise, used from an empty folder, without the checkout: `PYTHON_OF_A_VENV .ci/smoke.py`.

The README's commands print what the README shows, each example of docs/reference/json.md is a document of the
schema shown, `serve` answers, and so every verb was used.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType

import equipoise
from equipoise.cli.app import verbs

ROOT = Path(__file__).resolve().parents[1]
SERVE_WITHIN_S = 600  # on a machine that does other work too


def _sessions() -> ModuleType:
    """What docs/sessions.py can: it needs nothing but the package and its files."""
    spec = importlib.util.spec_from_file_location("sessions", ROOT / "docs" / "sessions.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["sessions"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["sessions"])
    return sys.modules["sessions"]


def _readme(sessions: ModuleType, folder: Path) -> Iterator[str]:
    """The README's commands that do not print what is shown there."""
    found = list(sessions.sessions(ROOT / "README.md"))
    assert found
    for session in found:
        printed = sessions.printed(session.command, folder=folder)
        # Other versions of libraries space tables otherwise.
        if re.split(r"[\s─]+", printed) != re.split(r"[\s─]+", session.shown):
            yield f"README.md:{session.line}: {session.command}\n{printed}"


def _examples(sessions: ModuleType, folder: Path) -> Iterator[tuple[str, str]]:
    """Arguments of every example, and what is wrong with what they print."""
    for arguments, shown in sessions.json_examples(ROOT / "docs" / "reference" / "json.md"):
        try:
            schema = json.loads(sessions.document(arguments, folder=folder))["schema"]
        except subprocess.CalledProcessError as err:
            yield arguments, f"exit code {err.returncode}"
        else:
            yield arguments, "" if schema == json.loads(shown)["schema"] else f"schema {schema}"


def _serve(folder: Path) -> str:
    """What is wrong with the dashboard."""
    command = [sys.executable, "-m", "equipoise", "serve", "--port", "0", "--no-warm"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as served:
        assert served.stdout is not None
        line = served.stdout.readline()
        found = re.search(r"http://([\d.]+:\d+)", line)
        try:
            if found is None:
                return line
            asked = HTTPConnection(found[1], timeout=SERVE_WITHIN_S)
            asked.request("GET", "/advice")
            answer = asked.getresponse()
            return "" if b"<title>" in answer.read() else f"status {answer.status}"
        finally:
            served.terminate()


def main() -> int:
    """1 where something is wrong, all of it printed."""
    package = Path(equipoise.__file__).resolve()
    if package.is_relative_to(ROOT / "src"):
        sys.exit(f"{package} is the checkout: install the wheel and start its interpreter")
    sessions = _sessions()
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as furnished:
        wrong = list(_readme(sessions, Path(empty)))
        sessions.furnish(Path(furnished))
        examples = [*_examples(sessions, Path(furnished)), ("serve", _serve(Path(empty)))]
    wrong += [f"equipoise {arguments}: {why}" for arguments, why in examples if why]
    unused = {*verbs()} - {arguments.split()[0] for arguments, _ in examples}
    wrong += [f"never used: {verb}" for verb in sorted(unused)]
    print("\n".join(wrong) or f"equipoise {equipoise.__version__}: the README and {len(verbs())} verbs work")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
