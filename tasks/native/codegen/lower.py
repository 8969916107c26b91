"""Lowering of a traced graph to values: products, loops over rows, row sums, copies and table look-ups."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from depthrate.tasks.native.codegen.decompositions import Window, patches, unpatched
from depthrate.tasks.native.codegen.errors import CannotGenerateError
from depthrate.tasks.native.codegen.operations import BOOLEANS, POINTWISE
from depthrate.tasks.native.codegen.trace import StepGraph
from depthrate.tasks.native.codegen.values import (
    LOOP_KINDS,
    Kind,
    Layout,
    Value,
    View,
    has_unit_columns,
    inverse,
    is_plain,
    is_row_number,
    memory_order,
)

aten = torch.ops.aten

MAX_CONSTANT = 2**17
"""Maximum numbers of a constant tensor, which becomes part of a table, or of a source on a GPU."""
_VIEWS = (
    *(aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int, aten.t.default),
    *(aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default, aten.expand.default),
    *(aten.slice.Tensor, aten.select.int, aten.alias.default, aten.detach.default),
)
_COPIES = (aten.clone.default, aten.lift_fresh_copy.default, aten.contiguous.default, aten._to_copy.default)
_LIKE = {aten.full_like.default, aten.ones_like.default, aten.zeros_like.default, aten.new_zeros.default}
"""Operations that read only the shape of their argument."""
_NEW = {*_LIKE, aten.new_full.default, aten.new_empty.default, aten.empty_like.default}


@dataclass(eq=False)
class Constant:
    """A tensor that does not depend on a step's inputs."""

    tensor: Tensor

    @cached_property
    def numbers(self) -> Constant:
        """Itself with floating-point numbers, or with its truth values."""
        is_exact = self.tensor.is_floating_point() or self.tensor.dtype == torch.bool
        return self if is_exact else Constant(self.tensor.double())

    @cached_property
    def uniform(self) -> float | None:
        """Its number if all its numbers are equal."""
        first = self.tensor.flatten()[0].item() if self.tensor.numel() else 0.0
        return float(first) if bool((self.tensor == first).all()) or self.tensor.numel() == 0 else None


Item = View | Constant
Part = tuple[View, Tensor, bool]
"""What a copy moves: a source, the place in the target as a view of it, and whether it is added to what is there."""


@dataclass
class Program:
    """A lowered step."""

    layout: Layout
    values: list[Value]
    """In order of computation."""
    kernels: list[Value]
    """Values with a kernel of their own, in order. Their numbers are the stages of loops."""
    parameters: dict[str, Value]
    """Trained ones."""
    state: dict[str, Value]
    x: Value
    target: Value
    weight: Value
    loss: Value
    output: View
    gradients: dict[str, list[View]]
    """Terms of each parameter's gradient in the parameter's shape."""


def lower(step: StepGraph, layout: Layout, fixed: Mapping[str, Tensor]) -> Program:
    """Lower a traced step.

    Args:
        step: The graph.
        layout: Distances of rows in memory.
        fixed: Integer tensors of the state, whose numbers become part of the step.

    Raises:
        CannotGenerateError: An operation has no kernel.
    """
    return _Lowering(step, layout, fixed).run()


