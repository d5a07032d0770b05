"""What Shoal uses of the private parts of torch and of its neighbours, and what it does without.

Every piece is worth at least a twentieth of a user's time, by the measurement named beside it
(`benchmarks/private_parts.py` takes them), or reads what no public call tells. All were tried with
torch 2.13 only. Where a version lacks a piece, or the environment says SHOAL_PRIVATE=0, the
plain way is used: slower, and equal but for rounding.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from operator import eq, is_
from threading import RLock
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.func import vmap
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

SWITCH = "SHOAL_PRIVATE"
ALLOWED = os.environ.get(SWITCH, "1") != "0"

Tensors = tuple[Tensor, ...]
Numbers = tuple[float, float, float, float, float]

# -- vmap ------------------------------------------------------------------------------------------

_functorch: Any
try:
    from torch._C import _functorch
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]
except ImportError:
    _functorch = None

VMAP = ALLOWED and _functorch is not None


def vmapped(
    function: Callable[[list[Tensor]], Tensors], stacked: list[Tensor], randomness: str
) -> Tensors:
    """What `torch.func.vmap` makes of the function, given tensors (k, ...): tensors (k, ...).

    vmap checks, flattens and wraps its arguments by general code in Python. Entering its level
    directly takes 7 to 20 % off a fused step of 16 to 64 MLPs (`benchmarks/packing.py`'s nets).
    """
    if not VMAP:
        result: Tensors = vmap(function, randomness=randomness)(stacked)
        return result
    lazy_load_decompositions()
    lanes = stacked[0].size(0)
    level = _functorch._vmap_increment_nesting(lanes, randomness)
    try:
        batched = [_functorch._add_batch_dim(tensor, 0, level) for tensor in stacked]
        outputs = function(batched)
        return tuple(_functorch._remove_batch_dim(value, level, lanes, 0) for value in outputs)
    finally:
        _functorch._vmap_decrement_nesting()


# -- losses of class indices -----------------------------------------------------------------------

# what F.cross_entropy and F.nll_loss call, however a recipe imported those
_class_losses: dict[str, Any]
try:
    from torch._C import _nn

    _class_losses = {name: getattr(_nn, name) for name in ("cross_entropy_loss", "nll_loss_nd")}
except (ImportError, AttributeError):
    _class_losses = {}


@contextmanager
def class_losses(replacement: Callable[..., Tensor | None]) -> Iterator[None]:
    """Within it losses of class indices are what `replacement` gives for vmap's tensors.

    It is given the name of torch's function and its arguments; where it gives None, and for other
    tensors, torch's function is called. That is decomposed in Python within vmap: it takes 0.13 ms
    more of a fused step of 2 ms, and its first call loads 486 modules, for 0.4 s (by hand, once).
    """
    if not VMAP:
        yield
        return

    def replaced(name: str, input: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if _functorch.is_batchedtensor(input):
            loss = replacement(name, input, *arguments, **options)
            if loss is not None:
                return loss
        result: Tensor = _class_losses[name](input, *arguments, **options)
        return result

    for name in _class_losses:
        setattr(_nn, name, partial(replaced, name))
    try:
        yield
    finally:
        for name, function in _class_losses.items():
            setattr(_nn, name, function)


def is_of_each_lane(tensor: Tensor) -> bool:
    """Whether vmap has a tensor for each lane here, rather than one for all."""
    return _functorch is not None and bool(_functorch.is_batchedtensor(tensor))


# -- Adam ------------------------------------------------------------------------------------------

ADAM = ALLOWED and hasattr(torch, "_fused_adam_") and hasattr(torch, "_fused_adamw_")


class AdamRow:
    """Adam's or AdamW's step of one row of memory, by torch's one-pass kernel for the CPU.

    A kernel a row is faster than ten kernels over all rows: they take 5 to 60 % more of a fused
    step of 16 to 64 MLPs (`benchmarks/packing.py`'s nets). `ADAM` says whether there is one.
    """

    def __init__(self, row: Sequence[Tensor], largest: Tensor | None, age: Tensor) -> None:
        """`row`: weights, gradient, first and second moment; `largest`: of AMSGrad.

        `age`: the number of the step about to be made, float32, read at each step.
        """
        weights, gradient, first, second = row
        self._tensors = ([weights], [gradient], [first], [second])
        self._largest = [largest] if largest is not None else []
        self._ages = [age]
        self._numbers: Numbers | None = None
        self._options: dict[str, Any] = {}

    def step(self, numbers: Numbers, *, decoupled: bool, maximize: bool) -> None:
        """Make the step; `numbers`: rate, beta 1, beta 2, epsilon, weight decay."""
        if numbers != self._numbers:
            self._numbers = numbers
            names = ("lr", "beta1", "beta2", "eps", "weight_decay")
            self._options = dict(zip(names, numbers, strict=True))
            self._options["amsgrad"] = bool(self._largest)
            self._options["maximize"] = maximize
        kernel: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
        kernel(*self._tensors, self._largest, self._ages, **self._options)


# -- what torch does around an optimizer's step ----------------------------------------------------

_around_step: Any
try:
    from torch._C._autograd import _profiler_enabled
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    # the code that torch puts around every class's step
    _around_step = Optimizer.profile_hook_step(len).__code__
except (ImportError, AttributeError):
    _around_step = None

STEP = ALLOWED and _around_step is not None
_zero_grad = Optimizer.zero_grad


def step(optimizer: Optimizer) -> None:
    """The optimizer's step, without what torch does around it for hooks and profilers.

    All of it is done where a hook or a profiler listens, or where the step was replaced. With what
    `forget_gradients` leaves out it takes 15 % of a training step of an MLP of 16 to 64 units
    (`benchmarks/private_parts.py`).
    """
    around: Any = type(optimizer).step
    usual = STEP and getattr(around, "__code__", None) is _around_step
    if usual and "step" not in vars(optimizer) and not _heard(optimizer):
        around.__wrapped__(optimizer)
    else:
        optimizer.step()


def forget_gradients(optimizer: Optimizer) -> None:
    """Set gradients to None as `optimizer.zero_grad()` does, without the rest; see `step`."""
    replaced = type(optimizer).zero_grad is not _zero_grad
    if not STEP or replaced or "zero_grad" in vars(optimizer) or _profiler_enabled():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _heard(optimizer: Any) -> bool:
    """Whether a hook or a profiler listens to the optimizer's steps."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return True
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return True
    return bool(_profiler_enabled())


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether hooks are registered for this optimizer's steps; no public call tells it."""
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return any(getattr(optimizer, name, None) for name in hooks)


# attributes of optimizers by which torch notes that they stepped, to warn of wrong use
OF_STEPS = (
    "_opt_called",
    "_step_count",
    "_warned_capturable_if_run_uncaptured",
    "_need_device_dtype_check_for_fused",
)


def call_stepped(optimizer: Any) -> None:
    """Tell torch that the optimizer steps, though its `step` is not called.

    Otherwise a scheduler warns that it was stepped first. No public call tells torch.
    """
    optimizer._opt_called = True


# -- models ----------------------------------------------------------------------------------------


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """The module's own buffers; whoever changes the dict changes the module.

    `named_buffers` leaves out those that are None.
    """
    return module._buffers


def writes(tensor: Tensor) -> int:
    """How often the tensor was written to. Autograd counts that, and no public call tells it."""
    return tensor._version


def is_only_user(storage: torch.UntypedStorage) -> bool:
    """Whether one tensor alone lies in this memory; False where torch does not tell."""
    count: Any = getattr(torch._C, "_storage_Use_Count", None)
    if not ALLOWED or count is None:
        return False
    return bool(count(storage._cdata) == 2)  # the tensor's and that of `storage` itself


def memory_of(tensor: Tensor) -> tuple[int, Callable[[], bool]] | None:
    """Where the tensor's memory begins, and what says whether it is freed.

    None: it has no memory of one piece, as sparse tensors, those on no device, and empty ones.
    """
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    try:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
    except (NotImplementedError, RuntimeError):  # of a tensor that wraps others
        return None
    if not address:
        return None
    reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    expired: Callable[[], bool] = reference.expired
    return address, expired


def is_compiled(module: nn.Module) -> bool:
    """Whether the module's code is not what its class says."""
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
        return True
    return getattr(module, "_compiled_call_impl", None) is not None


def has_hooks(of: nn.Module | Tensor) -> bool:
    """Whether training calls hooks of this module, or of this parameter."""
    if isinstance(of, Tensor):
        names = ["_backward_hooks", "_post_accumulate_grad_hooks"]
    else:
        names = [name for name in vars(of) if name.endswith("_hooks")]
    return any(getattr(of, name, None) for name in names if "state_dict" not in name)


class ModuleParts(NamedTuple):
    """A module's own parameters, buffers and modules, by name."""

    parameters: dict[str, Any]
    buffers: dict[str, Any]
    modules: dict[str, Any]

    def same(self, other: ModuleParts) -> bool:
        """Whether both have the very same objects by the same names."""
        return all(
            len(mine) == len(theirs)
            and all(map(eq, mine, theirs))
            and all(map(is_, mine.values(), theirs.values()))
            for mine, theirs in zip(self, other, strict=True)
        )


def parts_of_module(module: nn.Module) -> ModuleParts:
    """The module's own parts, in copies; public calls leave out those that are None."""
    return ModuleParts(dict(module._parameters), dict(module._buffers), dict(module._modules))


def unsaved_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The module's own buffers that are not part of its state dict."""
    names = module._non_persistent_buffers_set
    if not names:
        return {}
    buffers = module._buffers.items()
    return {name: buffer for name, buffer in buffers if name in names and buffer is not None}


def hook_boxes(of: nn.Module | Optimizer) -> list[Mapping[int, Any]]:
    """Where the hooks of a module's, or an optimizer's, calls are registered."""
    return [box for name, box in vars(of).items() if name.endswith("_hooks")]


def hooks_in(boxes: Sequence[Mapping[int, Any]]) -> list[int]:
    """The ids of the hooks that users registered in these boxes."""
    return [hook for box in boxes if box for hook in _users(box)]


def own_hooks_of(tensor: Tensor) -> list[int]:
    """The ids of the hooks that users registered for this tensor's gradient."""
    ids: list[int] = []
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name, None)
        if hooks:
            ids += _users(hooks)
    return ids


def _users(hooks: Mapping[int, Any]) -> list[int]:
    """The ids of those hooks that are not Shoal's own."""
    return [
        id(hook)
        for hook in hooks.values()
        if not str(getattr(hook, "__module__", "")).startswith("shoal.")
    ]


# -- groups of processes ---------------------------------------------------------------------------


def gloo_group(store: Any, rank: int, width: int, host: str, patience: float) -> Any:
    """A group of processes that talk by gloo over the interface of `host`.

    `patience`: seconds that a call waits for the others. The public call takes no interface.
    """
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=patience)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(store, rank, width, options)


