"""Networks from Hugging Face, tiny and with random weights: their first gradient in kernels, or why they train eagerly."""

from types import SimpleNamespace

import pytest
import torch

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.training.engines.generated import generated_library, generation_fault
from depthrate.tasks.training.trainer import FusedTrainer
from tests.support.native_trials import error, gradient, plan_of, trials_of

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SAMPLES, BATCH, CLASSES, VOCABULARY, TOKENS = 45, 20, 10, 20, 12
IMAGES = {"num_labels": CLASSES, "num_channels": 1}
PATCHES = {**IMAGES, "image_size": 16, "patch_size": 4}
ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
STAGES = {**IMAGES, "hidden_sizes": [8, 16], "depths": [1, 1]}
TEXT = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
DECODER = {
    **TEXT,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": TOKENS,
}
BUFFERS = "a step changes its buffer"
FAMILIES = {
    "ViT": ("ForImageClassification", {**PATCHES, **ENCODER, "intermediate_size": 32}, None),
    "DeiT": ("ForImageClassification", {**PATCHES, **ENCODER, "intermediate_size": 32}, None),
    "Beit": (
        "ForImageClassification",
        {**PATCHES, **ENCODER, "intermediate_size": 32, "use_relative_position_bias": True, "drop_path_rate": 0.0},
        None,
    ),
    "Dinov2": ("ForImageClassification", {**PATCHES, **ENCODER, "mlp_ratio": 2}, None),
    "Swin": (
        "ForImageClassification",
        {
            **PATCHES,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 4,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "drop_path_rate": 0.0,
        },
        None,
    ),
    "ConvNext": ("ForImageClassification", {**STAGES, "patch_size": 2, "num_stages": 2}, None),
    "ConvNextV2": ("ForImageClassification", {**STAGES, "patch_size": 2, "num_stages": 2}, None),
    "PoolFormer": (
        "ForImageClassification",
        {
            **STAGES,
            "num_encoder_blocks": 2,
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "padding": [1, 1],
            "mlp_ratio": 2.0,
            "drop_path_rate": 0.0,
        },
        None,
    ),
    "ResNet": ("ForImageClassification", {**STAGES, "embedding_size": 8, "layer_type": "basic"}, BUFFERS),
    "RegNet": ("ForImageClassification", {**STAGES, "embedding_size": 8, "groups_width": 4}, BUFFERS),
    "MobileNetV2": (
        "ForImageClassification",
        {
            **IMAGES,
            "image_size": 16,
            "depth_multiplier": 0.1,
            "min_depth": 4,
            "depth_divisible_by": 4,
            "classifier_dropout_prob": 0.0,
        },
        BUFFERS,
    ),
    "GPT2": (
        "LMHeadModel",
        {
            **TEXT,
            "n_positions": TOKENS,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        None,
    ),
    "Llama": ("ForCausalLM", {**DECODER, "num_key_value_heads": 1}, None),
    "GPTNeoX": ("ForCausalLM", DECODER, None),
    "Qwen2": ("ForCausalLM", {**DECODER, "num_key_value_heads": 2}, None),
    "Mamba": (
        "ForCausalLM",
        {**TEXT, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1, "pad_token_id": 0},
        None,
    ),
}
"""Prefix of a family's classes -> suffix of its model's class, options, and why it trains eagerly or None."""
IMAGE_DATA = DataShape(num_samples=SAMPLES, sample_shape=(1, 16, 16), num_classes=CLASSES)
TEXT_DATA = DataShape(
    num_samples=SAMPLES,
    sample_shape=(TOKENS,),
    num_classes=VOCABULARY,
    vocabulary_size=VOCABULARY,
    labels_tokens=True,
)


def network_of(family):
    model, options, _ = FAMILIES[family]

    def make():
        return getattr(transformers, family + model)(getattr(transformers, f"{family}Config")(**options))

    data = IMAGE_DATA if model == "ForImageClassification" else TEXT_DATA
    return ModuleNetwork(make=make, name=f"model:{family}", arguments={}, data=data)


def trainer_of(network):
    generator, data = torch.Generator().manual_seed(0), network.data
    if data.labels_tokens:
        x_NI = torch.randint(VOCABULARY, (SAMPLES, TOKENS), generator=generator)
        labels = torch.randint(VOCABULARY, (SAMPLES, TOKENS), generator=generator)
    else:
        x_NI = torch.randn(SAMPLES, data.num_inputs, generator=generator)
        labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    return FusedTrainer(network, plan_of(init="", batch_size=BATCH), trials_of(2), x_NI, labels)


@pytest.mark.parametrize("family", [name for name, (*_, reason) in FAMILIES.items() if reason is None])
def test_first_gradient_matches_float64(family):
    network = network_of(family)
    assert generation_fault(network, network.data, "float32") is None
    exact, eager, native = trainer_of(network).to_float64(), trainer_of(network), trainer_of(network)
    dataset = SimpleNamespace(shape=network.data)
    native.use_native(generated_library(network, native.plan, dataset, lambda: False)[0])
    losses = [trainer.step().double() for trainer in (exact, eager, native)]
    gradients = [gradient(trainer) for trainer in (exact, eager, native)]
    assert error(gradients[2], gradients[0]) <= 2 * error(gradients[1], gradients[0]) + 1e-6
    assert error(losses[2], losses[0]) <= 2 * error(losses[1], losses[0]) + 1e-6


@pytest.mark.parametrize("family", [name for name, (*_, reason) in FAMILIES.items() if reason is not None])
def test_running_statistics_train_eagerly(family):
    network, reason = network_of(family), FAMILIES[family][2]
    fault = generation_fault(network, network.data, "float32")
    assert fault is not None and fault.startswith(reason)
    trainer = trainer_of(network)
    assert torch.isfinite(trainer.step()).all()
