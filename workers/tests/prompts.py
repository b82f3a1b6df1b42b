"""Prompts for parity tests: seeded token ids of many lengths, some of which share a prefix. No text, no randomness."""

from __future__ import annotations

import hashlib

FAMILY_PREFIX_TOKENS = (48, 160, 512)
SHORT = (1, 2, 3, 5, 8, 13, 15, 16, 17, 21, 31, 32, 33, 47, 48, 49, 63, 64, 65, 80, 96, 100, 127, 128, 129, 150, 200)
LONG = (255, 256, 257, 300, 400, 511, 512, 513, 700, 900, 1500)
LENGTHS = (*SHORT, *LONG)
TAILS = (1, 16, 40, 100)  # behind each family's prefix


def token_ids(label: str, count: int, vocab: int, low: int = 17) -> list[int]:
    """`count` ids in [low, vocab) that depend on `label` alone; ids below `low` are special in most vocabularies."""
    ids: list[int] = []
    block = 0
    while len(ids) < count:
        digest = hashlib.blake2b(f"{label}:{block}".encode()).digest()
        ids += [low + int.from_bytes(digest[at : at + 4], "big") % (vocab - low) for at in range(0, 64, 4)]
        block += 1
    return ids[:count]


def parity_prompts(vocab: int) -> list[list[int]]:
    """50 prompts of 1 to 1,500 tokens; 12 of them in three families of four that share their first tokens."""
    alone = [token_ids(f"alone {length}", length, vocab) for length in LENGTHS]
    families = [
        token_ids(f"family {prefix}", prefix, vocab) + token_ids(f"tail {prefix} {tail}", tail, vocab)
        for prefix in FAMILY_PREFIX_TOKENS
        for tail in TAILS
    ]
    return alone + families
