"""Which answers are remembered in memory, and when they are forgotten."""

from __future__ import annotations

import pytest

from modules.ui.remote.Answers import Answers


def times_asked(question: str) -> int:
    """How often a person sees a question that is asked twice."""
    shown: list[str] = []
    answers = Answers(lambda call: call(), lambda text, give: (shown.append(text), give("typed")))
    assert [answers.ask(question) for _ in range(2)] == ["typed", "typed"]
    return len(shown)


@pytest.mark.parametrize(
    "text",
    [
        "One-time password: ",
        "One time password (OATH): ",
        "Password (OTP): ",
        "Passcode: ",
        "Token password: ",
    ],
)
def test_what_is_valid_once_is_asked_for_again(text):
    assert times_asked(f"me@gpu.example.org:2222: {text}") == 2


@pytest.mark.parametrize(
    "question",
    [
        "me@code.example.org: Password: ",
        "Password of me@token.example.org: ",
        "Passphrase of keys/code/otp: ",
    ],
)
def test_what_stays_valid_is_asked_for_once_whatever_names_it_holds(question):
    assert times_asked(question) == 1
