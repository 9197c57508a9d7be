"""The SQLite store of an output folder: every answer, pair and undo of a picking session, durable before it
is shown.

The log is append-only. A session's state is the fold of its events that are not undone, so that resuming
after a crash and unlimited undo need no further machinery. SQLite runs in WAL mode with ``synchronous=FULL``:
once ``append`` returns, the event survives a power failure.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from modules.curation.review.half_steps import finish_steps
from modules.util.dpo_curation_util import (
    MANIFEST_NAME,
    SIDES,
    SPLITS,
    BrokenManifest,
    Pair,
    check_manifest_pair,
    copy_pair,
    has_existing_exports,
    load_manifest,
    make_pair,
    save_manifest,
    unlink_with_caption,
)
from modules.util.errors import DataError, UserError
from modules.util.files.EventLog import Event, EventLog
from modules.util.owned_files import TEMPORARY, shown
from modules.util.pairs.dpo_pair_files import (
    SOURCE_FOLDER,
    find_exported_file,
    locate_pair_file,
    name_below,
    name_is_taken,
    owned_pairs,
)
from modules.util.pairs.pair_sources import remove_sources
from modules.util.pairs.source_files import SourceImage

log = logging.getLogger(__name__)

STORE_NAME = "curation.sqlite"
SMALL_MANIFEST = 200
ALL_SHOWN = "all_shown"
"""Key of the moment, in nanoseconds, whose images were all shown; empty while a prompt is open."""
WAY = "way"
"""Key of the way of choosing that a person used last."""
GOAL = "goal"
"""Key of the pairs per prompt and the certainty that a person used last, as a JSON list."""

_TABLES = """
CREATE TABLE IF NOT EXISTS pairs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, pair_id TEXT UNIQUE NOT NULL, group_key TEXT NOT NULL,
    entry TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS intents (pair_id TEXT PRIMARY KEY, entry TEXT NOT NULL);
