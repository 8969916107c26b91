"""Shipped sweeps are found by the names they had, and say what they are called now."""

import pytest

from depthrate.sweeps.load import RENAMED, SweepRenamedWarning, load_sweep


@pytest.mark.parametrize("old", RENAMED)
def test_a_sweep_is_found_by_its_old_name_with_a_warning(old):
    new, why = RENAMED[old]
    with pytest.warns(SweepRenamedWarning, match=f"the sweep {old} is called {new} now: {why}"):
        assert load_sweep(old) == load_sweep(new)
