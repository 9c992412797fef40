"""What went wrong in a user's own code, in one sentence: in which module and line, and what to do."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from equipoise.errors import EquipoiseError, SpecError
from equipoise.spec.torch_model.factory import RAISED


@contextmanager
def explained(names: Mapping[int, str], subject: str, way_round: str) -> Iterator[None]:
    """Turn what a model's own code raised into a SpecError with module, line and a way round."""
    try:
        yield
    except EquipoiseError:
        raise
    except RAISED as err:
        where = _where(err, names) or subject
        what = _what(err)
        if what is None:
            raise SpecError(
                f"{where}: {type(err).__name__}: {_first_line(err)}; "
                "expected the example batch to pass the model and its loss: try model(batch) with it"
            ) from err
        raise SpecError(f"{where}: {what}; {way_round}") from err


def _what(err: BaseException) -> str | None:
    """What a model asked for that tensors without memory cannot answer; None for an ordinary error."""
    if isinstance(err, DataDependentOutputException):
        return f"control flow needs the value of a tensor ({err.func}), and the count runs without values"
    if isinstance(err, DynamicOutputShapeException):
        return f"the shape of a result depends on values ({err.func}), and the count runs without values"
    if isinstance(err, UnsupportedOperatorException):
        return (
            f"the operation {err.func} does not say what shape it returns; "
            "tell torch by torch.library.register_fake, and its FLOP by "
            "torch.utils.flop_counter.register_flop_formula"
        )
    return None


def _where(err: BaseException, names: Mapping[int, str]) -> str | None:
    """The innermost module of a traceback and the last line of it that is not torch's own."""
    module, line = None, None
    for frame, number in traceback.walk_tb(err.__traceback__):
        held = frame.f_locals.get("self")
        if id(held) in names:
            module = f"{names[id(held)] or 'the model'} ({type(held).__name__})"
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in {"torch", "equipoise", "contextlib"}:
            line = f"{frame.f_code.co_filename}:{number}"
    return ", ".join(part for part in (module, line) if part) or None


def _first_line(err: BaseException) -> str:
    """The first line of what an error says."""
    return (str(err).splitlines() or [""])[0]
