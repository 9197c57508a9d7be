"""The JSON texts of SwarmUI, InvokeAI, Fooocus, NovelAI, Easy Diffusion, Draw Things, Stability Matrix, and others with
a ``prompt`` of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from modules.util.image_metadata.formats.a1111 import looks_like_a1111, parse_a1111
from modules.util.image_metadata.formats.comfy import is_graph, read_graph
from modules.util.image_metadata.formats.comfy_workflow import is_workflow, read_workflow
from modules.util.image_metadata.formats.found import (
    DRAW_THINGS,
    EASY_DIFFUSION,
    FOOOCUS,
    INVOKEAI,
    NOVELAI,
    STABILITY_MATRIX,
    SWARMUI,
    UNKNOWN,
    Found,
    as_seed,
    as_text,
    load_json,
)

_MAX_NESTED = 4
_MAX_CHARACTERS = 64
_BRACKETED = re.compile(r"\[([^\[\]]*)\]")
_INSIDE = (
    "prompt",
    "Comment",
    "meta",
    "metadata",
    "parameters",
    "generation_data",
    "workflow",
    "extraMetadata",
)
_NEGATIVE_KEYS = (
    "negative_prompt",
    "negativePrompt",
    "negativeprompt",
    "negative",
    "Negative Prompt",
    "Negative prompt",
    "NegativePrompt",
    "uc",
)
_SEED_KEYS = ("seed", "Seed", "noise_seed")
_EASY = ("num_inference_steps", "use_stable_diffusion_model", "Stable Diffusion model", "Steps")
_FOOOCUS = (
    "full_prompt",
    "full_negative_prompt",
    "metadata_scheme",
    "base_model_hash",
    "adm_guidance",
    "Fooocus V2",
)


def read_json_object(data: Any, depth: int = 0) -> Found | None:
    """Read the prompt from parsed JSON of any known program; ``None`` if there is none."""
    if depth > _MAX_NESTED or not isinstance(data, dict):
        return None
    if is_graph(data):
        return read_graph(data)
    if is_workflow(data):
        return read_workflow(data)
    for reader in _READERS:
        found = reader(data)
        if found is not None:
            return found
    return _nested(data, depth)


def _nested(data: dict[str, Any], depth: int) -> Found | None:
    """Read objects and JSON texts nested in an object: graphs under ``prompt``, NovelAI's ``Comment``."""
    for key in _INSIDE:
        value = data.get(key)
        if isinstance(value, str) and value.lstrip()[:1] == "{":
            value = load_json(value)
        if isinstance(value, dict):
            found = read_json_object(value, depth + 1)
            if found is not None:
                return found
        elif isinstance(value, str) and looks_like_a1111(value):
            return parse_a1111(value)
    return None


def _negative(data: dict[str, Any]) -> str:
    return next((as_text(data[key]) for key in _NEGATIVE_KEYS if key in data), "")


def _seed(data: dict[str, Any]) -> int | None:
    return next((as_seed(data[key]) for key in _SEED_KEYS if key in data), None)


def _swarm(data: dict[str, Any]) -> Found | None:
    params = data.get("sui_image_params")
    if not isinstance(params, dict):
        return None
    return Found(as_text(params.get("prompt")), _negative(params), SWARMUI, _seed(params))


def _invoke(data: dict[str, Any]) -> Found | None:
    """Read the third generation of InvokeAI (``positive_prompt``) or the second (``image`` with a list of
    prompts).
    """
    if isinstance(data.get("positive_prompt"), str):
        return Found(as_text(data["positive_prompt"]), _negative(data), INVOKEAI, _seed(data))
    image, images = data.get("image"), data.get("images")
    if image is None and isinstance(images, list) and images:
        image = images[0]
    if not isinstance(image, dict) or "prompt" not in image:
        return None
    prompts = image["prompt"]
    if isinstance(prompts, list):
        prompts = ", ".join(
            as_text(p.get("prompt")) if isinstance(p, dict) else as_text(p) for p in prompts[:64]
        )
    prompt, negative = split_invoke(as_text(prompts))
    return Found(prompt, negative or _negative(image), INVOKEAI, _seed(image))


