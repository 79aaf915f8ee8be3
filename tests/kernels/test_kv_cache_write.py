"""kv_cache_write in the forms that engines call it in, and before attention over the cache that it wrote."""

from __future__ import annotations

import pytest
import torch

import portable
from portable.conformance.cases.inputs import Bits
from portable.kernels.kv_cache_write import baseline, native, reference
from portable.plan import Call, Device, TensorInfo

from .plan_parts import launch_of, reason


def test_attention_reads_what_was_written():
    """Prefill in two parts, then a token at a time, against attention of the keys and values themselves."""
    torch.manual_seed(0)
    lengths, page, pages, heads, size = [37, 5, 0, 64], 16, 20, 2, 64
    table = torch.randperm(pages)[: 4 * 5].view(4, 5).int()
    k_cache, v_cache = (torch.randn(pages, page, heads, size) for _ in range(2))
    keys = [torch.randn(length + 1, heads, size) for length in lengths]
    values = [torch.randn(length + 1, heads, size) for length in lengths]

    def slots(sequence: int, tokens: range) -> list[int]:
        return [int(table[sequence, i // page]) * page + i % page for i in tokens]

    def write(parts: list[range]) -> None:
        k, v = (
            torch.cat([each[part.start : part.stop] for each, part in zip(own, parts, strict=True)])
            for own in (keys, values)
        )
        places = [slot for z, part in enumerate(parts) for slot in slots(z, part)]
        padding = torch.randn(3, heads, size)
        k, v = torch.cat([k, padding]), torch.cat([v, padding])
        portable.kv_cache_write(k, v, k_cache, v_cache, torch.tensor([*places, -1, -1, -1]))

    write([range(length // 2) for length in lengths])
    write([range(length // 2, length) for length in lengths])
    write([range(length, length + 1) for length in lengths])
    q = torch.randn(4, 1, 4, size)
    total = torch.tensor(lengths).int() + 1
    got = portable.attention_paged(q, k_cache, v_cache, table, total)
    for z in range(4):
        k, v = keys[z].movedim(0, 1)[None], values[z].movedim(0, 1)[None]
        expected = portable.attention(q[z : z + 1].movedim(1, 2), k, v, causal=True)
        torch.testing.assert_close(got[z : z + 1].movedim(1, 2), expected)


def test_a_static_cache_is_pages_of_one_sequence():
    """(sequences, heads, most tokens, size), as Hugging Face's StaticCache: a view, without a copy."""
    cache = torch.zeros(3, 2, 10, 8), torch.zeros(3, 2, 10, 8)
    k, v = torch.randn(2, 3, 4, 2, 8)  # sequences, new tokens, heads
    position = torch.tensor([4, 5, 6, 7])
    slots = (torch.arange(3)[:, None] * 10 + position).flatten()
    portable.kv_cache_write(
        k.flatten(0, 1), v.flatten(0, 1), *(each.transpose(1, 2) for each in cache), slots
    )
    for own, new in zip(cache, (k, v), strict=True):
        expected = torch.zeros(3, 2, 10, 8).index_copy(2, position, new.transpose(1, 2))
        assert torch.equal(own, expected)


def test_keys_and_values_of_one_projection():
    """k and v as columns of what one product made, with q before them."""
    qkv = torch.randn(6, (4 + 2 + 2) * 16)
    k, v = (each.view(6, 2, 16) for each in qkv[:, 64:].split(32, -1))
    caches = torch.zeros(2, 4, 5, 2, 16).unbind(0)
    slots = torch.tensor([19, 0, -1, 7, 3, 11], dtype=torch.int32)
    portable.kv_cache_write(k, v, *caches, slots)
    for cache, rows in zip(caches, (k, v), strict=True):
        flat = cache.flatten(0, 1)
        assert torch.equal(flat[slots[slots >= 0].long()], rows[slots >= 0])
        assert flat.flatten(1).any(1).sum() == 5


@pytest.mark.parametrize("tokens, pages, page", [(12, 20, 16), (50, 2, 16), (7, 0, 4), (0, 3, 4)])
def test_slots_of_cases_are_distinct(tokens, pages, page):
    found = reference.slots({"M": tokens, "P": pages, "S": page}, Bits("slots"))["slots"]
    inside = found[(found >= 0) & (found < pages * page)]
    assert len(found) == tokens and len(inside.unique()) == len(inside)
    assert not pages or tokens < 10 or (found == -1).any()


@pytest.mark.parametrize("tokens", [256, 8192])
def test_slots_of_timings_are_distinct(tokens):
    facts = {"M": tokens, "P": 4096, "S": 16, "I": "int64"}
    found = baseline.derived({"k": torch.empty(0)}, facts)["slots"]
    assert found.dtype == torch.int64 and found.min() >= 0 and found.max() < 65536
    assert len(found.unique()) == tokens and (tokens > 4096 or len((found // 16).unique()) == tokens)


DEVICE = Device("cuda", "sm_90a", "H200", multiprocessors=132)


def planned(cache_strides=None, alignment=16, size=128, places=16, dtype="bfloat16"):
    def info(shape, strides=None, kind=dtype, alignment=16):
        dense = [1] * len(shape)
        for i in reversed(range(len(shape) - 1)):
            dense[i] = dense[i + 1] * shape[i + 1]
        return TensorInfo(shape, tuple(strides or dense), kind, alignment)

    axes = {"M": 8, "G": 2, "D": size, "E": size, "P": 4, "S": places}
    cache = (4, places, 2, size)
    tensors = {
        "k": info((8, 2, size)), "v": info((8, 2, size)), "k_cache": info(cache, cache_strides),
        "v_cache": info(cache, alignment=alignment), "slots": info((8,), kind="int64"),
    }  # fmt: skip
    return native.forward(Call(tensors, {}, axes, DEVICE, {}))


def test_vectors_where_all_is_aligned():
    def vector(**changes):
        return dict(launch_of(planned(**changes)).kernel.defines)["VEC"]

    assert vector() == 8 and vector(dtype="float32") == 4 and vector(dtype="float64") == 2
    assert vector(size=40) == 8 and vector(size=36) == 1 and vector(alignment=8) == 1
    assert vector(cache_strides=(8192, 128, 2048, 1)) == 8  # heads before the tokens of a page
    assert vector(cache_strides=(4096, 256, 1, 2)) == 1 and vector(cache_strides=(4100, 256, 128, 1)) == 1


def test_slots_beyond_32_bits_are_torchs():
    assert "2147483648 slots" in reason(planned(places=1 << 29))
