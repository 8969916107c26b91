"""The graph of one tile's losses, outputs and gradients, traced from a function of parameters and samples.

A tile is a fixed number of samples of one trial.

Shapes: B samples of a tile, R rows with one output each (samples x positions), K outputs, P parameters.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functionalize, grad
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from depthrate.errors import InputError
from depthrate.tasks.native.codegen.decompositions import decompositions, replaced_functions
from depthrate.tasks.native.codegen.errors import CannotGenerateError

Forward = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Tensor], Tensor]
"""Output [B, ..., K] of one trial in a training step, from parameters, other tensors and samples [B, ...]."""
DRAWS = 3
"""Number of random inputs on which samples are checked to be independent."""


@dataclass(frozen=True)
class Tile:
    """A function and the shapes that its trace is valid for."""

    forward: Forward
    parameters: Mapping[str, Tensor]
    """Parameters of one trial in the order of their storage, as examples."""
    state: Mapping[str, Tensor]
    """Tensors of one trial that steps read and do not change."""
    x: Tensor
    """Samples [B, ...] as an example."""
    loss: str
    """Kind of loss: ce or mse."""
    untrained: Collection[str] = ()
    """Parameters that keep their values."""


@dataclass(frozen=True)
class StepGraph:
    """A traced graph, whose placeholders and outputs are named in the order of the fields."""

    graph: Graph
    parameters: dict[str, Node]
    state: dict[str, Node]
    x: Node
    target_RK: Node
    weight_R1: Node
    loss_R1: Node
    output_RK: Node
    gradients: dict[str, Node]
    """Of trained parameters."""


def trace(tile: Tile) -> StepGraph:
    """Trace the gradients of a tile's loss.

    The target is a row of numbers per output, one-hot for a class, and its weight is 1 / (outputs of a batch), or 0 for a row
    that repeats another one to fill the tile. Losses and gradients of tiles then add up to those of the batch.

    Raises:
        CannotGenerateError: The function cannot be traced, or its samples depend on each other.
    """

    def loss(
        trained: Mapping[str, Tensor],
        untrained: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        x: Tensor,
        target_RK: Tensor,
        weight_R1: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output = tile.forward({**trained, **untrained}, state, x)
        output_RK = output.reshape(-1, output.shape[-1])
        if tile.loss == "ce":
            each_R1 = -(target_RK * F.log_softmax(output_RK, 1)).sum(1, keepdim=True) * weight_R1
        else:
            each_R1 = (output_RK - target_RK).square().sum(1, keepdim=True) * (weight_R1 * 0.5)
        return each_R1.sum(), (each_R1, output_RK)

    parameters = {name: tensor.detach() for name, tensor in tile.parameters.items()}
    state = {name: tensor.detach() for name, tensor in tile.state.items()}
    try:
        with replaced_functions():
            with torch.no_grad():
                output = tile.forward(parameters, state, tile.x)
            rows, classes = output.numel() // output.shape[-1], output.shape[-1]
            target_RK = torch.rand(rows, classes, dtype=output.dtype)
            weight_R1 = torch.rand(rows, 1, dtype=output.dtype)
            untrained = {name: parameters[name] for name in tile.untrained}
            trained = {name: tensor for name, tensor in parameters.items() if name not in untrained}
            inputs = (trained, untrained, state, tile.x, target_RK, weight_R1)
            function = functionalize(grad(loss, has_aux=True), remove="mutations")
            traced = make_fx(function, decomposition_table=decompositions(), _error_on_data_dependent_ops=False)
            module = traced(*inputs)
    except InputError:
        raise
    except Exception as error:
        raise CannotGenerateError(f"its training step cannot be traced ({type(error).__name__}: {error})") from error
    _check_control_flow(module.graph, next(iter(parameters.values())).dtype)
    module.graph.eliminate_dead_code()
    _merge_equal(module.graph)
    module.recompile()
    check_independence(module, inputs)
    return _named(module, tile, list(trained))


def _merge_equal(graph: Graph) -> None:
    """Let equal operations on equal arguments be computed once."""
    first: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function":
            key = node.target, repr((node.args, node.kwargs))  # nodes have unique names
            same = first.setdefault(key, node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)


def _check_control_flow(graph: Graph, dtype: torch.dtype) -> None:
    """Check that numbers and shapes which Python code reads depend on no input, and that what does has no shorter type.

    Code may test constants, such as positions.

    Raises:
        CannotGenerateError: One depends on an input, or code computes in a shorter type, which kernels do not.
    """
    varying: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or any(source in varying for source in node.all_input_nodes):
            if _shows_numbers(node):
                raise CannotGenerateError("its code depends on numbers that it computes (data-dependent control flow)")
            varying.add(node)
            given = node.meta["tensor_meta"].dtype if "tensor_meta" in node.meta else dtype
            if given.is_floating_point and given.itemsize < dtype.itemsize:
                raise CannotGenerateError(f"its code computes in {str(given).removeprefix('torch.')}")


def _shows_numbers(node: Node) -> bool:
    """Return whether an operation returns a Python number, or a tensor whose shape depends on numbers."""
    tags = getattr(node.target, "tags", ())
    if node.target is torch.ops.aten.index.Tensor:
        indices = [index for index in tree_leaves(node.args[1]) if index is not None]
        return any(index.meta["tensor_meta"].dtype == torch.bool for index in indices)
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def _named(module: GraphModule, tile: Tile, trained: Sequence[str]) -> StepGraph:
    nodes = list(module.graph.nodes)
    holders = iter([node for node in nodes if node.op == "placeholder"])
    of_parameters, of_state = (
        {name: next(holders) for name in names} for names in ([*trained, *tile.untrained], tile.state)
    )
    x, target_RK, weight_R1 = holders
    *gradients, loss_R1, output_RK = tree_leaves(nodes[-1].args[0])
    for node in nodes:
        if node.op == "get_attr":  # a tensor that the function closes over
            node.meta["constant"] = getattr(module, node.target)
    parameters = {name: of_parameters[name] for name in tile.parameters}
    gradients_by_name = dict(zip(trained, gradients, strict=True))
    values = (x, target_RK, weight_R1, loss_R1, output_RK)
    return StepGraph(module.graph, parameters, of_state, *values, gradients_by_name)


def check_independence(module: GraphModule, inputs: tuple[Any, ...]) -> None:
    """Check that a sample's losses do not change with the tile's other samples.

    Raises:
        CannotGenerateError: They do.
    """
    *named, x, target_RK, weight_R1 = inputs
    tensors = tree_leaves(named)
    generator = torch.Generator().manual_seed(0)

    def sample_losses(x: Tensor) -> Tensor:
        with torch.no_grad():
            *_, each_R1, _ = tree_leaves(Interpreter(module).run(*tensors, x, target_RK, weight_R1))
        return torch.as_tensor(each_R1).view(len(x), -1)

    def drawn() -> Tensor:
        if not x.is_floating_point():
            return x[torch.randperm(len(x), generator=generator)]
        return torch.randn(x.shape, dtype=x.dtype, generator=generator)

    for _ in range(DRAWS):
        one, other = drawn(), drawn()
        chosen = torch.rand(len(x), generator=generator) < 0.5
        mixed = one.clone()
        mixed[chosen] = other[chosen]
        kept = sample_losses(one)[~chosen], sample_losses(mixed)[~chosen]
        if not torch.allclose(*kept, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise CannotGenerateError("a sample's output depends on the other samples of its batch")
