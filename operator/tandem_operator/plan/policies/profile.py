"""What a planner that profiles knows of one worker of each role: measured offline, exact."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of one idle prefill worker for a prompt, and of one decode worker's step.

    prompt: base + token·n + pair·n². Step of a batch B at mean context c: base + B·(request + context_token·c).
    """

    prompt_base_s: float
    prompt_token_s: float
    prompt_pair_s: float
    step_base_s: float
    step_request_s: float
    step_context_token_s: float
    max_batch: int  # requests that one decode worker runs at once
    kv_room_tokens: float  # tokens of KV that fit into one decode worker

    def prompt_s(self, tokens: float) -> float:
        """Seconds of one prompt that nothing delays: a planner's profiled TTFT."""
        return self.prompt_base_s + self.prompt_token_s * tokens + self.prompt_pair_s * tokens**2

    def step_s(self, batch: float, context: float) -> float:
        """Seconds of one decode step: a planner's profiled ITL."""
        return self.step_base_s + batch * (self.step_request_s + self.step_context_token_s * context)

    def batch_within(self, seconds: float, context: float) -> int:
        """The largest batch whose step takes at most `seconds`, within the worker's batch and memory; 0 for none."""
        each = self.step_request_s + self.step_context_token_s * context
        fast = self.max_batch if each <= 0 else floor((seconds - self.step_base_s) / each + 1e-9)
        return max(min(fast, self.room(context)), 0)

    def room(self, context: float) -> int:
        """Requests of this mean context that fit into one decode worker."""
        return min(self.max_batch, floor(self.kv_room_tokens / max(context, 1.0)))
