"""Phrases for wrong elements: a reader who knows nothing else rebuilds the same mask from the words."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.judge.error_pattern import find

ALL = slice(None)


def mask(shape: tuple[int, ...], *places: Any) -> torch.Tensor:
    found = torch.zeros(shape, dtype=torch.bool)
    for place in places:
        found[place] = True
    return found


EXAMPLES = [
    (mask((4, 8)), "no element"),
    (mask((0, 8), ALL), "no element"),
    (mask((), ()), "every element"),
    (mask((4, 8), ALL), "every element"),
    (mask((4, 8), (2, 3)), "one element, [2, 3]"),
    (mask((2, 3, 4, 5), (1, 2, 3, 4)), "one element, [1, 2, 3, 4]"),
    (mask((128,), -1), "one element, [127]"),
    (mask((256, 8), slice(64, 128)), "rows 64..127 (of 256)"),
    (mask((8, 128), (ALL, 64)), "column 64 alone"),
    (mask((8, 128), (ALL, -1)), "the last column of every row"),
    (mask((8, 128), (ALL, slice(64, None))), "columns from 64 on (of 128)"),
    (mask((8, 128), (ALL, slice(1, None, 2))), "every second column from 1 on"),
    (mask((16, 8), 3, 7, 9), "rows 3, 7 and 9"),
    (mask((4, 128), *[(ALL, slice(at, at + 16)) for at in range(16, 128, 32)]), "columns 16..31 of every 32"),
    (mask((16, 8), 3, 4, 7, 8, 11, 12, 15), "2 rows of every 4, from 3 on"),
    (mask((20, 8), 10, 11, 14, 15, 18, 19), "2 rows of every 4, from 10 on"),
    (mask((8, 9), (0, 1), (3, 5), (3, 6)), "elements [0, 1], [3, 5] and [3, 6]"),
    (mask((2, 8, 9), (0, 0, 1), (1, 3, 5)), "elements [0, 0, 1] and [1, 3, 5]"),
    (mask((64,), slice(0, None, 4)), "every 4th element from 0 on"),
    (mask((128, 128), (slice(64, 128), slice(0, 64))), "a 64 x 64 block at [64, 0]"),
    (mask((64, 64), (slice(0, 16), slice(0, 16)), (slice(32, 48), slice(48, 64))),
     "tiles of 16 x 16: [0, 0] and [32, 48]"),
    (mask((64, 64), slice(32, None), (ALL, slice(32, None))), "all but a 32 x 32 block at [0, 0]"),
    (~mask((9, 9), (3, 4)), "all but column 4 of row 3"),
    (mask((3, 4, 5), 1), "batch 1 alone"),
    (mask((3, 4, 5), (ALL, ALL, -1)), "the last column of every row, in every batch"),
    (mask((3, 4, 5), (1, 2)), "row 2, in batch 1"),
    (mask((2, 3, 4, 5), (0, 2)), "batch [0, 2] alone"),
    (mask((8, 100), (slice(5, 8),), (4, slice(50, None))),
     "elements from 450 on (of 800), counted in row-major order"),
    (mask((64, 64), *[(at, at * 7 % 64) for at in range(0, 60, 5)]),
     "scattered: 12 of 4096 elements, in 12 rows and 12 columns"),
    (mask((64,), 1, 2, 4, 8, 16, 32), "scattered: 6 of 64 elements, from 1 to 32"),
    (mask((40, 9), *{0, *range(3, 40)} - {3, 7, 9, 20, 25}), "33 of 40 rows (0 the first, 39 the last)"),
]  # fmt: skip


@pytest.mark.parametrize("wrong, phrase", EXAMPLES, ids=[phrase for _, phrase in EXAMPLES])
def test_phrases(wrong: torch.Tensor, phrase: str):
    found = find(wrong)
    assert str(found) == phrase
    if found.exact:
        assert torch.equal(found.mask(), wrong)
    else:
        with pytest.raises(ValueError, match="does not name every element"):
            found.mask()


def test_many_tiles():
    wrong = torch.kron(torch.eye(8), torch.ones(16, 32)).bool()
    assert str(find(wrong)) == "8 of 64 tiles of 16 x 32, the first at [0, 0]"
    assert str(find(wrong.expand(2, 128, 256))) == "16 of 128 tiles of 16 x 32, the first at [0, 0, 0]"
    cut = wrong[:120, :250]
    assert str(find(cut)) == "8 of 64 tiles of 16 x 32, the first at [0, 0]"


# The words read back ------------------------------------------------------------------------------


def places(text: str, noun: str, size: int) -> set[int] | None:
    """The indices that a phrase of one axis names, None where it names none exactly."""
    nouns = f"(?:{noun}|{noun}s|{noun}es)"
    ordinal = {"second": 2, "third": 3}
    if text == f"every {noun}":
        return set(range(size))
    if text == f"the last {noun}":
        return {size - 1}
    if m := re.fullmatch(rf"every (\w+) {noun} from (\d+) on", text):
        step = ordinal.get(m[1]) or int(m[1].removesuffix("th"))
        return set(range(int(m[2]), size, step))
    if m := re.fullmatch(rf"{nouns} (\d+)\.\.(\d+) of every (\d+)", text):
        return {i for i in range(size) if int(m[1]) <= i % int(m[3]) <= int(m[2])}
    if m := re.fullmatch(rf"(\d+) {nouns} of every (\d+), from (\d+) on", text):
        return {i for i in range(int(m[3]), size) if (i - int(m[3])) % int(m[2]) < int(m[1])}
    if m := re.fullmatch(rf"{nouns} from (\d+) on \(of {size}\)", text):
        return set(range(int(m[1]), size))
    if m := re.fullmatch(rf"{nouns} ([\d., and]+?)(?: \(of {size}\))?", text):
        found: set[int] = set()
        for part in re.split(r", | and ", m[1]):
            first, _, last = part.partition("..")
            found |= set(range(int(first), int(last or first) + 1))
        return found
    return None


def selection(text: str, rows: int, columns: int) -> tuple[set[int], set[int]] | None:
    """The rows and columns that a phrase names."""
    if m := re.fullmatch(r"a (\d+) x (\d+) block at \[(\d+), (\d+)\]", text):
        height, width, top, left = map(int, m.groups())
        return set(range(top, top + height)), set(range(left, left + width))
    if (found := places(text, "row", rows)) is not None:
        return found, set(range(columns))
    if (found := places(text, "column", columns)) is not None:
        return set(range(rows)), found
    for split in re.finditer(" of ", text):
        left = places(text[: split.start()], "column", columns)
        right = places(text[split.end() :], "row", rows)
        if left is not None and right is not None:
            return right, left
    return None


def read_back(text: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The mask of a tensor of rank 2 or 3 that an exact phrase names, by its words alone."""
    batch, rows, columns = (1, *shape)[-3:]
    found = torch.zeros(batch, rows, columns, dtype=torch.bool)
    if text.startswith("all but "):
        return ~read_back(text.removeprefix("all but "), shape)
    if text == "every element":
        return ~found.reshape(shape)
    if m := re.fullmatch(r"one element, \[([\d, ]+)\]", text):
        found.reshape(shape)[tuple(map(int, m[1].split(", ")))] = True
    elif text.endswith(", counted in row-major order"):
        flat = places(text.removesuffix(", counted in row-major order"), "element", found.numel())
        found.reshape(-1)[sorted(flat or ())] = True
    elif text.startswith("elements ["):
        for place in re.findall(r"\[([\d, ]+)\]", text):
            found.reshape(shape)[tuple(map(int, place.split(", ")))] = True
    elif m := re.match(r"tiles of (\d+) x (\d+): ", text):
        for place in re.findall(r"\[([\d, ]+)\]", text[m.end() :]):
            b, r, c = [0, *map(int, place.split(", "))][-3:]
            found[b, r : r + int(m[1]), c : c + int(m[2])] = True
    else:
        text = text.removesuffix(" alone")
        whole = places(text, "batch", batch) if len(shape) == 3 else None
        if whole is not None:
            found[sorted(whole)] = True
            return found.reshape(shape)
        inner, comma, outer = text.rpartition(", in ")
        batches = places(outer, "batch", batch) if comma else set(range(batch))
        chosen = selection(inner if comma else text, rows, columns)
        assert batches is not None and chosen is not None, text
        for b in batches:
            for r in chosen[0]:
                found[b, r, sorted(chosen[1])] = True
    return found.reshape(shape)


