from functools import partial
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.section.ModelPartConfig import (
    ClipTextEncoderConfig,
    DenoiserConfig,
    FrozenPartConfig,
    FurtherTextEncoderConfig,
    OptionalTextEncoderConfig,
    QuantizationConfig,
    TextEncoderConfig,
    TrainingAdapterConfig,
    TransformerConfig,
)
from modules.util.config.setting import PathText, VariantText, kept_setting, setting
from modules.util.enum.choices import DataType, ModelFormat
from modules.util.enum.ModelType import ModelType, families_where, families_with

_PROMPT_CHUNKS = families_where(lambda spec: spec.chunks_prompts)
_NOISE_SCHEDULE = families_where(lambda spec: not spec.flow_matching)

_base_model = partial(setting, group="Base model", free=False)
_output = partial(setting, group="Output", free=True)
_prompts = partial(setting, group="Prompts", free=False)
_prediction = partial(setting, group="Prediction", visible=_NOISE_SCHEDULE, free=False)


class ModelSection(BaseConfig):
    """The base model, its parts and the output file."""

    SECTION: ClassVar[str] = "Model"

    model_type: ModelType = _base_model(
        ModelType("STABLE_DIFFUSION_15"),
        cost="value",
        title="Model family",
        tip="The family the base model belongs to.",
    )
    base_model_name: PathText = _base_model(
        "stable-diffusion-v1-5/stable-diffusion-v1-5",
        min_length=1,
        widget="model",
        cost="value",
        free=True,
        title="Base model",
        tip="A diffusers folder, a .safetensors or .ckpt file, or a Hugging Face name (owner/model, or "
        "owner/model@revision). A .gguf file contains only a transformer: choose it as the source of the transformer.",
    )
    weight_variant: VariantText = _base_model(
        "",
        tip="The variant of the base model's weights to read if its folder has several: fp16 for files such as "
        "model.fp16.safetensors. The denoiser must have this variant; other parts without it are read from their "
        "plain files. Empty: plain files are read, but fp16 files for frozen parts that are kept as FLOAT_16.",
    )
    training_adapter: TrainingAdapterConfig = kept_setting(
        factory=TrainingAdapterConfig,
        visible="training_method=LORA",
        tip="An additional LoRA that lets a distilled model be trained without losing its distillation.",
    )
    output_model_destination: PathText = _output(
        "models/model.safetensors",
        min_length=1,
        widget="save_file",
        title="Output file",
        tip="The file to which the trained model is written; in the diffusers format, a folder.",
    )
    output_model_format: ModelFormat = _output(
        ModelFormat.AUTO,
        title="Output format",
        tip=(
            "AUTO: adapters become a kohya LoRA file. Whole models become a .safetensors file if "
            "one file can hold the whole model (Stable Diffusion 1.5 and XL), otherwise a folder. "
            "SAFETENSORS: as AUTO for these two families; for all others, one file that holds only the "
            "denoiser, as ComfyUI loads it. COMFY_LORA: an adapter file with ComfyUI's own layer names. "
            "LEGACY_LORA: an adapter file in which layers that other formats fuse stay separate."
        ),
    )
    output_dtype: DataType = _output(
        DataType.FLOAT_16,
        title="Output weights",
        tip="Number format of the saved weights.",
    )
    prevent_overwrites: bool = _output(
        False,
        tip="Refuse to start if the output file already exists. Off: the start warns, and saving replaces the file.",
    )
    unet: DenoiserConfig = kept_setting(
        factory=DenoiserConfig, visible=families_with("unet"), title="UNet", tip="The denoiser."
    )
    transformer: TransformerConfig = kept_setting(
        factory=TransformerConfig,
        visible=families_with("transformer"),
        tip="The denoiser of models that have no UNet.",
    )
    quantization: QuantizationConfig = kept_setting(
        factory=QuantizationConfig,
        title="Low-bit layers",
        tip="The layers of the denoiser that are kept in 8 or 4 bits, if its weights have this format.",
    )
    text_encoder: TextEncoderConfig = kept_setting(
        factory=TextEncoderConfig, tip="Turns prompts into vectors."
    )
    text_encoder_2: ClipTextEncoderConfig = kept_setting(
        factory=ClipTextEncoderConfig,
        visible=families_with("text_encoder_2"),
        tip="The second text encoder of models with several.",
    )
    text_encoder_3: OptionalTextEncoderConfig = kept_setting(
        factory=OptionalTextEncoderConfig,
        visible=families_with("text_encoder_3"),
        tip="The third text encoder of models with several.",
    )
    text_encoder_4: FurtherTextEncoderConfig = kept_setting(
        factory=FurtherTextEncoderConfig,
        visible=families_with("text_encoder_4"),
        tip=(
            "The fourth text encoder of models with several. HiDream-I1 is published without its fourth encoder: "
            "name a source for it here."
        ),
    )
    vae: FrozenPartConfig = kept_setting(
        factory=FrozenPartConfig, title="VAE", tip="Turns images into latents and back."
    )
    prompt_weighting: bool = _prompts(
        False,
        title="Emphasis in prompts",
        tip=(
            "In captions and sample prompts, (word), [word] and (word:1.3) give words more or less "
            "weight. Off: brackets are ordinary text."
        ),
    )
    max_prompt_chunks: int = _prompts(
        3,
        within=(1, 8),
        visible=_PROMPT_CHUNKS,
        cost="value",
        title="Longest prompt (x 75 tokens)",
        tip=(
            "Prompts longer than CLIP's 75 tokens are encoded in chunks of 75, up to this many. 1: "
            "truncate longer prompts."
        ),
    )
    force_circular_padding: bool = kept_setting(
        False,
        title="Wrap edges around",
        group="Tiles",
        tip=(
            "Train for images that can be tiled: at each edge, the convolutions of UNet and VAE see the "
            "opposite edge. Use the trained model in a program that also wraps edges around."
        ),
    )
    force_v_prediction: bool = _prediction(
        False,
        title="Force v-prediction",
        tip="Train as a v-prediction model, regardless of the model's own scheduler config.",
    )
    force_epsilon_prediction: bool = _prediction(
        False,
        tip="Train as an epsilon-prediction model, regardless of the model's own scheduler config.",
    )
    rescale_noise_scheduler_to_zero_terminal_snr: bool = _prediction(
        False,
        title="Zero terminal SNR",
        tip="Rescale the noise schedule so that it ends in pure noise. Needs v-prediction.",
    )
