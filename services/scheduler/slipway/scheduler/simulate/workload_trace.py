"""Reads a workload trace (CSV or JSON lines of the jobs of a cluster) as the allocations of a scenario.

Owns the mapping file, which states what the columns of a trace mean, and the position of an error about a row: file,
line and column. Knows nothing of planning; the resulting allocations are checked like a scenario. docs/scenarios.md
describes the format.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, cast
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from slipway import yaml_reader
from slipway.errors import InvalidError
from slipway.model.resources import CPU, GPU, MEMORY, MILLI, parse_quantity, scale_of
from slipway.model.times import parse_duration
from slipway.scheduler.simulate.scenario import document_of, located, whole
from slipway.scheduler.simulate.scenario_format import Scenario

Json = dict[str, Any]
Cell = str | float | bool
TRACE = yaml_reader.TextLimits(64 * 1024 * 1024, 0)
"""The limits of a trace file: enough for some hundred thousand rows."""
_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MILLI_UNITS = {"": 1, "gpu": MILLI}
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
"""[days-][hours:]minutes:seconds, as Slurm writes a duration"""
_QUANTITIES = {"cpu": CPU, "memory": MEMORY, "gpus": GPU}
_SHOWN_MAX = 60
_COLUMNS_SHOWN_MAX = 12
_TRUE, _FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})


class FieldRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """The source of a field of an allocation: a column, two columns with times, or the same value for all rows."""

    column: str = ""
    value: Cell | None = None
    """the same for all rows"""
    from_: str = ""
    to: str = ""
    """with `from`: the time between two columns"""
    unit: str = ""
    """the unit of a number: ms, s, m, h, d for times; a suffix of a Kubernetes quantity for cpu and memory; gpu for
    gpuMilli"""
    per: Literal["rank", "allocation"] = "rank"
    """allocation: the amount is that of all ranks together, and is divided among them"""
    values: dict[str, Cell] = {}
    """{cell: its replacement}; other cells are not changed"""
    default: Cell | None = None
    """the replacement of an empty cell"""


Rule = FieldRule | str
"""A text is short for a rule with that column."""


class TraceColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The fields of an allocation that a trace contains; each has the same meaning as in a scenario."""

    submit: Rule
    duration: Rule
    name: Rule | None = None
    """absent: row-LINE"""
    ranks: Rule | None = None
    cpu: Rule | None = None
    memory: Rule | None = None
    gpus: Rule | None = None
    gpu_milli: Rule | None = None
    """a part of one GPU; with 1000 or more, gpus is used instead"""
    max_runtime: Rule | None = None
    queue: Rule | None = None
    user: Rule | None = None
    priority: Rule | None = None
    preemptible: Rule | None = None
    gpu_type: Rule | None = None


class TraceMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping file."""

    columns: TraceColumns
    format: Literal["csv", "jsonl"] | None = None
    """absent: jsonl for a file that ends in .jsonl or .ndjson, else csv"""
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    time_zone: str = ""
    """the time zone of times without an offset, such as Europe/Berlin"""
    skip: dict[str, list[Cell]] = {}
    """{column: cells}: rows with such a cell are left out; "" is an empty cell"""


class TracedScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario with the allocations of a trace, and warnings about them."""

    scenario: Scenario
    warnings: tuple[str, ...]


class _Row(msgspec.Struct, frozen=True):
    line: int
    cells: Mapping[str, str]


class _CellText(msgspec.Struct, frozen=True):
    """One cell, after the replacements of the mapping, and its position for errors."""

    text: str
    where: str


