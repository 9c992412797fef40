"""Signatures of the Python functions, as `help` shows them."""

import inspect

import pytest

import equipoise
from equipoise.decide.question.query import fields_of


@pytest.mark.parametrize("verb", ["advise", "plan", "predict"])
def test_help_of_a_function_has_the_fields_of_its_verb_by_name(verb):
    shown = inspect.signature(getattr(equipoise, verb)).parameters
    named = {name for each in fields_of(verb).values() for name in (each.argument, *each.also_keys)}
    assert named == set(shown) - {"allow_code"}
    assert all(each.annotation is not inspect.Parameter.empty for each in shown.values())
