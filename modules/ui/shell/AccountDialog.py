"""The token for models that need an account. It is stored only in the secrets file."""

from __future__ import annotations

import re
from pathlib import Path
from tkinter import ttk

from modules.ui.dialogs import Dialog, secret_entry
from modules.ui.texts import tools as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import elide_middle
from modules.util.config.SecretsConfig import SecretsConfig
from modules.util.errors import UserError

TOKEN = re.compile(r"[A-Za-z0-9_.-]{8,}")


class AccountDialog(Dialog):
    """Enter, replace or remove the token; a stored one is never shown.

    Args:
        path: the secrets file.
    """

    def __init__(self, ui: Ui, path: Path) -> None:
        super().__init__(ui, words.ACCOUNT_TITLE, width=520)
        px = ui.theme.px
        self._path = path
        self.fault = ttk.Label(self.body, style="Error.TLabel", wraplength=px(480), justify="left")
        try:
            stored = bool(SecretsConfig.load_if_there(path).huggingface_token)
        except UserError as error:
            stored = True
            self.fault.configure(text=words.BROKEN_FILE.format(error=error))
        ttk.Label(self.body, text=words.ACCOUNT_ABOUT, wraplength=px(480), justify="left").pack(anchor="w")
        about = words.TOKEN_STORED if stored else words.NO_TOKEN
        self.about = ttk.Label(self.body, text=about, style="Bold.TLabel")
        self.about.pack(anchor="w", pady=(px(10), px(4)))
        self.entry = secret_entry(self.body, ui, words.SHOW)
        self.entry.bind("<Return>", lambda _event: self.accept())
        ttk.Label(self.body, text=elide_middle(str(path), 70), style="Small.TLabel").pack(anchor="w")
        self.fault.pack(anchor="w", pady=(px(4), 0))
        self.add_button(words.SAVE, self.accept, accent=True)
        self.add_button(words.CANCEL, self.cancel)
        self.remove_button = ttk.Button(self.foot, text=words.REMOVE, command=lambda: self._store(""))
        self.remove_button.pack(side="left")
        self.remove_button.state([("!" if stored else "") + "disabled"])

    def accept(self) -> None:
        """Store the typed token."""
        token = self.entry.get().strip()
        if not TOKEN.fullmatch(token):
            self.fault.configure(text=words.NOT_A_TOKEN)
            self.entry.state(["invalid"])
            self.entry.focus_set()
            return
        self._store(token)

    def _store(self, token: str) -> None:
        try:
            SecretsConfig(huggingface_token=token).save(self._path)
        except OSError as error:
            self.fault.configure(
                text=words.CANNOT_SAVE.format(folder=self._path.parent, reason=error.strerror)
            )
            return
        self.destroy()
        self.ui.status(words.TOKEN_SAVED if token else words.TOKEN_REMOVED)