"""


class CurationStore(EventLog):
    """Durable storage of a picking session in one output folder.

    Opening takes a lock (a second window gets a ``UserError``), reverts an interrupted export, and reconciles
    ``manifest.json`` with the store. A folder with only a manifest can be opened too.

    Args:
        output_dir: created if missing.
    """

    FILE = STORE_NAME
    LOCK = ".curation.lock"
    WHAT = "a store of pairs"
    VERSION = 1
    TABLES = _TABLES
    DAMAGED = "if it is damaged, rename it: the pairs are still in manifest.json"
    LOST = "if it is damaged, rename it: the answers in it are lost, the images in chosen and rejected stay"
    ALSO_PLAIN = (MANIFEST_NAME,)

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        self._manifest_dirty = False
        self._removed: list[Pair] = []
        database = Path(output_dir) / STORE_NAME
        self._was_emptied = database.is_file() and not database.stat().st_size
        super().__init__(owned_pairs(output_dir), Path(output_dir).absolute())

    def _prepare(self) -> None:
        self._check_entries()
        self._recover()

    def _if_damaged(self) -> str:
        return self.DAMAGED if (self.output_dir / MANIFEST_NAME).is_file() else self.LOST

    def _check_entries(self) -> None:
        """Refuse a store with a name that leads out of the folder, before anything in the folder is changed."""
        path = self.output_dir / STORE_NAME
        for table in ("pairs", "intents"):
            for pair_id, text in self._rows(f"SELECT pair_id, entry FROM {table}"):
                where = f"{path}, table {table}, {shown(str(pair_id))!r}"
                entry = self._object(text, where)
                check_manifest_pair(entry, where)
                if entry["pair_id"] != pair_id:
                    raise UserError(
                        f"{where} holds the entry of {entry['pair_id']!r}", hint=self._if_damaged()
                    )

    def _before_closing(self) -> None:
        """Write the manifest if it is out of date. If the folder was moved, its next opening does that.

        Raises:
            UserError: it cannot be written. The store is still closed, and holds everything.
        """
        with self._saving():
            if self.is_in_place():
                self.write_manifest()
            else:
                log.warning("%s was moved, renamed or deleted: manifest.json is not written there", self.output_dir)

    # --- recovery ---

    def _recover(self) -> None:
        self._sweep()
        with suppress(BrokenManifest):  # which is rebuilt below
            finish_steps(self.output_dir)
        known = {pair["pair_id"] for pair in self.pairs()}
        for pair_id, text in self._rows("SELECT pair_id, entry FROM intents"):
            if pair_id not in known:
                self._remove_files(json.loads(text))
        self._db.execute("DELETE FROM intents")
        listed = self._listed()
        if not known and not self._ever_used():
            if self._was_emptied and listed:
                log.warning(
                    "%s was empty: the pairs are taken from %s, the answers are lost",
                    self.output_dir / STORE_NAME,
                    MANIFEST_NAME,
                )
            with self._transaction():
                for pair in listed.values():
                    self._insert_pair(f"manifest:{pair['prompt']}", pair)
        elif listed != {pair["pair_id"]: pair for pair in self.pairs()}:
            self._adopt_moves(listed)
            self._forget_removed(listed)
            self._adopt_restored(listed)
        self.set_meta("used", "1")
        self._manifest_dirty = True
        self.write_manifest()

    def _listed(self) -> dict[str, Pair]:
        """The pairs in the manifest or, if that is broken, in the store and the folder.

        Raises:
            UserError: the manifest is broken and the store never held pairs, or has names that lead out of
                the folder.
        """
        try:
            manifest = load_manifest(self.output_dir)
        except BrokenManifest as error:
            if not self._ever_used():
                raise
            aside = f"manifest.unreadable-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.json"
            self._owned.move(MANIFEST_NAME, aside)
            log.warning("%s; it is kept as %s and rebuilt from %s", error.message, aside, STORE_NAME)
            found = {pair["pair_id"]: self._where_it_is(pair) for pair in self.pairs()}
            return {name: pair for name, pair in found.items() if pair is not None}
        return {pair["pair_id"]: pair for pair in manifest["pairs"]}

    def _where_it_is(self, pair: Pair) -> Pair | None:
        """A pair with the current names of its files; ``None`` if neither side exists."""
        files = {side: locate_pair_file(self.output_dir, pair, side) for side in SIDES}
        if not any(files.values()):
            return None
        names = {f"{s}_file": name_below(self.output_dir, file) for s, file in files.items() if file}
        return {**pair, **names}

    def _sweep(self) -> None:
        """Remove temporary files left by a killed process in the program's folders."""
        self._owned.sweep(TEMPORARY)
        self._owned.sweep(f"{SOURCE_FOLDER}/{TEMPORARY}")
        for side in SIDES:
            for place in (side, *(f"{side}/{split}" for split in SPLITS)):
                self._owned.sweep(f"{place}/{TEMPORARY}")
                self._owned.sweep(f"{place}/.pair_*.tmp")  # names used by earlier versions

    def _ever_used(self) -> bool:
        return self.meta("used") is not None

    def _adopt_moves(self, listed: dict[str, Pair]) -> None:
        """Update the store after finalising has moved files. The manifest is updated first."""
        with self._transaction():
            for pair in self.pairs():
                other = listed.get(pair["pair_id"])
                if other is not None and other != pair:
                    self._update_entry(other)

    def _forget_removed(self, listed: dict[str, Pair]) -> None:
        """Remove pairs from the store that the review removed from manifest and folder."""
        for pair in self.pairs():
            name = pair["pair_id"]
            if name not in listed and not any(find_exported_file(self.output_dir, s, name) for s in SIDES):
                with self._transaction():
                    self._db.execute("DELETE FROM pairs WHERE pair_id = ?", (name,))
                    self._insert_event("review", "remove", {"pair": pair})

    def _adopt_restored(self, listed: dict[str, Pair]) -> None:
        """Add pairs to the store that an undo in the review restored."""
        known = {pair["pair_id"] for pair in self.pairs()}
        for name, pair in listed.items():
            if name in known or any(find_exported_file(self.output_dir, s, name) is None for s in SIDES):
                continue
            events = self.events()
            picked = [e.group_key for e in events if name in e.payload.get("pair_ids", [])]
            removed = [e.seq for e in events if e.kind == "remove" and e.payload["pair"]["pair_id"] == name]
            with self._transaction():
                self._insert_pair(picked[-1] if picked else f"manifest:{pair['prompt']}", pair)
                self._db.executemany("UPDATE events SET undone = 1 WHERE seq = ?", [(n,) for n in removed])

    # --- the log ---

    def _check_payload(self, kind: str, payload: dict[str, Any], where: str) -> None:
        names = payload.get("pair_ids", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{where}: pair_ids is not a list of names", hint=self._if_damaged())
        if kind == "remove":
            check_manifest_pair(payload.get("pair"), f"{where}: pair")

    def groups_with(self, kind: str) -> set[str]:
        """The groups whose last event that is not undone is of ``kind``."""
        rows = self._rows(
            "SELECT group_key FROM events WHERE kind = ? AND seq IN"
            " (SELECT MAX(seq) FROM events WHERE undone = 0 GROUP BY group_key)",
            kind,
        )
        return {str(row[0]) for row in rows}

    def _forget(self, events: Sequence[Event]) -> None:
        """Remove pairs exported by events that are undone."""
        names = [name for event in events for name in event.payload.get("pair_ids", [])]
        self._removed = [pair for pair in map(self.pair, names) if pair is not None]
        for pair in self._removed:
            self._db.execute("DELETE FROM pairs WHERE pair_id = ?", (pair["pair_id"],))
            self._insert_intent(pair)

    def _forgotten(self) -> None:
        self._finish_removal(self._removed)

    # --- pairs ---

    def pair(self, pair_id: str) -> Pair | None:
        """One pair's manifest entry."""
        rows = self._rows("SELECT entry FROM pairs WHERE pair_id = ?", pair_id)
        return json.loads(rows[0][0]) if rows else None

    def pairs(self) -> list[Pair]:
        """All manifest entries in the order they were made."""
        return [json.loads(row[0]) for row in self._rows("SELECT entry FROM pairs ORDER BY number")]

    def pair_count(self) -> int:
        """Number of pairs in the folder."""
        return int(self._rows("SELECT COUNT(*) FROM pairs")[0][0])

    def export(
        self,
        group_key: str,
        picks: list[tuple[Path, Path]],
        prompt: str,
        aspectratio: str,
        payload: dict[str, Any],
        certainties: Sequence[float | None] = (),
        sources: Sequence[SourceImage] = (),
    ) -> list[Pair]:
        """Copy pairs into the folder and log one ``pick`` event for them; all or nothing.

        The files have their final names before the event is committed. After a crash in between, the next
        opening removes them.

        Args:
            picks: (chosen, rejected) source images.
            payload: data stored with the event; ``pair_ids`` is added.
            certainties: of each pair, the probability from 0.5 to 1 that the chosen image is the better one.
            sources: the images that all pairs are edits of; copied for each pair.
        """
        entries = []
        names = self._free_names()
        for offset, (chosen, rejected) in enumerate(picks):
            if chosen.resolve() == rejected.resolve():
                raise DataError(f"chosen and rejected are the same file: {chosen}")
            entry = make_pair(next(names), chosen, rejected, prompt, aspectratio, sources)
            known = certainties[offset] if offset < len(certainties) else None
            entries.append(entry if known is None else {**entry, "certainty": known})
        with self._transaction():
            for entry in entries:
                self._insert_intent(entry)
        try:
            with self._saving():
                made = [copy_pair(self.output_dir, entry) for entry in entries]
            with self._transaction():
                for pair in made:
                    self._insert_pair(group_key, pair)
                    self._db.execute("DELETE FROM intents WHERE pair_id = ?", (pair["pair_id"],))
                self._insert_event(group_key, "pick", {**payload, "pair_ids": [p["pair_id"] for p in made]})
        except UserError:
            self._finish_removal(entries)
            raise
        self._manifest_dirty = True
        if self.pair_count() <= SMALL_MANIFEST:
            self._refresh_manifest()
        return made

    def remove(self, pair_id: str) -> Pair:
        """Remove a pair and its files from the folder and log it (``remove``)."""
        pair = self.pair(pair_id)
        if pair is None:
            raise UserError(f"there is no pair {pair_id!r} in {self.output_dir}")
        (row,) = self._rows("SELECT group_key FROM pairs WHERE pair_id = ?", pair_id)
        with self._transaction():
            self._db.execute("DELETE FROM pairs WHERE pair_id = ?", (pair_id,))
            self._insert_intent(pair)
            self._insert_event(str(row[0]), "remove", {"pair": pair})
        self._finish_removal([pair])
        return pair

    def update(self, pair: Pair) -> None:
        """Replace a pair's entry after moving, swapping or re-captioning its files."""
        with self._transaction():
            self._update_entry(pair)
        self._manifest_dirty = True

    def _update_entry(self, pair: Pair) -> None:
        text = json.dumps(pair, ensure_ascii=False, allow_nan=False)
        self._db.execute("UPDATE pairs SET entry = ? WHERE pair_id = ?", (text, pair["pair_id"]))

    def _free_names(self) -> Iterator[str]:
        """Names for new pairs, in order. No pair and no file in the folder has any of them."""
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'pairs'")
        first = rows[0][0] if rows and isinstance(rows[0][0], int) else 0
        names = (f"pair_{number:04d}" for number in count(first))
        return (name for name in names if not self._name_taken(name))

    def _name_taken(self, pair_id: str) -> bool:
        return self.pair(pair_id) is not None or name_is_taken(self.output_dir, pair_id)

    def _insert_pair(self, group_key: str, pair: Pair) -> None:
        self._db.execute(
            "INSERT INTO pairs (pair_id, group_key, entry) VALUES (?, ?, ?)",
            (pair["pair_id"], group_key, json.dumps(pair, ensure_ascii=False, allow_nan=False)),
        )

    def _insert_intent(self, pair: Pair) -> None:
        text = json.dumps(pair, ensure_ascii=False, allow_nan=False)
        self._db.execute("INSERT OR REPLACE INTO intents VALUES (?, ?)", (pair["pair_id"], text))

    def _finish_removal(self, pairs: list[Pair]) -> None:
        with self._saving():
            for pair in pairs:
                self._remove_files(pair)
                self._db.execute("DELETE FROM intents WHERE pair_id = ?", (pair["pair_id"],))
        if pairs:
            self._manifest_dirty = True
            self._refresh_manifest()

    def _remove_files(self, pair: Pair) -> None:
        for side in SIDES:
            unlink_with_caption(self._owned, pair[f"{side}_file"])
            while (file := find_exported_file(self.output_dir, side, pair["pair_id"])) is not None:
                if not unlink_with_caption(self._owned, name_below(self.output_dir, file)):
                    break  # it is listed but missing: a disk was removed
        remove_sources(self._owned, pair)

    # --- the end of the walk ---

    def note_all_shown(self, began: int | None) -> None:
        """Note that no prompt is left to show, or that one is.

        Args:
            began: when the search for images began, in nanoseconds; ``None`` if a prompt is open.
        """
        self._note(ALL_SHOWN, "" if began is None else str(began), "whether all prompts were shown")

    def note_way(self, way: str) -> None:
        """Note the way of choosing that a person uses here."""
        self._note(WAY, way, "the way of choosing")

    def note_goal(self, pairs_per_group: int, threshold: float) -> None:
        """Note how many pairs a person wants per prompt, and the certainty at which pairs are saved."""
        self._note(GOAL, json.dumps([pairs_per_group, threshold]), "the number of pairs per prompt")

    def _note(self, key: str, value: str, what: str) -> None:
        if (self.meta(key) or "") == value:
            return
        try:
            with self._saving():
                self.set_meta(key, value)
        except UserError as error:
            log.warning("%s could not be saved: %s", what, error.message)

    # --- the readable file ---

    def manifest(self) -> dict[str, Any]:
        """The manifest as the store has it."""
        return {"pairs": self.pairs()}

    def write_manifest(self) -> None:
        """Update ``manifest.json``."""
        if self._manifest_dirty:
            save_manifest(self.output_dir, self.manifest())
            self._manifest_dirty = False

    def _refresh_manifest(self) -> None:
        """Write the manifest if that is possible now. Its content is committed, so that after a failure it
        can wait until closing.
        """
        try:
            self.write_manifest()
        except OSError as error:
            log.warning("manifest.json is out of date, because it could not be written: %s", error)

    def sync_from_manifest(self, manifest: dict[str, Any]) -> None:
        """Take over the file names in the manifest after finalising has moved files."""
        self._adopt_moves({pair["pair_id"]: pair for pair in manifest["pairs"]})


@contextmanager
def existing_store(output_dir: Path) -> Iterator[CurationStore]:
    """Open the store of an existing output folder and lock it meanwhile.

    Raises:
        UserError: the folder is empty, or open in another window.
    """
    if not (output_dir / STORE_NAME).is_file() and not has_existing_exports(output_dir):
        raise UserError(f"{output_dir} is not the output folder of a picking session", hint="check the path")
    with CurationStore(output_dir) as store:
        yield store
