"""Errors that a user can fix, as opposed to bugs, which a user can only report.

A ``UserError`` says what is wrong, where, and what to do. Command lines print it without a traceback and exit
with status 2; the window marks the field. Every other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from modules.util.display import counted, harmless

MAX_OFFENDERS = 20


class UserError(Exception):
    """Something the user can fix. What it says may come from a file or server that is not trusted, and is made
    harmless for terminals.

    Args:
        message: what is wrong, in one sentence, with the offending value.
        field: the config field or path it concerns (``rlhf_dpo_beta``, ``concepts[0].path``), if any.
        hint: what to do about it.
    """

    def __init__(self, message: str, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = harmless(message)
        self.field = harmless(field) if field else field
        self.hint = harmless(hint) if hint else hint

    def __str__(self) -> str:
        head = f"{self.field}: {self.message}" if self.field else self.message
        return f"{head}\n  -> {self.hint}" if self.hint else head


class ConfigError(UserError, ValueError):
    """A value that is out of its range or contradicts another one."""


class DataError(UserError, RuntimeError):
    """Images, captions, pairs or files that cannot be used."""


class UnsupportedError(UserError, NotImplementedError):
    """A combination that this program does not support."""


class AnswerError(UserError):
    """An answer that cannot be used, of a model or server that may well answer the next question."""


class UserErrors(UserError):
    """Several faults of one check, reported together.

    Args:
        errors: the faults in the order they were found, at least one.
        title: the line printed above them.
    """

    def __init__(self, errors: Sequence[UserError], title: str = "") -> None:
        if not errors:
            raise ValueError("UserErrors needs at least one error")
        self.errors = tuple(errors)
        heading = title or f"{counted(len(errors), 'problem')} found"
        super().__init__("\n".join([heading, *(f"- {error}" for error in errors)]))


@contextmanager
def refused_as(
    message: str, field: str | None = None, hint: str | None = None, kind: type[UserError] = UserError
) -> Iterator[None]:
    """Raise an ``OSError`` of the block as an error that a user can fix. The system's reason follows the message.

    Raises:
        UserError: the system refuses what the block does; of this ``kind``.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{message}: {error.strerror or error}", field, hint) from error


@contextmanager
def blamed_on(field: str) -> Iterator[None]:
    """Let the errors of the block name this field, which decides what the block works on."""
    try:
        yield
    except UserError as error:
        error.field = field
        raise


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its kind if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def system_refusal(error: OSError) -> str:
    """The refusal of the system as text: the path, if there is one, and the reason."""
    place = error.filename2 or error.filename
    return f"{f'{place}: ' if place else ''}{error.strerror or error}"


def list_offenders(names: Sequence[str], limit: int = MAX_OFFENDERS) -> str:
    """The first ``limit`` names, one per line, and how many more there are."""
    shown = [f"    {name}" for name in names[:limit]]
    if len(names) > limit:
        shown.append(f"    ... and {len(names) - limit} more")
    return "\n".join(shown)
