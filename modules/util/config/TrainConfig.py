"""The config of a training run: one flat object, with one section class per page of the program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.embedding.EmbeddingConfig import EmbeddingConfig
from modules.util.config.embedding.EmbeddingSection import EmbeddingSection
from modules.util.config.faults import raise_all, translate
from modules.util.config.migrations import TRAIN_MIGRATIONS
from modules.util.config.remote.RemoteSection import RemoteSection
from modules.util.config.resolution import parse_resolutions
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.section.BackupSection import BackupSection
from modules.util.config.section.DataSection import DataSection
from modules.util.config.section.LoraSection import LoraSection
from modules.util.config.section.ModelSection import ModelSection
from modules.util.config.section.OlderNames import OlderNames
from modules.util.config.section.OnlineLossSection import OnlineLossSection
from modules.util.config.section.OnlineSection import OnlineSection
from modules.util.config.section.ProjectSection import ProjectSection
from modules.util.config.section.RlhfSection import RlhfSection
from modules.util.config.section.SamplingSection import SamplingSection
from modules.util.config.section.TrainingSection import TrainingSection
from modules.util.config.section.ValidationSection import ValidationSection
from modules.util.enum.choices import DPOSafeguard, TrainingMethod
from modules.util.enum.DPOObjective import DPOObjective
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.errors import ConfigError, UserError, UserErrors

SECTIONS: tuple[type[BaseConfig], ...] = (
    ProjectSection,
    ModelSection,
    DataSection,
    TrainingSection,
    LoraSection,
    EmbeddingSection,
    RlhfSection,
    OnlineSection,
    OnlineLossSection,
    SamplingSection,
    BackupSection,
    ValidationSection,
    RemoteSection,
)
"""The sections in display order."""

_ONETRAINER_ONLY = {
    *("attention_mechanism", "async_offloading", "clear_cache_before_training", "cloud", "compile"),
    *("enable_autocast_cache", "fallback_train_dtype", "frames", "include_train_config", "lokr_dim"),
    *("multi_gpu", "oft_block_size", "optimizer_defaults", "prior", "secrets"),
    "temp_device",
}
"""Top-level keys that identify a OneTrainer config."""


IMPORT_IT = "import it instead: the import window, or scripts/import_config.py"


class TrainConfig(
    RemoteSection,
    ValidationSection,
    BackupSection,
    SamplingSection,
    OnlineLossSection,
    OnlineSection,
    RlhfSection,
    EmbeddingSection,
    LoraSection,
    TrainingSection,
    DataSection,
    ModelSection,
    ProjectSection,
):
    """The config of a training run."""

    VERSION: ClassVar[int] = 1
    MIGRATIONS = TRAIN_MIGRATIONS
    WHAT: ClassVar[str] = "config"
    OLDER_NAMES = OlderNames

    # -- reading and writing ------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "") -> Self:
        """Build from plain data of any known version. Missing keys keep their defaults.

        ``load.read_config`` and ``load.check_config`` also check that the values are consistent.

        Args:
            data: the output of ``to_dict`` or any part of it.
            where: location of ``data`` in a larger file, for errors.

        Raises:
            ConfigError, UserErrors: all faults.
        """
        made, faults, _ = cls.read(data, where)
        raise_all(faults, f"the config has {len(faults)} faults")
        return made

    @classmethod
    def read(cls, data: Mapping[str, Any], where: str = "") -> tuple[Self, list[UserError], set[str]]:
        """Read the valid part. Returns the config, the faults of the rest, and the top-level names of the
        rest.

        Raises:
            ConfigError: the data is not a config of this program at all.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"must be an object {{...}}, not {type(data).__name__}", where or None)
        refuse_other_programs(data, where)
        faults: list[UserError] = []
        wrong: set[str] = set()
        upgraded = _without_older_names(cls.upgrade(data, where), where, faults)
        try:
            made = cls.model_validate(upgraded)
        except ValidationError as error:
            faults.extend(translate(error, cls, where))
            wrong = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}
            made = cls.model_validate({name: v for name, v in upgraded.items() if name not in wrong})
        made.rlhf_dpo_ref_mode = made.effective_dpo_ref_mode()
        return made, faults, wrong

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON data in section order. ``from_dict`` of it equals ``self``."""
        made = super().to_dict()
        made["rlhf_dpo_ref_mode"] = self.effective_dpo_ref_mode().value
        return made

    def sparse_dict(self) -> dict[str, Any]:
        """As ``to_dict``, but only what differs from the defaults, as in presets."""
        made = _differences(self.to_dict(), type(self)().to_dict())
        return {VERSION_KEY: self.VERSION, **made}

    def packed(self, base_dir: str | os.PathLike[str] | None = None) -> Self:
        """A copy that contains its concepts and samples, so that it does not depend on other files."""
        made = self.copy_of()
        made.concepts = self.load_concepts(base_dir)
        made.samples = self.load_samples(base_dir)
        return made

    # -- questions ----------------------------------------------------------------------------------------

    @property
    def trains_pairs(self) -> bool:
        """True if the run learns from pairs of images on disk."""
        return self.rlhf_enabled and not self.rlhf_mode.online

    @property
    def trains_online(self) -> bool:
        """True if images are made and scored while training."""
        return self.rlhf_enabled and self.rlhf_mode.online

    def needs_no_images(self) -> bool:
        """Return whether the run makes its own images, from prompts in a file."""
        return self.trains_online and bool(self.rlhf_prompts_file.strip())

    def effective_dpo_ref_mode(self) -> DPORefMode:
        """EXISTING_ADAPTER when training starts from an adapter, else NEW_ADAPTER."""
        return DPORefMode.EXISTING_ADAPTER if self.lora_model_name.strip() else DPORefMode.NEW_ADAPTER

    @property
    def dpo_safeguard_mu(self) -> float | None:
        """mu of the safeguard for chosen images; ``None`` if it is off."""
        on = self.rlhf_dpo_safeguard is DPOSafeguard.OUTPUT
        return self.rlhf_dpo_safeguard_mu if on else None

    @property
    def takes_single_images(self) -> bool:
        """True if the run learns from single liked and disliked images instead of pairs."""
        return self.trains_pairs and self.rlhf_dpo_objective is DPOObjective.KTO

    def trains_text(self) -> bool:
        """Return whether a text encoder of the model's family is trained."""
        return any(part in self.model_type.text_encoders for part in self.trained_parts())

    def trained_parts(self) -> list[str]:
        """The parts of the model that are trained, directly or through an adapter; the denoiser comes first.
        """
        if self.training_method is TrainingMethod.EMBEDDING:
            return []
        parts = (self.model_type.denoiser, *self.model_type.text_encoders)
        return [part for part in parts if getattr(self, part).train]

    def trains_in_main_memory(self) -> bool:
        """Return whether directly trained weights of the denoiser are kept in main memory."""
        denoiser = self.model_type.denoiser
        whole = self.training_method is TrainingMethod.FINE_TUNE and denoiser in self.trained_parts()
        return bool(whole and getattr(self, denoiser).offload_fraction > 0)

    def embeddings(self) -> list[EmbeddingConfig]:
        """The embeddings of the run. The one trained by the method EMBEDDING comes first."""
        return list(self.places_of_embeddings().values())

    def places_of_embeddings(self) -> dict[str, EmbeddingConfig]:
        """The embeddings by the location of their settings."""
        alone = self.training_method is TrainingMethod.EMBEDDING
        further = {f"additional_embeddings[{n}]": one for n, one in enumerate(self.additional_embeddings)}
        return {**({"embedding": self.embedding} if alone else {}), **further}

    def trains_words(self) -> bool:
        """Return whether an embedding is trained."""
        return any(own.train and self._learns(own) for own in self.embeddings())

    def _learns(self, own: EmbeddingConfig) -> bool:
        """Return whether an embedding has vectors for any text encoder whose vectors are trained."""
        spec = self.model_type.spec
        read = spec.text_encoders if spec.embedding_keys else ()
        written = tuple(spec.output_encoders)
        encoders = written if own.is_output_embedding else read
        return any(getattr(self, encoder).train_embedding for encoder in encoders)

    def resolutions(self) -> list[int]:
        """The numbers in ``resolution``."""
        return parse_resolutions(self.resolution)

    def load_concepts(self, base_dir: str | os.PathLike[str] | None = None) -> list[ConceptConfig]:
        """The concepts in the config, or else those of its concept file.

        Online training with a prompt file needs no concepts.
        """
        if self.concepts is None and self.needs_no_images() and not Path(self.concept_file_name).exists():
            return []
        source: Any = self.concept_file_name if self.concepts is None else self.concepts
        return ConceptConfig.load_all(source, base_dir)

    def load_samples(self, base_dir: str | os.PathLike[str] | None = None) -> list[SampleConfig]:
        """The samples in the config, or else those of its sample file. Empty if that file does not exist."""
        if self.samples is not None:
            return SampleConfig.load_all(self.samples, base_dir)
        path = Path(base_dir or "") / self.sample_definition_file_name
        if not self.sample_definition_file_name or not path.exists():
            return []
        return SampleConfig.load_all(path)


