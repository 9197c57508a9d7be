"""Trying again after a connection ended, later and later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from modules.remote.Connection import Ask, Lost, Unreachable
from modules.remote.Far import Far, far_side
from modules.util.config.remote.RemoteConfig import RemoteConfig

FIRST_SECONDS, LAST_SECONDS = 1.0, 60.0
T = TypeVar("T")
Tell = Callable[[str], None]


async def persistently(
    remote: RemoteConfig, ask: Ask, tell: Tell, work: Callable[[Far], Awaitable[T]], tries: int = 0
) -> T:
    """Do something over a connection, with a new connection whenever one ends.

    Args:
        work: begins where it ended the last time.
        tries: how many connections in a row may fail; 0: any number. The very first one has to succeed.

    Raises:
        UserError: the work fails for another reason, or there is no connection.
    """
    wait, failed, worked = FIRST_SECONDS, 0, False
    while True:
        try:
            async with far_side(remote, ask) as far:
                wait, failed, worked = FIRST_SECONDS, 0, True
                return await work(far)
        except (Lost, Unreachable) as error:
            failed += 1
            if not worked or (tries and failed >= tries):
                raise
            tell(f"{error.message}; trying again in {wait:g} s")
        await asyncio.sleep(wait)
        wait = min(2 * wait, LAST_SECONDS)
