"""Profiles that ship: what they hold, how they are found, and that a broken file is refused."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from calibrations import RECORDS, main

from equipoise.calibration import profiles as module
from equipoise.calibration.profiles import memory_log_sd, profiles, read_profiles
from equipoise.errors import DataError
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.spec.strategy import SOFTWARE_NAMES
from equipoise.units import significant

SHIPPED = Path(module.__file__).parents[1] / "data" / "software.json"
FITTED = profiles()["megatron_core"].fitted


def test_every_profile_is_of_a_software_and_has_its_record():
    assert profiles()
    assert profiles().keys() <= set(SOFTWARE_NAMES)
    for each in profiles().values():
        assert 0 < each.record.median <= each.record.p90
        assert each.record.num_clusters <= each.record.num_executions
        assert 0 < each.record.log_half_width < 1


def test_fitted_values_keep_to_what_is_possible():
    largest = {each.name: each.largest for each in PRIORS}
    assert profiles()
    for each in profiles().values():
        assert each.values
        for name, value in each.values.items():
            assert 0 < value <= largest[name] * (1 + 1e-4)
            assert each.parameters.value(name) == value


def test_a_file_that_is_none_says_how_to_make_one(mine):
    path = mine("{}", "software.json")
    with pytest.raises(DataError, match="make profiles"):
        read_profiles(path)


def test_a_parameter_the_model_lost_is_refused(mine):
    shipped = orjson.loads(SHIPPED.read_bytes())
    shipped["software"][0]["values"]["gone_fraction"] = 0.5
    path = mine(orjson.dumps(shipped), "software.json")
    with pytest.raises(DataError, match=r"gone_fraction"):
        read_profiles(path)


def test_the_spread_of_memory_is_that_of_published_executions_as_it_ships():
    shipped = orjson.loads(SHIPPED.with_name("memory.json").read_bytes())
    assert significant(RECORDS["memory"][1](), 5) == shipped
    # A software with n executions weighs n, and what all sources show weighs ten.
    own, every = shipped["by_software"]["megatron_core"], shipped["log_sd"]
    weighed = (own["num_executions"] * own["log_sd"] ** 2 + 10 * every**2) / (own["num_executions"] + 10)
    assert memory_log_sd("megatron_core") == pytest.approx(weighed**0.5)
    assert memory_log_sd(None) == memory_log_sd("of no execution") == every


def test_a_record_that_is_none_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["software", "gone"])
    error = capsys.readouterr().err
    assert all(name in error for name in ("'gone'", *RECORDS))
    assert [file for file, _ in RECORDS.values()] == [
        "software.json",
        "deviates.json",
        "published_steps.json",
        "memory.json",
        "forecast.json",
        "trends.json",
        "advice.json",
    ]


@pytest.mark.parametrize(("of", "names", "count"), [("of_priors", PRIORS, 32), ("of_values", FITTED, 64)])
def test_deviates_are_independent_standard_normal_numbers(of, names, count):
    shipped = orjson.loads(SHIPPED.with_name("deviates.json").read_bytes())[of]
    numbers = np.array([[float(each) for each in shipped[one.name].split()] for one in names])
    assert numbers.shape == (len(names), count)
    assert numbers.mean() == pytest.approx(0.0, abs=4 / numbers.size**0.5)
    assert numbers.std() == pytest.approx(1.0, abs=4 / (2 * numbers.size) ** 0.5)
    # 2,000 correlations of independent columns, each with a standard deviation of 1 / sqrt(count)
    correlations = np.corrcoef(numbers)[np.triu_indices(len(names), 1)]
    assert np.abs(correlations).max() < 5 / count**0.5


def test_memory_is_no_part_of_a_time():
    assert profiles()["torchtitan"].parameters.fixed_bytes == Parameters().fixed_bytes
