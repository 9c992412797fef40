"""`python -m equipoise`."""

import sys
from typing import NoReturn

from equipoise.errors import EXIT_INTERRUPTED


def main() -> NoReturn:
    """Run the command line, which a Ctrl-C ends silently while it is still being loaded."""
    try:
        from equipoise.cli.app import main as run  # noqa: PLC0415 - loading it takes a while
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
