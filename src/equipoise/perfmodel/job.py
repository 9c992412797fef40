"""What a search is given: a training, the machine and the calibration."""

from collections.abc import Callable
from dataclasses import dataclass

from equipoise.perfmodel.grid import Numbers
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be trained, on what, by which calibration.

    load, machine: of plain numbers. num_steps: of the training by its global batch, (n,) -> (n,).
    """

    load: Load
    machine: Machine
    parameters: Parameters
    num_steps: Callable[[Numbers], Numbers]
