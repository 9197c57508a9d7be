"""Finds the nodes of a ComfyUI graph that made the saved picture: samplers, and nodes with a prompt of their own."""

from __future__ import annotations

import re
from typing import Any

from modules.util.image_metadata.formats.comfy_values import (
    PIPES,
    Budget,
    Graph,
    Remembered,
    is_link,
)

_STARTS = frozenset(("guider", "positive", "conditioning", *PIPES))
_TIMED = frozenset(("steps", "sigmas", "sampler_name", "sampler", "denoise"))
_SAMPLER = Remembered(r"sampler|detailer")
_DETAILER = re.compile(r"detailer|upscale|refin", re.IGNORECASE)
_SAVES = Remembered(r"save|upload|export|send|video.?combine")
_SHOWS = Remembered(r"preview|compar|display|show")
_PICTURE = Remembered(r"image|img|pic|photo|video|frame|pixel|latent|sample|anim|gif")
_NO_PICTURE = Remembered(
    r"prompt|text|string|name|prefix|path|caption|title|model|clip|vae|control|lora|seed|noise|sigma|style|color|font"
    r"|width|height|size|steps|cfg|audio|metadata|mask"
)
_OWN = ("prompt", "positive_prompt", "text_prompt", "prompt_text", "promptText", "positive", "instruction")
_MAY_BE_OWN = Remembered(rf"(?:\A|\.)(?:{'|'.join(_OWN)})\Z")
_OWN_NEGATIVE = ("negative_prompt", "negative", "negative_text_prompt")
_MAKES_PICTURES = re.compile(
    r"(?:.*\.)?(?:noise_)?(?:seed|aspect_ratio|ratio|size|image_size|resolution|width|num_images|n|num_inference_steps)\Z"
)
_LOOKS_FOR = re.compile(r"threshold|sam_model|grounding|dino|confidence|detector", re.IGNORECASE)
_DESCRIBES = re.compile(
    r"segment|detect|grounding|mask|caption|describe|interrogat|florence|tagger|vqa|encode|loader|overlay|chat|llm",
    re.IGNORECASE,
)


def is_sampler(kind: str, inputs: dict[str, Any]) -> bool:
    """Return whether a node turns conditioning into a latent or a picture."""
    if is_link(inputs.get("guider")):
        return True
    conditioned = is_link(inputs.get("positive")) or any(is_link(inputs.get(key)) for key in PIPES)
    timed = not _TIMED.isdisjoint(inputs) or _SAMPLER[kind]
    if is_link(inputs.get("conditioning")) and "steps" in inputs:
        return any(key in inputs for key in ("seed", "noise_seed", "noise"))
    return conditioned and (timed or ("seed" in inputs and is_link(inputs.get("positive"))))


def own_prompt_key(kind: str, inputs: dict[str, Any]) -> str | None:
    """The prompt input of a node that makes pictures on its own, such as a partner's service.

    Such a node has a prompt, no text encoder, and something that only an image generator needs: a seed or a
    size. Nodes that detect or describe things have a prompt too, but make no picture.
    """
    key = _find_key(inputs, _OWN)
    if (
        key is None
        or is_link(inputs.get("clip"))
        or _DESCRIBES.search(kind)
        or any(map(_LOOKS_FOR.search, inputs))
    ):
        return None
    return key if any(map(_MAKES_PICTURES.match, inputs)) else None


def own_negative_key(inputs: dict[str, Any]) -> str | None:
    """The negative prompt input of such a node."""
    return _find_key(inputs, _OWN_NEGATIVE)


