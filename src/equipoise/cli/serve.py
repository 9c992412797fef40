"""The verb `serve`: the dashboard in a browser on this machine."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.options import Also, Data, Hardware, Workloads, catalogue_of
from equipoise.cli.output import write
from equipoise.errors import UsageError

_PORT = 8731
_NEEDED = ("fastapi", "jinja2", "uvicorn")


def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Where to listen. Another than this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = _PORT,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A sweep, a watched loop, or a folder of such; may be repeated."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="EQUIPOISE_TOKEN", help="What visitors must know; made for other hosts."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A further name by which browsers reach it; may be repeated."),
    ] = None,
    warm: Annotated[bool, typer.Option(help="Compute the first page before anybody asks for it.")] = True,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
) -> None:
    """Open the dashboard to a browser on this machine."""
    catalogue = catalogue_of(hardware, workloads)
    missing = [library for library in _NEEDED if find_spec(library) is None]
    if missing:
        raise UsageError(f"serve needs {', '.join(missing)}: pip install 'equipoise[web]'")
    from equipoise.web.place import ListenAddress, listening, token_for

    for folder in (*(runs or ()), *(also or ()), *([data] if data else [])):
        if not folder.is_dir():
            raise UsageError(f"{folder}: no directory; expected one that is there")
    asked_token = token_for(host, token)
    opened = listening(host, port)
    place = ListenAddress(host=host, port=opened.getsockname()[1], token=asked_token, names=tuple(name or ()))
    write(f"The dashboard is at {place.url}\nCtrl-C stops it.\n")
    # A browser that asks already waits on the socket until the rest is loaded.
    from equipoise.web.server import serve as answer
    from equipoise.web.sources import DataSources

    sources = DataSources(data=data, also=tuple(also or ()), runs=tuple(runs or ()), catalogue=catalogue)
    answer(opened, place, sources, warms=warm)
