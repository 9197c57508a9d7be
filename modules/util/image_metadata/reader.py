"""Finds the prompt of a file: first its container, then every text a generator may have used, likeliest first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from modules.util.image_metadata.containers.avif import AvifFields, is_avif
from modules.util.image_metadata.containers.exif import decode_text
from modules.util.image_metadata.containers.fields import MAKES_PICTURES, Fields
from modules.util.image_metadata.containers.jpeg import SIGNATURE as JPEG_SIGNATURE
from modules.util.image_metadata.containers.jpeg import JpegFields
from modules.util.image_metadata.containers.png import SIGNATURE as PNG_SIGNATURE
from modules.util.image_metadata.containers.png import PngFields
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.containers.stealth import stealth_texts
from modules.util.image_metadata.containers.tiff import (
    BMP_SIGNATURE,
    TIFF_SIGNATURES,
    BmpFields,
    TiffFields,
)
from modules.util.image_metadata.containers.webp import WebpFields, is_webp
from modules.util.image_metadata.formats.a1111 import looks_like_a1111, parse_a1111
from modules.util.image_metadata.formats.descriptions import describes_a_prompt
from modules.util.image_metadata.formats.found import (
    A1111,
    COMFYUI,
    EASY_DIFFUSION,
    FOOOCUS,
    GROK,
    INVOKEAI,
    LEONARDO,
    MIDJOURNEY,
    NOVELAI,
    SEAART,
    TEXT_FILE,
    UNKNOWN,
    Found,
    as_seed,
    load_json,
    load_objects,
)
from modules.util.image_metadata.formats.json_formats import read_json_object, split_invoke, with_characters
from modules.util.image_metadata.limits import MAX_PIXELS, MAX_PROMPT, Reason, Unusable
from modules.util.image_metadata.normalise import plain_unicode

_STILL_AN_IMAGE = tuple(
    reason.value
    for reason in (
        Reason.NO_PROMPT,
        Reason.TEXT_TOO_LARGE,
        Reason.BAD_TEXT,
        Reason.BAD_JSON,
        Reason.BAD_EXIF,
        Reason.PROMPT_TOO_LONG,
    )
)
_INVOKE_KEYS = ("invokeai_metadata", "sd-metadata")
_SETTING_KEYS = ("negative_prompt", "seed", "num_inference_steps")
_TITLED_KEYS = ("Negative Prompt", "Seed", "Stable Diffusion model")
SWARM = ".swarm.json"
"""Ending of SwarmUI's files next to images, which hold prompts and stars."""
_SIDECARS = (".txt", ".caption", ".json", SWARM)
_BEGINNING = 80
_DREAM = re.compile(r'\A"(.*)"(?:\s-\S.*)?\Z', re.DOTALL)
_DREAM_SWITCHES = re.compile(r"\s-[sSWHCAnGUI] ?[\w.]+(?:\s|\Z)")
_DREAM_SEED = re.compile(r"\s-S ?(\d{1,20})\b")
_MIDJOURNEY = re.compile(r"\s*Job ID: [0-9a-f-]{36}\s*\Z")


class ImageMetadata(NamedTuple):
    """The metadata of one image file.

    Args:
        prompt, negative_prompt: as written by the generator; ``None`` if there is no prompt.
        width, height: stored size in pixels, from the header; 0 if unknown.
        generator: the program that wrote the prompt.
        error: why there is no prompt, ``None`` if there is one.
        orientation: EXIF orientation, 1 to 8.
        kind: PNG, JPEG, WebP, AVIF, TIFF or BMP, whatever its file extension; empty if it is none of these.
        sources: names of the images it is an edit of, as the generator calls them.
    """

    prompt: str | None = None
    negative_prompt: str | None = None
    width: int = 0
    height: int = 0
    generator: str | None = None
    seed: int | None = None
    error: str | None = None
    orientation: int = 1
    kind: str = ""
    sources: tuple[str, ...] = ()

    @property
    def seen_size(self) -> tuple[int, int]:
        """(width, height) as displayed."""
        return (self.height, self.width) if self.orientation > 4 else (self.width, self.height)


