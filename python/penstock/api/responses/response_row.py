"""The database row of a response, updated while the response is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from penstock.api.codecs.responses import Resource
from penstock.dialog import Message

if TYPE_CHECKING:
    from penstock.store import StoredResponse
    from penstock.store.responses import Responses

_CONVERSATION: Final = msgspec.msgpack.Decoder(tuple[Message, ...])


class ResponseRow:
    """The database row of one response.

    `resource`: the response; its current state is what `create` and `save` write.
    `turn`: the messages of the conversation that the response answers, without instructions.
    `owner`: the id of the API process that runs the response.
    `previous_id`: the id of the response that this response continues; None: a new conversation.
    `is_open`: True if the row exists and its response is unfinished.
    """

    def __init__(
        self,
        responses: Responses,
        resource: Resource,
        turn: tuple[Message, ...],
        owner: str,
        previous_id: str | None,
    ) -> None:
        self.resource = resource
        self.is_open = False
        self._responses = responses
        self._turn = turn
        self._owner = owner
        self._previous_id = previous_id

    async def create(self) -> None:
        """Insert the row with the current state of the response."""
        # Imported here, because the store's libraries load after the start.
        from penstock.store import StoredResponse

        resource = self.resource
        self.is_open = not resource.ended
        await self._responses.create(
            StoredResponse(
                id=resource.identity.id,
                created_at=resource.created,
                status=resource.status,
                owner=self._owner,
                body=resource.body(),
                background=resource.identity.background,
                conversation=self._conversation(),
                previous_id=self._previous_id,
                container=resource.identity.container,
                turn_length=len(self._turn),
            )
        )

    async def save(self) -> None:
        """Update the row with the current state of the response. Does nothing if the row was
        deleted, or ended by another process."""
        resource = self.resource
        conversation = self._conversation() if resource.ended else None
        await self._responses.update(
            resource.identity.id,
            status=resource.status,
            body=resource.body(),
            conversation=conversation,
        )
        self.is_open = not resource.ended

    def _conversation(self) -> bytes:
        return msgspec.msgpack.encode((*self._turn, *self.resource.messages()))


def conversation_of(stored: StoredResponse) -> tuple[Message, ...]:
    """Return the messages of the conversation up to and including the response."""
    return _CONVERSATION.decode(stored.conversation)


def input_of(stored: StoredResponse) -> tuple[Message, ...]:
    """Return the messages that the response answered, without the response itself."""
    messages = conversation_of(stored)
    if stored.turn_length is not None:
        return messages[: stored.turn_length]
    output = orjson.loads(stored.body)["output"]
    # An incomplete tool call is not part of the conversation (see `Output.parts`).
    answered = any(i["type"] != "function_call" or i["status"] == "completed" for i in output)
    if answered and messages and messages[-1].role == "assistant":
        return messages[:-1]
    return messages
