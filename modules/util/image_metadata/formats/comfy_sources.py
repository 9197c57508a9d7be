"""ComfyUI: the source images of an edit, found from the sampler back to the nodes that load them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from modules.util.image_metadata.formats.comfy_makers import MakerWalk
from modules.util.image_metadata.formats.comfy_values import Graph, Remembered, is_link

_EDITS = Remembered(r"image_?edit|reference_?latent|flux_?kontext")
_LOADS = Remembered(r"load_?image")
_NO_PICTURE = re.compile(r"clip|model|vae|conditioning|positive|negative|guider|mask", re.IGNORECASE)
MOST_NAMES = 16


def edits_images(graph: Graph) -> bool:
    """Return whether any node of a graph edits images."""
    return any(_EDITS[kind] for kind, _ in graph.values())


def source_names(makers: MakerWalk, maker: str) -> tuple[str, ...]:
    """Names in the graph of the images that ``maker`` edited, those nearest to the text first; empty if
    nothing is edited.

    Images that only initialise a picture (image to image) or guide it (ControlNet) are not sources.
    """
    editors = [name for name in makers.upstream(maker) if _EDITS[makers.graph[name][0]]]
    # in a chain of references, the first is the one behind all others
    editors.sort(key=lambda name: (len(makers.upstream(name)), name))
    names: dict[str, None] = {}
    for editor in editors:
        names.update(dict.fromkeys(_loaded(makers, editor)))
    return tuple(names)[:MOST_NAMES]


def _loaded(makers: MakerWalk, editor: str) -> Iterator[str]:
    """Files behind the picture inputs of a node, ordered by input name."""
    seen = {editor}
    waiting = [editor]
    while waiting:
        kind, inputs = makers.graph[waiting.pop(0)]
        makers.budget.spend(1 + len(inputs))
        file = inputs.get("image")
        if _LOADS[kind] and isinstance(file, str):
            yield file
            continue
        for key in sorted(inputs):
            value = inputs[key]
            if not is_link(value) or _NO_PICTURE.search(key):
                continue
            above = str(value[0])
            if above in makers.graph and above not in seen:
                seen.add(above)
                waiting.append(above)
