"""Runs check the outline of a tiny model once per process for the same settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from modules.trainer import GenericTrainer as trainer
from modules.util.config.TrainConfig import TrainConfig
from tests.tiny import root

_CHECK = trainer.check_model
_PASSED: set[str] = set()
_ELSEWHERE = (
    "backup_after", "backup_after_unit", "backup_each_tenth", "base_model_name", "cache_dir", "concept_file_name",
    "concepts", "continue_last_backup", "epochs", "max_steps", "output_model_destination", "rlhf_prompts_file",
    "rolling_backup", "sample_definition_file_name", "samples", "seed", "workspace_dir",
)  # fmt: skip
"""Settings that no outline depends on: data, places, the number of steps, and backups."""


def _names_files(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_names_files, value.values()))
    if isinstance(value, list):
        return any(map(_names_files, value))
    return isinstance(value, str) and ("/" in value or "\\" in value)


def _key(config: TrainConfig) -> str:
    """What a check depends on; empty if it reads files that a test may change between two runs."""
    base = Path(config.base_model_name)
    others = {name: value for name, value in config.to_dict().items() if name not in _ELSEWHERE}
    if base.parent != root() or _names_files(others):
        return ""
    return json.dumps([str(base), others], sort_keys=True)


def _check(config: TrainConfig, before: Mapping[str, str] | None = None) -> None:
    # a resumed run reads the same files, because those of tiny models stay as they are
    key = _key(config)
    if key not in _PASSED:
        _CHECK(config, before)
    if key:
        _PASSED.add(key)


@contextmanager
def checked_once() -> Iterator[None]:
    """Inside the block, a model of ``tiny_folder`` is not checked again that passed with the same settings.

    A check that a test has replaced is left alone, and one that failed is made again.
    """
    if trainer.check_model is not _CHECK:
        yield
        return
    with mock.patch.object(trainer, "check_model", _check):
        yield
