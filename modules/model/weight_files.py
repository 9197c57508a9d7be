"""Files of weights of other programs: safetensors, GGUF, and torch checkpoints without running code in them."""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modules.model.gguf_file import read_gguf
from modules.util.display import counted
from modules.util.errors import UserError, first_line
from modules.util.jsonio import parse_json
from modules.util.tensors.lazy_tensors import TYPES, LazyTensor, file_tensors, lazily

CHECKPOINTS = (".ckpt", ".pt", ".pth")
"""Extensions of torch checkpoints."""
GGUF_FILE = ".gguf"
WEIGHT_FILES = (".safetensors", *CHECKPOINTS, GGUF_FILE)
WRAPPERS = ("state_dict", "model", "module")
"""Keys under which training programs store the weights."""
MAX_PROGRAM = 64 * 2**20
"""Maximum bytes of a checkpoint that are not tensors; those of large models have a few hundred thousand."""
SCALES = ("scale_weight", "weight_scale")
"""Last name components of the factor by which 8-bit weights were divided."""
FOUR_BITS = {
    "weight_scale_2": "nvfp4",
    "quant_map": "bitsandbytes",
    "bitsandbytes__nf4": "bitsandbytes NF4",
    "bitsandbytes__fp4": "bitsandbytes FP4",
    "wscales": "SVDQuant",
}
"""Last name components that only 4-bit weights have, and by which library they were made."""
DAMAGED = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, EOFError, OSError)
_FORMAT, _FORMATS = "comfy_quant", "_quantization_metadata"
"""Names of ComfyUI's notes about formats: a tensor with JSON for each layer, or an entry of the metadata for all."""
MAX_NOTE = 64 * 2**10
"""Maximum bytes of such a note; usual ones have fewer than a hundred."""
_SCALED = ("float8_", "int8_")
"""Beginnings of its formats in which a weight is only divided by its scale."""
_SILENT = ("scaled_fp8", "scale_input", "input_scale", _FORMAT)