class _Lowering:
    def __init__(self, step: StepGraph, layout: Layout, fixed: Mapping[str, Tensor]):
        self.step, self.layout = step, layout
        self.values: list[Value] = []
        self.kernels: list[Value] = []
        self.items: dict[Node, Item | list[Item]] = {}
        self._constants: dict[int, tuple[Constant, View]] = {}
        address = 0
        self.parameters: dict[str, Value] = {}
        self.state: dict[str, Value] = {}
        for name, node in step.parameters.items():
            address += self._hold(name, node, Kind.PARAMETER, address, self.parameters)
        address = 0
        for name, node in step.state.items():
            if name in fixed:
                self.items[node] = Constant(fixed[name])
            else:
                address += self._hold(name, node, Kind.STATE, address, self.state)
        self.x, self.target, self.weight = (self._input(n) for n in (step.x, step.target_RK, step.weight_R1))

    def _hold(self, name: str, node: Node, kind: Kind, address: int, held: dict[str, Value]) -> int:
        shape = _shape(node)
        value = Value(kind, shape or (1,), address=address)
        held[name], natural = value, value.natural(self.layout)
        self.items[node] = View(value, natural.view(shape))
        return prod(shape)

    def _input(self, node: Node) -> Value:
        value = Value(Kind.INPUT, _shape(node), is_flat=not node.meta["tensor_meta"].dtype.is_floating_point)
        self.values.append(value)
        self.items[node] = View(value, value.natural(self.layout))
        return value

    def run(self) -> Program:
        outputs = [self.step.loss_R1, self.step.output_RK]
        terms = {name: _terms(node) for name, node in self.step.gradients.items()}
        wanted = _needed([*outputs, *(term for group in terms.values() for term in group)])
        for node in self.step.graph.nodes:
            if node in wanted and node not in self.items:
                self.items[node] = self._lower(node)
        stored = [self._stored(self._view(self.items[node])) for node in outputs]
        loss, output = (view if is_plain(view, self.layout) else self._copied(view) for view in stored)
        gradients = {
            name: self._gradient(self.parameters[name], [self.items[term] for term in group])
            for name, group in terms.items()
        }
        trained, inputs = {name: self.parameters[name] for name in gradients}, (self.x, self.target, self.weight)
        numbers = (*inputs, loss.value, output, gradients)
        return Program(self.layout, self.values, self.kernels, trained, self.state, *numbers)

    def _gradient(self, parameter: Value, items: Sequence[Any]) -> list[View]:
        terms = []
        for item in items:
            if isinstance(item, Constant):
                if item.uniform != 0:
                    raise CannotGenerateError("a gradient that does not depend on the samples cannot be generated")
                continue
            seen = item.seen.view(parameter.shape) if item.seen.ndim == 0 else item.seen
            terms.append(self._stored(View(item.value, seen)))
        return terms

    # ---- Nodes ----

    def _lower(self, node: Node) -> Any:
        target = node.target
        if node.op == "get_attr":
            return Constant(node.meta["constant"].detach())
        if target is operator.getitem:
            return self._argument(_arguments(node)[0])[_arguments(node)[1]]
        arguments = [self._argument(argument) for argument in _arguments(node)]
        if target in _NEW or not _has_views(arguments):
            return self._constant(node, arguments)
        if target in _LOWERED:
            return _LOWERED[target](self, node, arguments)
        if target in POINTWISE:
            if _options(node).get("alpha", 1) != 1:
                factors = [arguments[1], _options(node)["alpha"]]
                arguments = [arguments[0], self._point(aten.mul.Tensor, factors, _shape(_arguments(node)[1]))]
            return self._point(target, arguments, _shape(node))
        raise CannotGenerateError(f"the operation {_name(target)} cannot be generated")

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return (
                self.items[argument] if argument in self.items else Constant(torch.empty(()).expand(_shape(argument)))
            )
        if isinstance(argument, (list, tuple)):
            return [self._argument(part) for part in argument]
        return argument

    def _constant(self, node: Node, arguments: Sequence[Any]) -> Any:
        """Compute a node that depends on no input, or on the shape of one."""

        def plain(argument: Any) -> Any:
            if isinstance(argument, Constant):
                return argument.tensor
            if isinstance(argument, View):
                return torch.empty(()).expand(argument.shape)
            return [plain(part) for part in argument] if isinstance(argument, list) else argument

        assert callable(node.target)
        kwargs = {name: value for name, value in _options(node).items() if not isinstance(value, Node)}
        result = node.target(*[plain(argument) for argument in arguments], **kwargs)
        if isinstance(result, (list, tuple)):
            return [Constant(part) for part in result]
        return Constant(torch.as_tensor(result))

    def _view(self, item: Any) -> View:
        """Return an item as a view, a constant as one of its own memory."""
        if isinstance(item, View):
            return item
        assert isinstance(item, Constant)
        key = id(item.tensor)
        if key not in self._constants:
            tensor = item.tensor
            if tensor.numel() > MAX_CONSTANT:
                raise CannotGenerateError(
                    f"a constant tensor of {tensor.numel():,} numbers cannot be generated, more than {MAX_CONSTANT:,}"
                )
            shape, is_boolean = tuple(tensor.shape) or (1,), tensor.dtype == torch.bool
            value = Value(Kind.CONSTANT, shape, data=tensor, is_boolean=is_boolean)
            self._constants[key] = item, View(value, value.natural(self.layout).view(tensor.shape))
        return self._constants[key][1]

    def _seen(self, node: Node, arguments: Sequence[Any]) -> View:
        view, rest = arguments[0], arguments[1:]
        target: Any = node.target
        try:
            return View(view.value, target(view.seen, *rest, **_options(node)))
        except RuntimeError:  # rows are padded, or in another order: move the numbers into one run
            flat = self._copied(view, is_flat=True)
            return View(flat.value, target(flat.seen, *rest, **_options(node)))

    def _converted(self, node: Node, arguments: Sequence[Any]) -> View:
        view, dtype = arguments[0], _options(node).get("dtype")
        if view.value.is_boolean and dtype is not None and dtype is not torch.bool:
            return self._point(_TO_NUMBER, [view], view.shape)
        if dtype is not None and not torch.empty(0, dtype=dtype).is_floating_point():
            raise CannotGenerateError("a conversion to integers cannot be generated")
        return view

    # ---- Kernels ----

    def _add_kernel(self, value: Value) -> None:
        value.stage = len(self.kernels)
        self.kernels.append(value)
        self.values.append(value)

    def _stored(self, view: View) -> View:
        if view.value.kind in LOOP_KINDS:
            view.value.is_stored = True
        return view

    def _readable(self, view: View) -> View:
        """Store a value that a kernel reads."""
        if view.value.is_boolean:
            view = self._point(_TO_NUMBER, [view], view.shape)
        return self._stored(view)

    def _copied(self, view: View, *, is_flat: bool = False) -> View:
        """Return a copy of a view with rows of its own."""
        shape = view.shape or (1,)
        value = Value(Kind.COPY, shape, is_flat=is_flat)
        place = value.natural(self.layout).view(view.shape)
        self._add_copy(value, [(self._readable(view), place, False)])
        return View(value, place)

    def _add_copy(self, value: Value, parts: list[Part]) -> View:
        value.operation, value.operands = parts, [view for view, *_ in parts]
        return self._whole(value)

    def _whole(self, value: Value) -> View:
        """Add a kernel, and return the view of its whole result."""
        self._add_kernel(value)
        return View(value, value.natural(self.layout))

    def _cat(self, node: Node, arguments: Sequence[Any]) -> View:
        axis = (arguments[1] if len(arguments) > 1 else _options(node).get("dim", 0)) % len(_shape(node))
        value = Value(Kind.COPY, _shape(node))
        natural, parts, begin = value.natural(self.layout), [], 0
        for item, given in zip(arguments[0], _arguments(node)[0], strict=True):
            size = _shape(given)[axis] if len(_shape(given)) == natural.ndim else 0
            if size and not (isinstance(item, Constant) and item.uniform == 0):  # what no part covers is 0
                parts.append((self._readable(self._view(item)), natural.narrow(axis, begin, size), False))
            begin += size
        return self._add_copy(value, parts)

    def _placed(self, node: Node, arguments: Sequence[Any]) -> View:
        """Put numbers into a slice of zeros."""
        value, view = Value(Kind.COPY, _shape(node)), self._readable(arguments[0])
        place = aten.slice.Tensor(value.natural(self.layout), *arguments[2:])
        return self._add_copy(value, [(view, place, False)])

    def _windows(self, node: Node, arguments: Sequence[Any]) -> View:
        view, window = self._readable(self._view(arguments[0])), Window(*arguments[-4:])
        value = Value(Kind.COPY, _shape(node))
        target, is_split = value.natural(self.layout), node.target is patches
        maps, windows = (view.seen, target) if is_split else (target, view.seen)
        try:
            split = _split_windows(windows, window)
        except RuntimeError:
            view = self._copied(view)
            split = _split_windows(view.seen, window)
        parts, height, width = [], maps.shape[1], maps.shape[2]
        for tap, (i, j) in enumerate(window.taps()):
            (to_h, of_h), (to_w, of_w) = window.cut(0, i, height), window.cut(1, j, width)
            inside, there = maps[:, of_h, of_w], split[:, to_h, to_w, tap]
            if inside.numel():
                source, place = (inside, there) if is_split else (there, inside)
                parts.append((View(view.value, source), place, not is_split))
        return self._add_copy(value, parts)

    def _product(self, node: Node, arguments: Sequence[Any]) -> View:
        start = None
        views = [self._view(argument) for argument in arguments]
        if node.target is aten.addmm.default:
            start, *views = views
            if any(_options(node).get(name, 1) != 1 for name in ("alpha", "beta")):
                raise CannotGenerateError("addmm with alpha or beta cannot be generated")
        left, right = views
        if node.target in (aten.mv.default, aten.dot.default):
            right = View(right.value, right.seen.unsqueeze(-1))
            left = left if node.target is aten.mv.default else View(left.value, left.seen.unsqueeze(0))
        shape = (*left.shape[:-1], right.shape[-1])
        if len(shape) == 3 and shape[0] == 1:
            left, right = View(left.value, left.seen.squeeze(0)), View(right.value, right.seen.squeeze(0))
        left, right = self._readable(left), self._readable(right)
        if left.value.kind in (Kind.PARAMETER, Kind.STATE, Kind.CONSTANT):  # kernels read a few numbers behind its rows
            left = self._copied(left)
        columns, rows = right.seen.stride(-1), right.seen.stride(-2)
        if right.shape[-1] > 1 and columns != 1 and (rows != 1 or right.shape[-2] == 1):
            right = self._copied(right)
        is_bias = start is not None and start.value.kind is Kind.PARAMETER and _is_row_of(start, shape)
        value = Value(
            Kind.PRODUCT, (*left.shape[:-1], right.shape[-1]), [left, right], start=start if is_bias else None
        )
        self._add_kernel(value)
        view = View(value, value.natural(self.layout).view(_shape(node)))
        return view if start is None or is_bias else self._point(aten.add.Tensor, [view, start], view.shape)

    def _look_up(self, node: Node, arguments: Sequence[Any]) -> View:
        table, indices = arguments[0], arguments[1]
        if node.target is aten.index.Tensor:
            if len(indices) != 1 or not isinstance(indices[0], Constant):
                raise CannotGenerateError("indexing other than by constant rows cannot be generated")
            indices = indices[0]
        table = self._readable(self._view(table))
        if table.value.kind is not Kind.PARAMETER or not is_plain(table, self.layout) or table.seen.ndim != 2:
            table = self._copied(table)
        if table.seen.ndim != 2:
            raise CannotGenerateError("indexing of tensors that are not matrices cannot be generated")
        return self._whole(Value(Kind.LOOK_UP, _shape(node), [table], operation=self._index(indices)))

    def _scatter(self, node: Node, arguments: Sequence[Any]) -> View:
        if node.target is aten.embedding_dense_backward.default:
            given, indices, size = arguments[0], arguments[1], arguments[2]
            if len(arguments) > 3 and arguments[3] >= 0:
                raise CannotGenerateError("an embedding with padding_idx cannot be generated")
            if len(arguments) > 4 and arguments[4]:
                raise CannotGenerateError("an embedding with scale_grad_by_freq cannot be generated")
        else:
            start, indices, given = arguments[0], arguments[1], arguments[2]
            adds = len(arguments) > 3 and arguments[3]
            if not isinstance(start, Constant) or start.uniform != 0 or len(indices) != 1 or not adds:
                raise CannotGenerateError("writing to an index cannot be generated")
            indices, size = indices[0], start.tensor.shape[0]
        view = self._readable(self._view(given))
        if not has_unit_columns(view.seen) or (view.shape[-1] > 1 and view.seen.stride(-1) == 0):
            view = self._copied(view)
        return self._whole(Value(Kind.SCATTER, (size, view.shape[-1]), [view], operation=self._index(indices)))

    def _index(self, item: Any) -> View:
        if isinstance(item, Constant):
            return self._view(item)
        if not isinstance(item, View) or item.value is not self.x or not self.x.is_flat:
            raise CannotGenerateError("an index computed from the samples cannot be generated")
        return item

    # ---- Loops over rows ----

    def _point(self, operation: Any, arguments: Sequence[Any], shape: tuple[int, ...]) -> View:
        """Compute an elementwise operation in the memory order of its operands."""
        operands: list[View | float] = []
        for argument in arguments:
            if isinstance(argument, Constant):
                uniform = argument.uniform
                operands.append(self._view(argument.numbers) if uniform is None else uniform)
            elif isinstance(argument, View):
                if argument.value is self.x and self.x.is_flat:
                    raise CannotGenerateError("arithmetic on integer samples cannot be generated")
                operands.append(argument)
            elif argument is None or isinstance(argument, str):
                raise CannotGenerateError(f"the operation {_name(operation)} cannot be generated with these arguments")
            else:
                operands.append(float(argument))
        whole = [o for o in operands if isinstance(o, View) and o.seen.numel() == prod(shape)]
        order = list(range(len(shape)))
        if whole and not any(has_unit_columns(view.seen.expand(shape)) for view in whole):
            order = memory_order(whole[0].seen.expand(shape))
        return self._looped(Kind.POINT, operands, shape, order, operation=operation, is_boolean=operation in BOOLEANS)

    def _looped(
        self,
        kind: Kind,
        operands: Sequence[View | float],
        shape: tuple[int, ...],
        order: Sequence[int],
        result: tuple[int, ...] | None = None,
        **fields: Any,
    ) -> View:
        """Add a value that a loop over rows computes from operands expanded to a shape, whose axes are put into an order.

        `result`: Shape of the value, by default the ordered shape.
        """
        ordered = tuple(shape[axis] for axis in order) or (1,)
        value = Value(kind, result or ordered, **fields)
        value.operands = [
            operand if not isinstance(operand, View) else self._loop_operand(value, operand, shape, order)
            for operand in operands
        ]
        value.stage = max([value.stage, *(o.value.stage for o in value.operands if isinstance(o, View))])
        self.values.append(value)
        natural = value.natural(self.layout)
        if result is not None:
            return View(value, natural)
        return View(value, natural.permute(inverse(order)) if shape else natural.view(()))

    def _loop_operand(self, value: Value, view: View, shape: tuple[int, ...], order: Sequence[int]) -> View:
        seen = view.seen.expand(shape).permute(list(order)) if shape else view.seen.view(1)
        if not has_unit_columns(seen):
            view = self._copied(view)
            seen = view.seen.expand(shape).permute(list(order))
            if not has_unit_columns(seen):  # copy in the loop's order
                ordered = View(view.value, view.seen.expand(shape).permute(list(order)))
                view = self._copied(ordered)
                seen = view.seen
        operand = View(view.value, seen)
        if operand.value.kind in LOOP_KINDS and not (
            is_plain(operand, self.layout) or is_row_number(operand, self.layout)
        ):
            self._stored(operand)  # read from memory in another order, so behind its loop
            value.stage = max(value.stage, operand.value.stage + 1)
            if value.stage >= len(self.kernels):
                self._add_kernel(Value(Kind.FENCE, (1,)))
        return operand

    def _reduced(self, node: Node, arguments: Sequence[Any]) -> View:
        view = arguments[0]
        if view.value.is_boolean:
            view = self._point(_TO_NUMBER, [view], view.shape)
        given = arguments[1] if len(arguments) > 1 else _options(node).get("dim")
        keeps = arguments[2] if len(arguments) > 2 else _options(node).get("keepdim", False)
        rank, shape = view.seen.ndim, view.shape
        listed = [given] if isinstance(given, int) else given
        axes = sorted({axis % rank for axis in listed}) if listed else list(range(rank))
        is_maximum = node.target is aten.amax.default
        order = list(range(rank))
        if not has_unit_columns(view.seen):
            order = memory_order(view.seen)
        if is_maximum and axes != [order[-1]]:
            order = [axis for axis in range(rank) if axis not in axes] + axes
            flat = self._copied(View(view.value, view.seen.permute(order)), is_flat=True)
            kept = tuple(shape[axis] for axis in range(rank) if axis not in axes)
            rows = View(flat.value, flat.seen.view(*kept, -1))
            axes_of_rows, reduced = range(rows.seen.ndim), tuple(1 if i in axes else n for i, n in enumerate(shape))
            total = self._looped(Kind.REDUCE, [rows], rows.shape, axes_of_rows, (*kept, 1), operation="maximum")
            return View(total.value, total.seen.view(reduced if keeps else kept))
        seen_axes = sorted(order.index(axis) for axis in axes)
        result, ordered = view, tuple(shape[axis] for axis in order)
        if seen_axes[-1] == rank - 1:
            operation = "maximum" if is_maximum else "sum"
            result = self._looped(Kind.REDUCE, [view], shape, order, (*ordered[:-1], 1), operation=operation)
            if len(seen_axes) > 1:
                result = self._row_sum(result, result.shape, range(rank), seen_axes[:-1])
        else:
            result = self._row_sum(view, shape, order, seen_axes)
        seen = result.seen.permute(inverse(order))  # all axes are there, reduced ones with one entry
        return View(result.value, seen if keeps or not seen.ndim else seen.squeeze(axes))

    def _row_sum(self, view: View, shape: tuple[int, ...], order: Sequence[int], axes: Sequence[int]) -> View:
        """Add up rows over some of the axes that enumerate them, once a view's axes are in an order.

        Return the sums with axes of one entry in their places.
        """
        value = Value(Kind.ROW_SUM, ())
        operand = self._loop_operand(value, view, shape, order)
        value.shape = tuple(1 if axis in axes else size for axis, size in enumerate(operand.shape))
        value.operands = [operand]
        value.loop_stage = max(value.stage, operand.value.stage)
        return self._whole(value)


