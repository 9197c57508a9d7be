"""What a person does in the demo project: drawn images, the steps of its window, arrow keys in the pair tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.ui.curation.ChoosingPage import ChoosingPage
from modules.ui.curation.DPOCurationWindow import DPOCurationWindow
from modules.ui.curation.ExportPage import ExportPage
from modules.ui.demo.DemoWindow import DemoWindow
from modules.util.rng import python_random
from scripts.demo.judge import read_image
from scripts.demo.metadata import STYLES, Made, write_image
from scripts.demo.world import combinations, draw_scene, render
from tests.ui.main.drivers import Hands

PATIENCE = 120.0


def draw_images(folder: Path, prompts: int, each: int) -> None:
    """Images as the demo makes them, from a generator that is never wrong."""
    folder.mkdir(parents=True)
    rng, styles = python_random("demo-test", 1), list(STYLES)
    for n, wish in enumerate(combinations(held_out=False)[:prompts]):
        for k in range(each):
            made = Made(wish.caption(), k, 20, 2.5, 64, 64)
            write_image(
                folder, f"{n:02}-{k:02}", render(draw_scene(wish, rng)), made, styles[n % len(styles)]
            )


def pair_tool(hands: Hands) -> DPOCurationWindow:
    """The one that is open."""
    found = [
        inner
        for window in hands.window.winfo_children()
        for inner in window.winfo_children()
        if isinstance(inner, DPOCurationWindow)
    ]
    assert len(found) == 1, "the pair tool is not open"
    return found[0]


def settled(tool: DPOCurationWindow) -> bool:
    """Whether the tool waits for a key."""
    page, controller = tool.page, tool.controller
    if tool.worker.busy or (controller is not None and controller.waiting):
        return False
    if not isinstance(page, ChoosingPage):
        return page is not None
    if page.shot is None or (page.shot.group is None and page.shot.search.searching):
        return False
    return page.view is None or page.view.ready()


def press(hands: Hands, tool: DPOCurationWindow, key: str) -> None:
    """One key in the pair tool, and wait for what it does."""
    target = tool.window.focus_get() or tool.window
    target.event_generate(f"<KeyPress-{key}>")
    target.event_generate(f"<KeyRelease-{key}>")
    hands.wait(lambda: settled(tool), f"nothing comes of {key}", PATIENCE)


def size(group: Any, index: int) -> float:
    """What this person likes: how large the shape is."""
    import numpy as np
    from PIL import Image

    with Image.open(group.path(index)) as image:
        return read_image(np.asarray(image.convert("RGB"))).size


def choose_larger(hands: Hands, demo: DemoWindow) -> int:
    """Choose with the arrow keys until all prompts are done, finalise, close; how many questions were answered."""
    hands.click(demo.buttons["choose"])
    tool = pair_tool(hands)
    hands.wait(lambda: settled(tool), "the pair tool does not get ready", PATIENCE)
    tool.window.focus_force()
    hands.wait(lambda: tool.window.focus_get() is not None)
    asked = 0
    while True:
        page = tool.page
        assert isinstance(page, ChoosingPage) and page.shot is not None
        shot = page.shot
        if shot.group is None or shot.state is None:
            break
        left, right = (size(shot.group, index) for index in shot.state.question)
        press(hands, tool, "Left" if left > right else "Right")
        asked += 1
        assert asked < 500
    press(hands, tool, "Return")
    assert isinstance(tool.page, ExportPage)
    export = tool.page
    hands.wait(lambda: "pairs from" in str(export.summary.cget("text")), "no summary")
    hands.wait(lambda: tool.window.focus_get() is export.go)
    press(hands, tool, "Return")
    hands.wait(lambda: "Ready to train" in str(export.result.cget("text")), "it is not finalised", PATIENCE)
    tool.close()
    hands.wait(demo.winfo_viewable, "the demo window does not come back")
    return asked
