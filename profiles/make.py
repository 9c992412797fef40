"""Writes what equipoise/data holds besides the embedded dataset: `python profiles/make.py [RECORD ...]`.

Without names all of them, in this order: fits to $EQUIPOISE_DATA/measured (default ../shared/data), then the
errors of predictions that were held out.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from msgspec import to_builtins
from threadpoolctl import threadpool_limits

from advice import combined_advice_document, published_advice_document
from combined import combined_document
from equipoise.calibration.forecast_record import COMBINED, FORECAST, PUBLISHED, BacktestSummary, shipped
from equipoise.calibration.forecasts import TRENDS, fingerprint, results_of
from equipoise.calibration.profiles import NAME as PROFILES
from equipoise.calibration.profiles import SOFTWARE_NAME
from equipoise.decide.combine import COMBINED_RECORD_NAME, PLAN_RECORD_NAME
from equipoise.decide.estimators.model import NAME as TRANSFER
from equipoise.runs import embedded
from equipoise.runs.store import best_per_size, comparable
from equipoise.scaling import pooled
from equipoise.scaling.backtest import Protocol, backtest
from equipoise.scaling.submitters import submitter_spread
from equipoise.spec.mlperf import round_key
from equipoise.units import significant
from fitted_profiles import profiles_document
from plans import plans_document
from software_fit import software_document
from step_table import steps_document
from transfer import transfer_document

MEASURED = (
    Path(os.environ.get("EQUIPOISE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    / "measured"
)
_PROTOCOLS: tuple[tuple[Protocol, bool], ...] = (("largest", False), ("largest", True), ("new_round", False))


def forecast_document() -> dict[str, Any]:
    """Settings and record of the pooled law of the embedded data, as they ship."""
    scores = embedded.load().scores
    best = best_per_size(scores)
    summaries = []
    for protocol, given_batch in _PROTOCOLS:
        result = backtest(best, protocol=protocol, given_batch=given_batch)
        summaries.append(
            BacktestSummary(
                protocol=protocol,
                given_batch=given_batch,
                pooled_law=result.pooled_law,
                baselines=result.baselines,
            )
        )
    return {
        "dataset": embedded.version(),
        "settings": pooled.fit(best).settings(),
        "settings_given_batch": pooled.fit(best, given_batch=True).settings(),
        "backtests": [to_builtins(each) for each in summaries],
        "submitters": to_builtins(submitter_spread(comparable(scores))),
    }


def trends_document() -> dict[str, Any]:
    """The trends of the laws of the embedded data: of what was before each round, and of all."""
    results, found = results_of(embedded.load().scores), {}
    for round_ in (*sorted(results.best["campaign"].unique(), key=round_key)[1:], None):
        for given_batch in (False, True):
            entries = results.before(round_)
            settings = shipped().settings(given_batch=given_batch)
            law = pooled.fit(entries, given_batch=given_batch, settings=settings)
            found[fingerprint(entries, settings, given_batch=given_batch)] = law.trends()
    return {"dataset": embedded.version(), "trends": found}


# Each record by its name: the file, what is written there, and to how many digits: of records as many as are
# the same whatever the order of sums inside a library. Answers follow from trends, to more than any shows.
RECORDS: Mapping[str, tuple[str, Callable[[], Mapping[str, Any]], int]] = {
    "profiles": (PROFILES, lambda: profiles_document(MEASURED), 5),
    "software": (SOFTWARE_NAME, lambda: software_document(MEASURED), 5),
    "steps": ("published_steps.json", lambda: steps_document(MEASURED), 5),
    "forecast": (FORECAST, forecast_document, 5),
    "trends": (TRENDS, trends_document, 10),
    "advice": (PUBLISHED, published_advice_document, 5),
    "plans": (PLAN_RECORD_NAME, plans_document, 4),
    "combined": (COMBINED_RECORD_NAME, combined_document, 4),
    "combined_advice": (COMBINED, combined_advice_document, 5),
    "transfer": (TRANSFER, transfer_document, 4),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the named records, or all, and write them next to the embedded tables."""
    parser = argparse.ArgumentParser(prog="python profiles/make.py", description=__doc__)
    parser.add_argument("records", nargs="*", metavar="RECORD", help=", ".join(RECORDS))
    names = parser.parse_args(arguments).records or [*RECORDS]
    unknown = [name for name in names if name not in RECORDS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a record; expected names from {', '.join(RECORDS)}")
    if len(names) > 1:
        # A process reads what ships once, and later records rest on earlier ones.
        for name in names:
            subprocess.run([sys.executable, __file__, name], check=True)
        return 0
    file, make, num_digits = RECORDS[names[0]]
    with threadpool_limits(limits=1):
        document = make()
    encoded = orjson.dumps(
        significant(document, num_digits), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
    Path(str(files("equipoise") / "data" / file)).write_bytes(encoded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
