"""A model for EleutherAI's lm-evaluation-harness (extra `eval`). Knows no tasks.

The harness finds models by import, so start its command line through this module:

    python -m specqd.lm_eval --model specqd --model_args pretrained=./my-model --tasks ...

A log-likelihood takes one forward over its text; the engine, with drafts, generates texts. Drafts
change no bit of either. Texts are truncated in the same way as the harness does for transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from specqd.engine.generation import Generation, GenerationRequest
from specqd.errors import ConfigError, RequestError
from specqd.llm import LLM
from specqd.model.scoring import score
from specqd.sampling import SamplingParams

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_READ = (*_SAMPLING, "until", "max_gen_toks", "do_sample")

Scored = tuple[float, bool]


@register_model("specqd")
class SpecqdLM(TemplateLM):
    """`--model specqd`; the arguments are those of --model_args.

    pretrained, threads, isa: as in LLM. draft: the same, with the words of a chain joined by `+`.
    max_length: most tokens of a text, by default the model's context. max_gen_toks: new tokens for
    tasks that state no number. seed: of the first request; each further request uses the next one.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        draft: str | Sequence[str] = "auto",
        threads: int | None = None,
        isa: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        seed: int = 0,
        batch_size: int | str = 1,  # the last three have no effect, but the harness always passes
        max_batch_size: int | None = None,  # them, with cuda:0 as the default device
        device: str | None = None,
    ) -> None:
        super().__init__()
        self._llm = LLM(
            pretrained, draft.split("+") if isinstance(draft, str) else draft, threads, isa
        )
        context = min(self._llm.model.max_positions, self._llm.engine.max_context)
        if max_length is not None and not 2 <= max_length <= context:
            raise ConfigError(f"max_length: {max_length} is not from 2 to the context's {context}")
        self.max_length = max_length or context
        self.max_gen_toks = max_gen_toks
        self._seed = seed

    @property
    def eot_token_id(self) -> int:
        return self._named_token("eos_token", "bos_token")

    @property
    def prefix_token_id(self) -> int:
        """The token that precedes a text without context."""
        return self._named_token("bos_token", "eos_token")

    def _named_token(self, *names: str) -> int:
        tokenizer = self._llm.tokenizer
        for name in names:
            if (token := tokenizer.id_of(tokenizer.named_tokens.get(name))) is not None:
                return token
        raise ConfigError(
            f"{self._llm.directory}: the tokenizer names neither a bos nor an eos token; add "
            "one to its tokenizer_config.json"
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """The ids, with the special tokens that the tokenizer adds, but never two bos tokens."""
        if add_special_tokens is None:
            bos = self._llm.tokenizer.named_tokens.get("bos_token")
            add_special_tokens = bos is None or not string.startswith(bos)
        return self._llm.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
    ) -> list[Scored]:
        scores = []
        for texts, context, continuation in tqdm(requests, "Scoring", disable=disable_tqdm):
            if len(continuation) > self.max_length:
                raise RequestError(
                    f"a continuation has {len(continuation)} tokens, more than max_length "
                    f"{self.max_length}; leave the task out"
                )
            room = self.max_length + 1 - len(continuation)  # the last token needs no forward
            scored = score(self._llm.model, context[-room:], continuation)
            scores.append((scored.logprob, scored.is_greedy))
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, scores[-1])
        return scores

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        totals = []
        for request in tqdm(requests, "Scoring", disable=disable_tqdm):
            (text,) = request.args
            windows = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1
            )
            parts = [(None, *make_disjoint_window(window)) for window in windows]
            total = sum(part for part, _ in self._loglikelihood_tokens(parts, disable_tqdm=True))
            totals.append(float(total))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        engine = self._llm.engine
        generations: list[Generation] = []
        try:
            for index, request in enumerate(requests):
                context, asked = request.args
                generations.append(self._submit(context, asked, self._seed + index))
            with tqdm(total=len(requests), desc="Generating", disable=disable_tqdm) as bar:
                while not engine.is_idle:
                    bar.update(sum(g.finish_reason is not None for g in engine.step()))
        finally:
            for generation in generations:
                engine.cancel(generation)
        for request, generation in zip(requests, generations, strict=True):
            if generation.error is not None:
                raise generation.error
            self.cache_hook.add_partial("generate_until", request.args, generation.text)
        return [generation.text for generation in generations]

    def _submit(self, context: str, asked: Mapping[str, Any], seed: int) -> Generation:
        given = normalize_gen_kwargs(dict(asked), self.max_gen_toks)
        for name in given:
            if name not in _READ:
                raise RequestError(f"{name}: not supported; known: {', '.join(_READ)}")
        most = given["max_gen_toks"]
        if most >= self.max_length:
            raise RequestError(
                f"max_gen_toks: {most} leaves no room in max_length {self.max_length}"
            )
        sampling = {name: given[name] for name in _SAMPLING if name in given}
        if not given["do_sample"]:
            sampling["temperature"] = 0
        stops = tuple(stop for stop in given["until"] if stop)
        params = SamplingParams(max_tokens=most, stop=stops, seed=seed, **sampling)
        prompt = self.tok_encode(context)[-(self.max_length - most) :]
        request = GenerationRequest([prompt], params.resolved(self._llm.defaults))
        [generation] = self._llm.engine.submit(request)
        return generation

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt of a chat. Without a generation prompt, the last message stays open."""
        text = self._llm.tokenizer.render_chat(
            chat_history, add_generation_prompt=add_generation_prompt
        )
        if add_generation_prompt:
            return text
        begun, found, _ = text.rpartition(chat_history[-1]["content"])
        if not found:
            raise RequestError("the chat template changes the message to be continued; use another")
        return begun + found

    @property
    def tokenizer_name(self) -> str:
        return str(self._llm.directory).replace("/", "__")


def main() -> None:
    """The harness's own command line, with this model added."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
