"""Retries with growing delays after a connection ended."""

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
    remote: RemoteConfig,
    ask: Ask,
    tell: Tell,
    work: Callable[[Far], Awaitable[T]],
    tries: int = 0,
    patient: bool = False,
) -> T:
    """Run ``work`` over a connection, and reconnect whenever it ends.

    Args:
        work: continues where it stopped the last time.
        tries: number of consecutive connections that may fail; 0: any number. The very first one must
            succeed.
        patient: whether the very first one may fail too, because the computer does not answer yet.

    Raises:
        UserError: the work fails for another reason, or there is no connection. Refused: the other computer
            does not let this one in; it is not asked again.
    """
    wait, failed, worked = FIRST_SECONDS, 0, patient
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
