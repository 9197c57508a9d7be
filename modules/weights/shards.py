"""The files of weights of one part: which of them are read, and whether all of them are there."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from modules.model.weight_files import open_weights
from modules.util.display import counted
from modules.util.errors import UserError, list_offenders
from modules.util.jsonio import read_json

FIELD, VARIANT_FIELD = "base_model_name", "weight_variant"
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
HALF = "fp16"
"""The variant of weights in 16 bits."""
WEIGHT_STEMS = ("diffusion_pytorch_model", "model", "pytorch_model")
_AGAIN = "copy or download it again"
_log = logging.getLogger(__name__)


def weights_variant(place: Path, half: bool = False) -> str | None:
    """The variant, such as ``fp16``, of a part without weights under the plain name; otherwise ``None``.

    Args:
        half: whether ``fp16`` is read even if there are others, unless some of its files are missing.
    """
    names = [p.name for p in place.glob("*.safetensors")]
    if any(_is_plain(name) for name in names):
        return HALF if half and _is_half_there(place) else None
    variants = sorted({v for v in map(variant_of, names) if v})
    return variants[0] if variants else None


def weights_files(place: Path, variant: str = "") -> list[Path]:
    """The weight files of a part: those of one variant, in a single file if available.

    Args:
        variant: the one to read if it is there.
    """
    return variant_files(place, variant) or _files_of(place, weights_variant(place))


def variant_files(place: Path, variant: str) -> list[Path]:
    """The weight files of a part that have this variant in their names; none for an empty one."""
    return _files_of(place, variant) if variant else []


def choose_files(
    place: Path, half: bool = False, before: str = "", variant: str = "", tell: bool = False
) -> list[Path]:
    """The weight files of a part that a run reads.

    Args:
        half: as in ``weights_variant``.
        before: the first file that the run read when it began; files of the same variant are read again.
        variant: the variant to read, ``weight_variant``. Parts without it are read from the plain files.
        tell: whether to log which are read, if the folder has both.

    Raises:
        UserError: the variant read before is gone.
    """
    if before:
        files = _files_of(place, variant_of(before))
    elif variant:
        files = weights_files(place, variant)
    else:
        files = _files_of(place, weights_variant(place, half))
    if before and not files:
        raise UserError(
            f"{place / before} is gone: the run began with these weights, and others in the folder may differ",
            field=FIELD,
            hint="restore the file, or start a new run",
        )
    if tell and files:
        if variant and not before:
            _tell_named(files[0], variant)
        else:
            _tell_which(place, files[0], half, bool(before))
    return files


def lacking_variant(variant: str, files: Mapping[str, Iterable[str]], wanted: Iterable[str], main: str) -> list[str]:
    """The parts of a model that cannot be read if ``variant`` is asked for. Parts that have only plain files are read
    from these, as in diffusers; the denoiser is not, and neither is a model that does not have the variant at all.

    Args:
        files: folder of each part of the model -> names of its files of weights.
        wanted: the folders of those that are read.
        main: the folder of the denoiser.
    """
    found = {place: set(map(variant_of, names)) for place, names in files.items()}
    read = [place for place in wanted if found.get(place)]
    lacking = [place for place in read if not found[place] & ({variant} if place == main else {variant, None})]
    if lacking or not found.get(main) or any(variant in own for own in found.values()):
        return lacking
    return read


def check_variant(
    model: object, variant: str, files: Mapping[str, Sequence[str]], wanted: Iterable[str], main: str
) -> None:
    """Check that a model has the variant of weights that a config names. Arguments as for ``lacking_variant``.

    Args:
        model: its folder or name.

    Raises:
        UserError: it does not. The message lists the variants that it has.
    """
    lacking = lacking_variant(variant, files, wanted, main)
    if not lacking:
        return
    lines = [f"    {place}: {_listed(names)}" for place, names in files.items() if names]
    known = sorted({own for place in lacking for own in map(variant_of, files[place]) if own})
    missing = ", ".join(f"{place}/{_stem(min(files[place]))}.{variant}.safetensors" for place in lacking)
    raise UserError(
        f"{model} has no weights of the variant {variant!r} for its {', '.join(lacking)}: there is no {missing}, "
        "whole or in pieces. It has:\n" + "\n".join(lines),
        field=VARIANT_FIELD,
        hint=f"set {VARIANT_FIELD} to {' or '.join(known)}, or leave it empty" if known else "leave it empty",
    )


def _listed(names: Iterable[str]) -> str:
    """The variants among files of weights, each with its first file, the plain one first."""
    first: dict[str, str] = {}
    for name in sorted(names):
        first.setdefault(variant_of(name) or "", name)
    return ", ".join(f"{variant or 'plain'} ({name})" for variant, name in sorted(first.items()))


def _tell_named(file: Path, variant: str) -> None:
    """Log which weights of a part are read if a config names their variant."""
    if variant_of(file.name) == variant:
        _log.info("%s: %s is read, because %s names it", file.parent, file.name, VARIANT_FIELD)
    else:
        _log.info("%s has no weights of the variant %s: %s is read", file.parent, variant, file.name)


def _tell_which(place: Path, file: Path, half: bool, resumed: bool) -> None:
    """Log which weights of a part are read if its folder has several."""
    names = [path.name for path in place.glob("*.safetensors")]
    halves = [path for path in _files_of(place, HALF) if _stem(path.name) in WEIGHT_STEMS]
    if not any(map(_is_plain, names)):
        if not resumed:
            _tell_variant(file, sorted({v for v in map(variant_of, names) if v}))
        return
    if not halves:
        return
    if resumed:
        why = "the run began with it"
    elif variant_of(file.name) == HALF:
        why = "it is frozen and kept in this type"
    elif half and not _is_half_there(place):
        _log.warning(
            "%s lacks %s of its fp16 weights. %s is read instead: it is larger, and its numbers may differ. Download "
            "the missing file again, or delete the fp16 files",
            place,
            _gap(place, halves[0]),
            file.name,
        )
        return
    else:
        why = "it is trained, or kept in another type"
    _log.info("%s has full weights and fp16 ones: %s is read, because %s", place, file.name, why)


def _tell_variant(file: Path, variants: Sequence[str]) -> None:
    if len(variants) > 1:
        _log.warning(
            "%s has no weights under the plain name, but several variants: %s. %s is read. To read another one, set "
            "weight_variant to it",
            file.parent,
            ", ".join(variants),
            file.name,
        )


def _gap(place: Path, half: Path) -> str:
    """Return what is missing of ``fp16`` weights in several files: some of these, or their index."""
    match = SHARD.fullmatch(half.name)
    lost = _lost(place, match) if match else []
    if not match or not lost:
        return "the index"
    return lost[0] if len(lost) == 1 else f"{counted(len(lost), 'file')}, such as {lost[0]},"


def remedy(file: Path, variant: str = "") -> str:
    """Return what to do about a damaged ``fp16`` file with full weights next to it; empty for other files.

    Args:
        variant: the variant that the config names; its files cannot be done without.
    """
    if variant:
        return ""
    plain = [path.name for path in _files_of(file.parent, None) if _is_plain(path.name)]
    if variant_of(file.name) != HALF or not plain:
        return ""
    return f"download {file.name} again, or delete it: new runs then read {plain[0]}"


@contextmanager
def blaming_half(files: Sequence[Path], variant: str = "") -> Iterator[None]:
    """Name the damaged file in errors about ``fp16`` files that have full ones next to them.

    Args:
        variant: the variant that the config names, see ``remedy``.

    Raises:
        UserError: the error of the block, with this file and what to do about it.
    """
    try:
        yield
    except UserError as error:
        file = next((path for path in files if str(path) in error.message), None)
        hint = remedy(file or files[0], variant) if files else ""
        if not hint:
            raise
        told = error.message if file else f"{files[0]} cannot be used: {error.message}"
        raise UserError(told, field=FIELD, hint=hint) from error


def _files_of(place: Path, variant: str | None) -> list[Path]:
    files = [p for p in sorted(place.glob("*.safetensors")) if variant_of(p.name) == variant]
    files = [p for p in files if _stem(p.name) in WEIGHT_STEMS] or files
    return [p for p in files if "-of-" not in p.name] or files


def _is_half_there(place: Path) -> bool:
    """Return whether a part has ``fp16`` files under a known name and none is missing. They may be damaged.
    """
    files = _files_of(place, HALF)
    if not files or any(_stem(path.name) not in WEIGHT_STEMS for path in files):
        return False
    match = SHARD.fullmatch(files[0].name)
    return match is None or (not _lost(place, match) and _index(place, match) is not None)


def _stem(name: str) -> str:
    return name.split(".")[0].split("-")[0]


def _is_plain(name: str) -> bool:
    return _stem(name) in WEIGHT_STEMS and variant_of(name) is None


def variant_of(name: str) -> str | None:
    """The variant in the name of a file, such as ``fp16``; ``None`` if it has none."""
    pieces = re.sub(r"-\d{5}-of-\d{5}", "", name).split(".")
    return pieces[1] if len(pieces) == 3 else None


def _names(match: re.Match[str]) -> list[str]:
    """The names of all shards, from that of one."""
    total = int(match["count"])
    return [f"{match['stem']}-{number:05d}-of-{total:05d}.safetensors" for number in range(1, total + 1)]


def _lost(place: Path, match: re.Match[str]) -> list[str]:
    return [name for name in _names(match) if not (place / name).is_file()]


def _index(place: Path, match: re.Match[str]) -> Path | None:
    """The index of shards. The libraries write the variant's name in two places."""
    stem = match["stem"]
    plain, _, variant = stem.partition(".")
    choices = (f"{stem}.safetensors.index.json", f"{plain}.safetensors.index.{variant}.json")
    return next((place / name for name in choices if (place / name).is_file()), None)


def check_shards(files: Sequence[Path]) -> None:
    """Check that all shards of a model exist, each with the tensors listed in the index.

    Raises:
        UserError: a shard is missing or does not match. The message names it, with the missing or extra
            tensors.
    """
    found = [match for path in files if (match := SHARD.fullmatch(path.name))]
    if not found:
        return
    place, names = files[0].parent, _names(found[0])
    if lost := _lost(place, found[0]):
        raise UserError(
            f"{place} lacks {len(lost)} of {len(names)} files of weights:\n{list_offenders(lost)}",
            field=FIELD,
            hint=_AGAIN,
        )
    index = _index(place, found[0])
    if index is None:
        name = f"{found[0]['stem']}.safetensors.index.json"
        raise UserError(f"{place} has several files of weights but no {name}", field=FIELD, hint=_AGAIN)
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
        for verb, lists, tensors in (("lacks", "lists", wanted - held), ("holds", "does not list", held - wanted)):
            if tensors:
                raise UserError(
                    f"{place / name} {verb} {counted(len(tensors), 'tensor')} that its index {lists}:\n"
                    f"{list_offenders(sorted(tensors))}",
                    field=FIELD,
                    hint=_AGAIN,
                )
