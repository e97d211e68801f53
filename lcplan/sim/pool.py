"""The KV cache of one engine rank: a pool of tokens, and the prefix cache that lives in what running requests leave.

A radix tree over packed token ids, cut at whole pages (vLLM: blocks of 16, SGLang: its page size). Matching compares
bytes, so a million-token prompt costs a few memory compares and no hash per block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WORD = 4  # bytes of a packed token id


@dataclass(eq=False, slots=True)
class Node:
    """An edge of the tree with its tokens; `users` counts running requests that hold it."""

    ids: bytes
    parent: Node | None
    users: int = 0
    used_at: int = 0
    children: dict[bytes, Node] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of this edge alone."""
        return len(self.ids) // WORD


class Pool:
    """Tokens of one rank: held by requests (`held`), cached and in use, cached and free to evict."""

    def __init__(self, capacity: int, page: int, *, caching: bool) -> None:
        self.capacity = capacity
        self.page = page
        self.caching = caching
        self.held = 0
        self.cached = 0
        self.locked = 0
        self._roots: dict[str, Node] = {}
        self._clock = 0

    @property
    def used(self) -> int:
        """Tokens that can't be given to another request now."""
        return self.held + self.locked

    def room(self, tokens: int) -> int:
        """Return tokens rounded up to whole pages."""
        return -(-tokens // self.page) * self.page

    def admit(self, prompt: bytes, total: int, salt: str = "") -> tuple[Node, int] | None:
        """Reserve a request's tokens; return the node of its cached prefix and its length, None while there is no room.

        The last token of a prompt is always computed, so a full hit leaves one page (vLLM) or token (SGLang) out.
        """
        usable = (len(prompt) // WORD - 1) // self.page * self.page
        node, length = self._match(prompt[: usable * WORD], salt) if self.caching else (self._root(salt), 0)
        fresh = self.room(total - length)
        newly_locked = sum(step.tokens for step in _path(node) if not step.users)
        if self.used + newly_locked + fresh > self.capacity:
            return None
        self._lock(node)
        self.held += fresh
        self._evict()
        return node, length

    def commit(self, ids: bytes, node: Node, reserved: int, salt: str = "") -> tuple[Node, int]:
        """Put a request's computed tokens into the cache; return the node it now holds and what stays reserved."""
        whole = len(ids) // WORD // self.page * self.page
        if not self.caching or not whole:
            return node, reserved
        before = sum(step.tokens for step in _path(node))
        longer = self._insert(ids[: whole * WORD], salt)
        self._lock(longer)
        self._unlock(node)
        left = max(0, reserved - (whole - before))
        self.held -= reserved - left
        return longer, left

    def release(self, node: Node, reserved: int) -> None:
        """Give back what a finished request held; its cached tokens stay until they are evicted."""
        self.held -= reserved
        self._unlock(node)
        self._evict()

    def clear(self) -> None:
        """Forget the whole prefix cache; only for a pool that nothing runs in."""
        self._roots.clear()
        self.cached = self.locked = 0

    def _root(self, salt: str) -> Node:
        return self._roots.setdefault(salt, Node(b"", None))

    def _match(self, ids: bytes, salt: str) -> tuple[Node, int]:
        node, at = self._root(salt), 0
        page = self.page * WORD
        while at < len(ids):
            child = node.children.get(ids[at : at + page])
            if child is None:
                break
            shared = _common(child.ids, ids[at : at + len(child.ids)]) // page * page
            if shared < len(child.ids):
                child = self._split(child, shared)
            node, at = child, at + shared
        return node, at // WORD

    def _insert(self, ids: bytes, salt: str) -> Node:
        node, length = self._match(ids, salt)
        rest = ids[length * WORD :]
        if rest:
            child = Node(rest, node)
            node.children[rest[: self.page * WORD]] = child
            self.cached += child.tokens
            node = child
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge in two; return its first part."""
        parent = node.parent
        assert parent is not None
        head = Node(node.ids[:at], parent, node.users, node.used_at)
        page = self.page * WORD
        parent.children[head.ids[:page]] = head
        node.ids, node.parent = node.ids[at:], head
        head.children[node.ids[:page]] = node
        return head

    def _lock(self, node: Node) -> None:
        self._clock += 1
        for step in _path(node):
            if not step.users:
                self.locked += step.tokens
            step.users += 1
            step.used_at = self._clock

    def _unlock(self, node: Node) -> None:
        for step in _path(node):
            step.users -= 1
            if not step.users:
                self.locked -= step.tokens

    def _evict(self) -> None:
        """Drop the least recently used tokens, from the ends of their prefixes, until everything fits."""
        while (over := self.held + self.cached - self.capacity) > 0:
            leaf = min(self._leaves(), key=lambda node: node.used_at, default=None)
            if leaf is None:
                return
            keep = max(0, leaf.tokens - self.room(over))
            self.cached -= leaf.tokens - keep
            if keep:
                leaf.ids = leaf.ids[: keep * WORD]
            elif leaf.parent is not None:
                del leaf.parent.children[leaf.ids[: self.page * WORD]]

    def _leaves(self) -> list[Node]:
        out, stack = [], list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if not node.children and not node.users and node.parent is not None:
                out.append(node)
        return out


def _path(node: Node) -> list[Node]:
    """The edges from a node up to its root, the root left out."""
    out = []
    step: Node | None = node
    while step is not None and step.parent is not None:
        out.append(step)
        step = step.parent
    return out


def _common(a: bytes, b: bytes) -> int:
    """The length in bytes of the common start of two texts."""
    if a == b:
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
