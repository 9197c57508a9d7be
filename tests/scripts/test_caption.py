"""Captions by models, taggers and servers: what is written, what stays, and what leaves the computer."""

from __future__ import annotations

import base64
import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image, PngImagePlugin

from modules.captioner.Captioner import without_thoughts
from modules.captioner.TransformersCaptioner import TransformersCaptioner
from modules.tools.dataset.captioning import Mode, Wanted, plan_captions, write_captions
from modules.tools.dataset.files import find_images
from modules.util.errors import UserError
from modules.util.web import HttpClient as http
from scripts.caption import main
from tests.captioner.models import chatting_model, classifier, onnx_tagger, plain_model, probabilities
from tests.tools.pictures import contents, picture

RED, BLUE = (255, 0, 0), (0, 0, 255)
ROOT = Path(__file__).resolve().parents[2]


def call(*words: object) -> int:
    return main([str(word) for word in words])


def texts(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.txt"))}


def texts_of_files(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in folder.glob("*.txt") if path.is_file()}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(4):
        picture(number).save(folder / f"{number}.png")
    return folder


# thoughts are cut from what a plain model says
@pytest.fixture(
    params=[chatting_model, pytest.param(plain_model, marks=pytest.mark.slow)], ids=["chat", "plain"]
)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return request.param(tmp_path / "model")


def test_a_model_says_the_same_twice_and_in_batches(model: Path, images: Path) -> None:
    ask = ["--prompt", "a fox"] if "LLAVA" in (model / "config.json").read_text().upper() else []
    words = ["describe", "--model", model, "--length", 6, "--mode", "REPLACE", *ask]
    assert call(*words, images) == 0
    first = texts(images)
    assert list(first) == ["0", "1", "2", "3"] and all(first.values())
    assert len(set(first.values())) > 1, "the image decides"
    assert not any("USER" in text or "<image>" in text for text in first.values()), "the answer alone"
    assert call(*words, "--batch", 3, images) == 0
    assert texts(images) == first


def test_thoughts_of_a_local_model_are_not_part_of_a_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner = TransformersCaptioner(str(plain_model(tmp_path / "model")), "", "float32", torch.device("cpu"), 2)
    answers = ["Hm.\n</think>\na cat", "<think>Is it"]
    monkeypatch.setattr(type(captioner._processor), "batch_decode", lambda self, *_, **__: answers)
    cat, none = captioner.describe([Image.new("RGB", (32, 32))] * 2)
    assert cat == "a cat" and isinstance(none, UserError)


def test_thoughts_that_a_chat_template_begins_are_no_caption(tmp_path: Path, images: Path, capsys: Any) -> None:
    model = chatting_model(tmp_path / "model")
    tokenizer, template = model / "tokenizer.json", model / "chat_template.jinja"
    tokenizer.write_text(tokenizer.read_text().replace('"cat"', '"<think>"'))
    template.write_text(template.read_text() + " <think>")
    assert call("describe", "--model", model, "--prompt", "a fox", "--length", 6, images) == 2
    assert "only the model's thoughts" in capsys.readouterr().err and texts(images) == {}


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_an_answer_that_cannot_be_used_does_not_stop_the_others(images: Path, batch: int) -> None:
    answers = iter(["<think>Hm.", "a cat", "a fox", "<think>Hm."])

    def describe(batch: Sequence[Image.Image]) -> list[str | UserError]:
        return [without_thoughts(next(answers)) for _ in batch]

    plan = plan_captions(images, find_images(images, False), Mode.BLANK)
    done = write_captions(images, plan, Wanted(batch=batch), describe, lambda *_: None)
    assert texts(images) == {"1": "a cat", "2": "a fox"}
    assert list(done.left) == ["0.png", "3.png"] and "thoughts" in done.left["0.png"]


def test_what_becomes_of_captions_that_exist(tmp_path: Path, images: Path, capsys: Any) -> None:
    tagger = onnx_tagger(tmp_path / "tagger")
    for number, colour in enumerate((RED, BLUE, BLUE, BLUE)):
        Image.new("RGB", (8, 8), colour).save(images / f"{number}.png")
    (images / "0.txt").write_text("mine")
    (images / "1.caption").write_text(" \n")
    before = contents(images)
    assert call("tag", "--model", tagger, "--dry-run", images) == 0
    assert "3 images of 4 would get a caption" in capsys.readouterr().out and contents(images) == before
    assert call("tag", "--model", tagger, "--prefix", "photo,", "--suffix", ", outside", images) == 0
    blue = "photo, some hero, ^_^, long hair, outside"
    assert texts(images) == {"0": "mine", "2": blue, "3": blue}
    assert (images / "1.caption").read_text() == blue
    assert call("tag", "--model", tagger, "--mode", "APPEND", images) == 0
    assert texts(images)["0"] == "mine, red background, 1girl"
    assert (
        call("tag", "--model", tagger, "--mode", "REPLACE", "--underscores", "--drop", "1girl", images) == 0
    )
    assert texts(images)["0"] == "red_background"
    assert texts(images)["2"] == "some_hero, ^_^, long_hair"
    for _ in range(3):
        assert call("undo", images) == 0
    assert contents(images) == before


@pytest.mark.parametrize(("general", "character"), [(0.35, 0.85), (0.1, 0.1), (0.9, 0.99)])
def test_tags_are_those_above_their_thresholds(tmp_path: Path, general: float, character: float) -> None:
    tagger = onnx_tagger(tmp_path / "tagger")
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (8, 4), (51, 102, 204)).save(folder / "a.png")
    assert call("tag", "--model", tagger, "--threshold", general, "--character", character, folder) == 0
    # on a white square, as the taggers were trained
    judged = probabilities([(one / 255 + 1) / 2 for one in (51, 102, 204)])
    order = [5, *sorted((1, 2, 3, 4), key=lambda i: -judged[i])]
    names = {1: "1girl", 2: "long hair", 3: "red background", 4: "^_^", 5: "some hero"}
    least = {i: character if i == 5 else general for i in order}
    expected = ", ".join(names[i] for i in order if judged[i] >= least[i])
    assert texts(folder) == ({"a": expected} if expected else {})


