"""A user's function, found by `module:function`: what it must return, and errors that state it. No torch."""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct

from equipoise.errors import SpecError, UsageError

# What a user's own code can raise: anything, errors of its own making and sys.exit included.
RAISED = (Exception, SystemExit)
EXPECTED = "a function that returns model, batch or model, batch, loss or model, batch, loss, held-out batch"


class Factory(Struct, frozen=True, kw_only=True):
    """A user's function and the name it was requested by; called without arguments."""

    reference: str
    make: Callable[[], object]

    def made(self) -> tuple[Any, Any, Any]:
        """Model, batch and loss or None, from one call.

        Raises SpecError if the function returns something else.
        """
        return self.made_with_held_out()[:3]

    def made_with_held_out(self) -> tuple[Any, Any, Any, Any]:
        """Model, batch, loss or None, and a batch never trained on or None, from one call.

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
    """Raises UsageError where a file of data names code of the user, which its reader did not ask to run.

    where: the file, for the message.
    """
    named = next((each for each in workloads if each is not None and ":" in each), None)
    if named is not None:
        raise UsageError(
            f"{where}: workload {named!r} is code to import and run; give it on the command line or, if you "
            "trust the file, allow code (--allow-code; in Python allow_code=True)"
        )


def load_factory(reference: str) -> Factory:
    """The function that `module:function` names; modules of the current directory are found too.

    Raises SpecError that names what is missing and what is expected.
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
    """What to write for the function that a reference with a file may mean."""
    file, _, name = reference.rpartition(":")
    path = PurePath(file)
    if path.suffix != ".py" or not name.isidentifier():
        return "such as train:model for def model() in train.py"
    if path.is_absolute() or ".." in path.parts:
        return f"such as {path.stem}:{name} from the directory that holds {path.name}"
    return f"such as {'.'.join(path.with_suffix('').parts)}:{name} for def {name}() in {path}"


def _imported(reference: str, module_name: str) -> Any:  # noqa: ANN401 - a module
    """The module, looked for in the current directory first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # and left there: the function may import more when it is called
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
