"""portable.quantize_: what each config computes, against float64 of the dequantised operands, and how the
modules that it makes behave in a model."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import portable
from portable import errors
from portable.kernels._lib import minifloat
from portable.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8MMConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt4WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8StaticActivationInt8WeightConfig,
    MXDynamicActivationMXWeightConfig,
    NVFP4DynamicActivationNVFP4WeightConfig,
    PerBlock,
    PerRow,
    PerTensor,
    QuantizedLinear,
)

E4M3, E5M2, FNUZ = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz
FP4 = torch.float4_e2m1fn_x2
N, K = 150, 196

Fp8 = Float8DynamicActivationFloat8WeightConfig
Int8 = Int8DynamicActivationInt8WeightConfig
Int8Static = Int8StaticActivationInt8WeightConfig
Int4 = Int4WeightOnlyConfig
Int8Int4 = Int8DynamicActivationInt4WeightConfig
MX = MXDynamicActivationMXWeightConfig
NVFP4 = NVFP4DynamicActivationNVFP4WeightConfig
BLOCK = [PerBlock([1, 128]), PerBlock([128, 128])]
CONFIGS = {
    "fp8 tensor": Fp8(),
    "fp8 row": Fp8(granularity=PerRow()),
    "fp8 row, tensor": Fp8(granularity=(PerRow(), PerTensor())),
    "fp8 block": Fp8(granularity=BLOCK),
    "fp8 fnuz": Fp8(FNUZ, FNUZ, granularity=PerRow()),
    "fp8 e5m2": Fp8(E5M2, E4M3, granularity=PerRow(), mm_config=Float8MMConfig(use_fast_accum=True)),
    "int8 row": Int8(),
    "int8 tensor": Int8(granularity=PerTensor()),
    "int8 asymmetric": Int8("asymmetric", granularity=[PerRow(), PerTensor()]),
    "int4": Int4(2),
    "int4 symmetric": Int4(None, symmetric=True),
    "int8 by int4": Int8Int4(2),
    "int8 by int4 asymmetric": Int8Int4(None, "asymmetric"),
    "mxfp8": MX(),
    "mxfp8 e5m2": MX(activation_dtype=E5M2, scaling_mode="floor"),
    "mxfp4": MX(activation_dtype=FP4, weight_dtype=FP4),
    "nvfp4": NVFP4(),
    "nvfp4 one level": NVFP4(use_dynamic_per_tensor_scale=False),
}


def same_bits(got, wanted):
    """Of types too that torch compares with a NaN, or not at all."""
    assert got.dtype == wanted.dtype
    assert torch.equal(got.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8))


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    """Rows and columns of very different sizes, so that a scale of another row or group shows."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.arange(shape[-1]) % 9 - 5.0)
    if len(shape) > 1:
        sizes = sizes * torch.exp2(torch.arange(shape[-2]) % 5 - 2.0)[:, None]
    return (torch.randn(shape, generator=generator) * sizes).to(dtype)


def linear(bias=True, dtype=torch.bfloat16):
    made = nn.Linear(K, N, bias=bias).to(dtype)
    with torch.no_grad():
        made.weight.copy_(drawn(N, K, seed=1, dtype=dtype))
    return made


def quantized(made, config):
    """The linear of a model of one."""
    model = nn.Sequential(made)
    portable.quantize_(model, config)
    return model[0]


def spread(scale, size, axis):
    """A scale per block as one per element."""
    return scale.repeat_interleave(size, axis)


def fp8(x, scaling, dtype):
    q, scale = portable.quantize_fp8(x, scaling, dtype=dtype)
    scale = scale.double()
    if scaling in ("1x128", "128x128"):
        scale = spread(scale, 128, 1)[:, : x.shape[1]]
    if scaling == "128x128":
        scale = spread(scale, 128, 0)[: x.shape[0]]
    return minifloat.decode(q.view(torch.uint8), str(dtype).removeprefix("torch.")) * scale


