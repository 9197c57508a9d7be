"""Finds a model: a diffusers folder, a file of weights, or a hub name. Other pickles are refused."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.model.dtypes import PartDtypes
from modules.model.libraries import prepare_denoisers
from modules.model.memory import is_memory_full
from modules.model.weight_files import GGUF_FILE, WEIGHT_FILES, open_weights
from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.util.config.SecretsConfig import SecretsConfig
from modules.util.display import counted
from modules.util.errors import UserError, UserErrors, first_line, list_offenders
from modules.util.files.hub_names import HUB_NAME, at_revision, repository
from modules.util.files.model_index import NAMES, index_file, read_index
from modules.util.files.user_path import user_path
from modules.util.jsonio import read_json
from modules.util.tensors.lazy_tensors import LazyTensor
from modules.weights.other_kinds import NEEDLESS, refuse_other_folders
from modules.weights.shards import (
    VARIANT_FIELD,
    WEIGHT_STEMS,
    blaming_half,
    check_shards,
    check_variant,
    choose_files,
    variant_files,
    variant_of,
)

_log = logging.getLogger(__name__)
FIELD = "base_model_name"
PROCESSOR_CONFIG = "preprocessor_config.json"
WHOLE_PROCESSOR_CONFIG = "processor_config.json"
PICKLES = (".bin", ".pkl", ".pickle")
USUAL_LAYERS, MOST_LAYERS = 100, 1000
"""Number of layers below which a config is not compared with its weights, and a number above any published model."""
HUB_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja")
_IN_FULL = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
"""The attribute in which classes of parts name their layers that are never rounded."""
PLAIN_WEIGHTS = tuple(f"{stem}{end}.safetensors" for stem in WEIGHT_STEMS for end in ("", "-?????-of-?????"))
ANY_WEIGHTS = tuple(f"{stem}*.safetensors" for stem in WEIGHT_STEMS)


def _worth_telling(record: logging.LogRecord) -> bool:
    """Filter for log records: everything except the message of bitsandbytes, on import by diffusers, that a
    faster kernel for a special case, not used here, is not installed.
    """
    return "gemm_4bit_forward from kernels-community" not in record.getMessage()


logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_worth_telling)


def find_source(
    name: str,
    spec: FamilySpec,
    parts: Iterable[str] | None = None,
    configs: Iterable[str] = (),
    alone: bool = False,
    variant: str = "",
) -> Path:
    """The local folder or file of ``name``. A hub name is downloaded first.

    Args:
        parts: parts to download; all by default.
        configs: parts of which only the configs are downloaded.
        alone: whether a repository with a single part is accepted too.
        variant: the variant of the files of weights to download, such as ``fp16``.

    Raises:
        UserError: it does not exist, is not a model, is a pickle, lacks the variant, or cannot be downloaded.
    """
    if not name.strip():
        raise UserError("no base model is given", field=FIELD, hint="choose a model folder or a file")
    path = user_path(name, FIELD)
    if path.is_dir():
        return path
    if path.is_file():
        if variant:
            raise UserError(
                f"{path} is a single file, which has no variants",
                field=VARIANT_FIELD,
                hint=f"leave {VARIANT_FIELD} empty, or set base_model_name to a diffusers folder",
            )
        if path.suffix.lower() == GGUF_FILE:
            _check_gguf_place(path, spec, parts, alone)
        if path.suffix.lower() in WEIGHT_FILES:
            return path
        if path.suffix.lower() in PICKLES:
            raise UserError(
                f"{path} is a pickle, and opening one can run any program hidden in it",
                field=FIELD,
                hint="use the safetensors version of this model",
            )
        raise UserError(
            f"{path} is not a model file",
            field=FIELD,
            hint=f"files of weights end in {', '.join(WEIGHT_FILES)}",
        )
    if is_hub_name(name):
        return _download(name, spec, parts, configs, alone, variant)
    raise UserError(
        f"the model {name!r} does not exist",
        field=FIELD,
        hint=_nearest(path)
        or "give a diffusers folder, a .safetensors file, or a hub name (owner/model, or owner/model@revision)",
    )


def _check_gguf_place(path: Path, spec: FamilySpec, parts: Iterable[str] | None, alone: bool) -> None:
    """Raise ``UserError`` if a GGUF file is given where none is supported."""
    if spec.denoiser != "transformer":
        raise UserError(
            f"{path} is a GGUF file, which is not supported for the {spec.denoiser} of {spec.label}",
            field=FIELD,
            hint="use the safetensors version of this model; weight_dtype NFLOAT_4 needs as little memory",
        )
    if alone and spec.denoiser not in (parts or ()):
        raise UserError(
            f"{path} is a GGUF file, which is supported for the {spec.denoiser} alone",
            field=FIELD,
            hint="use the safetensors version of this part",
        )


def is_hub_name(name: str) -> bool:
    """Return whether a name can only mean a model on the hub, because no local folder or file can have it."""
    path = Path(name)
    return bool(
        HUB_NAME.fullmatch(name)
        and not path.exists()
        and not path.parent.is_dir()
        and path.suffix.lower() not in (*WEIGHT_FILES, *PICKLES)
    )


def _nearest(path: Path) -> str:
    """The part of an invalid path that still exists."""
    for parent in path.parents:
        if parent.is_dir():
            inside = sorted(p.name for p in parent.iterdir() if not p.name.startswith("."))[:8]
            return f"the folder {parent} exists and holds: {', '.join(inside) or 'nothing'}"
    return ""


def _download(
    name: str, spec: FamilySpec, parts: Iterable[str] | None, configs: Iterable[str], alone: bool, variant: str
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = set(parts) if parts is not None else {part.name for part in spec.parts}
    patterns = list(NAMES)
    places = {part.name: part.place for part in spec.parts}
    for part in wanted:
        patterns += [f"{places[part]}/{pattern}" for pattern in (*HUB_PATTERNS, *_weights_of(variant))]
    patterns += [f"{places[part]}/config.json" for part in configs]
    if alone:
        patterns += ["config.json", *PLAIN_WEIGHTS]
        # a complete model of its own brings its tokenizer
        patterns += HUB_PATTERNS if any(spec.part(part).apart for part in wanted) else ()
    fetch = partial(snapshot_download, repository(name), token=SecretsConfig.hub_token(), **at_revision(name))
    try:
        place = Path(fetch(allow_patterns=patterns))
        # repositories often hold the same weights again in half precision; these are used only if all of
        # them exist
        folders = sorted(places[part] for part in wanted)
        if variant:
            more = _without_variant(name, spec, place, folders, variant)
        else:
            more = _without_weights(place, folders, alone)
        if more:
            fetch(allow_patterns=more)
        return place
    except RevisionNotFoundError as error:
        raise UserError(
            f"the model {repository(name)!r} has no revision {at_revision(name)['revision']!r}",
            field=FIELD,
            hint="give a commit, a branch or a tag of its repository after the @",
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"the hub has no model {name!r} that you may read, and there is no such local folder",
            field=FIELD,
            hint="check the name; private and gated models need a token (Tools page, or HF_TOKEN); for a gated model, "
            "also accept the licence on its page",
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise UserError(
            f"the model {name!r} is neither a local folder nor in the local hub cache, and the hub cannot be "
            "reached",
            field=FIELD,
            hint="check the network, or give the path of a local model",
        ) from error


def _weights_of(variant: str) -> tuple[str, ...]:
    """Patterns for the files of weights of a variant, whole or in pieces; those of the plain ones for none."""
    if not variant:
        return PLAIN_WEIGHTS
    ends = (f".{variant}", f".{variant}-?????-of-?????", f"-?????-of-?????.{variant}")
    return tuple(f"{stem}{end}.safetensors" for stem in WEIGHT_STEMS for end in ends)


def _without_variant(
    name: str, spec: FamilySpec, place: Path, folders: Sequence[str], variant: str
) -> list[str]:
    """Patterns for the plain weights of parts that came without the variant asked for.

    Raises:
        UserError: the denoiser is one of them, or the model does not have the variant.
    """
    main = spec.part(spec.denoiser).place
    lacking = [
        folder
        for folder in folders
        if (place / folder / "config.json").is_file() and not variant_files(place / folder, variant)
    ]
    known = {spec.part(part).place for part in spec.weight_parts}
    if lacking and (main in lacking or not any(variant_files(place / folder, variant) for folder in known)):
        listed = _weights_on_hub(name, variant, sorted(known))
        check_variant(name, variant, listed, lacking, main)
    return [f"{folder}/{pattern}" for folder in lacking for pattern in PLAIN_WEIGHTS]


def _weights_on_hub(name: str, variant: str, folders: Sequence[str]) -> dict[str, list[str]]:
    """The names of the files of weights in folders of a repository."""
    from huggingface_hub import list_repo_files
    from huggingface_hub.errors import HfHubHTTPError

    try:
        paths = list_repo_files(repository(name), token=SecretsConfig.hub_token(), **at_revision(name))
    except (HfHubHTTPError, OSError) as error:
        raise UserError(
            f"the weights of the variant {variant!r} of {name!r} are not on this machine, and the hub cannot be "
            "reached",
            field=VARIANT_FIELD,
            hint=f"check the network, or leave {VARIANT_FIELD} empty",
        ) from error
    split = [path.rpartition("/") for path in paths if path.endswith(".safetensors")]
    return {folder: [file for above, _, file in split if above == folder] for folder in folders}


def _without_weights(place: Path, parts: Iterable[str], alone: bool) -> list[str]:
    """Patterns for the weights of parts that came with only a config."""
    folders = [place / part for part in parts] + ([place] if alone else [])
    lacking = [f for f in folders if (f / "config.json").is_file() and not any(f.glob("*.safetensors"))]
    return [
        str((folder / pattern).relative_to(place).as_posix()) for folder in lacking for pattern in ANY_WEIGHTS
    ]


def check_folder(
    folder: Path, spec: FamilySpec, parts: Iterable[str], weights: bool = True
) -> dict[str, Any]:
    """Check that a diffusers folder has all named parts. Returns its ``model_index.json``.

    Args:
        weights: whether parts without weights count as missing.

    Raises:
        UserErrors: everything that is missing or of the wrong kind.
    """
    index_path = index_file(folder)
    if index_path is None:
        refuse_other_folders(folder, FIELD, spec, spec.denoiser)
        inside = sorted(p.name for p in folder.iterdir())[:8]
        raise UserError(
            f"{folder} is not a diffusers folder: it has no model_index.json",
            field=FIELD,
            hint=f"it holds: {', '.join(inside) or 'nothing'}",
        )
    try:
        index = read_index(index_path)
    except UserError as error:
        error.field = error.field or FIELD
        raise
    parts = tuple(parts)
    if spec.denoiser in parts:
        _check_relative(folder, spec)
    faults: list[UserError] = []
    for name in parts:
        part = spec.part(name)
        if left_out(part, index):
            continue
        fault = _part_fault(folder, part, index.get(part.place), weights)
        if fault:
            faults.append(UserError(fault, field=FIELD, hint=part.where_apart or None))
    if faults:
        kind = index.get("_class_name", "something unnamed")
        raise UserErrors(faults, f"{folder} ({kind}) cannot be used as {spec.label}:")
    return index


def _check_relative(folder: Path, spec: FamilySpec) -> None:
    """Raise ``UserError`` if the folder's denoiser is that of a relative of the family."""
    place = folder / spec.denoiser / "config.json"
    config = read_json(place, "model config") if place.is_file() else None
    relative = spec.relative_by_config(config) if isinstance(config, dict) else None
    if relative is not None:
        raise UserError(f"{folder} {relative.message}", field=FIELD, hint=relative.hint)


