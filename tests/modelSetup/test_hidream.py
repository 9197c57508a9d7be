"""HiDream-I1: what the contract of all families does not cover."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.adapter.layers import adaptable_layers, filter_patterns, select_layers
from modules.model.experts import let_gradients_through
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.spec.families.hidream import LLAMA
from modules.util.config.foreign.base_family import family_of_base
from modules.util.config.load import check_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError
from modules.util.published_models import find_published
from scripts.convert_model import main as convert
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images
from tests.tiny.hidream import sized_as_asked
from tests.tiny.stable_diffusion import CONTEXT
from tests.usual import usual
from tests.weights.test_part_sources import assert_same

KEY = "HI_DREAM_FULL"
PROMPTS = ["a red circle", "a large blue square on the left"]
SQUARE, PADDED, LARGE = (32, 32), (32, 48), (64, 96)
"""Sizes in pixels; the last has more patches than the tiny model pads to."""


# the usual run has another shape without guidance in tests/contracts/test_pipeline_parity.py
@pytest.mark.parametrize("guidance", usual([1.0, 5.0], 5.0), ids=["plain", "guided"])
def test_images_of_another_shape_are_those_of_the_pipeline(
    guidance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import HiDreamImagePipeline

    folder, size = tiny_folder(KEY), (32, 64)
    sized_as_asked(folder, monkeypatch)
    made: Any = HiDreamImagePipeline.from_pretrained(str(folder))
    made.set_progress_bar_config(disable=True)
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    ours = images(setup, model, PROMPTS, "blue", seeds=[7, 8], steps=3, cfg=guidance, size=size)
    wanted = made(
        prompt=list(PROMPTS),
        negative_prompt=["blue", "blue"],
        height=size[0],
        width=size[1],
        num_inference_steps=3,
        guidance_scale=guidance,
        max_sequence_length=CONTEXT,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        output_type="pt",
    ).images.float()
    assert ours.shape == wanted.shape
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())


def noise(model: Model, size: tuple[int, int]) -> torch.Tensor:
    shape = (2, model.latent_channels, *(side // model.latent_factor for side in size))
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def by_hand(denoiser: Any, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Any) -> torch.Tensor:
    """The transformer of diffusers as it comes; what it would not pad is given as patches."""
    given: dict[str, Any] = {"hidden_states": x_BChw}
    height, width = (side // 2 for side in x_BChw.shape[-2:])
    if height != width and height * width > denoiser.max_seq:
        x = x_BChw.reshape(len(x_BChw), -1, height, 2, width, 2).permute(0, 2, 4, 3, 5, 1)
        places = torch.cartesian_prod(torch.zeros(1), torch.arange(float(height)), torch.arange(float(width)))
        given = {
            "hidden_states": x.reshape(len(x_BChw), height * width, -1),
            "hidden_states_masks": torch.ones(len(x_BChw), height * width),
            "img_ids": places.repeat(len(x_BChw), 1, 1),
            "img_sizes": [(height, width)] * len(x_BChw),
        }
    depths = cond["hidden_BLE"].unflatten(2, (3, -1)).permute(2, 0, 1, 3)
    with torch.no_grad():
        out: torch.Tensor = denoiser(
            **given,
            timesteps=t_B,
            encoder_hidden_states_t5=cond["t5_BTE"],
            encoder_hidden_states_llama3=list(depths),
            pooled_embeds=cond["pooled_BE"],
            return_dict=False,
        )[0]
    return out


@pytest.mark.parametrize(
    ("t", "size"),
    usual(
        [(10.0, SQUARE), (500.0, SQUARE), (990.0, SQUARE), (10.0, PADDED), (990.0, PADDED), (500.0, LARGE)],
        (10.0, SQUARE),
        (990.0, PADDED),
        (500.0, LARGE),
    ),
)
def test_a_prediction_is_the_denoiser_s_the_other_way_round(t: float, size: tuple[int, int]) -> None:
    setup, model, other = tiny_setup(KEY), tiny_model(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    x_BChw, t_B = noise(model, size), torch.full((2,), t)
    with torch.no_grad():
        found = setup.denoise(model, x_BChw, t_B, cond, size)
    out = by_hand(other.denoiser, x_BChw, t_B, cond)
    assert torch.allclose(found, -out, atol=1e-5) and float(out.abs().max()) > 1e-3


@pytest.mark.parametrize("size", [SQUARE, PADDED], ids=["square", "padded"])
def test_the_true_velocity_has_no_loss(size: tuple[int, int]) -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    batch = image_batch(setup, model, ["a", "b"], size=size)
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    velocity_BChw = draw.noise_BChw - batch.latents_BChw
    patches = velocity_BChw.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 3, 5, 1)
    denoiser: Any = model.denoiser
    # this model says which way leads to the image
    denoiser.forward = lambda **given: (-patches.flatten(3).flatten(1, 2),)
    out = setup.predict(model, batch.latents_BChw, setup.condition(model, batch), draw, size)
    assert torch.allclose(out.predicted, out.target, atol=1e-6) and float(out.target.abs().max()) > 0.1


def states_of(model: Model, prompt: str) -> dict[str, torch.Tensor]:
    """What each text encoder makes of a prompt, called by hand."""
    parts, made = model.parts, {}
    with torch.no_grad():
        for which in ("", "_2"):
            tokenizer = parts[f"tokenizer{which}"]
            ids = tokenizer(prompt, padding="max_length", max_length=CONTEXT, return_tensors="pt").input_ids
            made[which] = model.module(f"text_encoder{which}")(ids).text_embeds
        llama: Any = model.module("text_encoder_4")
        tokens = parts["tokenizer_4"](prompt, padding="max_length", max_length=CONTEXT, return_tensors="pt")
        states = llama(**tokens, output_hidden_states=True).hidden_states
    return {"pooled_BE": torch.cat([made[""], made["_2"]], dim=-1), "hidden_BLE": torch.cat(states[1:], -1)}


def test_states_are_those_of_every_depth_and_both_pooled_ones() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, [*PROMPTS, ""])
    for row, text in enumerate([*PROMPTS, ""]):
        for name, wanted in states_of(model, text).items():
            assert torch.allclose(cond[name][row], wanted[0], atol=1e-5), (name, text)


# -- experts ---------------------------------------------------------------------------------------------------


def layer_of(model: Model) -> Any:
    blocks: Any = model.denoiser.double_stream_blocks
    return blocks[0].block.ff_i


def test_experts_give_what_the_library_s_do_and_their_gradients() -> None:
    model = tiny_model(KEY, dtype=torch.float64)
    theirs = copy.deepcopy(layer_of(model)).requires_grad_(True)
    let_gradients_through(model.denoiser)
    ours = layer_of(model).requires_grad_(True)
    x_BLE = torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(ours(x_BLE), theirs.eval()(x_BLE), atol=1e-12)
    # in training mode the library keeps the graph, and adds a loss of its router elsewhere
    theirs.train()
    gradients = []
    for layer in (ours, theirs):
        given = x_BLE.clone().requires_grad_(True)
        layer(given).square().sum().backward()
        found = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
        gradients.append({**found, "x": given.grad})
    assert gradients[0].keys() == gradients[1].keys() and "gate.weight" in gradients[0]
    for name, wanted in gradients[1].items():
        assert torch.allclose(gradients[0][name], wanted, atol=1e-10), name


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_both_modes_are_the_same_and_the_router_has_no_loss(mode: str) -> None:
    setup, model, other = tiny_setup(KEY), tiny_model(KEY), tiny_model(KEY)
    cond, x_BChw, t_B = setup.encode_text(model, PROMPTS), noise(model, PADDED), torch.full((2,), 300.0)
    model.denoiser.train(mode == "train").requires_grad_(True)
    found = setup.denoise(model, x_BChw, t_B, cond, PADDED)
    assert torch.allclose(found, -by_hand(other.denoiser, x_BChw, t_B, cond), atol=1e-5)
    found.square().sum().backward()
    layer = layer_of(model)
    assert layer.gate(torch.randn(1, 2, 32))[2] is None
    assert all(float(each.w1.weight.grad.abs().max()) > 0 for each in layer.experts)


def test_a_token_of_no_expert_s_choice_is_no_trouble() -> None:
    model = tiny_model(KEY)
    let_gradients_through(model.denoiser)
    layer = layer_of(model)
    layer.gate.weight.data[0] = 0.0
    layer.gate.weight.data[1:] = 1.0
    assert torch.isfinite(layer(torch.ones(1, 4, 32))).all()


def test_experts_get_adapters_only_where_all_layers_do() -> None:
    spec, names = tiny_setup(KEY).spec, adaptable_layers(tiny_model(KEY).denoiser)
    for preset in spec.layer_presets:
        chosen = select_layers(names, filter_patterns(preset, "", spec.layer_presets))
        assert any(".experts." in name for name in chosen) is (preset == "full"), preset
        assert preset == "full" or all("_stream_blocks." in name for name in chosen)


# -- a text encoder that is published elsewhere ----------------------------------------------------------------


def without_llama(folder: Path, entry: object) -> Path:
    """The tiny model as it is published."""
    shutil.copytree(tiny_folder(KEY), folder)
    index = json.loads((folder / "model_index.json").read_text())
    for name in ("text_encoder_4", "tokenizer_4"):
        shutil.rmtree(folder / name)
        index.pop(name)
        if entry is not None:
            index[name] = entry
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def llama_alone(folder: Path) -> Path:
    """The encoder with its tokenizer, as their own repository has them."""
    for name in ("text_encoder_4", "tokenizer_4"):
        shutil.copytree(tiny_folder(KEY) / name, folder, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("entry", [None, [None, None]], ids=["unnamed", "empty"])
def test_the_error_names_the_repository_and_the_setting(entry: object, tmp_path: Path) -> None:
    base = without_llama(tmp_path / "base", entry)
    with pytest.raises(UserError) as caught:
        tiny_setup(KEY).load(str(base))
    assert LLAMA in str(caught.value) and "text_encoder_4.model_name" in str(caught.value)
    assert "gated" in str(caught.value)


@pytest.mark.parametrize("entry", usual([None, [None, None]], None), ids=["unnamed", "empty"])
def test_encoder_and_tokenizer_come_from_a_folder_of_their_own(entry: object, tmp_path: Path) -> None:
    base, llama = without_llama(tmp_path / "base", entry), llama_alone(tmp_path / "llama")
    model = tiny_setup(KEY).load(str(base), part_sources={"text_encoder_4": str(llama)})
    assert_same(tiny_model(KEY), model)
    assert (
        model.parts["tokenizer_4"]("a cat").input_ids
        == tiny_model(KEY).parts["tokenizer_4"]("a cat").input_ids
    )
    whole = tiny_setup(KEY).load(str(base), part_sources={"text_encoder_4": str(tiny_folder(KEY))})
    assert_same(tiny_model(KEY), whole)


def test_a_folder_with_all_parts_can_be_written(tmp_path: Path) -> None:
    base, llama = without_llama(tmp_path / "base", None), llama_alone(tmp_path / "llama")
    words = ["checkpoint", str(base), str(tmp_path / "whole"), "--to", "DIFFUSERS", "--family", KEY]
    assert convert([*words, "--part", f"text_encoder_4={llama}"]) == 0
    assert_same(tiny_model(KEY), tiny_setup(KEY).load(str(tmp_path / "whole")))


def test_a_file_needs_the_tokenizer_next_to_it(tmp_path: Path) -> None:
    base, llama = without_llama(tmp_path / "base", None), llama_alone(tmp_path / "llama")
    shutil.copytree(tiny_folder(KEY) / "text_encoder_4", base / "text_encoder_4")
    file = str(llama / "model.safetensors")
    with pytest.raises(UserError, match="tokenizer_4"):
        tiny_setup(KEY).load(str(base), part_sources={"text_encoder_4": file})
    shutil.copytree(tiny_folder(KEY) / "tokenizer_4", llama / "tokenizer_4")
    assert_same(tiny_model(KEY), tiny_setup(KEY).load(str(base), part_sources={"text_encoder_4": file}))


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    base = without_llama(tmp_path / "base", None)
    shutil.copytree(tiny_folder(KEY) / "text_encoder_4", tmp_path / "llama")
    with pytest.raises(UserError, match=r"names no tokenizer_4") as caught:
        tiny_setup(KEY).load(str(base), part_sources={"text_encoder_4": str(tmp_path / "llama")})
    assert "its tokenizer" in str(caught.value)


def test_a_run_without_it_is_refused_before_anything_is_downloaded(tmp_path: Path) -> None:
    data: dict[str, Any] = {"model_type": KEY, "base_model_name": "HiDream-ai/HiDream-I1-Full@main"}
    with pytest.raises(ConfigError, match=r"text_encoder_4\.model_name.*does not contain this part") as caught:
        check_config(TrainConfig.from_dict(data))
    assert LLAMA in str(caught.value)
    # a folder may have been completed, and another repository may be whole
    for name in (str(tiny_folder(KEY)), "someone/a-whole-model"):
        check_config(TrainConfig.from_dict({**data, "base_model_name": name}))
    check_config(TrainConfig.from_dict({**data, "text_encoder_4": {"model_name": LLAMA}}))


# -- sizes, steps, names ---------------------------------------------------------------------------------------


def test_the_size_that_takes_most_is_one_that_is_padded() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    assert setup.costliest_size(model, (32, 32), 16) == (32, 16)
    assert setup.costliest_size(model, (16, 16), 16) == (16, 16)
    # more patches than it pads to
    assert setup.costliest_size(model, (128, 128), 16) == (128, 128)


def test_steps_are_shifted_as_for_the_largest_image() -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.hidream_image.pipeline_hidream_image import calculate_shift

    setup, model = tiny_setup(KEY), tiny_model(KEY)
    config = {"shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.1, "max_image_seq_len": 999}
    model.parts["scheduler"] = config
    theirs = FlowMatchEulerDiscreteScheduler(**config)
    theirs.set_timesteps(4, mu=calculate_shift(model.denoiser.max_seq))  # type: ignore[arg-type]
    for size in (SQUARE, LARGE):
        ours = setup.make_sampler(model, "EULER", 4, size)
        assert torch.allclose(ours.timesteps, theirs.timesteps, atol=1e-3)


def test_settings_of_other_programs_that_name_it_are_of_this_family() -> None:
    assert family_of_base("HiDream-ai/HiDream-I1-Full", (), "base_model_name").value == KEY


@pytest.mark.parametrize(
    ("name", "distilled"),
    [
        ("HiDream-ai/HiDream-I1-Full", False),
        ("HiDream-ai/HiDream-I1-Dev", True),
        ("HiDream-ai/HiDream-I1-Fast", True),
        ("models/hidream_i1_dev_bf16.safetensors", True),
        ("models/hidream_i1_fast_fp8.safetensors", True),
    ],
)
def test_distilled_models_are_told_apart(name: str, distilled: bool) -> None:
    found = find_published(KEY, name)
    assert found is not None and found.distilled is distilled
    assert not distilled or (found.base == "HiDream-ai/HiDream-I1-Full" and found.cfg == 1.0)
