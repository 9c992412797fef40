"""Counts a model's training step on fake tensors, and reports errors in a user's code in one sentence."""

import logging
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.autograd.graph import saved_tensors_hooks

from equipoise.errors import EquipoiseError, SpecError, first_line
from equipoise.spec.torch_model.count import Counted, Cut, Gradient, LayerCount, gradient_buckets
from equipoise.spec.torch_model.factory import RAISED, Factory
from equipoise.spec.torch_model.fakes import accelerator_form, fake_batch, fake_mode, fake_model, tensors_in
from equipoise.spec.torch_model.trace import LOSS, Modules, Trace, Work, watched


@contextmanager
def explained(names: Mapping[int, str], subject: str, way_round: str, *, expected: str) -> Iterator[None]:
    """Convert an exception of a user's code to a SpecError with module, line and remedy.

    expected: what the code must do, for ordinary errors. way_round: the remedy if tensor values are needed.
    """
    try:
        yield
    except EquipoiseError:
        raise
    except RAISED as err:
        where = _where(err, names) or subject
        what = _what(err)
        if what is None:
            raised = f"{type(err).__name__}: {first_line(err)}"
            raise SpecError(f"{where}: {raised}; expected {expected}") from err
        raise SpecError(f"{where}: {what}; {way_round}") from err


def _what(err: BaseException) -> str | None:
    """Return what a model needs that fake tensors cannot provide; None for an ordinary error."""
    if isinstance(err, DataDependentOutputException):
        return f"control flow needs the value of a tensor ({err.func}), and the count runs without values"
    if isinstance(err, DynamicOutputShapeException):
        return f"the shape of a result depends on values ({err.func}), and the count runs without values"
    if isinstance(err, UnsupportedOperatorException):
        return (
            f"the operation {err.func} does not declare what shape it returns; "
            "register it with torch.library.register_fake, and its FLOP by "
            "torch.utils.flop_counter.register_flop_formula"
        )
    return None


def _where(err: BaseException, names: Mapping[int, str]) -> str | None:
    """Return the innermost module of a traceback and its last line outside torch; None without either."""
    module, line = None, None
    for frame, number in traceback.walk_tb(err.__traceback__):
        held = frame.f_locals.get("self")
        if id(held) in names:
            module = f"{names[id(held)] or 'the model'} ({type(held).__name__})"
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in {"torch", "equipoise", "contextlib"}:
            line = f"{frame.f_code.co_filename}:{number}"
    return ", ".join(part for part in (module, line) if part) or None


_Built = TypeVar("_Built")
WAY_ROUND = (
    "give a loss or a batch that does not need the value, decide by shapes or settings instead, "
    "or state train_flop_per_sample by hand"
)


def count_model(
    model: nn.Module | Callable[[], nn.Module],
    example: Any,  # noqa: ANN401 - whatever the model takes
    *,
    loss: Callable[..., torch.Tensor] | None,
    num_samples: int | None,
) -> Counted:
    """Return the figures of one training step without allocating weights or activations; see `count`."""
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        if not isinstance(model, nn.Module):
            model = _built(model)
        mode = fake_mode()
        step = _Step(fake_model(model, mode), fake_batch(example, mode), loss, num_samples)
        stack.enter_context(accelerator_form())
        stack.enter_context(mode)
        return step.counted()


def count_factory(factory: Factory, *, allocate: bool) -> Counted:
    """Return the figures of a user's function that returns model, batch and optionally a loss.

    allocate: let the function allocate memory, if it needs the values of tensors.
    Raises SpecError.
    """
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        way_round = (
            "use Python numbers there, or count with allocate=True, which needs the memory of the model"
        )
        expected = f"{factory.reference} to return model and batch when called without arguments"
        with explained({}, factory.reference, way_round, expected=expected):
            model, batch, loss = factory.made() if allocate else _without_memory(factory.made)
    num_samples = _batch_size(batch, f"{factory.reference}: the batch is")
    return count_model(model, batch, loss=loss, num_samples=num_samples)


