"""An HTTP answer of a server that is not trusted."""

from __future__ import annotations

import http.client
from typing import Any


class CheckedResponse(http.client.HTTPResponse):
    """An answer whose pieces have a size of at least 0. Of a piece of -1 bytes, the class above would read everything
    that a server sends, however much that is.
    """

    def _safe_read(self, amt: int) -> Any:
        if amt < 0:
            raise http.client.IncompleteRead(b"")
        return super()._safe_read(amt)  # type: ignore[misc]
