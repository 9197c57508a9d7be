from functools import partial

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import Float, PathText, kept_setting, setting
from modules.util.enum.choices import DataType, PaddingMask, StopUnit, WeightDtype
from modules.util.enum.ModelType import families_where

BLOCKS, CUSTOM = "blocks", "custom"
"""Layer presets: all layers in blocks, and those that a filter names."""

_timed_setting = partial(kept_setting, cost="value")
"""Declares a kept field that decides how long a step takes."""


class SourcedPartConfig(BaseConfig):
    """A part of the model that may be loaded from elsewhere."""

    model_name: PathText = setting(
        "",
        widget="model",
        cost="value",
        free=True,
        title="Source",
        tip=(
            "Load this part from elsewhere: a .safetensors or .ckpt file (for transformers also .gguf), a folder, or "
            "a Hugging Face name. Empty: from the base model."
        ),
    )


class FrozenPartConfig(SourcedPartConfig):
    """A part of the model that is never trained (the VAE)."""

    weight_dtype: DataType = _timed_setting(
        DataType.FLOAT_32,
        title="Weights",
        tip="Number format of this part's weights. 16 bits halve its memory.",
    )


class TrainingAdapterConfig(BaseConfig):
    """A LoRA that is part of the base model during training."""

    model_name: PathText = setting(
        "",
        widget="file",
        free=True,
        title="Training adapter",
        tip=(
            "A LoRA that undoes the distillation of a model made for few steps. It is on during training, "
            "and off in samples and in the saved file. A .safetensors file, owner/name/file.safetensors on "
            "Hugging Face, or owner/name if that repository has only one such file. Empty: none."
        ),
    )
    strength: Float = kept_setting(
        1.0,
        within=(0, 10),
        visible=".model_name",
        tip="Multiplies the training adapter. Leave it at 1 unless its author says otherwise.",
    )


class ModelPartConfig(SourcedPartConfig):
    """A part of the model that can be trained."""

    weight_dtype: WeightDtype = _timed_setting(
        WeightDtype.FLOAT_32,
        title="Weights",
        tip=(
            "Number format of this part's own weights. 16 bits halve their memory. 8 and 4 bits are for "
            "parts that are not fine-tuned (adapters on them can be trained), and are only fast on a GPU."
        ),
    )
    train: bool = _timed_setting(
        True,
        tip="Train this part: its adapter, or its weights when fine-tuning.",
    )
    learning_rate: Float | None = kept_setting(
        None,
        within=(0, 100),
        visible=".train",
        tip="Learning rate of this part only. Empty: the run's learning rate.",
    )
    stop_training_after: int = _timed_setting(
        0,
        within=(0, 1_000_000_000),
        visible=".train,!.stop_training_after_unit=NEVER",
        tip=(
            "How long this part is trained, in the unit next to this field. After that, its weights stay the same. "
            "Text encoders learn faster than the denoiser, so a few epochs are often enough for them."
        ),
    )
    stop_training_after_unit: StopUnit = _timed_setting(
        StopUnit.NEVER,
        visible=".train",
        title="Stop training (unit)",
        tip=(
            "Unit of the training time of this part: EPOCH, or STEP for optimizer steps. NEVER: train it to "
            "the end. Once no text encoder is trained any longer, prompts are cached again from the next "
            "epoch on. This is not possible if the untrained text encoders are needed too: in preference "
            "training, with prior preservation, and with a concept of type PRIOR_PREDICTION."
        ),
    )
    gradient_checkpointing: bool = setting(
        True,
        cost="value",
        free=True,
        tip=(
            "Recompute activations in the backward pass instead of keeping them: about a quarter "
            "slower, but much less memory."
        ),
    )
    activation_offloading: bool = setting(
        False,
        cost="value",
        free=True,
        visible=".gradient_checkpointing",
        title="Activations in main memory",
        tip=(
            "Gradient checkpointing stores some data for each block until the backward pass. This setting "
            "keeps that data in main memory instead of on the GPU. The larger the images and batches, the "
            "more GPU memory this saves. The copies take time; results stay the same."
        ),
    )


class DenoiserConfig(ModelPartConfig):
    """A denoiser."""

    offload_fraction: Float = _timed_setting(
        0.0,
        within=(0, 1),
        title="Layers in main memory",
        tip=(
            "Share of the block layers whose weights stay in main memory and are copied to the GPU in "
            "every pass. Slower; use it for models that do not fit. Fine-tuned weights stay in main memory "
            "too. Needs gradient checkpointing."
        ),
    )


