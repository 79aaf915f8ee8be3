"""A training loop: a small Llama learns the bytes of this folder's programs.

python examples/train.py --steps 100 --device cuda
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from llama import Config, Llama

import portable


def train(steps: int, device: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[float]:
    """The loss before each step."""
    torch.manual_seed(seed)
    text = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    data = torch.tensor(list(text), device=device)
    model = Llama(Config()).to(device, dtype)
    optimizer = portable.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - 129, (8, 1), device=device)
        loss = model.loss(data[starts + torch.arange(129, device=device)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    losses = train(args.steps, args.device)
    for step in range(0, len(losses), max(1, len(losses) // 10)):
        print(f"step {step:4}  loss {losses[step]:.3f}")


if __name__ == "__main__":
    main()
