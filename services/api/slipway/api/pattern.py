"""Regular expressions whose search takes time in proportion to the line, whatever the pattern: they come from callers.

Pure. Owns a subset of the usual syntax: literals, `.`, classes, `\\d \\w \\s` and their opposites, `^ $`, groups, `|`,
`* + ? {m,n}`, and `(?i)` at the start. References back, looking around and `\\b` are refused by name:
they can take exponential time, or are seldom needed to find a line. The library's own engine tries one way after
another, and a pattern such as `(a+)+$` would hold up the whole process.

Source: Thompson, "Regular Expression Search Algorithm" (1968), with the sets of states kept (a lazy DFA).
"""

from collections.abc import Callable, Iterable

NODES_MAX = 2_000
REPEATS_MAX = 100
STATES_KEPT_MAX = 2_000
DEPTH_MAX = 50

_Accepts = Callable[[str], bool]
_CLASSES: dict[str, _Accepts] = {
    "d": str.isdigit,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
    "D": lambda char: not char.isdigit(),
    "W": lambda char: not (char.isalnum() or char == "_"),
    "S": lambda char: not char.isspace(),
}
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_MATCH, _BEGIN, _END, _SPLIT, _CHAR = range(5)


class PatternError(ValueError):
    """The pattern can not be used; the message says why and where."""