def of_fp4(codes):
    return minifloat.decode(minifloat.unpack(codes.view(torch.uint8)), "float4_e2m1fn_x2")


def operand(x, config, of_weight):
    """x quantised as the config has it of activations or of weights, and multiplied back, in float64."""
    if isinstance(config, Fp8):
        dtype = config.weight_dtype if of_weight else config.activation_dtype
        names = {PerTensor(): "tensor", PerRow(): "row", BLOCK[0]: "1x128", BLOCK[1]: "128x128"}
        return fp8(x, names[config.pair[of_weight]], dtype)
    if isinstance(config, Int8):
        if config.act_mapping_type == "asymmetric" and not of_weight:
            q, scale, zero = portable.quantize_int8(x, symmetric=False)
            return (q.double() - zero) * scale.double()
        q, scale = portable.quantize_int8(x, {PerTensor(): "tensor", PerRow(): "row"}[config.pair[of_weight]])
        return q.double() * scale.double()
    if isinstance(config, Int8Int4):
        return operand(x, config.of_weight if of_weight else Int8(), of_weight)
    if isinstance(config, Int4):
        if not of_weight:
            return x.double()
        codes, scale, zero, *_ = portable.quantize_int4(x, config.group_size, symmetric=config.symmetric)
        numbers = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).double()
        size = x.shape[1] // scale.shape[1]
        return (numbers - (8 if zero is None else spread(zero, size, 1))) * spread(scale.double(), size, 1)
    if isinstance(config, MX):
        dtype = config.weight_dtype if of_weight else config.activation_dtype
        q, scale = portable.quantize_mx(x, dtype=dtype, rounding=config.scaling_mode)
        name = str(dtype).removeprefix("torch.")
        codes = of_fp4(q) if dtype == FP4 else minifloat.decode(q.view(torch.uint8), name)
        powers = minifloat.decode(scale.view(torch.uint8), "float8_e8m0fnu")
        return codes * spread(powers, 32, 1)[:, : x.shape[1]]
    whole = None if config.use_dynamic_per_tensor_scale else torch.ones(())
    q, scale, whole = portable.quantize_nvfp4(x, global_scale=whole)
    scales = minifloat.decode(scale.view(torch.uint8), "float8_e4m3fn")
    return of_fp4(q) * spread(scales, 16, 1)[:, : x.shape[1]] * whole.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_product_of_the_dequantised_operands(name, dtype):
    config, plain = CONFIGS[name], linear(dtype=dtype)
    weight, bias = plain.weight.detach().clone(), plain.bias.detach().clone()
    x = drawn(37, K, seed=2, dtype=dtype)
    got = quantized(plain, config)(x)
    left, right = operand(x, config, False), operand(weight, config, True)
    ref = left @ right.T + bias.double()
    terms = (left.square() @ right.T.square()).sqrt() + bias.double().abs()
    # Tensor-wise and block scales are rounded products of two: some ulp of float32 each.
    limit = 0.51 * torch.finfo(dtype).eps * ref.abs() + 30 * 2**-24 * terms
    assert got.dtype == dtype and bool(((got.double() - ref).abs() <= limit).all())


@pytest.mark.parametrize("name", CONFIGS)
def test_copies_state_dicts_and_conversions_keep_codes_and_scales(name):
    config, x = CONFIGS[name], drawn(5, K)
    model = nn.Sequential(linear(), nn.ReLU(), nn.Linear(N, 34, bias=False).bfloat16())
    portable.quantize_(model, config)
    expected = model(x)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    state = torch.load(saved)
    assert {"0.weight", "0.weight_scale", "0.bias", "2.weight", "2.weight_scale"} <= state.keys()
    other = nn.Sequential(nn.Linear(K, N), nn.ReLU(), nn.Linear(N, 34, bias=False)).bfloat16()
    portable.quantize_(other, config)
    other.load_state_dict(state)
    assert torch.equal(other(x), expected)
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(K, N), nn.ReLU(), nn.Linear(N, 34, bias=False)).bfloat16()
    portable.quantize_(empty, config)
    empty.load_state_dict(state, assign=True)
    assert torch.equal(empty(x), expected)
    buffers = {name: each.clone() for name, each in model.named_buffers()}
    for converted in (model.to("cpu", torch.float16), model.float(), model.half().bfloat16()):
        for name, each in converted.named_buffers():
            same_bits(each, buffers[name])
    assert torch.equal(model(x), expected)  # through float16 the bias of bfloat16 is as it was here
    moved = copy.deepcopy(model).to("meta")
    assert all(each.is_meta for each in moved.state_dict().values())
    assert moved(x.to("meta")).shape == (5, 34)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (2, 1, 3)])
