"""Reads adapter files in all common layouts, matched to the layers of a model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.digests import DIFFUSERS_METADATA, FIELD, check_digests
from modules.adapter.embedding_files import BUNDLE, bundled
from modules.adapter.fusion import ROWS, SPLITTABLE, LayerAdapter, split_rows, swap_halves
from modules.adapter.magnitudes import of_inputs
from modules.adapter.names import Place, Spelled, spellings, split_key
from modules.model.Model import Model
from modules.util.errors import DataError, UnsupportedError, blamed_on, list_offenders
from modules.util.jsonio import parse_json
from modules.util.tensors import peft_config
from modules.util.tensors.peft_config import PeftConfig

UNREAD = ("lora_mid", "oft_blocks", "oft_diag", "diff", "diff_b", "w_norm", "b_norm")
"""Tensors of other programs on layers that may or may not be adapted here."""
_SHOWN = 5
DIMENSIONS = {"alpha": 0, "dora_scale": 1}
"""Minimum number of dimensions of tensors that are not matrices."""
FACTORS = (
    ("lora_B", "lora_A"),
    ("hada_w1_a", "hada_w1_b"),
    ("hada_w2_a", "hada_w2_b"),
    ("lokr_w1_a", "lokr_w1_b"),
    ("lokr_w2_a", "lokr_w2_b"),
)
"""Factors of a product: the columns of the first are the rows of the second."""
REQUIRED = {
    "LORA": ("lora_A", "lora_B"),
    "LOHA": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    "LOKR": (),
    "OFT_2": ("oft_R",),
}


def _rank(kind: str, tensors: Mapping[str, torch.Tensor]) -> int:
    if kind == "LORA":
        return int(tensors["lora_A"].shape[0])
    if kind == "LOHA":
        return int(tensors["hada_w1_b"].shape[0])
    if kind == "OFT_2":
        # n (n - 1) / 2 numbers describe a rotation of n dimensions
        return round((1 + math.sqrt(1 + 8 * tensors["oft_R"].shape[-1])) / 2)
    for name in ("lokr_w2_b", "lokr_w1_b"):
        if name in tensors:
            return int(tensors[name].shape[0])
    return max(tensors["lokr_w2"].shape[:2])


def read_adapter(path: str | Path, model: Model) -> AdapterFile:
    """Read an adapter file of any known layout for a model.

    The parts of the model may have no values (on the ``meta`` device): names and shapes suffice.

    Raises:
        UserError: the file is missing, a pickle, damaged, not an adapter, or for another model. The message
            lists a few unmatched keys.
    """
    source = Path(path)
    tensors, metadata = read_tensors(source)
    return match_adapter(tensors, metadata, model, str(source))


def match_adapter(
    tensors: Mapping[str, torch.Tensor], metadata: dict[str, str], model: Model, source: str
) -> AdapterFile:
    """Match the tensors of an adapter file to the layers of a model; see ``read_adapter``.

    Args:
        source: path of the file. If peft wrote it, the settings next to it are read for its alpha.
    """
    notes = check_digests(source, tensors, metadata)
    known = spellings(model)
    found: dict[str, dict[str, torch.Tensor]] = {}
    strangers: list[str] = []
    embeddings, left_out = bundled(tensors, model.spec, source)
    tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(BUNDLE)}
    for key, tensor in tensors.items():
        split = split_key(key)
        if split is None or split[0] not in known:
            strangers.append(key)
        else:
            if "lora_magnitude_vector" in key and tensor.dim() > 1:
                # peft writes those of outputs in one row too
                tensor = tensor.reshape(-1)
            found.setdefault(split[0], {})[split[1]] = tensor
    _refuse_strangers(source, strangers, len(tensors), known, model)
    if not found:
        raise DataError(f"{source} holds no adapter", field=FIELD)
    kind = _kind(source, found, known)
    along_outputs = _along_outputs(source, found)
    settings, told = _peft_settings(source, kind, tensors, metadata)
    for name, values in found.items():
        _check_values(source, kind, name, values)
    layers: dict[Place, LayerAdapter] = {}
    for name, values in found.items():
        alpha = _alpha(source, kind, known[name].places[0], values, metadata, settings, name)
        layer = LayerAdapter(values, alpha, _rank(kind, values))
        for place, piece in _placed(source, kind, name, known[name], layer, model):
            if place in layers:
                raise DataError(
                    f"{source} holds the layer {'.'.join(place)} twice, the second time as {name}"
                )
            layers[place] = piece
    # a layer's first spelling is in model order; some others follow after those of all layers
    order = list(dict.fromkeys(place for spelled in known.values() for place in spelled.places))
    return AdapterFile(
        source,
        kind,
        {place: layers[place] for place in order if place in layers},
        metadata,
        (*notes, *told, *left_out),
        embeddings,
        along_outputs,
        None if settings is None else settings.path,
    )


def _check_values(source: str, kind: str, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors of a layer that cannot belong to an adapter, whatever the model.

    Raises:
        DataError: there are too few dimensions, no values, integers, NaN or infinite values, or factors of
            different ranks.
    """
    for leaf, tensor in tensors.items():
        fault = _value_fault(leaf, tensor)
        if fault:
            raise DataError(
                f"{source} cannot be read: {name}.{leaf} {fault}",
                field=FIELD,
                hint="the file is damaged or its training failed; use another saved copy of it",
            )
    for first, second in FACTORS:
        if {first, second} <= tensors.keys() and tensors[first].shape[1] != tensors[second].shape[0]:
            raise DataError(
                f"{source} cannot be read: {name} has rank {tensors[second].shape[0]} in {second} and "
                f"{tensors[first].shape[1]} in {first}",
                field=FIELD,
                hint="the file is damaged; use another copy of it",
            )


