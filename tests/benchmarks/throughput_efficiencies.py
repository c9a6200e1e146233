"""Derive the stated efficiencies of models/throughput.json from a table of published benchmarks.

Usage: python tests/benchmarks/throughput_efficiencies.py BENCHMARKS.csv DEVICES.csv [throughput.json]

Reads rows of llama.cpp with `use` = first, one device, depth 0, everything on that device; generation alone, and
prompts alone of 128 to 4096 tokens. For each kind of device it finds the one efficiency for tg and for pp: the median
over devices of each device's median, so that devices with many rows do not rule. The interval's factor is the 90 %
quantile of |log(measured / predicted)| where every device weighs the same, at the level 0.9 * (1 + 1 / devices) that
small numbers of devices ask for, 0.95 at most.
It is never taken below 1.5, because the table's models are rebuilt from totals. Prints the figures, then the JSON of
the efficiencies. Deterministic; needs nothing but the package itself.

The table has no tensor lists. A row's model is built from what it has: parameters, active parameters and bytes.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from magnitude_tune.fingerprint.values import Cpu, Device, Fact, Fingerprint, Memory, Pool
from magnitude_tune.header.values import Attention, FileKind, LayerKv, ModelHeader, MoeFacts, Role, TensorGroup
from magnitude_tune.request import ALL_LAYERS, Settings
from magnitude_tune.throughput.coefficients import Coefficients, parse_coefficients
from magnitude_tune.throughput.model import speed_model

SHIPPED = Path(__file__).parents[2] / "models" / "throughput.json"
KINDS = ("cpu", "gpu", "igpu", "apple")
BACKENDS = {"gpu": "cuda", "igpu": "vulkan", "apple": "metal"}
MOE_DENSE_SHARE = 0.05
EXPERTS = 1000
LEAST_FACTOR = 1.5


class Case(NamedTuple):
    """One usable row: what was measured, and everything the model needs to predict it."""

    kind: str
    device: str
    quantity: str
    rate: float
    n_prompt: int
    settings: Settings
    header: ModelHeader
    machine: Fingerprint
    moe: bool
    busy_cores: float


def number(text: str | None) -> float | None:
    """A positive finite number, or None."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def model_of(row: Mapping[str, str]) -> ModelHeader | None:
    """A model with the row's bytes and parameters.

    Blocks grow with parameters (7 billion: 32 blocks; the exponent 0.39 meets 40 at 13 and 80 at 70 billion), and the
    width follows from 12 * blocks * width^2 parameters. Of a model with experts 5 % are taken as dense, and the active
    parameters say how many experts a token uses. Everything counts as blocks: the table has no vocabularies.
    """
    params, gib = number(row["params_b"]), number(row["model_bytes_gib"])
    if params is None or gib is None:
        return None
    active = min(number(row["active_params_b"]) or params, params)
    dense = params if active == params else params * MOE_DENSE_SHARE
    share = 1.0 if active == params else max((active - dense) / (params - dense), 0.001)
    blocks = max(round(32 * ((active * params) ** 0.5 / 7) ** 0.39), 4)
    width = max(128, round(math.sqrt((active * 1e9) / (12 * blocks)) / 128) * 128)
    heads, n_bytes = width // 128, gib * 2**30
    parts = [(Role.DENSE_FFN, dense / params), (Role.EXPERT_FFN, 1 - dense / params)]
    groups = [
        TensorGroup(i, role, "table", 1, round(params * 1e9 * part / blocks), *[round(n_bytes * part / blocks)] * 2, 0)
        for role, part in parts
        for i in range(blocks)
        if part > 0
    ]
    layer = LayerKv(Attention.FULL, heads, max(heads // 4, 1), 128 * max(heads // 4, 1), 128 * max(heads // 4, 1))
    return ModelHeader(
        path="row",
        kind=FileKind.MODEL,
        shards=(),
        version=3,
        byte_order="little",
        name=None,
        architecture="table",
        file_type=None,
        block_count=blocks,
        nextn_predict_layers=0,
        n_embd=width,
        n_vocab=0,
        context_length=None,
        layers=(layer,) * blocks,
        n_ff=(4 * width,) * blocks,
        sliding_window=0,
        moe=None if share == 1.0 else MoeFacts(EXPERTS, max(round(EXPERTS * share), 1), width),
        recurrent=None,
        causal=True,
        flash_attn=True,
        tied_output=False,
        has_chat_template=False,
        has_end_token=False,
        n_tensors=0,
        n_params=round(params * 1e9),
        tensor_bytes=round(n_bytes),
        file_bytes=round(n_bytes),
        groups=tuple(groups),
        content_hash="",
    )


def machine_of(kind: str, device: Mapping[str, str]) -> Fingerprint | None:
    """A machine with the device's data-sheet figures.

    Peak arithmetic is the better of half and single precision for accelerators (some halve at a 64th of the rate, and
    engines then do not use halves), and single precision for CPUs.
    """
    bandwidth = number(device["mem_bandwidth_gbs"])
    single = number(device["fp32_tflops"])
    half = None if kind == "cpu" else number(device["fp16_tflops"])
    flops = max(half or 0.0, single or 0.0) or None
    if bandwidth is None or flops is None:
        return None
    facts = Fact(bandwidth * 1e9, "device table"), Fact(flops * 1e12, "device table")
    cores = int(number(device["cores"]) or 1) if kind == "cpu" else 8
    cpu_facts = facts if kind == "cpu" else (Fact(5e10, "stated"), Fact(5e11, "stated"))
    cpu = Cpu(
        brand=None,
        architecture="x86_64",
        usable_cores=cores,
        performance_cores=cores,
        logical_cpus=cores,
        affinity_cpus=cores,
        smt=None,
        quota_cores=None,
        features=frozenset(),
        max_hertz=None,
        bandwidth=cpu_facts[0],
        flops=cpu_facts[1],
    )
    accelerator = Device(
        name="D0",
        backend=BACKENDS.get(kind, ""),
        pool="ram" if kind in ("igpu", "apple") else "D0",
        description="",
        total_bytes=None,
        free_bytes=None,
        bandwidth=facts[0],
        flops=facts[1],
        unified=kind in ("igpu", "apple"),
    )
    return Fingerprint(
        hostname="table",
        system="",
        cpu=cpu,
        memory=Memory(total_bytes=1, available_bytes=1, host_total_bytes=1),
        pools=(Pool("ram", "host", 1, 1), Pool("D0", "card", 1, 1)),
        devices=() if kind == "cpu" else (accelerator,),
    )


def why_not(row: Mapping[str, str], devices: Mapping[str, Mapping[str, str]]) -> str | None:
    """The rule that drops a row, None where it can be used."""
    full = number(row["ngl"]) is None or (number(row["ngl"]) or 0) >= 99
    depth = number(row["depth"])
    prompt, generated = number(row["n_prompt"]), number(row["n_gen"])
    rules = {
        "another engine": row["engine"] != "llama.cpp",
        "a second reading of the same source": row["use"] != "first",
        "several devices": row["n_devices"] != "1",
        "at depth": depth is not None,
        "experts on the CPU": row["n_cpu_moe"].strip() not in ("", "0"),
        "not wholly offloaded": row["device_kind"] != "cpu" and (not full or row["ngl"] == "0"),
        "device not in the table": row["device_norm"] not in devices,
        "no rate": number(row["tps_mean"]) is None,
        "no threads known": row["device_kind"] == "cpu" and number(row["threads"]) is None,
        "prompt and answer together": (prompt is None) == (generated is None),
        "prompt outside 128 to 4096": prompt is not None and not 128 <= prompt <= 4096,
    }
    return next((rule for rule, broken in rules.items() if broken), None)


def read_cases(benchmarks: Path, device_table: Path) -> tuple[list[Case], Counter[str]]:
    """Usable rows, and how many each rule dropped."""
    with device_table.open(newline="", encoding="utf-8") as stream:
        devices = {row["device"]: row for row in csv.DictReader(stream)}
    cases: list[Case] = []
    dropped: Counter[str] = Counter()
    with benchmarks.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            reason = why_not(row, devices)
            kind = row["device_kind"]
            header = None if reason else model_of(row)
            machine = None if reason else machine_of(kind, devices[row["device_norm"]])
            if reason or header is None or machine is None:
                dropped[reason or "model or device figures missing"] += 1
                continue
            cases.append(_case(row, header, machine))
    return cases, dropped


def _case(row: Mapping[str, str], header: ModelHeader, machine: Fingerprint) -> Case:
    threads = int(number(row["threads"]) or 1)
    on_cpu = row["device_kind"] == "cpu"
    settings = Settings(
        n_gpu_layers=0 if on_cpu else ALL_LAYERS,
        n_threads=threads,
        n_threads_batch=threads,
        n_batch=int(number(row["n_batch"]) or 2048),
        n_ubatch=int(number(row["n_ubatch"]) or 512),
        n_ctx=8192,
        flash_attn=row["flash_attn"] == "1",
        devices=() if on_cpu else ("D0",),
    )
    return Case(
        kind=row["device_kind"],
        device=row["device_norm"],
        quantity="pp" if number(row["n_prompt"]) else "tg",
        rate=number(row["tps_mean"]) or 0.0,
        n_prompt=int(number(row["n_prompt"]) or 1),
        settings=settings,
        header=header,
        machine=machine,
        moe=header.moe is not None,
        busy_cores=threads / machine.cpu.usable_cores,
    )


def predict(case: Case, coefficients: Coefficients) -> float:
    """The speed model's rate for a row, tokens/second."""
    model = speed_model(case.header, case.machine, None, coefficients)
    if case.quantity == "tg":
        return 1 / model.tg_seconds(case.settings, case.settings.n_threads)
    return case.n_prompt / model.pp_seconds(case.settings, case.settings.n_threads_batch, case.n_prompt)


def with_efficiency(coefficients: Coefficients, kind: str, **changes: float) -> Coefficients:
    """The same coefficients with other efficiencies for one kind."""
    changed = coefficients.kinds[kind]._replace(**changes)  # type: ignore[arg-type]
    return coefficients._replace(kinds={**coefficients.kinds, kind: changed})


def fitted(case: Case, coefficients: Coefficients, names: tuple[str, ...]) -> float:
    """The efficiency that predicts this row exactly, by bisection on its logarithm between 0.001 and 30.

    `names` are the efficiencies set to that value; the ones that are not named stay as they are.
    """
    low, high = math.log(1e-3), math.log(30)
    for _ in range(18):
        middle = (low + high) / 2
        rate = predict(case, with_efficiency(coefficients, case.kind, **dict.fromkeys(names, math.exp(middle))))
        low, high = (middle, high) if rate < case.rate else (low, middle)
    return math.exp((low + high) / 2)


def over_devices(values: list[tuple[str, float]]) -> tuple[float, int]:
    """The median over devices of each device's median, and how many devices there are."""
    grouped: defaultdict[str, list[float]] = defaultdict(list)
    for device, value in values:
        grouped[device].append(value)
    return median(median(group) for group in grouped.values()), len(grouped)


def fitted_over(
    cases: list[Case], coefficients: Coefficients, name: str, others: Mapping[str, float] | None = None
) -> float:
    """One efficiency over all devices, with `others` set aside first."""
    kind = cases[0].kind
    aside = with_efficiency(coefficients, kind, **(others or {}))
    return round(over_devices([(case.device, fitted(case, aside, (name,))) for case in cases])[0], 2)


def derive(cases: list[Case], start: Coefficients) -> Coefficients:
    """All efficiencies of each kind, one after another.

    CPUs generate within their arithmetic at first and within their bandwidth at last, so the one is read from rows
    with one or two threads and the other from rows with at least half of the cores, each with the other set aside.
    """
    coefficients = start
    for kind in KINDS:
        tg = [case for case in cases if case.kind == kind and case.quantity == "tg"]
        pp = [case for case in cases if case.kind == kind and case.quantity == "pp"]
        few = [case for case in tg if case.settings.n_threads <= 2] if kind == "cpu" else []
        many = [case for case in tg if 0.5 <= case.busy_cores <= 1.0] if kind == "cpu" else tg
        found = {
            "tg_efficiency": fitted_over(many, coefficients, "tg_efficiency", {"tg_compute_efficiency": 100.0}),
            "pp_efficiency": fitted_over(pp, coefficients, "pp_efficiency"),
        }
        found["tg_compute_efficiency"] = found["pp_efficiency"]
        if few:
            aside = {"tg_efficiency": 100.0}
            found["tg_compute_efficiency"] = fitted_over(few, coefficients, "tg_compute_efficiency", aside)
        coefficients = with_efficiency(coefficients, kind, **found)
    return coefficients


def interval_factor(errors: list[tuple[str, float]]) -> float:
    """exp of the 90 % quantile of |log error|, every device weighing the same, level raised for few devices."""
    counts = Counter(device for device, _ in errors)
    level = min(0.95, 0.9 * (1 + 1 / len(counts)))
    reached = 0.0
    for device, error in sorted(errors, key=lambda item: (abs(item[1]), item[0])):
        reached += 1 / counts[device] / len(counts)
        if reached >= level - 1e-12:
            return math.exp(abs(error))
    return math.exp(max(abs(error) for _, error in errors))


def unseen_coverage(errors: list[tuple[str, float]]) -> float:
    """Coverage over devices when each device's factor comes from the other devices only."""
    covered = []
    for device in sorted({name for name, _ in errors}):
        rest = [item for item in errors if item[0] != device]
        own = [abs(error) for name, error in errors if name == device]
        factor = interval_factor(rest) if rest else 1.0
        covered.append(sum(error <= math.log(factor) for error in own) / len(own))
    return sum(covered) / len(covered)


def main(arguments: list[str]) -> int:
    """Print the figures and the JSON."""
    if len(arguments) not in (2, 3):
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    shipped = Path(arguments[2]) if len(arguments) == 3 else SHIPPED
    # What was learned stands on these efficiencies, so it must not be in them.
    start = parse_coefficients(json.loads(shipped.read_text(encoding="utf-8")), str(shipped))._replace(learned=None)
    cases, dropped = read_cases(Path(arguments[0]), Path(arguments[1]))
    lines = [f"rows used: {len(cases)}", *(f"dropped {n:5d}: {reason}" for reason, n in sorted(dropped.items()))]
    derived = derive(cases, start)
    out: dict[str, dict[str, float]] = {}
    lines.append("kind  what  rows  devices  median error  90 % factor  coverage of unseen devices")
    for kind in KINDS:
        found = derived.kinds[kind]
        names = ("tg_efficiency", "tg_compute_efficiency", "pp_efficiency")
        out[kind] = {name: getattr(found, name) for name in names}
        for quantity in ("tg", "pp"):
            rows = [case for case in cases if case.kind == kind and case.quantity == quantity]
            errors = [(case.device, math.log(case.rate / predict(case, derived))) for case in rows]
            wrong, n = over_devices([(device, abs(1 / math.exp(error) - 1)) for device, error in errors])
            factor = max(LEAST_FACTOR, math.ceil(100 * interval_factor(errors)) / 100)
            out[kind][f"{quantity}_factor_90"] = factor
            unseen = unseen_coverage(errors)
            lines.append(f"{kind:5} {quantity:4} {len(rows):6d} {n:8d} {wrong:13.1%} {factor:12.2f} {unseen:10.1%}")
    sys.stdout.write("\n".join(lines) + "\n" + json.dumps(out, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
