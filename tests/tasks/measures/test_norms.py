"""The smallest deviation of a row equals `std` over all rows to the bit, for rows of all kinds."""

import pytest
import torch

from depthrate.tasks.measures.alignment import smallest_deviations

ROWS = {
    "normal": lambda h_TND: h_TND,
    "far from zero": lambda h_TND: h_TND + 1e6,
    "of very different sizes": lambda h_TND: h_TND * torch.logspace(-30, 10, h_TND.shape[1]).view(1, -1, 1),
    "near the smallest numbers": lambda h_TND: h_TND * 1e-38,
    "all alike": lambda h_TND: h_TND[:, :1].expand_as(h_TND) + 0.0,
    "alike but for rounding": lambda h_TND: h_TND[:, :1] + 1e-7 * h_TND,
    "constant": lambda h_TND: torch.ones_like(h_TND),
    "too large to square": lambda h_TND: h_TND * 1e30,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("num_samples", [1, 2, 90])
@pytest.mark.parametrize("rows", ROWS)
def test_deviation_is_minimal_per_trial(rows, num_samples, dtype):
    h_TND = torch.randn(3, num_samples, 17, generator=torch.Generator().manual_seed(0), dtype=dtype)
    h_TND = ROWS[rows](h_TND).to(dtype)
    expected = [h_1ND.double().std(dim=-1, unbiased=False).min() for h_1ND in h_TND.split(1)]
    assert torch.equal(next(smallest_deviations([h_TND])), torch.stack(expected))


def test_a_row_with_nan_is_not_ignored():
    h_TND = torch.randn(2, 9, 5)
    h_TND[0, 3, 2] = torch.nan
    assert next(smallest_deviations([h_TND])).isnan().tolist() == [True, False]


def test_it_covers_every_norm_and_every_position():
    h_TNSD = torch.tensor([1.0, -1.0]).repeat(2, 4, 6, 1)  # each row's deviation is 1, in any order of summation
    small_TNSD = h_TNSD.clone()
    small_TNSD[1, 2, 3] *= 2.0**-10
    deviations = [smallest_T.tolist() for smallest_T in smallest_deviations([h_TNSD, small_TNSD])]
    assert deviations == [[1.0, 1.0], [1.0, 2.0**-10]]
