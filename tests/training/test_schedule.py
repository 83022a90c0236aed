import pytest
import torch

from headcount.training.config import TrainingConfig
from headcount.training.loop import learning_rate

STEPS, RISING = 100, 30


def test_one_cycle_agrees_with_pytorch():
    """Step by step: PyTorch's cycle of one step more begins on its start and ends on its floor, ours within it."""
    config = TrainingConfig(steps=STEPS, learning_rate=2e-3, warmup=RISING / STEPS, schedule="one-cycle")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    shape = {"pct_start": (RISING + 1) / (STEPS + 1), "div_factor": 25, "final_div_factor": 1e4 / 25}
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=STEPS + 1, **shape)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[0] == pytest.approx(2e-3 / 25)
    expected = rates[1 : RISING + 1] + rates[RISING:]  # our peak lasts two steps
    assert [learning_rate(config, step) for step in range(STEPS)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "first", "middle"), [("one-cycle", 0.0426295, 0.52), ("cosine", 1 / 30, 0.5)], ids=str
)
def test_start_peak_and_end(schedule, first, middle):
    """From the formulas: half a cosine from 1/25, or a line from 0; then half a cosine to 1e-4, but one step."""
    config = TrainingConfig(steps=STEPS, learning_rate=2e-3, warmup=RISING / STEPS, schedule=schedule)
    found = [learning_rate(config, step) / 2e-3 for step in (0, 14, 29, 30, 65, 99)]
    assert found == pytest.approx([first, middle, 1.0, 1.0, 0.50005, 0.00060344], rel=1e-4)


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.3, 1.0])
def test_rises_to_the_peak_then_falls(schedule, warmup):
    config = TrainingConfig(steps=50, learning_rate=1.0, warmup=warmup, schedule=schedule)
    rates = [learning_rate(config, step) for step in range(50)]
    peak = max(range(50), key=rates.__getitem__)
    assert all(0 < rate <= 1.0 for rate in rates)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert max(rates) == pytest.approx(1.0)
    assert peak == max(0, round(warmup * 50) - 1)


def test_constant():
    config = TrainingConfig(steps=5, learning_rate=0.1, schedule="constant")
    assert {learning_rate(config, step) for step in range(5)} == {0.1}