def nccl_group(store: Any, rank: int, width: int, patience: float) -> Any:
    """A group of processes that sum gradients of GPUs by NCCL; as `gloo_group`."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=patience)
    return dist.ProcessGroupNCCL(store, rank, width, options)


# -- memory that a step frees ----------------------------------------------------------------------

KEPT_BYTES = 128 * 2**20  # freed bytes that a process keeps
# of mallopt; either one also stops glibc from adapting both
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = 32 * 2**20  # that mallopt takes for the second one


def keep_freed() -> None:
    """Have this process keep what memory a step frees for the next one, within bounds.

    Left to itself glibc gives it back and asks for it again at every step of a fused pack, and
    the system zeroes each page anew: a tenth to a sixth of the time of 16 small conv nets
    (`benchmarks/packing.py`). Nothing happens elsewhere, or if the user has set an option of
    glibc's allocator.
    """
    is_tuned = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if not ALLOWED or sys.platform != "linux" or is_tuned:
        return
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        if library.mallopt(_MMAP_THRESHOLD, _LARGEST):
            library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


# -- NumPy's random generator ----------------------------------------------------------------------

WORDS = 624  # of an MT19937, which lie in memory with its position behind them


def generator_memory(bits: Any) -> bytes:
    """The state of NumPy's MT19937: equal bytes, equal state.

    Lanes that take turns ask at every turn. Asking NumPy makes a turn of one step of an MLP of 16
    to 64 units 14 % longer (`benchmarks/private_parts.py`).
    """
    if not ALLOWED:
        state = bits.state["state"]
        return bytes(state["key"].tobytes() + state["pos"].to_bytes(4, sys.byteorder))
    return ctypes.string_at(bits.ctypes.state_address, 4 * (WORDS + 1))


# -- torch's compiler ------------------------------------------------------------------------------

COMPILER = "torch._dynamo"
_lock = RLock()


def delay_compiler() -> None:
    """Delay importing torch's compiler until something needs it.

    Optimizers import it at their first use, only to tell it to keep out. That takes 1.4 s of CPU
    and 70 MB in every process that trains, a slot's too (`benchmarks/private_parts.py`). Nothing of
    it is used unless a recipe compiles its model.
    """
    with _lock:
        if ALLOWED and COMPILER not in sys.modules:
            waiting: Any = WaitingCompiler()
            sys.modules[COMPILER] = torch._dynamo = waiting
            sys.meta_path.insert(0, _Finder())


class WaitingCompiler:
    """Stands in for the compiler; whatever it does not have itself loads the compiler.

    It has the two calls that optimizers make, which do nothing outside of compiled functions.
    """

    __spec__ = None
    __path__: tuple[str, ...] = ()  # a package

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Do nothing, for nothing is compiled."""

    def disable(
        self, fn: Callable[..., Any] | None = None, recursive: bool = True, **_: Any
    ) -> Callable[..., Any]:
        """The function; as soon as the compiler is there, kept out of what it compiles.

        Without a function: a decorator that does so.
        """
        if fn is None:
            return partial(self.disable, recursive=recursive)

        def plainly(*args: Any, **kwargs: Any) -> Any:
            if isinstance(sys.modules.get(COMPILER), WaitingCompiler):
                return fn(*args, **kwargs)
            compiler: Any = sys.modules[COMPILER]
            disabled = compiler.disable(fn, recursive, wrapping=False)
            # where torch/_compile.py keeps what this function returned
            setattr(fn, "__dynamo_disable", disabled)
            return disabled(*args, **kwargs)

        return plainly

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by what looks through all modules
            raise AttributeError(name)
        return getattr(_loaded(), name)


def _loaded() -> ModuleType:
    """The compiler, imported now if it waits."""
    with _lock:
        if isinstance(sys.modules.get(COMPILER), WaitingCompiler):
            del sys.modules[COMPILER]
            finders = [each for each in sys.meta_path if not isinstance(each, _Finder)]
            sys.meta_path[:] = finders
        return import_module(COMPILER)


class _Finder(MetaPathFinder):
    """An import of one of the compiler's own modules loads the compiler first."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if not name.startswith(f"{COMPILER}."):
            return None
        _loaded()
        return ModuleSpec(name, _ReadyLoader(import_module(name)))


class _ReadyLoader(Loader):
    """Gives a module that was loaded already, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


# -- threads of Python ---------------------------------------------------------------------------


def frame_of(thread: int) -> FrameType | None:
    """Where the thread is at work; None: it has ended."""
    return sys._current_frames().get(thread)


def raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise the error in the thread, once it is in Python's code; None: what waits is dropped."""
    exception = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
