"""Desktop notifications when a run ends."""

from __future__ import annotations

import asyncio

from modules.ui.texts import run as words

SECONDS = 10.0


def send_notice(title: str, text: str) -> None:
    """Send a notification and return once the desktop has accepted it. Not for the Tk thread.

    Raises:
        Exception: the desktop has no such service, or does not answer within ``SECONDS``.
    """
    from desktop_notifier import DesktopNotifier

    async def send() -> None:
        notifier = DesktopNotifier(app_name=words.PROGRAM, app_icon=None)
        await asyncio.wait_for(notifier.send(title, text), SECONDS)

    asyncio.run(send())
