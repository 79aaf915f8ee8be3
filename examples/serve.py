"""Serving: requests of different lengths share a cache of pages; all prompts in one prefill, then one token
of each running request a step, as a server's scheduler has it.

    python examples/serve.py --device cuda
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import torch
from llama import Config, Llama
from torch import Tensor

import portable

PAGE = 16  # tokens


@dataclass
class Request:
    prompt: list[int]
    wanted: int  # tokens
    made: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens whose keys are in the cache after the next step."""
        return len(self.prompt) + len(self.made)

    def slots(self, first: int) -> list[int]:
        """Where the keys of the tokens from `first` on go."""
        return [self.pages[i // PAGE] * PAGE + i % PAGE for i in range(first, self.length)]


class Server:
    def __init__(self, model: Llama, pages: int):
        c = model.config
        self.model, self.device = model, model.head.device
        shape = (c.layers, 2, pages, PAGE, c.kv_heads, c.head_dim)
        self.cache = torch.zeros(shape, dtype=model.head.dtype, device=self.device)
        self.free = list(range(pages))

    @torch.no_grad()
    def run(self, requests: list[Request]) -> None:
        """Every request to its end."""
        for each in requests:
            self._grow(each)
        self._prefill(requests)
        while running := [each for each in requests if len(each.made) < each.wanted]:
            for each in running:
                self._grow(each)
            self._decode(running)
            for each in requests:
                if len(each.made) == each.wanted and each.pages:
                    self.free += each.pages
                    each.pages = []

    def _grow(self, request: Request) -> None:
        while len(request.pages) * PAGE < request.length:
            request.pages.append(self.free.pop())

    def _prefill(self, requests: list[Request]) -> None:
        """All prompts one after the other in one call, each attending to itself."""
        lengths = [0, *(each.length for each in requests)]
        starts = torch.tensor(lengths, dtype=torch.int32, device=self.device).cumsum(0, dtype=torch.int32)
        slots = self._tensor([slot for each in requests for slot in each.slots(0)])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            portable.kv_cache_write(k[0], v[0], *self.cache[layer], slots)
            return portable.attention_varlen(q[0], k[0], v[0], starts, starts, causal=True)[None]

        tokens = self._tensor([token for each in requests for token in each.prompt])
        positions = self._tensor([i for each in requests for i in range(each.length)])
        h = self.model(tokens[None], positions[None], attend)[0]
        self._append(requests, h[starts[1:].long() - 1])

    def _decode(self, requests: list[Request]) -> None:
        """The next token of each request."""
        longest = max(len(each.pages) for each in requests)
        rows = [each.pages + [0] * (longest - len(each.pages)) for each in requests]
        table = torch.tensor(rows, dtype=torch.int32, device=self.device)
        lengths = torch.tensor([each.length for each in requests], dtype=torch.int32, device=self.device)
        slots = self._tensor([each.slots(each.length - 1)[0] for each in requests])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache[layer]
            portable.kv_cache_write(k[:, 0], v[:, 0], keys, values, slots)
            return portable.attention_paged(q, keys, values, table, lengths)

        tokens = self._tensor([each.made[-1] for each in requests])
        h = self.model(tokens[:, None], (lengths.long() - 1)[:, None], attend)
        self._append(requests, h[:, 0])

    def _append(self, requests: list[Request], h: Tensor) -> None:
        for each, token in zip(requests, self.model.logits(h).argmax(-1).tolist(), strict=True):
            each.made.append(token)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    server = Server(Llama(Config()).to(args.device), pages=32)
    prompts = [b"import torch", b"def", b"The quick brown fox jumps over the lazy dog"]
    requests = [Request(list(text), wanted) for text, wanted in zip(prompts, (5, 40, 12), strict=True)]
    server.run(requests)
    for each in requests:
        print(bytes(each.prompt), "->", bytes(each.made))


if __name__ == "__main__":
    main()
