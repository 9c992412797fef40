"""Reads tables from standard input in a process of its own, to find out whether they can be read at all.

A damaged Parquet file can end the process that reads it (Polars 2.1 aborts on page headers that promise
impossible counts), and no `except` helps there. `store` therefore lets this module read a user's file first.
Arguments: name of the table, where it comes from, number of bytes; three a table.
"""

import resource
import sys

from equipoise.errors import DataError
from equipoise.runs import store
from equipoise.units import GIB

# A table of the largest size that is accepted needs a tenth of this.
MAX_MEMORY_BYTES = 4 * GIB
EXIT_REFUSED = 2


def main(arguments: list[str]) -> int:
    """Read every table announced; the exit code, with the reason on standard output when one is refused."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    tables = {table.name: table for table in store.TABLES}
    for name, where, num_bytes in zip(*[iter(arguments)] * 3, strict=True):
        try:
            store.read_bytes(sys.stdin.buffer.read(int(num_bytes)), tables[name], where)
        except DataError as err:
            sys.stdout.write(str(err))
            return EXIT_REFUSED
    return 0
