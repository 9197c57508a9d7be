"""Adapter files: written in the kohya and diffusers layouts, read in these and the ones found in the wild."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from modules.adapter.names import Place, diffusers_name, kohya_name, spellings, split_key
from modules.adapter.PeftAdapter import NAME, AdapterHandle, AdapterOptions
from modules.model.Model import Model
from modules.util.errors import ConfigError, DataError, UnsupportedError, list_offenders
from modules.util.jsonio import atomic_path, parse_json
from modules.util.tensor_files import write_safetensors

KOHYA = "KOHYA_LORA"
DIFFUSERS = "DIFFUSERS_LORA"
FIELD = "lora_model_name"
METADATA_PREFIX = "tastemaker."
IMPLEMENTATION = "https://github.com/huggingface/diffusers"
KOHYA_SUFFIX = {
    "lora_A": "lora_down.weight",
    "lora_B": "lora_up.weight",
    "oft_R": "oft_R.weight",
}
DIFFUSERS_SUFFIX = {
    "lora_A": "lora_A.weight",
    "lora_B": "lora_B.weight",
    "dora_scale": "lora_magnitude_vector.weight",
    "oft_R": "oft_R.weight",
}
REQUIRED = {
    "LORA": ("lora_A", "lora_B"),
    "LOHA": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    "LOKR": (),
    "OFT_2": ("oft_R",),
}


@dataclass(frozen=True)
class AdapterFile:
    """A read adapter file, matched to a model's layers.

    Args:
        kind: LORA, LOHA, LOKR or OFT_2.
        layers: (part, path) -> canonical tensor name -> tensor; ``alpha`` is not among them.
        alphas: (part, path) -> alpha, with alpha = rank where the file had none.
        metadata: of the file.
    """

    source: str
    kind: str
    layers: dict[Place, dict[str, torch.Tensor]]
    alphas: dict[Place, float]
    metadata: dict[str, str]

    def parts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part for part, _ in self.layers))

    def paths(self, part: str) -> list[str]:
        return [path for other, path in self.layers if other == part]

    def rank(self, part: str, path: str) -> int:
        return _rank(self.kind, self.layers[part, path])

    def alpha(self, part: str, path: str) -> float:
        return self.alphas[part, path]

    @property
    def full_factors(self) -> bool:
        """Whether the first Kronecker factor is stored whole (LOKR only)."""
        return any("lokr_w1" in tensors for tensors in self.layers.values())

    @property
    def decomposed(self) -> bool:
        return any("dora_scale" in tensors for tensors in self.layers.values())

    def adopt(self, options: AdapterOptions) -> tuple[AdapterOptions, list[str]]:
        """Options that fit the file, and what had to be changed for it."""
        places = list(self.layers)
        rank, alpha = self.rank(*places[0]), self.alpha(*places[0])
        adopted = replace(
            options,
            kind=self.kind,
            rank=rank,
            alpha=alpha,
            decompose=self.decomposed,
            rank_stabilized=False,
            parts=self.parts(),
        )
        changes = [
            (what, getattr(options, attribute), getattr(adopted, attribute))
            for what, attribute in (
                ("type", "kind"),
                ("rank", "rank"),
                ("alpha", "alpha"),
                ("weight decomposition", "decompose"),
                ("parts", "parts"),
            )
        ]
        return adopted, [
            f"the adapter {self.source} decides the {what}: {new} instead of {old}"
            for what, old, new in changes
            if old != new
        ]

    def state_for(self, handle: AdapterHandle) -> dict[str, torch.Tensor]:
        """The tensors under the names and in the shapes of an attached adapter."""
        state: dict[str, torch.Tensor] = {}
        own = dict(handle.named_tensors())
        for (part, path), tensors in self.layers.items():
            for name, tensor in tensors.items():
                place = f"{part}.{path}"
                key = next((k for k in _own_names(place, name) if k in own), f"{place}.{name}")
                fits = key in own and own[key].numel() == tensor.numel()
                state[key] = tensor.reshape(own[key].shape) if fits else tensor
        # index tables some kinds keep beside their weights are not in files
        for name, tensor in own.items():
            if not isinstance(tensor, torch.nn.Parameter):
                state.setdefault(name, tensor)
        return state


def _own_names(path: str, name: str) -> tuple[str, ...]:
    attribute = "lora_magnitude_vector" if name == "dora_scale" else name
    return f"{path}.{attribute}.weight", f"{path}.{attribute}"


def _rank(kind: str, tensors: Mapping[str, torch.Tensor]) -> int:
    if kind == "LORA":
        return tensors["lora_A"].shape[0]
    if kind == "LOHA":
        return tensors["hada_w1_b"].shape[0]
    if kind == "OFT_2":
        # n (n - 1) / 2 numbers describe a rotation of n dimensions
        return round((1 + (1 + 8 * tensors["oft_R"].shape[-1]) ** 0.5) / 2)
    for name in ("lokr_w2_b", "lokr_w1_b"):
        if name in tensors:
            return tensors[name].shape[0]
    return max(tensors["lokr_w2"].shape[0], tensors["lokr_w2"].shape[1])


# -- reading ------------------------------------------------------------------------------------------------


def read_adapter(path: str | Path, model: Model) -> AdapterFile:
    """Read an adapter file of any known layout for a model.

    Raises:
        UserError: missing, a pickle, damaged, not an adapter, or one for another model; the message lists up
            to 20 keys that fit nothing.
    """
    source = Path(path)
    tensors, metadata = _read_safetensors(source)
    known = spellings(model)
    layers: dict[Place, dict[str, torch.Tensor]] = {}
    strangers: list[str] = []
    for key, tensor in tensors.items():
        split = split_key(key)
        place = known.get(split[0]) if split else None
        if split is None or place is None:
            strangers.append(key)
        else:
            layers.setdefault(place, {})[split[1]] = tensor
    if strangers:
        share = f"{len(strangers)} of {len(tensors)}"
        raise DataError(
            f"{source} does not fit {model.spec.label}: {share} keys belong to no layer of it:\n"
            f"{list_offenders(strangers)}",
            field=FIELD,
            hint="the adapter was made for another model family, or is not an adapter",
        )
    if not layers:
        raise DataError(f"{source} holds no adapter", field=FIELD)
    order = {place: index for index, place in enumerate(known.values())}
    layers = dict(sorted(layers.items(), key=lambda item: order[item[0]]))
    kind = _kind(source, layers)
    alphas = {place: _alpha(kind, place, found, metadata) for place, found in layers.items()}
    return AdapterFile(str(source), kind, layers, alphas, metadata)


def find_adapter(path: str | Path) -> None:
    """``DataError`` if no adapter file can be there, found without opening it."""
    source = Path(path)
    if not source.is_file():
        raise DataError(f"the adapter {source} does not exist", field=FIELD, hint="check the path")
    if source.suffix.lower() != ".safetensors":
        raise DataError(
            f"the adapter {source} is not a safetensors file",
            field=FIELD,
            hint="pickles (.pt, .ckpt, .bin) can run any program hidden in them and are not opened",
        )


def _read_safetensors(source: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    find_adapter(source)
    try:
        with safe_open(str(source), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"the adapter {source} is damaged: {error}", field=FIELD) from error


def _kind(source: Path, layers: Mapping[Place, Mapping[str, torch.Tensor]]) -> str:
    """The one kind of all layers, every layer complete."""
    marks = {"lora_A": "LORA", "hada_w1_a": "LOHA", "lokr_w": "LOKR", "oft_R": "OFT_2"}
    kinds: dict[Place, str] = {}
    for place, found in layers.items():
        kinds[place] = next(
            (kind for mark, kind in marks.items() if any(name.startswith(mark) for name in found)), ""
        )
        missing = [name for name in REQUIRED.get(kinds[place], ("weights",)) if name not in found]
        if kinds[place] == "LOKR":
            missing = [
                f"lokr_w{i}"
                for i in (1, 2)
                if f"lokr_w{i}" not in found and not {f"lokr_w{i}_a", f"lokr_w{i}_b"} <= found.keys()
            ]
        if missing:
            raise DataError(
                f"{source} is incomplete: the layer {'.'.join(place)} lacks {', '.join(missing)}", field=FIELD
            )
    if len(set(kinds.values())) > 1:
        raise UnsupportedError(
            f"{source} mixes kinds of adapters: {', '.join(sorted(set(kinds.values())))}", field=FIELD
        )
    with_scale = ["dora_scale" in found for found in layers.values()]
    if any(with_scale) and not all(with_scale):
        raise UnsupportedError(f"{source} decomposes some layers and not others", field=FIELD)
    if any(found.keys() & {"hada_t1", "lokr_t2"} for found in layers.values()):
        raise UnsupportedError(
            f"{source} uses Tucker-decomposed convolutions, which cannot be trained further", field=FIELD
        )
    return kinds[next(iter(kinds))]


def _alpha(kind: str, place: Place, tensors: dict[str, torch.Tensor], metadata: Mapping[str, str]) -> float:
    """The layer's alpha, taken out of its tensors: the file's, that of diffusers' metadata, or the rank."""
    rank = _rank(kind, tensors)
    if "alpha" in tensors:
        alpha = float(tensors.pop("alpha").float())
        # two full factors have no rank that alpha could be divided by
        return float(rank) if {"lokr_w1", "lokr_w2"} <= tensors.keys() else alpha
    written = metadata.get("lora_adapter_metadata")
    if written:
        config = parse_json(written, "adapter metadata")
        part, path = place
        if isinstance(config, dict) and f"{part}.lora_alpha" in config:
            pattern = config.get(f"{part}.alpha_pattern") or {}
            alpha = float(pattern.get(path, config[f"{part}.lora_alpha"]))
            return alpha * rank**0.5 if config.get(f"{part}.use_rslora") else alpha
    return float(rank)


