"""Reference scores on disk, computed once per (pair, draw) and looked up in every later step.

The reference never changes during a run, so its score of a pair depends only on the images, the prompt and
the draw. ``modules.objective.draw_pool`` gives every pair a pool of draws; this file holds their scores.

A folder holds one file per process, all with the same ``key``: a digest of everything else the scores depend
on. A pair is identified by its id and content. A changed image or caption is therefore scored again, and an
added pair costs only its own scores.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from modules.model.batch import ImageBatch, PairBatch
from modules.objective.draw_pool import draw_indices
from modules.objective.scores import ReferenceOut
from modules.util.errors import DataError, refused_as
from modules.util.jsonio import atomic_path
from modules.util.tensors.tensor_files import DIGEST, tensor_hash, write_safetensors

FORMAT = 1
SAVE_EVERY_SECONDS = 30.0
_KEY_BYTES = 16

ScoreFunction = Callable[[PairBatch], ReferenceOut]
Progress = Callable[[int, int], object]


def reference_key(material: Mapping[str, Any]) -> str:
    """A file name for everything reference scores depend on besides the pair itself.

    Args:
        material: plain JSON values: digests of the base weights and of the adapter the reference uses, the
            seed, the number of draws, noise options, schedule, precision, versions.
    """
    text = json.dumps({"format": FORMAT, **material}, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=_KEY_BYTES).hexdigest()


def at_draws(pair: PairBatch, indices: Sequence[int]) -> PairBatch:
    """The same pairs as if on visit ``indices[i]``, so that their noise becomes that draw of their pool."""

    def at(side: ImageBatch) -> ImageBatch:
        return replace(side, visits=list(indices))

    return replace(
        pair, chosen=at(pair.chosen), rejected=None if pair.rejected is None else at(pair.rejected)
    )


def pooled(pair: PairBatch, seed: int, draws: int) -> tuple[PairBatch, list[int]]:
    """The pairs at the draws of their current visits, and the indices of these draws.

    The noise of what is returned is made with N = ``draws`` strata from the stream ``draw_pool.POOL_STREAM``;
    the indices are for ``ReferenceCache.lookup``.
    """
    indices = draw_indices(seed, pair.pair_ids, pair.chosen.visits, draws)
    return at_draws(pair, indices), indices


class ReferenceCache:
    """Scores of (pair, draw) under one key.

    Args:
        folder: folder of the files; created on the first write.
        key: see ``reference_key``.
        draws: N, the size of a pair's pool.
        writer: number of this process; only its own file is ever written.
        norms: whether to store the norms of the reference's predictions too.

    Raises:
        DataError: a file of this key is damaged.
    """

    def __init__(
        self, folder: str | Path, key: str, draws: int, writer: int = 0, *, norms: bool = False
    ) -> None:
        if draws < 1:
            raise ValueError(f"a pool needs at least one draw, not {draws}")
        if not re.fullmatch(r"[0-9a-f]+", key):
            raise ValueError(f"{key!r} is not a key made by reference_key")
        self.folder = Path(folder)
        self.key = key
        self.draws = draws
        self._numbers = 4 if norms else 2
        self._own = self.folder / f"{key}-{writer}.safetensors"
        self._rows: dict[bytes, np.ndarray] = {}
        self._written: set[bytes] = set()
        self._names: dict[str, bytes] = {}
        self.reload()

    def reload(self) -> None:
        """Read the scores of all processes. Scores that are already known are kept."""
        for path in sorted(self.folder.glob(f"{self.key}-*.safetensors")):
            for name, row in self._read(path).items():
                known = self._rows.get(name)
                self._rows[name] = row if known is None else np.where(np.isnan(known), row, known)
                if path == self._own:
                    self._written.add(name)

    def _read(self, path: Path) -> dict[bytes, np.ndarray]:
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in ("names", "scores")}
                digest = (file.metadata() or {}).get(DIGEST)
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"the reference cache {path} cannot be read: {error}",
                hint="delete the file; it is made again",
            ) from error
        if digest not in (None, tensor_hash(tensors)):
            raise DataError(
                f"the reference cache {path} is damaged: its scores are not those that were written",
                hint="delete the file; it is made again",
            )
        names, scores = tensors["names"].numpy(), tensors["scores"].numpy()
        if names.shape != (len(scores), _KEY_BYTES) or scores.shape[1:] != (self.draws, self._numbers):
            raise DataError(
                f"the reference cache {path} holds {scores.shape}, expected (pairs, {self.draws}, "
                f"{self._numbers}) scores",
                hint="delete the file; it is made again",
            )
        return {bytes(name): row for name, row in zip(names, scores.astype(np.float32), strict=True)}

    def save(self) -> None:
        """Replace this process's file atomically. Nothing is written while there are no scores.

        Raises:
            DataError: the disk is full or not writable.
        """
        if not self._written:
            return
        names = sorted(self._written)
        tensors = {
            "names": torch.frombuffer(bytearray(b"".join(names)), dtype=torch.uint8).view(-1, _KEY_BYTES),
            "scores": torch.from_numpy(np.stack([self._rows[name] for name in names])),
        }
        refused = refused_as(
            f"the reference scores cannot be written to {self._own}",
            field="cache_dir",
            hint="make room or choose another folder; what was written before is kept",
            kind=DataError,
        )
        with refused, atomic_path(self._own) as temporary:
            write_safetensors(tensors, temporary, {"format": str(FORMAT), DIGEST: tensor_hash(tensors)})

    def _name(self, pair: PairBatch, index: int) -> bytes:
        """The key of pair ``index`` of the batch; its content is hashed once per run."""
        pair_id = pair.pair_ids[index]
        if pair_id not in self._names:
            self._names[pair_id] = _content(pair, index)
        return self._names[pair_id]

    def missing(self, pair: PairBatch) -> list[tuple[int, int]]:
        """(position in the batch, draw) of every score not known yet."""
        wanted = []
        for index in range(len(pair)):
            row = self._rows.get(self._name(pair, index))
            known = np.zeros(self.draws, dtype=bool) if row is None else ~np.isnan(row).any(1)
            wanted += [(index, int(draw)) for draw in np.flatnonzero(~known)]
        return wanted

    def lookup(self, pair: PairBatch, indices: Sequence[int]) -> ReferenceOut:
        """Reference scores (and norms) of each pair at its draw, float32 on the CPU, each (B,).

        Raises:
            RuntimeError: a score was never computed.
        """
        rows = []
        for index, draw in zip(range(len(pair)), indices, strict=True):
            row = self._rows.get(self._name(pair, index))
            if row is None or np.isnan(row[draw]).any():
                raise RuntimeError(
                    f"no reference score of pair {pair.pair_ids[index]!r} at draw {draw} was computed"
                )
            rows.append(row[draw])
        columns = [column.contiguous() for column in torch.from_numpy(np.stack(rows)).unbind(1)]
        norms = (columns[2], columns[3]) if len(columns) > 2 else None
        return ReferenceOut((columns[0], columns[1]), norms)

    def fill(
        self,
        batches: Iterable[PairBatch],
        score: ScoreFunction,
        batch_size: int,
        *,
        total: int = 0,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Compute missing scores and write them to disk continuously.

        A kill at any moment loses at most the last half minute of work.

        Args:
            batches: every pair of the run (of this process's share) once, each batch of one bucket.
            score: reference scores of a batch whose visits are indices of draws (see ``at_draws``).
            batch_size: pairs scored at a time; draws of one pair may share a batch.
            total: number of pairs, for the progress.
            progress: called with (pairs done, ``total``) after every batch.
            should_stop: called before each batch; returns whether to stop.

        Returns:
            Whether all scores are known now; ``False`` after a stop.
        """
        done, saved_at, fresh = 0, time.monotonic(), False
        try:
            for pair in batches:
                missing = set(self.missing(pair))
                for wanted in self._batches(len(pair), batch_size):
                    if missing.isdisjoint(wanted):
                        continue
                    if should_stop():
                        return False
                    self._score(pair, wanted, score)
                    fresh = True
                    if time.monotonic() - saved_at > SAVE_EVERY_SECONDS:
                        self.save()
                        saved_at, fresh = time.monotonic(), False
                done += len(pair)
                if progress is not None:
                    progress(done, total)
        finally:
            if fresh:
                self.save()
        return True

    def _batches(self, pairs: int, size: int) -> Iterator[list[tuple[int, int]]]:
        """(pair, draw) in batches of one pair's draws, known or not. A draw is always scored in the same
        batch, so that its score is the same to the last bit, whether the work was interrupted or not.
        """
        for index in range(pairs):
            for start in range(0, self.draws, size):
                yield [(index, draw) for draw in range(start, min(start + size, self.draws))]

    def _score(self, pair: PairBatch, wanted: Sequence[tuple[int, int]], score: ScoreFunction) -> None:
        positions, draws = [index for index, _ in wanted], [draw for _, draw in wanted]
        found = score(at_draws(pair.select(positions), draws))
        columns = [column.tolist() for column in (*found.scores, *(found.norms or ()))]
        for (index, draw), *row in zip(wanted, *columns, strict=True):
            if not all(map(math.isfinite, row)):
                raise RuntimeError(
                    f"the reference scores pair {pair.pair_ids[index]!r} as {row[0]} and {row[1]}: "
                    "the base model is damaged or its precision too low"
                )
            name = self._name(pair, index)
            if name not in self._rows:
                self._rows[name] = np.full((self.draws, self._numbers), np.nan, dtype=np.float32)
            self._rows[name][draw] = row
            self._written.add(name)


