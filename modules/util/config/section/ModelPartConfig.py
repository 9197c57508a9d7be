from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import Float, PathText, setting
from modules.util.enum.choices import DataType, WeightDtype
from modules.util.enum.ModelType import families_where


class SourcedPartConfig(BaseConfig):
    """A part of the model that may come from elsewhere."""

    model_name: PathText = setting(
        "",
        widget="model",
        cost="value",
        free=True,
        title="Take from",
        tip=(
            "Take this part from another place than the base model: a .safetensors or .ckpt file, a folder, or a "
            "Hugging Face name. Empty takes it from the base model."
        ),
    )


class FrozenPartConfig(SourcedPartConfig):
    """A part of the model that is never trained (the VAE)."""

    weight_dtype: DataType = setting(
        DataType.FLOAT_32,
        cost="value",
        free=False,
        title="Weights",
        tip="Number format this part's weights are kept in. 16 bits halve its memory.",
    )


class TrainingAdapterConfig(BaseConfig):
    """A LoRA that is part of the base model while training."""

    model_name: PathText = setting(
        "",
        widget="file",
        free=True,
        title="Training adapter",
        tip=(
            "A LoRA that undoes the distillation of a model made for few steps. It is on while training, and off in "
            "samples and in the saved file. A .safetensors file, owner/name/file.safetensors on Hugging Face, or "
            "owner/name with one such file. Empty: none."
        ),
    )
    strength: Float = setting(
        1.0,
        ge=0,
        le=10,
        visible=".model_name",
        free=False,
        title="Strength",
        tip="Multiplies the training adapter. Leave it at 1 unless its author says otherwise.",
    )


class ModelPartConfig(SourcedPartConfig):
    """A part of the model that can be trained."""

    weight_dtype: WeightDtype = setting(
        WeightDtype.FLOAT_32,
        cost="value",
        free=False,
        title="Weights",
        tip=(
            "Number format this part's own weights are kept in. 16 bits halve their memory; 8 and 4 bits are for "
            "parts that are not fine-tuned (adapters on them are) and need a GPU to be fast."
        ),
    )
    train: bool = setting(
        True,
        cost="value",
        free=False,
        title="Train",
        tip="Train this part: its adapter, or its weights when fine-tuning.",
    )
    learning_rate: Float | None = setting(
        None,
        ge=0,
        le=100,
        visible=".train",
        free=False,
        title="Learning rate",
        tip="Learning rate of this part alone; empty takes the run's.",
    )
    gradient_checkpointing: bool = setting(
        True,
        cost="value",
        free=True,
        title="Gradient checkpointing",
        tip=(
            "Compute activations again in the backward pass instead of keeping them: about a quarter slower, "
            "much less memory."
        ),
    )


class DenoiserConfig(ModelPartConfig):
    """A denoiser."""

    offload_fraction: Float = setting(
        0.0,
        ge=0,
        le=1,
        cost="value",
        free=False,
        title="Keep in main memory",
        tip=(
            "Share of the block layers whose frozen weights stay in main memory and are copied to the GPU in every "
            "pass: slower, for models that do not fit. Needs gradient checkpointing."
        ),
    )


class TransformerConfig(DenoiserConfig):
    """A denoiser that is a transformer."""

    guidance_scale: Float = setting(
        1.0,
        ge=0,
        le=100,
        visible=families_where(lambda spec: spec.embeds_guidance),
        free=False,
        title="Guidance",
        tip=(
            "The guidance scale that a guidance-distilled model gets as input during training. With 1 the result "
            "works at every scale."
        ),
    )


class FurtherTextEncoderConfig(ModelPartConfig):
    """A text encoder next to the first."""

    train: bool = setting(
        False,
        free=False,
        title="Train",
        tip="Train this text encoder as well. Prompts are then encoded in every step instead of once.",
    )


class ClipTextEncoderConfig(FurtherTextEncoderConfig):
    """A text encoder that is a CLIP in some families."""

    layer_skip: int = setting(
        0,
        ge=0,
        le=100,
        visible=families_where(lambda spec: bool(spec.skips_layers_of)),
        free=False,
        title="Layer skip",
        tip=(
            "Take the text states from this many layers before the usual one. Clip skip n of other programs is n - 1 "
            "here. Use the trained model with the same value."
        ),
    )


class TextEncoderConfig(ClipTextEncoderConfig):
    """The first text encoder; what concerns captions as a whole is with it."""

    dropout_probability: Float = setting(
        0.0,
        ge=0,
        le=1,
        free=False,
        title="Caption dropout",
        tip=(
            "Chance that an image is trained with an empty prompt, which keeps guidance working. Never "
            "applied to preference pairs."
        ),
    )
