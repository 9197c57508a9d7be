"""Import of embeddings, which are the same in both programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.embedding.EmbeddingConfig import EmbeddingConfig
from modules.util.config.foreign.Notes import Notes
from modules.util.config.onetrainer.parts_import import END, end_of_training
from modules.util.enum.ModelType import ModelType

Data = dict[str, Any]
_ALONE, _MORE = "embedding", "additional_embeddings"


def import_embeddings(
    full: Mapping[str, Any], family: ModelType, method: str, usual: Mapping[str, Any], notes: Notes
) -> Data:
    """Our sections of embeddings.

    Args:
        full: the config with its defaults.
        method: the training method.
        usual: OneTrainer's defaults of an embedding.
    """
    made: Data = {
        _ALONE: _one(full[_ALONE], family, full, usual, _ALONE, notes) if method == "EMBEDDING" else {},
        _MORE: [],
    }
    further = full[_MORE]
    if not isinstance(further, list):
        notes.add(_MORE, further, "not a list", faulty=True)
        return made
    if further and not (family.spec.embedding_keys or family.spec.output_keys):
        notes.add(_MORE, f"{len(further)} entries", f"left out; not supported for {family.label}")
        return made
    for number, given in enumerate(further):
        made[_MORE].append(_one(given, family, full, usual, f"{_MORE}[{number}]", notes))
    return made


def _one(
    given: Any,
    family: ModelType,
    full: Mapping[str, Any],
    usual: Mapping[str, Any],
    place: str,
    notes: Notes,
) -> Data:
    if not isinstance(given, Mapping):
        notes.add(place, given, "not an object", faulty=True)
        return {}
    whole = {**usual, **given}
    ours = EmbeddingConfig.model_fields
    made = {name: value for name, value in whole.items() if name in ours and name not in END}
    if whole.get("is_output_embedding") is True:
        kept = [key for key in family.spec.output_keys if key]
        others = [key for key in family.spec.embedding_keys if key not in kept]
        if others:
            notes.add(
                f"{place}.is_output_embedding",
                True,
                f"vectors of {', '.join(kept)} only; none for {', '.join(others)}",
            )
    made |= end_of_training(place, whole, full, notes)
    notes.differences(given, usual, {*ours, "uuid", VERSION_KEY}, place)
    return made