def _value_fault(leaf: str, tensor: torch.Tensor) -> str:
    """The fault of one tensor of an adapter, if any."""
    if leaf == "alpha" and tensor.numel() != 1:
        return f"has {tensor.numel()} numbers instead of 1"
    least = DIMENSIONS.get(leaf, 2)
    if tensor.dim() < least:
        return f"has {tensor.dim()} dimensions instead of at least {least}"
    # a rotation in blocks of 1 stores nothing
    if not tensor.numel() and not (leaf == "oft_R" and tensor.shape[0]):
        return f"is empty: its shape is {tuple(tensor.shape)}"
    if leaf == "alpha":
        return "" if torch.isfinite(tensor.float()).all() else "is NaN or infinite"
    if not tensor.is_floating_point():
        return f"holds whole numbers ({str(tensor.dtype).removeprefix('torch.')}), not weights"
    if tensor.device.type != "meta" and not torch.isfinite(tensor.float()).all():
        return "holds NaN or infinite values"
    return ""


def _along_outputs(source: str, layers: Mapping[str, Mapping[str, torch.Tensor]]) -> bool:
    """Return whether the magnitudes of a file (DoRA) are those of outputs, which they are if there are none.

    Raises:
        UnsupportedError: they are those of outputs in some layers, and of inputs in others.
    """
    # a single number does not tell
    told = {
        name: of_inputs(found["dora_scale"])
        for name, found in layers.items()
        if "dora_scale" in found and found["dora_scale"].numel() > 1
    }
    if len(set(told.values())) > 1:
        first, second = (
            next(name for name, inputs in told.items() if inputs is axis) for axis in (True, False)
        )
        raise UnsupportedError(
            f"{source} has magnitudes (DoRA) of inputs, as of {first}, and of outputs, as of {second}",
            field=FIELD,
            hint="use an adapter that has one of the two in all layers",
        )
    return not any(told.values())


def _unread(key: str, known: Mapping[str, Spelled]) -> str | None:
    """The unsupported tensor of an adapter on a layer; ``None`` for a foreign layer."""
    pieces = key.replace("base_model.model.", "").split(".")
    for end in range(len(pieces) - 1, 0, -1):
        if ".".join(pieces[:end]) in known:
            return ".".join(pieces[end:]).removesuffix(".weight")
    last = pieces[-2] if pieces[-1] == "weight" and len(pieces) > 1 else pieces[-1]
    return last if last in UNREAD else None


