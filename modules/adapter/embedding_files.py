"""Files of embeddings (textual inversion), and embeddings in files of adapters.

A file for CLIP alone holds ``emb_params`` (A1111, ComfyUI), others hold a tensor of the name of each text encoder, such
as ``clip_l`` and ``clip_g``, or ``t5``. Vectors for their outputs are ``clip_l_out`` and so on, for CLIP alone
``emp_params_out`` (OneTrainer). Of other programs ``emp_params``, ``string_to_param`` (A1111's .pt) and files with one
tensor of any name (diffusers) are read as well. In files of adapters they are ``bundle_emb.PLACEHOLDER.KEY``.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from modules.adapter.digests import FIELD, digests
from modules.model.Model import Model
from modules.model.text.LearnedWords import OUTPUT, LearnedWord
from modules.model.weight_files import DAMAGED, check_archive
from modules.spec.FamilySpec import FamilySpec
from modules.util.config.embedding.EmbeddingConfig import MOST_TOKENS, fault_of_placeholder
from modules.util.errors import DataError, UserError
from modules.util.jsonio import atomic_path
from modules.util.tensors.lazy_tensors import converted
from modules.util.tensors.tensor_files import write_safetensors

BUNDLE = "bundle_emb."
SINGLE, THEIRS, CLIP = "emb_params", "emp_params", "clip_l"
SINGLE_OUT = f"{THEIRS}{OUTPUT}"
_PICKLES = (".pt", ".bin")
_MOST_BYTES = 64 * 2**20
_MOST_BUNDLED = 1000


def file_tensors(
    word: LearnedWord, spec: FamilySpec, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of a single-embedding file, (tokens, E) each, on the CPU."""
    names = {CLIP: SINGLE, f"{CLIP}{OUTPUT}": SINGLE_OUT} if spec.embedding_keys == (CLIP,) else {}
    return {names.get(key, key): _written(rows, dtype, key) for key, rows in vectors_by_key(word, spec).items()}


