"""A server that somebody else runs, measured as it stands: OpenAI-compatible (llama-server among them) or Ollama.

Nothing is launched, changed or ended. Each turn reads a prompt of fresh random words and writes an answer, streamed;
the server's own timings count where it gives them, else the clock here and the server's count of tokens.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from magnitude_tune.engines.served_answers import Turn, read_ollama, read_openai
from magnitude_tune.engines.served_client import Limits, Reply, WebClient, parse_url
from magnitude_tune.engines.served_identity import ServedFacts, identify
from magnitude_tune.errors import MagnitudeTuneError, UsageError
from magnitude_tune.request import Settings

__all__ = ["UNKNOWN_SETTINGS", "ServedSession", "connect"]

UNKNOWN_SETTINGS: Final = Settings(n_gpu_layers=0, n_threads=0, n_threads_batch=0, n_batch=0, n_ubatch=0, n_ctx=0)
"""What a server runs with is not known: zeros stand for it where a row needs settings. No launch has zero threads."""

_SEED: Final = 20
_NO_SUCH_PATH: Final = (404, 405, 501)
_CALIBRATION_WORDS: Final = (32, 96)
# Words that are one token each in nearly every vocabulary.
_WORDS: Final = (
    "about after again air all also answer back before between book both call change city close come country day "
    "door each earth end even every eye face far few find first food form free give good group hand hard head help "
    "high home hour house idea keep kind land large last late learn leave letter life light line list little long "
    "look make man mile mind money morning mother move music name near need never night north number open order "
    "other own page paper part people place plan plant point power question read river road room run school sea "
    "second sentence set side small song south start state story street study sun table talk ten thing think time "
    "town tree turn walk watch water way week well west white wind wood word work world year"
)


class _Slope(NamedTuple):
    """Tokens of a prompt: `fixed` (a template, a first token) and `per_word`."""

    fixed: float = 0.0
    per_word: float = 1.0


def connect(
    url: str, *, model: str | None = None, key: str | None = None, limits: Limits | None = None
) -> ServedSession:
    """See which server and which model answer at that URL.

    Args:
        model: its name on that server; needed where the server has several.
        key: sent as a bearer token, to this server only, once it asks for one.

    Raises:
        UsageError: the URL is wrong or no model server's, a key or a model's name is missing.
        EngineError: nobody answers, the server is not ready, or gives no usable answer.
    """
    client = WebClient(parse_url(url), key=key, limits=limits)
    return ServedSession(client, identify(client, model))


class ServedSession:
    """Asks for one turn after the other."""

    def __init__(self, client: WebClient, facts: ServedFacts) -> None:
        self._client = client
        self.facts = facts
        self._random = random.Random()  # noqa: S311 - another prompt in each run, so that no cache holds it; no secret
        self._slope = _Slope()
        self._chat = False

    @property
    def address(self) -> str:
        """The server's address."""
        return str(self._client.address)

    @property
    def host(self) -> str:
        """The host that was named."""
        return self._client.address.host

    @property
    def sends_key(self) -> bool:
        """Whether the server asked for the key and gets it."""
        return self._client.sends_key

    @property
    def port(self) -> int:
        """The port that was named."""
        return self._client.address.port

    def warm_up(self) -> None:
        """Two short turns, which also tell how many tokens a word makes.

        Raises:
            UsageError, EngineError: as `turn`.
        """
        few, many = _CALIBRATION_WORDS
        first, second = (self._ask(n_words, 4) for n_words in (few, many))
        if first.n_prompt_total and second.n_prompt_total and second.n_prompt_total > first.n_prompt_total:
            per_word = (second.n_prompt_total - first.n_prompt_total) / (many - few)
            self._slope = _Slope(first.n_prompt_total - few * per_word, per_word)

    def turn(self, n_prompt: int, n_gen: int) -> Turn:
        """Read about `n_prompt` tokens, as near as whole words allow, and write at most `n_gen`.

        Raises:
            UsageError: the model's name is wrong, or it wants a key.
            EngineError: it refuses, stalls, breaks off, or tells neither times nor counts.
        """
        n_words = round((n_prompt - self._slope.fixed) / self._slope.per_word)
        return self._ask(max(1, n_words), n_gen)

    def _ask(self, n_words: int, n_gen: int) -> Turn:
        text = " ".join(self._random.choices(_WORDS.split(), k=n_words))
        if self.facts.kind == "ollama":
            options = {"num_predict": n_gen, "temperature": 0, "seed": _SEED}
            body = {"model": self.facts.model, "prompt": text, "raw": True, "stream": True, "options": options}
            return read_ollama(self._client, "/api/generate", body)
        return self._ask_openai(text, n_gen)

    def _ask_openai(self, text: str, n_gen: int) -> Turn:
        body: dict[str, object] = {"model": self.facts.model, "max_tokens": n_gen, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self.facts.kind == "llama_server":
            body |= {"cache_prompt": False, "ignore_eos": True, "seed": _SEED}
        if not self._chat:
            answer = read_openai(self._client, "/v1/completions", body | {"prompt": text})
            if isinstance(answer, Turn):
                return answer
            self._chat = answer.status in _NO_SUCH_PATH
            if not self._chat:
                raise self._client.refused(answer, "/v1/completions")
        message = {"role": "user", "content": text}
        answer = read_openai(self._client, "/v1/chat/completions", body | {"messages": [message]})
        if isinstance(answer, Turn):
            return answer
        raise self._refused(answer)

    def _refused(self, reply: Reply) -> MagnitudeTuneError:
        if reply.status in _NO_SUCH_PATH:
            return UsageError(
                f"the server has no completions for the model {self.facts.model} (status {reply.status})",
                where=self.address,
                hint="give --url the address of the API, and --model a model that it serves",
            )
        return self._client.refused(reply, "/v1/chat/completions")
