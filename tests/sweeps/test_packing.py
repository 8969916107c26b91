"""Packs hold trials of one shape, evenly, every trial once, and no trial that a worker has no memory for."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthrate.sweeps.errors import MemoryLimitError
from depthrate.sweeps.packing import check_memory, estimated_wall_s, make_pack, pack_trials, predicted_bytes, why_alone
from depthrate.sweeps.trial import Trial
from depthrate.tasks.parameters import Parameter, ParameterSchema
from depthrate.tasks.supervised.task import COLLAPSE
from tests.support.plain_task import PlainTask

SCHEMA = ParameterSchema(
    [
        Parameter(name="depth", kind="int"),
        Parameter(name="width", kind="int"),
        Parameter(name="lr", kind="float", fusible=True),
        Parameter(name="seed", kind="int", fusible=True),
    ]
)


def task_of(most=4, fused=True, estimate_s=lambda params: params["depth"] * params["width"]):
    def max_pack_size(params, device):
        return most * (10 if device == "cuda" else 1)

    does = {"max_pack_size": max_pack_size, "estimate_s": lambda params, engine: estimate_s(params)}
    return PlainTask(name="law", schema=SCHEMA, fused=fused, does=does)


@pytest.mark.parametrize(
    ("shapes", "workers", "words"),
    [
        ([(2, 8), (3, 8), (5, 8)], 1, "all packs have one trial: trials of a pack share depth"),
        ([(2, 8), (2, 8), (2, 8)], 3, "all packs have one trial, so that each of 3 workers has a pack"),
        ([(2, 8), (2, 8), (3, 8)], 1, "1 of 2 packs have one trial: trials of a pack share depth"),
        ([(2, 8), (2, 8), (2, 8)], 1, None),
        ([(2, 8)], 1, None),
    ],
)
def test_a_pack_of_one_trial_is_explained(shapes, workers, words):
    task = task_of()
    packs = pack_trials(trials_of(shapes), task, workers=workers)
    said = why_alone(packs, task, device="cpu", workers=workers)
    assert said is None if words is None else words in said
    assert why_alone(packs, task_of(most=1), device="cpu", workers=workers) is None, "the task itself says why"


def with_memory(task, memory_bytes):
    return dataclasses.replace(task, does={**task.does, "memory_bytes": memory_bytes})


def trial(number, depth=2, width=8):
    return Trial(f"{number:016x}", "law", 1, {"depth": depth, "width": width, "lr": 0.1 / (1 + number), "seed": number})


def trials_of(shapes):
    return [trial(number, depth, width) for number, (depth, width) in enumerate(shapes)]


shapes_of_trials = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=60)


@settings(max_examples=50)
@given(shapes_of_trials, st.integers(1, 9), st.booleans(), st.integers(1, 4))
def test_packs_are_complete_and_longest_first(shapes, most, fused, workers):
    packs = pack_trials(trials_of(shapes), task_of(most, fused), workers=workers)
    packed = sorted(trial_id for pack in packs for trial_id in pack.trial_ids)
    assert packed == [trial.trial_id for trial in trials_of(shapes)]
    assert len({pack.pack_id for pack in packs}) == len(packs)
    work = [sum(trial.params["depth"] * trial.params["width"] for trial in pack.trials) for pack in packs]
    assert work == sorted(work, reverse=True)


@pytest.mark.slow
@given(shapes_of_trials, st.integers(1, 9))
def test_packs_are_even_and_of_one_shape(shapes, most):
    sizes = {}
    for pack in pack_trials(trials_of(shapes), task_of(most)):
        (shape,) = {(trial.params["depth"], trial.params["width"]) for trial in pack.trials}
        sizes.setdefault(shape, []).append(len(pack.trials))
    for shape, found in sizes.items():
        assert max(found) <= most and max(found) - min(found) <= 1
        assert len(found) == -(-shapes.count(shape) // most)  # no more packs than needed


def test_a_gpu_takes_larger_packs():
    trials = trials_of([(2, 8)] * 40)
    assert [len(pack_trials(trials, task_of(4), device=device)) for device in ("cpu", "cuda")] == [10, 1]


@pytest.mark.parametrize(("workers", "largest"), [(1, 10), (2, 5), (5, 2), (100, 1)])
def test_sequential_trials_spread_over_workers(workers, largest):
    packs = pack_trials(trials_of([(2, 8), (3, 8)] * 20), task_of(16, fused=False), workers=workers)
    assert max(len(pack.trials) for pack in packs) == largest


@pytest.mark.parametrize(
    ("memory_bytes", "sizes"), [(None, [8]), (900, [8]), (899, [4, 4]), (350, [2] * 4), (10, [1] * 8)]
)
def test_packs_fit_into_memory(memory_bytes, sizes):
    task = with_memory(task_of(8), lambda params, num_trials, device: 100.0 + 50 * 2 * num_trials)
    packs = pack_trials(trials_of([(2, 8)] * 8), task, memory_bytes=memory_bytes)
    assert sorted(len(pack.trials) for pack in packs) == sizes


def test_a_pack_is_named_by_its_trials():
    first, second = trial(0), trial(1)
    assert make_pack([first, second]) == make_pack([first, second])
    assert make_pack([first, second]).pack_id != make_pack([first]).pack_id
    trials = trials_of([(1 + n % 3, 8) for n in range(20)])
    assert pack_trials(trials, task_of()) == pack_trials(trials, task_of())


def test_distinct_equal_shapes_stay_apart():
    """1, 1.0 and True are equal in Python; a list is a shape by what it holds, not by which object it is."""
    shapes = [1, 1.0, True, 1, [1], [1], [1.0], "1", None]
    packs = pack_trials([*map(trial, range(9), shapes)], task_of(9, estimate_s=lambda params: None))
    together = sorted([int(trial_id, 16) for trial_id in pack.trial_ids] for pack in packs)
    assert together == [[0, 3], [1], [2], [4, 5], [6], [7], [8]]


def test_estimates_per_pack_or_trial():
    asked = []
    for fused in (True, False):
        task = task_of(9, fused, estimate_s=lambda params: asked.append(params) or 1.5)
        assert estimated_wall_s(make_pack(trials_of([(2, 8)] * 7)), task) == 10.5
    assert len(asked) == 1 + 7
    assert estimated_wall_s(make_pack([]), task_of()) == 0  # what is left of a pack that another launch committed


def predicting(task, base=100.0):
    return with_memory(task, lambda params, num, device: base + 50 * params["depth"] * params["width"] * num)


def test_gpu_memory_cuts_packs():
    params = COLLAPSE.schema.fill({"arch": "rn1", "depth": 4, "width": 16, "samples_per_class": 10, "batch_size": 32})
    shaped = enumerate(trials_of([(2, 8)] * 1000))
    trials = [dataclasses.replace(trial, params={**params, "seed": seed}) for seed, trial in shaped]
    room = COLLAPSE.memory_bytes(params, 500, "cuda")
    unit = COLLAPSE.pack_unit(params, "cuda")
    little = COLLAPSE.memory_bytes(params, unit - 1, "cuda")
    for memory_bytes, sizes in ((1e12, {1000}), (room, {unit, 1000 - 3 * unit}), (little, {250}), (None, {125})):
        packs = pack_trials(trials, COLLAPSE, device="cuda", memory_bytes=memory_bytes)
        assert {len(pack.trials) for pack in packs} == sizes, memory_bytes


def test_packs_on_a_gpu_are_multiples_of_the_trials_that_it_trains_at_once():
    """A pack of one and a half times as many would leave half of the GPU idle for half of its time."""
    for optimizer, sizes in (("sgd", [528, 528, 344]), ("rmsprop", [36] * 35 + [35] * 4)):
        given = {"arch": "rn1", "depth": 8, "width": 16, "dataset": "digits", "optimizer": optimizer}
        params = COLLAPSE.schema.fill(given)
        trials = [dataclasses.replace(trial(n), params={**params, "seed": n}) for n in range(1400)]
        packs = pack_trials(trials, COLLAPSE, device="cuda", memory_bytes=1e12)
        assert sorted((len(pack.trials) for pack in packs), reverse=True) == sizes


def refusal(packs, task, memory_bytes):
    with pytest.raises(MemoryLimitError) as caught:
        check_memory(packs, task, "cpu", memory_bytes)
    return str(caught.value)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("memory_bytes", "fits"), [(None, True), (900, True), (720, True), (719, False), (10, False)])
def test_trials_beyond_memory_are_refused(memory_bytes, fits, fused):
    task = predicting(task_of(8, fused))
    packs = pack_trials(trials_of([(2, 8)] * 4), task, memory_bytes=memory_bytes)  # one trial: 900 bytes
    if fits:
        check_memory(packs, task, "cpu", memory_bytes)
    else:
        refusal(packs, task, memory_bytes)


def test_refusal_shows_need_and_fit():
    task = predicting(task_of(1))
    packs = pack_trials(trials_of([(2, 8), (40, 8), (30, 8), (1, 8)]), task, memory_bytes=2e3)
    message = refusal(packs, task, 2e3)
    assert trial(1).trial_id in message and "1.61e-05 GB" in message and "2e-06 GB" in message
    assert "on cpu (the largest of 2 such packs)" in message and "--workers" in message and "gpu_mem_gb" in message
    # 100 + 50 depth 8 <= 2000, 100 + 50 * 40 width <= 2000: no width will do
    assert "depth at most 4 (now 40)" in message and "width" not in message


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_largest_offered_value_fits(device):
    params = COLLAPSE.schema.fill({"arch": "t22", "dataset": "cifar10", "depth": 34, "width": 256, "batch_size": 4000})
    large = dataclasses.replace(trial(0), params=params)
    with pytest.raises(MemoryLimitError) as caught:
        check_memory([make_pack([large])], COLLAPSE, device, 8e9)
    offered = re.findall(r"(\w+) at most (\d+) \(now (\w+)\)", str(caught.value))
    assert {"depth", "width", "batch_size"} <= {name for name, *_ in offered}
    for name, most, value in offered:
        assert str(params[name]) == value
        fitting, too_large = (COLLAPSE.memory_bytes({**params, name: int(most) + more}, 1, device) for more in (0, 1))
        assert fitting <= 8e9 < too_large


def test_null_gets_a_numeric_offer():
    params = COLLAPSE.schema.fill({"arch": "t11", "dataset": "mnist", "depth": 34})
    with pytest.raises(MemoryLimitError, match=r"batch_size at most \d+ \(now null\)"):
        check_memory([make_pack([dataclasses.replace(trial(0), params=params)])], COLLAPSE, "cuda", 4e9)


def test_a_task_that_predicts_nothing_is_tried():
    packs = [make_pack([trial(0)])]
    check_memory(packs, task_of(), "cpu", 1.0)
    assert predicted_bytes(packs[0], task_of(), "cpu") is None


@pytest.mark.parametrize(("fused", "expected"), [(True, 100 + 50 * 16 * 3), (False, 100 + 50 * 16)])
def test_sequential_trials_share_a_peak(fused, expected):
    packs = [make_pack(trials_of([(2, 8)] * 3))]
    assert predicted_bytes(packs[0], predicting(task_of(4, fused)), "cpu") == expected
    assert predicted_bytes(make_pack([]), predicting(task_of(4, fused)), "cpu") is None


def chained_trials(depths, seeds, **changes):
    given = {"arch": "rn1", "samples_per_class": 20, "polish": 10, "continuation": [2, 3, 5], **changes}
    shapes = [(depth, seed) for depth in depths for seed in range(seeds)]
    params = [COLLAPSE.schema.fill({**given, "depth": depth, "seed": seed}) for depth, seed in shapes]
    return [Trial(f"{number:016x}", "collapse", 2, item) for number, item in enumerate(params)]


def test_chains_share_a_pack():
    """20 chains of full batches of 200 rows fit into a pack."""
    packs = pack_trials(chained_trials([5, 2, 3], 6), COLLAPSE)
    assert [[trial.params["depth"] for trial in pack.trials] for pack in packs] == [[2, 3, 5] * 6]
    packs = pack_trials(chained_trials([5, 2, 3], 6), COLLAPSE, workers=2)
    seeds = [[trial.params["seed"] for trial in pack.trials] for pack in packs]
    assert sorted(seeds) == [[0, 0, 0, 1, 1, 1, 2, 2, 2], [3, 3, 3, 4, 4, 4, 5, 5, 5]]
    unchained = pack_trials(chained_trials([2, 3], 2, polish=0, continuation=[]), COLLAPSE)
    assert sorted([trial.params["depth"] for trial in pack.trials] for pack in unchained) == [[2, 2], [3, 3]]


def test_chain_takes_its_deepest_trial():
    (pack,), (deepest,) = (pack_trials(chained_trials(depths, 2), COLLAPSE) for depths in ([2, 3, 5], [5]))
    for one, other in ((estimated_wall_s, ()), (predicted_bytes, ("cpu",))):
        assert one(pack, COLLAPSE, *other) == one(deepest, COLLAPSE, *other)
    assert estimated_wall_s(pack, COLLAPSE) > estimated_wall_s(
        pack_trials(chained_trials([3], 2), COLLAPSE)[0], COLLAPSE
    )
