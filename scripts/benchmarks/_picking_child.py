"""Presses keys in the pair tool and prints how long it took until the next question was on the screen."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

started = time.perf_counter(), time.process_time()

from modules.ui.curation.DPOCurationWindow import DPOCurationWindow  # noqa: E402
from modules.ui.curation.windows import make_window  # noqa: E402
from modules.ui.state.SessionStore import SessionStore  # noqa: E402
from scripts.benchmarks._window import heavy_packages, live_for, live_until  # noqa: E402

THINKING = 0.15
"""Seconds between two keys: those of a quick person, with time to decode ahead as in real use."""


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
    found = {"window": window, "first": first, "wall": wall, "cpu": cpu}
    print(json.dumps({**found, "heavy": heavy_packages()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
