"""The question of a page: parsing of its address, the controls of its form, and the labels of its fields."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, convert
from msgspec.structs import replace

from equipoise.decide.question.field import GROUPS, Field, Verb
from equipoise.decide.question.query import (
    FIELDS,
    OWN_TIMES,
    TrainingQuery,
    WayToAsk,
    default_of,
    fields_of,
    in_dollars,
    meant,
    query,
)
from equipoise.errors import SpecError, UsageError
from equipoise.files import shipped_table
from equipoise.report.format import LONGEST_NAME, printable
from equipoise.spec.catalogue import Catalogue
from equipoise.web import (
    MOST_FORM_ACCELERATORS,
    MOST_NAMES,
    MOST_SYSTEMS,
    NOT_FROM_BROWSERS,
    Checks,
    Choice,
    Control,
    Given,
    More,
    PageQuery,
    Select,
    Several,
    Slider,
    Text,
    WrongFieldsError,
    regions,
    system_choices,
    workload_choices,
)


class FormField(Struct, frozen=True, kw_only=True):
    """The entry of a field in form.toml."""

    label: str = ""
    unset: str = ""
    nothing: str = ""
    slider: Slider | None = None


_FORM: Final = shipped_table(Path(__file__).with_name("form.toml"))
FORM_FIELDS: Final = convert(_FORM["fields"], dict[str, FormField])
IN_SIGHT: Final = convert(_FORM["in_sight"], dict[Verb, tuple[str, ...]])
_WORDS: Final = convert(_FORM["words"], dict[str, str])
_PLAIN: Final = FormField()


def label_of(name: str) -> str:
    """The label of a field of a question, given its attribute.

    >>> label_of("deadline_s"), label_of("num_nodes")
    ('Deadline, hours', 'Nodes')
    """
    return FORM_FIELDS.get(name, _PLAIN).label or FIELDS[name].option.replace("-", " ").capitalize()


_LABEL_OF_OPTION: Final[Mapping[str, str]] = {OWN_TIMES: label_of("runs")} | {
    option: label_of(name)
    for name, each in FIELDS.items()
    if name not in NOT_FROM_BROWSERS
    for option in (each.option, *each.also)
}


def form_way(labels: Mapping[str, str]) -> WayToAsk:
    """How the form of a page names fields. labels: by option, if they differ from those of a question."""
    names = {**_LABEL_OF_OPTION, **labels}
    return WayToAsk(names={option: f"“{label}”" for option, label in names.items()}, stated="{} {}")


def in_form(text: str) -> str:
    """A sentence with command-line options replaced by the labels of the form.

    >>> in_form("give --price or --global-batch N, or see `equipoise serve --runs DIR`")
    'give “USD per accelerator-hour” or “Global batch”, or see `equipoise serve --runs DIR`'
    """
    return form_way({}).words(text)


# Browsers have lower limits than the command line, because the server has other users.
MOST: Final[Mapping[str, int]] = {
    "max_accelerators": MOST_FORM_ACCELERATORS,
    "sizes": MOST_FORM_ACCELERATORS,
    "num_nodes": MOST_FORM_ACCELERATORS,
    "node_size": MOST_FORM_ACCELERATORS,
    "leaf_nodes": MOST_FORM_ACCELERATORS,
    "stock": MOST_FORM_ACCELERATORS,
    "num_strategies": 24,
}
# Fields whose values have no blanks, so that one input may contain several.
_LISTED: Final = frozenset({"fixed", "price", "terms", "stock"})


class QuestionFields(PageQuery, frozen=True, kw_only=True):
    """The question in an address. runs: the name of a folder on the server, not yet looked up."""

    training: TrainingQuery
    runs: str | None

    @property
    def key(self) -> str:
        """A key that is equal for equal questions, whatever their spelling."""
        return f"{self.training!r}&runs={self.runs}"


def form_fields(verb: Verb) -> dict[str, Field]:
    """The fields that a browser may set, by attribute, with their bounds for browsers."""
    return {
        name: replace(each, most=min(MOST[name], each.most or MOST[name])) if name in MOST else each
        for name, each in fields_of(verb).items()
        if name not in NOT_FROM_BROWSERS
    }


def question(
    given: Given, verb: Verb, catalogue: Catalogue, *, at_first: Mapping[str, str]
) -> QuestionFields:
    """Parse the question in an address. at_first: values for an address without any.

    Raises WrongFieldsError for unknown fields and invalid values, SpecError for an unknown workload,
    UsageError for contradictory fields.
    """
    names = {key: name for name, each in form_fields(verb).items() for key in (each.key, *each.also_keys)}
    fields = form_fields(verb)
    values: dict[str, object] = {}
    wrong: list[str] = []
    filled = _filled(given)
    (currency, *_) = filled.get("currency", [""])
    for key, texts in filled.items():
        name = names.get(key)
        if name is None:
            near = meant(key, names)
            hint = f"; the nearest is {near[0]}" if near else ""
            wrong.append(f"{printable(key)}={printable(texts[0])!r} is not a field of this page{hint}")
            continue
        try:
            value = _value(
                name, fields[name], [str(in_dollars(fields[name], each, currency)) for each in texts]
            )
            if name != "runs":
                fields[name].read(value)
        except UsageError as err:
            wrong.append(in_form(err.message))
        else:
            values[fields[name].key] = value
    if wrong:
        raise WrongFieldsError(wrong)
    runs = values.pop("runs", None)
    chosen = {**at_first, **values}
    try:
        # Only catalogue names: a MODULE:FUNCTION, which the command line accepts, would be run.
        chosen["workload"] = catalogue.workload(str(chosen["workload"])).slug
    except SpecError as err:
        raise err.within(f"“{label_of('workload')}”") from err
    return QuestionFields(training=query(chosen), runs=None if runs is None else str(runs))


def _by_key(given: Given) -> Given:
    """The fields in an address by key; they may be spelt like command-line options."""
    return {name.replace("-", "_"): texts for name, texts in given.items()}


def _filled(given: Given) -> dict[str, list[str]]:
    """The non-empty fields; a form also sends empty ones."""
    found = {name: [text.strip() for text in texts if text.strip()] for name, texts in _by_key(given).items()}
    return {name: texts for name, texts in found.items() if texts}


def _value(name: str, declared: Field, texts: Sequence[str]) -> object:
    """The input for a field's parser. Raises UsageError for more or longer values than a browser may send."""
    most = MOST_SYSTEMS if name == "systems" else MOST_NAMES
    words = [word for text in texts for word in text.split()] if name in _LISTED else list(texts)
    if len(words) > most:
        raise UsageError(f"--{declared.option} has {len(words)} values; expected at most {most}")
    if any(len(text) > LONGEST_NAME for text in texts):
        raise UsageError(f"--{declared.option} is longer than {LONGEST_NAME} characters")
    if declared.kind == "list":
        return ",".join(texts)
    if name in _LISTED or declared.kind in {"texts", "names"}:
        return words
    if len(words) > 1:
        raise UsageError(f"--{declared.option} is given {len(words)} times; expected once")
    return words[0]


