"""Desktop notifications when a run ends."""

from __future__ import annotations

import asyncio
import logging

from modules.ui.texts import run as words

SECONDS = 10.0
LIBRARY = "desktop_notifier.backends.base"
"""Name of the log in which the library reports what it cannot show."""


def send_notice(title: str, text: str) -> None:
    """Send a notification and return once the desktop has accepted it. Not for the Tk thread.

    Raises:
        Exception: the desktop has no such service, or does not answer within ``SECONDS``.
    """
    from desktop_notifier import DesktopNotifier

    logging.getLogger(LIBRARY).addFilter(_in_one_line)

    async def send() -> None:
        notifier = DesktopNotifier(app_name=words.PROGRAM, app_icon=None)
        await asyncio.wait_for(notifier.send(title, text), SECONDS)

    asyncio.run(send())


def _in_one_line(record: logging.LogRecord) -> bool:
    """Replace a traceback by its error: a desktop without notifications is nothing to repair."""
    if record.exc_info and record.exc_info[1] is not None:
        record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]}", ()
        record.exc_info = None
    return True
