"""Cases of the base model and its parts."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from tests.house.acts import outcomes as see
from tests.house.acts.bases import (
    SAMPLE,
    chroma,
    concept,
    flux,
    hidream,
    pictures,
    sampled,
    stable_diffusion_3,
    stable_diffusion_xl,
)
from tests.house.acts.case import Case, shared_folder
from tests.house.acts.training_cases import adapter
from tests.tiny import small_folder


def _other_weights(key: str, folder: Path) -> None:
    """The family's tiny model with every weight a little larger."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(small_folder(key), folder, dirs_exist_ok=True)
    for path in folder.rglob("*.safetensors"):
        save_file({name: tensor * 1.05 for name, tensor in load_file(path).items()}, path, {"format": "pt"})


@cache
def other_model(key: str) -> str:
    return str(shared_folder(f"other-{key}", partial(_other_weights, key)))


def _two_variants(key: str, folder: Path) -> None:
    """The family's tiny model, and in each part other weights as the variant ``other``."""
    import shutil

    shutil.copytree(small_folder(key), folder, dirs_exist_ok=True)
    for path in sorted(Path(other_model(key)).rglob("*.safetensors")):
        shutil.copyfile(path, folder / path.parent.name / f"{path.stem}.other.safetensors")


@cache
def two_variants(key: str) -> str:
    return str(shared_folder(f"variants-{key}", partial(_two_variants, key)))


SD, XL, SD3 = "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "STABLE_DIFFUSION_3"
HIDREAM = "HI_DREAM_FULL"
TRAINED_TEXT = {"text_encoder.train": True, "text_encoder.gradient_checkpointing": False}
FEW_BITS = {"unet.weight_dtype": "FLOAT_8"}
SOME_IN_FEW_BITS = {
    **FEW_BITS, "quantization.layer_filter_preset": "custom", "quantization.layer_filter": "attn1",
}  # fmt: skip
LONG = {"prompt_weighting": False, "concepts": lambda folder: [concept()]}


def _long_caption(folder: Path) -> list[dict[str, object]]:
    from tests.house.acts.bases import image_folder

    return [concept(text={"prompt_source": "concept", "prompt_path": str(image_folder() / "long.txt")})]


def _emphasis(folder: Path) -> list[dict[str, object]]:
    from tests.house.acts.bases import image_folder

    return [concept(text={"prompt_source": "concept", "prompt_path": str(image_folder() / "emphasis.txt")})]


def _predicting_v(folder: Path) -> str:
    return str(small_folder(prediction="v_prediction"))


BASE = [
    Case("model_type", pictures, "STABLE_DIFFUSION_15_INPAINTING", see.end),
    Case("base_model_name", pictures, lambda folder: other_model(SD), see.weights),
    Case("weight_variant", pictures, "other", see.weights, {
        "base_model_name": lambda folder: two_variants(SD)}),
    Case("text_encoder.layer_skip", pictures, 1, see.weights),
    Case("text_encoder_2.layer_skip", stable_diffusion_xl, 1, see.weights),
    Case("prompt_weighting", pictures, True, see.weights, {"concepts": _emphasis}),
    Case("max_prompt_chunks", pictures, 1, see.weights, {"concepts": _long_caption}),
    Case("force_circular_padding", pictures, True, see.weights),
    Case("force_v_prediction", pictures, True, see.weights),
    Case("force_epsilon_prediction", pictures, True, see.weights, {"base_model_name": _predicting_v}),
    Case("rescale_noise_scheduler_to_zero_terminal_snr", pictures, True, see.weights, {
        "base_model_name": _predicting_v}),
]  # fmt: skip


def _stopping(name: str) -> dict[str, object]:
    end = {f"{name}.stop_training_after": 1, f"{name}.stop_training_after_unit": "STEP"}
    return {**end, "max_steps": 2}