def left_out(part: PartSpec, index: dict[str, Any]) -> bool:
    """Return whether a folder lacks an optional part."""
    entry = index.get(part.place)
    return part.optional and (not isinstance(entry, list) or not all(entry))


def _part_fault(folder: Path, part: PartSpec, entry: Any, weights: bool) -> str:
    """The fault of one part of a folder, if any."""
    if not isinstance(entry, list) or len(entry) != 2 or not entry[1]:
        return f"its model_index.json names no {part.place}"
    if part.classes and entry[1] not in part.classes:
        return f"its {part.place} is a {entry[1]}, not a {' or '.join(part.classes)}"
    place = folder / part.place
    if not place.is_dir():
        return f"the folder {part.place} is missing"
    if part.kind in ("tokenizer", "processor", "scheduler"):
        return ""
    if not (place / "config.json").is_file():
        return f"{part.place}/config.json is missing"
    if not weights or list(place.glob("*.safetensors")):
        return ""
    pickles = sorted(p.name for p in place.iterdir() if p.suffix in PICKLES)
    if pickles:
        return f"{part.place} holds only {pickles[0]}, a pickle; only safetensors weights are loaded"
    return f"{part.place} holds no .safetensors weights"


def check_layers(config: Mapping[str, Any], tensors: Callable[[], int], place: Path) -> None:
    """Compare the number of layers in a config with the number of tensors, because creating modules for an
    unlimited number would take hours.

    Args:
        tensors: returns the number in the files next to the config; called only for deep models.

    Raises:
        UserError: the config has more layers than there are tensors.
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            check_layers(value, tensors, place)
        elif "layers" in name or name == "depth":
            for count in value if isinstance(value, list) else [value]:
                if isinstance(count, int) and count > USUAL_LAYERS and count > tensors():
                    raise UserError(
                        f"{place} has a config with {name} = {count}, more layers than there are tensors for",
                        field=FIELD,
                        hint="weights and config.json belong to different models",
                    )


def refuse_packed(config: Mapping[str, Any], place: Path) -> None:
    """Refuse a part whose weights are in another library's encoding, such as bitsandbytes' 4 bits.

    Raises:
        UserError: its config says so.
    """
    packed = config.get("quantization_config")
    if packed:
        method = packed.get("quant_method") if isinstance(packed, Mapping) else packed
        raise UserError(
            f"the weights in {place} were rounded by {str(method)[:40]}, which is not supported",
            field=FIELD,
            hint="use a version of this model in 16 or 32 bits; weight_dtype NFLOAT_4 or FLOAT_8 rounds it here",
        )


def load_module(place: Path, part: PartSpec, dtypes: PartDtypes) -> nn.Module:
    """One part in a folder of its own with all its weights. Its attribute ``read_from`` is the first file of them.

    Raises:
        UserError: the part is unreadable, or its weights do not match its config.
    """
    from transformers.utils import logging as library_logging

    # loading bars take a second or less and only clutter the log
    library_logging.disable_progress_bar()
    files = files_to_read(place, part, dtypes, tell=True)
    config = read_json(place / "config.json", "model config")
    if isinstance(config, dict):
        refuse_packed(config, place)
    with blaming_half(files, dtypes.variant):
        check_shards(files)
        if isinstance(config, dict):
            check_layers(config, lambda: sum(len(open_weights(path, FIELD).shapes) for path in files), place)
        keyword = "dtype" if part.of_transformers else "torch_dtype"
        module = _filled(part_class(part).from_pretrained, place, files, {keyword: dtypes.of(part.name)})
    if files:
        module.read_from = files[0]  # type: ignore[assignment]
    module.eval().requires_grad_(False)
    return module


def files_to_read(place: Path, part: PartSpec, dtypes: PartDtypes, tell: bool = False) -> list[Path]:
    """The files of weights that are read of a part in a folder of its own, see ``choose_files``."""
    kind = part_class(part)
    # a class that keeps layers in 32 bits is not read from ``fp16`` files
    half = part.name in dtypes.half and not any(getattr(kind, name, None) for name in _IN_FULL)
    return choose_files(place, half, dtypes.before.get(part.name, ""), dtypes.variant, tell)


def _filled(
    from_pretrained: Callable[..., Any], place: Path, files: Sequence[Path], types: Mapping[str, torch.dtype]
) -> nn.Module:
    """The part in a folder with the weights of some of its files."""
    from safetensors import SafetensorError

    folder, part = place.parent, place.name
    expected: tuple[type[Exception], ...] = (MemoryError, OSError, *config_errors(), SafetensorError)
    try:
        module, info = from_pretrained(
            str(place),
            use_safetensors=True,
            local_files_only=True,
            variant=variant_of(files[0].name) if files else None,
            output_loading_info=True,
            **types,
        )
    except torch.OutOfMemoryError:
        # the file is not at fault if the graphics card is full
        raise
    except expected as error:
        if is_memory_full(error):
            raise UserError(
                f"there is too little memory to load {part} of {folder}: {first_line(error)}",
                field=FIELD,
                hint="close other programs, load it with fewer bits (weight_dtype), or add swap space",
            ) from error
        raise UserError(
            f"{part} of {folder} cannot be loaded: {first_line(error)}",
            field=FIELD,
            hint="the file may be incomplete; copy or download it again",
        ) from error
    absent = sorted(info["missing_keys"])
    if absent:
        raise UserError(
            f"{part} of {folder} lacks {counted(len(absent), 'weight')} that its config needs, such as {absent[0]}",
            field=FIELD,
            hint="weights and config.json belong to different models",
        )
    refuse_unread(info["unexpected_keys"], module.state_dict(), place)
    stored = {name: each for path in files for name, each in open_weights(path, FIELD).places().items()}
    require_floats(stored, module.state_dict(), place)
    return module  # type: ignore[no-any-return]


def require_floats(stored: Mapping[str, LazyTensor], wanted: Mapping[str, torch.Tensor], place: Path) -> None:
    """Refuse weights of an integer type, because another program's codes or counts would be mistaken for
    weights.

    Args:
        stored: tensors in the files, by the module's names.
        wanted: the module's own tensors, of which only types are used.

    Raises:
        UserError: there is such a tensor. The message names the first.
    """
    for name, tensor in wanted.items():
        kept = stored.get(name)
        if kept is not None and tensor.is_floating_point() and not kept.dtype.is_floating_point:
            raise UserError(
                f"{name} in {place} is stored as {str(kept.dtype).removeprefix('torch.')}: weights have to be "
                "floating-point numbers",
                field=FIELD,
                hint="use a version of this model in 8 bit floats, 16 or 32 bits",
            )


def refuse_unread(names: Iterable[str], own: Iterable[str], place: Path) -> None:
    """Refuse tensors that a module has no place for. Unused modules, such as the decoder of a text encoder,
    are allowed.

    Args:
        own: the names of the module.

    Raises:
        UserError: there are such tensors. The message lists them.
    """
    levels = {name.partition(".")[0] for name in own}
    unread = sorted(
        name for name in names if name.partition(".")[0] in levels and not NEEDLESS.fullmatch(name)
    )
    if unread:
        raise UserError(
            f"{place} has {counted(len(unread), 'tensor')} that its config has no place for:\n"
            f"{list_offenders(unread)}",
            field=FIELD,
            hint="weights and config.json belong to different models",
        )


def load_parts(folder: Path, spec: FamilySpec, wanted: Sequence[str], dtypes: PartDtypes) -> dict[str, Any]:
    """The wanted parts of a diffusers folder, by name: modules, tokenizers, scheduler configs as ``dict``.

    Raises:
        UserError: something is missing, damaged or of the wrong kind.
    """
    index = check_folder(folder, spec, wanted)
    names = [name for name in wanted if not left_out(spec.part(name), index)]
    loaded: dict[str, Any] = {}
    for name in names:
        part = spec.part(name)
        if part.kind == "scheduler":
            loaded[name] = read_scheduler_config(folder)
        elif part.kind == "tokenizer":
            loaded[name] = load_tokenizer(part_class(part), folder / part.place)
        elif part.kind == "processor":
            loaded[name] = _read_processor(folder / part.place)
        else:
            loaded[name] = load_module(folder / part.place, part, dtypes)
    return loaded


def _read_processor(place: Path) -> Any:
    """The settings for showing images to a text encoder, from a file of their own or from the processor of
    newer libraries.
    """
    if (place / PROCESSOR_CONFIG).is_file() or not (place / WHOLE_PROCESSOR_CONFIG).is_file():
        return _read_config(place / PROCESSOR_CONFIG, "processor config")
    whole = _read_config(place / WHOLE_PROCESSOR_CONFIG, "processor config")
    return whole.get("image_processor", {})


def part_class(part: PartSpec) -> Any:
    """The class a part is loaded with."""
    if not part.of_transformers:
        prepare_denoisers()
    return getattr(importlib.import_module(part.module), part.classes[0])


def load_tokenizer(kind: Any, place: Path, **options: str) -> Any:
    """A tokenizer from its folder.

    Args:
        options: arguments that adapt it to another part than the folder's.

    Raises:
        UserError: its files are missing or damaged.
    """
    try:
        return kind.from_pretrained(str(place), local_files_only=True, **options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the tokenizer in {place} cannot be loaded: {str(error).strip().splitlines()[0]}",
            field=FIELD,
            hint="the folder may be incomplete; copy or download it again",
        ) from error


def config_errors() -> tuple[type[Exception], ...]:
    """The errors of the libraries about values in a config that no part can be made of."""
    from huggingface_hub.errors import StrictDataclassError

    return (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError, AttributeError, StrictDataclassError)


def read_scheduler_config(folder: Path) -> dict[str, Any]:
    """``scheduler_config.json`` of a diffusers folder.

    Raises:
        UserError: it is unreadable or not a JSON object.
    """
    return _read_config(folder / "scheduler" / "scheduler_config.json", "scheduler config")


def _read_config(path: Path, what: str) -> dict[str, Any]:
    config = read_json(path, what)
    if not isinstance(config, dict):
        raise UserError(f"the {what} {path} is not a JSON object", field=FIELD)
    return config
