"""TensorBoard in a process of its own, ended with the window."""

from __future__ import annotations

import subprocess
import sys
import webbrowser
from pathlib import Path

from modules.util.errors import UserError


class TensorBoard:
    """At most one server; another folder or port replaces it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._shown: tuple[Path, int] | None = None

    def open(self, folder: Path, port: int) -> str:
        """Serve a folder and open it in the browser; returns the address.

        Raises:
            UserError: there is nothing in the folder.
        """
        if not folder.is_dir():
            raise UserError(
                f"{folder} does not exist", "tensorboard", "switch TensorBoard on and start training"
            )
        if self._shown != (folder, port) or self._process is None or self._process.poll() is not None:
            self.close()
            line = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
            self._process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            self._shown = (folder, port)
        address = f"http://localhost:{port}"
        webbrowser.open(address)
        return address

    def close(self) -> None:
        """End the server."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self._process, self._shown = None, None