def read_metadata(
    path: str | os.PathLike[str], *, known_regular: bool = False, sidecar: bool = True, stealth: bool = False
) -> ImageMetadata:
    """Read the prompt of an image file from its header. Never raises because of the file's content or state.

    Args:
        path: PNG, JPEG, WebP, AVIF, TIFF or BMP, detected by content.
        known_regular: the caller has just checked that it is a regular file (saves a system call).
        sidecar: if the image has no prompt, use a text or JSON file of the same name next to it.
        stealth: if there is none either, decode the pixels and look for hidden text.
    """
    try:
        with Source(path, known_regular) as source:
            about = _read(open_fields(source))
    except Unusable as error:
        return ImageMetadata(error=str(error))
    if about.error is None or not about.error.startswith(_STILL_AN_IMAGE):
        return about
    try:
        found = _beside(path) if sidecar else None
        if found is None and stealth and about.kind in ("PNG", "WebP"):
            found = _hidden(path, about)
    except Unusable as error:
        return about._replace(error=str(error))
    return about if found is None else _with_prompt(found, about)


def _beside(path: str | os.PathLike[str]) -> Found | None:
    """Read the prompt from a file next to the image: a caption, A1111's text, or JSON.

    Raises:
        Unusable: there are such files, but none is readable.
    """
    stem = os.path.splitext(os.fspath(path))[0]  # noqa: PTH122 - as fast as it gets
    fault: Unusable | None = None
    for suffix in _SIDECARS:
        try:
            with Source(stem + suffix) as source:
                if source.size > MAX_PROMPT * 4:
                    raise Unusable(Reason.TEXT_TOO_LARGE, f"a caption of {source.size} bytes")
                text = decode_text(source.read(0, source.size)).lstrip("\ufeff")
            found = _from_sidecar(text, suffix.endswith(".json"))
        except Unusable as error:
            if error.reason not in (Reason.GONE, Reason.EMPTY):
                fault = fault or error
            continue
        if found is not None:
            return found
    if fault is not None:
        raise fault
    return None


def _from_sidecar(text: str, is_json: bool) -> Found | None:
    if is_json:
        data = load_json(text)
        found = read_json_object(data)
        caption = data.get("caption") if isinstance(data, dict) else None
        return Found(caption.strip(), "", TEXT_FILE) if found is None and isinstance(caption, str) else found
    found = _alone(text)
    if found is not None and found.generator == A1111 and not looks_like_a1111(text):
        return found._replace(generator=TEXT_FILE)
    return found


def _hidden(path: str | os.PathLike[str], about: ImageMetadata) -> Found | None:
    for text in stealth_texts(path, about.width, about.height):
        found = _alone(text)
        if found is not None:
            return found
    return None


def _alone(text: str) -> Found | None:
    """Read the prompt from a text without a name: JSON, or words with or without settings."""
    if text.lstrip()[:1] != "{":
        return parse_a1111(text)
    try:
        return read_json_object(load_json(text))
    except Unusable as error:
        # A prompt may start with a brace, as in "{red|blue} cat".
        if error.reason is not Reason.BAD_JSON or '"' in text[:_BEGINNING]:
            raise
        return parse_a1111(text)


def open_fields(source: Source) -> Fields:
    """Read size and texts of an open file.

    Raises:
        Unusable: it is not an image of a known type, or its header is damaged.
    """
    head = source.head
    if head.startswith(PNG_SIGNATURE):
        return PngFields(source)
    if head.startswith(JPEG_SIGNATURE):
        return JpegFields(source)
    if is_webp(head):
        return WebpFields(source)
    if is_avif(head):
        return AvifFields(source)
    if head.startswith(TIFF_SIGNATURES):
        return TiffFields(source)
    if head.startswith(BMP_SIGNATURE):
        return BmpFields(source)
    raise Unusable(Reason.NOT_AN_IMAGE)


def _read(fields: Fields) -> ImageMetadata:
    width, height = fields.width, fields.height
    if width < 1 or height < 1:
        raise Unusable(Reason.BAD_HEADER, f"{width}x{height} pixels")
    about = ImageMetadata(width=width, height=height, kind=fields.kind)
    if width * height > MAX_PIXELS:
        return about._replace(error=str(Unusable(Reason.TOO_MANY_PIXELS, f"{width}x{height}")))
    found = _find(fields)
    # before the rotation is looked for, which may leave another note
    error = str(fields.note or Reason.NO_PROMPT)
    about = about._replace(error=error, orientation=fields.orientation())
    return about if found is None else _with_prompt(found, about)


