"""Stable Diffusion with the layout of 1.5: CLIP text encoder, UNet, KL autoencoder; epsilon or v."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modules.model import single_file
from modules.model.batch import Conditioning
from modules.model.family import FamilySpec, PartSpec
from modules.model.loading import FIELD, check_folder, find_source, load_module, read_scheduler_config
from modules.model.Model import Model, PartDtypes
from modules.model.schedule import DiscreteSchedule
from modules.modelSetup.BaseModelSetup import BaseModelSetup, LoadOptions
from modules.modelSetup.registry import model_setup
from modules.util.errors import UnsupportedError

TOKENIZER = "openai/clip-vit-large-patch14"


@model_setup
class StableDiffusionSetup(BaseModelSetup):
    spec = FamilySpec(
        key="STABLE_DIFFUSION_15",
        label="Stable Diffusion 1.5",
        pipeline_class="StableDiffusionPipeline",
        prediction="epsilon",
        parts=(
            PartSpec("unet", "denoiser", ("UNet2DConditionModel",), kohya_prefix="lora_unet"),
            PartSpec(
                "text_encoder",
                "text_encoder",
                ("CLIPTextModel",),
                kohya_prefix="lora_te",
                file_root="text_model",
            ),
            PartSpec("vae", "vae", ("AutoencoderKL",)),
            PartSpec("tokenizer", "tokenizer", ("CLIPTokenizer", "CLIPTokenizerFast")),
            PartSpec("scheduler", "scheduler", ()),
        ),
        layer_presets={
            "attn-mlp": ("attentions",),
            "attn-only": ("attn1", "attn2"),
            "blocks": ("down_blocks", "mid_block", "up_blocks"),
            "full": (),
        },
        lora_architecture="stable-diffusion-v1/lora",
        model_architecture="stable-diffusion-v1",
        default_resolution=512,
        size_multiple=8,
        ldm_layout=True,
        single_file=True,
    )

    def load(
        self,
        source: str,
        dtypes: PartDtypes | None = None,
        parts: Collection[str] | None = None,
        options: LoadOptions | None = None,
    ) -> Model:
        dtypes, options = dtypes or PartDtypes(), options or LoadOptions()
        wanted = [part.name for part in self.spec.parts if parts is None or part.name in parts]
        path = find_source(source, self.spec, wanted)
        if path.is_file() and not self.spec.single_file:
            raise UnsupportedError(
                f"{self.spec.label} is loaded from diffusers folders only, not from a single file",
                field=FIELD,
                hint="convert the checkpoint to a diffusers folder",
            )
        read = self._load_file if path.is_file() else self._load_folder
        loaded = read(path, dtypes, wanted)
        scheduler = loaded["scheduler"]
        model = Model(
            spec=self.spec,
            source=str(path),
            parts=loaded,
            schedule=DiscreteSchedule.from_config(
                scheduler,
                options.prediction,  # type: ignore[arg-type]
                options.zero_terminal_snr,
            ),
            compute_dtype=dtypes.compute,
        )
        if "vae" in loaded:
            config = loaded["vae"].config
            model.latent_scale = float(config.scaling_factor)
            model.latent_shift = float(config.get("shift_factor") or 0.0)
            model.latent_factor = 2 ** (len(config.block_out_channels) - 1)
            model.latent_channels = int(config.latent_channels)
        return model

    def _load_folder(self, folder: Path, dtypes: PartDtypes, wanted: Sequence[str]) -> dict[str, Any]:
        check_folder(folder, self.spec, wanted)
        loaded: dict[str, Any] = {"scheduler": read_scheduler_config(folder)}
        # imported part by part: the libraries' top levels take seconds
        if "unet" in wanted:
            from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

            loaded["unet"] = load_module(
                UNet2DConditionModel.from_pretrained, folder, "unet", dtypes.of("unet"), "torch_dtype"
            )
        if "vae" in wanted:
            from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

            loaded["vae"] = load_module(
                AutoencoderKL.from_pretrained, folder, "vae", dtypes.of("vae"), "torch_dtype"
            )
        if "text_encoder" in wanted:
            from transformers.models.clip.modeling_clip import CLIPTextModel

            loaded["text_encoder"] = load_module(
                CLIPTextModel.from_pretrained, folder, "text_encoder", dtypes.of("text_encoder"), "dtype"
            )
        if "tokenizer" in wanted:
            from transformers.models.clip.tokenization_clip import CLIPTokenizer

            loaded["tokenizer"] = CLIPTokenizer.from_pretrained(
                str(folder / "tokenizer"), local_files_only=True
            )
        return loaded

    def _load_file(self, path: Path, dtypes: PartDtypes, wanted: Sequence[str]) -> dict[str, Any]:
        states, metadata = single_file.read_single_file(path)
        prediction = "v_prediction" if metadata.get("modelspec.prediction_type") == "v" else "epsilon"
        loaded: dict[str, Any] = {"scheduler": {**single_file.SCHEDULER, "prediction_type": prediction}}
        if "unet" in wanted:
            from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

            config = single_file.unet_config(states["unet"])
            loaded["unet"] = single_file.fill(
                "denoiser", lambda: UNet2DConditionModel(**config), states["unet"], path
            )
        if "vae" in wanted:
            from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

            shape = single_file.vae_config(states["vae"])
            loaded["vae"] = single_file.fill("vae", lambda: AutoencoderKL(**shape), states["vae"], path)
        if "text_encoder" in wanted:
            from transformers.models.clip.configuration_clip import CLIPTextConfig
            from transformers.models.clip.modeling_clip import CLIPTextModel

            text = CLIPTextConfig(**single_file.text_config(states["text_encoder"]))
            loaded["text_encoder"] = single_file.fill(
                "text_encoder", lambda: CLIPTextModel(text), states["text_encoder"], path
            )
        if "tokenizer" in wanted:
            loaded["tokenizer"] = single_file.find_tokenizer(path, TOKENIZER)
        for part in self.spec.module_parts:
            if part in loaded:
                # diffusers' own ``to`` warns about number types even where none is at risk
                torch.nn.Module.to(loaded[part], dtypes.of(part))
        return loaded

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        encoder = model.module("text_encoder")
        tokenizer = model.parts["tokenizer"]
        # a tokenizer without a limit of its own reports an astronomical one
        limit = min(tokenizer.model_max_length, encoder.config.max_position_embeddings)  # type: ignore[union-attr]
        tokens = tokenizer(
            list(prompts), padding="max_length", max_length=limit, truncation=True, return_tensors="pt"
        )
        ids_BL = tokens.input_ids.to(next(encoder.parameters()).device)
        return Conditioning({"hidden_BLE": encoder(ids_BL).last_hidden_state})

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        return model.vae.encode(rgb_BCHW).latent_dist.mode()  # type: ignore[operator, no-any-return]

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        return model.vae.decode(z_BChw).sample  # type: ignore[operator, no-any-return]

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        hidden_BLE = cond["hidden_BLE"].to(x_BChw.dtype)
        return model.denoiser(x_BChw, t_B, encoder_hidden_states=hidden_BLE, return_dict=False)[0]  # type: ignore[no-any-return]


def _second_generation(key: str, label: str, pixels: int) -> FamilySpec:
    """SD 2.x: another text encoder and, at 768 pixels, v-prediction; both come with the model's configs."""
    architecture = "stable-diffusion-v2-768-v" if pixels == 768 else "stable-diffusion-v2-512"
    return replace(
        StableDiffusionSetup.spec,
        key=key,
        label=label,
        prediction="v_prediction" if pixels == 768 else "epsilon",
        lora_architecture=f"{architecture}/lora",
        model_architecture=architecture,
        default_resolution=pixels,
        single_file=False,
        lora_metadata={"ss_v2": "True"},
    )


@model_setup
class StableDiffusion20Setup(StableDiffusionSetup):
    spec = _second_generation("STABLE_DIFFUSION_20", "Stable Diffusion 2.0", 768)


@model_setup
class StableDiffusion20BaseSetup(StableDiffusionSetup):
    spec = _second_generation("STABLE_DIFFUSION_20_BASE", "Stable Diffusion 2.0 base", 512)


@model_setup
class StableDiffusion21Setup(StableDiffusionSetup):
    spec = _second_generation("STABLE_DIFFUSION_21", "Stable Diffusion 2.1", 768)


@model_setup
class StableDiffusion21BaseSetup(StableDiffusionSetup):
    spec = _second_generation("STABLE_DIFFUSION_21_BASE", "Stable Diffusion 2.1 base", 512)
