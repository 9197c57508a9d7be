"""Models whose text encoder sees the images that are edited: what is kept of a prompt, and when it is encoded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.dataLoader.preflight import inspect_data
from modules.model.batch import Conditioning, ImageBatch, PairBatch, Sources
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup.families.QwenSetup import QwenEditPlusSetup
from modules.util.config.TrainConfig import TrainConfig
from tests.dataLoader.builders import concept, config, loader, write_image
from tests.tiny import tiny_model, tiny_setup

KEY = "QWEN_EDIT_PLUS"
BOTH = "QWEN_21"
"""Makes images of prompts alone too."""


class CountingSetup(QwenEditPlusSetup):
    """Counts what is encoded, and shows images as they are, which is quicker."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def _shown(self, seen: Sources) -> Sources:
        return seen

    def _encode_seeing(self, model: Any, prompts: Any, seen: Sources) -> Conditioning:
        self.encoded += prompts
        return super()._encode_seeing(model, prompts, seen)


def edits(root: Path, count: int = 2, **more: Any) -> TrainConfig:
    """Results of one instruction, and two images each was made from."""
    for number in range(count):
        write_image(root / "results" / f"{number}.png", seed=number, caption="make it red")
        for name, seed in ((f"{number}.png", 50), (f"{number}.2.png", 70)):
            write_image(root / "before" / name, seed=seed + number, caption=None)
    own = concept(root / "results", source_path=str(root / "before"))
    return config(root, [own], **{"model_type": KEY, "batch_size": count, **more})


def only_batch(made: TrainConfig, setup: CountingSetup, model: Any = None) -> ImageBatch:
    (batch,) = loader(made, model or tiny_model(KEY), setup=setup).batches()
    assert isinstance(batch, ImageBatch)
    return batch


def states(batch: ImageBatch, name: str) -> torch.Tensor:
    """The text states of one image of a batch."""
    assert batch.cond is not None
    return batch.cond["hidden_BLE"][batch.ids.index(name)]


def test_one_instruction_has_states_of_its_own_for_each_source(tmp_path: Path) -> None:
    setup = CountingSetup()
    batch = only_batch(edits(tmp_path), setup)
    assert setup.encoded == ["make it red"] * 2
    one, other = states(batch, "results/0.png"), states(batch, "results/1.png")
    assert one.shape == other.shape and (one - other).abs().max() > 1e-4
    model = tiny_model(KEY)
    pixels = loader(edits(tmp_path, latent_caching=False), model, setup=setup).dataset[0]
    shown = Sources(torch.from_numpy(one).permute(2, 0, 1)[None] for one in pixels["source_pixels"])
    by_hand = QwenEditPlusSetup._encode_seeing(setup, model, ["make it red"], shown)
    assert torch.allclose(states(batch, pixels["item"].id), by_hand["hidden_BLE"][0], atol=1e-6)


def test_states_are_encoded_again_when_the_content_of_a_source_changes(tmp_path: Path) -> None:
    made, setup = edits(tmp_path), CountingSetup()
    before = only_batch(made, setup)
    setup.encoded.clear()
    assert torch.equal(states(only_batch(made, setup), "results/0.png"), states(before, "results/0.png"))
    assert setup.encoded == []
    write_image(tmp_path / "before" / "1.2.png", seed=99, caption=None)
    after = only_batch(made, setup)
    assert setup.encoded == ["make it red"]
    assert torch.equal(states(after, "results/0.png"), states(before, "results/0.png"))
    assert not torch.equal(states(after, "results/1.png"), states(before, "results/1.png"))


@pytest.mark.parametrize("caching", [True, False])
def test_what_is_dropped_keeps_its_sources(caching: bool, tmp_path: Path) -> None:
    made = edits(tmp_path, text_encoder={"dropout_probability": 0.5}, latent_caching=caching)
    setup, model = CountingSetup(), tiny_model(KEY)
    batch = only_batch(made, setup, model)
    assert batch.blank is not None
    kept = setup.text_condition(model, batch, torch.tensor([True, False]))
    assert torch.equal(
        kept["hidden_BLE"][0, : batch.blank["hidden_BLE"].shape[1]], batch.blank["hidden_BLE"][0]
    )
    assert (batch.blank["hidden_BLE"][0] - batch.blank["hidden_BLE"][1]).abs().max() > 1e-4
    assert only_batch(edits(tmp_path), CountingSetup()).blank is None


