"""A Llama of Hugging Face transformers with its linears quantised: sizes, and how far the logits are.

    quantize_(model, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))

Run as a program, it makes a small model with random weights, or takes a checkpoint (--checkpoint), and prints
a line for each config, beside the model as it was; static scales are found from data.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch

from portable.errors import IntegrationError
from portable.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8StaticActivationFloat8WeightConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    MXDynamicActivationMXWeightConfig,
    NVFP4DynamicActivationNVFP4WeightConfig,
    Observer,
    PerBlock,
    PerRow,
    PerTensor,
    quantize_,
)

try:
    import transformers

    from portable.integrations import transformers as hosted
except (ImportError, IntegrationError) as error:
    told = f"This example needs transformers 5.4 or newer ({error}): pip install 'transformers>=5.4'"
    raise (SystemExit if __name__ == "__main__" else ImportError)(told) from error

FP4 = torch.float4_e2m1fn_x2
STATIC = {"granularity": [PerTensor(), PerRow()], "observer": Observer("mse")}
CONFIGS: dict[str, Any] = {
    "int8, rows": Int8DynamicActivationInt8WeightConfig(),
    "fp8, rows": Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()),
    "fp8, blocks": Float8DynamicActivationFloat8WeightConfig(
        granularity=[PerBlock([1, 128]), PerBlock([128, 128])]
    ),
    "fp8, static": Float8StaticActivationFloat8WeightConfig(step="prepare", **STATIC),
    "int4": Int4WeightOnlyConfig(32),
    "mxfp8": MXDynamicActivationMXWeightConfig(),
    "mxfp4": MXDynamicActivationMXWeightConfig(activation_dtype=FP4, weight_dtype=FP4),
    "nvfp4": NVFP4DynamicActivationNVFP4WeightConfig(),
}


def not_the_head(_: torch.nn.Module, name: str) -> bool:
    return name != "lm_head"


def quantize(model: Any, config: Any, batches: list[torch.Tensor]) -> None:
    quantize_(model, config, not_the_head)
    if getattr(config, "step", None) == "prepare":
        for tokens in batches:
            model(tokens)
        quantize_(model, Float8StaticActivationFloat8WeightConfig(step="convert", **STATIC))


def megabytes(model: Any) -> float:
    return sum(each.nbytes for each in model.state_dict().values()) / 1e6


def small(dtype: torch.dtype) -> Any:
    """A Llama with random weights."""
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    made: Any = transformers.LlamaForCausalLM(config)
    return made.to(dtype)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--checkpoint", help="a folder or a name on the Hub; else a small model")
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model: Any = load(given.checkpoint, dtype=dtype) if given.checkpoint else small(dtype)
    model.eval().to(given.device)
    draw = torch.Generator().manual_seed(1)
    batches = [
        torch.randint(3, model.config.vocab_size, (2, 64), generator=draw).to(given.device) for _ in range(4)
    ]
    tokens = batches.pop()
    expected = model(tokens).logits.float()
    print(f"{'as it was':12} {megabytes(model):7.2f} MB")
    for name, config in CONFIGS.items():
        other = copy.deepcopy(model)
        hosted.enable(other)
        quantize(other, config, batches)
        logits = other(tokens).logits.float()
        distance = torch.linalg.vector_norm(logits - expected) / torch.linalg.vector_norm(expected)
        same = (logits.argmax(-1) == expected.argmax(-1)).float().mean().item()
        text = other.generate(tokens[:1, :8], max_new_tokens=4, do_sample=False, eos_token_id=None)
        print(
            f"{name:12} {megabytes(other):7.2f} MB, logits {distance.item():6.2%} away, "
            f"{same:4.0%} of the tokens; generates {text[0, 8:].tolist()}"
        )
        hosted.disable(other)


if __name__ == "__main__":
    main()
