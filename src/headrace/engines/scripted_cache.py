"""What does the scripted engine remember of prompts? Blocks of them, found again by their beginning and their salt."""

import hashlib

BLOCK_TOKENS = 16
BLOCK_BYTES = 4 * BLOCK_TOKENS  # a token is four bytes here


class PrefixCache:
    """A prefix cache as vLLM has it, without the values: blocks of tokens, each named by all that comes before it.

    The salt is part of the first block's name, and so of all that follow. State: `_blocks`, by name, the one that was unused for
    longest first.

    Args:
        tokens_max: How much it holds; what was unused for longest is forgotten for something new.
    """

    def __init__(self, tokens_max: int) -> None:
        self._blocks_max = tokens_max // BLOCK_TOKENS
        self._blocks: dict[bytes, None] = {}

    def use(self, prompt: bytes, *, salt: str = "", may_read: bool = True) -> int:
        """How many tokens of a prompt are there already; all of it is from now on.

        Whole blocks count, and of a prompt that is known to its end the last one doesn't: something must be computed.
        """
        names = _names(prompt, salt)
        found = 0
        if may_read:
            while found < len(names) and names[found] in self._blocks:
                found += 1
            if found and found * BLOCK_BYTES == len(prompt):
                found -= 1
        for name in names:
            self._blocks.pop(name, None)
            self._blocks[name] = None
        while len(self._blocks) > self._blocks_max:
            del self._blocks[next(iter(self._blocks))]
        return found * BLOCK_TOKENS


def _names(prompt: bytes, salt: str) -> list[bytes]:
    """The names of the prompt's whole blocks, in order."""
    name = hashlib.sha256(salt.encode()).digest()
    names = []
    for end in range(BLOCK_BYTES, len(prompt) + 1, BLOCK_BYTES):
        name = hashlib.sha256(name + prompt[end - BLOCK_BYTES : end]).digest()
        names.append(name)
    return names