def _with_prompt(found: Found, about: ImageMetadata) -> ImageMetadata:
    prompt, negative, generator, seed, sources = found
    long = max(len(prompt), len(negative))
    if long > MAX_PROMPT:
        return about._replace(error=str(Unusable(Reason.PROMPT_TOO_LONG, f"{long} characters")))
    return about._replace(
        prompt=plain_unicode(prompt).strip(),
        negative_prompt=plain_unicode(negative).strip(),
        generator=generator,
        seed=seed,
        error=None,
        sources=sources,
    )


def _find(fields: Fields) -> Found | None:
    """Find the first prompt with words, else the first empty one. If there is none, look after the pixels.

    Failing both, use a plain description, unless there are traces of a camera.
    """
    empty: Found | None = None
    while True:
        for found in _candidates(fields):
            if found.prompt:
                return found
            empty = empty or found
        if not fields.more():
            return empty or _plain_description(fields)


def _candidates(fields: Fields) -> Iterator[Found]:
    if fields.places:
        yield from _named_texts(fields)
    if fields.exif_places or fields.has_exif:
        yield from _exif_texts(fields)
    if fields.xmp_places or fields.has_xmp:
        for text, is_description in fields.xmp():
            for found in _interpreted(fields, text, plain=False):
                yield _without_dashed(found) if is_description else found
    for text in fields.comment_texts() if fields.comments else ():
        yield from _interpreted(fields, text, plain=False)


def _without_dashed(found: Found) -> Found:
    """Draw Things puts a dash between its descriptions and the line of the negative prompt."""
    prompt, _, negative = found.prompt.partition("\n-")
    return found._replace(prompt=prompt.strip(), negative=negative.strip()) if negative else found


def _plain_description(fields: Fields) -> Found | None:
    """A plain-text description (EXIF or XMP), as Leonardo, SeaArt, Grok and others store their prompts."""
    if (
        not (fields.exif_places or fields.has_exif or fields.xmp_places or fields.has_xmp)
        or fields.is_photo()
    ):
        return None
    exif = fields.exif()
    made_by = " ".join(exif.get(name, "") for name in ("software", "make", "model", "artist"))
    texts = [exif.get("imagedescription", ""), *(text for text, described in fields.xmp() if described)]
    for text in texts:
        if describes_a_prompt(text, known_maker=MAKES_PICTURES.search(made_by) is not None):
            return Found(
                text.strip(), "", next((name for mark, name in _MAKERS if mark in made_by.lower()), UNKNOWN)
            )
    return None


def _named_texts(fields: Fields) -> Iterator[Found]:
    for text in fields.texts("parameters"):
        yield from _interpreted(fields, text, plain=True)
    for text in fields.texts("prompt"):
        yield from _prompt_text(fields, text)
    for text in fields.texts("Prompt"):
        yield from _worded(fields, text, _TITLED_KEYS)
    for key in _INVOKE_KEYS:
        for text in fields.texts(key):
            yield from _interpreted(fields, text, plain=False)
    yield from map(_dream, fields.texts("Dream"))
    yield from _described(fields)
    unknown = [key for key in fields.places if key not in _KNOWN_KEYS][:_MAX_UNKNOWN_KEYS]
    for key in (*_OTHER_KEYS, *unknown):
        for text in fields.texts(key):
            yield from _interpreted(fields, text, plain=False)


_OTHER_KEYS = (
    "generation_data",
    "UserComment",
    "usercomment",
    "Parameters",
    "parameters-json",
    "metadata",
    "workflow",
    "invokeai_graph",
    "invokeai_workflow",
)
_KNOWN_KEYS = frozenset(
    (
        *_OTHER_KEYS,
        *_INVOKE_KEYS,
        *_SETTING_KEYS,
        *_TITLED_KEYS,
        "parameters",
        "prompt",
        "Prompt",
        "Dream",
        "Comment",
    )
) | {"Description", "Software", "Title", "Author", "Source", "date:create", "date:modify", "Creation Time"}
_MAX_UNKNOWN_KEYS = 16
_MAKERS = (("leonardo", LEONARDO), ("seaart", SEAART), ("grok", GROK), ("x.ai", GROK), ("xai", GROK))


def _interpreted(fields: Fields, text: str, plain: bool) -> Iterator[Found]:
    """Interpret one text. ``plain``: a text in no known format is a prompt itself."""
    start = text.lstrip("\0 \t\r\n\ufeff")[:1]
    if start in ("{", "["):
        try:
            yield from _objects(text)
        except Unusable as error:
            fields.note = error
            # A prompt may start with a brace or bracket, as in "[cat|dog]".
            if looks_like_a1111(text):
                yield parse_a1111(text)
    elif looks_like_a1111(text) or (plain and start):
        yield parse_a1111(text)


