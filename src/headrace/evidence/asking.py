"""What does a model say? One request to any OpenAI-compatible server, within its deadline, and never a second try.

A retry would hide what a customer sees, and would ask a model that answers differently each time until it is right.
"""

import re

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import UpstreamError
from headrace.engines import fetch
from headrace.evidence.target import Target

ANSWER_BYTES_MAX = 4 * 1024 * 1024
_CHAT = "/v1/chat/completions"
_EMBEDDINGS = "/v1/embeddings"
_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")


class Reply(msgspec.Struct, frozen=True):
    """What came back.

    Attributes:
        revision: What the server says it runs (`x-headrace-model-revision`); "" where it says nothing.
        is_cut: It ended at its limit of tokens.
        error: Why there is no answer, in a word, or the status and the server's reason; "" where there is one.
    """

    text: str = ""
    revision: str = ""
    is_cut: bool = False
    error: str = ""
    took_s: float = 0.0


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]


class Embedding(msgspec.Struct, frozen=True):
    """The vectors of texts, in their order; `error` as in `Reply`."""

    vectors: list[list[float]] = []
    error: str = ""


_decode = msgspec.json.Decoder(_Answer).decode
_decode_vectors = msgspec.json.Decoder(_Vectors).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError)


class _Model:
    """One model of one server.

    Args:
        url: `http://HOST:PORT`, with or without `/v1`.
        key: Sent as bearer token; "" sends none.
        deadline_s: For one answer, connecting included; the server is told.
        ca_file: PEM file of the authorities that may sign its certificate; "" is those of the system.
        certificate: PEM file with the server's own certificate, which is then the only one that is trusted.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str,
        deadline_s: float,
        clock: Clock,
        ca_file: str = "",
        certificate: str = "",
    ) -> None:
        self.model = model
        target = Target(url, model, key, ca_file, certificate)
        self._address = target.address()
        self._tls = target.trust()
        self._headers = [("Authorization", f"Bearer {key}" if key else "")]
        self._headers.append(("X-Headrace-Deadline-Ms", str(round(deadline_s * 1000))))
        self._deadline_s = deadline_s
        self._clock = clock

    async def _post(self, path: str, body: dict[str, object]) -> fetch.Response | str:
        """The answer, or in a word why there is none."""
        try:
            return await fetch.fetch(
                self._address.host,
                self._address.port,
                "POST",
                self._address.prefix + path,
                headers=self._headers,
                body=msgspec.json.encode({"model": self.model, **body}),
                timeout_s=self._deadline_s,
                body_bytes_max=ANSWER_BYTES_MAX,
                tls=self._tls(),
            )
        except UpstreamError as error:
            return error.reason


class Asker(_Model):
    """Asks a chat model."""

    async def ask(self, messages: list[dict[str, str]], *, output_tokens_max: int) -> Reply:
        """One answer; what goes wrong is in it, and nothing is raised."""
        began_s = self._clock.now_s()
        response = await self._post(
            _CHAT, {"messages": messages, "temperature": 0, "max_tokens": output_tokens_max}
        )
        took_s = self._clock.now_s() - began_s
        if isinstance(response, str):
            return Reply(error=response, took_s=took_s)
        revision = response.headers.get("x-headrace-model-revision", "")
        if response.status != 200:
            return Reply(revision=revision, error=_refused(response), took_s=took_s)
        try:
            choice = _decode(response.body).choices[0]
        except _UNREADABLE:
            return Reply(revision=revision, error="not_an_answer", took_s=took_s)
        text = choice.message.content or choice.message.refusal or ""
        return Reply(text, revision, choice.finish_reason == "length", "", took_s)


class Embedder(_Model):
    """Asks an embedding model."""

    async def embed(self, texts: list[str]) -> Embedding:
        """Their vectors; what goes wrong is in it, and nothing is raised."""
        response = await self._post(_EMBEDDINGS, {"input": texts})
        if isinstance(response, str):
            return Embedding(error=response)
        if response.status != 200:
            return Embedding(error=_refused(response))
        try:
            found = sorted(_decode_vectors(response.body).data, key=lambda vector: vector.index)
        except _UNREADABLE:
            return Embedding(error="not_an_answer")
        vectors = [each.embedding for each in found]
        is_whole = len(vectors) == len(texts) and len(set(map(len, vectors))) == 1
        return Embedding(vectors) if is_whole else Embedding(error="not_an_answer")


def _refused(response: fetch.Response) -> str:
    """The status and the server's word for it: no more than a word, as reports of sealed cases show it too."""
    reason = response.headers.get("x-headrace-reason", "")
    return f"{response.status} {reason if _REASON.match(reason) else ''}".strip()
