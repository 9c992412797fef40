"""Numbers at the edge of what a float holds: an answer or one sentence, never a warning or a traceback."""

from contextlib import suppress

import pytest

from equipoise.decide.question.query import FIELDS, fields_of
from equipoise.errors import EquipoiseError
from equipoise.library.decisions import read_question, result_of
from equipoise.report.html import fragment

QUESTION = {
    "workload": "llama2_70b_lora",
    "accelerator": ["h100"],
    "objective": "cost",
    "max_accelerators": "16",
}
NUMBERS = sorted(
    name
    for name in fields_of("advise")
    if FIELDS[name].kind in {"amount", "number", "count", "duration", "per_system"}
    and name != "max_accelerators"
)
assert len(NUMBERS) > 10


@pytest.mark.parametrize("name", NUMBERS)
def test_the_smallest_numbers_bring_no_warning(name):
    field = FIELDS[name]
    for number in ("5e-324", "1e-300"):
        text = f"h100={number}" if field.kind == "per_system" else number
        asked = {**QUESTION, field.key: [text] if field.is_repeated else text}
        for more in ({}, {"buy": True}):
            with suppress(EquipoiseError):
                found = result_of("advise", read_question({**asked, **more}, verb="advise"))
                assert fragment(found.presentation.page, found.record)