def test_states_without_a_cache_are_those_of_the_cache(tmp_path: Path) -> None:
    cached = only_batch(edits(tmp_path), CountingSetup())
    live = only_batch(edits(tmp_path, latent_caching=False), CountingSetup())
    assert cached.cond is not None and live.cond is not None
    for name, tensor in cached.cond.tensors.items():
        assert torch.equal(tensor, live.cond[name])
    assert all(map(torch.equal, cached.sources, live.sources))


def test_both_sides_of_a_pair_are_encoded_once_without_a_cache(tmp_path: Path) -> None:
    edits(tmp_path)
    setup = CountingSetup()
    for number in range(2):
        write_image(tmp_path / "worse" / f"{number}.png", seed=90 + number, caption="make it red")
    chosen = concept(tmp_path / "results", "DPO_CHOSEN", source_path=str(tmp_path / "before"))
    sides = [chosen, concept(tmp_path / "worse", "DPO_REJECTED")]
    given = config(tmp_path, sides, model_type=KEY, batch_size=2, rlhf_enabled=True, latent_caching=False)
    (batch,) = loader(given, tiny_model(KEY), setup=setup).batches()
    assert isinstance(batch, PairBatch) and setup.encoded == ["make it red"] * 2
    one, other = batch.chosen.cond, batch.rejected.cond
    assert one is not None and other is not None
    assert torch.equal(one["hidden_BLE"], other["hidden_BLE"])
    assert not torch.equal(one["hidden_BLE"][0], one["hidden_BLE"][1])


def test_a_trained_text_encoder_is_shown_the_pixels(tmp_path: Path) -> None:
    made, setup, model = edits(tmp_path), CountingSetup(), tiny_model(KEY)
    kept = only_batch(made, setup, model)
    model.trains_text = True
    batch = only_batch(made, setup, model)
    assert batch.cond is None and [tuple(one.shape) for one in batch.seen] == [(2, 3, 64, 64)] * 2
    assert kept.cond is not None and kept.seen == Sources()
    cond = setup.text_condition(model, batch)
    order = [kept.ids.index(name) for name in batch.ids]
    assert torch.allclose(cond["hidden_BLE"], kept.cond["hidden_BLE"][order], atol=1e-5)


def _four(root: Path) -> None:
    for number in (3, 4):
        write_image(root / "before" / f"1.{number}.png", caption=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_four, "more than 3 source images, the maximum of Qwen-Image-Edit-Plus: results/1.png: 4"),
        (lambda root: (root / "before" / "0.png").unlink(), "1 image has no source image of the same name"),
        (lambda root: (root / "before" / "1.2.png").write_bytes(b"x"), "1.2.png: not an image"),
    ],
)
def test_faults_of_sources_are_found_before_a_run(change: Any, message: str, tmp_path: Path) -> None:
    made = edits(tmp_path)
    assert inspect_data(made).faults == []
    change(tmp_path)
    assert message in " ".join(" ".join(map(str, inspect_data(made).faults)).split())


def test_a_concept_without_sources_and_a_second_source_for_edit_are_faults(tmp_path: Path) -> None:
    made = edits(tmp_path, model_type="QWEN_EDIT")
    told = " ".join(" ".join(map(str, inspect_data(made).faults)).split())
    assert "2 images have more than 1 source image, the maximum of Qwen-Image-Edit" in told
    assert made.concepts is not None
    made.concepts[0].source_path = ""
    (fault,) = inspect_data(made).faults
    assert "has no source images, but Qwen-Image-Edit edits images" in str(fault)


@pytest.mark.parametrize(("family", "area"), [("QWEN_EDIT", 1024**2), ("QWEN_EDIT_PLUS", 384**2)])
def test_the_forecast_of_the_cache_counts_what_is_shown_with_every_prompt(
    tmp_path: Path, family: str, area: int
) -> None:
    more = {"text_encoder": {"dropout_probability": 0.1}, "cache_dir": str(tmp_path / "another")}
    setup = CountingSetup()
    loader(edits(tmp_path, **more), tiny_model(KEY), setup=setup)
    entries = len(setup.encoded)
    assert entries == 2 * 2, "for each of two results its prompt and the empty one"
    if family == "QWEN_EDIT":
        for path in (tmp_path / "before").glob("*.2.png"):
            path.unlink()
    sources = 1 if family == "QWEN_EDIT" else 2
    made = edits_again(tmp_path, family)
    report = inspect_data(made)
    tokens, pixels = entries * sources * area / 28**2, 2 * (1 + sources) * 1024**2
    assert report.faults == []
    assert report.cache_bytes[0] == pytest.approx(pixels / 4 + tokens * 3584 * 2, rel=0.01)
    assert report.cache_bytes[1] == pytest.approx(pixels + (tokens + entries * 512) * 3584 * 4, rel=0.01)


