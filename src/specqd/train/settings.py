"""The settings of one training of a head. Knows no torch and no files."""

from dataclasses import asdict, dataclass
from typing import Any

from specqd.config import DecoderConfig
from specqd.errors import RequestError, shown

_LARGE_VOCABULARY = 16384  # tokens; a head of a larger one gets tokens of its own
_OWN_VOCABULARY = 8192
_LEAST_LENGTH = 16


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """The shape of a head and its course of training. A run goes on with the same settings only.

    `vocabulary` is the number of the head's own tokens; None: the model's output is used, and
    stays as it is. A text's first row counts least: it teaches `steps` guesses, each weighted by
    `step_weight` times the one before.
    """

    taps: tuple[int, ...]  # boundaries of the model's layers
    ffn: int
    vocabulary: int | None
    tokens: int  # of texts to generate
    epochs: int
    length: int  # tokens of a text, at most
    batch: int  # texts of one step of the optimiser
    steps: int = 3
    step_weight: float = 0.8
    rate: float = 6e-4
    warmup: float = 0.03  # share of the steps
    clip: float = 0.5
    seed: int = 0

    def described(self) -> dict[str, Any]:
        """The settings as a JSON object."""
        return {**asdict(self), "taps": list(self.taps)}


def make_settings(
    config: DecoderConfig,
    *,
    tokens: int,
    epochs: int,
    length: int,
    batch: int,
    rate: float,
    seed: int,
    layers: tuple[int, ...] | None = None,
    ffn: int | None = None,
    vocabulary: int | None = None,
) -> TrainSettings:
    """Settings for that model, with the defaults of EAGLE-3. Raises RequestError."""
    return TrainSettings(
        taps=_taps(config, layers),
        ffn=_ffn(config, ffn),
        vocabulary=_vocabulary(config.vocab_size, vocabulary),
        tokens=tokens,
        epochs=epochs,
        length=_length(config, length),
        batch=batch,
        rate=rate,
        seed=seed,
    )


def _taps(config: DecoderConfig, layers: tuple[int, ...] | None) -> tuple[int, ...]:
    count = config.num_layers
    taps = layers or tuple(sorted({min(2, count), count // 2, max(count - 3, 0)}))
    if list(taps) != sorted({*taps}) or taps[0] < 0 or taps[-1] > count:
        raise RequestError(
            f"--layers {shown(list(taps))}: give ascending numbers from 0 to {count}, the model's "
            "number of layers"
        )
    return taps


def _ffn(config: DecoderConfig, asked: int | None) -> int:
    size = asked or config.intermediate_size
    if not size:
        raise RequestError("the model has experts only; give the head's feed forward with --ffn")
    return size


def _vocabulary(size: int, asked: int | None) -> int | None:
    if asked is None:
        return _OWN_VOCABULARY if size > _LARGE_VOCABULARY else None
    if not 2 <= asked <= size:
        raise RequestError(f"--vocabulary {asked}: the model has {size} tokens; ask for 2 to that")
    return asked


def _length(config: DecoderConfig, asked: int) -> int:
    if asked < _LEAST_LENGTH:
        raise RequestError(f"--length {asked}: give at least {_LEAST_LENGTH} tokens")
    return min(asked, config.max_positions)
