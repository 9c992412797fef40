"""Readers of evidence. A new kind of evidence is one new module here and one more line in READERS."""

from equipoise.runs import Reader
from equipoise.runs.readers.mlperf import MLPERF

READERS: tuple[Reader, ...] = (MLPERF,)
