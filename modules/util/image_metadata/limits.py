"""How far reading goes, and the reasons for which it stops."""

from __future__ import annotations

from enum import StrEnum

HEAD_BYTES = 32 * 1024
"""Read at once when a file is opened; enough for the text of nearly every generated image."""

MAX_CHUNK_TEXT = 4 * 1024 * 1024
"""One text, after inflating, in bytes."""

MAX_FILE_TEXT = 16 * 1024 * 1024
"""All text looked at in one file, after inflating, in bytes."""

MAX_CHUNKS = 100_000
"""Chunks, segments or boxes walked over in one file."""

MAX_SAME_KEY = 64
"""Texts of one name that are looked at in one file."""

MAX_PROMPT = 64 * 1024
"""Characters of one prompt."""

MAX_PIXELS = 89_478_485
"""What Pillow decodes without a warning; larger images are reported, never decoded."""

MAX_JSON_MEMORY = 32 * 1024 * 1024
"""Estimated bytes of a parsed JSON text."""


class Reason(StrEnum):
    """Why a file gives no prompt. An error text is one of these, with details behind a colon."""

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
    """A text, chunk or file that gives nothing; caught inside the readers, never shown as a traceback.

    Args:
        reason: the listed reason.
        detail: what exactly, if there is more to say.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value
