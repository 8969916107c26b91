"""A recorded step reads and writes the tensors it was recorded with, and is not used if its replay differs."""

import pytest
import torch

from depthrate.tasks.training.engines.replayed_step import ReplayedStep, ReplayError


def of_state(state):
    """Build a step that adds the rate to its state and returns the previous state."""

    def run(rate, noise):
        loss = state.clone()
        state.add_(rate * noise)
        return loss

    return run


def again(run):
    result = torch.empty(3)
    return result, lambda: result.copy_(run())


def test_each_replay_takes_a_step_from_the_inputs_it_is_given():
    state, rate, noise = torch.zeros(3), torch.tensor(2.0), torch.tensor([1.0, 2.0, 3.0])
    step = ReplayedStep(of_state(state), [state], [rate, noise], again)
    assert step.first_T.tolist() == [0, 0, 0] and state.tolist() == [2, 4, 6]  # one step, though it was taken both ways
    kept = step(torch.tensor(10.0), noise)
    assert kept.tolist() == [2, 4, 6] and state.tolist() == [12, 24, 36]
    step(torch.tensor(1.0), torch.ones(3))
    assert kept.tolist() == [2, 4, 6] and state.tolist() == [13, 25, 37]


def frozen(run):
    """Record a step whose replay ignores changed inputs and always repeats the first step."""
    result = torch.empty(3)
    return result, lambda: result.fill_(7.0)


def failing(run):
    raise RuntimeError("operation not permitted when stream is capturing")


def broken(run):
    def replay():
        raise RuntimeError("an illegal memory access")

    return torch.empty(3), replay


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (frozen, "differs from the plain one"),
        (failing, "cannot be recorded: operation not permitted"),
        (broken, "cannot be recorded: an illegal"),
    ],
)
def test_a_failed_recording_restores_the_state(record, message):
    state = torch.ones(3)
    with pytest.raises(ReplayError, match=message):
        ReplayedStep(of_state(state), [state], [torch.tensor(2.0), torch.ones(3)], record)
    assert state.tolist() == [1, 1, 1]
