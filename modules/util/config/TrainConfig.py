"""Everything a training run is told: one flat object, one section class per page of the program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from modules.util.config import online_rules  # noqa: F401 - registers their rules
from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.faults import raise_all, translate
from modules.util.config.migrations import TRAIN_MIGRATIONS
from modules.util.config.overrides import apply_overrides, merge
from modules.util.config.resolution import parse_resolutions
from modules.util.config.rules.rules import Problems, family_rules, find_problems
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.section.BackupSection import BackupSection
from modules.util.config.section.DataSection import DataSection
from modules.util.config.section.LoraSection import LoraSection
from modules.util.config.section.ModelSection import ModelSection
from modules.util.config.section.OnlineLossSection import OnlineLossSection
from modules.util.config.section.OnlineSection import OnlineSection
from modules.util.config.section.ProjectSection import ProjectSection
from modules.util.config.section.RlhfSection import RlhfSection
from modules.util.config.section.SamplingSection import SamplingSection
from modules.util.config.section.TrainingSection import TrainingSection
from modules.util.config.section.ValidationSection import ValidationSection
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.enum.ModelFormat import ModelFormat
from modules.util.enum.TrainingMethod import TrainingMethod
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import read_json

SECTIONS: tuple[type[BaseConfig], ...] = (
    ProjectSection,
    ModelSection,
    DataSection,
    TrainingSection,
    LoraSection,
    RlhfSection,
    OnlineSection,
    OnlineLossSection,
    SamplingSection,
    BackupSection,
    ValidationSection,
)
"""The sections in the order they are shown."""

_ONETRAINER_ONLY = {
    "additional_embeddings",
    "cloud",
    "fallback_train_dtype",
    "prior",
    "quantization",
    "secrets",
}
"""Top-level keys by which a OneTrainer config is told from one of ours."""


class TrainConfig(
    ValidationSection,
    BackupSection,
    SamplingSection,
    OnlineLossSection,
    OnlineSection,
    RlhfSection,
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

    # -- reading and writing ------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "", check: bool = True) -> Self:
        """Build from plain data of any known version; missing keys keep their defaults.

        Args:
            data: what ``to_dict`` made, or any part of it.
            where: the place of ``data`` in a larger file, for errors.
            check: also refuse values that are fine alone but contradict each other (see ``problems``).

        Raises:
            UserErrors: several faults; a single one is raised as itself: ConfigError for a bad value,
            UnsupportedError for a combination that is not offered.
        """
        if isinstance(data, Mapping) and not data.keys().isdisjoint(_ONETRAINER_ONLY):
            hint = "import it instead: the import window, or scripts/import_onetrainer.py"
            raise ConfigError("this is a OneTrainer config", where or None, hint)
        if not isinstance(data, Mapping):
            return super().from_dict(data, where)
        upgraded = cls.upgrade(data, where)
        faults: list[UserError] = []
        wrong: set[str] = set()
        try:
            made = cls.model_validate(upgraded)
        except ValidationError as error:
            faults.extend(translate(error, cls, where))
            wrong = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}
            made = cls.model_validate({name: v for name, v in upgraded.items() if name not in wrong})
        if check:
            faults.extend(find_problems(made, ignoring=wrong).errors)
        raise_all(faults, f"the config has {len(faults)} faults")
        made.rlhf_dpo_ref_mode = made.effective_dpo_ref_mode()
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Self:
        """Read a config file, change it by ``name=value`` texts, and check everything.

        Raises:
            UserError: the file cannot be read; otherwise as ``from_dict``.
        """
        return cls.load_layered(None, path, overrides)

    @classmethod
    def load_layered(
        cls,
        preset_path: str | os.PathLike[str] | None,
        config_path: str | os.PathLike[str] | None,
        overrides: Sequence[str] = (),
        check: bool = True,
    ) -> Self:
        """Defaults, then a preset, then a config, then ``name=value`` texts: later ones win, key by key.

        Preset and config may each hold any part of the settings and may be of different versions.
        """
        merged: dict[str, Any] = {}
        for path in (preset_path, config_path):
            if path is not None:
                data = read_json(path, cls.WHAT)
                if not isinstance(data, Mapping):
                    raise ConfigError(f"{path} is not a config: it must be an object {{...}}")
                if not data.keys().isdisjoint(_ONETRAINER_ONLY):
                    return cls.from_dict(data)
                merged = merge(merged, cls.upgrade(data))
        merged = apply_overrides(cls, merged, overrides)
        return cls.from_dict({VERSION_KEY: cls.VERSION, **merged}, check=check)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data in the order of the sections; ``from_dict`` of it is equal to ``self``."""
        made = super().to_dict()
        made["rlhf_dpo_ref_mode"] = self.effective_dpo_ref_mode().value
        return made

    def sparse_dict(self) -> dict[str, Any]:
        """As ``to_dict``, with only what differs from the defaults: the form of presets."""
        made = _differences(self.to_dict(), type(self)().to_dict())
        return {VERSION_KEY: self.VERSION, **made}

    def packed(self, base_dir: str | os.PathLike[str] | None = None) -> Self:
        """A copy that holds its concepts and samples itself, so that it does not depend on other files."""
        made = self.copy_of()
        made.concepts = self.load_concepts(base_dir)
        made.samples = self.load_samples(base_dir)
        return made

    # -- questions ----------------------------------------------------------------------------------------

    def problems(self) -> Problems:
        """Values that contradict each other, and those that are probably not meant."""
        return find_problems(self)

    def check(self) -> list[str]:
        """Raise what ``problems`` finds wrong (one fault as itself, several together); return warnings."""
        problems = self.problems()
        raise_all(problems.errors, f"the config has {len(problems.errors)} faults")
        return [str(warning) for warning in problems.warnings]

    def needs_no_images(self) -> bool:
        """Whether the run makes its images itself, of prompts in a file."""
        return self.rlhf_enabled and self.rlhf_mode.online and bool(self.rlhf_prompts_file.strip())

    def effective_dpo_ref_mode(self) -> DPORefMode:
        """EXISTING_ADAPTER when training starts from an adapter, else NEW_ADAPTER."""
        return DPORefMode.EXISTING_ADAPTER if self.lora_model_name.strip() else DPORefMode.NEW_ADAPTER

    def effective_output_format(self) -> ModelFormat:
        """``output_model_format`` with AUTO resolved."""
        if self.output_model_format is not ModelFormat.AUTO:
            return self.output_model_format
        lora = self.training_method is TrainingMethod.LORA
        return ModelFormat.KOHYA_LORA if lora else ModelFormat.SAFETENSORS

    def trains_text(self) -> bool:
        """Whether a text encoder of the model's family is trained."""
        return any(getattr(self, part).train for part in self.model_type.text_encoders)

    def resolutions(self) -> list[int]:
        """The numbers in ``resolution``."""
        return parse_resolutions(self.resolution)

    def load_concepts(self, base_dir: str | os.PathLike[str] | None = None) -> list[ConceptConfig]:
        """The concepts in the config, or else those of its concept file.

        Online training whose prompts are in a file of their own needs none.
        """
        if self.concepts is None and self.needs_no_images() and not Path(self.concept_file_name).exists():
            return []
        source: Any = self.concept_file_name if self.concepts is None else self.concepts
        return ConceptConfig.load_all(source, base_dir)

    def load_samples(self, base_dir: str | os.PathLike[str] | None = None) -> list[SampleConfig]:
        """The samples in the config, or else those of its sample file; none if there is no such file."""
        if self.samples is not None:
            return SampleConfig.load_all(self.samples, base_dir)
        path = Path(base_dir or "") / self.sample_definition_file_name
        if not self.sample_definition_file_name or not path.exists():
            return []
        return SampleConfig.load_all(path)


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
