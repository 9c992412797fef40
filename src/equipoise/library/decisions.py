"""`advise`, `plan` and `predict` as functions, whose arguments are the fields of the question.

A question may come from a TOML file; arguments override its values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, Unpack, overload

from msgspec.structs import replace

from equipoise.decide.answer import Answer, Candidate
from equipoise.decide.question.field import Kind, Verb
from equipoise.decide.question.query import (
    ATTRIBUTES,
    FIELDS,
    RIVALS,
    Ask,
    TrainingQuery,
    question,
    unknown,
    values,
    way_of,
)
from equipoise.errors import DataError, EvidenceError, InputError, UsageError
from equipoise.files import one_path, parsed_toml, read_input
from equipoise.library import Presentation, Result
from equipoise.library.arguments import AdviseFields, PlanFields, PredictFields
from equipoise.report.format import usable
from equipoise.report.json import answer_fields, prediction_fields, reach_fields
from equipoise.runs.embedded import scores as published
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import Scores
from equipoise.units import MIB

if TYPE_CHECKING:
    from equipoise.decide.collect import Progress
    from equipoise.decide.prediction import Prediction
    from equipoise.decide.solve_for import Reaches

SUFFIX: Final = ".toml"
_MOST_BYTES: Final = MIB
_PATHS: Final = {"path", "paths"}
_TABLE_KINDS: Final = {"per_system", "texts"}  # kinds of fields whose values may be tables
_NOT_TAKEN: Final = "expected a value, or a list of values"
_WORDS: Final[Mapping[type, str]] = {str: "text", int: "a number", float: "a number", bool: "true or false"}


def read_question(
    given: Mapping[str, object], *, verb: Verb, training: str | None = None, allow_code: bool = False
) -> TrainingQuery:
    """The question from options or arguments, and from a file if the workload names one.

    given: values by option name; None, False and empty mean not given. They override the file, including
    rival fields: tokens override samples, a named machine overrides the one at hand.
    training: the positional argument: the workload, or a file, whose workload `given` may override.
    allow_code: the file may name the user's code (`module:function`), which is imported and run.
    Raises DataError (with file, key, and the found and expected values), UsageError for what is given.
    """
    stated = values({name: each for name, each in given.items() if each is not False}, verb=verb)
    replacing = None if training is None else stated.get("workload")
    if training is not None:
        stated |= values({"workload": training})
    named = str(stated.get("workload", ""))
    if named.lower().endswith(".json"):
        raise UsageError(f"{named} is no workload, but the config.json of one", give=[{"config": named}])
    if not named.lower().endswith(SUFFIX):
        if replacing is not None:
            raise UsageError(f"{named!r} and --workload {replacing}: expected one of the two")
        return question(stated)
    del stated["workload"]
    if replacing is not None:
        stated["workload"] = replacing
    return _question_of_file(one_path(named), stated, verb=verb, allow_code=allow_code)


def _question_of_file(
    path: Path, stated: Mapping[str, Any], *, verb: Verb, allow_code: bool
) -> TrainingQuery:
    """The question of a file, with overrides. stated: the overrides by attribute."""
    base = file_values(path, verb=verb)
    for one, other, _ in RIVALS:
        if one in stated or other in stated:
            base.pop(one, None)
            base.pop(other, None)
    found = {**base, **stated}
    if not {"workload", "config"} & {*found}:
        raise DataError(f'{path}: no workload; expected workload = "NAME" or "module:function"')
    if found.get("workload", "").lower().endswith(SUFFIX):
        where = "--workload" if "workload" in stated else f"{path}: workload ="
        raise DataError(f"{where} {found['workload']!r} is a file too; give the name of a workload")
    if not allow_code:
        from equipoise.spec.torch_model.factory import refuse_code  # noqa: PLC0415 - only for a file

        refuse_code([base.get("workload", "")], where=path)
    return question(found)


def file_values(path: Path, *, verb: Verb) -> dict[str, Any]:
    """The values of a question's file, by attribute; paths in it are relative to its folder."""
    found = {key: _value(path, key, value) for key, value in _content(path).items()}
    return values(found, verb=verb, where=str(path))


def _content(path: Path) -> dict[str, Any]:
    content = read_input(path, _MOST_BYTES, expected="a short TOML file with the options")
    try:
        return parsed_toml(content)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}: not valid TOML: {err}") from err