class QuantizationConfig(BaseConfig):
    """The layers of the denoiser that are kept in 8 or 4 bits."""

    layer_filter_preset: str = _timed_setting(
        BLOCKS,
        min_length=1,
        widget="layers",
        title="Low-bit layers",
        tip=(
            "The linear layers of the denoiser that are kept in 8 or 4 bits, if its weights have this "
            "format: blocks (all in its blocks), another preset of the model family, full for all, or "
            "custom for your own filter. With fewer low-bit layers, the model is more exact and takes more memory."
        ),
    )
    layer_filter: str = _timed_setting(
        "",
        visible=".layer_filter_preset=custom",
        title="Low-bit filter",
        tip=(
            "Parts of layer names, separated by commas; a linear layer whose name contains any of them is kept "
            "in 8 or 4 bits."
        ),
    )
    layer_filter_regex: bool = _timed_setting(
        False,
        visible=".layer_filter_preset=custom",
        title="Regex low-bit filter",
        tip="Read the parts of this filter as regular expressions.",
    )

    def patterns(self) -> tuple[str, ...]:
        """The parts of ``layer_filter``; empty unless the preset is ``custom``."""
        if self.layer_filter_preset != CUSTOM:
            return ()
        return tuple(part.strip() for part in self.layer_filter.split(",") if part.strip())


class TransformerConfig(DenoiserConfig):
    """A transformer denoiser."""

    guidance_scale: Float = kept_setting(
        1.0,
        within=(0, 100),
        visible=families_where(lambda spec: spec.embeds_guidance),
        title="Guidance",
        tip=(
            "The guidance scale that a guidance-distilled model gets as input during training. With 1, the "
            "trained model works at every scale."
        ),
    )
    attention_mask: PaddingMask = kept_setting(
        PaddingMask.FAMILY,
        visible=families_where(lambda spec: spec.padding != "none"),
        title="Padding of prompts",
        tip=(
            "Whether the transformer sees the padding after short prompts. FAMILY follows the published "
            "model. MASKED hides the padding; if a model takes no mask (FLUX, Stable Diffusion 3), the "
            "text states of the padding become zeros. When you use the trained model in another program, choose "
            "the same there."
        ),
    )


class FurtherTextEncoderConfig(ModelPartConfig):
    """An additional text encoder."""

    train: bool = kept_setting(
        False,
        tip="Train this text encoder as well. Prompts are then encoded in every step instead of once.",
    )
    offload_fraction: Float = _timed_setting(
        0.0,
        within=(0, 1),
        title="Layers in main memory",
        tip=(
            "Share of this text encoder's block layers whose weights stay in main memory and are copied to "
            "the GPU in every pass. Slower; use it for encoders that do not fit. The encoder's own weights "
            "then cannot be trained."
        ),
    )
    sequence_length: int | None = _timed_setting(
        None,
        within=(1, 2048),
        visible=families_where(lambda spec: bool(spec.length_of)),
        title="Tokens per prompt",
        tip=(
            "Maximum number of tokens that are read of a prompt, including those of the family's template. Fewer "
            "tokens save memory and time if prompts are short. Empty: the family's default, usually 512."
        ),
    )


class WordTextEncoderConfig(FurtherTextEncoderConfig):
    """A text encoder that, in some families, can train words with vectors of their own."""

    train_embedding: bool = kept_setting(
        True,
        visible=families_where(lambda spec: bool(spec.embedding_keys or spec.output_keys)),
        title="Train embeddings",
        tip=(
            "Train the embedding vectors that belong to this text encoder. Off: they keep their initial "
            "values. No effect without embeddings."
        ),
    )


class OptionalTextEncoderConfig(WordTextEncoderConfig):
    """A text encoder that some families can do without."""

    include: bool = kept_setting(
        True,
        visible=families_where(lambda spec: bool(spec.optional_encoders)),
        title="Use",
        tip=(
            "Read prompts with this text encoder too. Off: it is not loaded, and its states are zeros in "
            "training and in samples. This saves the memory of a T5-XXL encoder, but prompts are understood "
            "less well. Also use the trained model without this encoder then."
        ),
    )


class ClipTextEncoderConfig(WordTextEncoderConfig):
    """A text encoder that, in some families, is a CLIP."""

    layer_skip: int = kept_setting(
        0,
        within=(0, 100),
        visible=families_where(lambda spec: bool(spec.skips_layers_of)),
        tip=(
            "Take the text states this many layers earlier than usual. A clip skip of n in other "
            "programs is n - 1 here. Use the trained model with the same value."
        ),
    )


class TextEncoderConfig(ClipTextEncoderConfig):
    """The first text encoder. It also holds the settings that concern captions as a whole."""

    dropout_probability: Float = kept_setting(
        0.0,
        within=(0, 1),
        title="Caption dropout",
        tip=(
            "Probability that an image is trained with an empty prompt, which keeps guidance working. "
            "Never applied to preference pairs."
        ),
    )
