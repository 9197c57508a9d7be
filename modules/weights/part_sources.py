"""Sources of the parts of a model: one folder or file for all, and others for single parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from modules.model.dtypes import PartDtypes
from modules.model.lazy_modules import make_lazy
from modules.model.text.clip_vocabulary import make_clip_tokenizer
from modules.model.weight_files import SCALES, WeightFile, open_weights
from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.util.errors import UserError, blamed_on, list_offenders
from modules.util.files.model_index import index_file
from modules.util.jsonio import read_json
from modules.util.published_models import known_shift, shift_of
from modules.weights.loading import (
    FIELD,
    MOST_LAYERS,
    check_folder,
    check_layers,
    files_to_read,
    find_source,
    left_out,
    load_module,
    load_parts,
    load_tokenizer,
    part_class,
    refuse_packed,
    refuse_unread,
    require_floats,
)
from modules.weights.other_kinds import (
    EncoderSize,
    refuse_denoisers,
    refuse_other_folders,
    refuse_other_kinds,
    refuse_other_sizes,
    refuse_strays,
)
from modules.weights.part_families import denoisers_like, looks_like
from modules.weights.part_files import (
    PartTensors,
    Plan,
    beside_file,
    best_plan,
    configs,
    folder_tensors,
    keep_lazy,
    load_into,
    outline,
    part_tensors,
    shipped,
)
from modules.weights.shards import blaming_half, check_shards, check_variant
from modules.weights.single_file import file_prefixes, marked_scheduler

TOKENIZER_CONFIG = "tokenizer_config.json"
_SCALES = tuple(f".{leaf}" for leaf in SCALES)


@dataclass(frozen=True)
class Sources:
    """Resolved places.

    Args:
        base: the folder or file of the whole model.
        parts: part name -> another folder or file.
    """

    base: Path
    parts: Mapping[str, Path]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Diffusers folders among the sources, the base first, in which tokenizers are searched."""
        places = (self.base, *self.parts.values())
        return tuple(dict.fromkeys(place for place in places if index_file(place)))


def field_of(part: str) -> str:
    """The config field that names the source of a part."""
    return f"{part}.model_name"


def find_sources(
    base: str, overrides: Mapping[str, str], spec: FamilySpec, wanted: Sequence[str], variant: str = ""
) -> Sources:
    """Find, and if needed download, the sources to load.

    Args:
        overrides: part name -> folder, file or hub name; empty ones are ignored.
        variant: the variant of the base model's files of weights; empty for the plain ones.

    Raises:
        UserError: something is missing.
    """
    named = {part: name for part, name in overrides.items() if name.strip() and part in wanted}
    rest = [part for part in wanted if part not in named]
    # the configs of the other parts are small, and parts from files may need them
    place = find_source(base, spec, rest, configs=tuple(named), variant=variant)
    found: dict[str, Path] = {}
    for part, name in named.items():
        with blamed_on(field_of(part)):
            found[part] = find_source(name, spec, [part], alone=True)
    return Sources(place, found | _tokenizers_apart(found, spec, wanted))


def _tokenizers_apart(found: Mapping[str, Path], spec: FamilySpec, wanted: Sequence[str]) -> dict[str, Path]:
    """Tokenizers that come with their text encoders, because the family's models lack both."""
    made: dict[str, Path] = {}
    for part in (part for part in spec.of_kind("tokenizer") if part.apart and part.name in wanted):
        place = found.get(_encoder_of(part))
        if place is None:
            continue
        nearby = [place, place / part.place]
        if place.is_file():
            nearby = [folder / part.place for folder in (beside_file(place), place.parent)]
        there = next((folder for folder in nearby if (folder / TOKENIZER_CONFIG).is_file()), None)
        if there is not None:
            made[part.name] = there
    return made