def split_invoke(text: str) -> tuple[str, str]:
    """Split InvokeAI's first syntax, in which negative words are in brackets within the prompt."""
    pieces = _BRACKETED.split(text)
    if len(pieces) == 1:
        return text.strip(), ""
    # Removed pieces leave the commas that separated them.
    wanted = [pieces[0].strip(), *(piece.strip(" ,\n") for piece in pieces[2::2])]
    unwanted = [piece.strip() for piece in pieces[1::2]]
    return ", ".join(piece.rstrip(" ,") for piece in wanted if piece), ", ".join(filter(None, unwanted))


def _draw_things(data: dict[str, Any]) -> Found | None:
    if not isinstance(data.get("c"), str) or not any(
        key in data for key in ("uc", "sampler", "steps", "model")
    ):
        return None
    return Found(as_text(data["c"]), as_text(data.get("uc")), DRAW_THINGS, _seed(data))


def _novelai_whole(data: dict[str, Any]) -> Found | None:
    """Read all texts of a NovelAI image from one object, as in its hidden data and EXIF."""
    words, rest = data.get("Description"), data.get("Comment")
    if not isinstance(words, str) or not words.strip() or not isinstance(rest, str):
        return None
    settings = load_json(rest)
    settings = settings if isinstance(settings, dict) else {}
    found = _novelai_v4(settings)
    if found is not None:
        return found._replace(prompt=with_characters(words, found.prompt))
    return Found(words.strip(), _negative(settings), NOVELAI, _seed(settings))


def with_characters(words: str, whole: str) -> str:
    """NovelAI's description of an image, or the whole prompt if that is the description plus its characters."""
    words = words.strip()
    return whole if whole.startswith(words) else words or whole


def _novelai_v4(data: dict[str, Any]) -> Found | None:
    """Read the caption object of NovelAI 4 and later: a prompt for the picture, and one per character."""
    prompt = _whole_caption(data.get("v4_prompt"))
    if prompt is None:
        return None
    return Found(
        prompt, _whole_caption(data.get("v4_negative_prompt")) or _negative(data), NOVELAI, _seed(data)
    )


def _whole_caption(value: Any) -> str | None:
    """The base caption followed by those of the characters, in order."""
    caption = value.get("caption") if isinstance(value, dict) else None
    if not isinstance(caption, dict) or not isinstance(caption.get("base_caption"), str):
        return None
    characters = caption.get("char_captions")
    characters = characters if isinstance(characters, list) else []
    words = [one.get("char_caption") for one in characters[:_MAX_CHARACTERS] if isinstance(one, dict)]
    parts = [caption["base_caption"], *(word for word in words if isinstance(word, str))]
    return ", ".join(part.strip() for part in parts if part.strip())


def _stability_matrix(data: dict[str, Any]) -> Found | None:
    if not isinstance(data.get("PositivePrompt"), str):
        return None
    return Found(as_text(data["PositivePrompt"]), _negative(data), STABILITY_MATRIX, _seed(data))


def _plain(data: dict[str, Any]) -> Found | None:
    """Read an object with a ``prompt`` text. The keys next to it tell which program wrote it."""
    prompt = data.get("prompt", data.get("Prompt"))
    if isinstance(prompt, str) and prompt.lstrip()[:1] == "{":
        return None
    if not isinstance(prompt, str) and not (
        isinstance(prompt, list) and prompt and isinstance(prompt[0], str)
    ):
        return None
    generator = UNKNOWN
    if any(key in data for key in _FOOOCUS):
        generator = FOOOCUS
    elif "uc" in data:
        generator = NOVELAI
    elif any(key in data for key in _EASY) and any(key in data for key in _NEGATIVE_KEYS):
        generator = EASY_DIFFUSION
    return Found(as_text(prompt), _negative(data), generator, _seed(data))


_READERS: tuple[Callable[[dict[str, Any]], Found | None], ...] = (
    _swarm,
    _invoke,
    _draw_things,
    _novelai_whole,
    _novelai_v4,
    _stability_matrix,
    _plain,
)
