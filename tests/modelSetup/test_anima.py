"""Anima: what the contract of all families does not cover."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.util.config.foreign.base_family import family_of_base
from modules.util.config.load import check_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError, UserError
from modules.util.files.model_index import NAMES, read_index
from modules.weights.saving import save_folder
from tests.adapter.families import trained_family
from tests.modelSetup.originals import LAYOUTS, to_original
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.anima import Blocks
from tests.tiny.batches import images
from tests.weights.test_part_sources import assert_same, part_state

KEY = "ANIMA"
PROMPTS = ["a red circle", "a large blue square on the left"]


# the usual run has a shape of its own in tests/contracts/test_pipeline_parity.py
@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 4.0], ids=["plain", "guided"])
def test_images_of_another_shape_are_those_of_the_pipeline(guidance: float) -> None:
    size = (32, 64)
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    ours = images(setup, model, PROMPTS, "blue", seeds=[7, 8], steps=3, cfg=guidance, size=size)
    wanted = Blocks(tiny_folder(KEY))(
        PROMPTS,
        guidance,
        negative_prompt=["blue", "blue"],
        height=size[0],
        width=size[1],
        num_inference_steps=3,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        output_type="pt",
    ).images.float()
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())


def test_states_are_those_of_the_pipeline() -> None:
    """Texts of unlike length, the empty one among them: zeros fill the rest, and change nothing."""
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    pipeline: Any = Blocks(tiny_folder(KEY)).made
    for text in [*PROMPTS, ""]:
        # a guidance of 1 leaves the negative prompt out
        wanted_1LE = pipeline(
            prompt=[text], num_inference_steps=1, height=32, width=32, output="prompt_embeds"
        )
        found_1LE = setup.encode_text(model, [text])["hidden_BLE"]
        assert torch.allclose(found_1LE, wanted_1LE, atol=1e-5), text
    together_BLE = setup.encode_text(model, [*PROMPTS, ""])["hidden_BLE"]
    for row, text in enumerate([*PROMPTS, ""]):
        alone_LE = setup.encode_text(model, [text])["hidden_BLE"][0]
        assert torch.allclose(together_BLE[row], alone_LE, atol=1e-5), text


def published(path: Path) -> Path:
    """One file with the denoiser and the network between the tokenizers, as the model is published."""
    spec = tiny_setup(KEY).spec
    state = to_original(part_state(KEY, spec.denoiser), LAYOUTS[KEY])
    state |= {f"llm_adapter.{name}": tensor for name, tensor in part_state(KEY, "text_encoder_2").items()}
    save_file({f"net.{name}": tensor for name, tensor in state.items()}, path)
    return path


def test_both_parts_come_from_the_published_file(tmp_path: Path) -> None:
    setup, folder = tiny_setup(KEY), tiny_folder(KEY)
    path = str(published(tmp_path / "anima.safetensors"))
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for place in ("transformer", "text_conditioner"):
        for file in (other / place).glob("*.safetensors"):
            save_file({name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}, file)
    model = setup.load(str(other), part_sources={"transformer": path, "text_encoder_2": path})
    assert_same(tiny_model(KEY), model)


def test_a_file_without_the_network_says_so(tmp_path: Path) -> None:
    path = published(tmp_path / "anima.safetensors")
    save_file({n: t for n, t in load_file(path).items() if "llm_adapter" not in n}, path)
    with pytest.raises(UserError, match="text_encoder_2|text_conditioner|llm_adapter"):
        tiny_setup(KEY).load(str(tiny_folder(KEY)), part_sources={"text_encoder_2": str(path)})


def test_the_index_of_modular_pipelines_is_read(tmp_path: Path) -> None:
    """The model is published with that index alone, and each part names where it comes from."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(KEY), folder)
    index = json.loads((folder / NAMES[0]).read_text())
    (folder / NAMES[0]).unlink()
    modular = {
        name: [*value, {"subfolder": name, "pretrained_model_name_or_path": "elsewhere/else"}]
        if isinstance(value, list)
        else value
        for name, value in index.items()
    }
    (folder / NAMES[1]).write_text(json.dumps(modular))
    assert read_index(folder / NAMES[1]) == index
    assert_same(tiny_model(KEY), tiny_setup(KEY).load(str(folder)))


def test_what_a_folder_lacks_is_called_by_its_name_there(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(KEY), folder)
    shutil.rmtree(folder / "text_conditioner")
    (folder / "t5_tokenizer").rename(folder / "tokenizer_2")
    with pytest.raises(UserError) as caught:
        tiny_setup(KEY).load(str(folder))
    said = str(caught.value)
    assert "text_conditioner is missing" in said and "t5_tokenizer is missing" in said
    assert "text_encoder_2" not in said and "tokenizer_2" not in said


def test_a_saved_folder_is_read_here_and_by_the_pipeline(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    save_folder(tiny_model(KEY), saved)
    assert_same(tiny_model(KEY), tiny_setup(KEY).load(str(saved)))
    assert {place.name for place in saved.iterdir() if place.is_dir()} >= {"text_conditioner", "t5_tokenizer"}
    options = {"num_inference_steps": 1, "height": 32, "width": 32, "output_type": "pt"}
    made = [
        Blocks(place)(PROMPTS[:1], 1.0, generator=torch.Generator().manual_seed(1), **options).images
        for place in (tiny_folder(KEY), saved)
    ]
    assert torch.equal(*made)


def test_the_network_between_the_tokenizers_is_never_trained() -> None:
    config = TrainConfig.from_dict(
        {"model_type": KEY, "base_model_name": "x", "text_encoder_2": {"train": True}}
    )
    with pytest.raises(UnsupportedError, match="text_encoder_2.train"):
        check_config(config)


def test_what_is_trained_leaves_it_out() -> None:
    assert tiny_setup(KEY).spec.trained_encoders == ("text_encoder",)
    layers = [name for name, _ in trained_family(KEY).named_parameters()]
    assert any(name.startswith("text_encoder.") for name in layers)
    assert not any(name.startswith("text_encoder_2") for name in layers)


def test_settings_of_other_programs_that_name_it_are_of_this_family() -> None:
    name = "circlestone-labs/Anima-Base-v1.0-Diffusers"
    assert family_of_base(name, (), "base_model_name").value == KEY
