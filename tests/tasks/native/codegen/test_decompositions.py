"""Functions are replaced in the thread that traces, also where torch's own functions call them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from depthrate.tasks.native.codegen.decompositions import replaced_functions
from depthrate.tasks.native.codegen.errors import CannotGenerateError


def test_functions_of_other_threads_stay():
    x = torch.randn(2, 3, 5, 5)
    expected = F.max_pool2d(x, 2, ceil_mode=True)
    with ThreadPoolExecutor(1) as other, replaced_functions():
        with pytest.raises(CannotGenerateError, match="ceil_mode"):
            F.max_pool2d(x, 2, ceil_mode=True)
        assert torch.equal(other.submit(F.max_pool2d, x, 2, ceil_mode=True).result(), expected)
    assert torch.equal(F.max_pool2d(x, 2, ceil_mode=True), expected)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True), (2, 3, 8)),
        (nn.AdaptiveAvgPool2d(3), (2, 3, 8, 8)),
        (nn.Upsample(size=(3, 3), mode="area"), (2, 3, 8, 8)),
        (nn.LPPool2d(2, 3, ceil_mode=True), (2, 3, 8, 8)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_functions_that_torch_calls_are_replaced(module, shape):
    x = torch.randn(shape)
    inputs = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    with replaced_functions(), pytest.raises(CannotGenerateError):
        module(*inputs, **({"need_weights": False} if len(inputs) == 3 else {}))


def test_other_functions_of_torch_stay():
    x = torch.randn(2, 3, 8, 8)
    modules = (
        nn.AdaptiveMaxPool2d(2),
        nn.Upsample(scale_factor=2),
        nn.Softplus(),
        nn.MaxPool2d(3, 2, 1),
        nn.GroupNorm(3, 3),
    )
    expected = [module(x) for module in modules]
    with replaced_functions():
        for module, y in zip(modules, expected, strict=True):
            torch.testing.assert_close(module(x), y)
        assert x.max() == x.flatten().amax() and torch.equal(
            torch.max(x, 1, keepdim=True).values, x.amax(1, keepdim=True)
        )
