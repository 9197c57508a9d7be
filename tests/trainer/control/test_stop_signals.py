"""Signals as a wish to stop; they are raised in this process, inside the block that catches them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from modules.trainer.control.StopSignals import StopSignals


@pytest.fixture
def heard() -> Iterator[None]:
    """A hang-up is heard, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_is_remembered(number: signal.Signals, heard: None) -> None:
    with StopSignals() as signals:
        assert signals.received is None
        signal.raise_signal(number)
        assert signals.received == number.name


def test_a_second_interrupt_does_not_wait_and_a_second_termination_does() -> None:
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_given_back_also_after_an_error() -> None:
    before = handlers()
    with pytest.raises(ArithmeticError), StopSignals():
        assert handlers() != before
        raise ArithmeticError
    assert handlers() == before


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
        assert signals.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_blocks_can_be_nested() -> None:
    before = handlers()
    with StopSignals() as outer:
        with StopSignals() as inner:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert (inner.received, outer.received) == ("SIGTERM", "SIGINT")
    assert handlers() == before


def test_in_another_thread_nothing_is_changed() -> None:
    before, seen = handlers(), []

    def run() -> None:
        with StopSignals() as signals:
            seen.append((handlers() == before, signals.received))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(True, None)]
    assert handlers() == before