def load(file: str, trace: str, mapping: str) -> TracedScenario:
    """Return the scenario of `file` with the allocations of `trace` added.

    Raises:
        InvalidError: a file is wrong; the message has the line and column, or the path of the field, and the
            correction.
    """
    if [file, trace, mapping].count("-") > 1:
        raise InvalidError("only one of FILE, --trace and --mapping can be -, the standard input")
    reader = _TraceReader(trace, mapping, read_mapping(mapping))
    text = yaml_reader.read_text(file, yaml_reader.SCENARIO)
    traced = reader.allocations(yaml_reader.read_text(trace, TRACE))
    own: list[Any] = []
    try:
        document = document_of(text)
        if isinstance(document, dict):
            fields = cast("Json", document)
            listed = fields.get("allocations", [])
            if isinstance(listed, list):
                own = cast("list[Any]", listed)
                document = {**fields, "allocations": [*own, *traced]}
        scenario = whole(cast("object", document))
    except InvalidError as exc:
        raise InvalidError(reader.row_error(str(exc), len(own), file)) from exc
    left_out = f"rows of {trace} left out by skip of {mapping}: {reader.skipped}"
    return TracedScenario(scenario=scenario, warnings=(left_out,) if reader.skipped else ())


def read_mapping(name: str) -> TraceMapping:
    """Return the mapping in a file.

    Raises:
        InvalidError: a field is wrong; the message has the file and the path.
    """
    text = yaml_reader.read_text(name, yaml_reader.MANIFEST)
    try:
        document = yaml_reader.parse(text, yaml_reader.MANIFEST)
        mapping = msgspec.convert(document, TraceMapping)
        _check_mapping(mapping)
    except msgspec.ValidationError as exc:
        raise InvalidError(f"{name}: {located(str(exc))}") from exc
    except InvalidError as exc:
        raise InvalidError(f"{name}: {exc}") from exc
    return mapping


def _check_mapping(mapping: TraceMapping) -> None:
    for field, rule in _rules(mapping.columns).items():
        path = f"columns.{field}"
        sources = [rule.column != "", rule.value is not None, rule.from_ != "" or rule.to != ""]
        if sum(sources) != 1:
            raise InvalidError(f"{path}: state one of column, value, or from and to")
        if sources[2] and (field not in ("duration", "maxRuntime") or not (rule.from_ and rule.to)):
            raise InvalidError(f"{path}: from and to name the two columns of a duration; state both, or column")
        units = _units_of(field)
        if rule.unit and units is None:
            raise InvalidError(f"{path}.unit: {field} has no unit; leave it out")
        if units is not None and rule.unit not in units:
            raise InvalidError(f"{path}.unit: {rule.unit} is not a unit of {field}; write {_listed(units)}")
        if rule.per == "allocation" and field not in _QUANTITIES:
            raise InvalidError(f"{path}.per: only cpu, memory and gpus are divided among ranks; leave it out")
    if mapping.time_zone:
        try:
            ZoneInfo(mapping.time_zone)
        except (ValueError, OSError, LookupError) as exc:
            text = f"{mapping.time_zone} is not a time zone; write a name such as UTC or Europe/Berlin"
            raise InvalidError(f"timeZone: {text}") from exc


