"""Writes adapter files in the layouts of other programs; ``reading`` does the reverse."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import torch

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.digests import DIFFUSERS_METADATA, digests
from modules.adapter.embedding_files import bundle_tensors, vectors_by_key
from modules.adapter.fusion import LayerAdapter, join_rows, swap_halves
from modules.adapter.magnitudes import of_inputs
from modules.adapter.names import (
    Place,
    checkpoint_original,
    comfy_name,
    diffusers_name,
    diffusers_original,
    kohya_name,
    kohya_original,
    legacy_name,
)
from modules.adapter.PeftAdapter import AdapterHandle, own_items
from modules.adapter.reading import find_adapter, out_rows, read_adapter
from modules.model.Model import Model
from modules.model.text.LearnedWords import LearnedWord
from modules.util.errors import ConfigError, UnsupportedError
from modules.util.jsonio import atomic_path
from modules.util.tensors.lazy_tensors import converted
from modules.util.tensors.tensor_files import write_safetensors
from modules.weights.keymaps.base import Original

__all__ = ["AdapterFile", "find_adapter", "read_adapter"]

KOHYA = "KOHYA_LORA"
DIFFUSERS = "DIFFUSERS_LORA"
COMFY = "COMFY_LORA"
LEGACY = "LEGACY_LORA"
FIELD = "output_model_format"
Magnitudes = Literal["", "outputs", "inputs"]
"""The sides of a layer that an adapter has magnitudes for (DoRA)."""
METADATA_PREFIX = "tastemaker."
IMPLEMENTATION = "https://github.com/huggingface/diffusers"
_DOWN_UP = {"lora_A": "lora_down.weight", "lora_B": "lora_up.weight", "oft_R": "oft_R.weight"}
_A_B = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight", "oft_R": "oft_R.weight"}


@dataclass(frozen=True)
class Layout:
    """A layout of adapter files.

    Args:
        original: (model, part, path) -> the layout's layer for one of ours.
        spell: (model, part, name of that layer) -> first part of its keys.
        suffixes: canonical tensor name -> last part of its keys, if different.
        alpha: whether alpha is stored next to the weights; otherwise it is folded into ``lora_B``.
        kinds: adapter types it supports.
    """

    original: Callable[[Model, str, str], Original]
    spell: Callable[[Model, str, str], str]
    suffixes: Mapping[str, str]
    alpha: bool = True
    kinds: tuple[str, ...] = ("LORA", "LOHA", "LOKR", "OFT_2")


LAYOUTS = {
    KOHYA: Layout(kohya_original, kohya_name, _DOWN_UP),
    LEGACY: Layout(diffusers_original, legacy_name, _DOWN_UP),
    COMFY: Layout(checkpoint_original, comfy_name, _A_B),
    DIFFUSERS: Layout(
        diffusers_original,
        diffusers_name,
        {**_A_B, "dora_scale": "lora_magnitude_vector.weight"},
        alpha=False,
        kinds=("LORA",),
    ),
}


def get_layout(name: object) -> Layout:
    """A layout by its name or enum member. Raises ``ConfigError`` if there is none."""
    name = str(getattr(name, "value", name))
    if name not in LAYOUTS:
        raise ConfigError(
            f"{name!r} is not a layout of adapters", field=FIELD, hint=f"use {' or '.join(LAYOUTS)}"
        )
    return LAYOUTS[name]


def check_layout(kind: str, magnitudes: Magnitudes, name: str) -> None:
    """Raise ``UnsupportedError`` if a layout does not support an adapter type, whatever the model."""
    layout = get_layout(name)
    fault = f"LORA only, not {kind}" if kind not in layout.kinds else ""
    if magnitudes == "inputs" and not layout.alpha:
        fault = "magnitudes (DoRA) of outputs only, not of inputs"
    if fault:
        raise UnsupportedError(f"the diffusers layout holds {fault}", field=FIELD, hint=f"use {KOHYA}")


def check_writable(model: Model, kind: str, magnitudes: Magnitudes, places: list[Place], name: str) -> None:
    """Raise ``UnsupportedError`` if an adapter on these layers cannot be written in a layout."""
    layout = get_layout(name)
    check_layout(kind, magnitudes, name)
    own = set(places)
    for part, path in places:
        original = layout.original(model, part, path)
        layout.spell(model, part, original.name)
        whole = all((part, piece) in own for piece in original.pieces)
        if (original.fused and kind != "LORA") or (original.swapped and kind == "LOKR"):
            fault = (
                f"{path} is part of {original.name} there, and {kind} adapters of its pieces cannot be joined"
            )
        elif original.fused and magnitudes == "inputs":
            fault = (
                f"{path} is part of {original.name} there, and magnitudes (DoRA) of inputs cannot be joined"
            )
        elif original.fused and magnitudes and not whole:
            fault = f"{path} is part of {original.name} there, of which other pieces have no magnitude"
        else:
            continue
        instead = "magnitudes of outputs" if magnitudes == "inputs" else "LORA"
        raise UnsupportedError(
            f"{name} cannot hold this adapter: {fault}",
            field=FIELD,
            hint=f"use {LEGACY}, which keeps the layers apart, or {instead}",
        )


def fitting_layout(handle: AdapterHandle) -> str:
    """The most widely supported layout for an adapter: kohya's, with separate layers if necessary."""
    try:
        check_writable(handle.model, handle.options.kind, _magnitudes(handle), _places(handle), KOHYA)
    except UnsupportedError:
        return LEGACY
    return KOHYA


