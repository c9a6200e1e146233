"""A model's header as a page for people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from magnitude_tune.header.values import Attention, FileKind, LayerKv, ModelHeader, Role
from magnitude_tune.report.inspect_json import Sums, inspect_document, sums_by
from magnitude_tune.units import format_bytes

if TYPE_CHECKING:
    from magnitude_tune.pipeline.inspection import Planned

__all__ = ["inspect_page", "planned_page"]

_LABEL = 15
_KINDS = {
    FileKind.MODEL: "a language model",
    FileKind.PROJECTOR: "a vision or audio projector: pass it as mmproj, beside the model it belongs to",
    FileKind.ADAPTER: "a LoRA adapter: it needs the base model it was trained on",
    FileKind.IMATRIX: "an importance matrix for quantising, not a model",
    FileKind.VOCAB_ONLY: "a vocabulary only, without weights",
    FileKind.METADATA_ONLY: "metadata only, without weights",
}


def inspect_page(header: ModelHeader) -> str:
    """The page of `inspect`: what the file is, how it attends, what it is made of, what is odd."""
    sections = [_title(header), _facts(header)]
    if header.kind is FileKind.MODEL:
        sections.append(_attention(header))
    if header.groups:
        sections.append(_table("Types", sums_by(header.groups, lambda group: group.type_name)))
        sections.append(_table("Parts", sums_by(header.groups, lambda group: _role(group.role))))
    if header.notes:
        sections.append(["Notes", *(f"  - {note}" for note in header.notes)])
    return _shown("\n\n".join("\n".join(lines) for lines in sections))


def planned_page(planned: Planned) -> str:
    """What `inspect` adds where settings are given: all of them, what they hold for, and the terms."""
    from magnitude_tune.report.resolution_json import companions_document, settings_document
    from magnitude_tune.report.rows import finding_lines, rows_text
    from magnitude_tune.report.terms import terms_text

    engine = planned.engine
    companions = companions_document(planned.companions)
    shown = [(name, _value(value)) for name, value in settings_document(planned.settings).items() if value != []]
    slots = next(place for place, (name, _) in enumerate(shown) if name == "n_parallel")
    shown.insert(slots + 1, ("n_ctx_slot", str(planned.settings.n_ctx_slot)))
    rows = [
        ("machine", planned.machine.hostname),
        ("engine", f"{engine.name} {engine.build}" if engine else "none found: planned as for the newest llama-server"),
        *shown,
        *((name, _value(value)) for name, value in (companions or {}).items() if value is not None),
    ]
    sections = ["Settings\n" + rows_text(rows), terms_text(planned.footprint.terms), _memory(planned)]
    sections.append("\n".join(finding_lines(planned.findings)))
    return _shown("\n\n".join(section for section in sections if section))


def _memory(planned: Planned) -> str:
    """Each pool that is used: what the plan reserves, what is there and what stays free."""
    from magnitude_tune.report.rows import rows_text

    rows: list[tuple[str, ...]] = [("pool", "reserved", "available", "kept free", "total", "left")]
    for name in dict.fromkeys(term.pool for term in planned.footprint.terms):
        pool, reserved = planned.machine.pool(name), planned.footprint.reserved_of_pool(name)
        left = pool.usable_bytes - reserved
        shown = format_bytes(left) if left >= 0 else f"lacks {format_bytes(-left)}"
        figures = (reserved, pool.available_bytes, pool.floor_bytes, pool.total_bytes)
        rows.append((name, *map(format_bytes, figures), shown))
    return "Memory\n" + rows_text(rows, right=(1, 2, 3, 4, 5))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _title(header: ModelHeader) -> list[str]:
    facts = [header.architecture, header.file_type]
    if header.n_params:
        facts += [f"{_count(header.n_params)} parameters", f"{header.bits_per_weight:.2f} bits per weight"]
    facts.append(format_bytes(header.file_bytes))
    return [header.name or Path(header.path).name, "  " + " · ".join(fact for fact in facts if fact)]


def _facts(header: ModelHeader) -> list[str]:
    lines = [_line("Kind", _KINDS[header.kind]), _line("File", header.path)]
    if len(header.shards) > 1:
        lines.append(_line("Parts", f"{len(header.shards)} files, {format_bytes(header.file_bytes)} together"))
    if header.kind is not FileKind.MODEL:
        return [*lines, _line("Tensors", str(header.n_tensors))]
    context = f"{header.context_length} tokens, as trained" if header.context_length else "not told: set n_ctx yourself"
    lines += [
        _line("Context", context),
        _line("Blocks", _blocks(header)),
        _line("Embedding", f"{header.n_embd} wide, vocabulary of {header.n_vocab}{_tied(header)}"),
        _line("Feed-forward", _span(header.n_ff) or "none"),
    ]
    if header.moe:
        lines.append(_line("Experts", _experts(header)))
    lines += [
        _line("Chat template", "yes" if header.has_chat_template else "no"),
        _line("End token", "yes" if header.has_end_token else "no: replies end at the token limit only"),
    ]
    return lines


def _blocks(header: ModelHeader) -> str:
    if not header.nextn_predict_layers:
        return str(header.block_count)
    return f"{header.block_count}, the last {header.nextn_predict_layers} of them for multi-token prediction"


def _tied(header: ModelHeader) -> str:
    return ", output tied to it" if header.tied_output else ""


def _experts(header: ModelHeader) -> str:
    moe = header.moe
    if moe is None:
        return "none"
    shared = f", a shared one of width {moe.n_ff_shared}" if moe.n_ff_shared else ""
    return f"{moe.expert_used_count} of {moe.expert_count} per token, each {moe.n_ff_expert} wide{shared}"


def _attention(header: ModelHeader) -> list[str]:
    """Blocks alike on one line: class, which blocks, heads, bytes a token takes in an f16 cache."""
    alike: dict[LayerKv, list[int]] = {}
    for block, layer in enumerate(header.layers):
        alike.setdefault(layer, []).append(block)
    rows = [
        (_class(layer, header), _blocks_text(len(blocks)), _runs(blocks), _heads(layer), _cached(layer))
        for layer, blocks in alike.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["Attention"]
    lines += [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [*lines, *_kept(header)]


def _role(role: Role) -> str:
    return role.replace("_", " ").replace("ffn", "FFN")


def _blocks_text(number: int) -> str:
    return "1 block" if number == 1 else f"{number} blocks"


def _class(layer: LayerKv, header: ModelHeader) -> str:
    if layer.attention is Attention.SLIDING:
        return f"sliding, {header.sliding_window} tokens"
    return "MLA" if layer.attention is Attention.MLA else str(layer.attention)


def _heads(layer: LayerKv) -> str:
    if not layer.head_count:
        return ""
    return f"{layer.head_count} heads, {layer.head_count_kv} for KV"


def _cached(layer: LayerKv) -> str:
    elements = layer.k + layer.v + layer.indexer
    return f"{format_bytes(2 * elements)} per token" if elements else "no KV"


def _kept(header: ModelHeader) -> list[str]:
    document = inspect_document(header)
    lines = []
    kv, recurrent = document["kv"], document["recurrent"]
    if isinstance(kv, dict) and (kv["bytes_per_token"] or kv["window_bytes_per_token"]):
        growing = f"{format_bytes(kv['bytes_per_token'])} per token of context"
        window = kv["window_bytes_per_token"]
        held = f", and {format_bytes(window)} per token of the window" if window else ""
        lines.append(_line("KV cache, f16", growing + held))
    if isinstance(recurrent, dict):
        lines.append(_line("State, f32", f"{format_bytes(recurrent['bytes_per_sequence'])} per sequence"))
    return lines


def _table(title: str, sums: dict[str, Sums]) -> list[str]:
    """Most bytes first."""
    total = sum(entry.bytes for entry in sums.values()) or 1
    width = max(len(title) - 2, *map(len, sums))
    lines = [f"{title:<{width + 2}}  tensors  parameters       bytes   share"]
    for name, entry in sorted(sums.items(), key=lambda item: -item[1].bytes):
        figures = f"{entry.n_tensors:>7}  {_count(entry.n_params):>10}  {format_bytes(entry.bytes):>10}"
        lines.append(f"  {name:<{width}}  {figures}  {100 * entry.bytes / total:5.1f} %")
    return lines


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _count(number: int) -> str:
    """`268 M`, `7.24 B`."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:.0f} {unit}"
    return str(number)


def _runs(blocks: Iterable[int]) -> str:
    """`0-4, 6-10`."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _span(values: tuple[int, ...]) -> str:
    least, most = min(values, default=0), max(values, default=0)
    if not most:
        return ""
    return f"{most} wide" if least == most else f"{least} to {most} wide"


def _shown(text: str) -> str:
    """Names come from strangers: control characters must not reach a terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
