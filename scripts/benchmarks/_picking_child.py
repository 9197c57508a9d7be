"""Presses keys in the pair tool and prints how long it took until the next question was on the screen."""

from __future__ import annotations

import json
import sys
import time
import tkinter as tk
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

started = time.perf_counter(), time.process_time()

from modules.ui.curation.DPOCurationWindow import DPOCurationWindow  # noqa: E402
from modules.ui.curation.windows import make_window  # noqa: E402
from modules.ui.state.SessionStore import SessionStore  # noqa: E402

PATIENCE = 60.0
THINKING = 0.15
"""Seconds between two keys: those of a quick person, with time to decode ahead as in real use."""


def live_until(root: tk.Tk, done: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise TimeoutError
        root.update()
        time.sleep(0.0005)


def live_for(root: tk.Tk, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        root.update()
        time.sleep(0.002)


def main(source: Path, work: Path, keys: int) -> None:
    root = make_window(SessionStore(work / "settings"), source)
    root.update()
    window = time.perf_counter() - started[0], time.process_time() - started[1]
    (tool,) = (child for child in root.winfo_children() if isinstance(child, DPOCurationWindow))
    live_until(root, lambda: tool.page is not None)
    tool.page.output.set(str(work / "pairs"))  # type: ignore[union-attr]
    root.focus_force()
    begin = time.perf_counter()
    tool.page.submit()  # type: ignore[union-attr]

    def shown() -> bool:
        view = getattr(tool.page, "view", None)
        return view is not None and not tool.controller.waiting and view.ready()  # type: ignore[union-attr]

    live_until(root, shown)
    first = time.perf_counter() - begin
    live_for(root, 1.0)
    wall: list[float] = []
    cpu: list[float] = []
    while len(wall) < keys:
        state = tool._shot.state  # type: ignore[union-attr]
        assert state is not None
        asked = state.phase.value == "question"
        key = "n" if not asked else "Left" if state.question[0] > state.question[1] else "Right"
        begin, worked = time.perf_counter(), time.process_time()
        root.event_generate(f"<KeyPress-{key}>")
        live_until(root, shown)
        root.update_idletasks()
        if asked:
            wall.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - worked)
        live_for(root, THINKING if asked else 5 * THINKING)
    tool.close()
    heavy = sorted({"torch", "diffusers", "transformers", "peft"} & set(sys.modules))
    print(json.dumps({"window": window, "first": first, "wall": wall, "cpu": cpu, "heavy": heavy}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
