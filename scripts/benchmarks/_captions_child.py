"""Opens the caption editor, presses keys in it, and prints what that took as JSON. Started by ``captions``."""

from __future__ import annotations

import json
import math
import sys
import time
import tkinter as tk
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from PIL import Image

from modules.ui.captions.CaptionsPage import CaptionsPage
from modules.ui.captions.CaptionsWindow import CaptionsWindow
from modules.ui.shell.tool_windows import program_window
from scripts.benchmarks._window import heavy_packages, live_for, live_until

THINKING = 0.05
SIDE = 2048
WALK = ("Right", "Down", "Right", "Down", "Left", "End", "Up", "Home", "Down")


def paint(root: tk.Tk, page: CaptionsPage, large: Path, moves: int) -> list[float]:
    """Seconds from each movement of the brush over an image of ``SIDE`` pixels to the redrawn mask."""
    Image.effect_noise((SIDE, SIDE), 64).convert("RGB").save(large)
    page.look_for("Text", "")
    live_for(root, THINKING)
    root.event_generate("<KeyPress-Home>")
    live_for(root, THINKING)
    page.paint()
    window = page.painter
    assert window is not None
    live_until(root, lambda: window.opened is not None and window.canvas.winfo_width() > 300)
    live_for(root, 0.5)
    canvas, taken = window.canvas, []
    for move in range(moves + 1):
        angle = 0.2 * move
        place = SIDE * (0.5 + 0.3 * math.cos(angle)), SIDE * (0.5 + 0.3 * math.sin(angle))
        x, y = canvas.on_screen(place)
        begin = time.perf_counter()
        canvas.event_generate("<B3-Motion>" if move else "<ButtonPress-3>", x=x, y=y)
        root.update_idletasks()
        if move:
            taken.append(time.perf_counter() - begin)
    canvas.event_generate("<ButtonRelease-3>", x=x, y=y)
    assert window.opened is not None
    if window.opened.painting.size != (SIDE, SIDE) or not window.opened.painting.changed:
        raise RuntimeError("nothing was painted")
    return taken


def main(source: Path, keys: int) -> None:
    root, theme = program_window("Dark", 100)
    root.deiconify()
    root.update()
    begin, worked = time.perf_counter(), time.process_time()
    tool = CaptionsWindow(root, theme, source, root.destroy)
    tool.pack(fill="both", expand=True)
    page, grid = tool.editor, tool.editor.grid_of_images

    def drawn() -> bool:
        places = grid.on_screen()
        return bool(places) and all(
            grid.is_drawn(place) and page.list.name_at(place) in page.list.captions for place in places
        )

    live_until(root, drawn)
    opened = time.perf_counter() - begin, time.process_time() - worked
    live_until(root, lambda: page.read and not tool.worker.busy)
    read = time.perf_counter() - begin
    root.focus_force()
    live_for(root, 1.0)
    wall: list[float] = []
    cpu: list[float] = []
    while len(wall) < keys:
        begin, worked = time.perf_counter(), time.process_time()
        root.event_generate(f"<KeyPress-{WALK[len(wall) % len(WALK)]}>")
        root.update_idletasks()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - worked)
        live_for(root, THINKING)
    found, found_cpu = [], []
    for words in ("fox", "number 77", "night", "", "snow") * 3:
        begin, worked = time.perf_counter(), time.process_time()
        page.look_for("Text", words)
        root.update_idletasks()
        found.append(time.perf_counter() - begin)
        found_cpu.append(time.process_time() - worked)
        live_for(root, THINKING)
    brush = paint(root, page, source / "00000.png", keys)
    result = {
        "open": opened,
        "read": read,
        "keys": wall,
        "keys_cpu": cpu,
        "find": median(found),
        "find_cpu": median(found_cpu),
        "brush": brush,
        "heavy": heavy_packages(),
    }
    print(json.dumps(result))
    tool.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