def test_a_classifier_of_transformers_is_a_tagger_too(tmp_path: Path, images: Path) -> None:
    tagger = classifier(tmp_path / "tagger")
    assert call("tag", "--model", tagger, "--threshold", 0, "--character", 0, images) == 0
    for text in texts(images).values():
        assert set(text.split(", ")) == {"1girl", "long hair", "red background", "^_^", "some hero"}
    (tagger / "selected_tags.csv").write_text("name,category\nfox,0\n")
    assert call("tag", "--model", tagger, "--mode", "REPLACE", images) == 2


def test_a_tagger_that_cannot_use_the_card_says_so(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The ordinary onnxruntime runs on the CPU alone, whatever card there is."""
    tagger = onnx_tagger(tmp_path / "tagger")
    monkeypatch.setattr("modules.trainer.distributed.choose_device", lambda asked: torch.device("cuda"))
    assert call("tag", "--model", tagger, "--device", "cuda", images) == 2
    assert "onnxruntime-gpu" in capsys.readouterr().err and not texts(images)
    assert call("tag", "--model", tagger, "--device", "cpu,cpu", images) == 2
    assert "--device: 'cpu,cpu' lists several" in capsys.readouterr().err and not texts(images)
    assert call("tag", "--model", tagger, images) == 0
    assert "runs on the CPU" in capsys.readouterr().out and texts(images)


def test_a_tagger_without_its_package_or_its_parts_says_what_to_do(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tagger = onnx_tagger(tmp_path / "tagger")
    before = contents(images)
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "onnxruntime", None)
        assert call("tag", "--model", tagger, images) == 2
    assert "pip install -r requirements-tagger.txt" in capsys.readouterr().err
    (tagger / "model.onnx").write_bytes(b"not a model")
    assert call("tag", "--model", tagger, images) == 2
    assert "is not a tagger" in capsys.readouterr().err
    (tagger / "model.onnx").unlink()
    assert call("tag", "--model", tagger, images) == 2
    assert "neither model.onnx nor config.json" in capsys.readouterr().err
    (tagger / "selected_tags.csv").unlink()
    assert call("tag", "--model", tagger, images) == 2
    assert call("describe", "--model", tmp_path / "none", images) == 2
    assert "captioning model" in capsys.readouterr().err
    assert call("tag", "--model", tagger, "--threshold", 2, images) == 2
    assert contents(images) == before


def test_images_that_cannot_be_read_or_share_a_caption(tmp_path: Path, images: Path, capsys: Any) -> None:
    tagger = onnx_tagger(tmp_path / "tagger")
    (images / "1.png").write_bytes(b"no image")
    Image.new("RGBA", (8, 8), (0, 0, 255, 255)).save(images / "2.png")
    assert call("tag", "--model", tagger, "--threshold", 0.1, images) == 0
    assert "1.png: left as it is: unreadable" in capsys.readouterr().out
    assert list(texts(images)) == ["0", "2", "3"]
    picture(9).save(images / "0.jpg")
    assert call("tag", "--model", tagger, images) == 2
    assert "0.txt (0.jpg, 0.png)" in capsys.readouterr().err


# --- a server ---


class Chat:
    """A server with the chat interface, which fails as it is told."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.faults: dict[int, list[int]] = {}
        self.wrong: Any = None
        self.silent = False
        self.before_answer: Any = None
        self.reached = threading.Event()
        self._silence = threading.Event()
        self._lock = threading.Lock()
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                chat.reached.set()
                if chat.silent:
                    chat._silence.wait(60)
                with chat._lock:
                    status, answer = chat.answer(self.path, body, self.headers.get("Authorization"))
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, path: str, body: dict[str, Any], key: str | None) -> tuple[int, Any]:
        assert path == "/v1/chat/completions"
        self.keys.append(key)
        if self.before_answer is not None:
            self.before_answer()
            self.before_answer = None
        content = body["messages"][0]["content"]
        data = base64.b64decode(content[1]["image_url"]["url"].removeprefix("data:image/png;base64,"))
        image = Image.open(io.BytesIO(data))
        red = image.getpixel((0, 0))[0]
        if self.faults.get(red):
            return self.faults[red].pop(), {"error": "busy"}
        self.asked.append({"red": red, "size": image.size, "info": image.info, "body": body, "bytes": data})
        return 200, self.wrong or {"choices": [{"message": {"content": f" image\n {red} "}}]}


