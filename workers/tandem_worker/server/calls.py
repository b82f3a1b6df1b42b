"""Function calls in an output's text: taken out of it as it comes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tandem_worker.server.text import held_back

OPEN, CLOSE = "<tool_call>", "</tool_call>"  # as Hermes, Qwen2.5, Qwen3 and SmolLM2 mark their calls
ARGUMENTS: Final = ("arguments", "parameters")  # the first is Hermes', the second Llama 3's and ours


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of an output: text, and `tool_calls` as OpenAI streams them (an index, and what is new of that call)."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)


class CallReader(Protocol):
    """Takes an output's pieces; `finish` is the reason of the last one."""

    ends_with: str  # finish_reason of an answer with calls that came to its own end

    def push(self, text: str, *, last: bool) -> Said:
        """What this piece makes certain."""


def whole_call(index: int, name: str, arguments: str) -> dict[str, Any]:
    """A call that is complete."""
    call_id = f"call_{secrets.token_hex(12)}"
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class NamedCall:
    """The output is one function's arguments: they stream as they come."""

    ends_with = "stop"  # OpenAI's word where the caller named the function

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def push(self, text: str, *, last: bool) -> Said:  # noqa: ARG002 - nothing is held back
        """See CallReader."""
        if self._begun:
            return Said(calls=[{"index": 0, "function": {"arguments": text}}] if text else [])
        self._begun = True
        return Said(calls=[whole_call(0, self._name, text)])


class CallList:
    """The output is a list of {name, parameters}; the calls come when it is complete."""

    ends_with = "tool_calls"

    def __init__(self) -> None:
        self._text = ""

    def push(self, text: str, *, last: bool) -> Said:
        """See CallReader. A list that was cut short is text."""
        self._text += text
        if not last:
            return Said()
        found = parse_calls(self._text, lambda _: True)
        return Said(text=self._text) if found is None else Said(calls=numbered(found, 0))


class FreeCalls:
    """The model decides: text, with calls between marks, or one JSON object that is a call and nothing else."""

    ends_with = "tool_calls"

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held = ""
        self._inside = False
        self._begun = False  # has text been said, so that the output as a whole is no call?
        self._count = 0

    def push(self, text: str, *, last: bool) -> Said:
        """See CallReader. Of what turns out to be no call, nothing is lost."""
        self._held += text
        said, calls = "", []
        while True:
            mark = CLOSE if self._inside else OPEN
            before, found, after = self._held.partition(mark)
            if not found:
                break
            self._held = after
            if self._inside:
                read = self._read(before)
                calls += read or []
                said += "" if read is not None else OPEN + before + CLOSE
            else:
                said += before
            self._inside = not self._inside
        rest, more = self._rest(last=last, begun=bool(self._begun or said.strip() or self._count))
        self._begun = self._begun or bool((said + rest).strip())
        return Said(said + rest, calls + more)

    def _rest(self, *, last: bool, begun: bool) -> tuple[str, list[dict[str, Any]]]:
        """What is certain of the text behind the last mark."""
        held = self._held
        could_be_call = self._inside or (not begun and held.lstrip()[:1] in {"{", ""})
        if last:
            self._held = ""
            if could_be_call and (calls := self._read(held)) is not None:
                return "", calls
            return (OPEN if self._inside else "") + held, []
        if could_be_call:
            return "", []
        keep = held_back(held, (OPEN,))
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], []

    def _read(self, text: str) -> list[dict[str, Any]] | None:
        found = parse_calls(text, self._names.__contains__)
        if found is None:
            return None
        calls = numbered(found, self._count)
        self._count += len(calls)
        return calls


def numbered(calls: list[tuple[str, str]], first: int) -> list[dict[str, Any]]:
    """(name, arguments) as OpenAI's calls."""
    return [whole_call(first + at, name, arguments) for at, (name, arguments) in enumerate(calls)]


def parse_calls(text: str, is_known: Callable[[str], bool]) -> list[tuple[str, str]] | None:
    """(name, arguments as JSON) of a call, or of a list of them. None where the text is anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls = []
    for one in found if isinstance(found, list) else [found]:
        if not (isinstance(one, dict) and isinstance(one.get("name"), str) and is_known(one["name"])):
            return None
        arguments: Any = next((one[key] for key in ARGUMENTS if key in one), {})
        said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        # JSON can say half a surrogate pair, which no text can hold.
        calls.append((one["name"], said.encode(errors="replace").decode()))
    return calls or None
