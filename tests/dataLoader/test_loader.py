from __future__ import annotations

import itertools
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.dataLoader.create import create_data_loader
from modules.dataLoader.progress import LoadingCancelled
from modules.model.batch import ImageBatch, PairBatch
from modules.util.errors import DataError
from tests.dataLoader.builders import (
    AveragingModel,
    AveragingSetup,
    at,
    concept,
    config,
    dpo_config,
    loader,
    write_image,
    write_pairs,
)
from tests.usual import usual

torch.set_num_threads(1)


def images(root: Path, count: int = 5, **more: Any) -> Any:
    for number in range(count):
        size = (64, 64) if number % 2 else (96, 48)
        write_image(root / "pets" / f"{number}.png", size, number)
    return config(root, [concept(root / "pets", **more.pop("concept", {}))], **more)


def flat(groups: list[AccumulationGroup]) -> list[tuple[str, int]]:
    """(id, visit) of every item in the order of training."""
    made: list[tuple[str, int]] = []
    for group in groups:
        for batch in group:
            if isinstance(batch, PairBatch):
                made += zip(batch.pair_ids, batch.chosen.visits, strict=True)
            elif batch is not None:
                made += zip(batch.ids, batch.visits, strict=True)
    return made


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, PairBatch):
        return a.pair_ids == b.pair_ids and equal(a.chosen, b.chosen) and equal(a.rejected, b.rejected)
    if isinstance(a, ImageBatch):
        same = (a.prompts, a.ids, a.visits, a.size) == (b.prompts, b.ids, b.visits, b.size)
        assert a.cond is not None and b.cond is not None
        text = torch.equal(a.cond["hidden_BLE"], b.cond["hidden_BLE"])
        return same and text and torch.equal(a.latents_BChw, b.latents_BChw)
    return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))


def test_batches_hold_the_right_images_and_prompts(tmp_path: Path) -> None:
    made = images(tmp_path, concept={"loss_weight": 0.5})
    for group in loader(made).accumulation_groups(at()):
        for batch in group:
            assert isinstance(batch, ImageBatch) and batch.cond is not None and batch.prior_B is None
            assert batch.latents_BChw.dtype == torch.float32
            assert batch.latents_BChw.shape[2:] == (batch.size[0] // 8, batch.size[1] // 8)
            assert batch.loss_weight_B.tolist() == [0.5] * len(batch)
            for row, name in enumerate(batch.ids):
                stem = Path(name).stem
                assert batch.prompts[row] == f"a picture of {stem}"
                assert batch.cond["hidden_BLE"][row, 0, 1] == len(batch.prompts[row])
                with Image.open(tmp_path / "pets" / f"{stem}.png") as image:
                    mean = torch.tensor(list(image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))))
                found = batch.latents_BChw[row, :3].mean((1, 2)) * 255
                assert (found - mean).abs().max() < 8


def test_every_image_once_an_epoch_in_batches_of_one_size(tmp_path: Path) -> None:
    groups = list(loader(images(tmp_path)).accumulation_groups(at()))
    assert sorted(flat(groups)) == sorted((f"pets/{n}.png", epoch) for n in range(5) for epoch in range(3))
    assert [group.last for group in groups] == ([False, False, True] * 3)
    assert {batch.size for group in groups for batch in group} == {(64, 64), (48, 88)}


def test_pairs_keep_their_sides(tmp_path: Path) -> None:
    for group in loader(dpo_config(tmp_path)).accumulation_groups(at()):
        for batch in group:
            assert isinstance(batch, PairBatch) and batch.rejected is not None
            assert [f"{name}.png" for name in batch.pair_ids] == batch.chosen.ids
            assert [name.replace("chosen", "rejected") for name in batch.chosen.ids] == batch.rejected.ids
            assert batch.chosen.prompts == batch.rejected.prompts
            assert batch.chosen.visits == batch.rejected.visits
            assert not torch.equal(batch.chosen.latents_BChw, batch.rejected.latents_BChw)


