from __future__ import annotations

import pytest
import torch

from modules.objective.metrics import PairMetrics, averages_of, training_tags, validation_tags
from modules.objective.scores import PairOut


def made(count: int, seed: int, supervised: bool = False) -> PairOut:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> torch.Tensor:
        return torch.randn(count, generator=generator)

    chosen, rejected = draw(), draw()
    raw = draw().abs()
    return PairOut(
        loss=raw.mean() * 0.9 + 0.1,
        raw_loss_B=raw,
        supervised_B=draw().abs() if supervised else None,
        chosen_reward_B=chosen,
        rejected_reward_B=rejected,
        margin_B=chosen - rejected,
        accuracy_B=(chosen > rejected).float(),
    )


def test_averages_are_weighted_by_pairs() -> None:
    metrics = PairMetrics()
    outs = [made(1, 0, True), made(4, 1, True), made(2, 2, True)]
    for out in outs:
        metrics.add(out)
    averages = averages_of(metrics.sums())
    for name, column in {
        "raw_loss": "raw_loss_B",
        "chosen_reward": "chosen_reward_B",
        "rejected_reward": "rejected_reward_B",
        "margin": "margin_B",
        "accuracy": "accuracy_B",
        "supervised": "supervised_B",
    }.items():
        every = torch.cat([getattr(out, column) for out in outs]).double()
        assert averages[name] == pytest.approx(every.mean().item(), rel=1e-12), name
    expected = sum(float(out.loss) * out.pairs for out in outs) / 7
    assert averages["loss"] == pytest.approx(expected, rel=1e-6)
    assert averages["pairs"] == 7.0


def test_processes_add_up() -> None:
    whole, first, second = PairMetrics(), PairMetrics(), PairMetrics()
    for index, part in enumerate((first, second, second)):
        out, timesteps = made(index + 1, index), torch.arange(index + 1) * 300
        whole.add(out, timesteps)
        part.add(out, timesteps)
    together = averages_of(first.sums() + second.sums())
    assert together == pytest.approx(averages_of(whole.sums()), rel=1e-12)


def test_margin_by_quarter_of_the_timesteps() -> None:
    out = made(5, 3)
    metrics = PairMetrics()
    metrics.add(out, torch.tensor([0, 249, 250, 999, 750]))
    averages = averages_of(metrics.sums())
    margin = out.margin_B.double()
    assert averages["margin_by_t/q1"] == pytest.approx(float(margin[:2].mean()))
    assert averages["margin_by_t/q2"] == pytest.approx(float(margin[2]))
    assert "margin_by_t/q3" not in averages
    assert averages["margin_by_t/q4"] == pytest.approx(float(margin[3:].mean()))


def test_fractional_timesteps_of_flow_models() -> None:
    metrics = PairMetrics()
    metrics.add(made(2, 0), torch.tensor([249.999, 1000.0]))
    assert {"margin_by_t/q1", "margin_by_t/q4"} <= set(averages_of(metrics.sums()))


@pytest.mark.parametrize("timed", [False, True])
def test_micro_batches_are_read_from_the_device_at_once_and_added_as_if_one_by_one(
    timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    outs = [made(count, count, supervised=count % 2 == 0) for count in (1, 7, 3, 64, 33)]
    times = [torch.arange(len(out.margin_B)) * 15 if timed else None for out in outs]
    wanted = torch.zeros_like(PairMetrics().sums())
    for out, timestep_B in zip(outs, times, strict=True):
        alone = PairMetrics()
        alone.add(out, timestep_B)
        wanted += alone.sums()
    metrics = PairMetrics()
    for out, timestep_B in zip(outs, times, strict=True):
        metrics.add(out, timestep_B)
    reads: list[int] = []
    honest = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: reads.append(1) or honest(self))
    assert torch.equal(metrics.sums(), wanted), "bit by bit"
    assert len(reads) == 1 + timed


def test_empty_and_cleared() -> None:
    metrics = PairMetrics()
    assert averages_of(metrics.sums()) == {"pairs": 0.0}
    metrics.add(made(2, 0))
    metrics.clear()
    assert averages_of(metrics.sums()) == {"pairs": 0.0}
    assert training_tags(averages_of(metrics.sums())) == {}


def test_tags() -> None:
    metrics = PairMetrics()
    metrics.add(made(2, 0), torch.tensor([10, 20]))
    averages = averages_of(metrics.sums())
    assert set(training_tags(averages)) == {
        "loss/dpo",
        "dpo/raw_loss",
        "dpo/chosen_reward",
        "dpo/rejected_reward",
        "dpo/accuracy",
        "dpo/reward_margin",
        "dpo/margin_by_t/q1",
    }
    tags = validation_tags(averages)
    assert set(tags) == {
        "dpo/val_loss",
        "dpo/val_accuracy",
        "dpo/val_chosen_reward",
        "dpo/val_rejected_reward",
    }
    assert tags["dpo/val_loss"] == averages["raw_loss"]


def test_wrong_number_of_timesteps() -> None:
    with pytest.raises(ValueError, match="for 2 pairs"):
        PairMetrics().add(made(2, 0), torch.tensor([1]))
