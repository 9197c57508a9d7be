"""ComfyUI: the prompt of an image by walking its graph from the sampler to the texts it was given.

Nodes are told by their inputs rather than by their names, because most come from somebody's extension. The walk
is bounded in depth and steps, so that cyclic and enormous graphs end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from modules.util.image_metadata.formats.comfy_values import Budget, Graph, is_link, node_inputs, node_type
from modules.util.image_metadata.formats.found import COMFYUI, Found, as_seed
from modules.util.image_metadata.formats.StringWalk import StringWalk
from modules.util.image_metadata.limits import Reason, Unusable

_MAX_NODES = 20_000
_MAX_DEPTH = 120
_LATENT_INPUTS = ("latent_image", "samples", "latent", "latents", "optional_latent", "init_latent")
_PIPES = (
    "text_embeds",
    "hyvid_embeds",
    "basic_pipe",
    "pipe",
    "detailer_pipe",
    "optional_pipe",
    "sdxl_pipe",
    "context",
    "base_ctx",
    "ctx",
)
_GUIDED = ("positive", "cond1", "conditioning", "cond", "cond_1")
_PASSED = (
    "conditioning",
    "conditioning_1",
    "conditioning_2",
    "conditioning_to",
    "conditioning_from",
    "cond",
    "cond1",
    "cond_1",
    "cond2",
    "cond_2",
    "conditioning1",
    "conditioning2",
    "conditioning_a",
    "conditioning_b",
    "base",
    "guider",
)
_ANY_INPUT = ("", "any", "anything", "any_input", "input", "input1", "input_1", "value", "source", "data")
_STARTS = frozenset(("guider", "positive", "conditioning", *_PIPES))
_ONE_SIDED = {"positive": ("conditioning",), "negative": ("neg_conditioning", "negative_conditioning")}
_CONDITIONS = frozenset(("positive", "negative", *_PASSED, *_PIPES))
_SPLIT_TYPES = re.compile(r"zero_?out", re.IGNORECASE)
_DETAILER = re.compile(r"detailer|upscale|refin", re.IGNORECASE)
_ENCODER = re.compile(r"text_?encode|encoder?.?text|prompt", re.IGNORECASE)
_NEGATIVE_NAME = re.compile(r"negative", re.IGNORECASE)
_SEEDS = ("seed", "noise_seed")


def is_graph(data: Any) -> bool:
    """Whether parsed JSON is a graph in the form the server takes: nodes by name, each with a type."""
    return isinstance(data, dict) and any(
        isinstance(node, dict) and isinstance(node.get("class_type"), str) and "inputs" in node
        for node in data.values()
    )


def read_graph(data: dict[str, Any]) -> Found | None:
    """Prompt, negative prompt and seed; ``None`` if nothing in the graph is text for a picture.

    Raises:
        Unusable: too many nodes, or texts that grow without end.
    """
    if len(data) > _MAX_NODES:
        raise Unusable(Reason.TEXT_TOO_LARGE, f"a graph of {len(data)} nodes")
    graph: Graph = {
        name: node for name, node in data.items() if isinstance(node, dict) and "class_type" in node
    }
    return _Walk(graph).result()


def _joined(texts: list[str] | None) -> str:
    return ", ".join(text for text in texts or () if text)


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.budget = Budget()
        self.strings = StringWalk(graph, self.budget)

    def result(self) -> Found | None:
        # Whether an (empty) text was found there, and what else was.
        asked: tuple[bool, Found] | None = None
        for name in self._samplers():
            positive = self._from_sampler(name, "positive")
            if positive is None:
                continue
            negative = _joined(self._from_sampler(name, "negative"))
            found = Found(_joined(positive), negative, COMFYUI, self._seed(name, frozenset()))
            if found.prompt:
                return found
            if asked is None or (positive and not asked[0]):
                asked = (bool(positive), found)
        if asked is not None and asked[0]:
            return asked[1]
        longest = self._longest()
        if longest:
            return asked[1]._replace(prompt=longest) if asked else Found(longest, "", COMFYUI)
        return None

    # --- which sampler ---

    def _samplers(self) -> list[str]:
        """Samplers, those that made the picture first: reached from an output, and not fed by another sampler."""
        samplers = [name for name, node in self.graph.items() if self._is_sampler(node_inputs(node))]
        if len(samplers) < 2:
            return samplers
        known = set(samplers)
        outputs = [
            name for name in self.graph if re.search(r"save|preview", node_type(self.graph[name]), re.I)
        ]
        reached = self._upstream(outputs) if outputs else known
        fed = {name for name in samplers if self._upstream([name]) & known - {name}}

        def rank(name: str) -> tuple[bool, bool, bool]:
            return name not in reached, bool(_DETAILER.search(node_type(self.graph[name]))), name in fed

        return sorted(samplers, key=rank)

    @staticmethod
    def _is_sampler(inputs: dict[str, Any]) -> bool:
        if _STARTS.isdisjoint(inputs):
            return False
        if is_link(inputs.get("guider")):
            return True
        conditioned = any(is_link(inputs.get(key)) for key in ("positive", *_PIPES))
        timed = any(key in inputs for key in ("steps", "sigmas", "sampler_name", "sampler", "denoise"))
        if is_link(inputs.get("conditioning")) and "steps" in inputs:
            return any(key in inputs for key in ("seed", "noise_seed", "noise"))
        return conditioned and (timed or (is_link(inputs.get("positive")) and "seed" in inputs))

    def _upstream(self, names: list[str]) -> set[str]:
        """Every node that something in ``names`` depends on, without those themselves unless in a circle."""
        seen: set[str] = set()
        stack = list(names)
        while stack:
            for value in node_inputs(self.graph[stack.pop()]).values():
                self.budget.spend()
                if is_link(value):
                    name = str(value[0])
                    if name in self.graph and name not in seen:
                        seen.add(name)
                        stack.append(name)
        return seen

    def _seed(self, name: str, seen: frozenset[str]) -> int | None:
        """The seed of a sampler, or of the noise or seed node that feeds it."""
        if name in seen or len(seen) > 4:
            return None
        inputs = node_inputs(self.graph[name])
        for key in (*_SEEDS, "noise", "value", "int", "Value"):
            value = inputs.get(key)
            if is_link(value) and str(value[0]) in self.graph:
                found = self._seed(str(value[0]), seen | {name})
            else:
                found = as_seed(value) if key in _SEEDS or seen else None
            if found is not None:
                return found
        return None

    # --- from the sampler to the texts ---

    def _from_sampler(self, name: str, role: str) -> list[str] | None:
        """Texts for ``role``; ``None`` if this sampler has no such side."""
        inputs = node_inputs(self.graph[name])
        link = inputs.get("guider")
        if is_link(link):
            return self._from_guider(str(link[0]), role, 0)
        if is_link(inputs.get(role)):
            return self._texts(inputs[role], role, frozenset(), 0)
        for key in (*_PIPES, *_ONE_SIDED[role]):
            if is_link(inputs.get(key)):
                return self._texts(inputs[key], role, frozenset(), 0)
        return None

    def _from_guider(self, name: str, role: str, depth: int) -> list[str] | None:
        node = self.graph.get(name)
        if node is None or depth > _MAX_DEPTH:
            return None
        inputs = node_inputs(node)
        for key in _GUIDED if role == "positive" else ("negative",):
            if is_link(inputs.get(key)):
                return self._texts(inputs[key], role, frozenset(), 0)
        for key in ("guider", *_ANY_INPUT):
            if is_link(inputs.get(key)):
                return self._from_guider(str(inputs[key][0]), role, depth + 1)
        return None

    def _texts(self, link: list[Any], role: str, seen: frozenset[tuple[str, str]], depth: int) -> list[str]:
        """Texts behind a conditioning link, in order, each once."""
        self.budget.spend()
        name = str(link[0])
        node = self.graph.get(name)
        if node is None or (name, role) in seen or depth > _MAX_DEPTH:
            return []
        seen = seen | {(name, role)}
        kind, inputs = node_type(node), node_inputs(node)
        if _SPLIT_TYPES.search(kind):
            return []
        links = self._onward(inputs, role)
        if links:
            found: list[str] = []
            for further in links:
                found += [t for t in self._texts(further, role, seen, depth + 1) if t not in found]
            if found:
                return found
        text = self.strings.encoder_text(inputs, role)
        if text or self.strings.has_text(inputs):
            return [text]
        text = self.strings.text_from(link, role)
        return [text] if text else []

    def _onward(self, inputs: dict[str, Any], role: str) -> list[list[Any]]:
        """Conditioning links of a node that lead on. Nodes that hand on both sides are asked for the one wanted."""
        if _CONDITIONS.isdisjoint(inputs):
            return self._unnamed(inputs)
        if is_link(inputs.get(role)):
            return [inputs[role]]
        links = [inputs[key] for key in _PASSED if is_link(inputs.get(key))]
        links = links or [inputs[key] for key in _PIPES if is_link(inputs.get(key))]
        return links or self._unnamed(inputs)

    def _unnamed(self, inputs: dict[str, Any]) -> list[list[Any]]:
        """Links of a node whose inputs have none of the usual names."""
        links = [value for key, value in inputs.items() if key.startswith("conditioning") and is_link(value)]
        if links or self.strings.has_text(inputs):
            return links
        return self._switched(inputs) or [inputs[key] for key in _ANY_INPUT if is_link(inputs.get(key))]

    @staticmethod
    def _switched(inputs: dict[str, Any]) -> list[list[Any]]:
        """The chosen input of a switch: ``select`` 2 of ``input2``."""
        number = inputs.get("select", inputs.get("index", inputs.get("Input")))
        if isinstance(number, int):
            for key, value in inputs.items():
                if is_link(value) and re.search(rf"(?:\D|\A){number}\Z", key):
                    return [value]
        return []

    # --- when there is no sampler to start from ---

    def _longest(self) -> str:
        """The longest text of any encoder that no sampler uses as the negative side."""
        avoid = set(self._negatives())
        best = ""
        for node in self.graph.values():
            inputs = node_inputs(node)
            if not _ENCODER.search(node_type(node)) and not is_link(inputs.get("clip")):
                continue
            title = node.get("_meta", {}).get("title") if isinstance(node.get("_meta"), dict) else None
            text = self.strings.encoder_text(inputs, "positive")
            if text in avoid or (isinstance(title, str) and _NEGATIVE_NAME.search(title)):
                continue
            best = max(best, text, key=len)
        return best

    def _negatives(self) -> Iterator[str]:
        for node in self.graph.values():
            link = node_inputs(node).get("negative")
            if is_link(link):
                yield from self._texts(link, "negative", frozenset(), 0)
