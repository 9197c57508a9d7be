"""Small servers that speak the protocols of ComfyUI (as recorded from 0.8.0), SwarmUI and A1111, with faults."""

from __future__ import annotations

import base64
import email
import hashlib
import io
import json
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from PIL import Image

Answer = tuple[int, Any]
SLOW_SECONDS = 0.6
TICK = 0.05
CLOSING = 8
"""Type of a message that ends a WebSocket."""
RECORDED = Path(__file__).parents[3] / "shared" / "data" / "comfyui_api" / "recorded.json"
"""What ComfyUI 0.8.0 answered, message by message."""


def frame(message: str | bytes) -> bytes:
    """A WebSocket message of a server."""
    data, kind = (message.encode(), 1) if isinstance(message, str) else (message, 2)
    length = struct.pack(">B", len(data)) if len(data) < 126 else struct.pack(">BH", 126, len(data))
    return bytes([0x80 | kind]) + length + data


def png(seed: int) -> bytes:
    """An image that tells its seed."""
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (seed % 256, seed // 256 % 256, 0)).save(stream, "PNG")
    return stream.getvalue()


def seed_of(data: bytes) -> int:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        red, green, _ = image.getpixel((0, 0))
    return red + 256 * green


def form_of(data: bytes, kind: str) -> dict[str, Any]:
    """The fields of a form; a file is its name and content."""
    message = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + data)
    found: dict[str, Any] = {}
    for part in message.get_payload():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        found[name] = content.decode() if part.get_filename() is None else (part.get_filename(), content)
    return found


class Server:
    """Answers requests; remembers what it was asked to make.

    Args:
        loras: folder of its adapters.
    """

    KEY: ClassVar[str]
    SETTINGS: ClassVar[dict[str, Any]] = {"checkpoint": "sd15.safetensors"}
    MAKES: ClassVar[str]
    """Part of the path that makes an image."""
    IMAGE_SAMPLER = "euler"

    def __init__(self, loras: Path) -> None:
        self.loras = loras
        self.asked: list[dict[str, Any]] = []
        self.faults: deque[str] = deque()
        """For the next images, in order: "", "500", "cut", "html", "failed", "slow", "lost" or "socket"."""
        self.read_faults: deque[str] = deque()
        """The same for requests that only read."""
        self.refreshed = 0
        self.fault = ""

    def names(self) -> list[str]:
        return sorted(path.name for path in self.loras.glob("*.safetensors"))

    def get(self, path: str, query: dict[str, str]) -> Answer:
        raise NotImplementedError

    def listened(self, client_id: str, connection: socket.socket) -> None:
        """Somebody opened a WebSocket; returns when it is over."""

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(owner: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Silent."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {
                name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()
            }
            if self.headers.get("Upgrade", "").lower() == "websocket":
                self._listen(query)
                return
            fault = owner.read_faults.popleft() if owner.read_faults else ""
            if fault == "slow":
                time.sleep(SLOW_SECONDS)
            self._send(owner.get(unquote(parts.path), query), fault)

        def _listen(self, query: dict[str, str]) -> None:
            """Open a WebSocket (RFC 6455) and hand it to the owner until that lets it go."""
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.wfile.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n"
            )
            owner.listened(query.get("clientId", ""), self.connection)
            self.close_connection = True

        def do_POST(self) -> None:
            data, kind = self.rfile.read(int(self.headers["Content-Length"])), self.headers["Content-Type"]
            body = form_of(data, kind) if kind.startswith("multipart/") else json.loads(data)
            makes = self.path.startswith(owner.MAKES)
            fault = owner.fault = owner.faults.popleft() if makes and owner.faults else ""
            if fault == "slow":
                time.sleep(SLOW_SECONDS)
            if fault == "500":
                self._send((500, {"error": "boom"}), "")
                return
            self._send(owner.post(urlsplit(self.path).path, body), fault)

        def _send(self, answer: Answer, fault: str) -> None:
            status, content = (503, "busy") if fault == "503" else answer
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data) + (100 if fault == "cut" else 0)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = True

    return Handler


