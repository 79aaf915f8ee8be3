"""sample in Triton: a program per row, by the passes of sample.cu.

Once a search has left few enough candidates, their places are listed in a workspace, in the order of their
columns, and all that follows reads them there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import MAX_GRID, UNFUSED, divisible, unit_of, warps
from portable.kernels.sample.native import KEY_SHIFT, SETTINGS
from portable.layout import next_power_of_2, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

INDEX_BITS = tl.constexpr(21)
LAST_INDEX = tl.constexpr((1 << 21) - 1)
DIGIT_BITS = tl.constexpr(3)
DIGITS = tl.constexpr(8)
FRACTION_BITS = tl.constexpr(24)
WHOLE = tl.constexpr(1 << 40)
"""The weight of the likeliest token."""
SCALE = tl.constexpr(24204406.0)
SMALLEST = tl.constexpr(2.0**-126)
NOWHERE = tl.constexpr(-(1 << 62))
PER_THREAD = 2  # elements of a tile: a search keeps DIGITS sums and counts of each
LEAST_BLOCK = 256
CAPACITY = tl.constexpr(2048)  # places of a row's list


@triton.jit
def value_of(key, SHIFT: tl.constexpr):
    wide = tl.where(key < 0, (key << SHIFT) | ((1 << SHIFT) - 1), key << SHIFT)  # pyright: ignore[reportOperatorIssue]
    return (wide ^ ((wide >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def load_tile(source, start, length, LISTED: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """(logits in float32, their keys, their places) of BLOCK tokens of a row, or of a list of places; beyond
    its `length` the place is NOWHERE. A key is the bits as an integer of the same order, both zeros one; a
    place adds the index."""
    column = start + tl.arange(0, BLOCK)
    there = column < length
    if LISTED:
        place = tl.load(source + column, mask=there, other=0)
        key = (place >> INDEX_BITS).to(tl.int32)
        x = value_of(key, SHIFT)
    else:
        x = tl.load(source + column, mask=there, other=0.0).to(tl.float32)
        bits = x.to(tl.int32, bitcast=True)
        bits = tl.where(bits == -2147483648, 0, bits)
        key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT
        place = (key.to(tl.int64) << INDEX_BITS) + (LAST_INDEX - column)
    return x, key, tl.where(there, place, NOWHERE)


@triton.jit
def weight_of(x, key, top, first, scale):
    """2^40 * exp((x - top) / temperature)."""
    distance = (top - x) * scale
    near = distance < 671088640.0  # 40 * 2^24
    fixed = tl.where(near, distance, 0.0).to(tl.int32)
    fraction = (fixed << (32 - FRACTION_BITS)).to(tl.uint32)
    power = 19743523 - tl.umulhi(fraction, tl.full(fraction.shape, 2017903, tl.uint32))
    power = 118729907 - tl.umulhi(fraction, power)
    power = 515776670 - tl.umulhi(fraction, power)
    power = 1488514207 - tl.umulhi(fraction, power)
    power = 0x80000000 - tl.umulhi(fraction, power)
    found = (power.to(tl.int64) << 9) >> (fixed >> FRACTION_BITS).to(tl.int64)
    return tl.where(key == first, WHOLE, tl.where(near, found, 0))


@triton.jit
def part(whole, upper, lower):
    """floor(whole * f), where f is upper * 2^-31 + lower * 2^-62."""
    high = whole >> 31
    low = whole & 0x7FFFFFFF
    return high * upper + ((high * lower + low * upper + ((low * lower) >> 31)) >> 31)


@triton.jit
def measure_digits(
    source, length, cut, shift, top, first, scale,
    WEIGHED: tl.constexpr, LISTED: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From each of DIGITS places on, `cut` and every 2^shift above it: how many tokens there are below the
    last of them, of weights that are not 0 if WEIGHED, and their weights, or their number again."""
    digit = tl.arange(0, DIGITS)
    sums = tl.zeros([DIGITS, BLOCK], tl.int64)
    counts = tl.zeros([DIGITS, BLOCK], tl.int32)
    for start in range(0, length, BLOCK):
        x, key, place = load_tile(source, start, length, LISTED, SHIFT, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
        distance = place - cut
        inside = (distance >= 0) & ((distance >> shift) < DIGITS)
        own = tl.where(inside, distance >> shift, -1).to(tl.int32)
        if WEIGHED:
            weight = weight_of(x, key, top, first, scale)
            own = tl.where(weight > 0, own, -1)
            sums += tl.where(own[None, :] >= digit[:, None], weight[None, :], 0)
        counts += (own[None, :] >= digit[:, None]).to(tl.int32)
    count = tl.sum(counts, axis=1)
    measure = count.to(tl.int64)
    if WEIGHED:
        measure = tl.sum(sums, axis=1)
    return count, measure


@triton.jit
def list_places(logits, places, length, cut, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the places of the row's tokens from `cut` on, CAPACITY at most. Returns their number."""
    listed = tl.zeros([], tl.int32)
    for start in range(0, length, BLOCK):
        _, _, place = load_tile(logits, start, length, False, SHIFT, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
        kept = (place >= cut).to(tl.int32)
        many = tl.sum(kept, axis=0)
        if many > 0:
            tl.store(places + (listed + tl.cumsum(kept, axis=0) - 1), place, mask=kept > 0)
        listed += many
    tl.debug_barrier()  # before other threads read them
    return listed


@triton.jit
def search(
    logits, places, listed, length, cut, last, share, top, first, scale,
    WEIGHED: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The greatest place from which on tokens measure the target: their weights `share` * 2^-31 of what they
    are from `cut` on if WEIGHED, their number `share` else. `listed` tokens are in the list at `places`,
    or -1 if there is none: unless `places` is None it is made here when few tokens are left. Its length is
    returned too."""
    shift = tl.zeros([], tl.int64)
    while ((last - cut) >> shift) >= DIGITS:
        shift += DIGIT_BITS
    above = tl.zeros([], tl.int64)
    counted = tl.zeros([], tl.int32)  # tokens above those in question
    target = share
    begun = 0
    while shift >= 0:
        if (places is not None) and (listed >= 0):
            count, measure = measure_digits(  # pyright: ignore[reportGeneralTypeIssues]
                places, listed, cut, shift, top, first, scale, WEIGHED, True, SHIFT, BLOCK
            )
        else:
            count, measure = measure_digits(  # pyright: ignore[reportGeneralTypeIssues]
                logits, length, cut, shift, top, first, scale, WEIGHED, False, SHIFT, BLOCK
            )
        if WEIGHED:  # noqa: SIM102 - the one is known when it is compiled
            if begun == 0:
                target = tl.maximum(part(tl.max(measure, axis=0), share, 0), 1)
        begun = 1
        enough = above + measure >= target
        cut += (tl.sum(enough.to(tl.int64), axis=0) - 1) << shift
        above += tl.max(tl.where(enough, 0, measure), axis=0)
        fewest = tl.min(tl.where(enough, count, 0x7FFFFFFF), axis=0)
        rest = tl.max(tl.where(enough, 0, count), axis=0)
        shift = tl.where(fewest - rest == 1, -1, shift - DIGIT_BITS)
        if places is not None:
            few = (listed < 0) & (shift >= 0) & (counted + fewest <= CAPACITY)
            if WEIGHED:
                # Tokens whose weight is 0 are not counted: none of them may be from the cut on.
                key = tl.zeros([1], tl.int32) + (cut >> INDEX_BITS).to(tl.int32)
                least = weight_of(value_of(key, SHIFT), key, top, first, scale)
                few = few & (tl.max(least, axis=0) > 0)
            if few:
                listed = list_places(logits, places, length, cut, SHIFT, BLOCK)
        counted += rest
    return cut, listed


@triton.jit
def kept_weights(
    source, start, length, cut, least, top, first, scale,
    LISTED: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    x, key, place = load_tile(source, start, length, LISTED, SHIFT, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    weight = weight_of(x, key, top, first, scale)
    return tl.where((place >= cut) & (weight >= least), weight, 0)


@triton.jit
def draw(
    source, length, cut, least, top, first, scale, seed, offset,
    LISTED: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Which of a row's tokens, or of those in a list, is the first whose weight and all before it are more
    than a random part of all weights."""
    sums = tl.zeros([BLOCK], tl.int64)
    for start in range(0, length, BLOCK):
        sums += kept_weights(source, start, length, cut, least, top, first, scale, LISTED, SHIFT, BLOCK)
    zero = tl.zeros([], tl.uint32)
    low, high = offset.to(tl.uint32), (offset >> 32).to(tl.uint32)
    word, other, _, _ = tl.philox(seed, low, high, zero, zero)  # pyright: ignore[reportGeneralTypeIssues]
    upper, lower = (word >> 1).to(tl.int64), (other >> 1).to(tl.int64)
    wanted = part(tl.sum(sums, axis=0), upper, lower)
    # No early exit: with one, LLVM merges what is before the loop with its body, and lane 0 of a wave, which
    # writes the sum to LDS, comes to another barrier than the others (Triton 3.7.1, gfx942, emulated).
    before = tl.zeros([], tl.int64)
    begin = 0
    rest = tl.zeros([], tl.int64)
    for start in range(0, length, BLOCK):
        weight = kept_weights(source, start, length, cut, least, top, first, scale, LISTED, SHIFT, BLOCK)
        after = before + tl.sum(weight, axis=0)
        found = (before <= wanted) & (wanted < after)
        begin = tl.where(found, start, begin)
        rest = tl.where(found, wanted - before, rest)
        before = after
    weight = kept_weights(source, begin, length, cut, least, top, first, scale, LISTED, SHIFT, BLOCK)
    return begin + tl.sum((tl.cumsum(weight, axis=0) <= rest).to(tl.int32), axis=0)


@triton.jit
def sample_rows(
    logits_ptr, seed_ptr, offset_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, token_ptr,
    places_ptr, logits_stride, length,
    PDL: tl.constexpr, UNIT: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token of one row."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * divisible(logits_stride, UNIT)
    length = divisible(length, UNIT)
    most = tl.full([BLOCK], NOWHERE, tl.int64)
    negated = tl.full([BLOCK], NOWHERE, tl.int64)
    for start in range(0, length, BLOCK):
        _, _, place = load_tile(logits, start, length, False, SHIFT, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
        most = tl.maximum(most, place)
        negated = tl.maximum(negated, tl.where(place == NOWHERE, NOWHERE, -place))
    last = tl.max(most, axis=0)
    cut = -tl.max(negated, axis=0)
    first = (last >> INDEX_BITS).to(tl.int32)
    token = (LAST_INDEX - (last & LAST_INDEX)).to(tl.int32)
    # NaNs lie beyond the infinities, above or below them.
    minus_infinity = -2139095041 >> SHIFT
    good = (
        (first <= (0x7F800000 >> SHIFT)) & ((cut >> INDEX_BITS) >= minus_infinity) & (first != minus_infinity)
    )
    heat = 1.0
    if temperature_ptr is not None:
        heat = tl.load(temperature_ptr + row)
    if good & (heat >= SMALLEST):
        top = value_of(first, SHIFT)
        scale = tl.div_rn(SCALE, heat)
        listed = tl.full([], -1, tl.int32)
        places = places_ptr
        if places_ptr is not None:
            places = places_ptr + row * CAPACITY
        if top_k_ptr is not None:
            count = tl.load(top_k_ptr + row)
            if (count > 0) & (count < length):
                cut, listed = search(  # pyright: ignore[reportGeneralTypeIssues]
                    logits, places, listed, length, cut, last, count.to(tl.int64), top, first, scale,
                    False, SHIFT, BLOCK,
                )  # fmt: skip
        if top_p_ptr is not None:
            share = tl.load(top_p_ptr + row)
            if share < 1.0:
                fixed = (tl.where(share > 0.0, share, 0.0) * 2147483648.0).to(tl.int64)
                cut, listed = search(  # pyright: ignore[reportGeneralTypeIssues]
                    logits, places, listed, length, cut, last, fixed, top, first, scale, True, SHIFT, BLOCK
                )
        least = tl.zeros([], tl.int64)
        if min_p_ptr is not None:
            share = tl.load(min_p_ptr + row)
            share = tl.where(share > 0.0, tl.where(share < 1.0, share, 1.0), 0.0)
            least = (share * 1099511627776.0).to(tl.int64)
        seed = tl.load(seed_ptr + row)
        offset = tl.zeros([], tl.int64)
        if offset_ptr is not None:
            offset = tl.load(offset_ptr + row)
        if (places_ptr is not None) and (listed >= 0):
            at = draw(places, listed, cut, least, top, first, scale, seed, offset, True, SHIFT, BLOCK)
            token = (LAST_INDEX - (tl.load(places + at) & LAST_INDEX)).to(tl.int32)
        else:
            token = draw(logits, length, cut, least, top, first, scale, seed, offset, False, SHIFT, BLOCK)
    tl.store(token_ptr + row, tl.where(good, token, -1).to(tl.int64))


def forward(call: Call) -> Plan | Rejected:
    """Plan the tokens: one launch. Where there is something to search, each row has room for a list, but on
    GPUs of waves of 64 lanes, whose scalar registers do not hold what the kernel needs for it."""
    view = rows(call["logits"])
    if view.count > MAX_GRID:
        return Rejected(f"{view.count} rows: more than {MAX_GRID} programs")
    unit = unit_of(call, ["logits"], ["logits"], view.length)
    block = min(call.config.get("CHUNK", 1024), max(LEAST_BLOCK, next_power_of_2(view.length)))
    constants = (
        ("UNIT", unit),
        ("SHIFT", KEY_SHIFT[call["logits"].dtype]),
        ("BLOCK", block),
        pdl_constant(call.device),
    )
    searched = (call.has("top_k") or call.has("top_p")) and call.device.warp_size == 32
    absent = tuple((f"{name}_ptr", None) for name in SETTINGS if not call.has(name))
    absent += () if searched else (("places_ptr", None),)
    kernel = TritonKernel(
        sample_rows,
        (*constants, *absent),
        warps(call.device, block // PER_THREAD),
        num_stages=2,
        options=UNFUSED,
    )
    names = ("logits", "seed", *SETTINGS, "token")
    args: tuple[tuple[str, Argument], ...] = (
        *(
            (f"{name}_ptr", Pointer(name, unit > 1 and name == "logits"))
            for name in names
            if name not in SETTINGS or call.has(name)
        ),
        *((("places_ptr", Pointer("places", True)),) if searched else ()),
        ("logits_stride", Scalar("i64", view.stride)),
        ("length", Scalar("i32", view.length)),
    )
    room = (Workspace("places", (view.count, CAPACITY.value), "int64"),) if searched else ()
    return Plan((Launch(kernel, (view.count, 1, 1), args),), room)
