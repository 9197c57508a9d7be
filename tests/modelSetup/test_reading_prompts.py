"""How many tokens of a prompt are read, and whether the denoiser sees the padding behind them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.model.Model import Model
from modules.modelSetup import training
from modules.spec.registry import FAMILIES
from modules.util.config.load import find_problems, read_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError
from tests.dataLoader import builders
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.usual import usual

PROMPTS = ["a", "a cat"]
READING = [key for key, spec in FAMILIES.items() if spec.length_of]
SEEN = [key for key, spec in FAMILIES.items() if spec.padding == "seen"]
MASKED = [key for key, spec in FAMILIES.items() if spec.padding == "masked"]


def told(key: str, model: Model, length: int | None = None, mask: str = "FAMILY") -> Model:
    """The model as a run with these settings reads prompts."""
    data: dict[str, Any] = {"model_type": key, "transformer": {"attention_mask": mask}}
    data[model.spec.length_of] = {"sequence_length": length}
    training.read_as_told(model, TrainConfig.from_dict(data))
    return model


# the others read their prompts as their relatives do
ALIKE = (
    "FLUX_2_DEV",
    "FLUX_KONTEXT_DEV_1",
    "FLUX_SCHNELL_1",
    "LONGCAT_IMAGE_EDIT",
    "PIXART_SIGMA",
    "QWEN_EDIT",
    "QWEN_EDIT_PLUS",
    "STABLE_DIFFUSION_35",
)


@pytest.mark.parametrize("key", usual(READING, *(key for key in READING if key not in ALIKE)))
def test_what_is_longer_than_the_run_says_is_not_read(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    names = [part.name for part in setup.spec.of_kind("tokenizer") if "clip" not in part.module]
    for name in names:
        model.parts[name].model_max_length = 10**9
    told(key, model, setup.spec.template_tokens + 6)
    stem = "a " * 12

    def read(prompt: str) -> torch.Tensor:
        states_BLE = setup.encode_text(model, [prompt])["hidden_BLE"]
        # behind the words of a CLIP, which reads on; others may be padded
        return states_BLE[:, -6:] if len(names) < len(setup.spec.of_kind("tokenizer")) else states_BLE

    assert torch.equal(read(stem + "cat"), read(stem + "dog"))
    assert not torch.equal(read("a cat"), read("a dog"))
    if model.spec.text_encoders[0] == model.spec.length_of:
        assert setup.cut_prompts(model, [stem + "cat", "a cat"]) == [stem + "cat"]
    told(key, model)
    assert model.prompt_length == 0
    assert not torch.equal(read(stem + "cat"), read(stem + "dog"))


@pytest.mark.parametrize(
    ("key", "name"), [("FLUX_DEV_1", "FluxPipeline"), ("STABLE_DIFFUSION_3", "StableDiffusion3Pipeline")]
)
def test_the_states_are_those_of_the_pipeline_with_that_length(key: str, name: str) -> None:
    import diffusers

    setup, model = tiny_setup(key), tiny_model(key)
    usual = setup.encode_text(model, PROMPTS)["hidden_BLE"]
    told(key, model, 5)
    pipeline: Any = getattr(diffusers, name).from_pretrained(str(tiny_folder(key)))
    more: dict[str, Any] = {"prompt_2": None}
    if key != "FLUX_DEV_1":
        more |= {"prompt_3": None, "do_classifier_free_guidance": False}
    expected_BLE = pipeline.encode_prompt(PROMPTS, max_sequence_length=5, **more)[0]
    ours_BLE = setup.encode_text(model, PROMPTS)["hidden_BLE"]
    torch.testing.assert_close(ours_BLE, expected_BLE, atol=1e-5, rtol=0)
    assert ours_BLE.shape[1] == usual.shape[1] - 7


@pytest.mark.parametrize("key", SEEN)
def test_states_of_hidden_padding_are_zeros(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    usual_BLE = setup.encode_text(model, PROMPTS)["hidden_BLE"]
    hidden_BLE = setup.encode_text(told(key, model, mask="MASKED"), PROMPTS)["hidden_BLE"]
    blank_BL = (hidden_BLE == 0).all(dim=-1)
    assert 0 < int(blank_BL[1].sum()) < int(blank_BL[0].sum())
    assert not bool((usual_BLE[blank_BL] == 0).all())
    assert torch.equal(hidden_BLE[~blank_BL], usual_BLE[~blank_BL])
    assert torch.equal(setup.encode_text(told(key, model, mask="SEEN"), PROMPTS)["hidden_BLE"], usual_BLE)


@pytest.mark.parametrize("key", MASKED)
def test_padding_that_is_usually_hidden_can_be_seen(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    usual = setup.encode_text(model, PROMPTS)
    seen = setup.encode_text(told(key, model, mask="SEEN"), PROMPTS)
    assert not bool(usual["mask_BL"].all())
    assert bool(seen["mask_BL"].all())
    assert torch.equal(seen["hidden_BLE"], usual["hidden_BLE"])
    assert told(key, model, mask="MASKED").masks_padding is None


def test_what_an_encoder_cannot_read_is_refused() -> None:
    for data, field in (
        ({"model_type": "STABLE_DIFFUSION_15", "text_encoder": {"sequence_length": 20}}, "text_encoder"),
        ({"model_type": "FLUX_DEV_1", "text_encoder": {"sequence_length": 20}}, "text_encoder"),
        ({"model_type": "CHROMA_1", "text_encoder": {"sequence_length": 513}}, "text_encoder"),
        ({"model_type": "Z_IMAGE", "text_encoder": {"sequence_length": 8}}, "text_encoder"),
        ({"model_type": "QWEN", "transformer": {"attention_mask": "SEEN"}}, "transformer"),
    ):
        errors = find_problems(TrainConfig.from_dict(data)).errors
        assert [str(error.field).partition(".")[0] for error in errors] == [field], data
    for data in (
        {"model_type": "QWEN", "text_encoder": {"sequence_length": 1024}},
        {"model_type": "FLUX_DEV_1", "text_encoder_2": {"sequence_length": 77}},
    ):
        assert find_problems(read_config(data)).errors == []
    with pytest.raises(ConfigError, match="up to 12 tokens") as caught:
        told("CHROMA_1", tiny_model("CHROMA_1"), 13)
    assert caught.value.field == "text_encoder.sequence_length"


def test_how_prompts_are_read_is_part_of_the_key_of_their_states(tmp_path: Path) -> None:
    model = builders.AveragingModel()
    loader: Any = builders.loader(builders.dpo_config(tmp_path, 1), model, prepare=False)
    keys = [loader.text_identity()]
    model.prompt_length = 77
    keys.append(loader.text_identity())
    model.prompt_length, model.masks_padding = 0, True
    keys.append(loader.text_identity())
    model.masks_padding = None
    assert len(set(keys)) == 3 and loader.text_identity() == keys[0]


@pytest.mark.parametrize(
    "families",
    [("FLUX_DEV_1", "FLUX_SCHNELL_1"), ("PIXART_ALPHA", "PIXART_SIGMA"), ("QWEN", "LONGCAT_IMAGE")],
)
def test_families_with_the_same_encoders_do_not_take_each_other_s_states(
    families: tuple[str, str], tmp_path: Path
) -> None:
    """They put other words around a prompt, or read another number of tokens, and a folder may cache for both."""
    loader: Any = builders.loader(builders.dpo_config(tmp_path, 1), builders.AveragingModel(), prepare=False)
    keys = set()
    for family in families:
        loader.setup = SimpleNamespace(spec=FAMILIES[family])
        keys.add(loader.text_identity())
    assert len(keys) == 2