class ComfyServer(Server):
    """An image takes a few moments; who listens hears of it, in the messages of the recording."""

    KEY, MAKES = "comfyui", "/prompt"

    def __init__(self, loras: Path) -> None:
        super().__init__(loras)
        self.history: dict[str, Any] = {}
        self.images: dict[str, bytes] = {}
        self.deleted: list[str] = []
        self.uploads: list[tuple[str, bytes]] = []
        """Names below the input folder, and contents."""
        self.interrupted = 0
        self.running_now: list[str] = []
        self.clients: list[str] = []
        self._sockets: dict[str, socket.socket] = {}
        self.recorded = json.loads(RECORDED.read_text(encoding="utf-8"))

    def answer_of(self, path: str) -> Any:
        """The first recorded answer of a path."""
        return next(one["response"] for one in self.recorded if one.get("path") == path)

    @property
    def recorded_messages(self) -> list[dict[str, Any]]:
        return next(one["messages"] for one in self.recorded if "messages" in one)

    def listened(self, client_id: str, connection: socket.socket) -> None:
        self.clients.append(client_id)
        self._sockets[client_id] = connection
        # the connection is the caller's until this returns
        while self._sockets.get(client_id) is connection:
            if not select.select([connection], [], [], TICK / 5)[0]:
                continue
            try:
                said = connection.recv(1000)
                if said and said[0] & 15 == CLOSING:  # whoever closes waits for the answer
                    connection.sendall(bytes((128 | CLOSING, 0)))
            except OSError:
                said = b""
            if not said or said[0] & 15 == CLOSING:
                break
        if self._sockets.get(client_id) is connection:
            del self._sockets[client_id]

    @contextmanager
    def running(self) -> Iterator[str]:
        with super().running() as url:
            try:
                yield url
            finally:
                self._sockets.clear()

    def _tell(self, client_id: str, message: str | bytes) -> None:
        if client_id in self._sockets:
            try:
                self._sockets[client_id].sendall(frame(message))
            except (OSError, KeyError):  # closed meanwhile
                self._sockets.pop(client_id, None)

    def get(self, path: str, query: dict[str, str]) -> Answer:
        if path == "/object_info/CheckpointLoaderSimple":
            required = {"ckpt_name": [["sd15.safetensors"], {"tooltip": "..."}]}
            return 200, {"CheckpointLoaderSimple": {"input": {"required": required}}}
        if path in ("/object_info/KSampler", "/system_stats"):
            return 200, self.answer_of(path)
        if path == "/models/loras":
            return 200, self.names()
        if path == "/queue":
            return 200, {"queue_running": [[0, key, {}] for key in self.running_now], "queue_pending": []}
        if path.startswith("/history/"):
            key = path.rpartition("/")[2]
            return 200, {key: self.history[key]} if key in self.history else {}
        if path == "/view":
            return 200, self.images[query["filename"]]
        return 404, {}

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        if path == "/queue":
            self.deleted += body["delete"]
            return 200, b""
        if path == "/interrupt":
            self.interrupted += 1
            self.running_now.clear()
            return 200, b""
        if path == "/upload/image":
            assert body["type"] == "input" and body["overwrite"] == "false"
            name, content = body["image"]
            self.uploads.append((f"{body['subfolder']}/{name}", content))
            return 200, {"name": name, "subfolder": body["subfolder"], "type": "input"}
        graph = body["prompt"]
        if graph["4"]["inputs"]["ckpt_name"] != "sd15.safetensors":
            return 400, next(
                one["response"] for one in self.recorded if one["note"] == "a model that is not there"
            )
        key, seed = f"id-{len(self.asked)}", graph["3"]["inputs"]["seed"]
        model = graph["3"]["inputs"]["model"][0]
        lora = graph[model]["inputs"] if model != "4" else {}
        self.asked.append({
            "prompt": graph["6"]["inputs"]["text"], "negative": graph["7"]["inputs"]["text"], "seed": seed,
            "width": graph["5"]["inputs"]["width"], "lora": lora.get("lora_name", "").removesuffix(".safetensors"),
            "strength": lora.get("strength_model"),
            "images": [node["inputs"]["image"] for node in graph.values() if node["class_type"] == "LoadImage"],
        })  # fmt: skip
        if self.fault != "lost":
            self.running_now.append(key)
            work = threading.Thread(
                target=self._work, args=(key, seed, body["client_id"], self.fault), daemon=True
            )
            work.start()
        return 200, {"prompt_id": key, "number": 0, "node_errors": {}}

    def _work(self, key: str, seed: int, client_id: str, fault: str) -> None:
        for message in self.recorded_messages:
            if message["type"] == "progress_state":
                continue
            if "prompt_id" in message["data"]:
                message = {**message, "data": {**message["data"], "prompt_id": key}}
            if message["type"] == "execution_success":
                self._finish(key, seed, fault)
            self._tell(client_id, json.dumps(message))
            if message["type"] == "progress" and message["data"]["value"] == 1:
                self._tell(client_id, struct.pack(">II", 1, 2) + png(seed))
                time.sleep(TICK)
                if fault == "socket" and client_id in self._sockets:
                    self._sockets.pop(client_id).shutdown(socket.SHUT_RDWR)
                    time.sleep(4 * TICK)

    def _finish(self, key: str, seed: int, fault: str) -> None:
        self.images[f"{key}.png"] = b"<html>" if fault == "html" else png(seed)
        image = {"filename": f"{key}.png", "subfolder": "", "type": "output"}
        status: dict[str, Any] = {"status_str": "success", "completed": True, "messages": []}
        if fault == "failed":
            messages = [["execution_error", {"node_type": "KSampler", "exception_message": "out of memory"}]]
            status = {"status_str": "error", "completed": False, "messages": messages}
        self.history[key] = {"outputs": {"9": {"images": [image]}}, "status": status}
        if key in self.running_now:
            self.running_now.remove(key)