def test_every_augmentation_is_off_for_pairs(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path, 2, sizes=((96, 64),))
    for folder in (chosen, rejected):
        for path in folder.glob("*.txt"):
            path.write_text("a, b, c, d, e", encoding="utf-8")
    wild = {
        "image": {
            "enable_crop_jitter": True, "enable_fixed_flip": True, "enable_random_rotate": True,
            "random_rotate_max_angle": 90.0, "enable_fixed_brightness": True,
            "random_brightness_max_strength": 1.0, "enable_fixed_hue": True, "random_hue_max_strength": 1.0,
        },
        "text": {"enable_tag_shuffling": True, "tag_dropout_enable": True, "tag_dropout_probability": 1.0},
        "image_variations": 3, "text_variations": 3,
    }  # fmt: skip
    for settings in ({"image": {}}, wild):
        both = [concept(chosen, "DPO_CHOSEN", **settings), concept(rejected, "DPO_REJECTED", **settings)]
        for caching in (True, False):
            made = config(tmp_path, both, rlhf_enabled=True, latent_caching=caching)
            model = AveragingModel()
            batches = [batch for group in loader(made, model).accumulation_groups(at()) for batch in group]
            assert {prompt for batch in batches for prompt in batch.chosen.prompts} == {"a, b, c, d, e"}
            by_id: dict[str, list[torch.Tensor]] = {}
            for batch in batches:
                for row, name in enumerate(batch.pair_ids):
                    by_id.setdefault(name, []).append(batch.chosen.latents_BChw[row])
            assert all(torch.equal(found[0], other) for found in by_id.values() for other in found)
            # with every switch on it found the entries made with every switch off
            assert settings is not wild or not caching or model.images_encoded == []


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("threads", usual([0, 3], 3))
def test_resuming_anywhere_gives_the_same_batches(tmp_path: Path, caching: bool, threads: int) -> None:
    made = dpo_config(
        tmp_path, 7, gradient_accumulation_steps=2, dataloader_threads=threads, latent_caching=caching
    )
    whole = list(loader(made).accumulation_groups(at()))
    steps = loader(made).steps_per_epoch
    assert len(whole) == 3 * steps == loader(made).total_steps
    for number in range(len(whole)):
        epoch, step = divmod(number, steps)
        rest = list(loader(made).accumulation_groups(at(epoch, step)))
        if caching:
            assert len(rest) == len(whole) - number and all(map(equal, rest, whole[number:]))
        assert flat(rest) == flat(whole[number:])
        assert (rest[0].epoch, rest[0].step) == (epoch, step)


def test_threads_change_nothing(tmp_path: Path) -> None:
    runs = [
        list(loader(images(tmp_path, 9, dataloader_threads=threads)).accumulation_groups(at()))
        for threads in (0, 1, 4)
    ]
    assert all(equal(runs[0][n], run[n]) for run in runs for n in range(len(runs[0])))


@pytest.mark.parametrize("count", [1, 5, 8])
def test_two_processes_do_what_one_does(tmp_path: Path, count: int) -> None:
    made = dpo_config(tmp_path, count, gradient_accumulation_steps=2)
    alone = dpo_config(tmp_path, count, gradient_accumulation_steps=2, batch_size=4)
    barrier = threading.Barrier(2)
    found: dict[int, Any] = {}

    def process(rank: int) -> None:
        model = AveragingModel()
        own = loader(made, model, rank=rank, world_size=2, barrier=barrier.wait)
        found[rank] = (list(own.accumulation_groups(at())), model)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    encoded = [sum(found[rank][1].images_encoded) for rank in range(2)]
    assert sum(encoded) == 2 * count
    shares = [found[rank][0] for rank in range(2)]
    for one, first, second in zip(loader(alone).accumulation_groups(at()), *shares, strict=True):
        assert len(one) == len(first) == len(second) and one.total == first.total == second.total
        assert first.samples + second.samples == one.total
        for whole, *parts in zip(one, first, second, strict=True):
            joined = [name for part in parts if part is not None for name in part.pair_ids]
            assert whole is not None and joined == whole.pair_ids


def test_validation_is_each_item_once_in_a_fixed_order(tmp_path: Path) -> None:
    made = dpo_config(
        tmp_path, 12, rlhf_dpo_validation=True, rlhf_dpo_validation_percentage=40.0,
        gradient_accumulation_steps=3,
    )  # fmt: skip
    train = loader(made)
    validation = loader(made, share=train, validation=True)
    assert validation.source is train.source and len(train) + len(validation) == 12
    ids = [name for batch in validation.batches() for name in batch.pair_ids]  # type: ignore[union-attr]
    assert ids == [name for batch in validation.batches() for name in batch.pair_ids]  # type: ignore[union-attr]
    assert len(set(ids)) == len(validation)
    groups = list(itertools.islice(train.accumulation_groups(at()), train.sampler.steps_in_epoch(0)))
    assert {name for name, _ in flat(groups)} and not {name for name, _ in flat(groups)} & set(ids)
    assert {visit for batch in validation.batches() for visit in batch.chosen.visits} == {0}  # type: ignore[union-attr]


def test_batches_go_through_the_training_items_too(tmp_path: Path) -> None:
    made = images(tmp_path, 5, concept={"balancing": 3.0})
    own = loader(made)
    assert sorted(name for b in own.batches(3) for name in b.ids) == [f"pets/{n}.png" for n in range(5)]  # type: ignore[union-attr]
    assert own.steps_per_epoch == 9 - 1  # 6 wide and 9 square... of two