_TO_NUMBER = "to number"
_LOWERED: Mapping[Any, Callable[[_Lowering, Node, Sequence[Any]], View]] = {
    **dict.fromkeys(_VIEWS, _Lowering._seen),
    **dict.fromkeys(_COPIES, _Lowering._converted),
    aten.cat.default: _Lowering._cat,
    aten.slice_backward.default: _Lowering._placed,
    **dict.fromkeys(
        (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.mv.default, aten.dot.default), _Lowering._product
    ),
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default, aten.amax.default), _Lowering._reduced),
    **dict.fromkeys((patches, unpatched), _Lowering._windows),
    **dict.fromkeys((aten.embedding.default, aten.index.Tensor), _Lowering._look_up),
    **dict.fromkeys(
        (aten.embedding_dense_backward.default, aten.index_put.default, aten._unsafe_index_put.default),
        _Lowering._scatter,
    ),
}
"""Operation -> the method that lowers it."""


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args


def _options(node: Node) -> dict[str, Any]:
    return dict(node.kwargs)


def _name(target: Any) -> str:
    return str(getattr(target, "_name", target)).removeprefix("aten::")


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)


def _has_views(arguments: Sequence[Any]) -> bool:
    return any(_has_views(part) if isinstance(part, list) else isinstance(part, View) for part in arguments)


def _split_windows(windows: Tensor, window: Window) -> Tensor:
    """Return windows [B, H, W, positions C] with an axis for the positions."""
    taps = prod(window.kernel)
    return windows.view(*windows.shape[:3], taps, windows.shape[3] // taps)


def _is_row_of(start: View, shape: tuple[int, ...]) -> bool:
    """Return whether a view is one row of adjacent numbers, which a product can start with."""
    seen = start.seen
    return seen.shape[-1] == shape[-1] and seen.numel() == shape[-1] and seen.stride(-1) == 1


def _needed(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes on which others depend. What reads only a shape does not depend on its argument."""
    found: set[Node] = set()
    waiting = [node for node in nodes if isinstance(node, Node)]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if node.target not in _NEW:
            waiting += node.all_input_nodes
    return found


def _terms(node: Node) -> list[Node]:
    """Return the terms of a sum that nothing else reads."""
    is_sum = node.target is aten.add.Tensor and len(node.users) == 1 and not _options(node)
    left, right = _arguments(node)[:2] if is_sum else (None, None)
    if isinstance(left, Node) and isinstance(right, Node) and _shape(left) == _shape(right) == _shape(node):
        return [*_terms(left), *_terms(right)]
    return [node]