@pytest.fixture
def chat() -> Iterator[Chat]:
    server = Chat()
    yield server
    server._silence.set()
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def reds(tmp_path: Path) -> Path:
    folder = tmp_path / "reds"
    folder.mkdir()
    for number in range(6):
        secret = PngImagePlugin.PngInfo()
        secret.add_text("parameters", "a secret prompt")
        Image.new("RGB", (2000, 10), (number, 0, 0)).save(folder / f"{number}.png", pnginfo=secret)
    return folder


def test_every_image_gets_its_own_answer_though_the_server_fails_now_and_then(
    chat: Chat, reds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "generators.json").write_text(json.dumps({chat.url: {"token": "sk-secret"}}))
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(settings))
    monkeypatch.setattr(http, "settings_folder", lambda: settings)
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.01)
    chat.faults = {1: [500], 4: [503, 500]}
    assert (
        call("ask", "--url", chat.url, "--model", "m", "--prompt", "What is it?", "--parallel", 3, reds) == 0
    )
    assert texts(reds) == {str(number): f"image {number}" for number in range(6)}
    assert len(chat.asked) == 6 and set(chat.keys) == {"Bearer sk-secret"}
    said = capfd.readouterr()
    assert "sk-secret" not in said.out + said.err
    for one in chat.asked:
        assert one["size"] == (1024, 5) and one["info"] == {} and b"secret" not in one["bytes"]
        body = one["body"]
        assert (body["model"], body["temperature"], body["messages"][0]["content"][0]["text"]) == (
            "m", 0, "What is it?",
        )  # fmt: skip
        assert ".png" not in json.dumps({**body, "messages": body["messages"][0]["content"][0]})


def test_an_image_that_fails_does_not_stop_the_others(
    chat: Chat, reds: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.01)
    chat.faults = {0: [429], 2: [400], 4: [500] * 3}
    words = ["ask", "--url", chat.url, "--model", "m", "--parallel", 2, reds]
    assert call(*words) == 0
    said = capsys.readouterr().out
    assert "2.png: left as it is: the caption server refused (status 400)" in said
    assert "4.png: left as it is: the caption server failed with status 500" in said
    assert texts(reds) == {str(number): f"image {number}" for number in (0, 1, 3, 5)}
    asked = len(chat.asked)
    chat.faults = {2: [500] * 3, 4: [500] * 3}
    assert call(*words) == 2, "where a whole batch fails nothing more is asked"
    assert len(texts(reds)) == 4
    assert call(*words) == 0, "the same command does the rest"
    assert {one["red"] for one in chat.asked[asked:]} == {2, 4} and len(texts(reds)) == 6


