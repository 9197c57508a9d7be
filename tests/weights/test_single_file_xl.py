"""Single files of models with two text encoders, the second one as OpenCLIP names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes
from modules.modelSetup.ModelFamily import LoadOptions
from modules.util.errors import UserError
from modules.weights.one_file import save_file as save_single_file
from modules.weights.open_clip import from_open_clip, to_open_clip
from tests.tiny import SIZE, tiny_setup
from tests.tiny.batches import images
from tests.tiny.stable_diffusion_xl import write_standard
from tests.usual import usual

KEY = "STABLE_DIFFUSION_XL_10_BASE"


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standard") / "model"
    write_standard(folder)
    return folder


@pytest.fixture(scope="module")
def file(standard: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as one file, with the first encoder's tokenizer next to it."""
    place = tmp_path_factory.mktemp("file")
    shutil.copytree(standard / "tokenizer", place / "tokenizer")
    return save_single_file(tiny_setup(KEY).load(str(standard)), place / "model.safetensors")


def test_a_file_is_the_same_model(standard: Path, file: Path) -> None:
    setup = tiny_setup(KEY)
    model, again = setup.load(str(standard)), setup.load(str(file))
    for name, module in model.modules().items():
        other = again.module(name).state_dict()
        assert other.keys() == module.state_dict().keys()
        assert all(torch.equal(tensor, other[key]) for key, tensor in module.state_dict().items()), name
    # few words and many, so that the tokenizers' different padding shows
    for prompt in ("", "a red cat on the left of a small blue dog"):
        ours, theirs = (setup.encode_text(each, [prompt]) for each in (model, again))
        assert all(torch.equal(ours[name], theirs[name]) for name in ("hidden_BLE", "pooled_BE"))
    first, second = (
        images(setup, each, ["a cat"], "blue", seeds=[1], steps=2, size=SIZE) for each in (model, again)
    )
    assert torch.allclose(first, second, atol=1e-6)


def test_config_of_the_published_model_is_read_off_the_shapes(standard: Path, file: Path) -> None:
    setup = tiny_setup(KEY)
    ours, theirs = setup.load(str(file)).denoiser.config, setup.load(str(standard)).denoiser.config
    for name in (
        "addition_embed_type", "addition_time_embed_dim", "projection_class_embeddings_input_dim",
        "cross_attention_dim", "use_linear_projection", "block_out_channels", "layers_per_block",
    ):  # fmt: skip
        assert ours[name] == theirs[name] or list(ours[name]) == list(theirs[name]), name
    assert list(ours["attention_head_dim"]) == [1, 2]
    assert list(ours["transformer_layers_per_block"]) == [1, 2]


def test_names_of_the_layout(file: Path) -> None:
    with safe_open(str(file), framework="pt") as opened:
        names, metadata = set(opened.keys()), opened.metadata()
    assert {
        "model.diffusion_model.label_emb.0.0.weight",
        "model.diffusion_model.input_blocks.3.1.transformer_blocks.1.attn1.to_q.weight",
        "conditioner.embedders.0.transformer.text_model.embeddings.token_embedding.weight",
        "conditioner.embedders.1.model.token_embedding.weight",
        "conditioner.embedders.1.model.positional_embedding",
        "conditioner.embedders.1.model.text_projection",
        "conditioner.embedders.1.model.ln_final.weight",
        "conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj_weight",
        "conditioner.embedders.1.model.transformer.resblocks.1.mlp.c_proj.bias",
        "first_stage_model.encoder.mid.attn_1.q.weight",
    } <= names
    assert not any(mark in names for mark in ("v_pred", "ztsnr"))
    assert metadata["modelspec.architecture"] == "stable-diffusion-xl-v1-base"


def test_diffusers_knows_the_file(standard: Path, file: Path) -> None:
    """The names against an independent reader: diffusers' own converters."""
    from diffusers.loaders.single_file_utils import (
        convert_ldm_unet_checkpoint,
        convert_ldm_vae_checkpoint,
        convert_open_clip_checkpoint,
        infer_diffusers_model_type,
    )

    model, state = tiny_setup(KEY).load(str(standard)), load_file(file)
    unet = convert_ldm_unet_checkpoint(dict(state), model.denoiser.config)
    own = model.denoiser.state_dict()
    assert unet.keys() == own.keys() and all(torch.equal(unet[key], own[key]) for key in own)
    vae = convert_ldm_vae_checkpoint(dict(state), model.vae.config)
    own = model.vae.state_dict()
    assert vae.keys() == own.keys()
    text = convert_open_clip_checkpoint(
        model.module("text_encoder_2"), dict(state), prefix="conditioner.embedders.1.model."
    )
    own = model.module("text_encoder_2").state_dict()
    plain = {key.removeprefix("text_model."): tensor for key, tensor in text.items()}
    assert {key.removeprefix("text_model.") for key in own if "position_ids" not in key} == plain.keys()
    assert all(
        torch.equal(plain[key.removeprefix("text_model.")], tensor)
        for key, tensor in own.items()
        if "position_ids" not in key
    )
    # the published model has more layers than this one, by one of which it is known
    deep = "conditioner.embedders.1.model.transformer.resblocks.9.mlp.c_proj.bias"
    assert infer_diffusers_model_type({**state, deep: torch.zeros(1)}) == "xl_base"


