"""ComfyUI: finds the prompt of an image by walking its graph from the saved picture back to its texts.

Nodes are recognised by their inputs rather than their names, because most come from extensions. The walk is
bounded in depth and steps, so that it ends for cyclic and huge graphs. If the graph does not hold the text,
or holds several images with different texts, there is no prompt: none is better than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from modules.util.image_metadata.formats.comfy_makers import (
    MakerWalk,
    own_negative_key,
    own_prompt_key,
)
from modules.util.image_metadata.formats.comfy_sources import edits_images, source_names
from modules.util.image_metadata.formats.comfy_values import (
    PIPES,
    Budget,
    Graph,
    Remembered,
    UnknownText,
    is_link,
    parse_graph,
)
from modules.util.image_metadata.formats.found import COMFYUI, Found, as_seed
from modules.util.image_metadata.formats.StringWalk import StringWalk
from modules.util.image_metadata.limits import Reason, Unusable

_MAX_NODES = 20_000
_MAX_DEPTH = 120
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
_ONE_SIDED = {"positive": ("conditioning",), "negative": ("neg_conditioning", "negative_conditioning")}
_CONDITIONS = frozenset(("positive", "negative", *_PASSED, *PIPES))
_SPLIT_TYPES = Remembered(r"zero_?out")
_ENCODER = Remembered(r"text_?encode|encoder?.?text")
_NEGATIVE_NAME = re.compile(r"negative", re.IGNORECASE)
_PLAIN_ENCODER = frozenset(("text", "clip"))
_SEEDS = ("seed", "noise_seed")
_SEED_KEYS = (*_SEEDS, "noise", "value", "int", "Value")


def is_graph(data: Any) -> bool:
    """Return whether parsed JSON is a graph in the server's format: nodes by name, each with a type."""
    return isinstance(data, dict) and any(
        isinstance(node, dict) and isinstance(node.get("class_type"), str) and "inputs" in node
        for node in data.values()
    )


def read_graph(data: dict[str, Any]) -> Found | None:
    """Read prompt, negative prompt and seed; ``None`` if no text in the graph belongs to a picture.

    Raises:
        Unusable: there are too many nodes, or texts grow without bound.
    """
    if len(data) > _MAX_NODES:
        raise Unusable(Reason.TEXT_TOO_LARGE, f"a graph of {len(data)} nodes")
    return _Walk(parse_graph(data), data).result()


def _joined(texts: list[str] | None) -> str:
    return ", ".join([text for text in texts if text]) if texts else ""


