"""CPU time of pricing 2,000 candidates, and of all that the resolver prices for one request.

    python tests/benchmarks/pricing.py [--repeats 7] [--profile]

Two subjects: a dense model of 28 blocks on one card, and a mixture of experts of 80 blocks on two cards. The candidates
are the resolver's own, spread over contexts and KV types. Cold is the first pricing by a new footprint model, its
preparation included; warm is the same candidates once more. The target is 10 ms for the 2,000.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from resolver.stand_ins import a_machine, an_engine
from tiny_models.drafts import Draft
from tiny_models.parts import Size, attention, dense_ffn, moe_ffn, outer, start

from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import FootprintModel
from magnitude_tune.header.read import read_model
from magnitude_tune.request import Request, Settings
from magnitude_tune.resolver.candidates import Search, Shape, candidate_families
from magnitude_tune.resolver.pricing import build_table
from magnitude_tune.resolver.resolve import resolve
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.throughput.coefficients import parse_coefficients
from magnitude_tune.throughput.model import speed_model
from magnitude_tune.units import GIB

N_CANDIDATES = 2000
SHIPPED = Path(__file__).parents[2] / "models" / "throughput.json"
SHAPES = [Shape(n_ctx, 1, False, kind, kind) for n_ctx, kind in product((8192, 16384, 4096, 32768), ("f16", "q8_0"))]


def dense_model() -> Draft:
    """28 blocks of about 3 billion weights."""
    size = Size(n_embd=3072, n_layer=28, n_ff=8192, n_head=24, n_head_kv=8, head=128, n_vocab=32000)
    draft = start("llama", size)
    outer(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        dense_ffn(draft, block, size.n_embd, size.n_ff)
    return draft


def expert_model() -> Draft:
    """80 blocks of 64 experts, about 70 billion weights."""
    size = Size(n_embd=2048, n_layer=80, n_ff=6144, n_head=32, n_head_kv=4, head=128, n_vocab=32000)
    draft = start("qwen3moe", size)
    draft.keys(expert_count=64, expert_used_count=8, expert_feed_forward_length=1024)
    outer(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size, qk_norm=True)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        moe_ffn(draft, block, size.n_embd, 1024, 64)
    return draft


def subject_of(draft: Draft, cards: tuple[tuple[int, int], ...]) -> Subject:
    """The drafted model on a machine with these cards (total and available bytes)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        draft.save(path)
        header = read_model(path)
    machine, engine = a_machine(total=128 * GIB, cards=cards), an_engine()
    coefficients = parse_coefficients(json.loads(SHIPPED.read_bytes()), "throughput.json")
    return Subject(
        header=header,
        machine=machine,
        engine=engine,
        footprint=footprint_model(header, machine, engine),
        speed=speed_model(header, machine, engine, coefficients),
    )


def anew(subject: Subject) -> Subject:
    """The same subject, nothing of it priced yet."""
    coefficients = parse_coefficients(json.loads(SHIPPED.read_bytes()), "throughput.json")
    return subject._replace(
        footprint=footprint_model(subject.header, subject.machine, subject.engine),
        speed=speed_model(subject.header, subject.machine, subject.engine, coefficients),
    )


def footprint_of(subject: Subject) -> FootprintModel:
    """A footprint model that has priced nothing yet."""
    return footprint_model(subject.header, subject.machine, subject.engine)


def candidates_of(subject: Subject) -> list[Settings]:
    """2,000 candidates, as many of each shape, spread evenly over what the resolver makes of it."""
    search = Search(subject=subject, workload=Request().workload, pins={})
    chosen: list[Settings] = []
    for shape in SHAPES:
        made = [
            settings
            for family in candidate_families(search, shape)
            for batches in family
            for several in batches
            for settings in several
        ]
        step = max(1, len(made) * len(SHAPES) // N_CANDIDATES)
        chosen += islice(made[::step], N_CANDIDATES // len(SHAPES))
    return chosen


def price(footprint: FootprintModel, candidates: list[Settings]) -> None:
    """What a table asks of each candidate."""
    for settings in candidates:
        footprint.reserved(settings)
        footprint.reserved_by_device(settings)


def seconds(work: Callable[..., object], *given: object) -> float:
    """CPU seconds of a piece of work."""
    started = time.process_time()
    work(*given)
    return time.process_time() - started


def measure(name: str, subject: Subject, repeats: int) -> None:
    """Print medians for one subject."""
    candidates = candidates_of(subject)
    times: dict[str, list[float]] = {"cold": [], "warm": [], "table": [], "resolve": []}
    for _ in range(repeats):
        footprint = footprint_of(subject)
        times["cold"].append(seconds(price, footprint, candidates))
        times["warm"].append(seconds(price, footprint, candidates))
        times["table"].append(seconds(build_table, Search(anew(subject), Request().workload, {}), SHAPES[0]))
        times["resolve"].append(seconds(resolve, anew(subject), Request()))
    table = build_table(Search(subject, Request().workload, {}), SHAPES[0])
    print(f"{name}: {len(candidates)} candidates; one table has {len(table.bases)} bases and {len(table.rows)} rows")
    for key, values in times.items():
        print(f"    {key}: median {1000 * statistics.median(values):.1f} ms (from {1000 * min(values):.1f})")


def main() -> None:
    """Measure both subjects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="profile one cold resolution of each subject")
    options = parser.parse_args()
    subjects = {
        "28 blocks, one card": subject_of(dense_model(), ((24 * GIB, 23 * GIB),)),
        "80 blocks of experts, two cards": subject_of(expert_model(), ((24 * GIB, 23 * GIB), (16 * GIB, 15 * GIB))),
    }
    for name, subject in subjects.items():
        if options.profile:
            cProfile.runctx("resolve(subject, Request())", globals(), {"subject": anew(subject)}, sort="tottime")
        else:
            measure(name, subject, options.repeats)


if __name__ == "__main__":
    main()
