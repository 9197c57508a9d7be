"""Prompts in chunks: which tokens are in which, and what is cut."""

from __future__ import annotations

from functools import lru_cache
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.model.text.chunks import in_chunks
from modules.model.text.emphasis import read_emphasis
from tests.tiny import tiny_model
from tests.tiny.stable_diffusion import CONTEXT

ROOM = CONTEXT - 2
WORDS = ("a", "red", "circle,", "zq", "BREAK", "it's", "日本", "xylophone", "n" * ROOM, "q" * (2 * ROOM + 3))


@lru_cache
def tokenizer() -> Any:
    return tiny_model().parts["tokenizer"]


def ids(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False).input_ids  # type: ignore[no-any-return]


def restated(words: list[tuple[str, float]], room: int, breaks: bool) -> list[list[tuple[int, float]]]:
    """Chunks, one word after the other: each is tokenized alone and put where there is room for all of it."""
    pages: list[list[tuple[int, float]]] = [[]]
    for word, weight in words:
        if breaks and word == "BREAK":
            pages += [[]]
            continue
        tokens = [(number, weight) for number in ids(word)]
        if len(tokens) > room:
            for token in tokens:
                if len(pages[-1]) >= room:
                    pages += [[]]
                pages[-1] += [token]
        elif len(tokens) > room - len(pages[-1]):
            pages += [tokens]
        else:
            pages[-1] += tokens
    if pages[-1] == [] and len(pages) > 1:
        return pages[:-1]
    return pages


@settings(max_examples=150, deadline=None)
@given(
    words=st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([1.0, 1.5, 0.5])), max_size=30),
    most=st.integers(2, 8),
    blank=st.sampled_from([" ", "  ", "\n", "\t "]),
)
def test_chunks_are_those_of_a_restatement(words: list[tuple[str, float]], most: int, blank: str) -> None:
    # the mark itself stands bare
    words = [(word, 1.0 if word == "BREAK" else weight) for word, weight in words]
    plain = blank.join(word for word, _ in words)
    weighted = blank.join(word if weight == 1.0 else f"({word}:{weight})" for word, weight in words)
    for prompt, breaks in ((plain, False), (read_emphasis(weighted), True)):
        wanted = restated([(w, f if breaks else 1.0) for w, f in words], ROOM, breaks)
        (made,) = in_chunks(tokenizer(), [prompt], ROOM, most)
        assert [list(chunk) for chunk in made.chunks] == wanted[:most]
        assert made.cut is (len(wanted) > most)
        broken = breaks and any(word == "BREAK" for word, _ in words)
        assert made.plain is (len(wanted) == 1 and not broken)


@pytest.mark.parametrize(
    "prompt", ["", "a red circle", "a " * ROOM, "a " * (ROOM + 1), "a red BREAK cat", "日本" * 9]
)
def test_one_chunk_is_what_the_tokenizer_cuts(prompt: str) -> None:
    whole = tokenizer()(prompt, truncation=False, verbose=False).input_ids
    cut = tokenizer()(prompt, truncation=True, max_length=CONTEXT).input_ids
    for read in (prompt, read_emphasis(prompt)):
        (made,) = in_chunks(tokenizer(), [read], ROOM, 1)
        assert [number for number, _ in made.chunks[0]] == cut[1:-1]
        assert len(made.chunks) == 1 and made.plain and made.cut is (len(whole) > len(cut))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a red BREAK cat", ["a red", "cat"]),
        ("a red,BREAK,cat", ["a red,", ",cat"]),
        ("(a red BREAK cat:1.3)", ["a red", "cat"]),
        ("BREAK cat", ["", "cat"]),
        ("cat BREAK", ["cat"]),
        ("cat BREAK BREAK dog", ["cat", "", "dog"]),
        ("BREAK", [""]),
        ("cat break BREAKS dog", ["cat break BREAKS dog"]),
    ],
)
def test_break_begins_a_chunk_where_emphasis_is_read(prompt: str, expected: list[str]) -> None:
    read = read_emphasis(prompt)
    room = 40
    (made,) = in_chunks(tokenizer(), [read], room, 8)
    assert [[number for number, _ in chunk] for chunk in made.chunks] == [ids(text) for text in expected]
    assert made.plain is ("BREAKS" in prompt)
    (text,) = in_chunks(tokenizer(), [str(read)], room, 8)
    assert [number for number, _ in text.chunks[0]] == ids(str(read)), "elsewhere it is a word"
    assert text.plain


def test_prompts_do_not_depend_on_their_company() -> None:
    prompts = ["a cat", "a " * 40, "", read_emphasis("dog BREAK (red:1.5)"), "n" * 50]
    together = in_chunks(tokenizer(), prompts, ROOM, 3)
    assert together == [in_chunks(tokenizer(), [prompt], ROOM, 3)[0] for prompt in prompts]
    assert [len(one.chunks) for one in together] == [1, 3, 1, 2, 3]
    assert [one.cut for one in together] == [False, False, False, False, True]


def test_a_long_word_is_divided_in_a_time_that_grows_with_its_length() -> None:
    words = "x" * 200_000  # a caption in a script without spaces, or a file of something else
    known = tokenizer()
    begun = process_time()
    (made,) = in_chunks(known, [words], ROOM, 3)
    assert [len(chunk) for chunk in made.chunks] == [ROOM] * 3 and made.cut
    assert process_time() - begun < 5
