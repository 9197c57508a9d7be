"""Whole models as one file: names, shapes, and the way there and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes
from modules.util.errors import UserError
from modules.weights.ldm_keys import unet_to_ldm, vae_to_ldm
from modules.weights.one_file import save_file as save_single_file
from modules.weights.saving import save_folder
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.usual import usual

KEYS = Path(__file__).parents[2].parent / "shared" / "data" / "lora_keys" / "sd15_ORIGINAL_LORA.json"


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the head counts and factors that single files leave unsaid."""
    from tests.tiny.stable_diffusion import write_standard_pipeline

    return write_standard_pipeline(tmp_path_factory.mktemp("standard") / "model")


@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize("prediction", usual([None, "v_prediction"], "v_prediction"))
def test_a_file_gives_the_same_images(standard: Path, tmp_path: Path, dtype, prediction) -> None:
    from modules.modelSetup.ModelFamily import LoadOptions

    setup = tiny_setup()
    model = setup.load(str(standard), options=LoadOptions(prediction))
    path = save_single_file(model, tmp_path / "model.safetensors", dtype)
    shutil.copytree(standard / "tokenizer", tmp_path / "tokenizer")
    again = setup.load(str(path), PartDtypes(default=torch.float32))
    assert again.schedule.prediction == model.schedule.prediction
    for name, module in model.modules().items():
        other = again.module(name).state_dict()
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor.to(dtype or tensor.dtype).to(tensor.dtype), other[key]), key
    if dtype is None:
        first = images(setup, model, ["a cat"], seeds=[1], steps=2, size=SIZE)
        assert torch.allclose(
            first, images(setup, again, ["a cat"], seeds=[1], steps=2, size=SIZE), atol=1e-6
        )


def test_a_file_of_an_inpainting_model(tmp_path: Path) -> None:
    from tests.tiny.stable_diffusion import write_standard_pipeline

    folder = write_standard_pipeline(tmp_path / "model", inputs=9)
    setup = tiny_setup("STABLE_DIFFUSION_15_INPAINTING")
    model = setup.load(str(folder))
    path = save_single_file(model, tmp_path / "model.safetensors")
    shutil.copytree(folder / "tokenizer", tmp_path / "tokenizer")
    again = setup.load(str(path))
    first, second = (images(setup, each, ["a cat"], seeds=[1], steps=2, size=SIZE) for each in (model, again))
    assert torch.allclose(first, second, atol=1e-6)
    with pytest.raises(UserError, match="takes 9 channels instead of 4"):
        tiny_setup().load(str(path))


def test_file_has_the_names_of_the_layout(standard: Path, tmp_path: Path) -> None:
    path = save_single_file(tiny_setup().load(str(standard)), tmp_path / "model.safetensors")
    with safe_open(str(path), framework="pt") as file:
        names = set(file.keys())
        metadata = file.metadata()
    assert {
        "model.diffusion_model.input_blocks.0.0.weight",
        "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q.weight",
        "model.diffusion_model.middle_block.1.proj_in.weight",
        "model.diffusion_model.out.2.bias",
        "first_stage_model.encoder.down.0.block.0.conv1.weight",
        "first_stage_model.decoder.up.1.upsample.conv.weight",
        "first_stage_model.encoder.mid.attn_1.q.weight",
        "first_stage_model.quant_conv.weight",
        "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight",
    } <= names
    assert load_file(path)["first_stage_model.encoder.mid.attn_1.q.weight"].dim() == 4
    assert metadata["modelspec.architecture"] == "stable-diffusion-v1"


def test_diffusers_knows_the_file(standard: Path, tmp_path: Path) -> None:
    """The names against an independent reader: diffusers' own converter of such files."""
    from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint, convert_ldm_vae_checkpoint

    model = tiny_setup().load(str(standard))
    state = load_file(save_single_file(model, tmp_path / "model.safetensors"))
    unet = convert_ldm_unet_checkpoint(dict(state), model.denoiser.config)
    own = model.denoiser.state_dict()
    assert unet.keys() == own.keys()
    assert all(torch.equal(unet[key], own[key]) for key in own)
    vae = convert_ldm_vae_checkpoint(dict(state), model.vae.config)
    own = model.vae.state_dict()
    assert vae.keys() == own.keys()
    assert all(torch.equal(vae[key].reshape(own[key].shape), own[key]) for key in own)


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"double_blocks.0.img_attn.qkv.weight": torch.ones(1)}, path)
    with pytest.raises(UserError, match="no unet and no text_encoder and no vae") as caught:
        tiny_setup().load(str(path))
    assert "double_blocks" in str(caught.value.hint)
    path.write_bytes(b"garbage" * 10)
    with pytest.raises(UserError, match="damaged"):
        tiny_setup().load(str(path))