@st.composite
def axis(draw: st.DrawFn, size: int) -> torch.Tensor:
    """Some indices of an axis: all, one, a run, a regular choice, any."""
    index = torch.arange(size)
    kind = draw(st.sampled_from(["all", "one", "run", "regular", "any"]))
    first = draw(st.integers(0, size - 1))
    if kind == "all":
        return index >= 0
    if kind == "one":
        return index == first
    if kind == "run":
        return (index >= first) & (index <= draw(st.integers(first, size - 1)))
    if kind == "regular":
        period = draw(st.integers(2, 9))
        return (index >= first) & ((index - first) % period < draw(st.integers(1, period - 1)))
    if size > 24:  # hypothesis draws no list above 8,192
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        return torch.randint(2, (size,), generator=generator).bool()
    return torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=torch.bool)


@st.composite
def masks(draw: st.DrawFn) -> torch.Tensor:
    """Masks with structure: crossings, unions of two, complements, tiles, stretches, noise."""
    shape = tuple(draw(st.lists(st.integers(1, 24), min_size=2, max_size=3)))
    kind = draw(st.sampled_from(["crossing", "union", "tiles", "stretch", "noise"]))

    def cross() -> torch.Tensor:
        found = torch.ones(shape, dtype=torch.bool)
        for dim, size in enumerate(shape):
            found &= draw(axis(size)).reshape([-1 if other == dim else 1 for other in range(len(shape))])
        return found

    if kind == "crossing":
        wrong = cross()
    elif kind == "union":
        wrong = cross() | cross()
    elif kind == "tiles":
        high, wide = draw(st.integers(4, 8)), draw(st.integers(4, 8))
        coarse = [*shape[:-2], -(-shape[-2] // high), -(-shape[-1] // wide)]
        bits = draw(st.lists(st.booleans(), min_size=math.prod(coarse), max_size=math.prod(coarse)))
        fine = torch.tensor(bits).reshape(coarse).repeat_interleave(high, -2).repeat_interleave(wide, -1)
        wrong = fine[..., : shape[-2], : shape[-1]].contiguous()
    elif kind == "stretch":
        wrong = draw(axis(math.prod(shape))).reshape(shape)
    else:
        seed, share = draw(st.integers(0, 2**31)), draw(st.sampled_from([0.02, 0.1, 0.5]))
        wrong = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    return ~wrong if draw(st.booleans()) else wrong


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(masks())
def test_what_the_words_say_is_so(wrong: torch.Tensor):
    found = find(wrong)
    text = str(found)
    assert found.count == int(wrong.sum())
    if text == "no element":
        assert not wrong.any()
    elif found.exact:
        assert torch.equal(found.mask(), wrong), text
        assert torch.equal(read_back(text, tuple(wrong.shape)), wrong), text
    else:
        three = wrong.reshape((1, *wrong.shape)[-3:])
        sums = (three.any(2).any(1), three.any(2).any(0), three.any(1).any(0))
        counts = [int(each.sum()) for each in sums]
        if text.startswith("scattered"):
            numbers = [int(each) for each in re.findall(r"\d+", text)]
            expected = [found.count, wrong.numel(), counts[1], counts[2]] + counts[:1] * (len(three) > 1)
            assert numbers == expected
        elif found.kind == "tiles":
            number, total, high, wide, *first = map(int, re.findall(r"\d+", text))
            coarse = three[:, ::high, ::wide]
            fine = coarse.repeat_interleave(high, 1).repeat_interleave(wide, 2)
            assert torch.equal(fine[:, : three.shape[1], : three.shape[2]], three)
            assert (number, total) == (int(coarse.sum()), coarse.numel()) and wrong[tuple(first)]
        else:
            assert found.kind == "crossing" and math.prod(counts) == found.count
            end = r" \((\d+) the first, (\d+) the last\)"
            names = {"batches": 0, "rows": 1, "columns": 2}
            named = re.findall(rf"(\d+) of (\d+) ({'|'.join(names)}){end}", text)
            assert named
            for count, size, noun, first, last in named:
                line = sums[names[noun]]
                there = line.nonzero()
                facts = [len(there), len(line), int(there[0]), int(there[-1])]
                assert [int(each) for each in (count, size, first, last)] == facts


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_vectors_and_higher_ranks(data: st.DataObject):
    vector = data.draw(axis(data.draw(st.integers(1, 40))))
    found = find(vector)
    if found.exact:
        assert torch.equal(found.mask(), vector)
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=4, max_size=5)))
    wrong = data.draw(axis(math.prod(shape))).reshape(shape)
    found = find(wrong)
    assert str(found)
    if found.exact:
        assert torch.equal(found.mask(), wrong)
