"""How a model is spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Ranks by kind. Attention: `tensor` x `data` x `pipeline`; experts: `expert_tensor` x `expert` x `pipeline`."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1  # attention data parallel: each rank serves its own requests
    expert_tensor: int = 0  # 0: what remains of the ranks beside `expert`
    expert: int = 1

    @property
    def ranks(self) -> int:
        """GPUs of one pipeline stage."""
        return self.tensor * self.data

    @property
    def gpus(self) -> int:
        """All GPUs of one worker."""
        return self.ranks * self.pipeline

    @property
    def experts_split(self) -> int:
        """GPUs that share one expert's weights."""
        return max(self.expert_tensor or self.ranks // self.expert, 1)
