"""Ideogram 4: what the contract of all families does not cover."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modules.model.dtypes import PartDtypes
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup.AdapterSwitch import AdapterSwitch
from modules.modelSetup.sample_images import unguided
from modules.modelSetup.training import load_model
from modules.spec.families.ideogram_4 import LAYERS
from modules.trainer.evaluate.Sampler import Sampler
from modules.trainer.memory.shape_only import shape_only_model
from modules.util.config.foreign.base_family import family_of_base
from modules.util.config.load import find_problems
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import ImageFormat, NoiseScheduler
from modules.util.errors import UserError
from modules.weights.saving import save_folder
from tests.modelSetup.originals import LAYOUTS, to_original
from tests.scripts.test_sample import sampled
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images
from tests.tiny.ideogram_4 import TEXT_WIDTH
from tests.util.config.onetrainer.reading import import_onetrainer
from tests.weights.test_part_sources import assert_same, part_state

KEY, GUIDE = "IDEOGRAM_4", "unconditional_transformer"
PROMPTS = ["a red circle", '{"high_level_description": "a large blue square on the left"}']
HUB = "CalamitousFelicitousness/Ideogram-4-bf16-Diffusers"


def pipeline() -> Any:
    from diffusers import Ideogram4Pipeline

    made: Any = Ideogram4Pipeline.from_pretrained(str(tiny_folder(KEY)))
    made.set_progress_bar_config(disable=True)
    return made


@pytest.mark.parametrize(
    ("scale", "steps", "scales"),
    [pytest.param(1.0, 3, [1.0] * 3, marks=pytest.mark.slow), (7.0, 18, [7.0] * 17 + [3.0])],
    ids=["plain", "guided"],
)
def test_images_of_another_shape_are_those_of_the_pipeline(
    scale: float, steps: int, scales: list[float]
) -> None:
    size = (32, 64)
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    ours = images(setup, model, PROMPTS, "blue", seeds=[7, 8], steps=steps, cfg=scale, size=size)
    wanted = pipeline()(
        prompt=list(PROMPTS),
        height=size[0],
        width=size[1],
        num_inference_steps=steps,
        guidance_schedule=scales,
        max_sequence_length=64,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        output_type="pt",
    ).images.float()
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())


def test_the_usual_scales_are_those_of_the_pipeline() -> None:
    setup = tiny_setup(KEY)
    found = setup.guidance_scales(setup.spec.default_cfg, setup.spec.default_steps)
    assert found == [7.0] * 45 + [3.0] * 3
    assert setup.guidance_scales(2.0, 32) == [2.0] * 32


def test_states_are_those_of_the_pipeline_without_padding() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    texts = [*PROMPTS, ""]
    with torch.no_grad():
        wanted_BLE, _, _, told_BL = pipeline().encode_prompt(texts, 1, 1, 64, torch.device("cpu"))
    cond = setup.encode_text(model, texts)
    # an image of one token is behind the texts
    longest = int((told_BL == 3).sum(dim=1).max())
    assert cond["hidden_BLE"].shape == (3, longest, len(LAYERS) * TEXT_WIDTH)
    for row, found in enumerate(cond.unbind()):
        assert torch.allclose(found["hidden_BLE"], wanted_BLE[row][told_BL[row] == 3], atol=1e-5)


@pytest.mark.parametrize("t", [10.0, 500.0, 990.0])
def test_a_prediction_is_the_denoiser_s_at_the_same_time(t: float) -> None:
    from diffusers import Ideogram4Pipeline

    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    lengths = cond["mask_BL"].sum(dim=1).tolist()
    x_BChw = torch.randn(2, model.latent_channels, 4, 6, generator=torch.Generator().manual_seed(1))
    positions, segments, told = Ideogram4Pipeline._prepare_ids(lengths, 4, 6, 64, torch.device("cpu"))
    hidden_BLE = torch.zeros(2, 64 + 24, cond["hidden_BLE"].shape[2])
    for row, length in enumerate(lengths):
        hidden_BLE[row, 64 - length : 64] = cond["hidden_BLE"][row, :length]
    tokens_BLC = torch.cat([torch.zeros(2, 64, x_BChw.shape[1]), x_BChw.flatten(2).transpose(1, 2)], dim=1)
    with torch.no_grad():
        found = setup.denoise(model, x_BChw, torch.full((2,), t), cond, (16, 24))
        out: torch.Tensor = model.denoiser(
            hidden_states=tokens_BLC,
            timestep=torch.full((2,), 1.0 - t / 1000.0),
            encoder_hidden_states=hidden_BLE,
            position_ids=positions,
            segment_ids=segments,
            indicator=told,
            return_dict=False,
        )[0]
    wanted = -out[:, 64:].transpose(1, 2).unflatten(2, (4, 6))
    assert torch.allclose(found, wanted, atol=1e-5) and float(out.abs().max()) > 1e-3


def test_a_denoiser_that_knows_the_way_to_the_image_has_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    towards = (batch.latents_BChw - draw.noise_BChw).flatten(2).transpose(1, 2)

    def knows(hidden_states: torch.Tensor, **_told: Any) -> tuple[torch.Tensor]:
        text = hidden_states.shape[1] - towards.shape[1]
        return (torch.cat([hidden_states[:, :text], towards], dim=1),)

    monkeypatch.setattr(model.denoiser, "forward", knows)
    assert float(setup.calculate_loss(model, batch, draw).abs().max()) < 1e-12


def test_patches_have_their_channels_innermost_for_the_statistics_too() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    vae: Any = model.vae
    rgb_BCHW = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        z_BChw = vae.encode(rgb_BCHW * 2 - 1).latent_dist.mode()
    patches = z_BChw.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 3, 5, 1, 2, 4).flatten(1, 3)
    spread_C = (vae.bn.running_var + vae.config.batch_norm_eps).sqrt()[:, None, None]
    wanted = (patches - vae.bn.running_mean[:, None, None]) / spread_C
    assert torch.allclose(setup.encode_image(model, rgb_BCHW), wanted, atol=1e-5)


# -- noise levels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(512, 512), (768, 1280), (2048, 2048)])
def test_samples_take_the_levels_of_the_pipeline(size: tuple[int, int]) -> None:
    from diffusers.pipelines.ideogram4.pipeline_ideogram4 import _logit_normal_sigmas, _resolution_aware_mu

    setup, model = tiny_setup(KEY), tiny_model(KEY)
    wanted = _logit_normal_sigmas(12, _resolution_aware_mu(*size, base_mu=0.0), std=1.5)
    for name in (NoiseScheduler.EULER, NoiseScheduler.DPMPP, NoiseScheduler.UNIPC):
        sampler = setup.make_sampler(model, name, 12, size)
        assert torch.allclose(sampler.sigmas[:-1].float(), wanted, atol=1e-6), name
        assert torch.allclose(sampler.timesteps.float(), wanted * 1000, atol=0.51), name
        assert float(sampler.sigmas[-1]) == 0.0


def test_training_draws_from_the_same_distribution() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    side = 1024 // model.latent_factor
    batch = SimpleNamespace(
        latents_BChw=torch.empty(4096, 1, 1, side, device="meta"),
        ids=[str(n) for n in range(4096)],
        visits=[0] * 4096,
    )
    options = NoiseOptions(distribution="LOGIT_NORMAL", weight=0.5, shifts_by_size=True)
    # a strip of one latent's height: its area decides
    area = model.latent_factor * 1024
    draw = setup.draw_noise(model, batch, options, seed=1)  # type: ignore[arg-type]
    logits = torch.logit(draw.timestep_B.double() / 1000.0)
    mean = 0.5 * torch.log(torch.tensor(area / 512**2, dtype=torch.float64))
    assert torch.allclose(logits.mean(), mean, atol=0.08)
    assert torch.allclose(logits.std(), torch.tensor(1.5, dtype=torch.float64), atol=0.06)


# -- the second network -------------------------------------------------------------------------------------------


@pytest.fixture
def without_guide(tmp_path: Path) -> Path:
    """A folder of the model that lacks the second network."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(KEY), folder, ignore=lambda _, names: [n for n in names if n == GUIDE])
    index = json.loads((folder / "model_index.json").read_text())
    index.pop(GUIDE)
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def test_without_it_samples_are_those_of_the_prompt_alone(without_guide: Path) -> None:
    setup = tiny_setup(KEY)
    model = setup.load(str(without_guide))
    assert GUIDE not in model.parts
    asked: dict[str, Any] = {"seeds": [7], "steps": 3, "size": SIZE}
    guided = images(setup, model, PROMPTS[:1], cfg=7.0, **asked)
    assert torch.equal(guided, images(setup, tiny_model(KEY), PROMPTS[:1], cfg=1.0, **asked))
    assert not torch.equal(guided, images(setup, tiny_model(KEY), PROMPTS[:1], cfg=7.0, **asked))
    assert GUIDE in unguided(model, 7.0) and "without guidance" in unguided(model, 7.0)
    assert not unguided(model, 1.0) and not unguided(tiny_model(KEY), 7.0)
    assert not unguided(tiny_model("KREA_2"), 7.0)


