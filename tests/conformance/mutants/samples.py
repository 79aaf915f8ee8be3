"""Wrong sample."""

from __future__ import annotations

import torch

from portable.kernels.sample import reference

from .registry import Edit, mutant, source
from .tools import right

OP = "sample"
CPP, TRITON = f"{OP}/{OP}.cu", f"{OP}/triton_impl.py"


def _sample(logits, seed, offset=None, temperature=None, top_k=None, top_p=None, min_p=None):
    return right(OP)(logits, seed, offset, temperature, top_k, top_p, min_p)


def by_rows(name):
    """A mutant that gets (rows, vocabulary) and (rows,), whatever leading dimensions the call has."""

    def add(function):
        def flat(logits, seed, *rest):
            own = [None if each is None else each.reshape(-1) for each in (seed, *rest)]
            return function(logits.reshape(-1, logits.shape[-1]), *own).reshape(seed.shape)

        return mutant(OP, name)(flat)

    return add


@by_rows("one seed for the batch")
def seed_of_the_batch(logits, seed, *rest):
    return _sample(logits, seed[:1].expand_as(seed), *rest)


@by_rows("the row's number in the counter")
def position_in_the_batch(logits, seed, offset, *rest):
    start = torch.zeros_like(seed) if offset is None else offset
    return _sample(logits, seed, start + torch.arange(len(seed)), *rest)


@by_rows("seed in 32 bits")
def narrow_seed(logits, seed, *rest):
    return _sample(logits, seed & 0xFFFFFFFF, *rest)


@by_rows("offset left out")
def no_offset(logits, seed, offset, *rest):
    return _sample(logits, seed, None, *rest)


@by_rows("top_k one too many")
def one_more(logits, seed, offset, temperature, top_k, *rest):
    more = None if top_k is None else torch.where(top_k > 0, top_k.clamp(max=2**31 - 2) + 1, top_k)
    return _sample(logits, seed, offset, temperature, more, *rest)


@by_rows("top_k one too few")
def one_less(logits, seed, offset, temperature, top_k, *rest):
    less = None if top_k is None else torch.where(top_k > 1, top_k - 1, top_k)
    return _sample(logits, seed, offset, temperature, less, *rest)


@by_rows("a top_k of 0 keeps one")
def none_is_one(logits, seed, offset, temperature, top_k, *rest):
    return _sample(logits, seed, offset, temperature, None if top_k is None else top_k.clamp(min=1), *rest)


@by_rows("min_p as a probability, not by the likeliest token's")
def min_p_of_one(logits, seed, offset, temperature, top_k, top_p, min_p):
    if min_p is not None:
        heat = 1.0 if temperature is None else temperature.double()[:, None]
        most = (logits.double() / heat).softmax(-1).amax(-1)
        min_p = (min_p / most).nan_to_num().float().clamp(max=1.0)
    return _sample(logits, seed, offset, temperature, top_k, top_p, min_p)


@by_rows("top_p before top_k")
def top_p_first(logits, seed, offset, temperature, top_k, top_p, min_p):
    if top_k is None or top_p is None:
        return _sample(logits, seed, offset, temperature, top_k, top_p, min_p)
    heat = torch.ones(len(seed)) if temperature is None else temperature
    ranked = logits.float().sort(dim=-1, descending=True, stable=True)[0]
    kept = (reference.kept(reference.weights(ranked, heat), top_p=top_p) > 0).sum(-1).int()
    least = torch.where(top_k > 0, torch.minimum(top_k, kept.clamp(min=1)), kept.clamp(min=1))
    both = torch.where(top_p < 1, least, top_k)
    return _sample(logits, seed, offset, temperature, both, None, min_p)


def _changed(name, change):
    """The op with one function of its reference replaced."""

    def run(*tensors):
        before = getattr(reference, name)
        setattr(reference, name, lambda *args, **given: change(before, *args, **given))
        try:
            return reference.sample(*tensors)
        finally:
            setattr(reference, name, before)

    return run


@by_rows("temperature after the filters")
def temperature_last(logits, seed, offset, temperature, top_k, top_p, min_p):
    heat = torch.ones(len(seed)) if temperature is None else temperature
    random = heat >= reference.SMALLEST
    ranked = logits.float().sort(dim=-1, descending=True, stable=True)[0]
    weight = reference.kept(reference.weights(ranked, torch.ones_like(heat)), top_k, top_p, min_p)
    count = (weight > 0).sum(-1).clamp(min=1).int()
    some = torch.where(random, count, 0)
    return _sample(logits, seed, offset, temperature, some, None, None)


@by_rows("the token that crosses top_p left out")
def exclusive(*tensors):
    def kept(before, weight, top_k=None, top_p=None, min_p=None):
        weight = before(weight, top_k)
        if top_p is not None:
            sums = weight.cumsum(-1)
            over = (sums >= top_p.double()[:, None] * sums[:, -1:]) & (top_p < 1.0)[:, None]
            over[:, 0] = False
            weight = torch.where(over, 0, weight)
        return before(weight, None, None, min_p)

    return _changed("kept", kept)(*tensors)


