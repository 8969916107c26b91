"""Parameters of T trials as rows of one tensor [T, P]: initialisation, and views by name.

The tensor is flat, so that an update takes a handful of operations for any number of parameter tensors.
"""

import math
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from depthrate.tasks.networks.network import Network, ParameterSpec, StateSpec, Tensors


def draw_parameters(theta_P: Tensor, specs: Sequence[ParameterSpec], init: str, generator: torch.Generator) -> None:
    """Draw one trial's parameters [P], flat and in order, on the CPU in float64, so that devices and dtypes agree.

    uniform: U(-1, 1)/sqrt(fan_in) for weights and biases (as torch.nn.Linear). normal: N(0, 1/fan_in). he: N(0, 2/fan_in).
    The last two set biases to zero. A parameter with an initial value keeps it in all three.
    """
    for spec, piece in zip(specs, torch.split(theta_P, [spec.size for spec in specs]), strict=True):
        drawn = torch.empty(spec.size, dtype=torch.float64)
        if spec.initial is not None:
            drawn.fill_(spec.initial)
        elif init == "uniform":
            bound = 1 / math.sqrt(spec.fan_in)
            drawn.uniform_(-bound, bound, generator=generator)
        elif len(spec.shape) == 1:
            drawn.zero_()
        else:
            drawn.normal_(0, math.sqrt((2 if init == "he" else 1) / spec.fan_in), generator=generator)
        piece.copy_(drawn)


def split_parameters(theta_TP: Tensor, specs: Sequence[ParameterSpec]) -> dict[str, Tensor]:
    """Return views of the flat parameters by name, each [T, *shape]."""
    pieces = torch.split(theta_TP, [spec.size for spec in specs], dim=1)
    return {spec.name: piece.view(-1, *spec.shape) for spec, piece in zip(specs, pieces, strict=True)}


def join_rows(pieces: Iterable[Tensor], out: Tensor | None = None) -> Tensor:
    """Join tensors of trials, each [T, *shape], to flat rows [T, P], the inverse of `split_parameters`."""
    rows = [piece.reshape(len(piece), -1) for piece in pieces]  # flatten(1) refuses [T]
    return torch.cat(rows, dim=1, out=out)


def leaves_of(parameters: Tensors, fixed: Collection[str] = ()) -> dict[str, Tensor]:
    """Detach the parameters as leaves of a new graph. Fixed parameters get no gradient."""
    return {
        name: tensor.detach() if name in fixed else tensor.detach().requires_grad_()
        for name, tensor in parameters.items()
    }


def gradients_of(
    term: Tensor, leaves: Tensors, *, some_unused: bool = False, differentiable: bool = False
) -> tuple[Tensor, ...]:
    """Return a term's gradient with respect to each leaf: 0 for fixed leaves and for leaves that it does not depend on."""
    trained = [leaf for leaf in leaves.values() if leaf.requires_grad]
    gradients = iter(
        torch.autograd.grad(
            term, trained, create_graph=differentiable, allow_unused=some_unused, materialize_grads=some_unused
        )
    )
    return tuple(next(gradients) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in leaves.values())


def products_of(term: Tensor, leaves: Tensors, directions: Tensors) -> tuple[Tensor, ...]:
    """Return the product of a term's Hessian with directions, for each leaf: the gradient of the slope along them."""
    pieces = gradients_of(term, leaves, some_unused=True, differentiable=True)
    slopes = [(piece * directions[name]).sum() for name, piece in zip(leaves, pieces, strict=True)]
    return gradients_of(torch.stack(slopes).sum(), leaves, some_unused=True)


def as_numbers(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor with numbers of a type, or complex ones of its precision. Integers and shorter numbers stay."""
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.itemsize >= torch.float32.itemsize else tensor


def initial_state(
    specs: Sequence[StateSpec], num_trials: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Return the initial state of `num_trials` trials by name, each [T, *shape]."""
    return {
        spec.name: torch.full((num_trials, *spec.shape), spec.initial, dtype=dtype, device=device) for spec in specs
    }


def start_trials(
    network: Network,
    init: str,
    streams: Sequence[torch.Generator],
    dtype: torch.dtype,
    fixed_streams: Sequence[torch.Generator] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the initial parameters [T, P] and state of trials, each drawn from a separate stream, on the CPU.

    fixed_streams: Streams for the untrained parameters. None: the same streams.
    """
    starts = [network.start(stream.initial_seed(), dtype) for stream in streams]
    if module_starts := [start for start in starts if start is not None]:
        states = [state for _, state in module_starts]
        state = {name: torch.stack([trial_state[name] for trial_state in states]) for name in states[0]}
        return torch.stack([theta_P for theta_P, _ in module_starts]), state
    specs = network.parameter_specs()
    theta_TP = torch.empty(len(streams), sum(spec.size for spec in specs), dtype=dtype)
    for theta_P, stream in zip(theta_TP, streams, strict=True):
        draw_parameters(theta_P, specs, init, stream)
    if fixed_streams is not None:
        fixed_P = torch.cat([torch.full((spec.size,), not spec.is_trained) for spec in specs])
        other_P = torch.empty_like(theta_TP[0])
        for theta_P, stream in zip(theta_TP, fixed_streams, strict=True):
            draw_parameters(other_P, specs, init, stream)
            torch.where(fixed_P, other_P, theta_P, out=theta_P)
    return theta_TP, initial_state(network.state_specs(), len(streams), dtype, torch.device("cpu"))