class WeightFile:
    """Named tensors of a file, read one by one.

    8-bit weights with a scale are multiplied by it on reading; the scales are not listed as tensors. A scale without a
    weight is: its weight may be in another file.

    Args:
        places: everything stored in the file, by name.
    """

    def __init__(self, path: Path, places: Mapping[str, LazyTensor], metadata: Mapping[str, str]) -> None:
        self.path = path
        self.metadata = metadata
        self._stored = places
        leaves = {name: name.rpartition(".")[2] for name in places}
        for leaf, library in FOUR_BITS.items():
            if leaf in leaves.values():
                raise UserError(
                    f"{path} has weights in 4 bits ({library}), which are not supported",
                    hint="use the version of this model in 8 or 16 bits",
                )
        self._scales = _scales_of(places, leaves)
        # block-wise scales are refused before anything is read
        for name, scale in self._scales.items():
            _refuse_blocks(path, places[name].shape, scale, places[scale].shape)
        self._check_formats([name for name, leaf in leaves.items() if leaf == _FORMAT])
        silent = {name for name, leaf in leaves.items() if leaf in _SILENT} | set(self._scales.values())
        self.shapes = {name: place.shape for name, place in places.items() if name not in silent}

    @property
    def names(self) -> frozenset[str]:
        """Everything in the file, including scales."""
        return frozenset(self._stored)

    def _check_formats(self, tensors: Sequence[str]) -> None:
        """Raise ``UserError`` if weights are stored in a way that a scale alone does not undo.

        Args:
            tensors: those that say it, each for one layer; an empty one says nothing.
        """
        tensors = [name for name in tensors if math.prod(self._stored[name].shape)]
        for name in tensors:
            if math.prod(self._stored[name].shape) > MAX_NOTE:
                raise UserError(
                    f"{self.path}: {name}, the note about a format, is longer than {MAX_NOTE} bytes",
                    hint="use another version of this model",
                )
        said = {name: bytes(self._stored[name].read().to(torch.uint8).flatten().tolist()) for name in tensors}
        found = {
            name.rpartition(".")[0]: parse_json(text, f"description {name} in {self.path}")
            for name, text in said.items()
        }
        whole = parse_json(self.metadata.get(_FORMATS, "{}"), f"metadata {_FORMATS} of {self.path}")
        layers = whole.get("layers") if isinstance(whole, Mapping) else None
        found |= layers if isinstance(layers, Mapping) else {}
        for layer, facts in found.items():
            kind = facts.get("format") if isinstance(facts, Mapping) else facts
            rotated = isinstance(facts, Mapping) and bool(facts.get("convrot"))
            if rotated or not str(kind).startswith(_SCALED):
                how = f"{kind}, rotated (convrot)" if rotated else str(kind)
                raise UserError(
                    f"{self.path}: {layer} is stored in the format {how}, which is not supported",
                    hint="use the version of this model in 16 bits, or in 8 bits with one scale for each weight",
                )

    def scaled_by(self, name: str, other: WeightFile, scale: str) -> LazyTensor:
        """A tensor times a scale in another file.

        Raises:
            UserError: it is a scale of blocks.
        """
        _refuse_blocks(other.path, self._stored[name].shape, scale, other.shapes[scale])
        stored, factor, where = self._stored[name], other.lazy(scale), f"{other.path}: {scale}"
        return LazyTensor(stored.shape, torch.float32, lambda: _times(stored.read(), factor.read(), where))

    def _read(self, name: str) -> torch.Tensor:
        return self._stored[name].read()

    def lazy(self, name: str) -> LazyTensor:
        """The tensor, read when needed and not kept."""
        stored, scale = self._stored[name], self._scales.get(name)
        if not scale:
            return stored
        return LazyTensor(stored.shape, torch.float32, lambda: self._scaled(stored.read(), scale))

    def places(self) -> dict[str, LazyTensor]:
        """All of them by name."""
        return {name: self.lazy(name) for name in self.shapes}

    def _scaled(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return _times(tensor, self._read(name), f"{self.path}: {name}")

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in its stored type, or in float32 if it is stored with a scale."""
        tensor = self._read(name)
        scale = self._scales.get(name)
        return self._scaled(tensor, scale) if scale else tensor


def _scales_of(names: Collection[str], leaves: Mapping[str, str]) -> dict[str, str]:
    """The scale of each weight that has one.

    Args:
        leaves: the last component of each name.
    """
    found: dict[str, str] = {}
    # the first of these names counts if a weight has two
    for kind in reversed(SCALES):
        for scale in (name for name, leaf in leaves.items() if leaf == kind):
            weight = f"{scale.removesuffix(kind)}weight"
            if weight in names:
                found[weight] = scale
    return found


def _refuse_blocks(path: Path, shape: Sequence[int], scale: str, numbers: Sequence[int]) -> None:
    rows, count = (shape or (1,))[0], math.prod(numbers)
    # there may be as many blocks as rows
    if count != 1 and (count != rows or rows not in numbers):
        raise UserError(
            f"{path}: {scale}, of the shape {tuple(numbers)}, has {count} numbers for {counted(rows, 'row')}, so its "
            "weights are kept in blocks (as mxfp8 does), which is not supported",
            hint="use the version of this model in 16 bits, or in 8 bits with one scale for each weight",
        )


def _times(tensor: torch.Tensor, scale: torch.Tensor, where: str) -> torch.Tensor:
    """A tensor times its scale, which is a single number, or one per row.

    Raises:
        UserError: the scale is not finite.
    """
    if not scale.float().isfinite().all():
        raise UserError(f"{where} is NaN or infinite", hint="the file is damaged: download it again")
    return tensor.float() * scale.float().reshape(-1, *[1] * (tensor.dim() - 1))


class _Safetensors(WeightFile):
    def __init__(self, path: Path) -> None:
        # torch would map the whole file as writable memory, which fails if it is larger than what is free;
        # names and shapes need none
        self._file: Any = None
        header: Any = self._open(path, "np")
        listed = list(header.keys())
        if strange := {header.get_slice(name).get_dtype() for name in listed} - TYPES.keys():
            raise UserError(
                f"{path} has numbers of the type {', '.join(sorted(strange))} (as mxfp8 and nvfp4 do), which is not "
                "supported",
                hint="use the version of this model in 16 bits, or in 8 bits with one scale for each weight",
            )
        places = file_tensors(path)
        super().__init__(path, {name: places[name] for name in listed}, dict(header.metadata() or {}))

    @staticmethod
    def _open(path: Path, framework: str) -> Any:
        from safetensors import safe_open

        return safe_open(str(path), framework=framework)

    def _read(self, name: str) -> torch.Tensor:
        if self._file is None:
            try:
                self._file = self._open(self.path, "pt")
            except RuntimeError as error:
                raise UserError(
                    f"{self.path} does not fit into the main memory: {str(error).splitlines()[0]}",
                    hint="set weight_dtype of the part to FLOAT_8, INT_8 or NFLOAT_4, close other programs, or use a "
                    "version of this model in several files",
                ) from error
        return self._file.get_tensor(name)  # type: ignore[no-any-return]


def open_weights(path: Path, field: str) -> WeightFile:
    """Open a file of weights.

    Raises:
        UserError: the file is damaged, or a checkpoint contains anything but tensors.
    """
    from safetensors import SafetensorError

    try:
        if path.suffix.lower() == GGUF_FILE:
            return WeightFile(path, *read_gguf(path))
        if path.suffix.lower() not in CHECKPOINTS:
            return _Safetensors(path)
        entries = checkpoint_entries(path).items()
        return WeightFile(path, {name: lazily(value) for name, value in entries if isinstance(value, torch.Tensor)}, {})
    except UserError as error:
        error.field = field
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged: {error}", field=field, hint="copy or download it again"
        ) from error


def checkpoint_entries(path: Path, old: bool = False) -> Mapping[str, Any]:
    """The content of a checkpoint by name, with tensors mapped into memory. Opening it allows only the
    classes of tensors.

    Args:
        old: also read the format of torch before version 1.6, which cannot be mapped.

    Raises:
        UserError: the file is damaged, not a table, compressed, or contains anything but tensors.
    """
    mapped = not old or zipfile.is_zipfile(path)
    if mapped:
        check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} was refused: it holds more than weights, and opening it could run any program",
            hint="use the safetensors version of this model",
        ) from error
    except DAMAGED as error:
        first = first_line(error)
        raise UserError(f"{path} is damaged: {first}", hint="copy or download it again") from error
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds {type(content).__name__} instead of named weights")
    limit = path.stat().st_size
    # a tensor can claim to be larger than its data in the file
    for name, tensor in content.items():
        if isinstance(tensor, torch.Tensor) and (
            tensor.layout is not torch.strided or tensor.numel() * tensor.element_size() > limit
        ):
            raise UserError(
                f"{path}: {name} is larger than the file", hint="use another version of this model"
            )
    return {str(name): value for name, value in content.items()}


def check_archive(path: Path) -> None:
    """Refuse files that would need more memory to open than their size.

    Raises:
        UserError: it is not a torch archive, or a compressed one.
    """
    hint = "use the safetensors version of this model"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UserError(
            f"{path} is not a checkpoint of torch 1.6 or later, or it is damaged", hint=hint
        ) from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise UserError(f"{path} is compressed, which torch's checkpoints are not", hint=hint)
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise UserError(f"{path} claims to hold more than its size", hint=hint)
    for entry in entries:
        if entry.filename.endswith(".pkl") and entry.file_size > MAX_PROGRAM:
            raise UserError(f"{path}: {entry.filename} is too large for a list of tensors", hint=hint)