def _units_of(field: str) -> tuple[str, ...] | None:
    """Return the units that a field may have; None for a field without a unit."""
    if field in ("submit", "duration", "maxRuntime"):
        return tuple(_UNIT_S)
    if field == "cpu":
        return ("", "m")
    if field == "memory":
        return ("", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti")
    return tuple(_MILLI_UNITS) if field == "gpuMilli" else None


def _rules(columns: TraceColumns) -> dict[str, FieldRule]:
    """Return {field as in a scenario: its rule} of the fields in the mapping."""
    names = zip(columns.__struct_fields__, columns.__struct_encode_fields__, strict=True)
    found = {wire: cast("Rule | None", getattr(columns, name)) for name, wire in names}
    return {
        wire: FieldRule(column=rule) if isinstance(rule, str) else rule
        for wire, rule in found.items()
        if rule is not None
    }


class _TraceReader:
    """Reads the rows of one trace, and remembers the line of each allocation."""

    def __init__(self, trace: str, mapping_name: str, mapping: TraceMapping) -> None:
        self._trace = trace
        self._mapping_name = mapping_name
        self._mapping = mapping
        self._rules = _rules(mapping.columns)
        self._zone = ZoneInfo(mapping.time_zone) if mapping.time_zone else None
        self._lines: list[int] = []
        """the lines of the allocations, in their order"""
        self.skipped = 0

    def allocations(self, text: str) -> list[Json]:
        """Return the rows as allocations of a scenario; the first arrival is time 0."""
        found: list[Json] = []
        names: dict[str, int] = {}
        skip = {column: {_plain(cell) for cell in cells} for column, cells in self._mapping.skip.items()}
        for row in self._rows(text):
            if any(row.cells.get(column, "") in cells for column, cells in skip.items()):
                self.skipped += 1
                continue
            item = self._allocation(row)
            known = names.setdefault(item["name"], row.line)
            if known != row.line:
                text = f"{_shown(item['name'])} is the name of line {known} too; map name to a column with unique cells"
                raise InvalidError(f"{self._where(row.line, 'name')}: {text}")
            found.append(item)
            self._lines.append(row.line)
        if not found:
            left = f"; {self.skipped} rows are left out by skip of {self._mapping_name}" if self.skipped else ""
            raise InvalidError(f"{self._trace}: no row has an allocation{left}")
        first = min(item["submit"] for item in found)
        for item in found:
            item["submit"] -= first
        return found

    def row_error(self, message: str, own: int, file: str) -> str:
        """Return an error about a scenario with `own` allocations of its own as an error about the row of the trace."""
        match = re.fullmatch(r"allocations\[(\d+)\](?:\.ranks\[0\])?\.?(\w*)[^:]*: (.*)", message, re.DOTALL)
        if match is None or not own <= int(match[1]) < own + len(self._lines):
            return message if file == "-" else f"{file}: {message}"
        at, field, text = int(match[1]) - own, match[2], match[3]
        if field in ("queue", "gpuType"):
            text += f"; add it to {file}, or translate it with columns.{field}.values of {self._mapping_name}"
        return f"{self._where(self._lines[at], 'ranks' if field == 'count' else field)}: {text}"

    def _where(self, line: int, field: str) -> str:
        """Return the position of a field's cell."""
        rule = self._rules.get(field)
        if rule is not None and rule.value is not None:
            return f"{self._mapping_name}: columns.{field}.value"
        column = f", column {rule.column}" if rule is not None and rule.column else ""
        return f"{self._trace}, line {line}{column}"

    def _rows(self, text: str) -> Iterator[_Row]:
        name = self._trace.lower()
        by_name = "jsonl" if name.endswith((".jsonl", ".ndjson")) else "csv"
        return self._json_lines(text) if (self._mapping.format or by_name) == "jsonl" else self._csv(text)

    def _csv(self, text: str) -> Iterator[_Row]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self._mapping.delimiter, strict=True)
        try:
            head = [cell.strip() for cell in next(reader, list[str]())]
            self._check_head(head)
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(head):
                    raise InvalidError(
                        f"{self._trace}, line {reader.line_num}: it has {len(cells)} cells and the first line has "
                        f"{len(head)}; quote cells that contain {self._mapping.delimiter!r}"
                    )
                yield _Row(reader.line_num, dict(zip(head, (cell.strip() for cell in cells), strict=True)))
        except csv.Error as exc:
            raise InvalidError(f"{self._trace}, line {reader.line_num}: not CSV: {exc}") from exc

    def _check_head(self, head: Sequence[str]) -> None:
        """Check that every column in the mapping exists exactly once."""
        named = {f"columns.{field}": rule.column for field, rule in self._rules.items() if rule.column}
        for field, rule in self._rules.items():
            named |= {f"columns.{field}.from": rule.from_, f"columns.{field}.to": rule.to} if rule.from_ else {}
        named |= {f"skip.{column}": column for column in self._mapping.skip}
        for path, column in named.items():
            if head.count(column) != 1:
                has = ", ".join(head[:_COLUMNS_SHOWN_MAX]) + (", ..." if len(head) > _COLUMNS_SHOWN_MAX else "")
                fault = f"no column {column}" if column not in head else f"two columns {column}"
                raise InvalidError(
                    f"{self._trace}, line 1: {fault}; it has {has or 'nothing'}: correct {path} of {self._mapping_name}"
                )

    def _json_lines(self, text: str) -> Iterator[_Row]:
        for line, raw in enumerate(text.splitlines(), start=1):
            if not raw.strip():
                continue
            try:
                value: Any = json.loads(raw)
            except (ValueError, RecursionError) as exc:
                raise InvalidError(f"{self._trace}, line {line}: not JSON: {exc}; write one object a line") from exc
            if not isinstance(value, dict):
                raise InvalidError(f"{self._trace}, line {line}: not an object; write one object a line")
            yield _Row(line, {key: _plain(cell) for key, cell in cast("Json", value).items()})

    def _allocation(self, row: _Row) -> Json:
        item: Json = {"name": f"row-{row.line}", "submit": self._submit(row), "duration": self._span(row, "duration")}
        item |= {
            field: found.text for field in ("name", "queue", "user", "gpuType") if (found := self._cell(row, field))
        }
        limit = self._span(row, "maxRuntime")
        item |= {} if limit is None else {"maxRuntime": limit}
        priority = self._cell(row, "priority")
        item |= {"priority": _whole(priority)} if priority else {}
        preemptible = self._cell(row, "preemptible")
        item |= {"preemptible": _truth(preemptible)} if preemptible else {}
        ranks = self._cell(row, "ranks", is_needed=True)
        count = 1 if ranks is None else _whole(ranks, least=1)
        role: Json = {"count": count}
        amounts = {field: self._amount(row, field, count) for field in _QUANTITIES}
        role |= {
            "cpu": f"{amounts['cpu']}m",
            "memory": amounts["memory"],
            **self._gpus(row, amounts["gpus"]),
        }
        item["ranks"] = [role]
        return item

    def _gpus(self, row: _Row, gpus: int) -> Json:
        """Return whole GPUs, or a part of one if the trace has that."""
        found = self._cell(row, "gpuMilli", is_needed=True)
        if found is None:
            return {"gpus": gpus}
        number = _number(found)
        milli = math.ceil(number * _MILLI_UNITS[self._rules["gpuMilli"].unit])
        if number < 0:
            raise InvalidError(f"{found.where}: {found.text} is negative")
        if milli == 0 or milli >= MILLI:
            return {"gpus": gpus if "gpus" in self._rules else math.ceil(milli / MILLI)}
        if gpus > 1:
            raise InvalidError(
                f"{found.where}: a part of each of {gpus} GPUs; a rank can have whole GPUs or a part of one GPU"
            )
        return {"gpuMilli": milli}

    def _cell(self, row: _Row, field: str, *, is_needed: bool = False) -> _CellText | None:
        """Return the cell of a field; None when the mapping has no such field, or the cell is empty and optional."""
        rule = self._rules.get(field)
        if rule is None:
            return None
        where = self._where(row.line, field)
        text = _plain(rule.value) if rule.value is not None else row.cells.get(rule.column, "")
        if text in rule.values:
            text = _plain(rule.values[text])
        if not text and rule.default is not None:
            text = _plain(rule.default)
        if not text and is_needed:
            raise InvalidError(f"{where}: the cell is empty; {self._remedy(field, rule.column)}")
        return _CellText(text, where) if text else None

    def _remedy(self, field: str, column: str) -> str:
        return (
            f"state columns.{field}.default in {self._mapping_name}, or leave such rows out with "
            f'skip: {{{column}: [""]}}'
        )

    def _submit(self, row: _Row) -> float:
        found = self._cell(row, "submit", is_needed=True)
        return 0.0 if found is None else self._moment(found, self._rules["submit"].unit)

    def _span(self, row: _Row, field: str) -> float | None:
        rule = self._rules.get(field)
        if rule is None:
            return None
        if rule.from_:
            ends: list[float] = []
            for column in (rule.from_, rule.to):
                where = f"{self._trace}, line {row.line}, column {column}"
                if not row.cells.get(column):
                    raise InvalidError(f'{where}: the cell is empty; leave such rows out with skip: {{{column}: [""]}}')
                ends.append(self._moment(_CellText(row.cells[column], where), rule.unit))
            if ends[1] < ends[0]:
                raise InvalidError(f"{self._trace}, line {row.line}: column {rule.to} is before column {rule.from_}")
            return ends[1] - ends[0]
        found = self._cell(row, field, is_needed=field == "duration")
        return None if found is None else _seconds(found, rule.unit)

    def _moment(self, found: _CellText, unit: str) -> float:
        number = _float(found.text)
        if number is not None:
            return number * _UNIT_S[unit]
        try:
            moment = datetime.fromisoformat(found.text)
        except ValueError as exc:
            text = f"{_shown(found.text)} is not a time; write a number, or a time such as 2026-01-02T03:04:05Z"
            raise InvalidError(f"{found.where}: {text}") from exc
        if moment.tzinfo is None and self._zone is None:
            text = f"{_shown(found.text)} states no time zone; state timeZone in {self._mapping_name}"
            raise InvalidError(f"{found.where}: {text}")
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=self._zone)).timestamp()

    def _amount(self, row: _Row, field: str, ranks: int) -> int:
        """Return the base units of one rank."""
        found = self._cell(row, field, is_needed=True)
        if found is None:
            return 0
        rule, resource = self._rules[field], _QUANTITIES[field]
        text = found.text
        if _float(text) is not None:
            text = f"{_digits(found)}{rule.unit}"
        try:
            whole = parse_quantity(text, scale=scale_of(resource))
        except ValueError as exc:
            raise InvalidError(f"{found.where}: {exc}") from exc
        if field == "gpus" and whole * MILLI != parse_quantity(text, scale=MILLI):
            raise InvalidError(f"{found.where}: {text} is not a whole number; map it as gpuMilli with unit: gpu")
        return -(-whole // ranks) if rule.per == "allocation" else whole


def _seconds(found: _CellText, unit: str) -> float:
    """Return a duration in seconds, from a number of its unit, 2h45m, or [days-][hours:]minutes:seconds."""
    text, number = found.text, _float(found.text)
    if number is not None:
        if number < 0:
            raise InvalidError(f"{found.where}: {text} is negative; a duration is zero or more")
        return number * _UNIT_S[unit]
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        days, hours, minutes, rest = clock.groups(default="0")
        return int(days) * 86400 + int(hours) * 3600 + int(minutes) * 60 + float(rest)
    try:
        return parse_duration(text)
    except ValueError as exc:
        text = f"{_shown(text)} is not a duration; write a number, 2h45m, or 1-02:03:04"
        raise InvalidError(f"{found.where}: {text}") from exc


def _number(found: _CellText) -> float:
    number = _float(found.text)
    if number is None:
        raise InvalidError(
            f"{found.where}: {_shown(found.text)} is not a number; write one, or translate the cell with values"
        )
    return number


def _whole(found: _CellText, least: int | None = None) -> int:
    number = _number(found)
    if number != int(number) or (least is not None and number < least):
        kind = "whole number" if least is None else f"whole number of at least {least}"
        raise InvalidError(f"{found.where}: {_shown(found.text)} is not a {kind}")
    return int(number)


def _truth(found: _CellText) -> bool:
    word = found.text.lower()
    if word not in _TRUE | _FALSE:
        raise InvalidError(f"{found.where}: {_shown(found.text)} is neither true nor false; translate it with values")
    return word in _TRUE


def _digits(found: _CellText) -> str:
    """Return a number without an exponent, because a quantity with a suffix cannot have one."""
    try:
        return format(Decimal(found.text), "f")
    except InvalidOperation as exc:
        raise InvalidError(f"{found.where}: {_shown(found.text)} is not a number") from exc


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _plain(cell: Any) -> str:
    """Return a value of JSON or YAML as the text of a cell."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell.strip() if isinstance(cell, str) else str(cell)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


def _listed(units: Sequence[str]) -> str:
    return ", ".join(unit for unit in units if unit)
