"""KV pages on a device: what a transfer brings or fetches passes through page-locked host memory, a slot a page.

Transfer backends know host memory alone, so all of them serve a device's pages, at the price of one more copy over the
host's bus. How many pages may be in open reservations at once is bounded by the slots: beyond that a reservation is a
Shortage, as it is when pages run out. Pages that are lent get at most half of the slots, and else a copy outside them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final

import torch

from tandem_worker.engine.lending import LENT_SHARE, Loan, runs
from tandem_worker.engine.memory import own_memory
from tandem_worker.engine.request import ModelLoadError
from tandem_worker.engine.store import KvStore, make_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from tandem_worker.engine.request import EngineSettings, ModelInfo

LOG = logging.getLogger(__name__)
SLOTS_BYTES: Final = 1 << 30
LEAST_SEQUENCES: Final = 4  # of `max_context` tokens that the slots must hold: two come, two go


def slots_for(pages: int, page_bytes: int, sequence_pages: int) -> int:
    """How many slots: SLOTS_BYTES, at least LEAST_SEQUENCES, never more than there are pages."""
    return min(pages, max(SLOTS_BYTES // page_bytes, LEAST_SEQUENCES * sequence_pages))


class StagedStore(KvStore):
    """`tensor`: on the device, with one page more, which is nobody's (graphs.py); `raw` and `file`: the slots'."""

    in_place = False

    def __init__(
        self, info: ModelInfo, settings: EngineSettings, dtype: torch.dtype, device: torch.device, kv_heads: int = 0
    ) -> None:
        """`kv_heads`: this rank's, where it has not all of them. Raises ModelLoadError."""
        self._device = device
        self._lock = threading.Lock()  # guards the slots; loans end on any thread
        self._slots: list[int] = []
        self._slot_of: dict[int, int] = {}
        self._lent = 0
        super().__init__(info, settings, dtype, kv_heads or None)
        if settings.tensor_parallel > 1:
            self.refusal = "KV pages of a worker over several GPUs do not travel: serve colocated, or one GPU each"

    def place(self, settings: EngineSettings, region: Tensor | None) -> None:
        """Device memory for pages, host memory for slots."""
        del region
        sequence = -(-settings.max_context // settings.page_tokens)
        slots = slots_for(self.pages, self.page_bytes, sequence)
        try:
            self.tensor = torch.zeros((self.pages + 1, *self.page_shape), dtype=self.dtype, device=self._device)
        except torch.OutOfMemoryError as error:
            raise ModelLoadError(f"--kv-memory-mib {settings.kv_memory_mib} is more than {self._device} has") from error
        self.file = make_file(slots * self.page_bytes) if settings.shared_memory else None
        self._host = own_memory(slots * self.page_bytes) if self.file is None else self.file.bytes
        self._pin()
        self._staged = self._host.view(self.dtype).view(slots, *self.page_shape)
        self.raw = self._host.numpy().data
        self.ranks = (self.tensor,)
        self._slots = list(range(slots))[::-1]
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        LOG.info("%d of them at a time may be on their way to or from other workers", slots)

    def _pin(self) -> None:
        if self._device.type == "cuda":
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = runtime.cudaHostRegister(self._host.data_ptr(), self._host.nbytes, 0)
            if int(code):  # slower, not wrong
                LOG.warning("the slots cannot be page-locked: CUDA says %s", code)

    @contextlib.contextmanager
    def _moving(self, *, after_compute: bool = False) -> Iterator[None]:
        """Copies beside the passes, over when this ends. `after_compute`: behind everything that was launched."""
        if self._stream is None:
            yield
            return
        if after_compute:
            self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()

    def stage(self, pages: Sequence[int]) -> bool:
        """See KvStore."""
        if (slots := self._take(len(pages), len(self._slots))) is None:
            return False
        self._slot_of.update(zip(pages, slots, strict=True))
        return True

    def unstage(self, pages: Sequence[int]) -> None:
        """See KvStore."""
        with self._lock:
            self._slots += [self._slot_of.pop(page) for page in pages if page in self._slot_of]

    def _take(self, count: int, most: int) -> list[int] | None:
        with self._lock:
            if count > min(most, len(self._slots)):
                return None
            return [self._slots.pop() for _ in range(count)]

    def memory(self, pages: Sequence[int]) -> list[memoryview]:
        """Of the pages' slots; nobody asks for pages that were not staged."""
        return runs(self.raw, self.page_bytes, [self._slot_of[page] for page in pages])

    def filled(self, pages: Sequence[int]) -> None:
        """Their slots hold them now: to the device."""
        with self._moving(), torch.inference_mode():
            for page in pages:
                self.tensor[page].copy_(self._staged[self._slot_of[page]], non_blocking=True)

    def read(self, pages: Sequence[int], shares: int = 1) -> Tensor:
        """A copy on the host, see KvStore."""
        with self._moving(after_compute=True):
            return super().read(pages, shares)

    def lend(self, pages: Sequence[int], shares: int) -> Loan:
        """A copy in slots where there are enough, else beside them. On the engine's thread."""
        most = int(len(self._staged) * LENT_SHARE) - self._lent
        if shares != 1 or (slots := self._take(len(pages), most)) is None:
            return super().lend(pages, shares)
        with self._moving(after_compute=True), torch.inference_mode():
            for page, slot in zip(pages, slots, strict=True):
                self._staged[slot].copy_(self.tensor[page], non_blocking=True)
        with self._lock:
            self._lent += len(slots)
        return Loan(slots, self.page_bytes, lambda some: runs(self.raw, self.page_bytes, some), self._take_back)

    def _take_back(self, slots: Sequence[int]) -> None:
        with self._lock:
            self._slots += slots
            self._lent -= len(slots)

    def blank(self, page: int, rows: int) -> None:
        """See KvStore."""
        with self._moving():
            super().blank(page, rows)

    def clear(self, pages: Sequence[int]) -> None:
        """See KvStore."""
        with self._moving():
            super().clear(pages)