def _refuse_strangers(
    source: str, strangers: list[str], count: int, known: Mapping[str, Spelled], model: Model
) -> None:
    """Raise ``UserError`` for keys that belong to no layer, or to an unsupported adapter type."""
    kinds = {key: _unread(key, known) for key in strangers}
    foreign = [key for key, kind in kinds.items() if kind is None]
    if foreign:
        few = 2 * len(foreign) < count
        raise DataError(
            f"{source} does not fit {model.spec.label}: {len(foreign)} of {count} keys belong to no layer of it:\n"
            f"{list_offenders(foreign, _SHOWN)}",
            field=FIELD,
            hint="most of it fits: it was made for a variant of this model, or holds more than an adapter"
            if few
            else "the adapter was made for another model family, or is not an adapter",
        )
    if strangers:
        names = sorted({kind for kind in kinds.values() if kind})
        raise UnsupportedError(
            f"{source} has {len(strangers)} of {count} tensors of kinds that are not read "
            f"({', '.join(names[:_SHOWN])}):\n{list_offenders(strangers, _SHOWN)}",
            field=FIELD,
            hint="LoRA, DoRA, LoHa, LoKr and OFT are read, without trained biases, norms and core tensors",
        )


def _placed(
    source: str, kind: str, name: str, spelled: Spelled, layer: LayerAdapter, model: Model
) -> Iterator[tuple[Place, LayerAdapter]]:
    """The layers of a name, each with its share of the tensors."""
    if spelled.swapped:
        if kind == "LOKR":
            raise UnsupportedError(_not_split(source, name, kind), field=FIELD)
        layer = replace(layer, tensors=swap_halves(layer.tensors))
    sizes = [out_rows(model, place) for place in spelled.places]
    rows = {t.shape[0] for key, t in layer.tensors.items() if key in ROWS and key != "dora_scale"}
    if rows - {sum(sizes)}:
        raise DataError(
            f"{source} does not fit {model.source}: {name} has {max(rows)} outputs instead of {sum(sizes)}",
            field=FIELD,
        )
    if len(spelled.places) == 1:
        yield spelled.places[0], layer
        return
    if kind not in SPLITTABLE:
        raise UnsupportedError(_not_split(source, name, kind), field=FIELD)
    if "dora_scale" in layer.tensors and of_inputs(layer.tensors["dora_scale"]):
        raise UnsupportedError(
            f"{source} has magnitudes (DoRA) of the inputs of {name}, which is several layers here, "
            "and these magnitudes cannot be split",
            field=FIELD,
            hint="save it with separate layers (LEGACY_LORA), or train magnitudes of outputs",
        )
    for place, piece in zip(spelled.places, split_rows(kind, layer, sizes), strict=True):
        if piece is not None:
            yield place, piece


def _not_split(source: str, name: str, kind: str) -> str:
    return (
        f"{source} has a {kind} on {name}, which is several layers here, and a {kind} cannot be split"
    )


def out_rows(model: Model, place: Place) -> int:
    """Number of outputs of a layer."""
    layer: Any = model.module(place[0]).get_submodule(place[1])
    layer = getattr(layer, "base_layer", layer)
    return int(getattr(layer, "out_features", None) or layer.out_channels)


def find_adapter(path: str | Path) -> None:
    """Raise ``DataError`` if no adapter file can exist there, without opening it."""
    source = Path(path)
    if source.is_dir():
        hint = f"name the file in it, such as {peft_config.WEIGHTS}"
        raise DataError(f"the adapter {source} is a folder, not a file", field=FIELD, hint=hint)
    if not source.is_file():
        raise DataError(f"the adapter {source} does not exist", field=FIELD, hint="check the path")
    if source.suffix.lower() != ".safetensors":
        raise DataError(
            f"the adapter {source} is not a safetensors file",
            field=FIELD,
            hint="pickles (.pt, .ckpt, .bin) can run any program hidden in them and are not opened",
        )


