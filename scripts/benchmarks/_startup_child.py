"""One start of the window in a fresh process; prints what it took as JSON. Started by ``startup``."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

BEGIN = float(sys.argv[1])
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.ui.MainWindow import MainWindow  # noqa: E402
from modules.ui.state.SessionStore import SessionStore, WindowMemory  # noqa: E402
from scripts.benchmarks._window import heavy_packages  # noqa: E402


def main() -> int:
    folder = Path(tempfile.mkdtemp())
    store = SessionStore(folder)
    store.save_window(WindowMemory(geometry="1280x720+0+0", appearance="Dark"))
    window = MainWindow(store)
    window.update()
    while not window.winfo_viewable():
        window.update()
    shown, shown_cpu = time.time() - BEGIN, time.process_time()
    pages, pages_cpu = {}, {}
    for page in window.pages:
        if page.key == window.page:
            continue  # it counts as the window's own time
        start, start_cpu = time.perf_counter(), time.process_time()
        window.show_page(page.key)
        window.update()
        pages[page.title], pages_cpu[page.title] = (
            time.perf_counter() - start,
            time.process_time() - start_cpu,
        )
    field = window._built["training"].form.rows["epochs"].input.focus_widget  # type: ignore[attr-defined]
    window.show_page("training")
    window.update()
    field.focus_force()
    window.update()
    keys = []
    for key in "123456789":
        start = time.perf_counter()
        field.event_generate(f"<KeyPress-{key}>")
        window.update()
        keys.append(time.perf_counter() - start)
    heavy = heavy_packages()
    window.quit_window()
    found = {
        "window": shown, "window_cpu": shown_cpu, "pages": pages, "pages_cpu": pages_cpu,
        "key": sorted(keys)[len(keys) // 2], "heavy": heavy,
    }  # fmt: skip
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
