"""Limits of reading, and the reasons why it stops."""

from __future__ import annotations

from enum import StrEnum

HEAD_BYTES = 32 * 1024
"""Bytes read when a file is opened; enough for the text of nearly every generated image."""

MAX_CHUNK_TEXT = 4 * 1024 * 1024
"""Maximum size of one text after inflating, in bytes."""

MAX_FILE_TEXT = 16 * 1024 * 1024
"""Maximum size of all texts read from one file, after inflating, in bytes."""

MAX_CHUNKS = 100_000
"""Maximum number of chunks, segments or boxes visited in one file."""

MAX_SAME_KEY = 64
"""Maximum number of texts of the same name read from one file."""

MAX_PROMPT = 64 * 1024
"""Maximum length of a prompt, in characters."""

MAX_PIXELS = 89_478_485
"""Number of pixels up to which Pillow decodes without a warning. Larger images are reported, never decoded."""

MAX_JSON_MEMORY = 32 * 1024 * 1024
"""Maximum estimated memory of a parsed JSON text, in bytes."""


class Reason(StrEnum):
    """Reasons why a file gives no prompt. Error texts start with one of these, with details after a colon."""

    EMPTY = "empty file"
    NOT_AN_IMAGE = "not a PNG, JPEG, WebP, AVIF, TIFF or BMP image"
    OTHER_KIND = "files of this kind are not read: save it as PNG, JPEG or WebP"
    TRUNCATED = "the file ends inside its header"
    BAD_HEADER = "damaged header"
    TOO_MANY_PIXELS = "too many pixels"
    NO_PROMPT = "no prompt found"
    TEXT_TOO_LARGE = "its text is too large"
    BAD_TEXT = "its text cannot be decompressed"
    BAD_JSON = "its text is damaged JSON"
    BAD_EXIF = "damaged EXIF data"
    PROMPT_TOO_LONG = "the prompt is too long"
    GONE = "the file no longer exists"
    NO_PERMISSION = "no permission to read it"
    LINK_LOOP = "a link that points to itself"
    PAIRS_FOLDER = "a folder of pairs, skipped"
    FOLDER_LINK = "a link to a folder, not followed"
    NOT_A_FILE = "not a regular file"
    READ_ERROR = "it cannot be read"
    BAD_NAME = "its name is not valid text"
    CHANGED = "it changed during the scan"
    DUPLICATE = "the same file as"
    LOOKS_LIKE = "it looks like"
    UNDECODABLE = "its pixels cannot be decoded"
    NO_SOURCE = "edit without source"
    NO_INSTRUCTION = "edit without an instruction"
    NOT_EDITED = "it is the source image itself"


class Unusable(Exception):
    """A text, chunk or file without usable content. Caught inside the readers, never shown as a traceback.

    Args:
        reason: the listed reason.
        detail: further details, if any.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value