def _find_key(inputs: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of ``names`` among the inputs, also after a dot: ``model.prompt`` belongs to the selected model."""
    found: dict[str, str] = {}
    for key, value in inputs.items():
        name = key
        if key not in names:
            if "." not in key:
                continue
            name = key.rpartition(".")[2]
        if name in names and (isinstance(value, str) or is_link(value)):
            found.setdefault(name, key)
    return next((found[name] for name in names if name in found), None)


class MakerWalk:
    """Walks from saved pictures back to the nodes that made them.

    Args:
        graph: nodes by name.
        budget: maximum number of steps for this graph.
    """

    def __init__(self, graph: Graph, budget: Budget) -> None:
        self.graph = graph
        self.budget = budget
        self._order: dict[str, int] = {}
        self._pictures: dict[str, list[str]] = {}
        self._upstream: dict[str, frozenset[str]] = {}
        conditioned = [name for name, (_, inputs) in graph.items() if not _STARTS.isdisjoint(inputs)]
        self.samplers = frozenset([name for name in conditioned if is_sampler(*graph[name])])

    def outputs(self) -> list[str]:
        """Nodes whose pictures may be the file: those that save, else those that show, else those without
        successor.
        """
        for does in (_SAVES, _SHOWS):
            named = [name for name, (kind, _) in self.graph.items() if does[kind]]
            if found := [name for name in named if self._picture_links(name)]:
                return found
        followed = {
            str(value[0]) for _, inputs in self.graph.values() for value in inputs.values() if is_link(value)
        }
        return [name for name in self.graph if name not in followed]

    def _picture_links(self, name: str) -> list[str]:
        """Names of the nodes whose pictures (or latents) a node takes as input."""
        known = self._pictures.get(name)
        if known is None:
            known = self._pictures[name] = [
                str(value[0])
                for key, value in self.graph[name][1].items()
                if _PICTURE[key] and is_link(value) and not key.endswith(("_model", "_name", "prefix"))
            ]
        return known

    def nearest(self, output: str) -> list[str]:
        """The makers of an output's picture, the nearest on each path."""
        found: list[str] = []
        seen = {output}
        waiting = [output]
        for name in waiting:
            if name in self.samplers or self._makes_its_own(*self.graph[name]):
                found.append(name)
                continue
            for above in self._onward(name):
                if above in self.graph and above not in seen:
                    seen.add(above)
                    waiting.append(above)
        return found

    def _makes_its_own(self, kind: str, inputs: dict[str, Any]) -> bool:
        """Return whether a node has its own prompt. One without text only modifies the picture it is given.
        """
        if True not in [_MAY_BE_OWN[key] for key in inputs]:
            return False
        key = own_prompt_key(kind, inputs)
        if key is None:
            return False
        value = inputs[key]
        given = any(is_link(value) and _PICTURE[key] for key, value in inputs.items())
        return not (given and isinstance(value, str) and not value.strip())

    def _onward(self, name: str) -> list[str]:
        inputs = self.graph[name][1]
        self.budget.spend(1 + len(inputs))
        pictures = self._picture_links(name)
        if pictures:
            return pictures
        return [str(v[0]) for key, v in inputs.items() if is_link(v) and not _NO_PICTURE[key]]

    def samplers_of(self, name: str) -> list[str]:
        """The samplers that contributed to the output of sampler ``name``, starting with those that began the
        picture.
        """
        if len(self.samplers) == 1:
            return [name]
        self._order = self._order or {one: place for place, one in enumerate(self.graph)}
        names = sorted(self.samplers & (self.upstream(name) | {name}), key=self._order.__getitem__)
        if len(names) < 2:
            return names
        known = set(names)
        fed = {one for one in names if self.upstream(one) & known - {one}}

        def rank(one: str) -> tuple[bool, bool]:
            return bool(_DETAILER.search(self.graph[one][0])), one in fed

        return sorted(names, key=rank)

    def upstream(self, name: str) -> frozenset[str]:
        """All nodes that ``name`` depends on, excluding itself unless there is a cycle."""
        known = self._upstream.get(name)
        if known is None:
            seen: set[str] = set()
            stack = [name]
            while stack:
                for value in self.graph[stack.pop()][1].values():
                    self.budget.spend()
                    if is_link(value) and (above := str(value[0])) in self.graph and above not in seen:
                        seen.add(above)
                        stack.append(above)
            known = self._upstream[name] = frozenset(seen)
        return known
