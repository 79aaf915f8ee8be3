"""Scales from data: the thresholds against plain loops over the definitions, and known distributions."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import portable
from portable import errors
from portable.kernels._lib import minifloat
from portable.quantization import (
    Float8StaticActivationFloat8WeightConfig,
    Int8StaticActivationInt8WeightConfig,
    ObservedLinear,
    Observer,
    PerRow,
    PerTensor,
    QuantizedLinear,
)
from portable.quantization.histogram import Histogram
from portable.quantization.observer import LARGEST, METHODS, _thresholds

E4M3, FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
LIST: Any = [1.0]
OF_8_BITS = [torch.int8, E4M3, torch.float8_e5m2, torch.float8_e4m3fnuz]


def seen(batches, method="max", **given):
    observer = Observer(method, **given)
    for each in batches:
        observer.update(each)
    return observer


def normal(count=20_000, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def batches_of_growing_size(seed=0):
    """Each one's range is other than the last one's, in bfloat16, with zeros; some are empty."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [2.0**power for power in (-20, 3, -4, 0, 7, 1)]
    drawn = [torch.randn(7, 300, generator=generator) * size for size in sizes]
    drawn[2][:, ::3] = 0
    return [*(each.bfloat16() for each in drawn), torch.empty(0, 300), torch.zeros(4)]


def test_the_histogram_that_grew_is_that_of_one_pass():
    batches = batches_of_growing_size()
    one, grown = Histogram(512), Histogram(512)
    one.add(torch.cat([each.flatten().float() for each in batches]))
    for each in batches:
        grown.add(each)
    assert torch.equal(one.counts, grown.counts) and (one.zeros, one.amax) == (grown.zeros, grown.amax)
    sizes = torch.cat([each.flatten().double() for each in batches]).abs()
    assert one.total == sizes.numel() and one.zeros == int((sizes == 0).sum())
    assert one.width == 2.0 ** (math.floor(math.log2(one.amax)) + 1 - 9)
    edges = torch.arange(513, dtype=torch.float64) * one.width
    for index in (0, 1, 100, 300, 511):
        inside = (sizes >= edges[index]) & (sizes < edges[index + 1]) & (sizes != 0)
        assert one.counts[index] == inside.sum()


def test_numbers_at_the_edges_of_bins():
    """A power of two is in the bin above it, also after the range has grown."""
    grown = Histogram(256)
    for value in (1.0, 2.0, 4.0, 512.0, 2.0**-149):
        grown.add(torch.tensor([value, -value]))
    assert grown.width == 4.0 and grown.amax == 512.0
    assert {int(i): int(grown.counts[i]) for i in grown.counts.nonzero()} == {0: 6, 1: 2, 128: 2}
    grown.add(torch.tensor([1e38]))  # more than all bins at once
    assert int(grown.counts[0]) == 10 and int(grown.counts.sum()) == 11


@pytest.mark.parametrize("method", METHODS)
def test_no_order_of_batches_and_no_split_changes_a_scale(method):
    batches = batches_of_growing_size(1)
    whole = torch.cat([each.flatten().float() for each in batches])
    given = {"percentile": 97.3, "bins": 512}
    expected = seen([whole], method, **given)
    orders = [batches, batches[::-1], batches[3:] + batches[:3], list(whole.split(77))]
    for dtype in (torch.int8, E4M3):
        wanted = expected.scale(dtype)
        for order in orders:
            assert torch.equal(seen(order, method, **given).scale(dtype), wanted)