def test_a_silent_server_does_not_hold_the_program(chat: Chat, reds: Path) -> None:
    chat.silent = True
    command = [
        sys.executable, str(ROOT / "scripts" / "caption.py"), "ask", "--url", chat.url, "--model", "m", str(reds),
    ]  # fmt: skip
    program = subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
    )
    assert chat.reached.wait(60)
    program.send_signal(signal.SIGINT)
    assert program.wait(20) == 130
    assert texts(reds) == {}


def test_a_caption_that_somebody_writes_meanwhile_stays(chat: Chat, reds: Path) -> None:
    (reds / "1.txt").write_text("")
    (reds / "3.txt").mkdir()

    def write_meanwhile() -> None:
        (reds / "1.txt").write_text("typed by me")
        (reds / "2.txt").write_text("me too")

    chat.before_answer = write_meanwhile
    assert call("ask", "--url", chat.url, "--model", "m", "--parallel", 6, reds) == 0
    assert {name: text for name, text in texts_of_files(reds).items() if name in "1245"} == {
        "1": "typed by me", "2": "me too", "4": "image 4", "5": "image 5",
    }  # fmt: skip


def test_appending_twice_and_captions_that_are_not_utf8(tmp_path: Path, images: Path, capsys: Any) -> None:
    tagger = onnx_tagger(tmp_path / "tagger")
    for number in range(4):
        Image.new("RGB", (8, 8), RED).save(images / f"{number}.png")
    (images / "0.txt").write_bytes(b"caf\xe9")
    (images / "1.txt").write_text("mine")
    Image.new("RGB", (8, 8)).save(images / "2_source.png")
    Image.new("RGB", (8, 8)).save(images / "2_source.2.png")
    for _ in range(2):
        assert call("tag", "--model", tagger, "--mode", "APPEND", images) == 0
    assert (images / "0.txt").read_bytes() == b"caf\xe9"
    assert "0.png: left as it is: 0.txt is not UTF-8" in capsys.readouterr().out
    assert (images / "1.txt").read_text() == "mine, red background, 1girl"
    assert not (images / "2_source.txt").exists() and not (images / "2_source.2.txt").exists()


def test_a_text_is_appended_to_captions_that_end_with_only_its_letters(tmp_path: Path, images: Path) -> None:
    tagger = onnx_tagger(tmp_path / "tagger")
    before = ["a hotred background, 1girl", "dark red background, 1girl", "It is here. red background, 1girl"]
    for number, text in enumerate(before):
        Image.new("RGB", (8, 8), RED).save(images / f"{number}.png")
        (images / f"{number}.txt").write_text(text)
    assert call("tag", "--model", tagger, "--mode", "APPEND", images) == 0
    made = texts(images)
    longer = [f"{text}, red background, 1girl" for text in before[:2]]
    assert [made[name] for name in "012"] == longer + before[2:]


def test_a_text_is_appended_to_every_alternative_of_a_caption(tmp_path: Path, images: Path) -> None:
    """Training takes one of the lines."""
    tagger, added = onnx_tagger(tmp_path / "tagger"), "red background, 1girl"
    before = {"0": "a fox\r\n\r\n a cat ", "1": f"a fox\na cat, {added}", "2": f"{added}\na cat, {added}"}
    for name, text in before.items():
        Image.new("RGB", (8, 8), RED).save(images / f"{name}.png")
        (images / f"{name}.txt").write_bytes(text.encode())
    for _ in range(2):
        assert call("tag", "--model", tagger, "--mode", "APPEND", images) == 0
        made = texts(images)
        assert made["0"] == f"a fox, {added}\n\n a cat, {added}"
        assert made["1"] == f"a fox, {added}\na cat, {added}" and made["2"] == before["2"]
        assert len(made["0"].splitlines()) == 3


def test_a_caption_that_is_only_a_byte_order_mark_is_empty(tmp_path: Path, images: Path) -> None:
    tagger = onnx_tagger(tmp_path / "tagger")
    for number in range(4):
        Image.new("RGB", (8, 8), RED).save(images / f"{number}.png")
        (images / f"{number}.txt").write_bytes("\ufeff".encode())
    assert call("tag", "--model", tagger, images) == 0
    assert texts(images) == dict.fromkeys("0123", "red background, 1girl")


