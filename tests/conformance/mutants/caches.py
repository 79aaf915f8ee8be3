"""Wrong kv_cache_write and qk_norm_rope_kv_write."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right

OP = "kv_cache_write"
CPP, TRITON = f"{OP}/{OP}.cu", f"{OP}/triton_impl.py"


def _write(k, v, k_cache, v_cache, slots):
    right(OP)(k, v, k_cache, v_cache, slots)


def _count(cache):
    return cache.shape[0] * cache.shape[1]


@mutant(OP, "values left out")
def no_values(k, v, k_cache, v_cache, slots):
    _write(k, v, k_cache, v_cache.clone(), slots)


@mutant(OP, "written to a copy of a cache that is not contiguous")
def to_a_copy(k, v, k_cache, v_cache, slots):
    _write(k, v, k_cache.contiguous(), v_cache.contiguous(), slots)


@mutant(OP, "-1 taken for the last slot")
def last_slot(k, v, k_cache, v_cache, slots):
    count = _count(k_cache)
    _write(k, v, k_cache, v_cache, torch.where((slots < 0) & (slots >= -count), slots + count, slots))


@mutant(OP, "-1 taken for slot 0")
def first_slot(k, v, k_cache, v_cache, slots):
    free = (slots == -1) & ~(slots == 0).any()
    _write(k, v, k_cache, v_cache, torch.where(free, 0, slots))


@mutant(OP, "slots beyond the cache taken modulo its size")
def around(k, v, k_cache, v_cache, slots):
    count = max(_count(k_cache), 1)
    _write(k, v, k_cache, v_cache, torch.where(slots >= count, slots % count, slots))


@mutant(OP, "slots counted through the places of all pages first")
def page_last(k, v, k_cache, v_cache, slots):
    pages, page = max(k_cache.shape[0], 1), k_cache.shape[1]
    inside = (slots >= 0) & (slots < pages * page)
    _write(k, v, k_cache, v_cache, torch.where(inside, slots % pages * page + slots // pages, slots))


@mutant(OP, "the rest of a page cleared")
def cleared(k, v, k_cache, v_cache, slots):
    inside = slots[(slots >= 0) & (slots < _count(k_cache))].long()
    for cache in (k_cache, v_cache):
        cache[inside // cache.shape[1]] = 0
    _write(k, v, k_cache, v_cache, slots)


@mutant(OP, "the cache through float32 and back")
def through_float32(k, v, k_cache, v_cache, slots):
    """Only a NaN's payload tells."""
    _write(k, v, k_cache, v_cache, slots)
    for cache in (k_cache, v_cache):
        if cache.dtype == torch.bfloat16:
            cache.view(torch.int16)[cache.isnan()] ^= 1


@mutant(OP, "zeros added to what was there")
def added(k, v, k_cache, v_cache, slots):
    _write(k, v, k_cache, v_cache, slots)
    for cache in (k_cache, v_cache):
        cache += 0.0


@mutant(OP, "heads in the order of memory, not of strides")
def flat(k, v, k_cache, v_cache, slots):
    strides = (k.shape[1] * k.shape[2], k.shape[2], 1)
    there = k.untyped_storage().nbytes() // k.element_size() - k.storage_offset()
    _write(k.as_strided(k.shape, strides) if k.numel() <= there else k, v, k_cache, v_cache, slots)


@mutant(OP, "slots in 32 bits")
def narrow_slots(k, v, k_cache, v_cache, slots):
    _write(k, v, k_cache, v_cache, slots.int())