@pytest.mark.parametrize("dtype", OF_8_BITS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_max_is_the_quantisers_own_scale(dtype, kind):
    batches = [normal(500, seed).to(kind) * 3**seed for seed in range(4)]
    found = seen(batches).scale(dtype)
    whole = torch.cat(batches)
    if dtype == torch.int8:
        _, wanted = portable.quantize_int8(whole, "tensor")
    else:
        _, wanted = portable.quantize_fp8(whole, "tensor", dtype=dtype)
    assert found.dtype == torch.float32 and torch.equal(found, wanted)
    if dtype == torch.int8:
        q, used = portable.quantize_int8(whole, "tensor", scale=found)
    else:
        q, used = portable.quantize_fp8(whole, "tensor", dtype=dtype, scale=found)
    assert torch.equal(used, found) and q.shape == whole.shape


def test_max_is_the_global_scale_of_nvfp4_too():
    x = normal(512).reshape(8, 64)
    assert torch.equal(seen(x).scale(FP4), portable.quantize_nvfp4(x)[2])
    assert torch.equal(seen([torch.zeros(3)]).scale(FP4), portable.quantize_nvfp4(torch.zeros(1, 4))[2])
    assert torch.equal(
        seen([torch.zeros(3)], "mse").scale(E4M3), portable.quantize_fp8(torch.zeros(2), "tensor")[1]
    )


@pytest.mark.parametrize("percentile", [100, 99.99, 99.9, 90, 50, 0.01])
def test_percentile_is_within_a_bin_of_the_order_statistic(percentile):
    x = torch.cat([normal(9_000).exp(), torch.zeros(1_000)])
    observer = seen(x.split(999), "percentile", percentile=percentile)
    rank = math.ceil(round(percentile * 100) * len(x) / 10_000)
    wanted = float(x.sort().values[rank - 1])
    found, width = observer.threshold(E4M3), 2.0 ** (math.frexp(float(x.max()))[1] - 11)
    assert wanted <= found <= wanted + width
    if percentile == 100:
        assert found == float(x.max())
    assert percentile != 0.01 or found == 0


def plain_codes(value, dtype):
    """Rounded to the type and saturated, in Python."""
    if dtype == torch.int8:
        return min(round(value), 127)
    return float(minifloat.rounded(torch.tensor(value, dtype=torch.float64), str(dtype)[6:]))


def loops(observer, dtype, entropy):
    """The threshold by the definition, with Python's numbers."""
    counts = observer._seen.counts.tolist()
    amax, width = observer.amax, observer._seen.width
    used = int(amax / width) + 1
    best, found = math.inf, None
    for bins in [*range(128, used, 8), used]:
        threshold = amax if bins == used else bins * width
        scale = threshold / LARGEST[dtype]
        numbers = [plain_codes((i + 0.5) * width / scale, dtype) * scale for i in range(len(counts))]
        if entropy:
            groups = {}
            for i in range(bins):
                groups.setdefault(numbers[i], []).append(i)
            after = [0.0] * bins
            for members in groups.values():
                filled = [i for i in members if counts[i]]
                for i in filled:
                    after[i] = sum(counts[j] for j in filled) / len(filled)
            before, filled = counts[:bins], [i for i in range(bins) if counts[i]]
            if filled:
                before[filled[-1]] += sum(counts[bins:])
            total, kept = sum(before), sum(after)
            terms = [before[i] / total * math.log(before[i] / total / (after[i] / kept)) for i in filled]
            value = sum(terms) if filled else math.inf
        else:
            value = sum(
                count * ((i + 0.5) * width - number) ** 2
                for i, (count, number) in enumerate(zip(counts, numbers, strict=True))
            )
        if value <= best:
            best, found = value, threshold
    return found


@pytest.mark.parametrize("dtype", [torch.int8, pytest.param(E4M3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["mse", "entropy"])
def test_the_threshold_is_that_of_plain_loops(method, dtype):
    heavy = normal(4_000) / normal(4_000, 1).abs().clamp(min=0.02)
    for x in (normal(4_000), heavy, torch.cat([normal(300), torch.tensor([30.0])])):
        observer = seen([x], method, bins=256)
        assert observer.threshold(dtype) == pytest.approx(loops(observer, dtype, method == "entropy"))


def test_mse_of_a_normal_distribution_in_int8():
    """Noise of a step inside, s^2 / 12, and the tail outside: least at 3.9 to 4 standard deviations."""
    grid = torch.linspace(3, 5, 2001, dtype=torch.float64)
    tail = torch.erfc(grid / math.sqrt(2)) / 2
    density = (-grid.square() / 2).exp() / math.sqrt(2 * math.pi)
    error = (grid / 127).square() / 12 * (1 - 2 * tail) + 2 * ((1 + grid.square()) * tail - grid * density)
    wanted = float(grid[error.argmin()])
    assert 3.8 < wanted < 4.1
    ranks = (torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000
    x = (torch.erfinv(2 * ranks - 1) * math.sqrt(2)).float()
    assert seen([x], "mse").threshold(torch.int8) == pytest.approx(wanted, abs=0.1)


@pytest.mark.parametrize("method", ["mse", "entropy"])
def test_an_outlier_is_cut_off_and_a_uniform_range_is_kept(method):
    uniform = torch.linspace(-1, 1, 200_001)
    assert seen([uniform], method).threshold(torch.int8) > 0.97
    x = torch.cat([normal(200_000), torch.tensor([40.0])])
    found = seen([x], method).threshold(torch.int8)
    if method == "mse":  # the least (40 - t)^2 + 200000 (t / 127)^2 / 12
        assert found == pytest.approx(40 / (1 + 200_000 / (12 * 127**2)), rel=0.05)
    else:
        assert 3.9 < found < 6
    assert seen([x], "max").threshold(torch.int8) == 40
    scale = seen([x], method).scale(torch.int8)
    q, _ = portable.quantize_int8(x, "tensor", scale=scale)
    rough, of_max = portable.quantize_int8(x[:-1], "tensor", scale=seen([x]).scale(torch.int8))
    error = float((q[:-1] * scale - x[:-1]).square().sum())
    at_most = float((rough * of_max - x[:-1]).square().sum())
    if method == "mse":  # nothing but the outlier saturates: the steps' ratio, squared
        assert error == pytest.approx(at_most * (found / 40) ** 2, rel=0.02)
    else:
        assert error < at_most / 4


def test_one_number_alone():
    for method in METHODS:
        assert seen([torch.full((5,), -3.0)], method).threshold(torch.int8) == 3


def test_of_equal_thresholds_the_greater():
    """Of two numbers nothing is lost whether one saturates or none, by the divergence."""
    x = torch.tensor([1.0] * 50 + [-3.0] * 2)
    assert seen([x], "entropy").threshold(torch.int8) == 3


def test_the_last_threshold_leaves_nothing_outside():
    for amax in (1.0, 3.0, 2.9999, 1e-30):
        histogram = seen([torch.linspace(0, amax, 999)])._seen
        *_, (bins, threshold) = _thresholds(histogram)
        assert threshold == histogram.amax and int(histogram.counts[bins:].sum()) == 0


def test_what_is_not_finite_is_refused_by_name_and_not_counted():
    observer = seen([normal(10)])
    amax, observer.name = observer.amax, "layers.0.input"
    for value in (math.nan, math.inf, -math.inf):
        bad = torch.tensor([[1e9, value], [value, 0.0]])
        words = "2 NaN and 0 Inf" if math.isnan(value) else "0 NaN and 2 Inf"
        with pytest.raises(errors.ArgumentError, match=rf"'layers\.0\.input'.*{words} among 4 numbers"):
            observer.update(bad)
    assert (observer.amax, observer.count) == (amax, 10)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (errors.ParameterError, "mean 'entropy'", lambda: Observer("entropie")),
        (errors.ParameterError, "'percentile' is 0", lambda: Observer("percentile", percentile=0)),
        (errors.ParameterError, "'percentile' is 101", lambda: Observer(percentile=101)),
        (errors.ParameterError, "'bins'.*power of two", lambda: Observer(bins=1000)),
        (errors.ArgumentError, "of no number yet", lambda: Observer().scale(torch.int8)),
        (errors.ArgumentError, "of no number yet", lambda: seen([torch.empty(0, 3)]).scale(torch.int8)),
        (errors.ParameterError, "'dtype' is torch.int32", lambda: seen([normal(3)]).scale(torch.int32)),
        (errors.ParameterError, "Take 'max'", lambda: seen([normal(3)], "mse").scale(FP4)),
        (errors.DtypeError, "'x'.*int64", lambda: Observer().update(torch.ones(3, dtype=torch.int64))),
        (errors.NotATensorError, "'x'", lambda: Observer().update(LIST)),
    ],
)
def test_what_it_refuses_and_says(error, match, call):
    with pytest.raises(error, match=match):
        call()


# Static configs ------------------------------------------------------------------------------------------

Fp8, Int8 = Float8StaticActivationFloat8WeightConfig, Int8StaticActivationInt8WeightConfig


def model() -> Any:
    torch.manual_seed(0)
    made: Any = nn.ModuleDict({"up": nn.Linear(70, 50), "down": nn.Linear(50, 33, bias=False)}).bfloat16()
    made.forward = lambda x: made["down"](made["up"](x).relu())
    return made


def operands(linear, x, config):
    """x and the weight of a converted linear multiplied back, in float64."""
    scale = linear.input_scale
    if isinstance(config, Int8):
        left = portable.quantize_int8(x, "tensor", scale=scale)[0].double()
        codes = linear.weight.double()
    else:
        q, _ = portable.quantize_fp8(x, "tensor", dtype=config.activation_dtype, scale=scale)
        left, codes = (
            minifloat.decode(each.view(torch.uint8), "float8_e4m3fn") for each in (q, linear.weight)
        )
    return left * scale.double(), codes * linear.weight_scale.double()


@pytest.mark.parametrize("made", [Fp8, Int8])
@pytest.mark.parametrize("weights", [PerTensor(), PerRow()])
def test_the_steps_find_each_linears_scale(made, weights):
    granularity = (PerTensor(), weights)
    net, batches = model(), [normal(210, seed).reshape(3, 70).bfloat16() * 2**seed for seed in range(4)]
    plain: Any = copy.deepcopy(dict(net.items()))
    prepare = made(step="prepare", observer=Observer("percentile", percentile=99.0), granularity=granularity)
    portable.quantize_(net, prepare)
    assert type(net["up"]) is ObservedLinear and "Observer('percentile'" in repr(net)
    for each in batches:
        observed = net["down"](net["up"](each).relu())
        assert torch.equal(observed, plain["down"](plain["up"](each).relu()))
    convert = made(step="convert", granularity=granularity)
    portable.quantize_(net, convert)
    dtype = torch.int8 if made is Int8 else E4M3
    hidden = [plain["up"](each).relu() for each in batches]
    for name, data in (("up", batches), ("down", hidden)):
        wanted = seen(data, "percentile", percentile=99.0).scale(dtype)
        assert type(net[name]) is QuantizedLinear and torch.equal(net[name].input_scale, wanted)
        assert not hasattr(net[name], "observer")
    x = batches[0]
    left, right = operands(net["up"], x, convert)
    ref = left @ right.T + plain["up"].bias.double()
    limit = 0.51 * 2**-7 * ref.abs() + 30 * 2**-24 * (left.square() @ right.T.square()).sqrt() + 1e-6
    assert bool(((net["up"](x).double() - ref).abs() <= limit).all())


@pytest.mark.parametrize("made", [Fp8, Int8])
def test_a_given_scale_is_a_buffer_and_saturates(made):
    net: Any = nn.Sequential(nn.Linear(8, 4, bias=False))
    scale = torch.tensor([0.01])
    config = made(act_quant_scale=scale)
    portable.quantize_(net, config)
    scale.fill_(7)  # a copy was made
    assert net.state_dict()["0.input_scale"].shape == () and float(net[0].input_scale) == pytest.approx(0.01)
    other = nn.Sequential(nn.Linear(8, 4, bias=False))
    portable.quantize_(other, made(act_quant_scale=torch.tensor(1.0)))
    other.load_state_dict(net.state_dict())
    x = torch.full((2, 8), 1e6)
    assert torch.equal(other(x), net(x)) and torch.equal(net(x), net(x * 2))
    assert torch.equal(copy.deepcopy(net)(x[0]), net(x)[0])
    y = net(x.requires_grad_())
    with pytest.raises(errors.UnsupportedGradientError, match="its weight is quantised"):
        y.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("made", [Fp8, Int8])
def test_static_linears_compile_whole(made):
    net = nn.Sequential(nn.Linear(16, 24)).bfloat16()
    portable.quantize_(net, made(act_quant_scale=torch.tensor(0.02)))
    x = normal(48).reshape(3, 16).bfloat16()
    assert torch.equal(torch.compile(net, fullgraph=True, backend="aot_eager")(x), net(x))
    torch._dynamo.reset()


ONE, CONVERT = torch.ones(1), Fp8(step="convert")
WORD: Any = "mse"
SMALL = nn.Linear(4, 4)


def prepared():
    net = model()
    portable.quantize_(net, Fp8(step="prepare"))
    return net


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (errors.ParameterError, "'step' is 'prep'", lambda: Fp8(step="prep")),
        (
            errors.ParameterError,
            "'step'.*None where",
            lambda: Fp8(step="convert", act_quant_scale=torch.ones(1)),
        ),
        (errors.ParameterError, "one number", lambda: Fp8(act_quant_scale=torch.ones(2))),
        (errors.ParameterError, "positive, finite", lambda: Int8(act_quant_scale=torch.zeros(1))),
        (errors.ParameterError, "'observer'", lambda: Fp8(step="prepare", observer=WORD)),
        (errors.ParameterError, "PerTensor.. of activations", lambda: Fp8(granularity=PerRow())),
        (errors.ParameterError, "PerTensor.. of activations", lambda: Int8(granularity=[PerRow(), PerRow()])),
        (errors.ParameterError, "'act_quant_scale'.*prepare", lambda: portable.quantize_(model(), Fp8())),
        (
            errors.ParameterError,
            "a tensor, where",
            lambda: QuantizedLinear.from_float(nn.Linear(4, 4), Int8()),
        ),
        (
            errors.ArgumentError,
            "'up.input' is of no number",
            lambda: portable.quantize_(prepared(), Fp8(step="convert")),
        ),
        (errors.ArgumentError, "0 ObservedLinear", lambda: portable.quantize_(model(), CONVERT)),
        (errors.ArgumentError, "'up.input'.*2 NaN", lambda: prepared()["up"](torch.full((1, 2), math.nan))),
    ],
)
def test_what_static_configs_refuse_and_say(error, match, call):
    with pytest.raises(error, match=match):
        call()