def test_any_leading_dimensions(name, shape):
    made, x = quantized(linear(), CONFIGS[name]), drawn(*shape, K)
    y = made(x)
    assert y.shape == (*shape, N)
    assert torch.equal(y.reshape(-1, N), made(x.reshape(-1, K)))
    strided = x.repeat_interleave(2, -1)[..., ::2]
    assert torch.equal(made(strided), y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp8 block", "int8 row", "int8 asymmetric", "mxfp4", "nvfp4"])
def test_compiles_whole_and_computes_the_same(name):
    model = nn.Sequential(linear(), nn.ReLU(), nn.Linear(N, 34).bfloat16())
    portable.quantize_(model, CONFIGS[name])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = drawn(2, 3, K)
    assert torch.equal(compiled(x), model(x))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["fp8 row", "int8 row", "mxfp4"])
def test_a_gradient_is_refused_where_it_is_asked_for(name):
    made, x = quantized(linear(), CONFIGS[name]), drawn(3, K)
    assert not made.bias.requires_grad and not made(x).requires_grad
    with torch.no_grad():
        made(x.requires_grad_())
    y = made(x)
    with pytest.raises(errors.UnsupportedGradientError, match=r"its weight is quantised.*torch\.no_grad"):
        y.sum().backward()
    with pytest.raises(Exception, match="its weight is quantised, for inference"):
        torch.compile(made, fullgraph=True, backend="aot_eager")(x)
    torch._dynamo.reset()
    made.bias.requires_grad_()
    with pytest.raises(errors.UnsupportedGradientError, match="its weight is quantised"):
        made(x.detach()).sum().backward()


