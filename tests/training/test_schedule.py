import pytest
import torch

from headcount.training.config import TrainingConfig
from headcount.training.loop import FLOOR, learning_rate


def test_one_cycle_agrees_with_pytorch():
    config = TrainingConfig(steps=100, learning_rate=2e-3, warmup=0.3, schedule="one-cycle")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=100, pct_start=0.3, div_factor=25, final_div_factor=1 / (25 * FLOOR)
    )
    for step in range(100):
        # PyTorch peaks one step earlier and ends on its floor: within a step's worth of each other.
        assert learning_rate(config, step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1.5e-4)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.3, 1.0])
def test_rises_to_the_peak_then_falls(schedule, warmup):
    config = TrainingConfig(steps=50, learning_rate=1.0, warmup=warmup, schedule=schedule)
    rates = [learning_rate(config, step) for step in range(50)]
    peak = max(range(50), key=rates.__getitem__)
    assert all(0 < rate <= 1.0 for rate in rates)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert max(rates) == pytest.approx(1.0, abs=0.01)


def test_constant():
    config = TrainingConfig(steps=5, learning_rate=0.1, schedule="constant")
    assert {learning_rate(config, step) for step in range(5)} == {0.1}