def refuse_other_programs(data: Mapping[str, Any], where: str = "") -> None:
    """Raise ``ConfigError`` for a config of OneTrainer or ai-toolkit, which have settings that ours lacks."""
    if not data.keys().isdisjoint(_ONETRAINER_ONLY):
        raise ConfigError("this is a OneTrainer config", where or None, IMPORT_IT)
    inner = data.get("config")
    if isinstance(inner, Mapping) and "process" in inner:
        raise ConfigError("this is a config of ai-toolkit", where or None, IMPORT_IT)


def _without_older_names(data: dict[str, Any], where: str, faults: list[UserError]) -> dict[str, Any]:
    """``data`` under current names. Faults of the older ones are added to ``faults``."""
    older = {name: value for name, value in data.items() if name in OlderNames.model_fields}
    made = {name: value for name, value in data.items() if name not in older}
    try:
        return made | OlderNames.from_dict(older, where).replaced(made)
    except UserErrors as errors:
        faults.extend(errors.errors)
    except UserError as error:
        faults.append(error)
    return made


def _differences(data: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in data.items():
        other = default.get(name)
        if isinstance(value, dict) and isinstance(other, dict) and other:
            inner = _differences(value, other)
            if inner:
                made[name] = inner
        elif value != other:
            made[name] = value
    return made