def part(name: str, base: see.Any, key: str, trained: bool = True) -> list[Case]:
    """Cases of the settings that all parts have."""
    on = {f"{name}.train": True, f"{name}.gradient_checkpointing": True}
    made = [
        Case(f"{name}.model_name", base, lambda folder: str(Path(other_model(key)) / name), see.weights),
        Case(f"{name}.weight_dtype", base, "BFLOAT_16", see.weights),
    ]
    if trained:
        made += [
            Case(
                f"{name}.train",
                base,
                (name != "unet" and name != "transformer") or False,
                see.names,
                TRAINED_TEXT if name in ("unet", "transformer") else {},
            ),
            Case(f"{name}.learning_rate", base, 0.25, see.rates, on),
            Case(f"{name}.gradient_checkpointing", base, False, see.recomputed, on),
            Case(f"{name}.activation_offloading", base, True, see.kept_away, on),
            Case(f"{name}.stop_training_after", base, 2, see.weights, {**on, **_stopping(name)}),
            Case(f"{name}.stop_training_after_unit", base, "NEVER", see.weights, {**on, **_stopping(name)}),
        ]
    return made


PARTS = [
    *part("unet", pictures, SD),
    *part("text_encoder", pictures, SD),
    *part("vae", pictures, SD, trained=False),
    *part("text_encoder_2", stable_diffusion_xl, XL),
    *part("transformer", stable_diffusion_3, SD3),
    *part("text_encoder_3", stable_diffusion_3, SD3),
    *part("text_encoder_4", hidream, HIDREAM),
    Case("unet.offload_fraction", pictures, 1.0, see.gpu_memory, {"unet.gradient_checkpointing": True}),
    Case("transformer.offload_fraction", stable_diffusion_3, 1.0, see.gpu_memory,
         {"transformer.gradient_checkpointing": True}),
    Case("quantization.layer_filter_preset", pictures, "attn-only", see.weights, SOME_IN_FEW_BITS),
    Case("quantization.layer_filter", pictures, "attn2", see.weights, SOME_IN_FEW_BITS),
    Case("quantization.layer_filter_regex", pictures, True, see.weights,
         {**SOME_IN_FEW_BITS, "quantization.layer_filter": "t."}),
    Case("text_encoder.offload_fraction", pictures, 1.0, see.gpu_memory),
    Case("text_encoder_2.offload_fraction", stable_diffusion_xl, 1.0, see.gpu_memory),
    Case("text_encoder_3.offload_fraction", stable_diffusion_3, 1.0, see.gpu_memory),
    Case("text_encoder_4.offload_fraction", hidream, 1.0, see.gpu_memory),
    Case("text_encoder.sequence_length", chroma, 2, see.weights),
    Case("text_encoder_2.sequence_length", flux, 2, see.weights),
    Case("text_encoder_3.sequence_length", stable_diffusion_3, 2, see.weights),
    Case("text_encoder_3.include", stable_diffusion_3, False, see.weights),
    Case("text_encoder_4.sequence_length", hidream, 2, see.weights),
    Case("transformer.attention_mask", flux, "MASKED", see.weights),
    Case("transformer.guidance_scale", flux, 3.5, see.weights),
    Case("text_encoder.dropout_probability", pictures, 0.5, see.weights),
]  # fmt: skip
SAMPLED = {"samples": [SAMPLE], "sample_after": 1, "sample_after_unit": "STEP"}
SAMPLES = [
    Case("samples.0.text_encoder_1_layer_skip", sampled, 1, see.samples),
    Case("samples.0.text_encoder_2_layer_skip", stable_diffusion_xl, 1, see.samples, SAMPLED),
    Case("samples.0.text_encoder_1_sequence_length", chroma, 2, see.samples, SAMPLED),
    Case("samples.0.text_encoder_2_sequence_length", flux, 2, see.samples, SAMPLED),
    Case("samples.0.text_encoder_3_sequence_length", stable_diffusion_3, 2, see.samples, SAMPLED),
    Case("samples.0.text_encoder_4_sequence_length", hidream, 2, see.samples, SAMPLED),
    Case("samples.0.transformer_attention_mask", flux, "MASKED", see.samples, SAMPLED),
]
FOLDED = [
    Case("training_adapter.model_name", pictures, lambda folder: adapter(), see.weights),
    Case("training_adapter.strength", pictures, 0.5, see.weights,
         {"training_adapter.model_name": lambda folder: adapter()}),
]  # fmt: skip
CASES = [*BASE, *PARTS, *FOLDED, *SAMPLES]