def test_autocast_decides_the_dtype():
    made, x = quantized(linear(dtype=torch.float32), Int8()), drawn(4, K, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = made(x)
    assert torch.equal(low, made.bfloat16()(x.bfloat16()))


class Special(nn.Linear):
    pass


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.inner = nn.Embedding(40, 32), nn.Linear(32, 32)
        self.head, self.special = nn.Linear(32, 40, bias=False), Special(32, 32)
        self.again = self.inner
        self.head.weight = self.embedding.weight


def test_which_linears_are_chosen():
    model, seen = Tied(), []
    portable.quantize_(model, Int8())
    assert model.again is model.inner and type(model.inner) is QuantizedLinear
    assert type(model.head) is nn.Linear and type(model.special) is Special

    def chosen(module, name):
        seen.append((name, module))
        return name == "head"

    model = Tied()
    portable.quantize_(model, Int8(), filter_fn=chosen)
    assert [name for name, _ in seen] == ["inner", "head"] and type(model.inner) is nn.Linear
    assert type(model.head) is QuantizedLinear and model.head is seen[1][1]
    assert model.embedding.weight.dtype == torch.float32


@pytest.mark.parametrize("quantize", [True, False])
def test_an_encoder_layer_reads_no_weight_past_its_module(quantize):
    """Its path for inference does: it was a RuntimeError of two dtypes."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), drawn(2, 5, 32).float()
    with torch.no_grad():
        expected = model(x)
        if quantize:
            portable.quantize_(model, Int8())
        else:  # static scales: both steps
            portable.quantize_(model, Int8Static(step="prepare"))
            assert torch.allclose(model(x), expected, rtol=1e-4, atol=1e-5)
            portable.quantize_(model, Int8Static(step="convert"))
        away = (model(x) - expected).norm() / expected.norm()
    assert type(model.layers[1].linear2) is QuantizedLinear and 0 < away < 0.02


def test_hooks_stay_and_a_linear_itself_is_a_model():
    made, seen = linear(), []
    made.register_forward_hook(lambda module, args, y: seen.append(module))
    assert portable.quantize_(made, Int8()) is None
    assert type(made) is QuantizedLinear and not list(made.children())
    x = drawn(3, K)
    y = made(x)
    assert seen == [made]
    separate = linear()
    with torch.no_grad():
        separate.bias.copy_(made.bias)
    other = QuantizedLinear.from_float(separate, Int8())
    assert type(separate) is nn.Linear and torch.equal(other(x), y)


def test_a_model_is_small_and_says_what_it_is():
    model = nn.Sequential(linear(bias=False))
    before = sum(each.nbytes for each in model.state_dict().values())
    portable.quantize_(model, NVFP4())
    after = sum(each.nbytes for each in model.state_dict().values())
    assert after == N * K // 2 + N * -(-K // 16) + 4 and before == 2 * N * K
    assert "in_features=196, out_features=150, bias=False, NVFP4Dynamic" in repr(model)


def test_a_checkpoint_that_is_not_quantised_is_refused():
    model = nn.Sequential(linear())
    state = model.state_dict()
    portable.quantize_(model, Fp8())
    with pytest.raises(RuntimeError, match=r"0\.weight has dtype torch\.bfloat16, not torch\.float8_e4m3fn"):
        model.load_state_dict(state, strict=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp8 row", "fp8 block", "int8 asymmetric", "mxfp4", "nvfp4"])
def test_on_an_emulated_gpu(name):
    """A small model on an emulated gfx942: quantisers and products are its kernels."""
    torch.manual_seed(0)
    plain, x = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32)).bfloat16(), drawn(5, 64)
    model = copy.deepcopy(plain)
    portable.quantize_(model, CONFIGS[name])
    expected, state = model(x), model.state_dict()
    with portable.emulated("gfx942"):
        assert str(portable.device()) == "emulated gfx942"
        assert "-> cpp" in str(portable.explain("quantize_int8", x))
        portable.quantize_(plain, CONFIGS[name])
        for key, value in plain.state_dict().items():
            same_bits(value, state[key])
        found = plain(x)
    # A sum in another order may round the first linear's result, and so a code of the second's, elsewhere.
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=float(expected.abs().max()) / 64)


X = drawn(3, K)
W = nn.Sequential(linear())


def odd():
    return nn.ModuleDict({"first": linear(), "last": nn.Linear(33, 4)})


def computed():
    made = nn.Sequential(nn.Linear(8, 8))
    prune.identity(made[0], "weight")
    return made


def replaced():
    made = nn.Linear(8, 8)
    vars(made)["forward"] = made.forward
    return nn.Sequential(made)


class Int8Tensor(torch.Tensor):
    pass


def quantized_by_others():
    made = nn.Linear(8, 8)
    made.weight = nn.Parameter(made.weight.detach().as_subclass(Int8Tensor))
    return nn.Sequential(made)


class Foreign:
    __module__ = "torchao.quantization.granularity"


Foreign.__name__ = "PerRow"


class ForeignConfig:
    __module__ = "torchao.quantization.quant_api"


ForeignConfig.__name__ = "Int8DynamicActivationInt8WeightConfig"


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (errors.ParameterError, "mean 'Int8Dynamic", lambda: portable.quantize_(W, "Int8DynamicConfig")),
        (errors.ParameterError, "torchao's: take portable", lambda: portable.quantize_(W, ForeignConfig())),
        (errors.ParameterError, "No op multiplies", lambda: portable.quantize_(W, "Int8WeightOnlyConfig")),
        (errors.ArgumentError, r"expected Int8.*\(\.\.\.\), an object", lambda: portable.quantize_(W, Int8)),
        (errors.ParameterError, "'model'", lambda: portable.quantize_(X, Int8())),
        (
            errors.ArgumentError,
            "a ReLU with 0 nn.Linear, of which none",
            lambda: portable.quantize_(nn.ReLU(), Int8()),
        ),
        (
            errors.ArgumentError,
            "with 1 nn.Linear, of which none",
            lambda: portable.quantize_(W, Int8(), lambda module, name: False),
        ),
        (errors.ShapeError, r"'last\.weight'.*even number", lambda: portable.quantize_(odd(), NVFP4())),
        (errors.ArgumentError, "'0.weight' is computed", lambda: portable.quantize_(computed(), Int8())),
        (errors.ArgumentError, "a Int8Tensor", lambda: portable.quantize_(quantized_by_others(), Int8())),
        (errors.ArgumentError, "forward that was replaced", lambda: portable.quantize_(replaced(), Int8())),
        (errors.ArgumentError, "float64.*Convert", lambda: portable.quantize_(linear().double(), Int8())),
        (errors.ParameterError, "'granularity'", lambda: Fp8(granularity=PerBlock([128, 128]))),
        (errors.ParameterError, "'granularity'", lambda: Int8(granularity=BLOCK)),
        (errors.ParameterError, "That PerRow is torchao's", lambda: Fp8(granularity=Foreign())),
        (errors.ParameterError, "'granularity'.*PerRow", lambda: Int8("asymmetric", PerTensor())),
        (errors.ParameterError, "'act_mapping_type'", lambda: Int8("both")),
        (errors.ParameterError, "'activation_dtype'.*beside", lambda: Fp8(E5M2, E5M2)),
        (errors.ParameterError, "'weight_dtype'", lambda: Fp8(E4M3, torch.int8)),
        (errors.ParameterError, "'weight_dtype'", lambda: MX(weight_dtype=FNUZ)),
        (errors.ParameterError, "'activation_dtype'.*beside", lambda: MX(activation_dtype=FP4)),
        (errors.ParameterError, "'block_size'.*32", lambda: MX(block_size=16)),
        (errors.ParameterError, "'group_size' is 3", lambda: Int4(3)),
        (errors.ParameterError, "'group_size' is 0", lambda: Int8Int4(0)),
        (errors.ParameterError, "'mapping_type' is 'none'", lambda: Int8Int4(mapping_type="none")),
        (
            errors.ParameterError,
            "expected 'symmetric'. Int8DynamicActivationInt8Weight",
            lambda: Int8Int4(act_mapping_type="asymmetric"),
        ),
        (errors.ParameterError, "'symmetric'", lambda: Int4(symmetric="yes")),  # type: ignore[arg-type]
        (errors.ShapeError, "group_size = 128 columns", lambda: portable.quantize_(linear(), Int4())),
        (errors.ParameterError, "'scaling_mode'", lambda: MX(scaling_mode="up")),
        (errors.DtypeError, "'bias'.*bfloat16.*model.to", lambda: quantized(linear(), Int8())(X.float())),
        (errors.DtypeError, "'x'.*float64", lambda: quantized(linear(), Int8())(X.double())),
        (errors.ShapeError, r"'x'.*\(\.\.\., 196\)", lambda: quantized(linear(), Int8())(X[:, :5])),
        (errors.RankError, "'x'", lambda: quantized(linear(), Int8())(X[0, 0])),
    ],
)
def test_what_it_refuses_and_says(error, match, call):
    with pytest.raises(error, match=match):
        call()


def test_nothing_is_changed_where_one_weight_is_refused():
    model = odd()
    with pytest.raises(errors.ShapeError):
        portable.quantize_(model, NVFP4())
    assert {type(each) for each in model.values()} == {nn.Linear}


def test_enums_of_torchao_are_taken_by_their_names():
    class Member:
        def __init__(self, name):
            self.name = name

    assert MX(scaling_mode=Member("FLOOR")) == MX(scaling_mode="floor")
    assert Int8(act_mapping_type=Member("ASYMMETRIC")) == Int8("asymmetric")
