"""Tags from a classifier in the layout of the WD taggers: a model, and ``selected_tags.csv`` with its classes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from modules.captioner.failing import check_answer, failing_as
from modules.util.errors import ConfigError, DataError, UserError, first_line
from modules.util.files.hub_names import UNREADABLE
from modules.util.jsonio import read_bytes

TAGS, ONNX, CONFIG = "selected_tags.csv", "model.onnx", "config.json"
CUDA = "CUDAExecutionProvider"
MAX_TAGS_BYTES = 64 << 20
CLASSIFIER_SIDE = 1024
GENERAL, CHARACTER = 0, 4
FACES = frozenset((
    "0_0", "(o)_(o)", "+_+", "+_-", "._.", "<o>_<o>", "<|>_<|>", "=_=", ">_<", "3_3", "6_9", ">_o", "@_@", "^_^",
    "o_o", "u_u", "x_x", "|_|", "||_||",
))  # fmt: skip
"""Emoticon tags, which keep their underscore."""


@dataclass(frozen=True)
class TagRules:
    """Rules for selecting tags.

    Args:
        general: minimum probability of a tag, 0 to 1.
        character: minimum probability of a character name.
        keep_underscores: write ``long_hair`` instead of ``long hair``.
        drop: tags that are never written, spelled with spaces or underscores.
    """

    general: float = 0.35
    character: float = 0.85
    keep_underscores: bool = False
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("--threshold", self.general), ("--character", self.character)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{value} is not between 0 and 1", name)


def _fault(error: Exception) -> UserError:
    said = first_line(error)[:300]
    return UserError(f"the tagger failed: {said}", "--model", "download it again")


class Tagger:
    """Returns the tags of an image: characters first, then the others, each most probable first.

    Args:
        folder: folder with ``selected_tags.csv`` and ``model.onnx``, or a transformers classifier with as
            many classes.

    Raises:
        DataError: a part is missing, or they do not match.
        UserError: ``onnxruntime`` is needed and not installed, or cannot use the device.
    """

    def __init__(self, folder: Path, rules: TagRules, device: torch.device) -> None:
        self._rules = rules
        self._tags = read_tags(folder / TAGS)
        if (folder / ONNX).is_file():
            self._judge = _onnx(folder / ONNX, device)
        elif (folder / CONFIG).is_file():
            self._judge = _classifier(folder, device)
        else:
            raise DataError(
                f"{folder} holds neither {ONNX} nor {CONFIG}", "--model", "give a tagger's folder"
            )

    def describe(self, images: Sequence[Image.Image]) -> list[str]:
        """The tags of each image, separated by commas."""
        with failing_as(_fault, MemoryError):
            judged_BN = self._judge(images)
            check_answer(torch.from_numpy(judged_BN))
        if judged_BN.shape[1] != len(self._tags):
            raise DataError(
                f"the tagger has {judged_BN.shape[1]} classes, {TAGS} has {len(self._tags)}", "--model",
                "take both from the same repository",
            )  # fmt: skip
        return [", ".join(self._taken(judged_N)) for judged_N in judged_BN]

    def _taken(self, judged_N: numpy.ndarray[Any, Any]) -> list[str]:
        least = {GENERAL: self._rules.general, CHARACTER: self._rules.character}
        dropped = {tag.replace("_", " ").strip() for tag in self._rules.drop}
        order = sorted(range(len(self._tags)), key=lambda i: (-self._tags[i][1], -float(judged_N[i]), i))
        taken = []
        for i in order:
            name, category = self._tags[i]
            if category in least and judged_N[i] >= least[category] and name.replace("_", " ") not in dropped:
                plain = self._rules.keep_underscores or name in FACES
                taken.append(name if plain else name.replace("_", " "))
        return taken


def read_tags(path: Path) -> list[tuple[str, int]]:
    """Read names and categories of the classes: 0 general, 4 character, 9 rating.

    Raises:
        DataError: the table does not exist, is not UTF-8 text, or has other columns.
    """
    data = read_bytes(path, "table of tags", MAX_TAGS_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {error.start})", "--model", "take it from the tagger's repository"
        ) from error
    try:
        rows = [(row["name"], int(row["category"])) for row in csv.DictReader(text.splitlines())]
        if not rows or not all(isinstance(name, str) and name.strip() for name, _ in rows):
            raise ValueError("a tag has no name")
        return rows
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} has no columns name and category", "--model", "take it from the tagger's repository"
        ) from error


Judge = Callable[[Sequence[Image.Image]], "numpy.ndarray[Any, Any]"]


def squared(image: Image.Image, side: int) -> Image.Image:
    """Place an RGB image on a white square of this side, as in the training of the WD taggers."""
    scale = side / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    square = Image.new("RGB", (side, side), (255, 255, 255))
    square.paste(image.resize(size, Image.Resampling.BICUBIC), ((side - size[0]) // 2, (side - size[1]) // 2))
    return square


def _onnxruntime(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(
            f"{path.name} needs the package onnxruntime", "--model", "pip install -r requirements-tagger.txt"
        ) from error
    return onnxruntime


def can_run_on(folder: Path, device: torch.device) -> bool:
    """Return whether the tagger in a folder can use a device. ONNX files need ``onnxruntime-gpu`` for a graphics
    card.

    Raises:
        UserError: ``onnxruntime`` is needed and not installed.
    """
    if device.type == "cpu" or not (folder / ONNX).is_file():
        return True
    return device.type == "cuda" and CUDA in _onnxruntime(folder / ONNX).get_available_providers()


def _onnx(path: Path, device: torch.device) -> Judge:
    """Load an ONNX model that maps (B, side, side, 3) BGR from 0 to 255 to probabilities, as all published WD
    taggers do.
    """
    onnxruntime = _onnxruntime(path)
    if not can_run_on(path.parent, device):
        raise UserError(
            f"the installed onnxruntime cannot use {device.type}", "--device",
            "take cpu, or replace the package onnxruntime by onnxruntime-gpu",
        )  # fmt: skip
    try:
        providers = [*([CUDA] if device.type == "cuda" else []), "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(str(path), providers=providers)
        (given,) = session.get_inputs()
        side = int(given.shape[1])
    except Exception as error:
        said = str(error).strip().splitlines()[0][:300]
        raise DataError(f"{path} is not a tagger: {said}", "--model", "download it again") from error

    def judge(images: Sequence[Image.Image]) -> numpy.ndarray[Any, Any]:
        pixels = [numpy.asarray(squared(image, side), numpy.float32)[:, :, ::-1] for image in images]
        # one image at a time, because not all published files support batches
        return numpy.concatenate([session.run(None, {given.name: one[None].copy()})[0] for one in pixels])

    return judge


def _classifier(folder: Path, device: torch.device) -> Judge:
    from safetensors import SafetensorError
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    try:
        model = AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=False)
        processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
    except (*UNREADABLE, ImportError, SafetensorError) as error:
        said = first_line(error)
        raise DataError(
            f"the tagger in {folder} cannot be loaded: {said}", "--model",
            f"transformers must know its kind; most taggers also have a {ONNX}",
        ) from error  # fmt: skip
    model = model.requires_grad_(False).eval().float().to(device)

    def judge(images: Sequence[Image.Image]) -> numpy.ndarray[Any, Any]:
        pixels = processor(images=[squared(one, CLASSIFIER_SIDE) for one in images], return_tensors="pt")
        with torch.no_grad():
            logits_BN = model(pixels["pixel_values"].to(device)).logits
        judged: numpy.ndarray[Any, Any] = logits_BN.float().sigmoid().cpu().numpy()
        return judged

    return judge