class Pattern:
    """A compiled pattern; `is_in` searches a line for it."""

    def __init__(self, text: str) -> None:
        self._ignores_case = text.startswith("(?i)")
        source = text.removeprefix("(?i)")
        nodes = _Nodes()
        parser = _Parser(source.lower() if self._ignores_case else source, nodes, offset=len(text) - len(source))
        self._start = parser.parse(nodes.add(_MATCH))
        self._nodes = nodes
        self._forget()

    def is_in(self, line: str) -> bool:
        """Whether the pattern occurs in the line."""
        state = self._first
        for char in line.lower() if self._ignores_case else line:
            if self._matches[state]:
                return True
            following = self._moves[state].get(char)
            state = self._move(state, char) if following is None else following
        return self._matches[state] or _MATCH in self._kinds(self._closed(self._sets[state], at_end=True))

    def _move(self, state: int, char: str) -> int:
        if len(self._sets) > STATES_KEPT_MAX:
            current = self._sets[state]
            self._forget()
            state = self._numbered(current)
        nodes = self._nodes
        onward = {nodes.first[each] for each in self._sets[state] if nodes.takes(each, char)}
        following = self._numbered(self._closed(onward | {self._start}))
        self._moves[state][char] = following
        return following

    def _forget(self) -> None:
        self._sets: list[frozenset[int]] = []
        self._numbers: dict[frozenset[int], int] = {}
        self._moves: list[dict[str, int]] = []
        self._matches: list[bool] = []
        self._first = self._numbered(self._closed({self._start}, at_begin=True))

    def _numbered(self, nodes: frozenset[int]) -> int:
        number = self._numbers.get(nodes)
        if number is None:
            number = self._numbers[nodes] = len(self._sets)
            self._sets.append(nodes)
            self._moves.append({})
            self._matches.append(_MATCH in self._kinds(nodes))
        return number

    def _closed(self, nodes: Iterable[int], *, at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """The nodes and all that are reached from them without a character."""
        seen: set[int] = set()
        waiting = list(nodes)
        kinds, first, second = self._nodes.kind, self._nodes.first, self._nodes.second
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if kinds[node] == _SPLIT:
                waiting += (first[node], second[node])
            elif (kinds[node] == _BEGIN and at_begin) or (kinds[node] == _END and at_end):
                waiting.append(first[node])
        return frozenset(seen)

    def _kinds(self, nodes: Iterable[int]) -> set[int]:
        return {self._nodes.kind[node] for node in nodes}


class _Nodes:
    """The automaton: node `n` is of `kind[n]` and leads to `first[n]` (a split to `second[n]` too)."""

    def __init__(self) -> None:
        self.kind: list[int] = []
        self.first: list[int] = []
        self.second: list[int] = []
        self._accepts: list[_Accepts | None] = []

    def add(self, kind: int, first: int = 0, second: int = 0, accepts: _Accepts | None = None) -> int:
        if len(self.kind) >= NODES_MAX:
            raise PatternError("the pattern is too large")
        self.kind.append(kind)
        self.first.append(first)
        self.second.append(second)
        self._accepts.append(accepts)
        return len(self.kind) - 1

    def takes(self, node: int, char: str) -> bool:
        accepts = self._accepts[node]
        return accepts is not None and accepts(char)


_Part = Callable[[int], int]
"""Builds a part of the automaton in front of the node that follows it; answers where it begins."""


class _Parser:
    """Reads a pattern once, from left to right."""

    def __init__(self, source: str, nodes: _Nodes, *, offset: int) -> None:
        self._source = source
        self._nodes = nodes
        self._offset = offset
        self._at = 0
        self._depth = 0

    def parse(self, following: int) -> int:
        part = self._either()
        if self._at < len(self._source):
            raise self._error("there is a ) too many")
        return part(following)

    def _either(self) -> _Part:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())

        def build(following: int) -> int:
            begin = branches[-1](following)
            for branch in reversed(branches[:-1]):
                begin = self._nodes.add(_SPLIT, branch(following), begin)
            return begin

        return build

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            parts.append(self._repeated(self._one()))

        def build(following: int) -> int:
            for part in reversed(parts):
                following = part(following)
            return following

        return build

    def _one(self) -> _Part:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._char(self._class())
            case ".":
                return self._char(lambda _char: True)
            case "^":
                return lambda following: self._nodes.add(_BEGIN, following)
            case "$":
                return lambda following: self._nodes.add(_END, following)
            case "\\":
                return self._char(self._escaped())
            case "*" | "+" | "?":
                raise self._error(f"there is nothing that {char} could repeat")
            case _:
                return self._char(char.__eq__)

    def _group(self) -> _Part:
        if self._source.startswith("?", self._at) and not self._source.startswith("?:", self._at):
            raise self._error("groups that begin with (? are not supported, but for (?: and (?i) at the start")
        self._at += 2 if self._source.startswith("?:", self._at) else 0
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error("the groups are nested too deep")
        part = self._either()
        self._depth -= 1
        if not self._take(")"):
            raise self._error("a ( is not closed")
        return part

    def _repeated(self, part: _Part) -> _Part:
        while self._at < len(self._source):
            char = self._source[self._at]
            if char == "{" and (bounds := self._bounds()) is not None:
                part = self._times(part, *bounds)
            elif char in "*+?":
                self._at += 1
                part = self._times(part, 1 if char == "+" else 0, 1 if char == "?" else None)
            else:
                break
            self._take("?")  # a lazy one finds the same lines
        return part

    def _times(self, part: _Part, least: int, most: int | None) -> _Part:
        nodes = self._nodes

        def build(following: int) -> int:
            begin = following
            if most is None:
                loop = nodes.add(_SPLIT, 0, following)
                nodes.first[loop] = part(loop)
                begin = loop
            else:
                for _ in range(most - least):
                    begin = nodes.add(_SPLIT, part(begin), following)
            for _ in range(least):
                begin = part(begin)
            return begin

        return build

    def _bounds(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}`, `{2,5}`; None when it is no repeat but a brace."""
        inside, brace, _ = self._source[self._at + 1 :].partition("}")
        low, comma, high = inside.partition(",")
        if not brace or not low.isdigit() or (high and not high.isdigit()):
            return None
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise self._error(f"repeats go from 0 to {REPEATS_MAX}, the smaller number first")
        self._at += len(inside) + 2
        return least, most

    def _class(self) -> _Accepts:
        is_negated = self._take("^")
        singles: set[str] = set()
        others: list[_Accepts] = []
        is_first = True
        while is_first or not self._source.startswith("]", self._at):
            is_first = False
            char = self._next("a [ is not closed")
            if char == "\\":
                accepts = self._escaped()
                others.append(accepts)
                continue
            rest = self._source[self._at : self._at + 2]
            if len(rest) == 2 and rest[0] == "-" and rest[1] != "]":
                self._at += 2
                low, high = char, rest[1]
                if low > high:
                    raise self._error(f"the range {low}-{high} is the wrong way round")
                others.append(lambda each, low=low, high=high: low <= each <= high)
            else:
                singles.add(char)
        self._at += 1
        known, more = frozenset(singles), tuple(others)

        def accepts_any(char: str) -> bool:
            return (char in known or any(accepts(char) for accepts in more)) is not is_negated

        return accepts_any

    def _escaped(self) -> _Accepts:
        char = self._next("the pattern ends with a backslash")
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _ESCAPED:
            return _ESCAPED[char].__eq__
        if char.isalnum():
            raise self._error(f"\\{char} is not supported")
        return char.__eq__

    def _char(self, accepts: _Accepts) -> _Part:
        return lambda following: self._nodes.add(_CHAR, following, accepts=accepts)

    def _next(self, otherwise: str = "the pattern ends too early") -> str:
        if self._at >= len(self._source):
            raise self._error(otherwise)
        self._at += 1
        return self._source[self._at - 1]

    def _take(self, char: str) -> bool:
        is_there = self._source.startswith(char, self._at)
        self._at += is_there
        return is_there

    def _error(self, text: str) -> PatternError:
        return PatternError(f"{text} (at character {self._at + self._offset})")
