"""A callback of PyTorch Lightning that watches `fit`. Loaded on use: it imports Lightning."""

from pathlib import Path
from typing import Any

from equipoise.bench.watching.user_loop import Watch, watch
from equipoise.errors import UsageError

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as err:
    raise UsageError("LightningWatch needs PyTorch Lightning, 2.0 or newer: pip install lightning") from err


class LightningWatch(Callback):  # type: ignore[misc]  # lightning is not followed
    """`Trainer(callbacks=[LightningWatch("runs/mine")])`; afterwards `.watch.summary()`."""

    def __init__(
        self, out: str | Path | None = None, *, name: str | None = None, num_steps: int = 1000
    ) -> None:
        """Take the arguments of `equipoise.watch`."""
        super().__init__()
        self.watch: Watch | None = None
        self._out, self._name, self._num_steps = out, name, num_steps

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - Lightning's own
        """Start watching."""
        name = self._name or type(pl_module).__name__
        # strategy.model may be e.g. DistributedDataParallel, whose forward pass is the module's
        # `training_step`.
        self.watch = watch(trainer.strategy.model, out=self._out, name=name, num_steps=self._num_steps)
        self.watch.__enter__()
        self.watch.calls(pl_module, "training_step")
        self.watch.pauses(trainer, "save_checkpoint")
        self.watch.fetches(trainer.fit_loop._data_fetcher)  # noqa: SLF001 - already set up here

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - Lightning's own
        """End the step if it has updated weights."""
        if self.watch is not None:
            self.watch.end_step()

    def on_validation_start(self, *_: Any) -> None:  # noqa: ANN401 - Lightning's own
        """Exclude validation from all steps."""
        if self.watch is not None:
            self.watch.loop.pause()

    def on_validation_end(self, *_: Any) -> None:  # noqa: ANN401 - Lightning's own
        """Resume the step after validation."""
        if self.watch is not None:
            self.watch.loop.go_on()

    def on_train_end(self, *_: Any) -> None:  # noqa: ANN401 - Lightning's own
        """Stop watching and write the tables."""
        if self.watch is not None:
            self.watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ANN401 - Lightning's own
        """Stop watching and keep what was recorded."""
        del trainer, pl_module
        if self.watch is not None:
            self.watch.end(exception)
