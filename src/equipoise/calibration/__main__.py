"""What calibration writes into equipoise/data, made again: `python -m equipoise.calibration [RECORD ...]`.

Without names all of them, in this order. What has to ask whole questions is made by decide/records/.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from equipoise.calibration.advice_backtest import advice_document, held_out_advice
from equipoise.calibration.fitted_profiles import profiles_document
from equipoise.calibration.forecast_record import FORECAST, PUBLISHED, forecast_document, write_record
from equipoise.calibration.forecasts import TRENDS, trends_document
from equipoise.calibration.profiles import NAME as PROFILES
from equipoise.calibration.profiles import SOFTWARE_NAME
from equipoise.calibration.published_steps import RECORD as STEPS
from equipoise.calibration.published_steps import steps_document
from equipoise.calibration.software_fit import software_document
from equipoise.runs import embedded


def _measured() -> Path:
    """The measurements below $EQUIPOISE_DATA (default ../shared/data)."""
    checkout = Path(__file__).resolve().parents[3]
    return Path(os.environ.get("EQUIPOISE_DATA", checkout.parent / "shared" / "data")) / "measured"


def _profiles() -> Mapping[str, Any]:
    return profiles_document(_measured())


def _software() -> Mapping[str, Any]:
    return software_document(_measured())


def _steps() -> Mapping[str, Any]:
    return steps_document(_measured())


def _advice() -> Mapping[str, Any]:
    return advice_document(held_out_advice(embedded.scores().entries))


# Each record by its name: the file, and what is written there.
RECORDS: Mapping[str, tuple[str, Callable[[], Mapping[str, Any]]]] = {
    "profiles": (PROFILES, _profiles),
    "software": (SOFTWARE_NAME, _software),
    "steps": (STEPS, _steps),
    "forecast": (FORECAST, forecast_document),
    "trends": (TRENDS, trends_document),
    "advice": (PUBLISHED, _advice),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the named records, or all, and write them next to the embedded tables."""
    parser = argparse.ArgumentParser(prog="python -m equipoise.calibration", description=__doc__)
    parser.add_argument("records", nargs="*", metavar="RECORD", help=", ".join(RECORDS))
    names = parser.parse_args(arguments).records or [*RECORDS]
    unknown = [name for name in names if name not in RECORDS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a record; expected names from {', '.join(RECORDS)}")
    for name in names:
        file, make = RECORDS[name]
        with threadpool_limits(limits=1):
            document = make()
        # Answers follow from trends, to more digits than any shows.
        write_record(file, document, **({"num_digits": 10} if file == TRENDS else {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