class _Walk:
    def __init__(self, graph: Graph, data: dict[str, Any]) -> None:
        self.graph = graph
        self._data = data
        self.budget = Budget()
        self.strings = StringWalk(graph, self.budget)
        self.makers = MakerWalk(graph, self.budget)
        self._edits = edits_images(graph)

    def result(self) -> Found | None:
        outputs = self.makers.outputs()
        makers = self.makers.nearest(outputs[0]) if len(outputs) == 1 else self._makers_of(outputs)
        if len(makers) == 1:
            return self._ask(makers[0])
        if not makers:
            longest = self._longest(outputs)
            return Found(longest, "", COMFYUI) if longest else None
        # The graph that a workflow started from often remains next to the partner node that was added.
        makers = [name for name in makers if self._own_key(name) is not None] or makers
        return _agreed([self._ask(name) for name in makers])

    def _makers_of(self, outputs: list[str]) -> list[str]:
        return list(dict.fromkeys(name for output in outputs for name in self.makers.nearest(output)))

    # --- what a maker was given ---

    def _own_key(self, name: str) -> str | None:
        """The input that holds the prompt of a node that is not a sampler."""
        return None if name in self.makers.samplers else own_prompt_key(*self.graph[name])

    def _ask(self, name: str) -> Found | None:
        """The texts of one maker; ``None`` if they are not in the graph."""
        key = self._own_key(name)
        try:
            found = self._sampled(name) if key is None else self._own(name, self.graph[name][1], key)
            if found is None or not self._edits:
                return found
            return found._replace(sources=source_names(self.makers, name))
        except UnknownText:
            return None

    def _own(self, name: str, inputs: dict[str, Any], key: str) -> Found:
        prompt = self.strings.checked(inputs[key], "positive")
        unwanted = own_negative_key(inputs)
        return Found(prompt, self._unwanted(inputs, unwanted), COMFYUI, self._seed(name, frozenset()))

    def _unwanted(self, inputs: dict[str, Any], key: str | None) -> str:
        try:
            return self.strings.checked(inputs[key], "negative") if key is not None else ""
        except UnknownText:
            return ""

    def _sampled(self, last: str) -> Found | None:
        """The texts of the first sampler behind a picture that has any."""
        empty: Found | None = None
        silent: Found | None = None
        for name in self.makers.samplers_of(last):
            positive = self._from_sampler(name, "positive")
            if positive is None:
                continue
            found = Found(_joined(positive), self._negative_of(name), COMFYUI, self._seed(name, frozenset()))
            if found.prompt:
                return found
            if positive:
                empty = empty or found
            else:
                silent = silent or found
        if empty is not None:
            return empty
        longest = self._longest([last])
        if not longest:
            return None
        return silent._replace(prompt=longest) if silent else Found(longest, "", COMFYUI)

    def _negative_of(self, name: str) -> str:
        try:
            return _joined(self._from_sampler(name, "negative"))
        except UnknownText:
            return ""

    def _seed(self, name: str, seen: frozenset[str]) -> int | None:
        """The seed of a sampler, or of the noise or seed node that feeds it."""
        if name in seen or len(seen) > 4:
            return None
        inputs = self.graph[name][1]
        for key in _SEED_KEYS:
            if key not in inputs:
                continue
            value = inputs[key]
            if is_link(value) and str(value[0]) in self.graph:
                found = self._seed(str(value[0]), seen | {name})
            else:
                found = as_seed(value) if key in _SEEDS or seen else None
            if found is not None:
                return found
        return None

    # --- from the sampler to the texts ---

    def _from_sampler(self, name: str, role: str) -> list[str] | None:
        """Texts for ``role``; ``None`` if this sampler has no such input."""
        inputs = self.graph[name][1]
        link = inputs.get("guider")
        if is_link(link):
            return self._from_guider(str(link[0]), role, 0)
        if is_link(inputs.get(role)):
            return self._texts(inputs[role], role, frozenset(), 0)
        for key in (*PIPES, *_ONE_SIDED[role]):
            if is_link(inputs.get(key)):
                return self._texts(inputs[key], role, frozenset(), 0)
        return None

    def _from_guider(self, name: str, role: str, depth: int) -> list[str] | None:
        node = self.graph.get(name)
        if node is None or depth > _MAX_DEPTH:
            return None
        inputs = node[1]
        for key in _GUIDED if role == "positive" else ("negative",):
            if is_link(inputs.get(key)):
                return self._texts(inputs[key], role, frozenset(), 0)
        for key in ("guider", *_ANY_INPUT):
            if is_link(inputs.get(key)):
                return self._from_guider(str(inputs[key][0]), role, depth + 1)
        return None

    def _texts(self, link: list[Any], role: str, seen: frozenset[tuple[str, str]], depth: int) -> list[str]:
        """Texts behind a conditioning link, in order, without duplicates."""
        self.budget.spend()
        name = str(link[0])
        node = self.graph.get(name)
        if node is None or (name, role) in seen or depth > _MAX_DEPTH:
            return []
        kind, inputs = node
        if _SPLIT_TYPES[kind]:
            return []
        if inputs.keys() == _PLAIN_ENCODER and isinstance(inputs["text"], str):
            return [self.strings.checked(inputs["text"], role)]
        links = self._onward(inputs, role)
        if links:
            seen = seen | {(name, role)}
            found: list[str] = []
            for further in links:
                found += [t for t in self._texts(further, role, seen, depth + 1) if t not in found]
            if found:
                return found
        text = self.strings.encoder_text(inputs, role)
        if text or self.strings.has_text(inputs):
            return [text]
        text = self.strings.checked(link, role)
        return [text] if text else []

    def _onward(self, inputs: dict[str, Any], role: str) -> list[list[Any]]:
        """Conditioning links to follow from a node. Nodes that pass on both sides are asked for the requested one."""
        if _CONDITIONS.isdisjoint(inputs):
            return self._unnamed(inputs)
        if is_link(inputs.get(role)):
            return [inputs[role]]
        links = [inputs[key] for key in _PASSED if is_link(inputs.get(key))]
        links = links or [inputs[key] for key in PIPES if is_link(inputs.get(key))]
        return links or self._unnamed(inputs)

    def _unnamed(self, inputs: dict[str, Any]) -> list[list[Any]]:
        """Links of a node none of whose inputs has a usual name."""
        links = [value for key, value in inputs.items() if key[:12] == "conditioning" and is_link(value)]
        if links or self.strings.has_text(inputs):
            return links
        return self._switched(inputs) or [inputs[key] for key in _ANY_INPUT if is_link(inputs.get(key))]

    @staticmethod
    def _switched(inputs: dict[str, Any]) -> list[list[Any]]:
        """The selected input of a switch: ``select`` 2 of ``input2``."""
        number = inputs.get("select", inputs.get("index", inputs.get("Input")))
        if isinstance(number, int):
            for key, value in inputs.items():
                if is_link(value) and re.search(rf"(?:\D|\A){number}\Z", key):
                    return [value]
        return []

    # --- when the way to the texts is lost ---

    def _longest(self, ends: list[str]) -> str:
        """The longest encoder text that the picture depends on and no sampler uses as negative prompt."""
        behind = set(ends).union(*map(self.makers.upstream, ends))
        avoid = set(self._negatives())
        best = ""
        for name in behind:
            kind, inputs = self.graph[name]
            if not _ENCODER[kind] and not is_link(inputs.get("clip")):
                continue
            about = self._data[name].get("_meta")
            title = about.get("title") if isinstance(about, dict) else None
            text = self._encoded(inputs)
            if text in avoid or (isinstance(title, str) and _NEGATIVE_NAME.search(title)):
                continue
            best = max(best, text, key=lambda one: (len(one), one))
        return best

    def _encoded(self, inputs: dict[str, Any]) -> str:
        try:
            return self.strings.encoder_text(inputs, "positive")
        except UnknownText:
            return ""

    def _negatives(self) -> Iterator[str]:
        for _, inputs in self.graph.values():
            link = inputs.get("negative")
            if is_link(link):
                try:
                    yield from self._texts(link, "negative", frozenset(), 0)
                except UnknownText:
                    continue


def _agreed(answers: Sequence[Found | None]) -> Found | None:
    """The common prompt of all pictures; ``None`` if one of them has none, or prompts or edited images differ."""
    known = [answer for answer in answers if answer is not None]
    if len(known) < len(answers) or len({" ".join(found.prompt.split()) for found in known}) != 1:
        return None
    if len({found.sources for found in known}) != 1:
        return None
    return known[0] if len({found.seed for found in known}) == 1 else known[0]._replace(seed=None)