source(
    *(OP, "cpp", "gfx942", "slots beyond the cache written"),
    Edit(CPP, "if ($slot < 0 || $slot >= places) return;", "if ($slot < 0) return;"),
)
source(
    *(OP, "cpp", "gfx942", "values to the keys' heads"),
    Edit(CPP, "place(unit - k_units, V_UNITS, v_cache_head,", "place(unit - k_units, V_UNITS, k_cache_head,"),
)
source(
    *(OP, "cpp", "gfx942", "one pass alone of a token's units"),
    Edit(CPP, "base < units; base += LANES * CHUNKS", "base < LANES; base += LANES * CHUNKS"),
)
source(
    *(OP, "cpp", "gfx1100", "one token past the end written"),
    Edit(CPP, "if ($token >= tokens) return;", "if ($token > tokens) return;"),
)
source(
    *(OP, "cpp", "gfx942", "elements of a head taken for neighbours"),
    Edit(CPP, "(VEC > 1 ? $column : $column * element)", "$column"),
)
source(
    *(OP, "triton", "gfx942", "values from the columns of keys"),
    Edit(TRITON, "heads, block - k_blocks, V_SIZE", "heads, block, V_SIZE"),
)
source(
    *(OP, "triton", "gfx942", "skipped tokens written to slot 0"),
    Edit(TRITON, "inside &= ($slot >= 0) & ($slot < places)", "good = ($slot >= 0) & ($slot < places)"),
    Edit(TRITON, "tl.where(inside, $slot, 0)", "tl.where(good, $slot, 0)"),
)


FUSED, ROPE = "qk_norm_rope_kv_write", "rope/triton_impl.py"
NORMED, OWN = "qk_norm_rope/qk_norm_rope.cu", f"{FUSED}/triton_impl.py"


def _fused(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings):
    return right(FUSED)(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings)


@mutant(FUSED, "keys written as they came")
def keys_as_they_came(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings):
    spare = k_cache.clone(), v_cache.clone()
    _write(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots.flatten())
    return _fused(q, k, v, cos, sin, *spare, slots, positions, *weights, **settings)


@mutant(FUSED, "keys normalised, not rotated")
def keys_not_rotated(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings):
    spare = k_cache.clone(), v_cache.clone()
    rotated = _fused(q, k, v, cos, sin, *spare, slots, positions, *weights, **settings)
    still = torch.ones_like(cos), torch.zeros_like(sin)
    _fused(q, k, v, *still, k_cache, v_cache, slots, positions, *weights, **settings)
    return rotated


@mutant(FUSED, "queries of skipped tokens left out")
def queries_left_out(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings):
    rotated = _fused(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings)
    rotated[slots < 0] = 0
    return rotated


@mutant(FUSED, "slots of the first sequence for all")
def first_slots(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings):
    same = slots[:1].expand(slots.shape) if len(slots) else slots
    return _fused(q, k, v, cos, sin, k_cache, v_cache, same, positions, *weights, **settings)


@mutant(FUSED, "normalised where there are no weights")
def always_normalised(
    q, k, v, cos, sin, k_cache, v_cache, slots, positions, q_weight, k_weight, **settings
):  # fmt: skip
    ones = [q.new_ones(q.shape[-1]) if weight is None else weight for weight in (q_weight, k_weight)]
    return _fused(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *ones, **settings)


@mutant(FUSED, "positions in the place of slots")
def positions_for_slots(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings):
    if positions is not None:
        slots = torch.where(slots >= 0, positions, slots)
    return _fused(q, k, v, cos, sin, k_cache, v_cache, slots, positions, *weights, **settings)


source(
    *(FUSED, "cpp", "gfx942", "values with the steps of keys"),
    Edit(NORMED, "$from + head * v_head + $column", "$from + head * k_head + $column"),
)
source(
    *(FUSED, "cpp", "gfx942", "skipped tokens' keys to slot 0"),
    Edit(NORMED, "if ($head < q_heads || kept) {", "{"),
)
source(
    *(FUSED, "cpp", "gfx1100", "values left out"),
    Edit(NORMED, "value.store(to + head * v_cache_head + column);", ""),
)
source(
    *(FUSED, "triton", "gfx942", "keys of skipped tokens to slot 0"),
    Edit(ROPE, "kept = stored[:, None, None]", "kept = inside[:, None, None]"),
)
source(
    *(FUSED, "triton", "gfx942", "values from the first columns"),
    Edit(OWN, "block - q_blocks - k_blocks", "0"),
)
