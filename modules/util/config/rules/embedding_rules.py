"""Rules that relate embeddings to the rest of a config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.spec.registry import TEXT_ENCODERS
from modules.util.config.rules.rules import ConfigWarning, Finding, rule
from modules.util.enum.choices import TrainingMethod
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

_LISTS = ("training_method", "embedding", "additional_embeddings")


@rule("model_type", *_LISTS)
def _family_takes_embeddings(c: TrainConfig) -> Iterator[Finding]:
    spec, places = c.model_type.spec, c.places_of_embeddings()
    alone = c.training_method is TrainingMethod.EMBEDDING
    if places and not spec.embedding_keys and not spec.output_keys:
        able = ", ".join(one.label for one in ModelType if one.spec.embedding_keys or one.spec.output_keys)
        yield UnsupportedError(
            f"{c.model_type.label} does not support embeddings; these families do: {able}",
            "training_method" if alone else "additional_embeddings",
            "set training_method to LORA" if alone else "empty the list",
        )
        return
    for place, one in places.items():
        if not one.is_output_embedding and not spec.embedding_keys:
            yield UnsupportedError(
                f"the text encoder of {c.model_type.label} cannot learn new words; only output vectors can be trained",
                f"{place}.is_output_embedding",
                "set it to true",
            )


@rule(*_LISTS)
def _placeholders_differ(c: TrainConfig) -> Iterator[Finding]:
    known: dict[str, str] = {}
    for place, one in c.places_of_embeddings().items():
        first = known.setdefault(one.placeholder.casefold(), place)
        if first != place:
            yield ConfigError(
                f"{one.placeholder!r} is already the placeholder of {first}; capitals make no difference",
                f"{place}.placeholder",
                "choose another word",
            )


@rule("model_type", *TEXT_ENCODERS, *_LISTS)
def _one_is_trained_alone(c: TrainConfig) -> Iterator[Finding]:
    if c.training_method is not TrainingMethod.EMBEDDING:
        return
    if not c.embedding.train:
        yield ConfigError("nothing is trained", "embedding.train", "switch it on")
    for number, one in enumerate(c.additional_embeddings):
        if one.train:
            yield ConfigError(
                "training_method EMBEDDING trains and saves only one embedding",
                f"additional_embeddings[{number}].train",
                "set it to false, or training_method to LORA",
            )


@rule("model_type", *TEXT_ENCODERS, *_LISTS)
def _in_some_encoder(c: TrainConfig) -> Iterator[Finding]:
    spec = c.model_type.spec
    kinds = [
        spec.output_keys if one.is_output_embedding else spec.embedding_keys
        for one in c.embeddings()
        if one.train
    ]
    if kinds and all(kinds) and not c.trains_words():
        yield ConfigError(
            "embeddings are to be trained, but train_embedding is off for every text encoder",
            f"{spec.text_encoders[0] if spec.embedding_keys else spec.length_of}.train_embedding",
            "switch it on, or set train of the embeddings to false",
        )


@rule("optimizer", "learning_rate", "embedding_learning_rate", "model_type", *TEXT_ENCODERS, *_LISTS)
def _embeddings_learn_slowly(c: TrainConfig) -> Iterator[Finding]:
    together = c.trains_words() and c.training_method is not TrainingMethod.EMBEDDING
    together = together and not c.optimizer.optimizer.of_matrices
    if together and c.embedding_learning_rate is None and c.learning_rate < 5e-4:
        yield ConfigWarning(
            f"is empty, so embeddings are trained at {c.learning_rate:g}, which is low; 1e-3 is usual",
            "embedding_learning_rate",
        )