def _built(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that a function builds, without allocating memory."""
    name = getattr(build, "__name__", type(build).__name__)
    way_round = "use Python numbers there, or build the model first and give the model"
    with explained({}, name, way_round, expected=f"{name} to build a model when called without arguments"):
        model = _without_memory(build)
    if not isinstance(model, nn.Module):
        raise SpecError(f"{name}: returned a {type(model).__name__}; expected a torch.nn.Module")
    return model


def _without_memory(build: Callable[[], _Built]) -> _Built:
    """Call a function with tensors that take no memory, and return its result.

    The meta device has shapes only, and torch skips operations that need values there, such as rejection
    sampling of weights. If it fails, fake tensors are used, which also know small constants.
    """
    meta = torch.device("meta")
    try:
        with meta, accelerator_form(meta):
            return build()
    except RuntimeError:
        with accelerator_form(), fake_mode():
            return build()


class _Step:
    """One training step of a model on fake tensors, and its counts."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,  # noqa: ANN401 - whatever the model takes
        loss: Callable[..., torch.Tensor] | None,
        num_samples: int | None,
    ) -> None:
        self.model = model
        self.batch = batch
        self.loss = loss
        self.num_samples = _batch_size(batch, "example batch:") if num_samples is None else num_samples
        self.params = dict(model.named_parameters())
        self.modules = Modules()
        self.trace = Trace(self.modules)
        self.gradients: list[tuple[str, int]] = []

    def counted(self) -> Counted:
        """Run the step and return all counts."""
        buffers = list(self.model.buffers())
        held = [*self.params.values(), *buffers]
        batch = list(tensors_in(self.batch))
        self.trace.give(held, from_batch=False)
        self.trace.give(batch, from_batch=True)
        saved_bytes, fixed_bytes = self._run()
        trainable = [param for param in self.params.values() if param.requires_grad]
        trace = self.trace
        return Counted(
            num_samples=self.num_samples,
            params=sum(param.numel() for param in self.params.values()),
            trainable_params=sum(param.numel() for param in trainable),
            buffer_bytes=sum(each.nbytes for each in buffers),
            value_bytes=self._value_bytes(),
            params_by_dtype=self._params_by_dtype(),
            forward_flop=trace.forward_flop,
            backward_flop=trace.backward_flop,
            recompute_flop=trace.recompute_flop,
            activation_bytes=saved_bytes,
            fixed_activation_bytes=fixed_bytes,
            peak_bytes=trace.peak_bytes,
            num_forward_kernels=trace.num_kernels[0],
            num_backward_kernels=trace.num_kernels[1],
            num_repeated_products=sum(uses - 1 for uses in trace.weight_uses.values()),
            layers=self._layers(),
            attention=tuple(trace.attention),
            cuts=self._cuts(),
            buckets=gradient_buckets(self._ready()),
            uncounted=tuple(sorted(trace.uncounted)),
        )

    def _run(self) -> tuple[int, int]:
        """Run both passes; return the bytes saved for the backward pass, and the fixed part of them."""
        names = {id(module): name for name, module in self.model.named_modules()}
        for name, param in self.params.items():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(
                    lambda _param, name=name: self.gradients.append((name, self.trace.backward_flop))
                )
        with (
            explained(names, type(self.model).__name__, WAY_ROUND, expected=self._expected()),
            torch.enable_grad(),
            watched(self.model, self.modules),
        ):
            with self.trace, saved_tensors_hooks(self.trace.saved, lambda tensor: tensor):
                outputs = self._objective()
            saved = self.trace.saved_bytes()
            self.trace.end_forward()
            # The gradients of a sum over the outputs; created outside the trace, because a real step has
            # none.
            unit_gradients = [torch.ones_like(each) for each in outputs]
            with self.trace:
                if outputs:
                    _run_backward(tuple(outputs), tuple(unit_gradients))
        return saved

    def _objective(self) -> list[torch.Tensor]:
        """Return the tensors to differentiate: the loss if any, otherwise all outputs that need gradients."""
        output = self._output()
        if self.loss is not None:
            self.modules.entered(LOSS)
            if isinstance(self.batch, tuple):
                output = self.loss(output, self.batch[-1])
            elif isinstance(self.batch, Mapping):
                output = self.loss(output, self.batch)
            else:
                output = self.loss(output)
            self.modules.left()
        elif isinstance(output, Mapping) and isinstance(output.get("loss"), torch.Tensor):
            output = output["loss"]
        return [tensor for tensor in tensors_in(output) if tensor.requires_grad]

    def _output(self) -> Any:  # noqa: ANN401 - whatever the model returns
        """Return the model's output for the batch."""
        if isinstance(self.batch, Mapping):
            return self.model(**self.batch)
        if isinstance(self.batch, tuple):
            return self.model(*(self.batch if self.loss is None else self.batch[:-1]))
        return self.model(self.batch)

    def _expected(self) -> str:
        """Return the expectation for an error message, with a call by which the user can test it."""
        stars = "**" if isinstance(self.batch, Mapping) else "*" if isinstance(self.batch, tuple) else ""
        last = "[:-1]" if stars == "*" and self.loss is not None else ""
        return f"the example batch to pass the model and its loss: try model({stars}batch{last}) with it"

    def _params_by_dtype(self) -> tuple[tuple[str, int], ...]:
        """Return the number of weights by dtype, most first."""
        numbers: Counter[str] = Counter()
        for param in self.params.values():
            numbers[_dtype_name(param)] += param.numel()
        return tuple(numbers.most_common())

    def _value_bytes(self) -> int:
        """Return the bytes per number in the dtype of most weights; torch's default if there are none."""
        sizes: Counter[int] = Counter()
        for param in self.params.values():
            sizes[param.element_size()] += param.numel()
        return max(sizes, key=lambda size: sizes[size], default=torch.empty(0).element_size())

    def _layers(self) -> tuple[LayerCount, ...]:
        """Return every module with work or weights of its own, in the model's order, and the loss."""
        seen: set[int] = set()
        kinds = {name: type(module).__name__ for name, module in self.model.named_modules()}
        owned: dict[str, list[nn.Parameter]] = {}
        for name, module in self.model.named_modules():
            for param in module.parameters(recurse=False):
                if id(param) not in seen:
                    seen.add(id(param))
                    owned.setdefault(name, []).append(param)
        if self.loss is not None:
            kinds[LOSS] = type(self.loss).__name__
        return tuple(
            _layer(name, kind, owned.get(name, []), self.trace.work.get(name, Work()))
            for name, kind in kinds.items()
            if name in owned or name in self.trace.work
        )

    def _cuts(self) -> tuple[Cut, ...]:
        """Return the cuts between consecutive steps of the forward pass."""
        steps = self.trace.steps
        change = [0] * (len(steps) + 1)
        for made_at, read_at, num_bytes in self.trace.crossings:
            change[made_at] += num_bytes
            change[read_at] -= num_bytes
        total = max(self.trace.forward_flop, 1)
        crossing, cuts = 0, []
        for index, (name, _) in enumerate(steps[:-1]):
            crossing += change[index]
            done = steps[index + 1][1]
            cuts.append(Cut(after=name, flop_fraction=done / total, boundary_bytes=crossing))
        return tuple(cuts)

    def _ready(self) -> Iterator[Gradient]:
        """Yield the complete gradient of each weight, in the order in which they became ready."""
        total = max(self.trace.backward_flop, 1)
        for name, flop in dict(self.gradients).items():
            param = self.params[name]
            grad_bytes = param.numel() * param.element_size()
            yield Gradient(grad_bytes=grad_bytes, dtype=_dtype_name(param), ready_fraction=flop / total)