def _value(path: Path, key: str, value: object) -> object:
    """A TOML value checked for the type of its field, with paths relative to the file's folder."""
    attribute = ATTRIBUTES.get(key.replace("-", "_"))
    if attribute is None:
        return value  # the lookup rejects unknown names and suggests similar ones
    kind = FIELDS[attribute].kind
    if isinstance(value, dict) and kind not in _TABLE_KINDS:
        raise DataError(f"{path}: {key} is a table; {_NOT_TAKEN}")
    for each in _leaves(value):
        expected = (str, int, bool) if isinstance(value, dict) and kind == "texts" else _expected(kind)
        if type(each) not in expected or (isinstance(each, str) and "\0" in each):
            names = " or ".join(dict.fromkeys(_WORDS[one] for one in expected))
            raise DataError(f"{path}: {key} = {each!r}; expected {names}")
    if kind not in _PATHS:
        return value
    listed = [path.parent / str(each) for each in _leaves(value)]
    return listed if isinstance(value, list) else listed[0]


def _expected(kind: Kind) -> tuple[type, ...]:
    """The types of TOML values that a kind of field accepts."""
    if kind == "flag":
        return (bool,)
    return (str,) if kind in {*_PATHS, "text", "texts", "names", "choice"} else (str, int, float)


def _leaves(value: object) -> list[object]:
    """A value, the items of a list, or the values of a table."""
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


_AMOUNTS: Final = ("step_s", "time_s", "goodput", "usd", "energy_j", "carbon_kg", "speedup")
CANDIDATE_COLUMNS: Final[Mapping[str, type]] = {
    "id": str,
    "accelerator": str,
    "chip": str,
    "num_accelerators": int,
    "num_nodes": int,
    "terms": str,
    "strategy": str,
    "global_batch_samples": int,
    **{f"{name}{end}": float for name in _AMOUNTS for end in ("", "_low", "_high")},
    "accelerator_hours": float,
    "mfu": float,
    "tokens_per_s_per_accelerator": float,
    "memory_bytes": float,
    "published_s": float,
    "feasible": bool,
    "recommended": bool,
    "grade": str,
}


def candidate_rows(found: "Answer | Prediction | Reaches") -> list[dict[str, Any]]:
    """One row per candidate, with the columns of CANDIDATE_COLUMNS; null for unknown values.

    accelerator: the requested accelerator or system, as in `id`. chip: its accelerator. published_s: the
    fastest submitted result for the same system and size.
    """
    best = found.recommended if isinstance(found, Answer) else None
    return [candidate_row(each, is_best=best is not None and each.id == best.id) for each in found.candidates]


def candidate_row(each: Candidate, *, is_best: bool) -> dict[str, Any]:
    """One of `candidate_rows`."""
    row: dict[str, Any] = {
        name: getattr(each, name)
        for name in CANDIDATE_COLUMNS
        if name in {"id", "accelerator_hours", "feasible"} or name in Candidate.__struct_fields__
    }
    for name in _AMOUNTS:
        amount = usable(getattr(each, name))
        row[name] = None if amount is None else amount.value
        row[f"{name}_low"] = None if amount is None else amount.low
        row[f"{name}_high"] = None if amount is None else amount.high
    row["accelerator"], row["chip"] = each.system, each.accelerator
    row["strategy"] = each.strategy_text
    row["memory_bytes"] = None if each.memory is None else each.memory.needed_bytes
    row["published_s"] = min((result.score_s for result in each.published), default=None)
    row["recommended"] = is_best
    return row


DecisionVerb: TypeAlias = Literal["advise", "plan", "predict"]


Function = TypeVar("Function", bound=Callable[..., Any])


class _NotGiven:
    """The default of a field in a signature."""

    def __repr__(self) -> str:
        """The notation of stub files."""
        return "..."


_NOT_GIVEN: Final = _NotGiven()


def _with_fields(fields: type, **more: object) -> Callable[[Function], Function]:
    """A decorator that replaces `**fields` in the signature shown by `help` with the named fields.

    fields: a TypedDict of the fields. more: further arguments, with their types.
    """

    def made(function: Function) -> Function:
        stated = signature(function)
        own = [each for each in stated.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        named = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=_NOT_GIVEN, annotation=each)
            for name, each in {**fields.__annotations__, **more}.items()
            if name not in stated.parameters
        ]
        function.__signature__ = stated.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
        return function

    return made


@contextmanager
def in_python(verb: Verb | None, *, own: Sequence[str] = ()) -> Iterator[None]:
    """Context in which errors name fields of the question as Python arguments.

    verb: the verb of the question, or None. own: other arguments of the function.
    """
    try:
        yield
    except (InputError, EvidenceError) as err:
        way = way_of(verb, is_python=True)
        way = replace(way, names={**way.names, **{each.replace("_", "-"): each for each in own}})
        told = way.worded(err)
        raise told.with_traceback(err.__traceback__) from err.__cause__


