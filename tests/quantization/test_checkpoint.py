"""`load_int4_`: checkpoints of other libraries, packed here as their formats say, word by word."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import portable
from portable import errors
from portable.quantization import QuantizedLinear, load_int4_
from portable.quantization.checkpoint import TENSORS

GROUP, K, N = 16, 64, 24
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Tiny(nn.Module):
    """A linear that is quantised, with a bias, one that is not, and a head tied to the embedding."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.embedding = nn.Embedding(10, K, dtype=dtype)
        self.up = nn.Linear(K, N, dtype=dtype)
        self.down = nn.Linear(N, K, bias=False, dtype=dtype)
        self.head = nn.Linear(K, 10, bias=False, dtype=dtype)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.down(self.up(self.embedding(tokens))))


def words(numbers: torch.Tensor, order: Sequence[int] = range(8)) -> torch.Tensor:
    """int32 along the last axis: nibble i holds number order[i] of 8."""
    found = torch.zeros(*numbers.shape[:-1], numbers.shape[-1] // 8, dtype=torch.int64)
    for at, place in enumerate(order):
        found |= numbers[..., place::8].long() << 4 * at
    return torch.where(found >= 2**31, found - 2**32, found).to(torch.int32)


def drawn(format):
    """(codes (N, K), zero points (N, groups), scales, the group of each k)."""
    generator = torch.Generator().manual_seed(1)
    code = torch.randint(16, (N, K), generator=generator)
    zero = torch.randint(1, 16, (N, K // GROUP), generator=generator)
    scale = (torch.rand(N, K // GROUP, generator=generator) * 0.02 + 0.01).half()
    return code, zero, scale, torch.arange(K) // GROUP


def packed(format, code, zero, scale, g_idx):
    if format == "awq":
        return {
            "qweight": words(code.T, AWQ_ORDER),
            "qzeros": words(zero.T, AWQ_ORDER),
            "scales": scale.T.contiguous(),
        }
    if format == "compressed-tensors":
        return {
            "weight_packed": words(code),
            "weight_scale": scale,
            "weight_zero_point": words(zero.T).T,
            "weight_g_idx": g_idx.int(),
            "weight_shape": torch.tensor([N, K]),
        }
    stored = zero - 1 if format == "gptq" else zero
    qweight = words(code).T.contiguous()
    return {
        "qweight": qweight,
        "qzeros": words(stored.T),
        "scales": scale.T.contiguous(),
        "g_idx": g_idx.int(),
    }


def checkpoint(format, model, order=None):
    code, zero, scale, g_idx = drawn(format)
    if order is not None:
        g_idx = g_idx[order]
    w = (code - zero[:, g_idx]) * scale.double()[:, g_idx]
    others = {
        name: each.clone()
        for name, each in model.state_dict().items()
        if name not in ("up.weight", "head.weight")
    }
    return others | {f"up.{name}": each for name, each in packed(format, code, zero, scale, g_idx).items()}, w


def expected(model, w, x):
    """The linear in float64, and the bound of its error: half a unit of x's dtype and float32 sums."""
    y = x.double() @ w.T + model.up.bias.double()
    terms = x.double().abs() @ w.abs().T + model.up.bias.double().abs()
    return y, 0.51 * torch.finfo(x.dtype).eps * y.abs() + 40 * 2.0**-24 * terms


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("format", ["gptq", "gptq_v2", "awq", "compressed-tensors"])
def test_the_products_are_those_of_the_checkpoint(format, dtype):
    source, model = Tiny(dtype), Tiny(dtype)
    tensors, w = checkpoint(format, source)
    load_int4_(model, tensors, format)
    x = torch.randn(5, K).to(dtype)
    y, bound = expected(model, w, x)
    assert type(model.up) is QuantizedLinear and type(model.down) is nn.Linear
    assert ((model.up(x).double() - y).abs() <= bound).all()
    for name in ("down.weight", "up.bias", "embedding.weight"):
        assert torch.equal(model.state_dict()[name], source.state_dict()[name])
    assert model.head.weight is model.embedding.weight


@pytest.mark.parametrize("format", ["gptq", "compressed-tensors"])
def test_desc_act_sorts_the_columns_of_the_input(format):
    model, order = Tiny(), torch.randperm(K, generator=torch.Generator().manual_seed(2))
    tensors, w = checkpoint(format, Tiny(), order)
    load_int4_(model, tensors, format)
    x = torch.randn(3, K).bfloat16()
    y, bound = expected(model, w, x)
    assert ((model.up(x).double() - y).abs() <= bound).all()
    assert model.to(torch.float16).up.weight_permutation.dtype == torch.int32


CONFIGS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
    "awq": {"quant_method": "awq", "bits": 4, "version": "GEMM"},
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "symmetric": True}}},
    },
}  # fmt: skip