def _layer(name: str, kind: str, params: list[nn.Parameter], work: Work) -> LayerCount:
    """Return the counts of one module."""
    return LayerCount(
        name=name,
        kind=kind,
        params=sum(param.numel() for param in params),
        trainable_params=sum(param.numel() for param in params if param.requires_grad),
        forward_flop=work.forward_flop,
        backward_flop=work.backward_flop,
        activation_bytes=work.activation_bytes,
        num_kernels=work.num_kernels,
        matrices=tuple(tuple(param.shape) for param in params if param.dim() == 2),  # noqa: PLR2004
    )


def _batch_size(batch: Any, where: str) -> int:  # noqa: ANN401 - whatever the model takes
    """Return the length of the first dim of the batch's first tensor. where: beginning of error messages.

    Raises SpecError if there is no tensor or no sample.
    """
    for tensor in tensors_in(batch):
        if tensor.dim() > 0 and tensor.shape[0] > 0:
            return int(tensor.shape[0])
        if tensor.dim() > 0:
            raise SpecError(f"{where} a tensor of {tuple(tensor.shape)}; expected a sample or more")
    raise SpecError(
        f"{where} a {type(batch).__name__} without a tensor of samples; "
        "expected a tensor, or a tuple or dict of tensors, whose first dim is the batch"
    )


def _run_backward(outputs: tuple[torch.Tensor, ...], gradients: tuple[torch.Tensor, ...]) -> None:
    """Run autograd with the active modes.

    `torch.autograd.backward` is a torch function itself, so a function mode would be disabled while it runs,
    and recomputation of checkpoints would use other operations than the forward pass.
    """
    engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - has no public name
    engine.run_backward(outputs, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)


def _dtype_name(tensor: torch.Tensor) -> str:
    """Return the dtype's name without the prefix `torch.`."""
    return str(tensor.dtype).removeprefix("torch.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence about what the real run will warn of, kernels that need no oneDNN, and nothing compiled."""
    log = logging.getLogger("torch._subclasses.fake_tensor")  # prints the traceback of what is raised anyway
    level = log.level
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        stack.callback(log.setLevel, level)
        # oneDNN runs a whole LSTM as one operation that no formula counts; otherwise it is matrix products.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        if hasattr(torch.compiler, "set_stance"):  # from torch 2.6
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