@overload
def advise(
    workload: str | PathLike[str] | None = None,
    *,
    ask: Ask,
    allow_code: bool = False,
    **fields: Unpack[AdviseFields],
) -> "Result[Reaches]": ...
@overload
def advise(
    workload: str | PathLike[str] | None = None, *, allow_code: bool = False, **fields: Unpack[AdviseFields]
) -> Result[Answer]: ...
@_with_fields(AdviseFields, ask=Ask)
@in_python("advise")
def advise(
    workload: str | PathLike[str] | None = None, *, allow_code: bool = False, **fields: Any
) -> Result[Any]:
    """How many accelerators, of which kind, with which strategy, and why.

    workload: a name from `equipoise list workloads`, `module:function`, or the path of a TOML file with the
    question; may be omitted if `config` names a config.json. allow_code: such a file may name a
    `module:function`, which is imported and run.
    fields: of the question, see docs/reference/questions.md. ask: ask for the number of tokens or the size of
    the model instead.
    Raises TypeError for an unknown field; UsageError, SpecError, EvidenceError as in `decide`.
    """
    return result_of(
        "advise",
        read_question(given_fields("advise", workload, fields), verb="advise", allow_code=allow_code),
    )


@_with_fields(PlanFields)
@in_python("plan")
def plan(
    workload: str | PathLike[str] | None = None, *, allow_code: bool = False, **fields: Unpack[PlanFields]
) -> Result[Answer]:
    """Which parallel strategy, on how many accelerators; arguments and errors as in `advise`."""
    query = read_question(given_fields("plan", workload, fields), verb="plan", allow_code=allow_code)
    found: Result[Answer] = result_of("plan", query)
    return found


@_with_fields(PredictFields)
@in_python("predict")
def predict(
    workload: str | PathLike[str] | None = None,
    *,
    allow_code: bool = False,
    **fields: Unpack[PredictFields],
) -> "Result[Prediction]":
    """Times, money and energy at sizes nobody ran, and where returns diminish; arguments as in `advise`.

    workload: may be omitted if `from_` names a file with the user's own times.
    """
    query = read_question(given_fields("predict", workload, fields), verb="predict", allow_code=allow_code)
    found: Result[Prediction] = result_of("predict", query)
    return found


def result_of(
    verb: DecisionVerb,
    query: TrainingQuery,
    *,
    scores: Scores | None = None,
    known: Catalogue | None = None,
    progress: "Progress | None" = None,
) -> Result[Any]:
    """The result of a question: from `solve_for` if the question has `ask`, else from the verb.

    scores, known: published results and catalogue to use instead of those that the question names.
    progress: called as each system of an answer is assessed.
    """
    if scores is None:
        scores = published(data=query.data, also=query.also)
    found: Any
    if verb == "predict":
        from equipoise.decide.prediction import predict as predicted  # noqa: PLC0415 - each verb loads its own

        found = predicted(query, scores=scores, catalogue=known)
    elif query.ask is not None:
        from equipoise.decide.solve_for import solve_for  # noqa: PLC0415 - as above

        found = solve_for(query, scores=scores, catalogue=known)
    else:
        from equipoise.decide.decision import answer  # noqa: PLC0415 - as above

        found = answer(query, scores=scores, catalogue=known, progress=progress)
    return Result(record=found, presentation=_presentation(verb, query.ask is not None))


def _presentation(verb: DecisionVerb, is_reach: bool) -> Presentation[Any]:  # noqa: FBT001 - pickled by position
    """The presentation of an answer, a prediction, or what the limits allow."""
    page: Any  # and fields: of the one record or the other
    fields: Any
    if is_reach or verb == "predict":
        from equipoise.report.pages.prediction import PREDICTION, REACH  # noqa: PLC0415 - as in result_of

        page, fields = (REACH, reach_fields) if is_reach else (PREDICTION, prediction_fields)
    else:
        from equipoise.report.pages.answer import ANSWER  # noqa: PLC0415 - as in result_of

        page, fields = ANSWER, answer_fields
    return Presentation(
        verb=verb,
        fields=fields,
        columns=CANDIDATE_COLUMNS,
        rows=candidate_rows,
        page=page,
        made_by=partial(_presentation, verb, is_reach),
    )


def given_fields(
    verb: Verb, workload: str | PathLike[str] | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call. Raises TypeError for an unknown field, suggesting the nearest one."""
    for name in fields:
        attribute = ATTRIBUTES.get(name.removesuffix("_"))
        if attribute is None or verb not in FIELDS[attribute].verbs or attribute == "workload":
            raise TypeError(f"{verb}(): {unknown(name, verb, is_python=True)}")
        if hasattr(fields[name], "columns"):
            raise UsageError(f"{name} is a table in memory; give the path of a file with it")
    named = str(workload) if isinstance(workload, Path) else workload
    return {"workload": named, **{name: plain(value) for name, value in fields.items()}}


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever a notebook holds
    """Convert arrays, series and their numbers, ranges, sets and durations to values that fields accept."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} s"
    for name in ("tolist", "to_list"):  # of NumPy and pandas, of Polars
        if callable(convert := getattr(value, name, None)):
            return convert()
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, range | set | frozenset | list):
        return [plain(each) for each in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return value
