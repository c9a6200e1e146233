"""Time to ready: the process starts, the weights come from disk or page cache, are repacked, and go to the devices."""

from __future__ import annotations

from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import Settings
from magnitude_tune.throughput.coefficients import ReadyCoefficients
from magnitude_tune.throughput.placement import Plan

__all__ = ["ready_seconds"]


def ready_seconds(
    header: ModelHeader, plan: Plan, settings: Settings, coefficients: ReadyCoefficients, disk: Fact | None
) -> tuple[float, float]:
    """Seconds from start to the first request taken: warm (file in the page cache) and cold (file on disk).

    Every byte of the file passes once at the disk's or the page cache's rate; host weights that are repacked or copied
    (load mode `none`) pass once more at a copy's rate; device weights cross their link; the vocabulary is built.
    """
    copied = upload = 0.0
    for stage in (*plan.stages, plan.output):
        cost = stage.cost
        if stage.device is not None:
            upload += cost.weight_bytes / stage.device.link_bandwidth
        elif plan.repacked:
            copied += (cost.repack_bytes + cost.expert_repack_bytes) / coefficients.repack_bandwidth
    if settings.load_mode == "none":
        copied += header.tensor_bytes / coefficients.cache_bandwidth
    rest = copied + upload + header.n_vocab * coefficients.vocabulary_seconds_per_token
    cache = header.file_bytes / coefficients.cache_bandwidth
    rate = max(disk.value, 1.0) if disk else coefficients.disk_bandwidth
    warm = coefficients.start_seconds_low + cache + rest
    cold = coefficients.start_seconds_high + max(header.file_bytes / rate, cache) + 2.0 * rest
    return warm, cold
