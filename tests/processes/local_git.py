"""git as a test runs it: whatever the user has set."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b.c",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b.c",
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, input=stdin
    )
    return done.stdout.decode().strip()