def _objects(text: str) -> Iterator[Found]:
    """Read the prompts in one or several JSON texts with other content in between."""
    try:
        found = read_json_object(load_json(text))
    except Unusable as error:
        if error.reason is not Reason.BAD_JSON or text.count("{") < 2:
            raise
        for data in load_objects(text):
            found = read_json_object(data)
            if found is not None:
                yield found
    else:
        if found is not None:
            yield found


def _prompt_text(fields: Fields, text: str) -> Iterator[Found]:
    """Read the text called ``prompt``: a graph, or the words themselves with settings in separate texts."""
    if text.lstrip()[:1] == "{" or looks_like_a1111(text):
        yield from _interpreted(fields, text, plain=False)
        return
    yield from _worded(fields, text, _SETTING_KEYS)


def _worded(fields: Fields, text: str, keys: tuple[str, str, str]) -> Iterator[Found]:
    """Read a prompt with a name of its own, as written by Easy Diffusion and others."""
    negative, seed, mark = keys
    places = fields.places
    unwanted = next(fields.texts(negative), "") if negative in places else ""
    number = as_seed(next(fields.texts(seed), "").strip()) if seed in places else None
    generator = EASY_DIFFUSION if mark in places or negative in places else UNKNOWN
    yield Found(text.strip(), unwanted.strip(), generator, number)


def _dream(text: str) -> Found:
    """Read InvokeAI's first generation: a command line with the prompt in quotes."""
    seed = _DREAM_SEED.search(text)
    quoted = _DREAM.match(text.strip())
    switches = _DREAM_SWITCHES.search(text)
    bare = text[: switches.start()] if switches else text
    prompt, negative = split_invoke(quoted.group(1) if quoted else bare)
    return Found(prompt, negative, INVOKEAI, int(seed.group(1)) if seed else None)


def _described(fields: Fields) -> Iterator[Found]:
    """Read ``Description`` and ``Comment``: NovelAI puts the prompt into the first, the rest as JSON into the
    second.
    """
    if not fields.places.keys() & {"Description", "Comment"}:
        return  # the name of the software alone says nothing, and a fault in it must not be the reason
    description = next(fields.texts("Description"), "")
    software = next(fields.texts("Software"), "")
    for text in fields.texts("Comment"):
        for found in _interpreted(fields, text, plain=False):
            if software == NOVELAI or found.generator == NOVELAI:
                yield found._replace(prompt=with_characters(description, found.prompt), generator=NOVELAI)
            else:
                yield found
        if software == NOVELAI and description and '"prompt"' not in text:
            yield from _novelai_rest(fields, description, text)
    if description:
        yield from _from_description(fields, description)


def _novelai_rest(fields: Fields, description: str, text: str) -> Iterator[Found]:
    """Read the oldest form, in which the JSON holds only the negative prompt."""
    try:
        data = load_json(text)
    except Unusable as error:
        fields.note = error
        data = {}
    data = data if isinstance(data, dict) else {}
    negative = data.get("uc")
    yield Found(
        description.strip(),
        negative.strip() if isinstance(negative, str) else "",
        NOVELAI,
        as_seed(data.get("seed")),
    )


def _from_description(fields: Fields, description: str) -> Iterator[Found]:
    job = _MIDJOURNEY.search(description)
    if job:
        yield Found(description[: job.start()].strip(), "", MIDJOURNEY)
    else:
        yield from _interpreted(fields, description, plain=False)


def _exif_texts(fields: Fields) -> Iterator[Found]:
    exif = fields.exif()
    named = fields.prefixed()
    if "parameters" in named:
        yield from _interpreted(fields, named["parameters"], plain=True)
    if "prompt" in named:
        for found in _interpreted(fields, named["prompt"], plain=True):
            yield found._replace(generator=UNKNOWN) if found.generator == A1111 else found
    for name in ("usercomment", "imagedescription", "xpcomment", "makernote", "model", "make"):
        text = exif.get(name, "")
        if text and name + ":" not in text[:20].lower():
            for found in _interpreted(fields, text, plain=False):
                fooocus = exif.get("makernote", "") == "fooocus" or exif.get("software", "").startswith(
                    FOOOCUS
                )
                yield found._replace(generator=FOOOCUS) if fooocus else found
    if "workflow" in named:
        for found in _interpreted(fields, named["workflow"], plain=False):
            yield found._replace(generator=COMFYUI)
