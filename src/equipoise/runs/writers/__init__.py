"""Exports of any table: CSV for spreadsheets, Parquet for notebooks, JSON lines for everything else."""

from equipoise.runs.writers.json_lines import JSON_LINES
from equipoise.runs.writers.parquet import PARQUET
from equipoise.runs.writers.spreadsheet import CSV
from equipoise.runs.writers.writer import Writer

__all__ = ["WRITERS", "Writer"]

WRITERS = (CSV, PARQUET, JSON_LINES)
