"""The programs that a strategy is translated for."""

from equipoise.errors import SpecError
from equipoise.launch.deepspeed import DEEPSPEED
from equipoise.launch.hugging_face import ACCELERATE, TRAINER
from equipoise.launch.megatron import MEGATRON, NEMO
from equipoise.launch.program import Program
from equipoise.launch.torchtitan import TORCHTITAN

PROGRAMS: tuple[Program, ...] = (MEGATRON, TORCHTITAN, DEEPSPEED, ACCELERATE, TRAINER, NEMO)


def program(name: str) -> Program:
    """The program of a name. Raises SpecError with the names there are."""
    for each in PROGRAMS:
        if each.name == name:
            return each
    raise SpecError(
        f"program {name!r} is not known; expected one of {', '.join(each.name for each in PROGRAMS)}"
    )
