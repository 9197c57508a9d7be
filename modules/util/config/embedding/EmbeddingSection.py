from functools import partial
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.embedding.EmbeddingConfig import EmbeddingConfig
from modules.util.config.setting import Float, kept_setting
from modules.util.enum.choices import DataType
from modules.util.enum.ModelType import families_where

_OFFERED = families_where(lambda spec: bool(spec.embedding_keys or spec.output_keys))

_training_of_embeddings = partial(kept_setting, group="Training of embeddings")
_offered_embeddings = partial(_training_of_embeddings, visible=_OFFERED)


class EmbeddingSection(BaseConfig):
    """Words with trained vectors of their own."""

    SECTION: ClassVar[str] = "Embeddings"

    embedding: EmbeddingConfig = kept_setting(
        factory=EmbeddingConfig,
        visible="training_method=EMBEDDING",
        group="Embedding",
        tip="The embedding that training_method EMBEDDING trains.",
    )
    additional_embeddings: list[EmbeddingConfig] = _training_of_embeddings(
        factory=list,
        hidden=True,
        tip=(
            "Embeddings that are trained along with the adapter or the model, or only used in captions and prompts. "
            "Each needs its own placeholder."
        ),
    )
    embedding_learning_rate: Float | None = _offered_embeddings(
        None,
        within=(0, 100),
        title="Learning rate",
        tip=(
            "Learning rate of all embeddings. Embeddings need a much higher rate than an adapter: 1e-3 to 5e-3 is "
            "usual. Empty: the run's learning rate."
        ),
    )
    embedding_weight_dtype: DataType = _offered_embeddings(
        DataType.FLOAT_32,
        cost="value",
        title="Embedding weights",
        tip="Number format of embeddings in training. Keep FLOAT_32: in 16 bits small steps are lost.",
    )
    preserve_embedding_norm: bool = _offered_embeddings(
        False,
        title="Keep vector length",
        tip=(
            "After each step, scale every vector to the median length of the text encoder's own vectors. Switch "
            "it on if an embedding dominates the image at high learning rates. Output vectors are not scaled."
        ),
    )
    bundle_additional_embeddings: bool = _training_of_embeddings(
        True,
        visible="training_method=LORA",
        free=True,
        title="Save in the adapter's file",
        tip=(
            "Write additional embeddings into the file of the adapter. Off: write them as files in a folder next "
            "to it. Switch it off if you use the adapter in diffusers, which refuses adapter files that hold "
            "embeddings. Embeddings trained with a whole model are always separate files."
        ),
    )
