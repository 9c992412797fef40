"""What calibration reads of equipoise/data, made again.

    python records/calibrations.py [RECORD ...]

Without names all of them, in this order. Profiles are fitted to published measurements, and tested on rows
held out. What has to ask whole questions is made by the scripts beside this one.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
from memory_record import memory_document
from msgspec import to_builtins
from software_fit import software_document
from step_table import steps_document
from submitters import submitter_spread
from threadpoolctl import threadpool_limits
from written import write_record

from equipoise.calibration.advice_backtest import HeldOutAdvice, advice_errors, held_out_advice
from equipoise.calibration.curves import FORECAST, PUBLISHED, shipped_forecasts
from equipoise.calibration.forecasts import TRENDS, entries_hash, fingerprint, results_of
from equipoise.calibration.profiles import DEVIATES, MEMORY, profiles
from equipoise.calibration.profiles import NAME as PROFILES
from equipoise.errors import EvidenceError
from equipoise.perfmodel.parameters import PRIORS
from equipoise.runs import embedded
from equipoise.scaling import backtest as scaling
from equipoise.scaling import pooled
from equipoise.scaling.backtest import BacktestSummary, Protocol
from equipoise.scaling.convergence import batch_growth
from equipoise.spec.mlperf import Entries, best_per_size, round_key

_PROTOCOLS: tuple[tuple[Protocol, bool], ...] = (("largest", False), ("largest", True), ("new_round", False))


def forecast_document() -> dict[str, Any]:
    """The shipped settings and accuracy record of forecasts from the embedded data."""
    entries = embedded.scores().entries
    best = best_per_size(entries)
    summaries = []
    for protocol, given_batch in _PROTOCOLS:
        result = scaling.backtest(best, protocol=protocol, given_batch=given_batch)
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
        "submitters": to_builtins(submitter_spread(entries)),
    }


def trends_document() -> dict[str, Any]:
    """Precomputed parts of laws fitted to the embedded data.

    Trends of pooled laws, for the results before each round and for all; final weights of laws of samples
    against batch.
    """
    results, found = results_of(embedded.scores()), {}
    for round_ in (*sorted({each.campaign for each in results.best}, key=round_key)[1:], None):
        for given_batch in (False, True):
            entries = results.before(round_)
            settings = shipped_forecasts().settings(given_batch=given_batch)
            law = pooled.fit(entries, given_batch=given_batch, settings=settings)
            found[fingerprint(entries, settings, given_batch=given_batch)] = law.trends()
    stretches = _growth_stretches(embedded.scores().entries)
    return {"dataset": embedded.version(), "trends": found, "stretches": stretches}


def _growth_stretches(entries: Entries) -> dict[str, list[float]]:
    """The weights that `forecasts.published_growth` reads, for workloads whose samples grow with batch."""
    found = {}
    for workload in sorted({each.workload for each in entries}):
        of_workload = [each for each in entries if each.workload == workload]
        with suppress(EvidenceError):
            found[entries_hash(of_workload)] = batch_growth(of_workload).stretch.tolist()
    return found


def advice_document(results: Sequence[HeldOutAdvice]) -> dict[str, Any]:
    """The shipped record of held-out advice."""
    return {"dataset": embedded.version(), "errors": [to_builtins(each) for each in advice_errors(results)]}


_NUM_DRAWS: Final = 64
_SEED: Final = 1


def deviates_document() -> dict[str, Any]:
    """The shipped deviates of the model's draws, with six significant digits."""
    fitted = next(iter(profiles().values())).fitted
    of_values = np.random.default_rng(_SEED).standard_normal((_NUM_DRAWS, len(fitted))).T
    # Each prior has its own random stream, so that adding one changes no draw of the others.
    streams = [np.random.default_rng([_SEED, crc32(each.name.encode())]) for each in PRIORS]
    of_priors = [each.standard_normal(_NUM_DRAWS // 2).tolist() for each in streams]
    return {
        "of_values": {each.name: _words(row) for each, row in zip(fitted, of_values.tolist(), strict=True)},
        "of_priors": {each.name: _words(row) for each, row in zip(PRIORS, of_priors, strict=True)},
    }


def _words(numbers: Sequence[float]) -> str:
    return " ".join(f"{each:.6g}" for each in numbers)


def _measured() -> Path:
    """The measurements below $EQUIPOISE_DATA (default ../shared/data)."""
    checkout = Path(__file__).resolve().parents[1]
    return Path(os.environ.get("EQUIPOISE_DATA", checkout.parent / "shared" / "data")) / "measured"


def _software() -> Mapping[str, Any]:
    return software_document(_measured())


def _steps() -> Mapping[str, Any]:
    return steps_document(_measured())


def _advice() -> Mapping[str, Any]:
    return advice_document(held_out_advice(embedded.scores().entries))


# Records by name: the file, and the function that makes its content.
RECORDS: Mapping[str, tuple[str, Callable[[], Mapping[str, Any]]]] = {
    "software": (PROFILES, _software),
    "deviates": (DEVIATES, deviates_document),
    "steps": ("published_steps.json", _steps),
    "memory": (MEMORY, memory_document),
    "forecast": (FORECAST, forecast_document),
    "trends": (TRENDS, trends_document),
    "advice": (PUBLISHED, _advice),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the named records, or all, and write them next to the embedded tables."""
    parser = argparse.ArgumentParser(prog="python records/calibrations.py", description=__doc__)
    parser.add_argument("records", nargs="*", metavar="RECORD", help=", ".join(RECORDS))
    names = parser.parse_args(arguments).records or [*RECORDS]
    unknown = [name for name in names if name not in RECORDS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a record; expected names from {', '.join(RECORDS)}")
    for name in names:
        file, make = RECORDS[name]
        with threadpool_limits(limits=1):
            document = make()
        # Answers are computed from trends, so these need more digits than answers show.
        write_record(file, document, **({"num_digits": 10} if file == TRENDS else {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
