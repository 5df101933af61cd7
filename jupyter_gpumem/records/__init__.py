"""The facts this package passes around: frozen, in bytes and seconds, `None` where something is not known."""

from .base import NOTHING_YET, Counters, Device, DriverMemory, Record, Renderer
from .holding import Chain, DeviceHolders, Holder, Holders, Released, ReleaseStep, Site
from .measured import DeviceUsage, Measurement, Series
from .oom import BatchSize, FailedAttempt, OomAction, OomExplanation, OomText, Trial
from .state import DeviceStatus, Fragmentation, RecorderStatus, Status, VirtualCard, VirtualStatus

__all__ = [
    "NOTHING_YET",
    "BatchSize",
    "Chain",
    "Counters",
    "Device",
    "DeviceHolders",
    "DeviceStatus",
    "DeviceUsage",
    "DriverMemory",
    "FailedAttempt",
    "Fragmentation",
    "Holder",
    "Holders",
    "Measurement",
    "OomAction",
    "OomExplanation",
    "OomText",
    "Record",
    "RecorderStatus",
    "ReleaseStep",
    "Released",
    "Renderer",
    "Series",
    "Site",
    "Status",
    "Trial",
    "VirtualCard",
    "VirtualStatus",
]