def read_tensors(source: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. Raises ``DataError`` if it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    find_adapter(source)
    try:
        with safe_open(str(source), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"the adapter {source} is damaged: {error}", field=FIELD) from error


def _kind(source: str, layers: Mapping[str, Mapping[str, torch.Tensor]], known: Mapping[str, Spelled]) -> str:
    """The common adapter type of all layers. Every layer must be complete."""
    marks = {"lora_A": "LORA", "hada_w1_a": "LOHA", "lokr_w": "LOKR", "oft_R": "OFT_2"}
    kinds: dict[str, str] = {}
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
            places = known[place].places
            layer = ".".join(places[0]) if len(places) == 1 else place
            raise DataError(
                f"{source} is incomplete: the layer {layer} lacks {', '.join(missing)}", field=FIELD
            )
    if len(set(kinds.values())) > 1:
        raise UnsupportedError(
            f"{source} mixes kinds of adapters: {', '.join(sorted(set(kinds.values())))}", field=FIELD
        )
    if kinds[next(iter(kinds))] != "LORA" and any("dora_scale" in found for found in layers.values()):
        raise UnsupportedError(
            f"{source} is a {kinds[next(iter(kinds))]} with magnitudes (DoRA), which are read for LORA only",
            field=FIELD,
        )
    with_scale = ["dora_scale" in found for found in layers.values()]
    if any(with_scale) and not all(with_scale):
        raise UnsupportedError(f"{source} decomposes some layers and not others", field=FIELD)
    if any(found.keys() & {"hada_t1", "lokr_t2"} for found in layers.values()):
        raise UnsupportedError(
            f"{source} uses Tucker-decomposed convolutions, which cannot be trained further", field=FIELD
        )
    return kinds[next(iter(kinds))]


def _peft_settings(
    source: str, kind: str, keys: Collection[str], metadata: Mapping[str, str]
) -> tuple[PeftConfig | None, tuple[str, ...]]:
    """The settings next to a file of peft that does not hold its alpha, and a sentence about them."""
    tells = DIFFUSERS_METADATA in metadata or any(key.endswith(".alpha") for key in keys)
    of_peft = peft_config.of_peft(source, keys)
    # a copy in a project has settings next to it only if peft wrote it
    if tells or not (of_peft or Path(source).name == peft_config.START):
        return None, ()
    path = peft_config.config_next_to(source)
    with blamed_on(FIELD):
        settings = None if path is None else peft_config.read_peft_config(path, kind)
    if settings is not None:
        return settings, (settings.note,)
    if not of_peft or kind == "OFT_2":
        return None, ()
    return None, (f"{source}: there is no {peft_config.NAME} next to it, so its alpha is taken to be its rank",)


def _alpha(
    source: str,
    kind: str,
    place: Place,
    tensors: dict[str, torch.Tensor],
    metadata: Mapping[str, str],
    settings: PeftConfig | None,
    name: str,
) -> float:
    """Remove a layer's alpha from its tensors and return it: that of the file, of diffusers' metadata, of peft's
    settings, or the rank.

    Args:
        name: the layer as it is named in the file.

    Raises:
        DataError: the value in the metadata is not a number.
    """
    rank = _rank(kind, tensors)
    if "alpha" in tensors:
        alpha = float(tensors.pop("alpha").float())
        # two full factors have no rank by which alpha could be divided
        return float(rank) if {"lokr_w1", "lokr_w2"} <= tensors.keys() else alpha
    written = metadata.get(DIFFUSERS_METADATA)
    if written:
        config = parse_json(written, f"metadata of the adapter {source}")
        part, path = place
        # a model that is saved on its own has no name in its metadata
        of_part = f"{part}." if isinstance(config, dict) and f"{part}.lora_alpha" in config else ""
        if isinstance(config, dict) and f"{of_part}lora_alpha" in config:
            pattern, usual = config.get(f"{of_part}alpha_pattern"), config[f"{of_part}lora_alpha"]
            said = usual
            if isinstance(pattern, dict):
                ranks = config.get(f"{of_part}rank_pattern")
                told = _by_ending(ranks, path, rank) if isinstance(ranks, dict) else rank
                # earlier versions of this program wrote full names, some of which are also the end of another
                said = _by_ending(pattern, path, usual) if told == rank else pattern.get(path, usual)
            if (read := peft_config.number(said)) is None:
                raise DataError(
                    f"{source} cannot be read: its metadata gives {part}.{path} the alpha {said!r}",
                    field=FIELD,
                    hint="alpha must be a number; use another saved copy of the adapter",
                )
            return read * rank**0.5 if config.get(f"{of_part}use_rslora") else read
    return float(rank) if settings is None else settings.alpha_of(name, rank)


def _by_ending(pattern: Mapping[str, Any], path: str, usual: Any) -> Any:
    """The value of a layer in a table of the library: that of its path, or else of the first key its path ends in."""
    ending = (value for key, value in pattern.items() if path.endswith(f".{key}") or key == f"^{path}")
    return pattern.get(path, next(ending, usual))
