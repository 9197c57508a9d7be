"""Of several lost processes, the one with a reason is named."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from modules.runner.outcome import Outcome
from modules.runner.ProcessId import ProcessId
from modules.trainer.control.PeerWatch import PeerWatch


class Store(dict[str, str]):
    """A store in this process."""

    def add(self, key: str, amount: int, /) -> int:
        self[key] = str(int(super().get(key, "0")) + amount)
        return int(self[key])

    def set(self, key: str, value: str, /) -> None:
        self[key] = value

    def get(self, key: str, /) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def check(self, keys: list[str], /) -> bool:
        return all(key in self for key in keys)


def test_a_process_that_ended_because_of_another_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 2 ran out of memory, process 1 ended because of that, and process 0 looks only now."""
    store = Store()
    watch = PeerWatch(store, 0, 3)
    watch._known = {1: ProcessId.own(), 2: ProcessId.own()}
    monkeypatch.setattr(ProcessId, "alive", lambda self: False)
    fault = Outcome("gpu_memory", "out of memory", "use a smaller batch")
    store.set("why/2", json.dumps(asdict(fault)))
    store.add("left/2", 1)
    lost = watch._look()
    assert lost is not None and "out of memory" in lost.text() and "use a smaller batch" in lost.text()