def test_incomplete_files_name_what_is_missing(standard: Path, tmp_path: Path) -> None:
    path = save_single_file(tiny_setup().load(str(standard)), tmp_path / "model.safetensors")
    state = load_file(path)
    state.pop("model.diffusion_model.middle_block.0.in_layers.2.weight")
    save_file(state, path)
    with pytest.raises(UserError, match=r"middle_block\.0\.in_layers\.2\.weight"):
        tiny_setup().load(str(path))


def test_a_file_without_a_tokenizer_whose_words_are_not_those_of_clip(standard: Path, tmp_path: Path) -> None:
    path = save_single_file(tiny_setup().load(str(standard)), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"has 49408 tokens, its text_encoder knows \d{3}\b") as caught:
        tiny_setup().load(str(path))
    assert str(tmp_path / "tokenizer") in str(caught.value.hint)


def test_widths_no_such_part_has_are_an_error_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    # its norms have fewer groups than files can say
    save_single_file(tiny_model(), path)
    for dtypes in (PartDtypes(), PartDtypes(lazy=True)):
        with pytest.raises(UserError, match="model.safetensors has widths that such a part cannot have"):
            tiny_setup().load(str(path), dtypes, parts=["unet"])


def test_unknown_modules_have_no_name() -> None:
    for path in ("down_blocks.0.motion.0.conv", "nothing", "mid_block.resnets.0.unknown"):
        with pytest.raises(KeyError):
            unet_to_ldm(path, 1, (False, True))
    with pytest.raises(KeyError):
        vae_to_ldm("encoder.nothing", 3)


@pytest.mark.skipif(not KEYS.is_file(), reason="key lists of other programs are not at hand")
def test_names_agree_with_files_in_the_wild() -> None:
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    from modules.adapter.layers import adaptable_layers

    with torch.device("meta"):
        unet = UNet2DConditionModel(
            block_out_channels=(32, 64, 128, 128), layers_per_block=1, cross_attention_dim=64
        )
    golden = {key.split(".lora_")[0].removesuffix(".alpha") for key in json.loads(KEYS.read_text())}
    # these lists number the blocks as in the full model, with two layers a block
    attention = (False, True, True, True)
    assert {unet_to_ldm(path, 2, attention) for path in adaptable_layers(unet)} == golden


def test_saving_a_folder_over_one_saved_before(tmp_path: Path) -> None:
    target = save_folder(tiny_model(), tmp_path / "out")
    (target / "unet").joinpath("empty").mkdir()
    save_folder(tiny_model(), target, torch.float16)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert not (target / "unet" / "empty").exists()
    assert next(iter(load_file(target / "unet" / "diffusion_pytorch_model.safetensors").values())).dtype == (
        torch.float16
    )


@pytest.mark.parametrize("place", ["mine.txt", "unet/mine.txt", "model_index.json"])
def test_a_folder_with_anything_of_a_person_is_not_saved_over(tmp_path: Path, place: str) -> None:
    target = save_folder(tiny_model(), tmp_path / "out")
    (target / place).write_text("written by a person", encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.txt|model_index\.json"):
        save_folder(tiny_model(), target)
    assert (target / place).read_text() == "written by a person"
    foreign = Path(shutil.copytree(tiny_folder(), tmp_path / "foreign"))
    with pytest.raises(UserError, match="does not name"):
        save_folder(tiny_model(), foreign)


def test_a_model_is_not_saved_over_itself(tmp_path: Path) -> None:
    source = save_folder(tiny_model(), tmp_path / "base")
    model = tiny_setup().load(str(source))
    for target in (source, tmp_path / "base" / "." / ".." / "base"):
        with pytest.raises(UserError, match="in use"):
            save_folder(model, target)


def test_a_failed_save_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    target = save_folder(model, tmp_path / "out")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(model.parts["tokenizer"], "save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        save_folder(model, target)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert tiny_setup().load(str(target)).denoiser is not None


def test_zero_terminal_snr_survives_saving(tmp_path: Path) -> None:
    from modules.modelSetup.ModelFamily import LoadOptions

    setup = tiny_setup()
    model = setup.load(str(tiny_folder()), options=LoadOptions("v_prediction", zero_terminal_snr=True))
    again = setup.load(str(save_folder(model, tmp_path / "out")))
    assert again.schedule.prediction == "v_prediction"
    assert float(again.schedule.alphas_cumprod_T[-1]) == 0.0
    assert again.parts["scheduler"]["timestep_spacing"] == "trailing"
