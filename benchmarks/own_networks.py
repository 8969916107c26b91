"""Networks as a user's file has them, for `benchmarks/command.py` and `benchmarks/generated.py`, without depthrate."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, TOKENS, VOCABULARY = 10, 16, 64


class Block(nn.Module):
    """A residual block with a norm behind it."""

    def __init__(self, width: int):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.norm(x + torch.relu(self.linear(x))))


class Net(nn.Sequential):
    """L-RN1 of P1 on the 64 pixels of a digit."""

    def __init__(self, depth: int, width: int):
        first = [nn.Linear(64, width), nn.LayerNorm(width, elementwise_affine=False)]
        super().__init__(nn.Flatten(), *first, *[Block(width) for _ in range(depth - 1)], nn.Linear(width, CLASSES))


class PreNormBlock(nn.Module):
    """A block of a pre-LN transformer with two heads."""

    def __init__(self, width: int):
        super().__init__()
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, positions, width = x.shape
        parts = self.queries_keys_values(self.norm_one(x)).view(n, positions, 3, 2, width // 2)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2)
        x = x + self.out(mixed.reshape(n, positions, width))
        return torch.as_tensor(x + self.down(F.gelu(self.up(self.norm_two(x)))))


class Transformer(nn.Module):
    """A pre-LN transformer over the eight rows of a digit."""

    def __init__(self, depth: int, width: int):
        super().__init__()
        self.first, self.head = nn.Linear(8, width), nn.Linear(width, CLASSES)
        self.positions = nn.Parameter(0.02 * torch.randn(8, width))
        self.blocks = nn.ModuleList(PreNormBlock(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.reshape(-1, 8, 8)) + self.positions
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(x.mean(1)))


def vit(depth: int, width: int) -> Any:
    """Return Hugging Face's ViT on digits in patches of 2x2."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(  # type: ignore[call-arg]
        image_size=8,
        num_channels=1,
        num_labels=CLASSES,
        patch_size=2,
        num_hidden_layers=depth,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config)


def gpt2(depth: int, width: int) -> Any:
    """Return Hugging Face's GPT-2 on tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=width,
        n_layer=depth,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def llama(depth: int, width: int) -> Any:
    """Return Hugging Face's Llama on tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=TOKENS,
        hidden_size=width,
        intermediate_size=5 * width // 2,
        num_hidden_layers=depth,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return LlamaForCausalLM(config)
