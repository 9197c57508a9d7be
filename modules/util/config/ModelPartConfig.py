from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import Float, setting
from modules.util.enum.DataType import DataType
from modules.util.enum.ModelType import families_with_guidance


class FrozenPartConfig(BaseConfig):
    """A part of the model that is never trained (the VAE)."""

    weight_dtype: DataType = setting(
        DataType.FLOAT_32,
        title="Weights",
        tip="Number format this part's weights are kept in. 16 bits halve its memory.",
    )


class ModelPartConfig(FrozenPartConfig):
    """A part of the model that can be trained."""

    train: bool = setting(
        True, title="Train", tip="Train this part: its adapter, or its weights when fine-tuning."
    )
    learning_rate: Float | None = setting(
        None,
        ge=0,
        le=100,
        visible=".train",
        title="Learning rate",
        tip="Learning rate of this part alone; empty takes the run's.",
    )
    gradient_checkpointing: bool = setting(
        True,
        title="Gradient checkpointing",
        tip=(
            "Compute activations again in the backward pass instead of keeping them: about a quarter slower, "
            "much less memory."
        ),
    )


class TransformerConfig(ModelPartConfig):
    """A denoiser that is a transformer."""

    guidance_scale: Float = setting(
        1.0,
        ge=0,
        le=100,
        visible=families_with_guidance(),
        title="Guidance",
        tip=(
            "The guidance scale a guidance-distilled model is told while it is trained. 1 keeps what is learnt "
            "valid at every scale."
        ),
    )


class FurtherTextEncoderConfig(ModelPartConfig):
    """A text encoder beside the first."""

    train: bool = setting(
        False,
        title="Train",
        tip="Train the text encoder too. Prompts are then encoded again in every step instead of once.",
    )


class TextEncoderConfig(FurtherTextEncoderConfig):
    """The first text encoder; what concerns captions as a whole is with it."""

    dropout_probability: Float = setting(
        0.0,
        ge=0,
        le=1,
        title="Caption dropout",
        tip=(
            "Chance that an image is trained with an empty prompt, which keeps guidance working. Never "
            "applied to preference pairs."
        ),
    )
