"""Profiles that ship: what they hold, how they are found, and that they are right beyond their own rows."""

import tomllib
from pathlib import Path

import numpy as np
import orjson
import pytest
from calibrations import RECIPES, RECORDS, main

from equipoise.calibration import profiles as module
from equipoise.calibration.profiles import profile, profiles, read_profiles
from equipoise.errors import DataError, SpecError
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import transformer_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.spec.catalogue import cluster_in_text
from equipoise.spec.hardware import accelerator
from equipoise.spec.strategy import strategy
from equipoise.spec.workload import workload

LARGE = tomllib.loads((Path(__file__).parents[1] / "truth" / "large_steps.toml").read_text())


def test_every_recipe_ships_with_its_record():
    assert [each.name for each in profiles()] == [each.name for each in RECIPES]
    for each, recipe in zip(profiles(), RECIPES, strict=True):
        record = each.record
        assert (each.title, each.file_names, record.split) == (recipe.title, recipe.file_names, recipe.split)
        assert 0 < record.median <= record.p90
        assert record.num_clusters <= record.num_executions
        assert 0 < record.log_half_width < 1


def test_accelerators_of_profiles_are_in_the_table():
    assert profiles()
    for each in profiles():
        assert each.accelerators
        assert [accelerator(slug).slug for slug in each.accelerators] == [*each.accelerators]


def test_fitted_values_keep_to_what_is_possible():
    largest = {each.name: each.largest for each in PRIORS}
    assert profiles()
    for each in profiles():
        assert each.values.keys() == each.log_sd.keys()
        for name, value in each.values.items():
            assert 0 < value <= largest[name] * (1 + 1e-4)
            assert each.parameters.value(name) == value


def test_an_unknown_profile_names_those_there_are():
    with pytest.raises(SpecError, match=r"'a100'.*; .*h100-torchtitan"):
        profile("a100")


@pytest.mark.truth
def test_large_models_are_predicted_from_small_ones():
    """Llama 3.1 70B and 405B on up to four axes, by a profile fitted to Llama 3.1 8B on two at most."""
    parameters = profile("h100-torchtitan").parameters
    errors = []
    assert LARGE["step"]
    for step in LARGE["step"]:
        cluster = cluster_in_text(LARGE["hardware"], num_accelerators=step["num_accelerators"])
        assert cluster is not None
        how = strategy(step["strategy"])
        load = transformer_load(workload(step["model"]).transformer, sequence=step["sequence"])
        found_s = float(estimate(load, machine(cluster), grid([how]), parameters).step_s[0])
        tokens = how.global_batch_samples * step["sequence"]
        rate = step["tokens_per_s_per_accelerator"] * step["num_accelerators"]
        errors.append(abs(found_s * rate / tokens - 1))
    assert np.mean(errors) <= 0.10
    assert max(errors) <= 0.20


def test_a_file_that_is_none_says_how_to_make_one(tmp_path):
    path = tmp_path / "profiles.json"
    path.write_text("{}")
    with pytest.raises(DataError, match="make profiles"):
        read_profiles(path)


def test_a_parameter_the_model_lost_is_refused(tmp_path):
    shipped = orjson.loads((Path(module.__file__).parents[1] / "data" / "profiles.json").read_bytes())
    shipped["profiles"][0]["values"]["gone_fraction"] = 0.5
    path = tmp_path / "profiles.json"
    path.write_bytes(orjson.dumps(shipped))
    with pytest.raises(DataError, match=r"gone_fraction"):
        read_profiles(path)


def test_a_record_that_is_none_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["profiles", "gone"])
    error = capsys.readouterr().err
    assert all(name in error for name in ("'gone'", *RECORDS))
    assert [file for file, _ in RECORDS.values()] == [
        "profiles.json",
        "software.json",
        "published_steps.json",
        "forecast.json",
        "trends.json",
        "advice.json",
    ]


def test_what_no_row_moves_stays_at_its_prior():
    assert profile("h100-torchtitan").parameters.fixed_bytes == Parameters().fixed_bytes
