"""Reads the feed forwards of a layer: a single one, or experts with their router."""

import math
from collections.abc import Sequence
from decimal import Decimal
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import DecoderConfig, ExpertsConfig
from specqd.config.tensor_names import TensorNames
from specqd.formats.bf16 import widened
from specqd.model.importance import Importance, LayerInputs
from specqd.model.loader import Loader, Source, Stack
from specqd.model.mxfp4_experts import Mxfp4Experts

_LARGEST_SOFTPLUS = 64.0  # above it, the softplus of a number is the number


class FeedForwardReader:
    """Reads feed forwards from a loader, by a family's names. Knows no files."""

    def __init__(self, loader: Loader, config: DecoderConfig, names: TensorNames) -> None:
        self._loader = loader
        self._config = config
        self._names = names

    def read(
        self, index: int, at: str, inputs: LayerInputs
    ) -> tuple[list[_native.FeedForward], _native.Mixture | None]:
        """The feed forwards of layer `index`, whose tensors' names begin with `at`."""
        names, experts = self._names, self._config.experts
        width = self._config.feed_forward_size(index)
        if experts is None or not experts.layers[index]:
            plain = self._plain(
                [at + name for name in names.gate_up],
                at + names.down,
                width,
                inputs.gate_up,
                inputs.down,
                curve=self._curve(at + names.activation),
            )
            return [plain], None
        shared = None
        if experts.has_shared:
            shared = self._plain(
                [at + name for name in names.shared_gate_up],
                at + names.shared_down,
                width,
                inputs.shared_gate_up,
                inputs.shared_down,
            )
        return self._experts(experts, at, inputs), self._mixture(experts, at, shared)

    def _mixture(
        self, experts: ExpertsConfig, at: str, shared: _native.FeedForward | None
    ) -> _native.Mixture:
        names, hidden = self._names, self._config.hidden_size

        def norm(name: str | None) -> _native.Norm | None:
            return None if name is None else self._loader.norm(at + name, hidden)

        router = [Source.whole(f"{at}{names.router}.weight", experts.count)]
        if names.shared_gate is not None:
            router.append(Source.whole(f"{at}{names.shared_gate}.weight", 1))
        choice = experts.sigmoids
        return _native.Mixture(
            router=self._loader.pack(router, hidden),
            router_bias=self._loader.bias(
                at + names.router, experts.count, experts.has_router_bias
            ),
            shared=shared,
            experts_norm=norm(names.experts_norm),
            router_norm=self._router_norm(at),
            experts_post_norm=norm(names.experts_post_norm),
            shared_post_norm=norm(names.shared_post_norm),
            score_scale=1.0 / math.sqrt(hidden) if experts.has_own_norms else 1.0,
            expert_scales=self._expert_scales(experts, at),
            correction_bias=self._correction_bias(experts, at),
            groups=choice.groups if choice else 1,
            chosen_groups=choice.chosen_groups if choice else 1,
            weight_sum_epsilon=choice.weight_sum_epsilon if choice else 0.0,
        )

    def _correction_bias(self, experts: ExpertsConfig, at: str) -> NDArray[np.float32] | None:
        if experts.sigmoids is None:
            return None
        if not experts.sigmoids.has_bias:
            return np.zeros(experts.count, np.float32)
        return self._loader.wide(at + self._names.correction_bias, experts.count)

    def _expert_scales(self, experts: ExpertsConfig, at: str) -> NDArray[np.float32] | None:
        if experts.sigmoids is not None:
            return np.full(experts.count, experts.sigmoids.scale, np.float32)
        scales = self._names.expert_scales
        return None if scales is None else widened(self._loader.vector(at + scales, experts.count))

    def _router_norm(self, at: str) -> _native.Norm | None:
        name = self._names.router_norm
        if name is None:
            return None
        weight = self._loader.vector(at + name, self._config.hidden_size)
        return _native.Norm(weight=weight, bias=None)

    def _experts(
        self, experts: ExpertsConfig, at: str, inputs: LayerInputs
    ) -> list[_native.FeedForward]:
        names = self._names
        at = f"{at}{names.experts}."
        if experts.is_mxfp4:
            return self._mxfp4_experts(experts, at)
        share = experts.per_token / experts.count
        # transformers saves one tensor per expert, even for families that publish stacks.
        if names.expert_stacks and not self._loader.has(f"{at}0.{names.expert_down}.weight"):
            return [
                self._stacked(experts, at, expert, inputs, share) for expert in range(experts.count)
            ]
        return [
            self._plain(
                [f"{at}{expert}.{name}" for name in names.expert_gate_up],
                f"{at}{expert}.{names.expert_down}",
                experts.size,
                inputs.gate_up,
                inputs.down,
                share,
            )
            for expert in range(experts.count)
        ]

    def _stacked(
        self, experts: ExpertsConfig, at: str, expert: int, inputs: LayerInputs, share: float
    ) -> _native.FeedForward:
        """Reads one expert of a stack, in which all gates precede all ups. There are no biases."""
        assert self._names.expert_stacks is not None
        gate_up, down = (
            Stack(at + name, experts.count, expert) for name in self._names.expert_stacks
        )
        size, hidden = experts.size, self._config.hidden_size
        halves = [gate_up.rows(2 * size, half) for half in (slice(size), slice(size, None))]
        return _native.FeedForward(
            gate_up=self._loader.pack(
                halves, hidden, interleaved=True, read_share=share, importance=inputs.gate_up
            ),
            down=self._loader.pack(
                [down.rows(hidden)], size, read_share=share, importance=inputs.down
            ),
            gate_bias=None,
            up_bias=None,
            down_bias=None,
            curve=None,
        )

    def _mxfp4_experts(self, experts: ExpertsConfig, at: str) -> list[_native.FeedForward]:
        """Reads experts whose MXFP4 weights are used as they are in the file."""
        names, hidden, size = self._names, self._config.hidden_size, experts.size
        stacks = {
            2: (at + names.expert_gate_up[0], 2 * size, hidden),  # gates and ups alternate
            1: (at + names.expert_down, hidden, size),
        }
        tensors = {
            parts: Mxfp4Experts(self._loader.tensors, name, experts.count, rows, columns)
            for parts, (name, rows, columns) in stacks.items()
        }
        biases = {
            parts: self._loader.small(f"{stack.name}_bias", (stack.experts, stack.rows))
            for parts, stack in tensors.items()
        }
        share, feed_forwards = experts.per_token / experts.count, []
        for expert in range(experts.count):
            gate_up, down = (
                self._loader.take_mxfp4(stack, expert, parts, share)
                for parts, stack in tensors.items()
            )
            feed_forwards.append(
                _native.FeedForward(
                    gate_up=gate_up,
                    down=down,
                    gate_bias=np.ascontiguousarray(biases[2][expert, ::2]),
                    up_bias=np.ascontiguousarray(biases[2][expert, 1::2]),
                    down_bias=biases[1][expert],
                    curve=None,
                )
            )
        return feed_forwards

    def _plain(
        self,
        modules: Sequence[str],
        down: str,
        width: int,
        gate_up_inputs: Importance | None,
        down_inputs: Importance | None,
        read_share: float = 1.0,
        curve: NDArray[np.float32] | None = None,
    ) -> _native.FeedForward:
        """Reads a feed forward. `modules` are gate and up, or their fused tensor, or up alone."""
        c = self._config
        if not c.is_gated or len(modules) == 2:
            sources = [Source.whole(f"{module}.weight", width) for module in modules]
        else:
            name, halves = f"{modules[0]}.weight", (slice(width), slice(width, None))
            sources = [Source(name, 2 * width, width, itemgetter(half)) for half in halves]
        gate_up = self._loader.pack(
            sources,
            c.hidden_size,
            interleaved=c.is_gated,
            read_share=read_share,
            importance=gate_up_inputs,
        )
        packed_down = self._loader.linear(down, (c.hidden_size, width), down_inputs, read_share)
        biases = [self._loader.bias(module, width, c.mlp_bias) for module in modules]
        return _native.FeedForward(
            gate_up=gate_up,
            down=packed_down,
            gate_bias=biases[0],
            up_bias=biases[1] if len(biases) == 2 else None,
            down_bias=self._loader.bias(down, c.hidden_size, c.mlp_bias),
            curve=curve,
        )

    def _curve(self, module: str) -> NDArray[np.float32] | None:
        """The parameters of xIELU (transformers' `XIELUActivation`); None for other activations."""
        if self._config.activation != "xielu":
            return None
        squared, exponential = (
            float(widened(self._loader.small(f"{module}.{name}", (1,)))[0])
            for name in ("alpha_p", "alpha_n")
        )
        slope, limit = (
            float(widened(self._loader.small(f"{module}.{name}", ())).item())
            for name in ("beta", "eps")
        )
        factors = _softplus(squared), slope + _softplus(exponential)
        return np.array([*factors, slope, limit], np.float32)


def _softplus(value: float) -> float:
    """`Decimal` rounds exponential and logarithm in the same way on every platform."""
    if value > _LARGEST_SOFTPLUS:
        return value
    return float((1 + Decimal(value).exp()).ln())
