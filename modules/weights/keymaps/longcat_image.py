"""LongCat-Image: the blocks of FLUX.1, with another name for the embedder of the time."""

from modules.weights.keymaps.base import Table
from modules.weights.keymaps.flux import streams

KEY_MAP = Table(*streams({"time_in": "time_embed.timestep_embedder"}))