def question_controls(
    given: Given, verb: Verb, catalogue: Catalogue, *, at_first: Mapping[str, str], runs: Sequence[str] = ()
) -> tuple[Control, ...]:
    """The form of a verb, filled from the address.

    at_first: as in `question`. runs: names of the user's runs, to choose from.
    """
    form = _Form(given=_by_key(given), catalogue=catalogue, at_first=at_first, runs=runs)
    fields = form_fields(verb)
    in_sight = IN_SIGHT[verb]
    return (*(form.control(name, fields[name]) for name in in_sight), *_folds(form, fields, in_sight))


def _folds(form: "_Form", fields: Mapping[str, Field], in_sight: Sequence[str]) -> Iterator[More]:
    for group, title in GROUPS.items():
        rest = {
            name: each
            for name, each in fields.items()
            if each.group == group and name not in in_sight and (name != "runs" or form.runs)
        }
        if rest:
            yield More(
                name=f"more-{group}",
                label=title,
                fields=tuple(form.control(name, each) for name, each in rest.items()),
                is_open=any(form.held(each) for each in rest.values()),
            )


class _Form(Struct, frozen=True, kw_only=True):
    """Makes the control of each field. runs: names of the user's runs."""

    given: Given
    catalogue: Catalogue
    at_first: Mapping[str, str]
    runs: Sequence[str]

    def held(self, declared: Field) -> list[str]:
        """The non-empty values of a field in the address."""
        keys = (declared.key, *declared.also_keys)
        return [text for key in keys for text in self.given.get(key, ()) if text.strip()]

    def control(self, name: str, declared: Field) -> Control:
        """The control of a field, by its kind; for names, by the available choices."""
        if name == "systems":
            return self._systems(declared)
        if name == "workload":
            return Text(
                name=declared.key,
                label=label_of(name),
                value=next(iter(self.held(declared)), self.at_first[declared.key]),
                suggestions=workload_choices(self.catalogue),
                meaning=declared.help,
            )
        choices = self._choices(name, declared)
        if choices and declared.kind in {"choice", "flag", "path", "text"}:
            return self._select(name, declared, choices)
        if declared.kind == "list" and choices:
            return Checks(
                name=declared.key,
                label=label_of(name),
                choices=choices,
                values=frozenset(value for text in self.held(declared) for value in text.split(",")),
                meaning=declared.help,
            )
        is_number = declared.kind == "number"
        bounds = (_shown(declared.least, declared), _shown(declared.most, declared))
        return Text(
            name=declared.key,
            label=label_of(name),
            value=" ".join(self.held(declared)),
            unset=_unset(name, declared),
            bounds=bounds if is_number else None,
            slider=FORM_FIELDS.get(name, _PLAIN).slider,
            suggestions=choices,
            meaning=declared.help,
        )

    def _choices(self, name: str, declared: Field) -> tuple[Choice, ...]:
        """The available choices of a field."""
        if name == "region":
            return regions()
        if name == "runs":
            found = tuple(Choice(value=each, label=printable(each)) for each in self.runs)
        elif declared.kind == "flag":
            found = (
                Choice(value="no", label="Where an amount is given"),
                Choice(value="yes", label="Compared"),
            )
        else:
            found = tuple(
                Choice(value=each, label=_WORDS.get(each, each.replace("_", " ")))
                for each in declared.choices
            )
        nothing = FORM_FIELDS.get(name, _PLAIN).nothing
        return (Choice(value="", label=nothing), *found) if nothing else found

    def _select(self, name: str, declared: Field, choices: tuple[Choice, ...]) -> Select:
        held = self.held(declared) or [self.at_first.get(declared.key, _text_of(default_of(name)))]
        return Select(
            name=declared.key,
            label=label_of(name),
            choices=_with(held[0], choices),
            value=held[0],
            meaning=declared.help,
        )

    def _systems(self, declared: Field) -> Several:
        """A text input for each system of the question, and an empty one."""
        held = (self.held(declared) or [self.at_first[declared.key]])[:MOST_SYSTEMS]
        shown = held if len(held) == MOST_SYSTEMS else [*held, ""]
        return Several(
            name=declared.key,
            texts=tuple(
                Text(
                    name=declared.key,
                    identifier=declared.key if place == 0 else f"{declared.key}-{place + 1}",
                    label=label_of("systems") if place == 0 else "Compared with",
                    value=value,
                    unset="h100, b200, ..." if place else "",
                    suggestions=system_choices(self.catalogue),
                    meaning=declared.help,
                )
                for place, value in enumerate(shown)
            ),
        )


def _with(value: str, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """The choices, preceded by the value in the address if it is not among them."""
    is_known = any(each.value == value for each in choices)
    return choices if is_known else (Choice(value=value, label=printable(value)), *choices)


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _shown(bound: float | None, declared: Field) -> float | None:
    """A bound in the unit of a number without unit."""
    return None if bound is None else bound / declared.scale


def _unset(name: str, declared: Field) -> str:
    """What an empty field means."""
    usual = default_of(name)
    stated = FORM_FIELDS.get(name, _PLAIN).unset or declared.unset
    return stated or (f"{usual:g}" if isinstance(usual, (int, float)) else "none")
