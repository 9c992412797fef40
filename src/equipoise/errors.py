"""The tree of errors that a user, a file or too little evidence can cause.

EquipoiseError            every error this package raises on purpose
|- InputError             what was given cannot be used: exit code 2
|  |- DataError           a file or row: where, what was found, what was expected, what to do
|  |- SpecError           an accelerator, workload, system or strategy that is unknown or impossible
|  `- UsageError          options that do not fit together
`- EvidenceError          the question is fair, the evidence too thin: exit code 3, with what is missing
   `- FitError            a law could not be fitted to the points given
"""

EXIT_INPUT = 2
EXIT_EVIDENCE = 3
EXIT_INTERRUPTED = 130


class EquipoiseError(Exception):
    """Every error this package raises on purpose."""


class InputError(EquipoiseError):
    """What was given cannot be used."""


class DataError(InputError):
    """A file or row cannot be used; the message names where, what was found and what was expected."""


class SpecError(InputError):
    """An accelerator, workload, system or strategy is unknown or impossible."""


class UsageError(InputError):
    """Options that do not fit together."""


class EvidenceError(EquipoiseError):
    """The evidence is too thin for a number; `missing` lists what would be enough."""

    def __init__(self, message: str, *, missing: tuple[str, ...] = ()) -> None:
        """message: one sentence. missing: each item names one thing to measure or add."""
        super().__init__(message)
        self.missing = missing


class FitError(EvidenceError):
    """A law could not be fitted to the points given."""
