"""Packs hold trials of one shape, evenly, and every trial once."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.packing import estimated_wall_s, make_pack, pack_trials
from sweeps.trial import Trial
from tasks.schema import Parameter, ParameterSchema
from tasks.task import Task

SCHEMA = ParameterSchema(
    [
        Parameter(name="depth", kind="int"),
        Parameter(name="width", kind="int"),
        Parameter(name="lr", kind="float", fusible=True),
        Parameter(name="seed", kind="int", fusible=True),
    ]
)


def task_of(most=4, fused=True, estimate_s=lambda params: params["depth"] * params["width"]):
    return Task(
        name="law",
        version=1,
        schema=SCHEMA,
        run=lambda trials, context: iter(()),
        fused=fused,
        max_pack_size=lambda params, device: most * (10 if device == "cuda" else 1),
        estimate_s=estimate_s,
    )


def trial(number, depth=2, width=8):
    return Trial(f"{number:016x}", "law", 1, {"depth": depth, "width": width, "lr": 0.1 / (1 + number), "seed": number})


def trials_of(shapes):
    return [trial(number, depth, width) for number, (depth, width) in enumerate(shapes)]


shapes_of_trials = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=60)


@given(shapes_of_trials, st.integers(1, 9), st.booleans(), st.integers(1, 4))
def test_no_trial_is_lost_or_doubled(shapes, most, fused, workers):
    packs = pack_trials(trials_of(shapes), task_of(most, fused), workers=workers)
    packed = sorted(trial_id for pack in packs for trial_id in pack.trial_ids)
    assert packed == [trial.trial_id for trial in trials_of(shapes)]
    assert len({pack.pack_id for pack in packs}) == len(packs)


@given(shapes_of_trials, st.integers(1, 9))
def test_a_fused_pack_has_one_shape_and_sizes_are_even(shapes, most):
    sizes = {}
    for pack in pack_trials(trials_of(shapes), task_of(most)):
        (shape,) = {(trial.params["depth"], trial.params["width"]) for trial in pack.trials}
        sizes.setdefault(shape, []).append(len(pack.trials))
    for shape, found in sizes.items():
        assert max(found) <= most and max(found) - min(found) <= 1
        assert len(found) == -(-shapes.count(shape) // most)  # no more packs than needed


@given(shapes_of_trials, st.integers(1, 9), st.booleans())
def test_packs_come_longest_first(shapes, most, fused):
    packs = pack_trials(trials_of(shapes), task_of(most, fused))
    work = [sum(trial.params["depth"] * trial.params["width"] for trial in pack.trials) for pack in packs]
    assert work == sorted(work, reverse=True)


def test_a_gpu_takes_larger_packs():
    trials = trials_of([(2, 8)] * 40)
    assert [len(pack_trials(trials, task_of(4), device=device)) for device in ("cpu", "cuda")] == [10, 1]


@pytest.mark.parametrize(("workers", "largest"), [(1, 10), (2, 5), (5, 2), (100, 1)])
def test_trials_that_run_in_turn_are_shared_out_among_workers(workers, largest):
    packs = pack_trials(trials_of([(2, 8), (3, 8)] * 20), task_of(16, fused=False), workers=workers)
    assert max(len(pack.trials) for pack in packs) == largest


@pytest.mark.parametrize(
    ("memory_bytes", "sizes"), [(None, [8]), (900, [8]), (899, [4, 4]), (350, [2] * 4), (10, [1] * 8)]
)
def test_packs_are_cut_so_that_they_fit_into_memory(memory_bytes, sizes):
    task = dataclasses.replace(task_of(8), memory_bytes=lambda params, num_trials, device: 100.0 + 50 * 2 * num_trials)
    packs = pack_trials(trials_of([(2, 8)] * 8), task, memory_bytes=memory_bytes)
    assert sorted(len(pack.trials) for pack in packs) == sizes


def test_a_pack_is_named_by_its_trials():
    first, second = trial(0), trial(1)
    assert make_pack([first, second]) == make_pack([first, second])
    assert make_pack([first, second]).pack_id != make_pack([first]).pack_id


def test_shapes_that_are_equal_but_not_the_same_are_kept_apart():
    """1, 1.0 and True are equal in Python; a list is a shape by what it holds, not by which object it is."""
    shapes = [1, 1.0, True, 1, [1], [1], [1.0], "1", None]
    packs = pack_trials([trial(number, depth) for number, depth in enumerate(shapes)], task_of(9, estimate_s=None))
    together = sorted([int(trial_id, 16) for trial_id in pack.trial_ids] for pack in packs)
    assert together == [[0, 3], [1], [2], [4, 5], [6], [7], [8]]


def test_no_trials_give_no_packs():
    assert pack_trials([], task_of()) == [] == pack_trials([], task_of(fused=False))


def test_an_estimate_is_asked_once_for_a_fused_pack_and_once_a_trial_of_others():
    asked = []
    for fused in (True, False):
        task = task_of(9, fused, estimate_s=lambda params: asked.append(params) or 1.5)
        assert estimated_wall_s(make_pack(trials_of([(2, 8)] * 7)), task) == 10.5
    assert len(asked) == 1 + 7
    assert estimated_wall_s(make_pack([]), task_of()) == 0  # what is left of a pack that another launch committed


def test_the_same_trials_give_the_same_packs():
    trials = trials_of([(1 + n % 3, 8) for n in range(20)])
    assert pack_trials(trials, task_of()) == pack_trials(trials, task_of())