def edits_again(root: Path, family: str) -> TrainConfig:
    """The images that ``edits`` made, with captions dropped, at a megapixel."""
    own = concept(root / "results", source_path=str(root / "before"))
    dropped = {"text_encoder": {"dropout_probability": 0.1}}
    return config(root, [own], **{"model_type": family, "resolution": "1024", "batch_size": 2, **dropped})


def test_the_forecast_counts_prompts_that_are_cached_when_their_encoder_stops(tmp_path: Path) -> None:
    def forecast(words: Any = (), **encoder: Any) -> tuple[int, int]:
        write_image(tmp_path / "images" / "0.png")
        more = {"text_encoder": encoder, "additional_embeddings": list(words)}
        return inspect_data(config(tmp_path, [concept(tmp_path / "images")], **more)).cache_bytes

    stops = {"stop_training_after": 1, "stop_training_after_unit": "EPOCH"}
    kept, trained, stopped = forecast(train=False), forecast(train=True), forecast(train=True, **stops)
    assert kept[0] > trained[0] and kept[1] > trained[1]
    # the run may end before
    assert stopped == (trained[0], kept[1])
    assert forecast([{"placeholder": "<w>"}], train=False) == trained, "words change prompts too"
    assert forecast([{"placeholder": "<w>", **stops}], train=False) == stopped


def test_edits_and_images_of_prompts_alone_are_trained_together(tmp_path: Path) -> None:
    """By a model that does both; what is kept of an edit says where its images are, and not what became of them."""
    made = edits(tmp_path, model_type=BOTH, batch_size=1, text_encoder={"dropout_probability": 0.5})
    write_image(tmp_path / "plain" / "alone.png", seed=5, caption="make it red")
    assert made.concepts is not None
    made.concepts.append(concept(tmp_path / "plain"))
    assert inspect_data(made).faults == []
    setup, model = tiny_setup(BOTH), tiny_model(BOTH)
    batches = {batch.ids[0]: batch for batch in loader(made, model, setup=setup).batches()}
    edit, plain = batches["results/0.png"], batches["plain/alone.png"]
    assert isinstance(edit, ImageBatch) and isinstance(plain, ImageBatch)
    assert edit.cond is not None and plain.cond is not None and edit.blank is not None
    assert (len(edit.sources), len(plain.sources)) == (2, 0)
    words = plain.cond["hidden_BLE"].shape[1]
    assert "slots_BL" not in plain.cond.tensors
    assert words < edit.cond["hidden_BLE"].shape[1] < words + 64
    assert sorted(edit.cond["slots_BL"][0].tolist())[-3:] == [0, 64, 64]
    assert torch.equal(edit.blank["slots_BL"].unique(), edit.cond["slots_BL"].unique())
    for batch in (edit, plain):
        draw = setup.draw_noise(model, batch, NoiseOptions(caption_dropout=1.0), seed=1)
        assert bool(setup.calculate_loss(model, batch, draw).isfinite().all())
    other = batches["results/1.png"]
    assert isinstance(other, ImageBatch) and other.cond is not None
    assert (edit.cond["hidden_BLE"] - other.cond["hidden_BLE"]).abs().max() > 1e-4


def test_the_cache_holds_no_states_of_images_that_the_denoiser_has_itself(tmp_path: Path) -> None:
    made = edits(tmp_path, model_type=BOTH)
    plain = config(tmp_path, [concept(tmp_path / "results")], model_type=BOTH)
    latents = [2 * (1 + count) for count in (2, 0)]
    forecasts = [inspect_data(one).cache_bytes for one in (made, plain)]
    # two entries, because each has its own images; one prompt alone
    texts = [high - images * 64**2 for (_, high), images in zip(forecasts, latents, strict=True)]
    assert texts[0] == 2 * texts[1] > 0
