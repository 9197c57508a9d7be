"""What a rule finds, against the list of allowed exceptions."""

from __future__ import annotations

from collections.abc import Mapping


def breaches(found: Mapping[str, str], allowed: Mapping[str, str]) -> list[str]:
    """What is found and not allowed, and what is allowed and no longer found.

    Args:
        found: name of each finding to where and what it is.
        allowed: name of a finding to the reason why it may stay.
    """
    assert all(reason.strip() for reason in allowed.values()), "every exception has a reason"
    return [
        *(f"{name}: {what}" for name, what in found.items() if name not in allowed),
        *(f"{name}: the exception is no longer needed" for name in allowed if name not in found),
    ]
