"""ComfyUI, with the user's own workflow or a plain one."""

from __future__ import annotations

import copy
import hashlib
import time
import uuid
from collections.abc import Generator as Stream
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from modules.generator.comfy_lora import Graph, add_lora, fill_lora
from modules.generator.ComfySocket import ComfySocket
from modules.generator.Generator import Description, ImageRequest, MadeImage, MakingNews
from modules.generator.Remote import DEFAULT_SIDE, Remote
from modules.util.display import counted
from modules.util.errors import ConfigError, DataError, UserError, refused_as
from modules.util.image_metadata.formats.comfy import is_graph, read_graph
from modules.util.image_metadata.limits import Unusable
from modules.util.owned_files import shown
from modules.util.web.HttpClient import Refused

POLL_SECONDS = 1.0
TRIES = 3
LORA = "the adapter"
SOURCES_FOLDER = "tastemaker"
"""Folder below ComfyUI's input folder for the images that are edited."""
SOURCE_SLOTS = ("source", "source2", "source3")
SLOTS = (
    "prompt", "negative", "seed", "width", "height", "steps", "cfg", "sampler", "checkpoint", "lora", *SOURCE_SLOTS,
)  # fmt: skip
"""Names of places in a workflow that a person can name."""


class ComfyUi(Remote):
    """Queues a graph for each image and fetches what it saved.

    Args:
        settings: those of ``Remote``, plus ``workflow`` (a graph in API format) and ``slots`` (``{"seed":
            "3.seed"}``). A workflow that edits images is given those of each request.
    """

    WHAT = "ComfyUI"
    URL = "http://127.0.0.1:8188"
    SENDS = "prompts, adapters and source images"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        own = settings.get("workflow")
        self._graph: Graph = copy.deepcopy(own) if own else plain_graph(self.checkpoint)
        told = settings.get("slots", {})
        self._slots = find_slots(self._graph, told)
        if "lora" in self._slots:
            fill_lora(copy.deepcopy(self._graph), self._slots["lora"], "", 1.0)
        self._further = further_places(self._graph, self._slots, told)
        self._pictures = find_pictures(self._graph, self._slots)
        self._uploaded: dict[Path, str] = {}
        self._client_id = f"tastemaker-{uuid.uuid4().hex}"
        self._running = ""
        self._socket = ComfySocket(self.client.url, self._client_id, self.client.headers())

    def describe(self) -> Description:
        def choices(node: str, name: str) -> tuple[str, ...]:
            found = self.client.get_json(f"object_info/{quote(node)}")
            try:
                return tuple(map(str, found[node]["input"]["required"][name][0]))
            except (KeyError, TypeError, IndexError) as error:
                raise UserError(f"ComfyUI does not say what {name} of {node} can be") from error

        system, loras = self.client.get_json("system_stats"), self.client.get_json("models/loras")
        with self.understood("a version and a list of adapters"):
            version = str(system.get("system", {}).get("comfyui_version", ""))
            adapters = tuple(map(str, loras))
        models = choices("CheckpointLoaderSimple", "ckpt_name")
        return Description(self.WHAT, version, models, adapters, choices("KSampler", "sampler_name"))

    def refresh_adapters(self) -> None:
        """Do nothing: ComfyUI reads its list from the folder on every request."""

    def refuse_sources(self) -> None:
        if not self._pictures:
            raise DataError(
                "the workflow loads no image that it edits",
                "--workflow",
                "use one that edits an image, or name the input that takes its name with --slot source=NODE.INPUT",
            )

    def check(self, requests: Sequence[ImageRequest]) -> None:
        for count in {len(request.sources) for request in requests} - {0, len(self._pictures)}:
            self.refuse_sources()
            raise DataError(
                f"the workflow edits {counted(len(self._pictures), 'image')} at once, but a prompt has {count}",
                "--workflow",
                "use a workflow that edits the same number of images, or name the input of each with --slot "
                "source=NODE.INPUT, source2 and source3: nodes that load the same file count as one image",
            )
        adapted = next((request for request in requests if request.adapter is not None), None)
        if adapted is not None:
            self.filled(adapted, LORA)
        super().check(requests)

    def generate(self, requests: Sequence[ImageRequest]) -> Stream[MadeImage, None, None]:
        try:
            yield from super().generate(requests)
        finally:
            self._socket.close()

    def make(self, request: ImageRequest, adapter: str) -> bytes:
        graph = self.filled(request, adapter)
        for places, path in zip(self._pictures, request.sources, strict=False):
            name = self._upload(path)
            for node, field in places:
                graph[node]["inputs"][field] = name
        for _ in range(TRIES):
            entry = self._run(graph)
            if entry is not None:
                return self._fetch(entry)
        raise UserError("ComfyUI lost the image several times", hint="look at its window, then try again")

    def filled(self, request: ImageRequest, adapter: str) -> Graph:
        """Fill in the graph of one image."""
        graph = copy.deepcopy(self._graph)
        values = {
            "prompt": request.prompt, "seed": request.seed, "width": request.width,
            # without a wish, a workflow keeps the negative prompt that it has
            "negative": request.negative or None,
            "height": request.height, "steps": request.steps, "cfg": request.cfg, "sampler": request.sampler,
            "checkpoint": self.checkpoint or None,
        }  # fmt: skip
        for name, value in values.items():
            if name in self._slots and value is not None:
                for node, field in (self._slots[name], *self._further.get(name, ())):
                    graph[node]["inputs"][field] = value
        if "lora" in self._slots:
            fill_lora(graph, self._slots["lora"], adapter, request.strength)
        elif adapter:
            add_lora(graph, adapter, request.strength)
        return graph

    def used(self, request: ImageRequest) -> ImageRequest:
        names = ("width", "height", "steps", "cfg", "sampler")
        without: dict[str, Any] = {name: None for name in names if name not in self._slots}
        if "negative" not in self._slots:
            without["negative"] = ""
        return replace(request, **without)

    def _upload(self, path: Path) -> str:
        """Hand a source image over, once, under a name that follows from its content. Returns its name there."""
        if path not in self._uploaded:
            with refused_as(f"the source image {shown(path)} cannot be read", "source", kind=DataError):
                data = path.read_bytes()
            name = f"{hashlib.sha256(data).hexdigest()[:32]}{path.suffix.lower()}"
            fields = {"type": "input", "subfolder": SOURCES_FOLDER, "overwrite": "false"}
            answer = self.client.upload("upload/image", name, data, fields)
            try:
                folder, given = str(answer["subfolder"]), str(answer["name"])
            except (KeyError, TypeError) as error:
                raise UserError("ComfyUI does not say where it keeps the source image") from error
            self._uploaded[path] = f"{folder}/{given}" if folder else given
        return self._uploaded[path]

    def _run(self, graph: Graph) -> Mapping[str, Any] | None:
        """Queue the graph and wait. Returns its history entry; ``None`` if the server has forgotten it (after
        a restart).
        """
        self._socket.open()
        try:
            answer = self.client.post("prompt", {"prompt": graph, "client_id": self._client_id})
        except Refused as error:
            with self.understood("a refusal"):
                faults = faults_of(error.said)
            raise UserError(f"ComfyUI refused the workflow: {faults}", "workflow") from error
        with self.understood("an answer to a workflow"):
            self._running = str(answer["prompt_id"])
        while True:
            waits = self._is_queued()
            history = self.client.get_json(f"history/{quote(self._running, safe='')}")
            with self.understood("a history"):
                entry = history.get(self._running)
                ended = entry is not None and entry.get("status", {}).get("status_str") in ("success", "error")
            if ended:
                self._running = ""
                return dict(entry)
            # the queue before the history: what has left the one is in the other, unless the server forgot
            # it
            if entry is None and not waits:
                return None
            self._listen()

    def _listen(self) -> None:
        """Forward reports until the image is done, but only briefly; then the history is read again."""
        end = time.monotonic() + POLL_SECONDS
        while (left := end - time.monotonic()) > 0:
            news = self._socket.wait(left)
            if news is None or news.prompt_id not in ("", self._running):
                continue
            if news.over:
                return
            self.on_news(MakingNews(self._number, news.step, news.steps, news.preview))

    def _is_queued(self) -> bool:
        queue = self.client.get_json("queue")
        with self.understood("a queue"):
            waiting = [*queue.get("queue_running", []), *queue.get("queue_pending", [])]
            return any(entry[1] == self._running for entry in waiting)

    def _fetch(self, entry: Mapping[str, Any]) -> bytes:
        with self.understood("a history"):
            fault = message_of(entry) if entry["status"]["status_str"] == "error" else ""
            # of several images the one that most of the workflow leads to, not what an earlier pass has made
            nodes = sorted(entry.get("outputs", {}).items(), key=lambda one: -self._depth(one[0]))
            images = [image for _, node in nodes for image in node.get("images", [])]
            saved = [image for image in images if image.get("type") == "output"] or images
            places = [{name: str(one.get(name, "")) for name in ("filename", "subfolder", "type")} for one in saved]
        if fault:
            raise UserError(f"ComfyUI could not make an image: {fault}", hint="look at its window")
        if not places:
            raise UserError("the workflow saved no image", "workflow", "it needs a node that saves images")
        return self.client.get("view", places[0])

    def _depth(self, node: str) -> int:
        """Number of nodes that lead to a node; 0 for one that the workflow does not list."""
        return len(_above(self._graph, node)) if node in self._graph else 0

    def cancel(self) -> None:
        if self._running:
            self.client.post("queue", {"delete": [self._running]})
            if self._is_queued():
                self.client.post("interrupt", {})


