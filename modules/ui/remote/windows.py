"""The dialogs of another computer: its password, and whether it is trusted."""

from __future__ import annotations

from collections.abc import Callable
from tkinter import ttk

from modules.remote.host_keys import UnknownHost, place_of
from modules.ui.dialogs import Dialog, secret_entry
from modules.ui.texts import remote as words
from modules.ui.Ui import Ui


class PasswordDialog(Dialog):
    """Asks for a password or passphrase.

    Args:
        question: what is asked for.
        answer: called once, with the text or, if the dialog is closed otherwise, with ``None``.
    """

    def __init__(self, ui: Ui, question: str, answer: Callable[[str | None], None]) -> None:
        super().__init__(ui, words.PASSWORD_TITLE, width=460)
        px = ui.theme.px
        self._answer: Callable[[str | None], None] | None = answer
        label = ttk.Label(self.body, text=question.strip(), wraplength=px(420), justify="left")
        label.pack(anchor="w")
        self.entry = secret_entry(self.body, ui, words.SHOW)
        self.entry.bind("<Return>", lambda _event: self.accept())
        note = ttk.Label(self.body, text=words.PASSWORD_NOTE, style="Small.TLabel", wraplength=px(420))
        note.pack(anchor="w", pady=(px(4), 0))
        self.add_button(words.OK, self.accept, accent=True)
        self.add_button(words.CANCEL, self.cancel)
        self.present(self.entry)

    def _give(self, text: str | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(text)

    def destroy(self) -> None:
        """Close; without an answer if none was given."""
        self._give(None)
        super().destroy()

    def accept(self) -> None:
        """Give the answer."""
        self._give(self.entry.get())
        self.destroy()


class TrustDialog(Dialog):
    """Shows the fingerprint of an unknown computer. Only its button trusts it; Enter and Escape do not.

    Args:
        unknown: the computer and its key.
        trust: called if the person trusts it.
    """

    def __init__(self, ui: Ui, unknown: UnknownHost, trust: Callable[[], object]) -> None:
        super().__init__(ui, words.TRUST_TITLE, width=560)
        px = ui.theme.px
        text = words.TRUST.format(place=place_of(unknown.remote))
        ttk.Label(self.body, text=text, wraplength=px(520), justify="left").pack(anchor="w")
        ttk.Label(self.body, text=words.FINGERPRINT, style="Bold.TLabel").pack(anchor="w", pady=(px(10), 0))
        self.fingerprint = ttk.Entry(self.body, font=ui.theme.fonts["mono"])
        self.fingerprint.insert(0, unknown.fingerprint)
        self.fingerprint.state(["readonly"])
        self.fingerprint.pack(fill="x", pady=(px(4), 0))

        def take() -> None:
            self.destroy()
            trust()

        self.trust_button = self.add_button(words.TRUST_IT, take)
        self.present(self.add_button(words.CANCEL, self.cancel, accent=True))
