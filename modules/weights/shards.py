"""Weights of one part in several files, with an index of their tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from modules.model.weight_files import open_weights
from modules.util.errors import UserError, list_offenders
from modules.util.jsonio import read_json

FIELD = "base_model_name"
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_AGAIN = "copy or download it again"


def check_shards(files: Sequence[Path]) -> None:
    """Check that all shards of a model exist, each with the tensors listed in the index.

    Raises:
        UserError: a shard is missing or does not match. The message names it, with the missing or extra
            tensors.
    """
    found = [match for path in files if (match := SHARD.fullmatch(path.name))]
    if not found:
        return
    place, stem, count = files[0].parent, found[0]["stem"], found[0]["count"]
    names = [f"{stem}-{number:05d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
    lost = [name for name in names if not (place / name).is_file()]
    if lost:
        raise UserError(
            f"{place} lacks {len(lost)} of {int(count)} files of weights:\n{list_offenders(lost)}",
            field=FIELD,
            hint=_AGAIN,
        )
    # the libraries write the variant's name in two places
    plain, _, variant = stem.partition(".")
    choices = (f"{stem}.safetensors.index.json", f"{plain}.safetensors.index.{variant}.json")
    index = next((place / name for name in choices if (place / name).is_file()), None)
    if index is None:
        raise UserError(f"{place} has several files of weights but no {choices[0]}", field=FIELD, hint=_AGAIN)
    _compare(index, place, names)


def _compare(index: Path, place: Path, names: Sequence[str]) -> None:
    content = read_json(index, "index of weights")
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not set(map(str, listed.values())) <= set(names):
        raise UserError(
            f"{index} does not list the tensors of the {len(names)} files of weights next to it",
            field=FIELD,
            hint=_AGAIN,
        )
    for name in names:
        wanted = {tensor for tensor, shard in listed.items() if shard == name}
        held = open_weights(place / name, FIELD).names
        for what, tensors in (("lacks", wanted - held), ("has, beyond its index,", held - wanted)):
            if tensors:
                raise UserError(
                    f"{place / name} {what} {len(tensors)} tensors:\n{list_offenders(sorted(tensors))}",
                    field=FIELD,
                    hint=_AGAIN,
                )
