"""The settings that peft writes next to an adapter. They hold its alpha, which its file lacks."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.util.errors import DataError, UnsupportedError
from modules.util.jsonio import read_json
from modules.util.owned_files import shown

NAME = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
START = "start.safetensors"
"""The copy of an adapter in a project, which its settings are copied with."""
PREFIX = "base_model.model."
"""Begins the names of tensors in files that peft writes."""
MAX_BYTES = 16 * 1024 * 1024
MAX_HEADER = 100_000_000
"""The longest header of a safetensors file."""
ALPHAS = {"LORA": "lora_alpha", "LOHA": "alpha", "LOKR": "alpha", "OFT": ""}
"""Kind -> its field for alpha; a rotation has none."""
OTHER_FORMULAS = (
    "alora_invocation_tokens", "arrow_config", "block_share", "coft", "kasa_config", "layer_replication",
    "monteclora_config", "use_bdlora", "use_qalora",
)  # fmt: skip
"""Fields that, unless empty, give the same tensors another meaning."""
CAYLEY_TERMS = 5
"""The number of terms of a rotation here, which is the usual one."""
CHANGED_BASES = re.compile(r"(pissa|corda).*|olora|loftq|lora_ga", re.IGNORECASE)
"""Ways of initialising an adapter that change the base model too, so its file does not fit the original model."""
LAYER = re.compile(r"\^?((?:[\w-]|\\?\.)+)\$?")
"""A name in a table of ranks or alphas; other regular expressions are not read."""


@dataclass(frozen=True)
class PeftConfig:
    """The strength of an adapter, by the settings next to it.

    Args:
        kind: LORA, LOHA, LOKR or OFT.
        ranks: layer, or the end of its name -> rank, for layers without the usual one; ``alphas`` likewise.
        stabilized: whether outputs are multiplied by alpha / sqrt(rank) instead of alpha / rank.
    """

    path: Path
    kind: str
    rank: float
    alpha: float
    ranks: Mapping[str, float]
    alphas: Mapping[str, float]
    stabilized: bool

    def alpha_of(self, layer: str, rank: int) -> float:
        """The alpha of a layer, which is to be divided by the rank that its tensors have.

        Raises:
            DataError: the rank is not the one in the settings.
        """
        if self.kind == "OFT":
            return float(rank)
        said = _value(self.ranks, layer, self.rank)
        if said != rank and self.kind != "LOKR":
            raise DataError(
                f"{shown(self.path)} belongs to another adapter: it gives {layer} the rank {said:g}, not {rank}",
                field="lora_model_name",
                hint="put the adapter into a folder of its own, with the settings that it was saved with",
            )
        alpha = _value(self.alphas, layer, self.alpha)
        return rank * alpha / (math.sqrt(said) if self.stabilized else said)

    @property
    def note(self) -> str:
        """A sentence about what was read."""
        if self.kind == "OFT":
            return f"{shown(self.path)} was read: a rotation, which has no alpha"
        values = sorted({self.alpha, *self.alphas.values()})
        alpha = f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"
        root = ", divided by the square root of the rank (use_rslora)" if self.stabilized else ""
        return f"{shown(self.path)} was read: alpha {alpha}{root}"


def config_next_to(adapter: str | Path) -> Path | None:
    """The settings in the folder of an adapter file or, if its name is a link, in the folder it leads to."""
    places = (Path(adapter).parent, Path(os.path.realpath(adapter)).parent)
    return next((place / NAME for place in places if os.path.lexists(place / NAME)), None)


def of_peft(adapter: str | Path, keys: Iterable[str]) -> bool:
    """Return whether peft wrote a file with these tensors, so that its alpha is in the settings next to it."""
    return Path(adapter).name == WEIGHTS or all(key.startswith(PREFIX) for key in keys)


def settings_of(adapter: Path) -> Path | None:
    """The settings next to an adapter, if peft wrote it. Those next to another file may belong to any adapter."""
    found = config_next_to(adapter)
    named = adapter.name in (WEIGHTS, START)
    return found if found is not None and (named or of_peft(adapter, _keys(adapter))) else None


def alters_strength(adapter: Path) -> bool:
    """Return whether the settings next to an adapter give it another strength than its file alone, which is all that
    most programs read.

    Raises:
        UserError: the settings cannot be read.
    """
    path = settings_of(adapter)
    if path is None or any(key.endswith(".alpha") for key in _keys(adapter)):
        return False
    found = read_json(path, "settings file", MAX_BYTES)
    kind = found.get("peft_type") if isinstance(found, dict) else None
    read = read_peft_config(path, str(kind))
    return read is not None and (read.stabilized or read.alpha != read.rank or read.alphas != read.ranks)


def _keys(adapter: Path) -> list[str]:
    """Names of the tensors of a file; one that fits nothing if it is not a safetensors file."""
    with adapter.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(length)) if length <= MAX_HEADER else None
        except (ValueError, RecursionError):
            header = None
    return [key for key in header if key != "__metadata__"] if isinstance(header, dict) else [""]


def read_peft_config(path: Path, kind: str) -> PeftConfig | None:
    """Read the settings of an adapter; ``None`` if they are empty.

    Args:
        kind: the kind of adapter that the tensors are.

    Raises:
        UserError: the file is unreadable, too large or not valid, or its adapter is of a kind that is not read.
    """
    found = read_json(path, "settings file", MAX_BYTES)
    if found == {}:
        return None
    if not isinstance(found, dict):
        raise _invalid(path, "is not a JSON object")
    said = found.get("peft_type")
    if not isinstance(said, str) or said not in ALPHAS:
        raise UnsupportedError(
            f"{shown(path)} names an adapter of the kind {shown(str(said))}, which is not read",
            hint=f"the kinds of peft that are read: {', '.join(ALPHAS)}",
        )
    if said != kind.removesuffix("_2"):
        raise DataError(
            f"{shown(path)} belongs to another adapter: it names the kind {said}, not {kind}",
            hint="put the adapter into a folder of its own, with the settings that it was saved with",
        )
    _check_formula(path, found)
    if said == "OFT":
        return PeftConfig(path, said, 1.0, 1.0, {}, {}, False)
    rank, alpha = (_number(path, field, found.get(field)) for field in ("r", ALPHAS[said]))
    ranks, alphas = (_table(path, field, found.get(field)) for field in ("rank_pattern", "alpha_pattern"))
    if min([rank, *ranks.values()]) < 1:
        raise _invalid(path, "has a rank below 1")
    return PeftConfig(path, said, rank, alpha, ranks, alphas, bool(found.get("use_rslora")))


def _check_formula(path: Path, found: Mapping[str, Any]) -> None:
    """Raise ``UnsupportedError`` for variants whose tensors would be applied by another formula."""
    variants = [field for field in OTHER_FORMULAS if found.get(field)]
    initial = found.get("init_lora_weights")
    if isinstance(initial, str) and CHANGED_BASES.fullmatch(initial):
        variants.append(f"init_lora_weights {shown(initial)}")
    if found.get("use_cayley_neumann") is False:
        variants.append("use_cayley_neumann off")
    if found.get("num_cayley_neumann_terms") not in (None, CAYLEY_TERMS):
        variants.append(f"num_cayley_neumann_terms {shown(str(found['num_cayley_neumann_terms']))}")
    if variants:
        raise UnsupportedError(
            f"{shown(path)} describes a variant of adapters that is not read: {', '.join(variants)}",
            hint="convert it to a plain adapter with peft; for init_lora_weights, save it with "
            "path_initial_model_for_weight_conversion",
        )


def _invalid(path: Path, fault: str) -> DataError:
    return DataError(f"{shown(path)} {fault}", hint="use another copy of the folder that peft wrote")


def number(value: Any) -> float | None:
    """A finite number of a JSON file; ``None`` if it is anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _number(path: Path, field: str, value: Any) -> float:
    found = number(value)
    if found is None:
        raise _invalid(path, f"gives {field} the value {shown(repr(value))}, which is not a number")
    return found


def _table(path: Path, field: str, value: Any) -> dict[str, float]:
    """A table of ranks or alphas, by the names of layers."""
    if not isinstance(value, dict | None):
        raise _invalid(path, f"has a {field} that is not a table")
    table: dict[str, float] = {}
    for name, number in (value or {}).items():
        match = LAYER.fullmatch(name)
        if match is None:
            raise UnsupportedError(
                f"{shown(path)} has the expression {shown(name)} in {field}, where only names of layers are read",
                hint="write the full names of the layers",
            )
        plain = match[1].replace("\\.", ".")
        table[f"^{plain}" if name.startswith("^") else plain] = _number(path, f"{field} of {plain}", number)
    return table


def _value(table: Mapping[str, float], layer: str, usual: float) -> float:
    """The value of a layer: that of the first key that is its name or the end of its name, as in peft."""
    for key, value in table.items():
        if layer == key.removeprefix("^") or (not key.startswith("^") and layer.endswith(f".{key}")):
            return value
    return usual
