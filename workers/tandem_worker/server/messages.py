"""A conversation's messages, and what chat templates see of them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from tandem_worker.server.base import Body, Text, Word
from tandem_worker.server.errors import bad_request, unsupported


class TextPart(Body):
    """A part of a message's content."""

    type: Word
    text: Text = ""


class CalledFunction(Body):
    """The function of an earlier call."""

    name: Word
    arguments: Text = "{}"


class Call(Body):
    """An earlier call of the assistant."""

    id: Annotated[str, Field(max_length=256)] = ""
    type: Literal["function"] = "function"
    function: CalledFunction

    def plain(self) -> dict[str, Any]:
        """With its arguments as an object, which is what templates print. Raises ApiError."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise bad_request(f"the arguments of the call of {self.function.name!r} are no JSON", "messages") from error
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}


class ChatMessage(Body):
    """One message; content is text, or parts that are text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Field(max_length=4096)] | None = None
    name: Word | None = None
    tool_calls: Annotated[list[Call], Field(max_length=128)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None

    def plain(self) -> dict[str, Any]:
        """Role and text, as chat templates want them. Raises ApiError for images and sounds."""
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self._text()}
        if self.tool_calls:
            found["tool_calls"] = [one.plain() for one in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            found["name"] = self.name
        return found

    def _text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        if strange := [part.type for part in self.content if part.type != "text"]:
            raise unsupported("messages", f"message content of type {strange[0][:40]!r}")
        return "".join(part.text for part in self.content)
