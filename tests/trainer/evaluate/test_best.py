"""The best weights: which validation wins, and that they come back exactly."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from modules.trainer.evaluate.best import BestKeeper, read_tensors, write_tensors
from modules.trainer.optim.ema import MovingAverage
from modules.util.errors import DataError, UserError
from tests.trainer.builders import small_files_only

NAN, INF = math.nan, math.inf


def weights(value: float = 0.0) -> list[tuple[str, torch.nn.Parameter]]:
    return [
        ("a", torch.nn.Parameter(torch.full((3, 2), value))),
        ("b", torch.nn.Parameter(torch.full((4,), value, dtype=torch.bfloat16))),
    ]


def fill(named: list[tuple[str, torch.nn.Parameter]], value: float) -> None:
    with torch.no_grad():
        for _, parameter in named:
            parameter.fill_(value)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("offers", "winner"),
    [
        pytest.param([(0.5, 0.7), (0.6, 0.9)], 1, id="accuracy before loss"),
        pytest.param([(0.6, 0.7), (0.5, 0.1)], 0, id="a lower accuracy never wins"),
        pytest.param([(0.5, 0.7), (0.5, 0.6)], 1, id="a tie goes to the lower loss"),
        pytest.param([(0.5, 0.6), (0.5, 0.7)], 0, id="a tie with a higher loss stays"),
        pytest.param([(0.5, 0.6), (0.5, 0.6)], 0, id="the earlier of equals"),
        pytest.param([(0.5, 0.6), (0.500004, 0.7)], 0, id="a difference below five decimals is a tie"),
        pytest.param([(0.5, 0.6), (0.50001, 0.7)], 1, id="a difference in the fifth decimal counts"),
        pytest.param([(0.5, 0.6), (0.9, NAN)], 0, id="a loss that is NaN"),
        pytest.param([(0.5, 0.6), (0.9, INF)], 0, id="an infinite loss"),
        pytest.param([(0.5, 0.6), (NAN, 0.1)], 0, id="an accuracy that is NaN"),
        pytest.param([(NAN, NAN), (0.0, 9.0)], 1, id="anything beats NaN"),
        pytest.param([(0.2, 1.0), (0.8, 1.0), (0.6, 1.0), (0.8, 0.9), (0.8, 0.95)], 3, id="a longer run"),
    ],
)
def test_the_highest_accuracy_then_the_lowest_loss(
    tmp_path: Path, offers: list[tuple[float, float]], winner: int
) -> None:
    named = weights()
    keeper = BestKeeper(tmp_path, named)
    for step, (accuracy, loss) in enumerate(offers):
        fill(named, float(step))
        assert keeper.offer(step, accuracy, loss) == (keeper.step == step)
    assert keeper.step == winner
    assert files(tmp_path) == [f"best-{winner}.safetensors"]
    keeper.restore()
    assert all(torch.equal(p, torch.full_like(p, float(winner))) for _, p in named)


def test_a_former_best_that_cannot_be_removed_is_told_and_goes_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = BestKeeper(tmp_path, weights())
    assert keeper.offer(1, 0.1, 1.0)
    former = tmp_path / "best-1.safetensors"
    former.unlink()
    former.mkdir()  # a folder is never removed as a file
    assert keeper.offer(2, 0.2, 1.0) and keeper.step == 2
    assert "best-1.safetensors, cannot be removed" in caplog.text
    assert files(tmp_path) == ["best-1.safetensors", "best-2.safetensors"]
    former.rmdir()
    former.write_bytes(b"again there")
    assert keeper.offer(3, 0.3, 1.0)
    assert files(tmp_path) == ["best-3.safetensors"]


def test_nothing_but_undefined_offers_leaves_no_best(tmp_path: Path) -> None:
    keeper = BestKeeper(tmp_path, weights())
    assert not keeper.offer(1, NAN, 0.5)
    assert not keeper.offer(2, 0.5, NAN)
    assert (keeper.step, keeper.path, keeper.state_dict(), files(tmp_path)) == (None, None, {}, [])
    with pytest.raises(RuntimeError, match="no best yet"):
        keeper.restore()


def test_restored_weights_are_the_kept_ones_bit_for_bit_after_an_average_was_copied_in(
    tmp_path: Path,
) -> None:
    generator = torch.Generator().manual_seed(0)
    named = [
        ("a", torch.nn.Parameter(torch.randn(5, 3, generator=generator))),
        ("b", torch.nn.Parameter(torch.randn(7, generator=generator).bfloat16())),
    ]
    average = MovingAverage(named, 0.9, 1, "cpu")
    keeper = BestKeeper(tmp_path, named)
    with torch.no_grad():
        for _, parameter in named:
            parameter.mul_(1.7)
    average.update(0)
    with average.swapped_in():
        kept = [parameter.detach().clone() for _, parameter in named]
        assert keeper.offer(4, 0.9, 0.1)
    fill(named, 5.0)
    average.copy_to_parameters()
    keeper.restore()
    for (_, parameter), expected in zip(named, kept, strict=True):
        assert torch.equal(parameter, expected)


def test_state_resumes_in_another_process(tmp_path: Path) -> None:
    first = BestKeeper(tmp_path, weights(3.0))
    first.offer(7, 0.75, 0.5)
    named = weights()
    second = BestKeeper(tmp_path, named)
    second.load_state_dict(first.state_dict())
    assert not second.offer(8, 0.75, 0.5)
    second.restore()
    assert torch.equal(named[0][1], torch.full((3, 2), 3.0))
    fresh = BestKeeper(tmp_path, weights())
    fresh.load_state_dict({})
    assert fresh.step is None


def test_a_process_that_does_not_write_keeps_count(tmp_path: Path) -> None:
    keeper = BestKeeper(tmp_path / "best", weights(), writes=False)
    assert keeper.offer(3, 0.5, 0.5)
    assert keeper.step == 3
    assert not (tmp_path / "best").exists()


def test_a_full_disk_leaves_the_best_so_far(tmp_path: Path) -> None:
    named = [("a", torch.nn.Parameter(torch.ones(4096)))]
    keeper = BestKeeper(tmp_path, named)
    keeper.offer(1, 0.5, 0.5)
    fill(named, 2.0)
    with small_files_only(1000), pytest.raises(UserError, match="best weights cannot be written") as caught:
        keeper.offer(2, 0.9, 0.1)
    assert "room" in (caught.value.hint or "")
    assert (keeper.step, keeper.accuracy) == (1, 0.5)
    assert files(tmp_path) == ["best-1.safetensors"]
    keeper.restore()
    assert torch.equal(named[0][1], torch.ones(4096))


def test_a_missing_damaged_or_foreign_file_is_a_data_error(tmp_path: Path) -> None:
    keeper = BestKeeper(tmp_path, weights())
    keeper.offer(1, 0.5, 0.5)
    assert keeper.path is not None
    keeper.path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="the best weights in .* cannot be read"):
        keeper.restore()
    keeper.path.unlink()
    with pytest.raises(DataError, match="the best weights in .* cannot be read"):
        keeper.restore()
    for foreign in ({"a": torch.zeros(3, 2)}, {"a": torch.zeros(1, 2), "b": torch.zeros(4)}):
        write_tensors(keeper.path, foreign, "it")
        with pytest.raises(DataError, match="does not hold the weights"):
            keeper.restore()


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "t.safetensors"
    tensors = {"turned": torch.arange(6.0).view(2, 3).T, "half": torch.tensor([0.1, -0.0]).bfloat16()}
    write_tensors(path, tensors, "it")
    back = read_tensors(path, "it")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)