def load_overrides(sources: Sources, spec: FamilySpec, dtypes: PartDtypes) -> dict[str, Any]:
    """Load the parts that have a source of their own.

    Raises:
        UserError: a part is damaged, incomplete, or of another family.
    """
    base = sources.base if sources.base.is_dir() else None
    # a variant is named for the base model
    dtypes = replace(dtypes, variant="")
    loaded: dict[str, Any] = {}
    for name, path in sources.parts.items():
        part = spec.part(name)
        with blamed_on(field_of(_encoder_of(part) or name)):
            if part.kind == "tokenizer":
                loaded[name] = load_tokenizer(part_class(part), path)
            else:
                # another denoiser may need other text encoders
                if base and part.kind == "text_encoder" and path.is_dir() and spec.denoiser not in sources.parts:
                    _refuse_unfit_folder(path, part, base)
                loaded[name] = _load_alone(path, spec, part, dtypes, base)
    return loaded


def scheduler_from_denoiser(
    sources: Sources, spec: FamilySpec, scheduler: Mapping[str, Any]
) -> dict[str, Any]:
    """The scheduler config for a denoiser from a file of its own, which may tell how it was trained."""
    path = sources.parts.get(spec.denoiser)
    if path is None or not path.is_file() or spec.prediction == "flow":
        return dict(scheduler)
    field = field_of(spec.denoiser)
    with blamed_on(field):
        return _marked(open_weights(path, field), scheduler)


def shift_of_samples(sources: Sources, spec: FamilySpec) -> float:
    """The shift of noise levels that images of a denoiser are made with, if the scheduler config is another one's:
    that of the folder with the rest of the model, or the usual one of the family. 0 to use that config.
    """
    path = sources.parts.get(spec.denoiser)
    found = None if path is None else known_shift(spec.key, str(path))
    if found is not None:
        return found
    own = sources.base.is_dir() or _scheduler_beside(sources.base).is_file()
    return 0.0 if own else shift_of(spec.key, str(sources.base))


def _load_alone(
    path: Path, spec: FamilySpec, part: PartSpec, dtypes: PartDtypes, base: Path | None
) -> nn.Module:
    """Load one part from a source of its own: a file, a diffusers folder, or a folder with only this part."""
    if path.is_file():
        file = open_weights(path, field_of(part.name))
        refuse_other_kinds(path, file.shapes, field_of(part.name), spec, part.name)
        module = part_from_file(file, spec, part, dtypes, base, alone=True)
        if module is None:
            what = "holds several parts of a model, but no" if file.shapes else "is empty: it holds no"
            raise UserError(f"{path} {what} {part.name}", hint="name a file of that part, or a diffusers folder")
        return module
    place = path
    if index_file(path):
        check_folder(path, spec, [part.name], weights=not dtypes.configs_only)
        place = path / part.place
    else:
        refuse_other_folders(path, field_of(part.name), spec, part.name)
    if dtypes.lazy or _has_scales(place, part, dtypes):
        return part_from_folder(place, part, spec, dtypes)
    return load_module(place, part, dtypes)


def part_from_file(
    file: WeightFile, spec: FamilySpec, part: PartSpec, dtypes: PartDtypes, base: Path | None, alone: bool
) -> nn.Module | None:
    """Load a part of a file; ``None`` if the file does not contain it.

    Args:
        base: the diffusers folder with the rest of the model.
        alone: whether the file was given for this part.

    Raises:
        UserError: it does not match any config.
    """
    known = file_prefixes(spec)
    # a denoiser's names may have no prefix, even if the file contains another part
    inside = tuple(other.inside for other in spec.parts if other.inside)
    if any(name.startswith(known) and not name.startswith(inside) for name in file.shapes):
        refuse_strays(file.path, file.shapes, known, field_of(part.name))
    tensors = part_tensors(file, spec, part, alone)
    if tensors is None:
        return None
    choices = configs(spec, part, file.path, base)
    for config in choices:
        check_layers(config, lambda: MOST_LAYERS, file.path)
    plan = best_plan(tensors, spec, part, choices)
    if plan is None:
        raise UserError(
            f"there is no config for the {part.name} of {file.path}",
            hint=f"put the config it was published with at {beside_file(file.path) / part.place / 'config.json'}",
        )
    if plan.strays:
        if alone and not part.denoises:
            _refuse_unfit(file.path, spec, part, tensors, base)
        if part.denoises and (relative := spec.relative_by_shapes(tensors.shapes)):
            raise UserError(f"{file.path} {relative.message}", hint=relative.hint)
        kind = looks_like(tensors, spec) if part.denoises else ""
        raise _misfit(file.path, spec, part, plan, kind)
    require_floats(plan.stored(tensors), plan.module.state_dict(), file.path)
    return keep_lazy(tensors, plan) if dtypes.lazy else load_into(tensors, plan, dtypes.of(part.name))


