"""Contradictory preferences: one image over another, and the other way round."""

from __future__ import annotations

from hashlib import blake2b


class Preferences:
    """Records which of two images was preferred under a prompt, for very many pairs in little memory."""

    def __init__(self) -> None:
        self._ways: dict[bytes, int] = {}

    def add(self, prompt: str, chosen: str, rejected: str) -> None:
        """Record a preference. Images are identified by hashes of their bytes, and skipped without one."""
        if chosen and rejected and chosen != rejected:
            key, way = _key(prompt, chosen, rejected)
            self._ways[key] = self._ways.get(key, 0) | way

    def is_contradictory(self, prompt: str, chosen: str, rejected: str) -> bool:
        """Return whether the opposite was recorded too."""
        key, way = _key(prompt, chosen, rejected)
        return bool(self._ways.get(key, 0) & ~way)


def _key(prompt: str, chosen: str, rejected: str) -> tuple[bytes, int]:
    first, second = sorted((chosen, rejected))
    key = blake2b(f"{first} {second} {prompt}".encode(errors="surrogatepass"), digest_size=16).digest()
    return key, 1 if chosen == first else 2