def test_without_validation_there_is_no_validation_loader(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no validation data"):
        loader(dpo_config(tmp_path), validation=True)
    with pytest.raises(ValueError, match="need a barrier"):
        loader(dpo_config(tmp_path), world_size=2)


def test_prior_prediction_items_are_marked(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png")
    write_image(tmp_path / "prior" / "2.png", seed=1)
    concepts = [concept(tmp_path / "a"), concept(tmp_path / "prior", "PRIOR_PREDICTION")]
    (batch,) = next(iter(loader(config(tmp_path, concepts)).accumulation_groups(at())))
    assert isinstance(batch, ImageBatch) and batch.prior_B is not None
    assert dict(zip(batch.ids, batch.prior_B.tolist(), strict=True)) == {
        "a/1.png": False,
        "prior/2.png": True,
    }


def test_a_trained_text_encoder_gets_prompts_instead_of_states(tmp_path: Path) -> None:
    model = AveragingModel()
    model.trains_text = True
    made = images(tmp_path, 3, concept={"text": {"enable_tag_shuffling": True, "keep_tags_count": 0}})
    for path in (tmp_path / "pets").glob("*.txt"):
        path.write_text("a, b, c, d", encoding="utf-8")
    batches = [batch for group in loader(made, model).accumulation_groups(at()) for batch in group]
    assert all(batch.cond is None for batch in batches) and model.texts_encoded == []
    assert len({prompt for batch in batches for prompt in batch.prompts}) > 3


def test_without_caching_all_is_encoded_in_the_loop_and_nothing_is_written(tmp_path: Path) -> None:
    model = AveragingModel()
    made = images(tmp_path, 4, latent_caching=False, concept={"image": {"enable_random_flip": True}})
    own = loader(made, model)
    assert model.images_encoded == []
    batches = [batch for group in own.accumulation_groups(at()) for batch in group]
    assert sum(model.images_encoded) == 12
    assert model.texts_encoded == [[prompt] for batch in batches for prompt in dict.fromkeys(batch.prompts)]
    for batch in batches:
        wanted = AveragingSetup().text_states(model, batch.prompts)
        assert torch.equal(batch.cond["hidden_BLE"], wanted["hidden_BLE"])
    assert not (tmp_path / "cache" / "latents").exists()


def test_without_caching_sides_of_one_prompt_are_encoded_once(tmp_path: Path) -> None:
    model = AveragingModel()
    own = loader(dpo_config(tmp_path, 4, batch_size=2, epochs=1, latent_caching=False), model)
    batches = [batch for group in own.accumulation_groups(at()) for batch in group]
    prompts = [dict.fromkeys(batch.chosen.prompts) for batch in batches]
    assert model.texts_encoded == [[prompt] for each in prompts for prompt in each]
    assert all(
        torch.equal(batch.chosen.cond["hidden_BLE"], batch.rejected.cond["hidden_BLE"]) for batch in batches
    )


def test_variations_are_cached_and_come_in_turn(tmp_path: Path) -> None:
    model = AveragingModel()
    write_image(tmp_path / "pets" / "0.png", (128, 64))
    jitter = {"image": {"enable_crop_jitter": True}, "image_variations": 3}
    made = config(tmp_path, [concept(tmp_path / "pets", **jitter)], epochs=6, aspect_ratio_bucketing=False)
    found = [group[0].latents_BChw for group in loader(made, model).accumulation_groups(at())]  # type: ignore[union-attr]
    assert sum(model.images_encoded) == 3
    assert all(torch.equal(found[n], found[n + 3]) for n in range(3))
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


def test_several_resolutions(tmp_path: Path) -> None:
    model = AveragingModel()
    write_image(tmp_path / "pets" / "0.png")
    made = config(tmp_path, [concept(tmp_path / "pets")], resolution="64, 128", epochs=4)
    groups = list(loader(made, model).accumulation_groups(at()))
    sizes = [group[0].size for group in groups]  # type: ignore[union-attr]
    assert set(sizes) == {(64, 64), (128, 128)} and sizes[:2] == sizes[2:] and model.images_encoded == [1, 1]


def test_balancing_changes_the_epoch(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png")
    write_image(tmp_path / "a" / "2.png", seed=1)
    made = config(tmp_path, [concept(tmp_path / "a", balancing=1.5)], batch_size=1, epochs=4)
    own = loader(made)
    groups = list(own.accumulation_groups(at()))
    assert own.total_steps == len(groups) == 12 and own.sampler.steps_in_epoch(1) == 3
    assert sorted(flat(groups)) == sorted((f"a/{n}.png", visit) for n in (1, 2) for visit in range(6))


def test_max_steps_resumes_past_the_epochs(tmp_path: Path) -> None:
    made = images(tmp_path, 2, max_steps=50, epochs=1)
    own = loader(made)
    assert own.total_steps == 50 and len(list(islice(own.accumulation_groups(at()), 50))) == 50


def test_a_loader_left_in_the_middle_lets_go(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    own = loader(images(tmp_path, 9))
    groups = own.accumulation_groups(at())
    next(groups)
    started = set(threading.enumerate()) - before
    assert started
    groups.close()
    own.close()
    assert not started & set(threading.enumerate())


def test_faults_are_raised_before_anything_is_encoded(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, 3)
    write_image(tmp_path / "chosen" / "pair_0001.png", (128, 64), caption=None)
    model = AveragingModel()
    with pytest.raises(DataError, match="crop resolutions of 1 pair differ") as caught:
        loader(made, model)
    assert "chosen/pair_0001: 88x48 / 64x64" in str(caught.value) and model.images_encoded == []
    (tmp_path / "chosen" / "pair_0001.png").write_bytes(b"junk")
    with pytest.raises(DataError, match="1 image cannot be used"):
        loader(made, model)
    (tmp_path / "chosen" / "pair_0001.png").unlink()
    with pytest.raises(DataError, match="no partner"):
        loader(made, model)


def test_an_epoch_without_any_image_is_an_error_not_an_endless_loop(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path, 2)
    both = [concept(chosen, "DPO_CHOSEN", balancing=0.0), concept(rejected, "DPO_REJECTED")]
    with pytest.raises(DataError, match="balancing of every concept is 0"):
        next(loader(config(tmp_path, both, rlhf_enabled=True, max_steps=5)).accumulation_groups(at()))


def test_progress_is_told_and_may_cancel(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    loader(images(tmp_path, 9, cache_batch_size=2), progress=lambda *now: told.append(now))
    assert ("encoding images", 0, 9) in told and ("encoding images", 9, 9) in told
    assert ("encoding prompts", 9, 9) in told
    assert all(0 <= done <= total for _, done, total in told)

    made = images(tmp_path / "again", 9, cache_batch_size=2)
    model = AveragingModel()
    with pytest.raises(LoadingCancelled):
        loader(made, model, progress=lambda what, done, _: not (what == "encoding images" and done >= 4))
    assert sum(model.images_encoded) == 4
    loader(made, model)
    assert sum(model.images_encoded) == 9


def test_a_device_out_of_memory_halves_the_batch(tmp_path: Path) -> None:
    class Small(AveragingSetup):
        def encode_image(self, model: AveragingModel, rgb_BCHW: torch.Tensor) -> torch.Tensor:
            if rgb_BCHW.shape[0] > 1:
                raise torch.OutOfMemoryError("too large")
            return super().encode_image(model, rgb_BCHW)

    model = AveragingModel()
    own = create_data_loader(images(tmp_path, 5), model, Small())  # type: ignore[arg-type]
    own.prepare()
    assert model.images_encoded == [1] * 5


def test_all_text_encoders_are_on_the_device_while_prompts_are_encoded(tmp_path: Path) -> None:
    model = AveragingModel()
    model.parts["text_encoder_2"] = object()
    model.text_encoders = ("text_encoder", "text_encoder_2")
    loader(images(tmp_path), model)
    assert model.borrowed_parts == ["vae", "text_encoder", "text_encoder_2"]


def test_text_states_with_emphasis_are_not_those_without(tmp_path: Path) -> None:
    made, model = images(tmp_path), AveragingModel()
    loader(made, model)
    assert len(model.texts_encoded) > 0
    again = AveragingModel()
    loader(made, again)
    assert again.texts_encoded == []
    again.prompt_weighting = True
    loader(made, again)
    once, twice = ({text for texts in one.texts_encoded for text in texts} for one in (model, again))
    assert once == twice
    assert again.images_encoded == [], "images have none"


@pytest.mark.parametrize("caching", [True, False])
def test_prompts_that_are_cut_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, caching: bool
) -> None:
    made = images(tmp_path, latent_caching=caching)
    loader(made)
    assert "prompts are longer" not in caplog.text
    for name in ("1", "3"):
        (tmp_path / "pets" / f"{name}.txt").write_text("many words " * (10 + int(name)), encoding="utf-8")
    for _ in range(2):
        # told again when everything is cached
        caplog.clear()
        loader(made)
        (line,) = [record.getMessage() for record in caplog.records if "prompts are longer" in record.message]
        assert "2 of 5 prompts" in line and "many words many" in line
