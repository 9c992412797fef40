"""`python -m equipoise`."""

import gc
import sys
from typing import NoReturn

from equipoise.errors import EXIT_INTERRUPTED

_GC_THRESHOLD = 400_000  # objects allocated between collections of the youngest generation


def main() -> NoReturn:
    """Run the command line; Ctrl-C during loading ends it silently."""
    # Loading modules and tables creates hundreds of thousands of long-lived objects; collecting garbage at
    # the default threshold of 700 takes a tenth of an answer's time.
    gc.set_threshold(_GC_THRESHOLD, 50, 50)
    try:
        from equipoise.cli.app import main as run  # noqa: PLC0415 - loading it takes a while
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
