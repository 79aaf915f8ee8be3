"""portable.sample: kept tokens and frequencies against float64, one token in any batch, wrong calls."""

from __future__ import annotations

import math

import pytest
import torch

import portable
from portable import errors
from portable.conformance.cases.inputs import Bits
from portable.kernels._lib import philox as generator
from portable.kernels.sample import reference
from portable.kernels.sample.baseline import derived
from portable.kernels.sample.baseline import sample as by_torch


def logits(rows, length, scale=3.0, seed=0):
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(seed)) * scale


def draws(row, count, **settings):
    """Tokens of one row at `count` offsets."""
    return portable.sample(
        row.expand(count, -1), seed=11, offset=torch.arange(count), **settings
    )  # a view of stride 0


def chances(row, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The probability of each token, in float64, as the field writes it: by sorting."""
    p, order = (row.double() / temperature).softmax(-1).sort(descending=True, stable=True)
    if top_k:
        p = p * (torch.arange(len(p)) < top_k)
    p = p / p.sum()
    p = p * (p.cumsum(-1) - p < top_p)
    p = p * (p >= min_p * p[0])
    return torch.zeros_like(p).scatter(0, order, p / p.sum())


def chi_square(tokens, p):
    """In standard deviations from what it is where the tokens have these probabilities."""
    expected = p * len(tokens)
    seen = torch.bincount(tokens, minlength=len(p)).double()
    if seen[expected == 0].any():
        return math.inf
    common = expected >= 5
    pairs = [(seen[common], expected[common]), (seen[~common].sum()[None], expected[~common].sum()[None])]
    total = sum(float(((a - b).square() / b.clamp(min=1e-9)).sum()) for a, b in pairs)
    freedom = int(common.sum())
    return abs(total - freedom) / math.sqrt(2 * freedom)


SETTINGS = [
    {},
    {"temperature": 0.6},
    {"temperature": 0.8, "top_k": 7},
    {"top_p": 0.8},
    {"temperature": 2.0, "min_p": 0.2},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_tokens_are_as_frequent_as_in_float64(settings):
    row = logits(1, 60, 2.0)
    tokens = draws(row, 20000, **settings)
    p = chances(row[0], **settings)
    assert chi_square(tokens, p) < 5
    other = chances(row[0], **{**settings, "temperature": settings.get("temperature", 1.0) * 1.3})
    assert chi_square(tokens, other) > 5  # so many draws tell a temperature that is off by a third


@pytest.mark.parametrize("settings", SETTINGS[2:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_filters_keep_what_they_keep_in_float64(settings, dtype):
    x = logits(40, 300, seed=2).to(dtype).float()
    ranked, order = x.sort(dim=-1, descending=True, stable=True)
    heat, rest = settings.get("temperature", 1.0), {k: v for k, v in settings.items() if k != "temperature"}
    weight = reference.weights(ranked, torch.full((40,), heat))
    weight = reference.kept(weight, **{name: torch.full((40,), value) for name, value in rest.items()})
    for row in range(40):
        expected = set(chances(x[row], **settings).nonzero()[:, 0].tolist())
        assert set(order[row][weight[row] > 0].tolist()) == expected


def test_weights_are_exponentials_and_fall_with_the_logit():
    steps = torch.arange(1 << 17, dtype=torch.float32) * 2.0**-13  # to 2^-16, past each whole number
    weight = reference.weights(-steps[None] * math.log(2.0), torch.ones(1))[0].double()
    exact = 2.0**40 * torch.exp2(-(steps * math.log(2.0)).float().double() / math.log(2.0))
    assert ((weight / exact - 1).abs() < 2e-6).all()
    assert (weight.diff() < 0).all() and weight[0] == 2.0**40
    far = reference.weights(torch.tensor([[0.0, -27.7, -27.8, -math.inf]]), torch.ones(1))[0]
    assert far[1] == 1 and far[2:].tolist() == [0, 0]


@pytest.mark.slow
def test_the_power_of_two_falls_at_every_step():
    fraction = torch.arange(1 << 24)
    power = torch.full_like(fraction, reference.POWER[-1])
    for constant in (*reference.POWER[-2::-1], 1 << 31):
        power = constant - (fraction * power >> 24)
    assert (power.diff() < 0).all() and power[0] == 1 << 31 and power[-1] > 1 << 30
    assert ((power.double() / 2.0**31 / torch.exp2(-fraction.double() / 2**24) - 1).abs() < 1e-7).all()


def philox(key, counter):
    """Philox4x32-10 of Salmon and others (2011), in integers of any size."""
    c, k = list(counter), list(key)
    for _ in range(10):
        one, two = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [two >> 32 ^ c[1] ^ k[0], two & 0xFFFFFFFF, one >> 32 ^ c[3] ^ k[1], one & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_keys_may_be_a_row_s_own():
    answers = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's known answers
    assert philox((0, 0), (0, 0, 0, 0)) == answers
    ones = (0xFFFFFFFF,) * 4
    assert philox(ones[:2], ones) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    words = [0, 1, -1, 2**62 + 12345, -(2**63), 0x123456789ABCDEF]
    seed, offset = (
        each.flatten() for each in torch.meshgrid(torch.tensor(words), torch.tensor(words), indexing="ij")
    )
    zero = torch.zeros_like(offset)
    found = generator.philox([*reference._words(offset), zero, zero], reference._words(seed))
    for i in range(len(seed)):
        parts = [[int(each[i]) & 0xFFFFFFFF, int(each[i]) >> 32 & 0xFFFFFFFF] for each in (seed, offset)]
        assert [int(word[i]) for word in found] == philox(parts[0], [*parts[1], 0, 0])


def test_part_is_exact():
    bits = Bits("part")
    whole = torch.from_numpy(bits.below(1 << 61, 500))
    upper, lower = (torch.from_numpy(bits.below(1 << 31, 500)) for _ in range(2))
    upper[0] = lower[0] = (1 << 31) - 1
    whole[0] = (1 << 61) - 1
    got = reference.part(whole, upper, lower).tolist()
    exact = [
        w * (u << 31 | v) >> 62 for w, u, v in zip(*(t.tolist() for t in (whole, upper, lower)), strict=True)
    ]
    assert got == exact


def test_a_row_has_its_token_alone_and_anywhere_in_a_batch():
    x, settings = logits(30, 500, seed=3), reference.settings(logits(30, 500), Bits("rows"))
    names = ("temperature", "top_k", "top_p", "min_p")

    def tokens(rows):
        own = {name: settings[name][rows].float() for name in names}
        own["top_k"] = settings["top_k"][rows].int()
        return portable.sample(x[rows], **own, seed=settings["seed"][rows], offset=settings["offset"][rows])

    together = tokens(torch.arange(30))
    mixed = torch.randperm(30, generator=torch.Generator().manual_seed(4))
    assert torch.equal(tokens(mixed), together[mixed])
    assert torch.equal(torch.cat([tokens(torch.tensor([i])) for i in range(30)]), together)


def test_greedy_is_argmax_and_so_is_a_top_k_of_1():
    x = logits(50, 200, 1.0).bfloat16()  # with ties, of which the lowest index counts
    x[:, 150] = x[:, 30] = x.amax(-1)
    first = (x == x.amax(-1, keepdim=True)).int().argmax(-1)
    for settings in (
        {"temperature": 0},
        {"temperature": 0.0, "top_k": 5},
        {"top_k": 1},
        {"top_p": 0.0},
        {"temperature": 1e-45},
    ):
        assert torch.equal(portable.sample(x, **settings, seed=5), first)
    assert set(draws(x[:1], 200, min_p=1.0).tolist()) == set((x[0] == x[0].max()).nonzero()[:, 0].tolist())


def test_of_equal_logits_the_first_are_kept():
    row = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 2.0]])
    assert set(draws(row, 300, top_k=2).tolist()) == {1, 2}
    assert set(draws(row, 300, top_k=5).tolist()) == {0, 1, 2, 4, 5}
    even = torch.zeros(1, 8)
    assert set(draws(even, 300, top_p=0.5).tolist()) == {0, 1, 2, 3}
    assert set(draws(even, 300, top_p=0.51).tolist()) == {0, 1, 2, 3, 4}
    zeros = torch.tensor([[-0.0, 0.0, -1.0]])
    assert set(draws(zeros, 100, top_k=1).tolist()) == {0}


def test_rows_without_a_token():
    inf, nan = math.inf, math.nan
    x = torch.tensor(
        [[0.0, nan, 1.0], [-inf, -inf, -inf], [0.0, -inf, -inf], [nan, inf, -inf], [1.0, 0.0, -nan]]
    )
    for settings in ({}, {"temperature": 0}, {"top_k": 2, "top_p": 0.5}):
        assert portable.sample(x, **settings, seed=1).tolist() == [-1, -1, 0, -1, -1]
    assert set(draws(torch.tensor([[1.0, inf, 5.0, inf]]), 100).tolist()) == {1, 3}
    assert set(draws(torch.tensor([[3e38, -3e38]]), 100).tolist()) == {0}
    assert portable.sample(torch.zeros(0, 7), seed=1).shape == (0,)


def test_leading_dimensions_are_those_of_the_logits():
    x, seed = logits(12, 90), torch.arange(12)
    flat = portable.sample(x, 0.9, 20, seed=seed)
    assert torch.equal(portable.sample(x.view(3, 4, 90), 0.9, 20, seed=seed.view(3, 4)), flat.view(3, 4))
    assert portable.sample(x[5], 0.9, 20, seed=5) == flat[5]


def test_numbers_are_tensors_of_one_value():
    x = logits(20, 100)
    settings = {"temperature": 0.8, "top_k": 9, "top_p": 0.7, "min_p": 0.01}
    rows = {name: torch.full((20,), value) for name, value in settings.items()}
    expected = portable.sample(x, 0.8, 9, 0.7, 0.01, seed=-3, offset=2**62)
    assert expected.dtype == torch.int64
    assert torch.equal(
        portable.sample(x, **rows, seed=torch.full((20,), -3), offset=torch.full((20,), 2**62)), expected
    )
    off = portable.sample(x, None, -1, 1.0, 0, seed=7, offset=0)
    assert torch.equal(portable.sample(x, 1.0, 0, 1, 0.0, seed=7), off)
    assert torch.equal(portable.sample(x, top_k=100, seed=7), off) and torch.equal(
        portable.sample(x, seed=7), off
    )
    assert not torch.equal(portable.sample(x, seed=8), off) and not torch.equal(
        portable.sample(x, seed=7, offset=1), off
    )
    assert torch.equal(
        portable.sample(x, seed=7, offset=torch.ones(20, dtype=torch.int32)),
        portable.sample(x, seed=7, offset=1),
    )


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"temperature": -0.1}, errors.ParameterError, "0 or above"),
        ({"temperature": math.inf}, errors.ParameterError, "finite"),
        ({"top_p": 1.5}, errors.ParameterError, "from 0 to 1"),
        ({"top_p": "0.9"}, errors.ParameterError, "top_p"),
        ({"min_p": math.nan}, errors.ParameterError, "min_p"),
        ({"top_k": -2}, errors.ParameterError, "-1 or 0 for all"),
        ({"top_k": 1.5}, errors.ParameterError, "top_k"),
        ({"seed": 2**63}, errors.ParameterError, "64 bits"),
        ({"offset": 0.5}, errors.ParameterError, "offset"),
        ({"top_k": torch.ones(4)}, errors.DtypeError, "top_k"),
        ({"seed": torch.arange(3)}, errors.ShapeError, "seed"),
        ({"temperature": torch.ones(4, 1)}, errors.ShapeError, "temperature"),
        ({"logits": torch.tensor(1.0)}, errors.RankError, "logits"),
        ({"logits": torch.ones(4, 5).double()}, errors.DtypeError, "logits"),
        ({"logits": [1.0]}, errors.NotATensorError, "logits"),
        ({"generator": None}, errors.SignatureError, "Here it is seed"),
    ],
)
def test_wrong_calls(given, error, words):
    with pytest.raises(error, match=words):
        portable.sample(**{"logits": torch.zeros(4, 5), "seed": 1, **given})


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_kernels_take_the_token_of_torch_s_operations(emulate, implementation, arch):
    """The two GPUs have waves of 64 and of 32 lanes; a row of 515 ends within a tile."""
    x, own = logits(24, 515, seed=6), reference.settings(logits(24, 515), Bits(arch))
    x[::3] = x[::3].bfloat16().float()  # ties
    x[5, 7], x[6, 100], x[7] = math.nan, math.inf, -math.inf
    settings = {name: own[name].float() for name in ("temperature", "top_p", "min_p")}
    settings |= {"top_k": own["top_k"].int(), "seed": own["seed"], "offset": own["offset"]}
    expected = reference.sample(x, **settings)
    emulate(arch)
    with portable.using(sample=implementation):
        assert torch.equal(portable.sample(x, **settings), expected)
        alone = [
            portable.sample(x[i : i + 1], **{k: v[i : i + 1] for k, v in settings.items()}) for i in (3, 9)
        ]
    assert torch.cat(alone).tolist() == expected[[3, 9]].tolist()


def test_the_baseline_draws_from_the_same_tokens():
    x = logits(64, 200)
    settings = derived({"logits": x}, {"B": 64})
    none, tokens = by_torch(x, **settings)
    assert none is None and tokens.shape == (64,)
    assert all(chances(x[i], 0.7, 50, 0.9, 0.05)[tokens[i]] > 0 for i in range(64))