def check_handle(handle: AdapterHandle, name: str) -> None:
    """Raise ``UnsupportedError`` if an attached adapter cannot be written in a layout."""
    check_writable(handle.model, handle.options.kind, _magnitudes(handle), _places(handle), name)


def _magnitudes(handle: AdapterHandle) -> Magnitudes:
    if not handle.options.decompose:
        return ""
    return "outputs" if handle.options.decompose_outputs else "inputs"


def _places(handle: AdapterHandle) -> list[Place]:
    return [(part, path) for part, _, path in (place.partition(".") for place in handle.layers)]


def adapter_tensors(
    handle: AdapterHandle, layout: object, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of an attached adapter in a layout; see ``layout_tensors``."""
    layers: dict[Place, LayerAdapter] = {}
    for place, name in zip(_places(handle), handle.layers, strict=True):
        rank = handle.rank(name)
        layers[place] = LayerAdapter(_layer_tensors(handle, name), handle.scaling(name) * rank, rank)
    return layout_tensors(handle.model, handle.options.kind, layers, layout, dtype)


def layout_tensors(
    model: Model,
    kind: str,
    layers: Mapping[Place, LayerAdapter],
    layout: object,
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of adapters in a layout, on the CPU.

    Args:
        layout: KOHYA_LORA, LEGACY_LORA and COMFY_LORA store alpha next to the weights, DIFFUSERS_LORA folds
            it into ``lora_B``.
        dtype: type of the weights; ``None`` keeps them. Alphas are float32.

    Raises:
        UnsupportedError: the layout does not support this adapter. ConfigError: the layout is unknown.
    """
    shape = get_layout(layout)
    name = str(getattr(layout, "value", layout))
    scales = [layer.tensors["dora_scale"] for layer in layers.values() if "dora_scale" in layer.tensors]
    of_them: Magnitudes = "inputs" if any(map(of_inputs, scales)) else "outputs"
    check_writable(model, kind, of_them if scales else "", list(layers), name)
    written: dict[str, torch.Tensor] = {}
    done: set[Place] = set()
    for place in layers:
        if place in done:
            continue
        part, path = place
        original = shape.original(model, part, path)
        pieces = [(part, piece) for piece in original.pieces]
        done |= set(pieces)
        layer = layers[place]
        if original.fused:
            layer = join_rows([layers.get(piece) for piece in pieces], [out_rows(model, p) for p in pieces])
        if original.swapped:
            layer = LayerAdapter(swap_halves(layer.tensors), layer.alpha, layer.rank)
        written |= _keys(shape, kind, shape.spell(model, part, original.name), layer, dtype)
    return dict(sorted(written.items()))


def _keys(
    layout: Layout, kind: str, name: str, layer: LayerAdapter, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """The tensors of one layer under the names of a layout."""
    tensors = dict(layer.tensors)
    written: dict[str, torch.Tensor] = {}
    # readers disagree about the alpha of factors that are not decomposed; folding it in avoids the
    # ambiguity
    first = {
        "LORA": "lora_B",
        "LOHA": "hada_w1_a",
        "LOKR": "lokr_w1" if "lokr_w1" in tensors else "lokr_w1_a",
    }
    if kind != "OFT_2":
        fold = not layout.alpha or kind == "LOKR"
        if fold:
            tensors[first[kind]] = tensors[first[kind]].float() * layer.scaling
        if layout.alpha:
            written[f"{name}.alpha"] = torch.tensor(float(layer.rank) if fold else float(layer.alpha))
    for short, tensor in tensors.items():
        if short == "dora_scale":
            ones = [1] * (tensors["lora_A"].dim() - 1)
            count = tensor.numel()
            in_a_row = (1, count, *ones[1:])
            # a library writes them as it stores them: along the second axis of convolutions
            peft = (count,) if len(ones) == 1 else in_a_row
            usual = in_a_row if of_inputs(tensor) else (count, *ones)
            tensor = tensor.reshape(usual if layout.alpha else peft)
        key = f"{name}.{layout.suffixes.get(short, short)}"
        written[key] = converted(tensor.detach().to("cpu"), dtype, key).contiguous()
    return written


def _layer_tensors(handle: AdapterHandle, place: str) -> dict[str, torch.Tensor]:
    """Canonical name -> parameter of one layer."""
    found: dict[str, torch.Tensor] = {}
    for attribute, value in own_items(handle.layers[place]):
        short = "dora_scale" if attribute == "lora_magnitude_vector" else attribute
        if isinstance(value, torch.nn.Module):
            value = value.weight
        if short == "dora_scale" and handle.options.decompose_outputs:
            # peft has them in a row
            value = value.reshape(-1)
        found[short] = value
    return found


def model_metadata(handle: AdapterHandle, title: str, extra: Mapping[str, object]) -> dict[str, str]:
    """``modelspec.*`` and our own fields for a file.

    Args:
        title: name of the adapter.
        extra: additional facts (``objective``, ``beta``, ``seed``, ``step``, ``reference``, ``pairs_hash``);
            ``None`` values are left out.
    """
    model, options = handle.model, handle.options
    ranks = sorted({handle.rank(place) for place in handle.layers})
    facts: dict[str, object] = {
        "adapter_type": options.kind,
        "rank": ",".join(map(str, ranks)),
        "alpha": options.alpha,
        "rank_pattern": dict(options.rank_pattern) or None,
        "alpha_pattern": dict(options.alpha_pattern) or None,
        "decompose": options.decompose,
        "decompose_output_axis": False if _magnitudes(handle) == "inputs" else None,
        "rank_stabilized": options.rank_stabilized,
        "base_model": model.source_name,
        "base_model_hash": model.source_hash() or None,
        "base_model_commit": model.hub_commits,
        **extra,
    }
    ours = {f"{METADATA_PREFIX}{key}": _text(value) for key, value in facts.items() if value is not None}
    return spec_metadata(model, title) | ours


def spec_metadata(model: Model, title: str) -> dict[str, str]:
    """``modelspec.*`` and other metadata that programs expect in an adapter file of a family."""
    spec = {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": model.spec.lora_architecture,
        "modelspec.implementation": IMPLEMENTATION,
        "modelspec.title": title,
        "modelspec.date": date.today().isoformat(),
        "modelspec.prediction_type": {"v_prediction": "v"}.get(
            model.schedule.prediction, model.schedule.prediction
        ),
    }
    return spec | dict(model.spec.lora_metadata)


def diffusers_metadata(layers: Mapping[Place, tuple[int, bool]]) -> dict[str, str]:
    """The configuration that diffusers reads for weights of different ranks, with alpha folded in.

    Empty if all ranks are equal, because the weights then tell everything.

    Args:
        layers: (part, path) -> rank, and whether it has a magnitude.
    """
    config: dict[str, Any] = {}
    if len({rank for rank, _ in layers.values()}) == 1:
        return {}
    for part in dict.fromkeys(part for part, _ in layers):
        # without the level that some versions of the libraries lack, because names are matched by their
        # end
        ranks = {path: rank for (other, path), (rank, _) in layers.items() if other == part}
        usual = Counter(ranks.values()).most_common(1)[0][0]
        # a pattern matches every name with that ending, so longer ones must come first, those of usual rank too
        ends = tuple(f".{name}" for name, rank in ranks.items() if rank != usual)
        unusual = {
            name: ranks[name]
            for name in sorted(ranks, key=len, reverse=True)
            if ranks[name] != usual or name.endswith(ends)
        }
        facts = {
            "r": usual,
            "lora_alpha": usual,
            "rank_pattern": unusual,
            "alpha_pattern": unusual,
            "target_modules": sorted(ranks),
            "use_dora": any(decomposed for (other, _), (_, decomposed) in layers.items() if other == part),
        }
        config |= {f"{part}.{key}": value for key, value in facts.items()}
    return {DIFFUSERS_METADATA: json.dumps(dict(sorted(config.items())))}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def save_adapter(
    handle: AdapterHandle,
    path: str | Path,
    layout: object = KOHYA,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, object] | None = None,
    title: str | None = None,
    bundle: Sequence[LearnedWord] = (),
) -> Path:
    """Write an adapter file atomically.

    Args:
        metadata: facts about the run besides those known to the adapter.
        title: title in the file's metadata; by default its name.
        bundle: embeddings to include.
    """
    target = Path(path)
    tensors = adapter_tensors(handle, layout, dtype)
    words = {word.placeholder: vectors_by_key(word, handle.model.spec) for word in bundle}
    tensors |= bundle_tensors(words, dtype)
    facts = model_metadata(handle, title or target.stem, metadata or {})
    if not get_layout(layout).alpha:
        ranks = [(handle.rank(place), handle.options.decompose) for place in handle.layers]
        facts |= diffusers_metadata(dict(zip(_places(handle), ranks, strict=True)))
    with atomic_path(target) as temporary:
        write_safetensors(tensors, temporary, facts | digests(tensors, facts))
    return target
