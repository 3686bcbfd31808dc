"""A second device on a machine without one, so that a tensor which was left on the CPU is noticed here.

Torch's ``meta`` device has the name; its numbers are real, and the CPU computes them. As with CUDA, an operation on
tensors of both devices fails, but where torch allows it: copies, indices, and numbers as tensors.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, override

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

SECOND = torch.device("meta")

_OF_BOTH = ("aten::_to_copy", "aten::copy_", "aten::index")


class _Apart(torch.Tensor):
    """A tensor on the second device."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls: type["_Apart"], numbers: torch.Tensor) -> "_Apart":
        made = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=SECOND,
        )
        made.numbers = numbers
        return made

    @classmethod
    @override
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _compute(func, args, dict(kwargs or {}))


class _Operations(TorchDispatchMode):
    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _compute(func, args, dict(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Two functions that make no operation of their own."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.tensor and (device := given.pop("device", None)) is not None:
            return func(*args, **given).to(device)
        if func is torch.Tensor.tolist:
            return func(args[0].cpu())
        return func(*args, **given)


@contextlib.contextmanager
def second_device() -> Generator[torch.device]:
    """Yield the device, which is there during the block."""
    with _Functions(), _Operations():
        yield SECOND


def _compute(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name: str = func._schema.name  # pyright: ignore[reportFunctionMemberAccess]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    apart = [tensor for tensor in tensors if isinstance(tensor, _Apart)]
    near = [tensor for tensor in tensors if not isinstance(tensor, _Apart) and tensor.dim()]
    if apart and near and not name.startswith(_OF_BOTH):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    is_apart = bool(apart)
    if (device := kwargs.get("device")) is not None:
        is_apart, kwargs["device"] = torch.device(device) == SECOND, "cpu"
    result = func(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
    known = {id(tensor.numbers): tensor for tensor in apart}  # an operation in place returns what it was given

    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return known[id(leaf)] if id(leaf) in known else _Apart(leaf)

    return tree_map(wrap, result) if is_apart else result


def _numbers(leaf: Any) -> Any:
    return leaf.numbers if isinstance(leaf, _Apart) else leaf