def _refuse_unfit(path: Path, spec: FamilySpec, part: PartSpec, tensors: PartTensors, base: Path | None) -> None:
    """Raise ``UserError`` if a file given for a part is known to hold something else: a denoiser, or a text encoder of
    another size.
    """
    field = field_of(part.name)
    refuse_denoisers(path, denoisers_like(tensors), field, spec, part)
    if part.kind != "text_encoder" or (beside_file(path) / part.place / "config.json").is_file():
        return
    choices = configs(spec, part, path, base)
    own = base is not None and (base / part.place / "config.json").is_file()
    needed = [EncoderSize.of_config(config) for config in (choices[:1] if own else choices)]
    refuse_other_sizes(path, EncoderSize.of_tensors(tensors.shapes), needed, field, str(base) if own else spec.label)


def _refuse_unfit_folder(path: Path, part: PartSpec, base: Path) -> None:
    """Raise ``UserError`` if a folder has a text encoder of another width than that of the base model."""
    sizes = []
    for folder in (path / part.place if index_file(path) else path, base / part.place):
        place = folder / "config.json"
        config = read_json(place, "model config") if place.is_file() else {}
        sizes.append(EncoderSize.of_config(config) if isinstance(config, dict) else None)
    given, needed = sizes
    # a part of another kind is refused by its class
    if given and needed and given.kind == needed.kind and given.width != needed.width:
        refuse_other_sizes(path, given, [needed], field_of(part.name), str(base))


def _has_scales(place: Path, part: PartSpec, dtypes: PartDtypes) -> bool:
    """Return whether a part in its own folder has 8-bit weights with scales, which its library does not multiply."""
    config = read_json(place / "config.json", "model config")
    if isinstance(config, dict):
        refuse_packed(config, place)
    files = files_to_read(place, part, dtypes)
    with blaming_half(files, dtypes.variant):
        opened = [open_weights(path, FIELD) for path in files]
    return any(name.endswith(_SCALES) for file in opened for name in file.names)


def part_from_folder(place: Path, part: PartSpec, spec: FamilySpec, dtypes: PartDtypes) -> nn.Module:
    """Load a part with a folder of its own. If ``dtypes`` is lazy, its weights stay in their files; otherwise its
    attribute ``read_from`` is the first of them.

    Raises:
        UserError: the part is damaged, or its weights do not match its config.
    """
    config = read_json(place / "config.json", "model config")
    if not isinstance(config, dict):
        raise UserError(f"{place / 'config.json'} is not a JSON object", field=FIELD)
    refuse_packed(config, place)
    files = files_to_read(place, part, dtypes)
    if dtypes.configs_only and not files:
        check_layers(config, lambda: MOST_LAYERS, place)
        return make_lazy(outline(part, config), {})
    with blaming_half(files, dtypes.variant):
        tensors, plan = _planned(files, config, place, part, spec)
    if dtypes.lazy:
        return keep_lazy(tensors, plan)
    module = load_into(tensors, plan, dtypes.of(part.name))
    module.read_from = files[0]  # type: ignore[assignment]
    return module


