"""A stand-in for a GPU on machines that have none: tensors on the device "cuda" whose numbers are computed on the CPU.

An operation on tensors of both devices fails as on a GPU. Operations that a GPU would run count as launches, and those that
wait for it as synchronisations. Results are real, so that a whole pack trains, measures, prunes and resumes.

A build of torch without CUDA has no such device. For it, the tensors are on the device "meta", whose operations never reach a
kernel, and every mention of "cuda" is translated.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from depthrate.tasks.training.engines import eager

aten = torch.ops.aten
CPU, META = torch.device("cpu"), torch.device("meta")
WAITING = {
    aten._local_scalar_dense.default,
    aten._unique2.default,
    aten.bincount.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
}
"""Operations whose result, or its shape, the host reads."""
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations that also accept index tensors on the CPU, which they copy. Masks are turned into indices, which waits."""
EMPTY = {
    aten._unsafe_view.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
}


class OnGpu(torch.Tensor):
    """A tensor that reports a GPU as its device and holds its numbers on the CPU."""

    numbers: torch.Tensor
    device = torch.device("cuda", 0)  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]
    is_meta = False  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> OnGpu:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=META,
        )

    def __init__(self, numbers: torch.Tensor):
        self.numbers = numbers

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} ran outside of the stand-in for a GPU")

    def data_ptr(self) -> int:
        """Return the address of the numbers, for kernels that stand for a GPU's."""
        return self.numbers.data_ptr()

    def tolist(self) -> Any:
        """Copy the numbers to the CPU at once, and return them as lists."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the numbers as an array, copied only on request.

        Raises:
            TypeError: A copy was not requested.
        """
        if not force:
            raise TypeError("a tensor on a GPU has no array. Copy it to the CPU first.")
        return self.detach().cpu().numpy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the numbers, as a file that is loaded on a CPU holds them."""
        return self.numbers.detach().__reduce_ex__(protocol)


class _Devices(TorchFunctionMode):
    """Replaces "cuda" in calls by the device that stands for it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = {name: _translated(value) for name, value in (kwargs or {}).items()}
        if function is torch.tensor and keywords.get("device") == META:  # it would not reach the other mode
            return function(*args, **{**keywords, "device": CPU}).to(META)
        if function is torch.Tensor.new_tensor and isinstance(args[0], OnGpu):
            return torch.tensor(*args[1:], dtype=keywords.get("dtype", args[0].dtype)).to(META)
        if function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], OnGpu):
            args = (args[0], _tensor_index(args[1]), *args[2:])
        return function(*map(_translated, args), **keywords)


def _tensor_index(index: Any) -> Any:
    """Replace lists by tensors on the CPU, as torch does before it copies them."""
    if isinstance(index, tuple):
        return tuple(map(_tensor_index, index))
    return torch.tensor(index, dtype=torch.int64) if isinstance(index, list) else index


def _translated(value: Any) -> Any:
    is_cuda = isinstance(value, torch.device) and value.type == "cuda"
    return META if is_cuda or (isinstance(value, str) and value == "cuda") else value


class StandInGpu(TorchDispatchMode):
    """Runs operations on the stand-in's tensors, and counts them by name."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the compiler takes seconds to import

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.synchronisations: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = list(_tensors_in([*args, *kwargs.values()]))
        reads_gpu = any(isinstance(tensor, OnGpu) for tensor in tensors)
        device = kwargs.get("device")
        gives_gpu = reads_gpu if device is None else torch.device(device).type in ("cuda", "meta")
        if not reads_gpu and not gives_gpu:
            return function(*args, **kwargs)
        copies = function in (aten._to_copy.default, aten.copy_.default)
        if reads_gpu and not copies:
            _check_devices(function, args, tensors)
        if function is aten.copy_.default:
            gives_gpu = isinstance(args[0], OnGpu)
        is_copy = copies and ((reads_gpu and any(not isinstance(t, OnGpu) for t in tensors)) or reads_gpu != gives_gpu)
        self._count(function, args, waits=is_copy and not kwargs.get("non_blocking"))
        if device is not None:
            kwargs["device"] = CPU
        inputs = [_numbers(value) for value in args]
        result = function(*inputs, **{name: _numbers(value) for name, value in kwargs.items()})
        if not gives_gpu:
            return args[0] if function is aten.copy_.default else result
        if function is aten._to_copy.default and result is inputs[0]:
            result = result.clone()
        wrapped = _wrapped(result)
        return return_and_correct_aliasing(function, args, kwargs, wrapped) if reads_gpu else wrapped

    def _count(self, function: Any, args: Any, *, waits: bool) -> None:
        if function in INDEXED:
            indices = [index for index in args[1] if index is not None]
            waits = any(index.dtype in (torch.bool, torch.uint8) or not isinstance(index, OnGpu) for index in indices)
        else:
            waits |= function in WAITING
        if waits:
            self.synchronisations[str(function)] += 1
        if not _is_view(function) and function not in EMPTY:
            self.launches[str(function)] += 1

    def reset(self) -> None:
        """Count from zero."""
        self.launches.clear()
        self.synchronisations.clear()


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


def _numbers(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_numbers(element) for element in value]
    return value.numbers if isinstance(value, OnGpu) else value


def _wrapped(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [_wrapped(element) for element in result]
    return OnGpu(result) if isinstance(result, torch.Tensor) else result


def _check_devices(function: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    indices = [index for index in args[1] if index is not None] if function in INDEXED else []
    for tensor in tensors:
        if not isinstance(tensor, OnGpu) and tensor.ndim and not any(tensor is index for index in indices):
            raise RuntimeError(f"{function} has tensors on both devices. The one on the CPU is {list(tensor.shape)}.")


@functools.cache
def _is_view(function: Any) -> bool:
    returns = function._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


class _SideStream:
    """Stands for a stream: what was recorded is run."""

    def after_now(self, function: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with _Devices(), StandInGpu():  # modes apply to one thread
                function()

        return run

    def run(self, function: Callable[[], torch.Tensor]) -> torch.Tensor:
        return function()

    def record(self, function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return function


@contextmanager
def stand_in_gpu() -> Iterator[StandInGpu]:
    """Let torch have a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(eager, "SideStream", _SideStream)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
        patch.setattr(torch.cuda, "max_memory_reserved", lambda: 10**9)
        patch.setattr(torch.cuda, "empty_cache", lambda: None)
        with _Devices(), StandInGpu() as gpu:
            yield gpu