@pytest.mark.parametrize("moment", ["modeling_utils.PreTrainedModel.to", "generation.GenerationMixin.generate"])
def test_a_card_that_is_too_small_is_what_is_told(
    moment: str, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nmore")

    monkeypatch.setattr(f"transformers.{moment}", full)
    model = plain_model(tmp_path / "model")
    assert call("describe", "--model", model, "--device", "cpu", images) == 2
    said = capsys.readouterr().err
    assert "error: the graphics card has too little memory: CUDA out of memory" in said
    assert "Traceback" not in said and "cannot describe" not in said and "more" not in said


@pytest.mark.parametrize("size", [(4, 3000), (3000, 4)])
def test_long_and_deep_images_are_seen_as_they_are(tmp_path: Path, size: tuple[int, int]) -> None:
    tagger = onnx_tagger(tmp_path / "tagger")
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", size, BLUE).save(folder / "long.png")
    grey = numpy.full((8, 8), 65535 // 5, numpy.uint16)
    Image.fromarray(grey).save(folder / "deep.png")
    assert call("tag", "--model", tagger, "--threshold", 0.01, "--character", 0, folder) == 0
    first = probabilities([0.2] * 3)
    expected = sorted((1, 2, 3, 4), key=lambda i: -first[i])
    names = {1: "1girl", 2: "long hair", 3: "red background", 4: "^_^"}
    said = texts(folder)["deep"].split(", ")
    assert said == ["some hero", *(names[i] for i in expected if first[i] >= 0.01)]
    assert texts(folder)["long"]


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path, images: Path, monkeypatch: Any) -> None:
    folder = plain_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForImageTextToText": "evil.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Config: ...\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert call("describe", "--model", folder, images) == 2
    assert not (tmp_path / "ran").exists()


def test_a_login_that_is_none_is_told(
    chat: Chat, reds: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(http, "settings_folder", lambda: tmp_path)
    for login in ("tok", ["user"], {"cookies": None}, {"token": "a\u201db"}):
        (tmp_path / "generators.json").write_text(json.dumps({chat.url: login}))
        assert call("ask", "--url", chat.url, "--model", "m", reds) == 2
        assert "is not a login" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [{"choices": []}, {"choices": [{"message": {"content": 3}}]}, ["x"]])
def test_an_answer_without_a_text_is_an_error(chat: Chat, reds: Path, wrong: Any, capsys: Any) -> None:
    chat.wrong = wrong
    assert call("ask", "--url", chat.url, "--model", "m", reds) == 2
    assert "without a text" in capsys.readouterr().err and texts(reds) == {}


@pytest.mark.parametrize("said", ["<think>Hm.\n</think>\na cat", "Is it a dog?\nNo.\n</think>\n\na cat", "a cat"])
def test_thoughts_of_a_model_are_not_part_of_a_caption(chat: Chat, reds: Path, said: str) -> None:
    chat.wrong = {"choices": [{"message": {"content": said}}]}
    assert call("ask", "--url", chat.url, "--model", "m", reds) == 0
    assert set(texts(reds).values()) == {"a cat"}


def test_an_answer_that_is_nothing_but_thoughts_is_an_error(chat: Chat, reds: Path, capsys: Any) -> None:
    chat.wrong = {"choices": [{"message": {"content": "<think>Is it a cat?"}}]}
    assert call("ask", "--url", chat.url, "--model", "m", reds) == 2
    assert "thoughts" in capsys.readouterr().err and texts(reds) == {}


def test_images_do_not_leave_the_network_unasked(
    reds: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(http.socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("93.184.216.34", 80))])
    assert call("ask", "--url", "http://example.com/v1", "--model", "m", reds) == 2
    assert "images would be sent there; --remote allows it" in capsys.readouterr().err
    assert call("ask", "--url", "ftp://x", "--model", "m", reds) == 2
    assert call("ask", "--url", "http://127.0.0.1:1/v1", "--model", "m", "--parallel", 0, reds) == 2


def test_colours_of_the_tagger_are_not_swapped() -> None:
    assert numpy.argmax(probabilities([1, 0, 0])) == 3
