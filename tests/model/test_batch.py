"""Selecting, joining and checking batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from modules.model.batch import OWN, Conditioning, ImageBatch, Index, NoiseDraw, PairBatch


def images(count: int, offset: int = 0, size: tuple[int, int] = (32, 32)) -> ImageBatch:
    numbers = torch.arange(offset, offset + count).float()
    return ImageBatch(
        latents_BChw=numbers[:, None, None, None].expand(count, 4, 8, 8).clone(),
        cond=Conditioning({"hidden_BLE": numbers[:, None, None].expand(count, 3, 2).clone()}),
        prompts=[f"prompt {int(n)}" for n in numbers],
        ids=[f"id {int(n)}" for n in numbers],
        visits=list(range(count)),
        size=size,
        loss_weight_B=torch.ones(count),
    )


@pytest.mark.parametrize("index", [slice(1, 3), [1, 2], torch.tensor([1, 2])])
def test_select_keeps_everything_together(index) -> None:
    part = images(4).select(index)
    assert part.ids == ["id 1", "id 2"] and part.prompts == ["prompt 1", "prompt 2"]
    assert part.visits == [1, 2]
    assert part.latents_BChw[:, 0, 0, 0].tolist() == [1.0, 2.0]
    assert part.cond["hidden_BLE"][:, 0, 0].tolist() == [1.0, 2.0]
    assert part.size == (32, 32)


def test_cat_is_the_inverse_of_select() -> None:
    whole = images(5)
    again = ImageBatch.cat([whole.select(slice(0, 2)), whole.select(slice(2, 5))])
    assert again.ids == whole.ids and again.visits == whole.visits
    assert torch.equal(again.latents_BChw, whole.latents_BChw)
    assert torch.equal(again.cond["hidden_BLE"], whole.cond["hidden_BLE"])


def test_unlike_batches_are_not_joined() -> None:
    with pytest.raises(ValueError, match="different sizes"):
        ImageBatch.cat([images(1), images(1, size=(64, 32))])
    with pytest.raises(ValueError, match="different tensors"):
        Conditioning.cat([Conditioning({"a": torch.ones(1)}), Conditioning({"b": torch.ones(1)})])


def test_parts_of_unlike_length_are_refused() -> None:
    good = images(2)
    with pytest.raises(ValueError, match="prompts"):
        ImageBatch(
            good.latents_BChw, good.cond, ["one"], good.ids, good.visits, good.size, good.loss_weight_B
        )
    with pytest.raises(ValueError, match="differ in batch size"):
        Conditioning({"a": torch.ones(1), "b": torch.ones(2)})
    with pytest.raises(ValueError, match="1 pair ids"):
        PairBatch(["p"], images(2), images(2))
    with pytest.raises(ValueError, match="2 chosen but 1 rejected"):
        PairBatch(["p", "q"], images(2), images(1))


def test_draws_join_and_split() -> None:
    one = NoiseDraw(torch.tensor([1]), torch.ones(1, 4, 2, 2))
    two = NoiseDraw(torch.tensor([2, 3]), torch.zeros(2, 4, 2, 2))
    joined = NoiseDraw.cat([one, two])
    assert joined.timestep_B.tolist() == [1, 2, 3] and joined.perturbation_BChw is None
    assert joined.select([2, 0]).timestep_B.tolist() == [3, 1]
    with_extra = NoiseDraw(torch.tensor([1]), torch.ones(1, 4, 2, 2), torch.ones(1, 4, 2, 2))
    with pytest.raises(ValueError, match="perturbation_BChw"):
        NoiseDraw.cat([one, with_extra])


def test_moving_changes_floating_types_only() -> None:
    draw = NoiseDraw(torch.tensor([1]), torch.ones(1, 4, 2, 2)).to("cpu", torch.float64)
    assert draw.timestep_B.dtype == torch.int64 and draw.noise_BChw.dtype == torch.float64
    pair = PairBatch(["p"], images(1), images(1)).to("cpu", torch.bfloat16)
    assert pair.rejected.cond["hidden_BLE"].dtype == torch.bfloat16
    assert pair.select([0]).chosen.ids == ["id 0"]


class Copies(TorchFunctionMode):
    """Notes for every move whether its end is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[bool] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.to:
            self.waited.append(not (kwargs or {}).get("non_blocking", False))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("device", "waited"), [("cpu", True), ("meta", False)])
def test_what_comes_to_the_cpu_is_there_on_return(device: str, waited: bool) -> None:
    batch = images(2)
    with Copies() as copies:
        batch.to(device)
        batch.cond.to(torch.device(device))
    assert copies.waited == [waited] * 4


def ragged(*lengths: int) -> list[dict[str, torch.Tensor]]:
    return [{"hidden_BLE": torch.full((n, 2), float(n)), "pooled_BE": torch.ones(3)} for n in lengths]


def test_rows_of_unlike_length_are_marked_and_rows_of_one_length_are_not() -> None:
    same, mixed = Conditioning.stack(ragged(2, 2)), Conditioning.stack(ragged(4, 2))
    assert OWN not in same.tensors and sorted(mixed.tensors) == ["hidden_BLE", OWN, "pooled_BE"]
    assert mixed[OWN].tolist() == [[True] * 4, [True, True, False, False]]
    assert mixed["hidden_BLE"][1, :, 0].tolist() == [2.0, 2.0, 0.0, 0.0]
    for parts, lengths in (
        ([same, mixed], [2, 2, 4, 2]),
        ([mixed, same], [4, 2, 2, 2]),
        ([same, same], [2, 2, 2, 2]),
        ([Conditioning.stack(ragged(5)), mixed], [5, 4, 2]),
        ([mixed], [4, 2]),
    ):
        joined = Conditioning.cat(parts)
        assert [len(row["hidden_BLE"]) for row in joined.unbind()] == lengths
        assert all(OWN not in row for row in joined.unbind())
        assert (OWN in joined.tensors) is (len(set(lengths)) > 1)
    assert mixed.to("cpu", torch.float64)[OWN].dtype == torch.bool


@pytest.mark.parametrize(
    ("index", "lengths"),
    [([1], [2]), ([1, 2], [2, 3]), (slice(1, 2), [2]), ([0, 1], [4, 2]), (slice(0, 0), [])],
)
def test_a_selection_has_no_padding_that_nobody_needs(index: Index, lengths: list[int]) -> None:
    cond = Conditioning.stack(ragged(4, 2, 3)).select(index)
    assert len(cond) == len(lengths)
    if lengths:
        assert cond["hidden_BLE"].shape[1] == max(lengths)
        assert cond["hidden_BLE"][:, 0, 0].tolist() == lengths
    assert (OWN in cond.tensors) is (len(set(lengths)) != 1)


def test_a_mask_of_the_family_s_own_stays() -> None:
    rows = [{"hidden_BLE": torch.ones(n, 2), "mask_BL": torch.ones(n, dtype=torch.bool)} for n in (3, 1)]
    cond = Conditioning.stack(rows)
    assert sorted(cond.tensors) == ["hidden_BLE", "mask_BL"]
    assert cond.select([1])["hidden_BLE"].shape[1] == 3
    assert [sorted(row) for row in cond.unbind()] == [["hidden_BLE", "mask_BL"]] * 2
