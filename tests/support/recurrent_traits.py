"""Traits of families with recurrent layers, as transformers reads them from a `config.json`."""

from typing import Any

from specqd.config import ExpertsConfig, RopeConfig
from specqd.config.decoder import SigmoidChoice
from specqd.config.recurrent import ConvolutionConfig, DeltaConfig
from support.config_files import FULL

RECURRENT_TRAITS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "qwen3_5_moe_text": [
        (
            {"intermediate_size": None},
            {
                "norm_offset": 1.0, "qk_norm": "one", "gates_attention": True, "head_dim": 256,
                "recurrent": DeltaConfig(16, 32, 128, 128, 4, (True, True, True, False)),
                "experts": ExpertsConfig(256, 8, 512, (True,) * 4, has_shared=True),
                "intermediate_size": 512,
            },
        ),
        (
            {
                "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 33,
                "shared_expert_intermediate_size": 44,
            },
            {
                "experts": ExpertsConfig(6, 2, 33, (True,) * 4, has_shared=True),
                "intermediate_size": 44,
            },
        ),
    ],
    "qwen3_next": [
        (
            {},
            {
                "norm_offset": 1.0, "qk_norm": "one", "gates_attention": True, "head_dim": 256,
                "recurrent": DeltaConfig(16, 32, 128, 128, 4, (True, True, True, False)),
                "experts": ExpertsConfig(512, 10, 512, (True,) * 4, has_shared=True),
                "intermediate_sizes": (512,) * 4,
            },
        ),
        (
            {
                "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 33,
                "shared_expert_intermediate_size": 44, "norm_topk_prob": False,
                "decoder_sparse_step": 2, "mlp_only_layers": [1],
            },
            {
                "experts": ExpertsConfig(
                    6, 2, 33, (False, False, False, True), shares_of_chosen=False, has_shared=True
                ),
                "intermediate_sizes": (172, 172, 172, 44),
            },
        ),
    ],
    "qwen3_5_text": [
        (
            {},
            {
                "norm_offset": 1.0, "qk_norm": "one", "gates_attention": True, "head_dim": 256,
                "ropes": (RopeConfig("default", 10_000.0, share=0.25),) * 4,
                "recurrent": DeltaConfig(16, 32, 128, 128, 4, (True, True, True, False)),
                "tied_embeddings": False,
            },
        ),
        (
            {
                "layer_types": ["mamba", "attention", "linear_attention", "full_attention"],
                "linear_num_key_heads": 2, "linear_num_value_heads": 6,
                "linear_key_head_dim": 24, "linear_value_head_dim": 48,
                "linear_conv_kernel_dim": 3, "head_dim": 24,
                "rope_parameters": {
                    "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
                    "mrope_section": [1, 1, 1], "mrope_interleaved": True,
                },
            },
            {
                "ropes": (RopeConfig("default", 1e7, share=0.5),) * 4,
                "recurrent": DeltaConfig(2, 6, 24, 48, 3, (True, False, True, False)),
            },
        ),
    ],
    "lfm2": [
        (
            {},
            {
                "recurrent": ConvolutionConfig(64, 3, (False,) * 4), "qk_norm": "one",
                "ropes": (RopeConfig("default", 1e6),) * 4, "norm_eps": 1e-5, "head_dim": 8,
                "tied_embeddings": True, "intermediate_size": 256,
                "bos_token_id": 1, "eos_token_ids": (2,),
            },
        ),
        (
            {
                "full_attn_idxs": [1, 3], "conv_L_cache": 4, "conv_bias": True, "norm_eps": 1e-6,
                "block_ff_dim": 121, "block_multiple_of": 20, "block_ffn_dim_multiplier": 1.1,
                "tie_embedding": False, "tie_word_embeddings": True, "rope_theta": 5e5,
            },
            {
                "recurrent": ConvolutionConfig(64, 4, (True, False, True, False), has_bias=True),
                "ropes": (RopeConfig("default", 5e5),) * 4, "norm_eps": 1e-6,
                "tied_embeddings": False, "intermediate_size": 100,
            },
        ),
        (
            {
                "layer_types": ["conv", "conv", "full_attention", "conv"], "full_attn_idxs": [0],
                "block_auto_adjust_ff_dim": False,
            },
            {
                "recurrent": ConvolutionConfig(64, 3, (True, True, False, True)),
                "intermediate_size": 172,
            },
        ),
    ],
    "lfm2_moe": [
        (
            {"layer_types": ["conv", "conv", FULL, "conv"]},
            {
                "recurrent": ConvolutionConfig(64, 3, (True, True, False, True)),
                "qk_norm": "one", "norm_eps": 1e-5, "tied_embeddings": True,
                "ropes": (RopeConfig("default", 1e6),) * 4, "intermediate_size": 172,
                "experts": ExpertsConfig(
                    32, 4, 1792, (False, False, True, True), sigmoids=SigmoidChoice(least_sum=1e-6)
                ),
            },
        ),
        (
            {
                "layer_types": [FULL] * 4, "num_dense_layers": 1, "num_experts": 6,
                "num_experts_per_tok": 2, "moe_intermediate_size": 33, "norm_topk_prob": False,
                "use_expert_bias": False, "routed_scaling_factor": 2.5, "tie_embedding": False,
            },
            {
                "experts": ExpertsConfig(
                    6, 2, 33, (False, True, True, True), shares_of_chosen=False,
                    sigmoids=SigmoidChoice(scale=2.5, least_sum=1e-6, has_bias=False),
                ),
                "tied_embeddings": False,
            },
        ),
    ],
}  # fmt: skip
