"""Exports of tables: CSV for spreadsheets, Parquet for notebooks, JSON lines, and what other tools read."""

from equipoise.runs.writers.extra_p import EXTRA_P
from equipoise.runs.writers.json_lines import JSON_LINES
from equipoise.runs.writers.parquet import PARQUET
from equipoise.runs.writers.prometheus import PROMETHEUS
from equipoise.runs.writers.spreadsheet import CSV
from equipoise.runs.writers.writer import Writer

__all__ = ["WRITERS", "Writer"]

WRITERS = (CSV, PARQUET, JSON_LINES, EXTRA_P, PROMETHEUS)
