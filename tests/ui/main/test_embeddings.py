"""Embeddings by keys and clicks: the list on the LoRA page, and what its windows refuse."""

from __future__ import annotations

import pytest

from modules.ui.items.ItemDialog import ItemDialog
from modules.ui.pages.LoraPage import LoraPage
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui


def placeholders(hands: Hands) -> list[str]:
    return [one.placeholder for one in hands.window.state_.value("additional_embeddings") or []]


def fill(hands: Hands, window: ItemDialog, name: str, text: str) -> None:
    """Type into a field of a window in place of what is there."""
    hands.focus(window.forms[0].rows[name].input.focus_widget)
    hands.keys("<Control-slash>", "<Delete>")
    hands.type(text)


def opened(hands: Hands) -> ItemDialog:
    window = hands.dialog()
    assert isinstance(window, ItemDialog)
    hands.wait(lambda: window.grab_status() == "local")
    return window


def test_embeddings_are_added_edited_and_removed(hands: Hands) -> None:
    hands.window.show_page("lora")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, LoraPage)
    hands.click(hands.button("Add\u2026", page))
    window = opened(hands)
    fill(hands, window, "placeholder", "<my-cat>")
    fill(hands, window, "initial_embedding_text", "cat")
    fill(hands, window, "token_count", "x")
    hands.keys("<Control-Return>")
    assert window.winfo_exists() and "Tokens" in str(window.wrong.cget("text"))
    assert placeholders(hands) == []
    hands.keys("<BackSpace>")
    hands.type("2")
    hands.click(hands.button("OK", window))
    assert not window.winfo_exists()
    (made,) = hands.window.state_.value("additional_embeddings")
    assert (made.placeholder, made.initial_embedding_text, made.token_count) == ("<my-cat>", "cat", 2)
    tree = page.table.tree
    assert tree.item("0", "values") == ("<my-cat>", "cat", "2", "yes")
    hands.focus(tree)
    hands.keys("<Return>")
    window = opened(hands)
    assert window.title() == "Embedding <my-cat>"
    fill(hands, window, "placeholder", "<her-cat>")
    hands.keys("<Escape>")
    hands.wait(lambda: not window.winfo_exists(), "Escape does not close it")
    assert placeholders(hands) == ["<my-cat>"]
    hands.focus(tree)
    hands.keys("<Delete>")
    assert placeholders(hands) == []
    hands.keys("<Control-z>")
    assert placeholders(hands) == ["<my-cat>"]
