"""Samples that read their prompts in another way than the run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.modelSetup import training
from modules.modelSetup.sample_images import SampleRequest, check_sample, kept_name, sample
from modules.trainer.assembly import check_settings
from modules.trainer.evaluate.sample_texts import keep_sample_texts
from modules.trainer.evaluate.Sampler import Sampler
from modules.util.config.load import find_problems, load_config
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import ImageFormat
from modules.util.errors import ConfigError, UserError
from modules.util.TrainProgress import TrainProgress
from tests.tiny import tiny_model, tiny_setup
from tests.trainer.builders import run_here, write_config

SD, XL, SD_3, FLUX, CHROMA = (
    *("STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "STABLE_DIFFUSION_3"),
    *("FLUX_DEV_1", "CHROMA_1"),
)
LONG = "a red house of stone of stone of stone"


def wanted(**own: Any) -> SampleConfig:
    shared = {"prompt": LONG, "width": 64, "height": 64, "diffusion_steps": 2, "cfg_scale": 3.0, "seed": 7}
    return SampleConfig.from_dict({**shared, **own})


@pytest.mark.parametrize(
    ("key", "own", "run"),
    [
        (SD, {"text_encoder_1_layer_skip": 1}, {"text_encoder": {"layer_skip": 1}}),
        pytest.param(
            XL, {"text_encoder_2_layer_skip": 1}, {"text_encoder_2": {"layer_skip": 1}}, marks=pytest.mark.slow
        ),
        (SD_3, {"text_encoder_3_sequence_length": 4}, {"text_encoder_3": {"sequence_length": 4}}),
        (FLUX, {"text_encoder_2_sequence_length": 4}, {"text_encoder_2": {"sequence_length": 4}}),
        (FLUX, {"transformer_attention_mask": "MASKED"}, {"transformer": {"attention_mask": "MASKED"}}),
        (CHROMA, {"transformer_attention_mask": "SEEN"}, {"transformer": {"attention_mask": "SEEN"}}),
        (CHROMA, {"text_encoder_1_sequence_length": 4}, {"text_encoder": {"sequence_length": 4}}),
    ],
)
def test_a_sample_is_that_of_a_run_that_reads_like_it(
    key: str, own: dict[str, Any], run: dict[str, Any]
) -> None:
    setup, model = tiny_setup(key), tiny_model(key)

    def image(**more: Any) -> torch.Tensor:
        # short prompts have padding
        text = {"prompt": "a cat"} if "transformer_attention_mask" in own else {}
        return sample(setup, model, SampleRequest.of(wanted(**text, **more).filled(model.spec), 7))

    usual, changed = image(), image(**own)
    assert not torch.equal(usual, changed)
    assert torch.equal(image(), usual)
    training.read_as_told(model, TrainConfig.from_dict({"model_type": key, **run}))
    assert torch.equal(image(), changed)
    of_family = {
        name: "FAMILY" if name.startswith("transformer") else 0 if "skip" in name else model.spec.prompt_length
        for name in own
    }
    assert torch.equal(image(**of_family), usual)


@pytest.mark.slow
def test_what_the_sample_leaves_open_is_as_in_the_run(tmp_path: Path) -> None:
    def images(name: str, skip: int, *own: int | None) -> list[np.ndarray]:
        samples = [wanted(text_encoder_1_layer_skip=one).to_dict() for one in own]
        run_here(
            write_config(
                tmp_path / name, samples=samples, sample_before_training=True, max_steps=1, sample_image_format="PNG",
                text_encoder={"layer_skip": skip},
            )
        )  # fmt: skip
        files = sorted((tmp_path / name / "run" / "samples").rglob("*.png"))
        assert len(files) == len(own)
        return [np.asarray(Image.open(file)) for file in files]

    usual, skipped = images("plain", 0, None, 1)
    assert not np.array_equal(usual, skipped)
    as_the_run, unskipped = images("skipping", 1, None, 0)
    assert np.array_equal(as_the_run, skipped) and np.array_equal(unskipped, usual)


def test_prompts_encoded_in_advance_are_kept_apart(tmp_path: Path) -> None:
    setup, model = tiny_setup(), tiny_model()
    samples = [wanted(), wanted(text_encoder_1_layer_skip=1), wanted(text_encoder_1_layer_skip=0)]
    fresh = [sample(setup, model, SampleRequest.of(one.filled(model.spec), 7)) for one in samples]
    keep_sample_texts(setup, model, samples, lambda *_: True)
    assert len(model.kept_texts) == 2 and kept_name(model, (LONG, "negative: "), ()) in model.kept_texts
    model.release("text_encoder")
    kept = [sample(setup, model, SampleRequest.of(one.filled(model.spec), 7)) for one in samples]
    assert all(torch.equal(one, other) for one, other in zip(fresh, kept, strict=True))
    assert (model.layer_skips, model.prompt_length, model.masks_padding) == ({}, 0, None)
    made = list(
        Sampler(setup, model, samples, tmp_path, ImageFormat.PNG).run(TrainProgress(), "", lambda *_: True)
    )
    assert len(made) == 3


@pytest.mark.parametrize(
    ("key", "own", "words"),
    [
        (FLUX, {"text_encoder_1_layer_skip": 1}, "no layers can be skipped"),
        (SD, {"text_encoder_2_layer_skip": 1}, "has no text_encoder_2"),
        (SD, {"text_encoder_1_sequence_length": 20}, "reads a fixed number of tokens"),
        (FLUX, {"text_encoder_2_sequence_length": 513}, "reads 1 to 512 tokens"),
        ("QWEN", {"transformer_attention_mask": "SEEN"}, "never sees padding"),
        (SD, {"transformer_attention_mask": "SEEN"}, "has no transformer"),
    ],
)
def test_what_a_run_cannot_read_a_sample_cannot_either(
    key: str, own: dict[str, Any], words: str, tmp_path: Path
) -> None:
    def errors(*samples: SampleConfig) -> list[UserError]:
        config = TrainConfig.from_dict({"model_type": key, "samples": [one.to_dict() for one in samples]})
        return [error for error in find_problems(config).errors if "samples" in str(error.field)]

    (error,) = errors(wanted(), wanted(**own))
    (name,) = own
    assert error.field == f"samples[1].{name}" and words in error.message
    assert errors(wanted(enabled=False, **own)) == []


def test_a_list_of_samples_in_a_file_is_checked_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "samples.json").write_text('[{"prompt": "a cat", "text_encoder_2_layer_skip": 1}]')
    config = load_config(
        write_config(
            tmp_path, samples=None, sample_before_training=True,
            sample_definition_file_name=str(tmp_path / "samples.json"),
        )
    )  # fmt: skip
    with pytest.raises(UserError, match="has no text_encoder_2") as caught:
        check_settings(config)
    assert caught.value.field == "samples[0].text_encoder_2_layer_skip"


def test_what_only_the_model_knows_is_refused_before_a_sample() -> None:
    for key, own, words in (
        (SD, {"text_encoder_1_layer_skip": 2}, "has 2 layers"),
        (CHROMA, {"text_encoder_1_sequence_length": 13}, "reads up to 12 tokens"),
    ):
        setup, model = tiny_setup(key), tiny_model(key)
        with pytest.raises(ConfigError, match=words) as caught:
            check_sample(setup, model, wanted(**own).filled(model.spec))
        assert caught.value.field == f"samples.{next(iter(own))}"
        assert (model.layer_skips, model.prompt_length) == ({}, 0)


def test_prompts_are_cut_where_the_sample_ends_reading(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup, model = tiny_setup(CHROMA), tiny_model(CHROMA)
    whole = wanted(prompt="a red house", cfg_scale=1.0)
    Sampler(setup, model, [whole], tmp_path, ImageFormat.PNG).check()
    assert caplog.text == ""
    short = wanted(prompt="a red house", cfg_scale=1.0, text_encoder_1_sequence_length=2)
    Sampler(setup, model, [whole, short], tmp_path, ImageFormat.PNG).check()
    assert "1 of 4 prompts and negative prompts of samples are longer" in caplog.text
