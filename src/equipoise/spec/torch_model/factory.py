"""Loads a user's function named `module:function` and validates its result. No torch."""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct

from equipoise.errors import SpecError, UsageError

# Exceptions of a user's own code: anything, including its own errors and sys.exit.
RAISED = (Exception, SystemExit)
EXPECTED = "a function that returns model, batch or model, batch, loss or model, batch, loss, held-out batch"


class Factory(Struct, frozen=True, kw_only=True):
    """A user's function with the reference by which it was requested; called without arguments."""

    reference: str
    make: Callable[[], object]

    def made(self) -> tuple[Any, Any, Any]:
        """Call the function; return model, batch, and loss or None.

        Raises SpecError if the function returns something else.
        """
        return self.made_with_held_out()[:3]

    def made_with_held_out(self) -> tuple[Any, Any, Any, Any]:
        """Call the function; return model, batch, loss or None, and held-out batch or None.

        Raises SpecError if the function returns something else.
        """
        parts = self.make()
        if not isinstance(parts, tuple) or len(parts) not in {2, 3, 4}:
            found = f"a tuple of {len(parts)}" if isinstance(parts, tuple) else type(parts).__name__
            raise SpecError(f"{self.reference}: returned {found}; expected {EXPECTED}")
        model, batch = parts[:2]
        loss, held_out = (*parts[2:], None, None)[:2]
        if not hasattr(model, "named_parameters"):
            raise SpecError(
                f"{self.reference}: the first value is a {type(model).__name__}; expected a torch.nn.Module"
            )
        if loss is not None and not callable(loss):
            raise SpecError(
                f"{self.reference}: the third value is a {type(loss).__name__}; "
                "expected a loss function that is called with the model's output"
            )
        return model, batch, loss, held_out


def refuse_code(workloads: Iterable[str | None], *, where: object) -> None:
    """Raise UsageError if a data file names a user's code, which the reader has not asked to run.

    where: the file, for the message.
    """
    named = next((each for each in workloads if each is not None and ":" in each), None)
    if named is not None:
        raise UsageError(
            f"{where}: workload {named!r} is code to import and run; give it on the command line or, if you "
            "trust the file, allow code (--allow-code; in Python allow_code=True)"
        )


def load_factory(reference: str) -> Factory:
    """Return the function named by `module:function`; modules in the current directory are found too.

    Raises SpecError with what is missing and what is expected.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise SpecError(
            f"{reference!r} does not name a function; expected module:function, {_example(reference)}"
        )
    module = _imported(reference, module_name)
    found = getattr(module, name, None)
    if found is None:
        functions = sorted(
            each
            for each, value in vars(module).items()
            if callable(value)
            and getattr(value, "__module__", None) == module_name
            and not each.startswith("_")
        )
        listed = f"it has {', '.join(functions)}" if functions else "it defines no functions"
        raise SpecError(f"{reference}: module {module_name} has no {name!r}; {listed}; expected {EXPECTED}")
    if not callable(found):
        raise SpecError(f"{reference}: {name} is a {type(found).__name__}; expected {EXPECTED}")
    return Factory(reference=reference, make=found)


def _example(reference: str) -> str:
    """Return an example of the correct syntax, derived from a reference with a file name."""
    file, _, name = reference.rpartition(":")
    path = PurePath(file)
    if path.suffix != ".py" or not name.isidentifier():
        return "such as train:model for def model() in train.py"
    if path.is_absolute() or ".." in path.parts:
        return f"such as {path.stem}:{name} from the directory that holds {path.name}"
    return f"such as {'.'.join(path.with_suffix('').parts)}:{name} for def {name}() in {path}"


def _imported(reference: str, module_name: str) -> Any:  # noqa: ANN401 - a module
    """Return the module, searched in the current directory first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # not removed, because the function may import more when it is called
    try:
        importlib.invalidate_caches()
        return importlib.import_module(module_name)
    except ModuleNotFoundError as err:
        if err.name is not None and (module_name == err.name or module_name.startswith(f"{err.name}.")):
            raise SpecError(
                f"{reference}: no module {err.name!r} in {here} or among installed packages; "
                "run from the directory that holds it"
            ) from err
        raise SpecError(f"{reference}: importing {module_name} needs {err.name!r}: install it") from err
    except RAISED as err:
        raise SpecError(f"{reference}: importing {module_name} failed: {type(err).__name__}: {err}") from err