def _planned(
    files: Sequence[Path], config: Mapping[str, Any], place: Path, part: PartSpec, spec: FamilySpec
) -> tuple[PartTensors, Plan]:
    check_shards(files)
    tensors = folder_tensors([open_weights(path, FIELD) for path in files])
    check_layers(config, lambda: len(tensors.shapes), place)
    plan = best_plan(tensors, spec, part, [config], folder=True)
    if plan is None or plan.faults:
        faults = list_offenders(plan.faults) if plan else ""
        raise UserError(
            f"the weights in {place} do not fit its config; missing or of another shape:\n{faults}",
            field=FIELD,
            hint="weights and config.json belong to different models",
        )
    own = plan.module.state_dict()
    refuse_unread(plan.extra, own, place)
    require_floats(plan.stored(tensors), own, place)
    return tensors, plan


def _misfit(path: Path, spec: FamilySpec, part: PartSpec, plan: Plan, kind: str) -> UserError:
    lines = [
        f"the {part.name} in {path} is not one of {spec.label}" + (f"; it looks like {kind}" if kind else "")
    ]
    if plan.faults:
        lines.append(f"missing or of another shape ({len(plan.faults)}):\n{list_offenders(plan.faults)}")
    if plan.extra:
        lines.append(f"unknown ({len(plan.extra)}):\n{list_offenders(plan.extra)}")
    hint = f"if it has another size, put its config at {beside_file(path) / part.place / 'config.json'}"
    if any(name.endswith("_scale_inv") for name in plan.extra):
        hint = "weights kept in blocks with scales are not supported; use it in 16 bits, or in 8 bits with one scale"
    return UserError("\n".join(lines), hint="choose that model type" if kind else hint)


# -- whole models ----------------------------------------------------------------------------------------------


def load_whole_file(
    sources: Sources, spec: FamilySpec, wanted: Sequence[str], dtypes: PartDtypes
) -> dict[str, Any]:
    """Load the wanted parts of a file, and what files never contain: tokenizers from next to it or from the
    folders of other parts (else CLIP's own), and the scheduler config as published.

    Raises:
        UserError: parts are in none of these places. The message lists all.
    """
    file = open_weights(sources.base, FIELD)
    loaded: dict[str, Any] = {}
    missing: list[str] = []
    refuse_other_kinds(file.path, file.shapes, FIELD, spec, spec.denoiser if spec.denoiser in wanted else "")
    with blamed_on(FIELD):
        for part in (part for part in spec.parts if part.name in wanted):
            made: Any
            if part.kind == "scheduler":
                made = _scheduler(file, spec)
            elif part.kind == "tokenizer":
                made = find_tokenizer(part, sources)
            elif part.kind == "processor":
                # as published
                made = None
            else:
                alone = part.kind == "denoiser"
                made = part_from_file(file, spec, part, dtypes, None, alone)
            if made is not None:
                loaded[part.name] = made
            elif not part.optional or _encoder_of(part) in (*loaded, *sources.parts):
                missing.append(part.name)
        if missing:
            raise UserError(
                f"{file.path} lacks parts of {spec.label}: {', '.join(missing)}",
                hint=_remedy(missing, spec),
            )
    return loaded


def _remedy(missing: Sequence[str], spec: FamilySpec) -> str:
    if spec.denoiser in missing:
        return f"use a file of {spec.label}, or a diffusers folder"
    fields = [field_of(name) for name in missing if name in spec.module_parts]
    words = [
        f"set base_model_name to a diffusers folder or hub name and {field_of(spec.denoiser)} to this file"
    ]
    if fields:
        words.append(f"or set {', '.join(fields)} to a folder or file that has them")
    if len(fields) < len(missing):
        words.append(
            "only the tokenizer of CLIP comes with this program; others are read from such folders and hub "
            "names, or from a folder of their name next to the file"
        )
    words += dict.fromkeys(hint for name in missing if (hint := spec.part(name).where_apart))
    return "; ".join(words)


