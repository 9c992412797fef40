"""A callback of Hugging Face's Trainer that watches `train`. Loaded on use: it imports transformers."""

from pathlib import Path
from typing import Any

from equipoise.bench.watching.user_loop import Watch, watch
from equipoise.errors import UsageError

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as err:
    raise UsageError(
        "TrainerWatch needs Hugging Face's transformers: pip install transformers accelerate"
    ) from err


class TrainerWatch(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """`Trainer(..., callbacks=[TrainerWatch("runs/mine")])`; afterwards `.watch.summary()`."""

    def __init__(
        self, out: str | Path | None = None, *, name: str | None = None, num_steps: int = 1000
    ) -> None:
        """Take the arguments of `equipoise.watch`."""
        self.watch: Watch | None = None
        self._out, self._name, self._num_steps = out, name, num_steps

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ANN401 - the Trainer's own
        """Start watching."""
        del args, state, control
        if self.watch is not None:  # a previous training raised, for which there is no callback
            self.watch.end()
        self.watch = watch(parts["model"], out=self._out, name=self._name, num_steps=self._num_steps)
        self.watch.__enter__()
        self.watch.fetches(parts["train_dataloader"])

    def on_step_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - the Trainer's own
        """End the step if it has updated weights."""
        if self.watch is not None:
            self.watch.end_step()

    def on_evaluate(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - the Trainer's own
        """Exclude the time since the end of the last step."""
        if self.watch is not None:
            self.watch.loop.begin_anew()

    on_save = on_evaluate

    def on_train_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - the Trainer's own
        """Stop watching and write the tables."""
        if self.watch is not None:
            self.watch.end()