# -- writing ------------------------------------------------------------------------------------------------


def check_layout(kind: str, layout: str) -> None:
    """``UnsupportedError`` if adapters of a kind cannot be written in a layout."""
    if layout == DIFFUSERS and kind != "LORA":
        raise UnsupportedError(
            f"the diffusers layout holds LORA only, not {kind}",
            field="output_model_format",
            hint=f"use {KOHYA}",
        )


def adapter_tensors(
    handle: AdapterHandle, layout: str, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of an adapter as a file of a layout holds them, on the CPU.

    Args:
        layout: KOHYA_LORA (alpha beside the weights) or DIFFUSERS_LORA (alpha folded into ``lora_B``).
        dtype: of the weights; as trained if ``None``. Alphas are float32.

    Raises:
        UnsupportedError: a layout that cannot hold this kind of adapter. ConfigError: unknown layout.
    """
    layout = str(getattr(layout, "value", layout))
    if layout not in (KOHYA, DIFFUSERS):
        raise ConfigError(
            f"{layout!r} is not a layout of adapters",
            field="output_model_format",
            hint=f"use {KOHYA} or {DIFFUSERS}",
        )
    kind = handle.options.kind
    check_layout(kind, layout)
    written: dict[str, torch.Tensor] = {}
    for place in handle.layers:
        part, path = place.split(".", 1)
        spell = kohya_name if layout == KOHYA else diffusers_name
        name = spell(handle.model, part, path)
        tensors = _layer_tensors(handle, place)
        scaling, rank = handle.scaling(place), handle.rank(place)
        if kind == "LOKR":
            # readers disagree about alpha where a factor is not decomposed; folded in, nobody can err
            first = "lokr_w1" if "lokr_w1" in tensors else "lokr_w1_a"
            tensors[first] = tensors[first].float() * scaling
            written[f"{name}.alpha"] = torch.tensor(float(rank))
        elif kind == "OFT_2":
            pass
        elif layout == KOHYA:
            written[f"{name}.alpha"] = torch.tensor(scaling * rank)
        else:
            tensors["lora_B"] = tensors["lora_B"].float() * scaling
        suffixes = KOHYA_SUFFIX if layout == KOHYA else DIFFUSERS_SUFFIX
        for short, tensor in tensors.items():
            if short == "dora_scale" and layout == KOHYA:
                out = tensor.numel()
                tensor = tensor.reshape(out, *[1] * (tensors["lora_A"].dim() - 1))
            key = f"{name}.{suffixes.get(short, short)}"
            written[key] = tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()
    return dict(sorted(written.items()))


def _layer_tensors(handle: AdapterHandle, place: str) -> dict[str, torch.Tensor]:
    """Canonical name -> parameter of one layer."""
    layer: Any = handle.layers[place]
    found: dict[str, torch.Tensor] = {}
    for attribute in layer.adapter_layer_names:
        item = getattr(layer, attribute, {})
        if NAME in item:
            value = item[NAME]
            short = "dora_scale" if attribute == "lora_magnitude_vector" else attribute
            found[short] = value.weight if isinstance(value, torch.nn.Module) else value
    return found


def model_metadata(
    handle: AdapterHandle, tensors: Mapping[str, torch.Tensor], title: str, extra: Mapping[str, object]
) -> dict[str, str]:
    """``modelspec.*`` and our own fields for a file.

    Args:
        title: name of the adapter.
        extra: further facts (``objective``, ``beta``, ``seed``, ``step``, ``reference``, ``pairs``);
            ``None`` values are left out.
    """
    model, options = handle.model, handle.options
    ranks = sorted({handle.rank(place) for place in handle.layers})
    facts: dict[str, object] = {
        "adapter_type": options.kind,
        "rank": ",".join(map(str, ranks)),
        "alpha": options.alpha,
        "decompose": options.decompose,
        "rank_stabilized": options.rank_stabilized,
        "base_model": Path(model.source).name,
        "base_model_hash": model.source_hash() or None,
        **extra,
    }
    spec = {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": model.spec.lora_architecture,
        "modelspec.implementation": IMPLEMENTATION,
        "modelspec.title": title,
        "modelspec.date": date.today().isoformat(),
        "modelspec.prediction_type": {"v_prediction": "v"}.get(
            model.schedule.prediction, model.schedule.prediction
        ),
        "modelspec.hash_sha256": tensor_hash(tensors),
    }
    spec |= model.spec.lora_metadata
    ours = {f"{METADATA_PREFIX}{key}": _text(value) for key, value in facts.items() if value is not None}
    return spec | ours


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def tensor_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """``0x`` and the sha256 of all tensor bytes in the order of their keys."""
    hasher = hashlib.sha256()
    for key in sorted(tensors):
        raw = tensors[key].detach().cpu().contiguous().flatten().view(torch.uint8)
        hasher.update(memoryview(raw.numpy()))
    return "0x" + hasher.hexdigest()


def save_adapter(
    handle: AdapterHandle,
    path: str | Path,
    layout: str = KOHYA,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, object] | None = None,
    title: str | None = None,
) -> Path:
    """Write an adapter file atomically.

    Args:
        metadata: facts about the run beside those the adapter knows itself.
        title: of the file's metadata; its name by default.
    """
    target = Path(path)
    tensors = adapter_tensors(handle, layout, dtype)
    facts = model_metadata(handle, tensors, title or target.stem, metadata or {})
    with atomic_path(target) as temporary:
        write_safetensors(tensors, temporary, facts)
    return target