def message_of(entry: Mapping[str, Any]) -> str:
    """Return the reason why a history entry has no image."""
    for kind, data in reversed(entry["status"].get("messages", [])):
        if kind == "execution_error":
            return f"{data.get('node_type', 'a node')}: {data.get('exception_message', 'unknown')}".strip()
        if kind == "execution_interrupted":
            return "it was interrupted"
    return "it does not say why"


def faults_of(said: Any) -> str:
    """The faults named in a refusal: the general one, and those of each node."""
    if not isinstance(said, Mapping):
        return str(said)
    error = said.get("error", {})
    parts = [str(error)]
    if isinstance(error, Mapping):
        told = dict.fromkeys(str(error[name]) for name in ("message", "details") if error.get(name))
        parts = [": ".join(told) or "it does not say why"]
    for node, found in (said.get("node_errors") or {}).items():
        details = "; ".join(str(one.get("details") or one.get("message")) for one in found.get("errors", []))
        parts.append(f"node {node} ({found.get('class_type', '?')}): {details}")
    return "; ".join(parts)


def plain_graph(checkpoint: str) -> Graph:
    """Text to image with a checkpoint."""
    if not checkpoint:
        raise ConfigError(
            "ComfyUI needs a model or a workflow", "--checkpoint", "name one of its checkpoints"
        )
    sampler = {
        "seed": 0,
        "steps": 20,
        "cfg": 7.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
    }
    links = {"model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]}
    size = {"width": DEFAULT_SIDE, "height": DEFAULT_SIDE, "batch_size": 1}
    return {
        "3": {"class_type": "KSampler", "inputs": {**sampler, **links}},
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": checkpoint}},
        "5": {"class_type": "EmptyLatentImage", "inputs": size},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}},
        "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
        "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "tastemaker", "images": ["8", 0]}},
    }