@pytest.mark.parametrize("format", CONFIGS)
def test_a_folder_says_its_format(format, tmp_path):
    tensors, w = checkpoint(format, Tiny())
    names = sorted(tensors)
    for part, chosen in enumerate((names[::2], names[1::2])):
        save_file(
            {name: tensors[name].contiguous() for name in chosen}, tmp_path / f"model-{part}.safetensors"
        )
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": CONFIGS[format]}))
    model = Tiny()
    load_int4_(model, tmp_path)
    x = torch.randn(5, K).bfloat16()
    y, bound = expected(model, w, x)
    assert ((model.up(x).double() - y).abs() <= bound).all()


TILED = {
    "tinygemm": None,
    "marlin": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
    "is_marlin_format": {"quant_method": "gptq", "bits": 4, "is_marlin_format": True},
}
"""What config.json says of weights in tiles of the tensor cores, where it does."""


@pytest.mark.parametrize("case", TILED)
def test_weights_in_tiles_of_the_tensor_cores(case, tmp_path):
    format = "tinygemm" if case == "tinygemm" else "marlin"
    down = nn.Linear(64, K, bias=False)
    model = nn.Sequential(OrderedDict(up=nn.Linear(K, 64), down=down)).bfloat16()
    generator = torch.Generator().manual_seed(1)
    code = torch.randint(16, (64, K), generator=generator)
    scale = (torch.rand(64, K // GROUP, generator=generator) * 0.02 + 0.01).bfloat16()
    weight = (code[:, 0::2] | code[:, 1::2] << 4).byte()
    sizes = {"inner_k_tiles": 4} if format == "tinygemm" else {}
    parts = portable.pack_int4(format, weight, scale, **sizes)
    names = TENSORS[format].values()
    tensors = {f"up.{name}": each for name, each in zip(names, parts, strict=False)}
    tensors |= {"up.bias": torch.ones(64).bfloat16(), "down.weight": down.weight.detach().clone()}
    if TILED[case] is None:
        load_int4_(model, tensors, format)
    else:
        save_file(tensors | {"up.workspace": torch.zeros(8)}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": TILED[case]}))
        load_int4_(model, tmp_path)
    x = torch.randn(5, K).bfloat16()
    w = (code - 8) * scale.double().repeat_interleave(GROUP, 1)
    y = x.double() @ w.T + 1
    assert type(model[0]) is QuantizedLinear and type(model[1]) is nn.Linear
    torch.testing.assert_close(model[0](x).double(), y, rtol=0.01, atol=0.01)


def test_a_bias_of_zeros_that_the_model_lacks_is_left_out():
    model = Tiny()
    model.up.register_parameter("bias", None)
    tensors, _ = checkpoint("gptq", Tiny())
    tensors["up.bias"] = torch.zeros(N)
    load_int4_(model, tensors, "gptq")
    assert model.up.bias is None
    model = Tiny()
    model.up.register_parameter("bias", None)
    tensors["up.bias"][3] = 1.0
    with pytest.raises(errors.ArgumentError, match=r"up\.bias.*in the checkpoint"):
        load_int4_(model, tensors, "gptq")


def changed(**others):
    tensors, _ = checkpoint("gptq", Tiny())
    tensors |= {name.replace("__", "."): each for name, each in others.items() if each is not None}
    return {
        name: each for name, each in tensors.items() if others.get(name.replace(".", "__"), each) is not None
    }


@pytest.mark.parametrize(
    ("said", "tensors", "format"),
    [
        ("'format' is None", changed(), None),
        ("'format' is 'hqq'", changed(), "hqq"),
        ("up.scales", changed(up__scales=None), "gptq"),
        ("down.weight", changed(down__weight=None), "gptq"),
        ("extra.weight", changed(extra__weight=torch.zeros(1)), "gptq"),
        ("up.qweight", changed(up__qweight=torch.zeros(4, N, dtype=torch.int32), up__g_idx=None), "gptq"),
        ("of other names", {"nowhere.qweight": torch.zeros(1)}, "gptq"),
        ("zero_point", changed(up__qzeros=torch.zeros(4, N, dtype=torch.int32)), "gptq"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_sentence_and_changes_nothing(said, tensors, format):
    model = Tiny()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(errors.PortableError, match=said.replace(".", r"\.")):
        load_int4_(model, tensors, format)
    assert type(model.up) is nn.Linear
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize(
    ("said", "config"),
    [
        ("'quantization_config.bits' is 3", CONFIGS["gptq"] | {"bits": 3}),
        ("'quantization_config.version' is 'gemv'", CONFIGS["awq"] | {"version": "gemv"}),
        ("config.checkpoint_format' is 'bitblas'", CONFIGS["gptq"] | {"checkpoint_format": "bitblas"}),
        ("config.format' is 'float-quant", CONFIGS["compressed-tensors"] | {"format": "float-quantized"}),
        ("'quantization_config.quant_method' is None", {}),
    ],
)  # fmt: skip
def test_a_format_that_is_not_taken_is_named(said, config, tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    with pytest.raises(errors.ParameterError, match=said):
        load_int4_(Tiny(), tmp_path)


def test_no_folder_is_a_sentence(tmp_path):
    with pytest.raises(errors.ArgumentError, match=r"a folder with config\.json"):
        load_int4_(Tiny(), tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(errors.ArgumentError, match="safetensors"):
        load_int4_(Tiny(), tmp_path)


@pytest.mark.slow
@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("format", ["gptq", "awq", "compressed-tensors"])
def test_a_llama_of_transformers_computes_what_its_checkpoint_says(format, tmp_path):
    import transformers  # 2 s, for this test alone

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=100, max_position_embeddings=64,
    )  # fmt: skip
    plain = transformers.LlamaForCausalLM(config)
    tensors = dict(plain.state_dict())
    for name, linear in plain.named_modules():
        if type(linear) is nn.Linear and name != "lm_head":
            made = portable.quantize_int4(linear.weight.detach(), 32, symmetric=False)
            given = portable.pack_int4(format, *made[:3])
            names = list(TENSORS[format].values())[:3]
            parts = dict(zip(names, given, strict=True))
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{part}": each.contiguous() for part, each in parts.items()}
            code = (
                torch.stack((made.weight & 15, made.weight >> 4), -1)
                .flatten(1)
                .double()
                .unflatten(1, (-1, 32))
            )
            assert made.zero_point is not None
            zero = made.zero_point[..., None].double()
            linear.weight.data = ((code - zero) * made.scale[..., None]).flatten(1).float()
    save_file({name: each.clone() for name, each in tensors.items()}, tmp_path / "model.safetensors")
    said = config.to_dict() | {"quantization_config": CONFIGS[format]}
    (tmp_path / "config.json").write_text(json.dumps(said))
    model = transformers.LlamaForCausalLM(config)
    load_int4_(model, tmp_path)
    tokens = torch.randint(100, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, plain(tokens).logits, rtol=1e-4, atol=1e-4)
    assert (
        type(model.lm_head) is nn.Linear
        and type(model.get_submodule("model.layers.1.mlp.down_proj")) is QuantizedLinear
    )