class SwarmServer(Server):
    KEY, MAKES = "swarmui", "/API/GenerateText2Image"

    def __init__(self, loras: Path) -> None:
        super().__init__(loras)
        self.sessions = 0
        self.images: dict[str, bytes] = {}

    def get(self, path: str, query: dict[str, str]) -> Answer:
        return (200, self.images[path]) if path in self.images else (404, {})

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        if path == "/API/GetNewSession":
            self.sessions += 1
            return 200, {"session_id": f"s{self.sessions}", "version": "0.9.7"}
        if body.get("session_id") != f"s{self.sessions}":
            return 200, {"error_id": "invalid_session_id", "error": "Invalid session ID."}
        if path == "/API/ListModels":
            names = self.names() if body["subtype"] == "LoRA" else ["sd15.safetensors"]
            return 200, {"folders": [], "files": [{"name": name} for name in names]}
        if path == "/API/InterruptAll":
            return 200, {"success": True}
        if path == "/API/TriggerRefresh":
            self.refreshed += 1
            return 200, {"success": True}
        self.asked.append({
            "prompt": body["prompt"], "negative": body["negativeprompt"], "seed": body["seed"], "width": body["width"],
            "lora": body.get("loras", "").removesuffix(".safetensors"),
            "strength": float(body["loraweights"]) if "loraweights" in body else None,
        })  # fmt: skip
        fault = self.fault
        if fault == "failed":
            return 200, {"error": "out of memory"}
        place = f"/View/local/raw/{len(self.asked)}.png"
        self.images[place] = b"<html>" if fault == "html" else png(body["seed"])
        return 200, {"images": [place[1:]]}


class A1111Server(Server):
    KEY, MAKES = "a1111", "/sdapi/v1/txt2img"

    def get(self, path: str, query: dict[str, str]) -> Answer:
        answers = {
            "/sdapi/v1/sd-models": [{"title": "sd15.safetensors", "model_name": "sd15"}],
            "/sdapi/v1/loras": [{"name": name.removesuffix(".safetensors")} for name in self.names()],
            "/sdapi/v1/samplers": [{"name": "euler"}],
        }
        return (200, answers[path]) if path in answers else (404, {})

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        if path == "/sdapi/v1/interrupt":
            return 200, {}
        if path == "/sdapi/v1/refresh-loras":
            self.refreshed += 1
            return 200, None
        prompt, _, tag = body["prompt"].partition(" <lora:")
        name, _, strength = tag.rstrip(">").partition(":")
        self.asked.append({
            "prompt": prompt, "negative": body["negative_prompt"], "seed": body["seed"], "width": body["width"],
            "lora": name, "strength": float(strength) if strength else None,
        })  # fmt: skip
        fault = self.fault
        if fault == "failed":
            return 422, {"error": "OutOfMemoryError", "errors": "out of memory"}
        data = b"<html>" if fault == "html" else png(body["seed"])
        return 200, {"images": [base64.b64encode(data).decode()], "info": "{}"}


SERVERS = (ComfyServer, SwarmServer, A1111Server)
"""One for each generator in another program."""
