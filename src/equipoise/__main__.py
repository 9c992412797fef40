"""`python -m equipoise`."""

import gc
import sys
from typing import NoReturn

from equipoise.errors import EXIT_INTERRUPTED

_NEW_OBJECTS = 400_000  # made before the youngest are looked through


def main() -> NoReturn:
    """Run the command line, which a Ctrl-C ends silently while it is still being loaded."""
    # Loading modules and reading tables makes hundreds of thousands of lasting objects: looking through them
    # for garbage every 700 takes a tenth of an answer's time.
    gc.set_threshold(_NEW_OBJECTS, 50, 50)
    try:
        from equipoise.cli.app import main as run  # noqa: PLC0415 - loading it takes a while
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