def find_slots(graph: Graph, told: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Find the places of prompt, seed and the rest in a graph: (node, input) by name. Of several samplers, those of
    the one that makes the image count, not those of the ones that refine it.

    Args:
        told: ``{"seed": "3.seed"}``; these take precedence.

    Raises:
        ConfigError: the graph is not in API format, or has no place for prompt or seed.
    """
    if not isinstance(graph, Mapping) or not all(
        isinstance(node, Mapping) and isinstance(node.get("inputs"), Mapping) for node in graph.values()
    ):
        raise ConfigError(
            "the workflow is not in API format", "--workflow", "export it with Export (API) in ComfyUI"
        )
    found: dict[str, tuple[str, str]] = {}
    for key, field in _samplers(graph):
        inputs = graph[key]["inputs"]
        found |= {"seed": (key, field)} | {
            name: (key, field_of)
            for name, field_of in (("steps", "steps"), ("cfg", "cfg"), ("sampler", "sampler_name"))
            if field_of in inputs
        }
        found |= _texts_of(graph, key)
    above = _above(graph, found["seed"][0]) if "seed" in found else set()
    # those that lead to the sampler last, so that they count
    for key in sorted(graph, key=lambda one: one in above):
        inputs = graph[key]["inputs"]
        if {"width", "height", "batch_size"} <= inputs.keys():
            found |= {"width": (key, "width"), "height": (key, "height")}
        if "ckpt_name" in inputs:
            found["checkpoint"] = (key, "ckpt_name")
    for name, place in told.items():
        node_key, _, field = str(place).partition(".")
        if field not in graph.get(node_key, {}).get("inputs", {}):
            raise ConfigError(
                f"the workflow has no input {place!r}", f"--slot {name}", "for example seed=3.seed"
            )
        found[name] = (node_key, field)
    if "negative" not in told and found.get("negative") == found.get("prompt"):
        found.pop("negative", None)
    for name in ("prompt", "seed"):
        if name not in found:
            raise ConfigError(
                f"no place for the {name} is found in the workflow", "--slot", f"add --slot {name}=NODE.INPUT"
            )
    return found


def check_places(graph: Graph, told: Mapping[str, str], names: Sequence[str]) -> None:
    """Raise ``ConfigError`` if a graph has no place for one of these settings, which would then change nothing.

    Args:
        told: as in ``find_slots``.
    """
    found = find_slots(graph, told)
    for name in names:
        if name in SLOTS and name not in found:
            raise ConfigError(
                "has no effect: no place for it is found in the workflow",
                f"--{name}",
                f"leave it out, or name the place with --slot {name}=NODE.INPUT",
            )


def further_places(
    graph: Graph, slots: Mapping[str, tuple[str, str]], told: Mapping[str, str]
) -> dict[str, list[tuple[str, str]]]:
    """Places that are filled like those of ``slots``, by name: the seed of every sampler, and the texts of further
    samplers where they are those of the first one.

    Args:
        told: names whose place a person named. They have no further places.
    """
    made: dict[str, list[tuple[str, str]]] = {}
    for key, field in _samplers(graph):
        for name, place in {"seed": (key, field), **_texts_of(graph, key)}.items():
            own = None if name in told else slots.get(name)
            if own is None or place in (own, *made.get(name, ())):
                continue
            if name == "seed" or _value(graph, place) == _value(graph, own):
                made.setdefault(name, []).append(place)
    return made


def _value(graph: Graph, place: tuple[str, str]) -> Any:
    node, field = place
    return graph[node]["inputs"][field]


def _samplers(graph: Graph) -> list[tuple[str, str]]:
    """Node and seed input of every sampler; one that refines the image of another comes before that one."""
    found = {
        key: field
        for key, node in graph.items()
        for field in ("seed", "noise_seed")
        if isinstance(node["inputs"].get(field), int) and "positive" in node["inputs"]
    }
    return sorted(found.items(), key=lambda one: -len(_above(graph, one[0]) & found.keys()))


def _above(graph: Graph, key: str) -> set[str]:
    """The nodes that a node depends on."""
    waiting, seen = [key], set[str]()
    while waiting:
        for value in graph[waiting.pop()]["inputs"].values():
            above = str(value[0]) if isinstance(value, list) and value else ""
            if above in graph and above not in seen:
                seen.add(above)
                waiting.append(above)
    return seen


def _texts_of(graph: Graph, key: str) -> dict[str, tuple[str, str]]:
    """The places of a sampler's texts. A negative side that is made from the prompt has none of its own."""
    inputs = graph[key]["inputs"]
    prompt, negative = (_text_above(graph, inputs.get(side), side) for side in ("positive", "negative"))
    made = {} if prompt is None else {"prompt": prompt}
    return made if negative is None or negative == prompt else {**made, "negative": negative}


def find_pictures(
    graph: Graph, slots: Mapping[str, tuple[str, str]]
) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Find the places for the names of the images that a graph edits: for each image, in order, the (node,
    input) pairs.

    Args:
        slots: ``source``, ``source2`` and ``source3`` take precedence. Nodes that load the same file show one image.

    Raises:
        ConfigError: a slot of an image does not hold the name of a file, or one before it is not given.
    """
    told = [name for name in SOURCE_SLOTS if name in slots]
    for name, expected in zip(told, SOURCE_SLOTS, strict=False):
        node, field = slots[name]
        if name != expected:
            raise ConfigError(
                f"{name} is given without {expected}", "--slot", f"add --slot {expected}=NODE.INPUT"
            )
        if not isinstance(graph[node]["inputs"][field], str):
            raise ConfigError(
                f"{node}.{field} does not hold the name of an image file", f"--slot {name}",
                "name the input of a node that loads an image, for example source=30.image",
            )  # fmt: skip
    if told:
        return tuple((slots[name],) for name in told)
    try:
        found = read_graph(copy.deepcopy(graph)) if is_graph(graph) else None
    except Unusable:
        found = None
    return tuple(
        tuple(
            (key, "image")
            for key, node in graph.items()
            if node["inputs"].get("image") == name and "load" in str(node.get("class_type", "")).lower()
        )
        for name in (found.sources if found is not None else ())
    )


def _text_above(graph: Graph, link: object, side: str) -> tuple[str, str] | None:
    """Follow a link back to an input that holds text; through nodes with inputs for both sides, on its own side."""
    waiting, seen = [link], set()
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, list) or not one or str(one[0]) in seen or str(one[0]) not in graph:
            continue
        key = str(one[0])
        seen.add(key)
        inputs = graph[key]["inputs"]
        for field in ("text", "prompt", "value", "string"):
            if isinstance(inputs.get(field), str):
                return key, field
        waiting += [inputs[side]] if isinstance(inputs.get(side), list) else list(inputs.values())
    return None
