"""What all bodies share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

PROMPT_AT_MOST: Final = 4 * 1024 * 1024  # characters, or token ids: what a body may hold
Text = Annotated[str, Field(max_length=PROMPT_AT_MOST)]
Word = Annotated[str, Field(max_length=64)]


class Body(BaseModel):
    """Base of all: unknown fields are tolerated, NaN and infinity are no numbers."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    def check(self) -> None:
        """Raises ApiError for what this server does not do."""