def _scheduler_beside(file: Path) -> Path:
    return beside_file(file) / "scheduler" / "scheduler_config.json"


def _scheduler(file: WeightFile, spec: FamilySpec) -> dict[str, Any] | None:
    given = _scheduler_beside(file.path)
    places = [given] if given.is_file() else shipped(spec.key, "scheduler")
    config = read_json(places[0], "scheduler config") if places else None
    if not isinstance(config, dict):
        return None
    return config if spec.prediction == "flow" else _marked(file, config)


def _marked(file: WeightFile, config: Mapping[str, Any]) -> dict[str, Any]:
    return marked_scheduler(file.path, config, file.shapes, file.metadata)


def _encoder_of(part: PartSpec) -> str:
    """The text encoder that reads the tokens of a tokenizer."""
    return part.name.replace("tokenizer", "text_encoder") if part.kind == "tokenizer" else ""


def find_tokenizer(part: PartSpec, sources: Sources) -> Any:
    """The tokenizer of a model that consists of files; ``None`` if there is none and it is not CLIP's."""
    nearby = [beside_file(sources.base), sources.base.parent] if sources.base.is_file() else []
    for folder in (*nearby, *sources.folders):
        if (folder / part.place).is_dir():
            return load_tokenizer(part_class(part), folder / part.place)
    return make_clip_tokenizer(part.pad_token) if part.pad_token else None


def check_tokenizers(spec: FamilySpec, path: Path, loaded: Mapping[str, Any]) -> None:
    """Check that CLIP tokenizers produce only tokens that their encoder has.

    Raises:
        UserError: the encoder has another vocabulary.
    """
    for part in spec.of_kind("tokenizer"):
        tokenizer, encoder = loaded.get(part.name), loaded.get(_encoder_of(part))
        if part.pad_token and tokenizer is not None and encoder is not None:
            tokens, known = len(tokenizer), encoder.config.vocab_size
            if tokens > known:
                raise UserError(
                    f"the {part.name} of {path} has {tokens} tokens, its {_encoder_of(part)} knows {known}",
                    field=FIELD,
                    hint="put the tokenizer it was trained with into a folder "
                    f"{(path if path.is_dir() else path.parent) / part.place}",
                )


def load_from(
    sources: Sources, spec: FamilySpec, wanted: Sequence[str], dtypes: PartDtypes
) -> dict[str, Any]:
    """Load the wanted parts from the folder or file of the whole model."""
    if sources.base.is_file():
        return load_whole_file(sources, spec, wanted, dtypes)
    index = check_folder(sources.base, spec, wanted, weights=not dtypes.configs_only)
    there = [spec.part(name) for name in wanted if not left_out(spec.part(name), index)]
    if dtypes.variant and not dtypes.before:
        _check_variant(sources.base, dtypes.variant, spec, [part.place for part in there])
    own = {
        part.name: sources.base / part.place
        for part in there
        if part.name in spec.weight_parts
        and (dtypes.lazy or _has_scales(sources.base / part.place, part, dtypes))
    }
    loaded = load_parts(sources.base, spec, [part.name for part in there if part.name not in own], dtypes)
    return loaded | {name: part_from_folder(place, spec.part(name), spec, dtypes) for name, place in own.items()}


def _check_variant(folder: Path, variant: str, spec: FamilySpec, wanted: Sequence[str]) -> None:
    """Raise ``UserError`` if the folder of a model does not have the variant of weights that a config names."""
    places = [spec.part(name).place for name in spec.weight_parts]
    files = {place: sorted(path.name for path in (folder / place).glob("*.safetensors")) for place in places}
    check_variant(folder, variant, files, [place for place in wanted if place in files], spec.part(spec.denoiser).place)