def test_a_run_is_without_it_and_says_what_its_samples_lack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = tiny_setup(KEY)
    config = TrainConfig.from_dict({"model_type": KEY, "base_model_name": str(tiny_folder(KEY))})
    model = load_model(setup, config)
    assert set(model.parts) == {part.name for part in setup.spec.parts} - {GUIDE}
    assert GUIDE not in shape_only_model(setup, config).parts
    samples = [
        SampleConfig(prompt="a cat", negative_prompt="blue", width=64, height=64, cfg_scale=scale)
        for scale in (1.0, 7.0)
    ]
    with caplog.at_level(logging.WARNING):
        Sampler(setup, model, samples, tmp_path, ImageFormat.PNG).check()
    assert sum("without guidance" in line for line in caplog.messages) == 1
    assert any("guided by a network that reads no prompts" in line for line in caplog.messages)


def test_a_model_saved_without_it_says_so_and_is_read(
    without_guide: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = tiny_setup(KEY)
    model = setup.load(str(without_guide))
    with caplog.at_level(logging.WARNING):
        save_folder(model, tmp_path / "saved")
    assert any(GUIDE in line and "no guidance" in line for line in caplog.messages)
    assert_same(model, setup.load(str(tmp_path / "saved")))
    assert json.loads((tmp_path / "saved" / "model_index.json").read_text())[GUIDE] == [None, None]


def test_it_comes_from_a_file_of_its_own_with_the_published_names(
    without_guide: Path, tmp_path: Path
) -> None:
    setup = tiny_setup(KEY)
    state = to_original(part_state(KEY, GUIDE), LAYOUTS[KEY])
    assert "layers.0.attention.qkv.weight" in state and "layers.1.attention.o.weight" in state
    path = tmp_path / "unconditional.safetensors"
    save_file(state, path)
    place = tmp_path / f"{path.name}.config" / GUIDE
    shutil.copytree(tiny_folder(KEY) / GUIDE, place, ignore=shutil.ignore_patterns("*.safetensors"))
    assert_same(tiny_model(KEY), setup.load(str(without_guide), part_sources={GUIDE: str(path)}))


@pytest.mark.parametrize("part", ["transformer", GUIDE, "text_encoder"])
@pytest.mark.parametrize("lazy", [False, True], ids=["read", "lazy"])
def test_the_folder_in_4_bits_is_refused_by_name(part: str, lazy: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(KEY), folder)
    config = json.loads((folder / part / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / part / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="rounded by bitsandbytes"):
        tiny_setup(KEY).load(str(folder), PartDtypes(lazy=lazy), [part, "vae"])


@pytest.mark.parametrize("field", ["rlhf_rollout_cfg_scale", "rlhf_dgpo_kl_cfg"])
def test_guidance_of_rollouts_is_refused(field: str) -> None:
    data = {"model_type": KEY, "rlhf_enabled": True, "rlhf_mode": "DGPO", field: 4.0}
    found = [error for error in find_problems(TrainConfig.from_dict(data)).errors if error.field == field]
    assert any("second network" in str(error) for error in found)
    fine = find_problems(TrainConfig.from_dict({**data, field: 1.0})).errors
    assert all(error.field != field for error in fine)


def test_settings_of_other_programs_that_name_it_are_of_this_family(tmp_path: Path) -> None:
    assert family_of_base(HUB, (), "base_model_name").value == KEY
    path = tmp_path / "theirs.json"
    theirs = {
        "__version": 11, "concepts": [], "samples": [], "model_type": KEY, "base_model_name": HUB,
        "training_method": "LORA", "transformer": {"train": True, "weight_dtype": "INT_W8A8"},
        GUIDE: {"weight_dtype": "NFLOAT_4", "offload_fraction": 1.0}, "layer_filter": "attention,feed_forward",
        "layer_filter_preset": "attn-mlp",
    }  # fmt: skip
    path.write_text(json.dumps(theirs), encoding="utf-8")
    config, notes = import_onetrainer(path)
    assert config.model_type.value == KEY and config.layer_filter_preset == "attn-mlp"
    assert any(GUIDE in str(note) and "no guidance" in str(note) for note in notes)


@pytest.mark.slow
def test_the_sample_script_loads_it_in_the_type_that_is_asked_for(
    without_guide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "whole": [],
        "rounded": ["--weight-dtype", f"{GUIDE}=FLOAT_8", "--negative-prompt", "blue"],
        "without": ["--model", str(without_guide)],
    }
    seen: list[Model] = []
    switch = AdapterSwitch.__init__
    monkeypatch.setattr(
        AdapterSwitch,
        "__init__",
        lambda self, model, *rest: (seen.append(model), switch(self, model, *rest))[1],
    )
    made = {name: sampled(KEY, tmp_path / name, "--prompt", "a cat", *words) for name, words in told.items()}
    printed = capsys.readouterr().err
    assert printed.count("samples are made without guidance") == 1
    assert printed.count("guided by a network that reads no prompts") == 1
    types = [{p.dtype for p in model.module(GUIDE).parameters()} for model in seen if GUIDE in model.parts]
    assert types == [{torch.float32}, {torch.float32, torch.float8_e4m3fn}]
    assert not np.array_equal(made["whole"], made["without"])
    assert np.abs(made["whole"].astype(int) - made["rounded"].astype(int)).mean() < 8