def test_open_clip_there_and_back() -> None:
    source = torch.Generator().manual_seed(0)
    state = {
        "token_embedding.weight": torch.randn(6, 4, generator=source),
        "positional_embedding": torch.randn(3, 4, generator=source),
        "ln_final.weight": torch.randn(4, generator=source),
        "text_projection": torch.randn(4, 5, generator=source),
        "transformer.resblocks.11.attn.in_proj_weight": torch.randn(12, 4, generator=source),
        "transformer.resblocks.11.attn.in_proj_bias": torch.randn(12, generator=source),
        "transformer.resblocks.11.attn.out_proj.weight": torch.randn(4, 4, generator=source),
        "transformer.resblocks.11.mlp.c_fc.bias": torch.randn(16, generator=source),
    }
    plain = from_open_clip({**state, "logit_scale": torch.zeros(())})
    key_rows = state["transformer.resblocks.11.attn.in_proj_weight"][4:8]
    assert torch.equal(plain["encoder.layers.11.self_attn.k_proj.weight"], key_rows)
    assert plain["text_projection.weight"].shape == (5, 4)
    again = to_open_clip(plain)
    assert again.keys() == state.keys() and all(torch.equal(again[key], state[key]) for key in state)
    with pytest.raises(KeyError):
        to_open_clip({"encoder.layers.0.nothing.weight": torch.zeros(1)})


@pytest.mark.parametrize("zero_snr", usual([False, True], True))
def test_parameterisation_is_kept(standard: Path, tmp_path: Path, zero_snr: bool) -> None:
    setup = tiny_setup(KEY)
    model = setup.load(str(standard), options=LoadOptions("v_prediction", zero_snr))
    path = save_single_file(model, tmp_path / "model.safetensors")
    shutil.copytree(standard / "tokenizer", tmp_path / "tokenizer")
    state = load_file(path)
    assert ("v_pred" in state, "ztsnr" in state) == (True, zero_snr)
    # other programs write no metadata
    save_file(state, path)
    again = setup.load(str(path), parts={"vae"})
    assert again.schedule.prediction == "v_prediction"
    assert torch.equal(again.schedule.alphas_cumprod_T, model.schedule.alphas_cumprod_T)


def test_half_precision_leaves_the_autoencoder_alone(file: Path) -> None:
    model = tiny_setup(KEY).load(str(file), PartDtypes(default=torch.float16))
    types = {name: next(module.parameters()).dtype for name, module in model.modules().items()}
    assert types.pop("vae") == torch.float32 and set(types.values()) == {torch.float16}


def test_incomplete_files_say_what_they_lack(file: Path, tmp_path: Path) -> None:
    state = load_file(file)
    alone = {key: tensor for key, tensor in state.items() if key.startswith("model.diffusion_model.")}
    path = tmp_path / "model.safetensors"
    save_file(alone, path)
    with pytest.raises(UserError, match="no text_encoder and no text_encoder_2 and no vae") as caught:
        tiny_setup(KEY).load(str(path))
    assert "diffusers folder" in str(caught.value.hint)
    state.pop("conditioner.embedders.1.model.transformer.resblocks.1.attn.in_proj_weight")
    save_file(state, path)
    with pytest.raises(UserError, match=r"encoder\.layers\.1\.self_attn"):
        tiny_setup(KEY).load(str(path))


def test_files_of_another_generation_are_told_apart(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a Stable Diffusion 1\.5 checkpoint: it holds no text_encoder"):
        tiny_setup("STABLE_DIFFUSION_15").load(str(file))
    state = {
        key.replace("conditioner.embedders.0.", "cond_stage_model."): tensor
        for key, tensor in load_file(file).items()
        if "embedders.1" not in key
    }
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="no text_encoder and no text_encoder_2"):
        tiny_setup(KEY).load(str(tmp_path / "model.safetensors"))
