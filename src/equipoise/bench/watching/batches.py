"""Batches of a loader, of which a loop is told. Torch loads when they are asked for."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from equipoise.bench.watching.loop import Loop


class Batches:
    """A loader's batches, as the loop asks for them."""

    def __init__(self, loader: Iterable[Any], loop: Callable[[], Loop | None]) -> None:
        """loop: who is told, while there is one."""
        self._loader, self._loop = loader, loop

    def __len__(self) -> int:
        """How many there are, where the loader says."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """The batches; every pass is new."""
        from equipoise.bench.watching.hooks import num_samples  # noqa: PLC0415 - it imports torch

        self._asked()
        following = iter(self._loader)
        try:
            for batch in following:
                if loop := self._loop():
                    loop.came(num_samples(batch))
                yield batch
                self._asked()
            if loop := self._loop():
                loop.begun_anew()
        finally:
            # Also where the loop was left: whether its last step ended is known later, when none failed.
            if loop := self._loop():
                loop.between()

    def _asked(self) -> None:
        if loop := self._loop():
            loop.asked()
