"""Well-known models by short names, the memory that they take, and how fast they can be.

The numbers of weights follow from the models' published shapes. Knows no files.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specqd.config.families import MTP_TYPES, text_types

_EXACT, _DRAFT, _MXFP4, _BF16 = 13 / 8, 4.25 / 8, 4.25 / 8, 2.0  # bytes per weight
_PROGRAM_GB = 0.5
_MOST_DRAFTED = 16
ACCEPTANCE = 0.85  # of a token of the self-draft after those before it, at a temperature up to 0.8


@dataclass(frozen=True, slots=True)
class Entry:
    """A model. Weights are in 10^9: all, those that a token reads, those of an input embedding that
    is not the output head, and those of all experts among which a router chooses. Those that are
    MXFP4 in the file are counted again.

    head: the repository of a trained head or block drafter. embeds: made for embeddings.
    """

    name: str
    repository: str
    model_type: str
    weights: float
    read: float
    cache_kb: float  # of keys and values per token
    untied: float = 0.0
    experts: float = 0.0
    mxfp4: float = 0.0
    read_mxfp4: float = 0.0
    head: str | None = None
    embeds: bool = False

    def named(
        self, name: str, repository: str, *, embeds: bool = False, head: str | None = None
    ) -> "Entry":
        """Another model of the same shape."""
        return replace(self, name=name, repository=repository, embeds=embeds, head=head)

    @property
    def memory_gb(self) -> float:
        """GB that the weights take in memory."""
        packed = self.weights - self.untied - self.mxfp4
        return packed * _EXACT + self.untied * _BF16 + self.mxfp4 * _MXFP4

    def needed_gb(self, tokens: int) -> float:
        """GB that a sequence of so many tokens needs, weights and program included."""
        return self.memory_gb + tokens * self.cache_kb / 1e6 + _PROGRAM_GB

    @property
    def has_mtp(self) -> bool:
        """Whether checkpoints have an MTP layer, which `auto` uses."""
        return any(kind in MTP_TYPES for kind in (self.model_type, *text_types(self.model_type)))

    @property
    def has_own_draft(self) -> bool:
        """Whether 4 bits of the weights are a draft; weights that are MXFP4 have no other bits."""
        return not self.mxfp4

    def speed(self, bandwidth_gb_s: float, *, drafts: bool) -> float:
        """Tokens per second of one sequence, by the capacity model: memory alone limits it. With
        drafts, of the best length for ACCEPTANCE."""
        lengths = range(_MOST_DRAFTED + 1 if drafts and self.has_own_draft else 1)
        return bandwidth_gb_s * max(
            _tokens_of_round(length) / (self._exact_gb(length + 1) + length * self.read * _DRAFT)
            for length in lengths
        )

    def _exact_gb(self, rows: int) -> float:
        """GB that an exact forward reads. Rows choose their experts independently of each other."""
        others = 0.0
        if self.experts:
            chosen = self.experts - (self.weights - self.untied - self.read)  # by one row
            of_rows = self.experts * (1 - (1 - chosen / self.experts) ** rows)
            others = of_rows - chosen
        return (self.read - self.read_mxfp4 + others) * _EXACT + self.read_mxfp4 * _MXFP4


def _tokens_of_round(drafted: int) -> float:
    return sum(ACCEPTANCE**place for place in range(drafted + 1))


# Shapes that other models have, too.
_QWEN2_5_0_5B = Entry("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct", "qwen2", 0.494, 0.494, 12.29)
_QWEN2_5_1_5B = Entry("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 1.544, 1.544, 28.67)
_QWEN2_5_3B = Entry("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct", "qwen2", 3.086, 3.086, 36.86)
_QWEN2_5_7B = Entry(
    "qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct", "qwen2", 7.615, 7.070, 57.34, untied=0.545
)
_QWEN2_5_14B = Entry(
    "qwen2.5:14b", "Qwen/Qwen2.5-14B-Instruct", "qwen2", 14.769, 13.991, 196.61, untied=0.779
)
_LFM2_1_2B = Entry("lfm2:1.2b", "LiquidAI/LFM2-1.2B", "lfm2", 1.170, 1.170, 12.29)
_QWEN3_5_27B = Entry(
    "qwen3.5:27b", "Qwen/Qwen3.5-27B", "qwen3_5", 26.893, 25.622, 65.54, untied=1.271
)
_QWEN3_5_35B_A3B = Entry(
    "qwen3.5:35b-a3b",
    "Qwen/Qwen3.5-35B-A3B",
    "qwen3_5_moe",
    34.659,
    2.945,
    20.48,
    untied=0.509,
    experts=32.212,
)
_QWEN3_0_6B = Entry("qwen3:0.6b", "Qwen/Qwen3-0.6B", "qwen3", 0.596, 0.596, 114.69)

# Chat models by family and size, and models for embeddings. read_config accepts each of them.
CATALOGUE = (
    Entry("gemma3:270m", "google/gemma-3-270m-it", "gemma3_text", 0.268, 0.268, 18.43),
    Entry("gemma3:1b", "google/gemma-3-1b-it", "gemma3_text", 1.000, 1.000, 26.62),
    Entry("gemma3:4b", "google/gemma-3-4b-it", "gemma3", 3.880, 3.880, 139.26),
    Entry("gemma3:12b", "google/gemma-3-12b-it", "gemma3", 11.766, 11.766, 393.22),
    Entry("gemma3:27b", "google/gemma-3-27b-it", "gemma3", 27.009, 27.009, 507.90),
    Entry("gemma4:e2b", "google/gemma-4-E2B-it", "gemma4", 2.279, 2.279, 18.43),
    Entry("gemma4:e4b", "google/gemma-4-E4B-it", "gemma4", 4.644, 4.644, 57.34),
    Entry(
        "gemma4:26b-a4b",
        "google/gemma-4-26B-A4B-it",
        "gemma4",
        25.232,
        3.822,
        225.28,
        experts=22.838,
    ),
    Entry("gemma4:31b", "google/gemma-4-31B-it", "gemma4", 30.696, 30.696, 901.12),
    Entry("glm4:9b", "zai-org/GLM-4-9B-0414", "glm4", 9.399, 8.779, 40.96, untied=0.621),
    Entry(
        "glm4.7-flash:30b-a3b",
        "zai-org/GLM-4.7-Flash",
        "glm4_moe_lite",
        29.943,
        3.579,
        102.27,
        untied=0.317,
        experts=27.783,
    ),
    Entry(
        "gpt-oss:20b",
        "openai/gpt-oss-20b",
        "gpt_oss",
        20.908,
        3.607,
        49.15,
        untied=0.579,
        mxfp4=19.11,
        read_mxfp4=2.389,
    ),
    Entry(
        "gpt-oss:120b",
        "openai/gpt-oss-120b",
        "gpt_oss",
        116.789,
        5.131,
        73.73,
        untied=0.579,
        mxfp4=114.66,
        read_mxfp4=3.583,
    ),
    Entry("granite3.3:2b", "ibm-granite/granite-3.3-2b-instruct", "granite", 2.533, 2.533, 81.92),
    Entry("granite3.3:8b", "ibm-granite/granite-3.3-8b-instruct", "granite", 8.171, 8.171, 163.84),
    Entry("lfm2:350m", "LiquidAI/LFM2-350M", "lfm2", 0.354, 0.354, 12.29),
    Entry("lfm2:700m", "LiquidAI/LFM2-700M", "lfm2", 0.742, 0.742, 12.29),
    _LFM2_1_2B,
    Entry("lfm2:2.6b", "LiquidAI/LFM2-2.6B", "lfm2", 2.569, 2.569, 16.38),
    Entry("lfm2:8b-a1b", "LiquidAI/LFM2-8B-A1B", "lfm2_moe", 8.340, 1.558, 12.29, experts=7.751),
    _LFM2_1_2B.named("lfm2.5:1.2b", "LiquidAI/LFM2.5-1.2B-Instruct"),
    Entry(
        "llama3.1:8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        "llama",
        8.030,
        7.505,
        131.07,
        untied=0.525,
    ),
    Entry("llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct", "llama", 1.236, 1.236, 32.77),
    Entry("llama3.2:3b", "meta-llama/Llama-3.2-3B-Instruct", "llama", 3.213, 3.213, 114.69),
    Entry(
        "mistral:7b",
        "mistralai/Mistral-7B-Instruct-v0.3",
        "mistral",
        7.248,
        7.114,
        131.07,
        untied=0.134,
    ),
    Entry(
        "olmo2:1b", "allenai/OLMo-2-0425-1B-Instruct", "olmo2", 1.485, 1.279, 131.07, untied=0.206
    ),
    Entry(
        "olmo2:7b", "allenai/OLMo-2-1124-7B-Instruct", "olmo2", 7.298, 6.887, 524.29, untied=0.411
    ),
    Entry("olmo3:7b", "allenai/Olmo-3-7B-Instruct", "olmo3", 7.297, 6.887, 524.29, untied=0.411),
    Entry(
        "phi3.5:3.8b", "microsoft/Phi-3.5-mini-instruct", "phi3", 3.821, 3.722, 393.22, untied=0.099
    ),
    _QWEN2_5_0_5B,
    _QWEN2_5_1_5B,
    _QWEN2_5_3B,
    _QWEN2_5_7B,
    _QWEN2_5_14B,
    _QWEN2_5_0_5B.named("qwen2.5-coder:0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
    _QWEN2_5_1_5B.named("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
    _QWEN2_5_3B.named("qwen2.5-coder:3b", "Qwen/Qwen2.5-Coder-3B-Instruct"),
    _QWEN2_5_7B.named("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct"),
    _QWEN2_5_14B.named("qwen2.5-coder:14b", "Qwen/Qwen2.5-Coder-14B-Instruct"),
    _QWEN3_0_6B,
    Entry("qwen3:1.7b", "Qwen/Qwen3-1.7B", "qwen3", 1.720, 1.720, 114.69),
    Entry(
        "qwen3:4b", "Qwen/Qwen3-4B", "qwen3", 4.022, 4.022, 147.46, head="z-lab/Qwen3-4B-DFlash-b16"
    ),
    Entry(
        "qwen3:8b",
        "Qwen/Qwen3-8B",
        "qwen3",
        8.190,
        7.568,
        147.46,
        untied=0.622,
        head="z-lab/Qwen3-8B-DFlash-b16",
    ),
    Entry("qwen3:14b", "Qwen/Qwen3-14B", "qwen3", 14.768, 13.990, 163.84, untied=0.778),
    Entry(
        "qwen3:30b-a3b",
        "Qwen/Qwen3-30B-A3B",
        "qwen3_moe",
        30.532,
        3.042,
        98.30,
        untied=0.311,
        experts=28.991,
    ),
    Entry("qwen3.5:0.8b", "Qwen/Qwen3.5-0.8B", "qwen3_5", 0.752, 0.752, 12.29),
    Entry("qwen3.5:2b", "Qwen/Qwen3.5-2B", "qwen3_5", 1.881, 1.881, 12.29),
    Entry("qwen3.5:4b", "Qwen/Qwen3.5-4B", "qwen3_5", 4.205, 4.205, 32.77),
    Entry("qwen3.5:9b", "Qwen/Qwen3.5-9B", "qwen3_5", 8.953, 7.936, 32.77, untied=1.017),
    _QWEN3_5_27B,
    _QWEN3_5_35B_A3B,
    _QWEN3_5_27B.named("qwen3.6:27b", "Qwen/Qwen3.6-27B"),
    _QWEN3_5_35B_A3B.named("qwen3.6:35b-a3b", "Qwen/Qwen3.6-35B-A3B"),
    _QWEN3_5_27B.named("qwen3.8:27b", "Qwen/Qwen3.8-27B", head="z-lab/Qwen3.8-27B-DFlash2"),
    Entry("smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "llama", 0.134, 0.134, 23.04),
    Entry("smollm2:360m", "HuggingFaceTB/SmolLM2-360M-Instruct", "llama", 0.362, 0.362, 40.96),
    Entry("smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama", 1.711, 1.711, 196.61),
    Entry("smollm3:3b", "HuggingFaceTB/SmolLM3-3B", "smollm3", 3.075, 3.075, 73.73),
    _QWEN3_0_6B.named("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B", embeds=True),
    Entry(
        "qwen3-embedding:4b", "Qwen/Qwen3-Embedding-4B", "qwen3", 4.022, 4.022, 147.46, embeds=True
    ),
    Entry(
        "qwen3-embedding:8b", "Qwen/Qwen3-Embedding-8B", "qwen3", 7.567, 7.567, 147.46, embeds=True
    ),
)
SHORT_NAMES = {each.name: each.repository for each in CATALOGUE}
# Models that were trained for shorter vectors, which their files do not say.
_SHORTENABLE = "Qwen/Qwen3-Embedding-"


def is_shortenable(name: str) -> bool:
    """Whether the model of that name, owner/name[:FILE], is known to embed in fewer dimensions."""
    return name.startswith(_SHORTENABLE)


def fitting(memory_gb: float, tokens: int) -> Iterator[Entry]:
    """The models that generate within so much memory, the largest first."""
    for each in sorted(CATALOGUE, key=lambda each: -each.weights):
        if not each.embeds and each.needed_gb(tokens) <= memory_gb:
            yield each