@by_rows("all of the tokens with the last one's logit kept")
def ties_kept(logits, seed, offset, temperature, top_k, *rest):
    if top_k is not None:
        ranked = logits.float().sort(dim=-1, descending=True)[0]
        last = ranked.gather(1, (top_k.long()[:, None] - 1).clamp(0, logits.shape[1] - 1))
        top_k = torch.where(top_k > 0, (logits.float() >= last).sum(-1), top_k.long()).int()
    return _sample(logits, seed, offset, temperature, top_k, *rest)


@by_rows("of equal logits the last first")
def last_of_ties(logits, seed, *rest):
    token = _sample(logits.flip(-1), seed, *rest)
    return torch.where(token < 0, token, logits.shape[1] - 1 - token)


@by_rows("NaN taken for -inf")
def nan_left_out(logits, seed, *rest):
    return _sample(logits.nan_to_num(-torch.inf, torch.inf, -torch.inf), seed, *rest)


@by_rows("token 0 where there is none")
def zero_of_none(logits, seed, *rest):
    return _sample(logits, seed, *rest).clamp(min=0)


@by_rows("a temperature of 0 as 1e-5")
def almost_greedy(logits, seed, offset, temperature, *rest):
    return _sample(logits, seed, offset, None if temperature is None else temperature.clamp(min=1e-5), *rest)


@by_rows("the exponentials of float64, rounded")
def other_exponentials(*tensors):
    def weights(before, ranked, temperature):
        found = torch.exp((ranked - ranked[:, :1]).double() / temperature.double()[:, None]) * 2.0**40
        return torch.where(ranked == ranked[:, :1], 1 << 40, found.nan_to_num().round().long())

    return _changed("weights", weights)(*tensors)


source(
    *(OP, "cpp", "gfx942", "one digit of a search too low"),
    Edit(
        CPP,
        "cut += static_cast<int64_t>(digits - 1) << shift;",
        "cut += static_cast<int64_t>(max(digits - 2, 0)) << shift;",
    ),
)
source(
    *(OP, "cpp", "gfx942", "what lies above a range forgotten"),
    Edit(CPP, "above += beyond;", ""),
)
source(
    *(OP, "cpp", "gfx942", "the target of top_p from all tokens but one"),
    Edit(CPP, "above + measure >= target;", "above + measure > target;"),
)
source(
    *(OP, "cpp", "gfx942", "the index counted upwards in a place"),
    Edit(CPP, "((1 << INDEX_BITS) - 1 - column)", "column"),
)
source(
    *(OP, "cpp", "gfx1100", "a zero's sign counts"),
    Edit(CPP, "if (bits == static_cast<int32_t>(0x80000000)) bits = 0;", ""),
)
source(
    *(OP, "cpp", "gfx942", "the last warp's range never drawn from"),
    Edit(CPP, "for (; $warp < WARPS - 1; ++$warp)", "for (; $warp < WARPS - 2; ++$warp)"),
)
source(
    *(OP, "cpp", "gfx942", "the last candidate left out"),
    Edit(CPP, "row.compacted = all;", "row.compacted = all - 1;"),
)
source(
    *(OP, "cpp", "gfx942", "a thread's tokens above a range have no room among the candidates"),
    Edit(CPP, "compact(row, cut, own_counted + kept);", "compact(row, cut, kept);"),
)
source(
    *(OP, "cpp", "gfx1100", "the draw from candidates counts from their end"),
    Edit(CPP, "if (BY_COLUMN) target = all - target;", ""),
)
source(
    *(OP, "triton", "gfx942", "the sums of tiles before this one forgotten"),
    Edit(TRITON, "rest = tl.where(found, wanted - before, rest)", "rest = tl.where(found, wanted, rest)"),
)
source(
    *(OP, "triton", "gfx942", "what lies above a range forgotten"),
    Edit(TRITON, "above += tl.max(tl.where(enough, 0, measure), axis=0)", "above += 0"),
)
source(
    *(OP, "triton", "gfx942", "nine rounds of Philox"),
    Edit(TRITON, "tl.philox(seed, low, high, zero, zero)", "tl.philox(seed, low, high, zero, zero, 9)"),
)
source(
    *(OP, "triton", "gfx942", "NaNs below -inf not seen"),
    Edit(TRITON, "& ((cut >> INDEX_BITS) >= minus_infinity)", ""),
)
source(
    *(OP, "triton", "gfx1100", "each tile's candidates listed over the others'"),
    Edit(TRITON, "listed += many", "listed = many"),
)
source(
    *(OP, "triton", "gfx1100", "the place in the list for the token"),
    Edit(TRITON, "(LAST_INDEX - (tl.load(places + at) & LAST_INDEX)).to(tl.int32)", "at"),
)
source(
    *(OP, "triton", "gfx1100", "listed tokens counted without those above"),
    Edit(TRITON, "(counted + fewest <= CAPACITY)", "(fewest <= CAPACITY)"),
)
source(
    *(OP, "triton", "gfx1100", "the last candidate left out of the list"),
    Edit(TRITON, "kept = (place >= cut).to(tl.int32)", "kept = (place > cut).to(tl.int32)"),
)