def bundle_tensors(
    words: Mapping[str, Mapping[str, torch.Tensor]], dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of embeddings in an adapter file, on the CPU.

    Args:
        words: placeholder -> its vectors (tokens, E) by the text encoders' names in files.
    """
    return {
        f"{BUNDLE}{placeholder}.{key}": _written(rows, dtype, f"{placeholder}.{key}")
        for placeholder, own in words.items()
        for key, rows in own.items()
    }


def vectors_by_key(word: LearnedWord, spec: FamilySpec) -> dict[str, torch.Tensor]:
    """The vectors of a word by what files call them."""
    made: dict[str, torch.Tensor] = {
        key: word.vectors[encoder] for key, encoder in _encoders(spec, word.vectors).items()
    }
    keys = spec.output_encoders
    return made | {f"{keys[encoder]}{OUTPUT}": rows for encoder, rows in word.outputs.items()}


def _encoders(spec: FamilySpec, loaded: Collection[str]) -> dict[str, str]:
    """The names of a model's text encoders in files: key -> encoder."""
    known = zip(spec.embedding_keys, spec.text_encoders, strict=bool(spec.embedding_keys))
    return {key: encoder for key, encoder in known if encoder in loaded}


def _written(vectors: torch.Tensor, dtype: torch.dtype | None, name: str) -> torch.Tensor:
    return converted(vectors.detach().to("cpu", copy=True), dtype, name).contiguous()


def save_embedding(
    word: LearnedWord, model: Model, path: str | Path, dtype: torch.dtype | None, facts: Mapping[str, str]
) -> Path:
    """Write the file of one embedding, atomically."""
    target, spec = Path(path), model.spec
    tensors = file_tensors(word, spec, dtype)
    metadata = {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{spec.model_architecture}/textual-inversion",
        "modelspec.title": target.stem,
        "modelspec.trigger_phrase": word.placeholder,
        **facts,
    }
    with atomic_path(target) as temporary:
        write_safetensors(tensors, temporary, metadata | digests(tensors, metadata))
    return target


def read_embedding(
    path: str | Path, model: Model, field: str, output: bool | None = False
) -> dict[str, torch.Tensor]:
    """Read the vectors of a single-embedding file by text encoder, (tokens, E) float each. Output vectors have the
    encoder's name with ``OUTPUT``.

    Args:
        field: the setting that names the file, for errors.
        output: whether output vectors are wanted; ``None`` for what the file has.

    Raises:
        DataError: the file is missing, damaged, not an embedding, or for another model.
    """
    source = Path(path)
    if not source.is_file():
        raise DataError(f"the embedding {source} does not exist", field=field, hint="check the path")
    if source.stat().st_size > _MOST_BYTES:
        raise DataError(
            f"{source} has more than {_MOST_BYTES // 2**20} MB, so it is not an embedding",
            field=field,
            hint="name a file of one embedding",
        )
    tensors = _pickled(source, field) if source.suffix.lower() in _PICKLES else _safetensors(source, field)
    if model.spec.output_keys == (CLIP,):
        outputs = {f"{name}{OUTPUT}": f"{CLIP}{OUTPUT}" for name in (SINGLE, THEIRS)}
        tensors = {outputs.get(name, name): rows for name, rows in tensors.items()}
    tensors = _without_blanks(tensors, model.spec)
    if _has_outputs(tensors, source, model.spec, field, output):
        return checked(tensors, model, str(source), field)
    keys = tuple(_encoders(model.spec, model.text_encoders))
    if len(model.spec.embedding_keys) == 1:
        names = (SINGLE, THEIRS) if keys == (CLIP,) else ()
        found = [tensors[name] for name in names if name in tensors]
        if not found and len(tensors) == 1:
            # by the name of the encoder or, as in diffusers, by its placeholder
            found = list(tensors.values())
        chosen = dict(zip(keys, found, strict=False))
    else:
        chosen = {key: tensors[key] for key in keys if key in tensors}
    if len(chosen) < len(keys):
        held = ", ".join(sorted(tensors)[:5]) or "nothing"
        raise DataError(
            f"{source} is not an embedding of {model.spec.label}: it holds {held} instead of "
            f"{' and '.join((SINGLE,) if keys == (CLIP,) else keys)}",
            field=field,
            hint="use an embedding that was trained with this kind of model",
        )
    return checked(chosen, model, str(source), field)


def _has_outputs(
    tensors: Collection[str], source: Path, spec: FamilySpec, field: str, wanted: bool | None
) -> bool:
    """Return whether a file holds output vectors.

    Raises:
        DataError: it holds vectors of another kind than is wanted, or than the family takes.
    """
    _refuse_both_kinds(tensors, str(source), spec, field)
    outputs = sorted(name for name in tensors if name.endswith(OUTPUT))
    if outputs and not spec.output_keys:
        raise DataError(
            f"{source} holds vectors for the output of a text encoder ({outputs[0]}), which are not supported for "
            f"{spec.label}",
            field=field,
            hint="use an embedding that was trained with this kind of model",
        )
    if not outputs and spec.output_keys and not spec.embedding_keys:
        raise DataError(
            f"{source} holds no output vectors ({' and '.join(_output_names(spec))}), but {spec.label} takes no others",
            field=field,
            hint="use an embedding that was trained with this kind of model",
        )
    if wanted is not None and bool(outputs) is not wanted:
        holds, set_to = ("output vectors", "false") if outputs else ("no output vectors", "true")
        raise DataError(
            f"{source} holds {holds}, but is_output_embedding is {set_to}",
            field=field,
            hint=f"set is_output_embedding to {str(bool(outputs)).lower()}, or use another file",
        )
    return bool(outputs)


def _refuse_both_kinds(names: Collection[str], source: str, spec: FamilySpec, field: str) -> None:
    """Raise ``DataError`` if an embedding has further vectors next to its output vectors, because a word here has
    one kind.
    """
    known = _output_names(spec)
    outputs = [name for name in known if name in names]
    further = sorted(set(names) - set(known))
    if outputs and further:
        there = " and ".join(outputs)
        raise DataError(
            f"{source} holds {further[0]} besides output vectors ({there}), but a word can have only one kind",
            field=field,
            hint=f"use an embedding with {there} alone, or with vectors for the inputs alone",
        )


def _without_blanks(tensors: Mapping[str, torch.Tensor], spec: FamilySpec) -> dict[str, torch.Tensor]:
    """The vectors of an embedding without the zeros that OneTrainer writes for its inputs next to output vectors."""
    known = _output_names(spec)
    if not any(name in tensors for name in known):
        return dict(tensors)
    return {name: rows for name, rows in tensors.items() if name in known or not _is_blank(rows)}


def _is_blank(rows: torch.Tensor) -> bool:
    plain = rows.layout is torch.strided and rows.is_floating_point()
    return plain and not bool(rows.float().any())


def _output_names(spec: FamilySpec) -> list[str]:
    """The tensors of an embedding with output vectors."""
    return [f"{key}{OUTPUT}" for key in spec.output_encoders.values()]


def checked(
    tensors: Mapping[str, torch.Tensor], model: Model, source: str, field: str
) -> dict[str, torch.Tensor]:
    """Validate the vectors of an embedding, by text encoder.

    Args:
        tensors: tensors by the text encoders' names in files.

    Raises:
        DataError: they do not match the model or each other, or have NaN or infinite values.
    """
    made: dict[str, torch.Tensor] = {}
    spec = model.spec
    widths = {
        key: (encoder, table(model, encoder).shape[1])
        for key, encoder in _encoders(spec, model.text_encoders).items()
    }
    if is_output(tensors, spec):
        widths = {
            f"{key}{OUTPUT}": (f"{encoder}{OUTPUT}", output_width(model, encoder))
            for encoder, key in spec.output_encoders.items()
            if encoder in model.text_encoders
        }
    for key, (encoder, width) in widths.items():
        if key not in tensors:
            raise DataError(
                f"the embedding in {source} has no vectors for {key}, which {model.spec.label} reads prompts with",
                field=field,
                hint="use an embedding that was trained with this kind of model",
            )
        vectors = tensors[key][None] if tensors[key].dim() == 1 else tensors[key]
        fault = ""
        plain = vectors.layout is torch.strided and vectors.is_floating_point()
        if vectors.dim() != 2 or not plain or not vectors.numel():
            fault = f"{key} is a tensor {tuple(vectors.shape)} of {vectors.dtype} instead of one row per token"
        elif vectors.shape[1] != width:
            fault = (
                f"its vectors for {key} have {vectors.shape[1]} numbers, but the {encoder} of "
                f"{model.spec.label} takes {width}"
            )
        elif vectors.shape[0] > MOST_TOKENS:
            fault = f"it has {vectors.shape[0]} tokens, more than the {MOST_TOKENS} that are read"
        elif not bool(vectors.float().isfinite().all()):
            fault = f"{key} has NaN or infinite values"
        if fault:
            raise DataError(
                f"the embedding in {source} cannot be used: {fault}",
                field=field,
                hint="use an embedding that was trained with this kind of model",
            )
        made[encoder] = vectors.float()
    if len({len(vectors) for vectors in made.values()}) > 1:
        counts = ", ".join(f"{len(vectors)} in {encoder}" for encoder, vectors in made.items())
        raise DataError(
            f"the embedding in {source} cannot be used: its numbers of tokens differ: {counts}", field=field
        )
    return made


def is_output(tensors: Collection[str], spec: FamilySpec) -> bool:
    """Return whether an embedding with tensors of these names has output vectors."""
    return bool(spec.output_keys) and any(name.endswith(OUTPUT) for name in tensors)


def table(model: Model, encoder: str) -> torch.Tensor:
    """The vectors of a text encoder's vocabulary, (tokens, E)."""
    module: Any = model.module(encoder)
    weight: torch.Tensor = module.get_input_embeddings().weight
    return weight


def output_width(model: Model, encoder: str) -> int:
    """The width E of the output of a text encoder."""
    return table(model, encoder).shape[1] * model.spec.output_layers


def bundled(
    tensors: Mapping[str, torch.Tensor], spec: FamilySpec, source: str
) -> tuple[dict[str, dict[str, torch.Tensor]], tuple[str, ...]]:
    """The embeddings in an adapter file: placeholder -> their tensors by key; and what is ignored, one
    sentence each.

    Raises:
        DataError: a word has vectors for the input and for the output of text encoders.
    """
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name in sorted(name for name in tensors if name.startswith(BUNDLE)):
        placeholder, _, key = name.removeprefix(BUNDLE).rpartition(".")
        found.setdefault(placeholder, {})[key] = tensors[name]
    used: dict[str, dict[str, torch.Tensor]] = {}
    taken: set[str] = set()
    encoders = _encoders(spec, spec.text_encoders)
    outputs = {f"{k}{OUTPUT}" for name, k in spec.output_encoders.items() if not spec.part(name).optional}
    required = {key for key, encoder in encoders.items() if not spec.part(encoder).optional}
    for placeholder, given in found.items():
        own = _without_blanks(given, spec)
        _refuse_both_kinds(own, f"{source}: the word {placeholder!r}", spec, FIELD)
        fits = bool(spec.embedding_keys) and required <= set(own) <= set(spec.embedding_keys)
        fits = fits or (bool(spec.output_keys) and outputs <= set(own) <= set(_output_names(spec)))
        known = fits and not fault_of_placeholder(placeholder)
        if known and placeholder.casefold() not in taken and len(used) < _MOST_BUNDLED:
            used[placeholder] = own
            taken.add(placeholder.casefold())
    ignored = sum(len(own) for name, own in found.items() if name not in used)
    note = f"{source}: {ignored} tensors of embeddings are ignored ({BUNDLE}*)"
    return used, (note,) if ignored else ()


def _safetensors(source: Path, field: str) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(source), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"the embedding {source} cannot be read: {error}", field=field) from error


def _pickled(source: Path, field: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a pickle, allowing only tensors and plain values."""
    try:
        if zipfile.is_zipfile(source):
            check_archive(source)
        content = torch.load(source, map_location="cpu", weights_only=True)
    except UserError as error:
        raise DataError(error.message, field=field, hint=error.hint) from error
    except (pickle.UnpicklingError, *DAMAGED) as error:
        raise DataError(
            f"the embedding {source} cannot be read: it is damaged, or holds more than tensors",
            field=field,
            hint="use the same embedding as a .safetensors file",
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("string_to_param"), Mapping):
        content = content["string_to_param"]
    if not isinstance(content, Mapping):
        return {}
    return {str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)}
