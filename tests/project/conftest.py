"""A project with a generator that draws without a model, and a trainer that trains nothing."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.generator import registry
from modules.generator.Generator import Description, Generator, MadeImage
from modules.project import training
from modules.runner import launcher
from modules.util.errors import UserError
from modules.util.rng import digest64
from tests.runner.support import fake_command

PROMPTS = [f"a {colour} fox {number}" for colour in ("red", "blue") for number in range(5)]


class Drawer(Generator):
    """Noise whose brightness follows from prompt, seed and adapter; remembers what it made.

    ``stops_after`` images it is interrupted, as by Ctrl+C; ``fails_after`` it cannot continue.
    """

    def __init__(self) -> None:
        self.made: list[tuple[str, int, str]] = []
        self.checked = 0
        self.stops_after = self.fails_after = 10**6

    def describe(self):
        return Description("a drawer", "1", ("pencil",))

    def cancel(self):
        """It draws at once."""

    def refresh_adapters(self):
        """It has none."""

    def check(self, requests):
        self.checked += 1

    def generate(self, requests):
        for number, request in enumerate(requests):
            if number == self.stops_after:
                raise KeyboardInterrupt
            if number == self.fails_after:
                raise UserError("the drawer broke its pen", hint="buy another one")
            adapter = request.adapter.read_text(errors="replace") if request.adapter else "base"
            self.made.append((request.prompt, request.seed, adapter))
            shade = digest64(request.prompt, request.seed) % 200 + (40 if adapter != "base" else 0)
            info = PngInfo()
            info.add_text("parameters", f"{request.prompt}\nSteps: 1, Seed: {request.seed}, Size: 8x8")
            stream = io.BytesIO()
            Image.new("RGB", (8, 8), (shade, 0, request.seed % 256)).save(stream, "PNG", pnginfo=info)
            yield MadeImage(number, stream.getvalue())


@pytest.fixture
def drawer(monkeypatch: pytest.MonkeyPatch) -> Drawer:
    made = Drawer()
    monkeypatch.setitem(registry.GENERATORS, "own", lambda settings: made)
    return made


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Makes a folder once for all tests of a file that ask for its name. Each of them finds it as it was then, at the
    same place: the answers in a project name images by their whole paths.
    """
    places: dict[str, Path] = {}

    def made(name: str, make: Callable[[Path], None]) -> Path:
        place = places[name] = places.get(name) or tmp_path_factory.mktemp("made")
        work, kept = place / "work", place / "kept"
        shutil.rmtree(work, ignore_errors=True)
        if kept.is_dir():
            shutil.copytree(kept, work, symlinks=True)
        else:
            work.mkdir()
            make(work)
            shutil.copytree(work, kept, symlinks=True)
        return work

    return made


@pytest.fixture
def trains(monkeypatch: pytest.MonkeyPatch):
    """Lets a fake trainer behave in a certain way; one that finishes leaves an adapter."""

    def behave(behaviour: str) -> None:
        def launch(run, config):
            adapter = Path(config["output_model_destination"])
            if behaviour == "finish":
                adapter.write_text(f"adapter of {adapter.parent.name}")
            return launcher.launch(run, config, fake_command(run, behaviour))

        monkeypatch.setattr(training, "launch", launch)
        monkeypatch.setattr(training, "POLL_SECONDS", 0.02)

    return behave