def _content(pair: PairBatch, index: int) -> bytes:
    """Digest of a pair's id, latents, prompts, size and anything else its model is given about its images."""
    hasher = hashlib.blake2b(digest_size=_KEY_BYTES)
    hasher.update(f"{len(pair.pair_ids[index])}:{pair.pair_ids[index]}".encode())
    if pair.mask_B1hw is not None:
        mask = pair.mask_B1hw[index].detach().cpu().contiguous()
        hasher.update(f"mask{tuple(mask.shape)}".encode() + mask.numpy().tobytes())
    if pair.sides_B2 is not None and not bool(pair.sides_B2[index].all()):
        hasher.update(f"sides{pair.sides_B2[index].tolist()}".encode())
    for side in (pair.chosen, pair.rejected):
        if side is None:
            raise RuntimeError(f"pair {pair.pair_ids[index]!r} has no rejected image")
        hasher.update(f"{side.ids[index]!r}{side.prompts[index]!r}{side.size}".encode())
        # without the padding, which depends on the other prompts of the batch
        tensors = {} if side.cond is None else side.cond.select([index]).unbind()[0]
        tensors |= {"latents": side.latents_BChw[index]}
        told = {"geometry": side.geometry_B6, "inpaint": side.inpaint_BChw}
        tensors |= {name: value[index] for name, value in told.items() if value is not None}
        tensors |= {f"source {number}": value[index] for number, value in enumerate(side.sources)}
        for name in sorted(tensors):
            one = tensors[name].detach().cpu().contiguous()
            hasher.update(f"{name}{one.dtype}{tuple(one.shape)}".encode())
            hasher.update(one.view(torch.uint8).numpy().tobytes() if one.dim() else str(one.item()).encode())
    return hasher.digest()
